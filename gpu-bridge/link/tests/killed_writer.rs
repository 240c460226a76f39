//! The placement between two processes, as in use: a sealed memfd, and a writer that SIGKILL ends wherever it is.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, FromRawFd},
    sync::atomic::AtomicU64,
};

use tensortier_link::placement::{Extent, Kind, Reader, Writer, words};

const CAPACITY: usize = 512;
const BYTES: usize = words(CAPACITY) * 8;

/// A shared mapping of a memfd, left mapped until the process ends.
fn map(file: &File, protection: i32) -> io::Result<&'static [AtomicU64]> {
    // SAFETY: a fresh mapping of BYTES bytes that is never unmapped; page aligned, and all access is atomic.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(std::slice::from_raw_parts(base.cast::<AtomicU64>(), words(CAPACITY)))
    }
}

fn extents(mark: u64) -> Vec<Extent> {
    (1..=CAPACITY as u64)
        .map(|i| Extent {
            start: i << 21,
            end: (i << 21) + mark,
            node: 1,
            kind: Kind::Cxl,
            read_mib_per_sec: mark as u32,
            latency_ns: mark as u32,
        })
        .collect()
}

#[test]
fn a_writer_killed_at_any_moment_leaves_a_whole_placement() {
    // SAFETY: the name is a NUL-terminated literal; the descriptor is owned by the File from here on.
    let file = unsafe {
        let fd = libc::memfd_create(c"placement".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        File::from_raw_fd(fd)
    };
    file.set_len(BYTES as u64).expect("room for the placement");
    let writable = map(&file, libc::PROT_READ | libc::PROT_WRITE).expect("writable before the seal");
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    // SAFETY: F_ADD_SEALS takes an integer and touches no memory of ours.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    assert!(map(&file, libc::PROT_READ | libc::PROT_WRITE).is_err(), "nobody gets a second writable mapping");
    assert!((&file).write_all(b"x").is_err() && file.set_len(0).is_err(), "nor writes or cuts the file");
    let readable = map(&file, libc::PROT_READ).expect("readable");

    let tables: Vec<_> = (1..=7).map(extents).collect();
    for round in 0..40_u64 {
        let (mut from_child, to_parent) = io::pipe().expect("pipe");
        // SAFETY: the child only stores to memory mapped before and writes to a pipe; SIGKILL ends it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            publish_for_ever(writable, &tables, to_parent);
        }
        assert!(child > 0, "{}", io::Error::last_os_error());
        drop(to_parent);
        from_child.read_exact(&mut [0]).expect("the child has published");
        std::thread::sleep(std::time::Duration::from_micros(round * 37));
        // SAFETY: the child is ours and not yet reaped, so its pid names it alone.
        unsafe {
            assert_eq!(libc::kill(child, libc::SIGKILL), 0);
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
        }
        let mut read = Vec::new();
        let stamp = Reader::new(readable).expect("header").read(&mut read).expect("the last whole placement");
        assert_eq!(read, extents(stamp.published_ns), "round {round}");
    }
}

/// Publishes until it is killed, at the latest by its parent's end. It allocates nothing: other threads of the parent may
/// have held the allocator's locks at the fork.
fn publish_for_ever(memory: &'static [AtomicU64], tables: &[Vec<Extent>], mut started: io::PipeWriter) -> ! {
    // SAFETY: takes integers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let Ok(mut writer) = Writer::new(memory) else { std::process::abort() };
    let mut first = true;
    for (table, mark) in tables.iter().zip(1..).cycle() {
        let published = writer.publish(table, mark);
        if published.is_err() || first && started.write_all(&[1]).is_err() {
            std::process::abort();
        }
        first = false;
    }
    std::process::abort()
}
