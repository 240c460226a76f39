//! On the kernel at hand, with this process and children of it.
#![allow(clippy::unwrap_used)]
use std::{fs, process::Command};

use super::*;

fn this() -> Process {
    Process::open(Pid(std::process::id())).unwrap()
}

/// Anonymous memory without huge pages: (its owner, its addresses).
fn arena(pages: u64) -> (map::Map, Range) {
    let map = map::Map::new((pages * PAGE) as usize);
    let range = Range::new(map.start(), map.start() + pages * PAGE);
    (map, range)
}

mod map {
    pub struct Map {
        at: *mut u8,
        bytes: usize,
    }

    impl Map {
        pub fn new(bytes: usize) -> Self {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new private mapping at an address of the kernel's choice.
            let at =
                unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            // SAFETY: advice on the mapping just made.
            unsafe { libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
            Self { at: at.cast(), bytes }
        }

        pub fn start(&self) -> u64 {
            self.at as u64
        }

        pub fn write(&mut self, offset: usize) {
            assert!(offset < self.bytes);
            // SAFETY: inside the mapping.
            unsafe { self.at.add(offset).write_volatile(1) };
        }

        pub fn read(&self, offset: usize) -> u8 {
            assert!(offset < self.bytes);
            // SAFETY: inside the mapping.
            unsafe { self.at.add(offset).read_volatile() }
        }
    }

    impl Drop for Map {
        fn drop(&mut self) {
            // SAFETY: the mapping is this value's own.
            unsafe { libc::munmap(self.at.cast(), self.bytes) };
        }
    }
}

#[test]
fn only_populated_pages_of_a_huge_reservation_are_found() {
    let (mut map, range) = arena(64 << 30 >> 12);
    let mut expected = Vec::new();
    for page in [0u64, 1, 2, 1000, 9 << 18] {
        map.write((page * PAGE) as usize);
    }
    for (first, count) in [(0u64, 3u64), (1000, 1), (9 << 18, 1)] {
        let start = range.start + first * PAGE;
        expected.push(Extent { range: Range::new(start, start + count * PAGE), huge: false });
    }
    // The zero page that a read maps is nobody's to move.
    map.read(5000 * PAGE as usize);
    assert_eq!(this().populated(range).unwrap(), expected);
    assert_eq!(this().populated(Range::new(range.start, range.start)).unwrap(), []);
}

#[test]
fn more_extents_than_one_scan_returns_are_all_found() {
    let (mut map, range) = arena(4096);
    (0..4096).step_by(2).for_each(|page| map.write((page * PAGE) as usize));
    let found = this().populated(range).unwrap();
    assert_eq!(found.len(), 2048);
    assert_eq!(found.iter().map(|extent| extent.range.pages()).sum::<u64>(), 2048);
}

#[test]
fn a_query_tells_nodes_and_absent_pages_apart() {
    let (mut map, range) = arena(3);
    map.write(0);
    let addresses = [range.start, range.start + PAGE, 0x1000];
    let mut status = [0; 3];
    this().nodes(&addresses, &mut status).unwrap();
    assert!(status[0] >= 0, "{status:?}");
    assert_eq!(status[1], -libc::ENOENT);
    assert_eq!(status[2], -libc::EFAULT);
}

#[test]
fn moving_to_the_node_a_page_is_on_and_to_one_that_does_not_exist() {
    let (mut map, range) = arena(1);
    map.write(0);
    let mut status = [0];
    this().nodes(&[range.start], &mut status).unwrap();
    let home = status[0];
    assert_eq!(this().move_to(&[range.start], NodeId(home as u32), &mut status).unwrap(), 0);
    assert_eq!(status, [home]);
    let error = this().move_to(&[range.start], NodeId(999), &mut status).unwrap_err();
    assert_eq!(error.errno(), libc::ENODEV);
    let text = error.to_string();
    let pid = std::process::id().to_string();
    assert!(text.contains("move_pages") && text.contains(&pid) && text.contains(&format!("{:#x}", range.start)));
    assert_eq!(status, [UNWRITTEN]);
}

#[test]
fn a_process_that_ended_is_gone_even_before_it_is_reaped() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let process = Process::open(Pid(child.id())).unwrap();
    assert!(process.alive() && process.started() > 0);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!process.alive());
    assert!(matches!(Process::open(Pid(child.id())), Err(SysError::Gone { .. })));
    assert_eq!(process.nodes(&[0x1000], &mut [0]).unwrap_err().errno(), libc::ESRCH);
}

#[test]
fn a_policy_is_set_on_a_range_and_shows_in_numa_maps() {
    let (mut map, range) = arena(2);
    map.write(0);
    let mut home = [0];
    this().nodes(&[range.start], &mut home).unwrap();
    let home = NodeId(home[0] as u32);
    MemPolicy::Bind([home].into_iter().collect()).set_for_range(range).unwrap();
    let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
    let line = maps.lines().find(|line| line.starts_with(&format!("{:x} ", range.start))).unwrap();
    assert!(line.contains(&format!("bind:{home}")), "{line}");
    assert!(MemPolicy::Preferred(NodeId(900)).set_for_range(range).is_err());
    MemPolicy::Default.set_for_range(range).unwrap();
}

#[test]
fn a_process_that_executes_another_program_is_read_as_what_it_is_now() {
    use std::io::Write;
    let mut child =
        Command::new("sh").args(["-c", "read go; exec sleep 60"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let process = Process::open(Pid(child.id())).unwrap();
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
    while !maps().contains("sleep") || !maps().contains("[stack]") {
        std::thread::yield_now();
    }
    let text = maps();
    let stack = text.lines().find(|line| line.contains("[stack]")).unwrap();
    let (start, end) = stack.split_once(' ').unwrap().0.split_once('-').unwrap();
    let address = |hex| u64::from_str_radix(hex, 16).unwrap();
    let extents = process.populated(Range::new(address(start), address(end))).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!extents.is_empty(), "a program has pages on its stack");
}

#[test]
fn cooling_changes_no_contents_and_passes_over_what_is_not_mapped() {
    let (mut map, range) = arena(8);
    (0..8).for_each(|page| map.write(page * PAGE as usize));
    this().cool(range).unwrap();
    assert!((0..8).all(|page| map.read(page * PAGE as usize) == 1));
    drop(map);
    this().cool(range).unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let process = Process::open(Pid(child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(process.cool(range).unwrap_err().errno(), libc::ESRCH);
}
