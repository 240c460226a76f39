//! Copies to and from a GPU, seen by probes on the CUDA libraries of this machine's own processes: exact counts. The driver
//! is the emulated one. Needs root, BPF and uprobes; where these are missing it fails and says so.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use tensortier::{
    source::{
        ebpf::{Options, Programs},
        gpu::{Direction, GpuCall, GpuCallKind},
        job_events::JobId,
    },
    units::{Pid, Range},
};
use tensortier_tests::{copier::Copier, emulator};

const MIB: u64 = 1 << 20;

struct Job(Copier);

impl Job {
    fn start(command: &mut Command) -> Self {
        Self(Copier::start(command).unwrap())
    }

    fn tell(&mut self, line: &str) -> u64 {
        self.0.tell(line).unwrap_or_else(|error| panic!("{error:#}"))
    }

    fn pid(&self) -> Pid {
        Pid(self.0.pid())
    }
}

/// The programs, with their looks at processes.
struct Watch {
    programs: Programs,
    now: Instant,
}

impl Watch {
    fn new() -> Self {
        let programs = Programs::load(&Options::default());
        let programs = programs.unwrap_or_else(|error| panic!("host tests need root, BPF and tracefs: {error}"));
        Self { programs, now: Instant::now() }
    }

    fn track(&mut self, pid: Pid) {
        self.programs.jobs.track(pid, JobId(7)).unwrap();
    }

    /// Looks as if the longest interval had passed.
    fn look(&mut self) {
        self.now += Duration::from_secs(10);
        self.programs.look_for_gpus(self.now);
        assert_eq!(self.programs.gpu.refused(), None);
    }

    fn drain(&mut self) -> Vec<GpuCall> {
        self.programs.gpu.drain().unwrap()
    }

    fn kinds(&mut self) -> Vec<GpuCallKind> {
        self.drain().into_iter().map(|call| call.kind).collect()
    }
}

/// A tracked job that has loaded the emulated driver of this folder, as the probes have seen; and an arena's address.
fn loaded(folder: &Path) -> (Watch, Job, u64) {
    let driver = emulator::install(folder).unwrap();
    let (mut watch, mut job) = (Watch::new(), Job::start(&mut Copier::command()));
    watch.track(job.pid());
    job.tell(&format!("load {}", driver.display()));
    watch.look();
    let start = job.tell("arena a 4194304 -1");
    (watch, job, start)
}

fn at(start: u64, bytes: u64) -> Range {
    Range::new(start, start + bytes)
}

#[test]
fn every_copy_of_a_tracked_process_is_told_with_its_host_memory_and_way() {
    let folder = tempfile::tempdir().unwrap();
    let driver = emulator::install(folder.path()).unwrap();
    let (mut watch, mut job, mut stranger) =
        (Watch::new(), Job::start(&mut Copier::command()), Job::start(&mut Copier::command()));
    watch.track(job.pid());
    // Loaded only after the first look, as an interpreter does.
    watch.look();
    for one in [&mut job, &mut stranger] {
        one.tell(&format!("load {}", driver.display()));
    }
    watch.look();
    let start = job.tell("arena a 4194304 -1");
    stranger.tell("arena a 4194304 -1");
    assert_eq!(watch.drain(), []);
    let (to_device, to_host) = (Direction::ToDevice, Direction::ToHost);
    let mut expected = Vec::new();
    for (function, direction, times) in [
        ("cuMemcpyHtoD_v2", to_device, 500),
        ("cuMemcpyHtoDAsync_v2", to_device, 300),
        ("cuMemcpyDtoH_v2", to_host, 200),
        ("cuMemcpyDtoHAsync_v2", to_host, 100),
    ] {
        let offset = times * 4096;
        let line = format!("copy {function} a {offset} {} {times}", times + 1);
        assert_eq!((job.tell(&line), stranger.tell(&line)), (0, 0));
        let host = at(start + offset, times + 1);
        expected.extend((0..times).map(|_| GpuCallKind::Copy { direction, host }));
    }
    let calls = watch.drain();
    assert!(calls.iter().all(|call| call.pid == job.pid() && call.at.elapsed() < Duration::from_secs(600)));
    assert!(calls.is_sorted_by_key(|call| call.at));
    assert_eq!(calls.iter().map(|call| call.kind).collect::<Vec<_>>(), expected, "each, and no stranger's");

    assert_eq!(job.tell("copy cuMemcpy a 0 77 1") + job.tell("copy cuMemcpyAsync:back a 0 78 1"), 0);
    let told = watch.kinds();
    let [GpuCallKind::Either { from, to }, GpuCallKind::Either { to: back, .. }] = told[..] else { panic!("{told:?}") };
    assert_eq!((from, back, to.bytes()), (at(start, 77), at(start, 78), 77));
    assert_eq!(job.tell("copy cuMemcpyHtoD_v2 a 0 0 3"), 0);
    assert_eq!((watch.drain(), watch.programs.gpu.lost()), (vec![], 0), "a copy of nothing is none");
}

#[test]
fn memory_is_pinned_from_a_registration_that_succeeds_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let (mut watch, mut job, start) = loaded(folder.path());
    assert_eq!(job.tell("register a 2097152"), 0);
    assert_ne!(job.tell("register a 2097152"), 0, "it is registered already");
    assert_eq!(job.tell("unregister a"), 0);
    let own = job.tell("allocate b 1048576");
    let expected =
        [GpuCallKind::Pinned(at(start, 2 * MIB)), GpuCallKind::Released(start), GpuCallKind::Pinned(at(own, MIB))];
    assert_eq!(watch.kinds(), expected);
}

/// The runtime library as far as it matters here: copies and pins that end in the driver's.
const RUNTIME: &str = r#"
#include <stddef.h>
extern int cuMemcpyHtoD_v2(void *, const void *, size_t), cuMemcpyDtoH_v2(void *, void *, size_t);
extern int cuMemcpy(void *, const void *, size_t), cuMemAllocHost_v2(void **, size_t);
int cudaMemcpy(void *to, void *from, size_t bytes, int kind) {
    return kind == 1 ? cuMemcpyHtoD_v2(to, from, bytes) : kind == 2 ? cuMemcpyDtoH_v2(to, from, bytes)
                                                                    : cuMemcpy(to, from, bytes);
}
int cudaMallocHost(void **memory, size_t bytes) { return cuMemAllocHost_v2(memory, bytes); }
"#;

#[test]
fn a_copy_through_the_runtime_library_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let driver = emulator::install(folder.path()).unwrap();
    let (source, library) = (folder.path().join("runtime.c"), folder.path().join("libcudart-0123abcd.so.12.0"));
    fs::write(&source, RUNTIME).unwrap();
    let cc = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source, &driver]).status();
    assert!(cc.unwrap().success());
    let mut python = Copier::command();
    let (mut watch, mut job) = (Watch::new(), Job::start(python.env("LD_LIBRARY_PATH", folder.path())));
    watch.track(job.pid());
    job.tell(&format!("load {}", driver.display()));
    job.tell(&format!("runtime {}", library.display()));
    watch.look();
    let host = at(job.tell("arena a 4194304 -1"), 100);
    for (kind, times) in [(1, 50), (2, 40), (4, 30)] {
        assert_eq!(job.tell(&format!("copy cudaMemcpy:{kind} a 0 100 {times}")), 0);
    }
    // The driver's own function, called with the same arguments, is another copy.
    assert_eq!(job.tell("copy cuMemcpyHtoD_v2 a 0 100 20"), 0);
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for kind in watch.kinds() {
        let name = match kind {
            GpuCallKind::Copy { direction: Direction::ToDevice, host: at } if at == host => "to device",
            GpuCallKind::Copy { direction: Direction::ToHost, host: at } if at == host => "to host",
            GpuCallKind::Either { from, .. } if from == host => "default",
            other => panic!("{other:?}"),
        };
        *counts.entry(name).or_default() += 1;
    }
    assert_eq!(counts, [("to device", 70), ("to host", 40), ("default", 30)].into());
}

#[test]
fn a_library_is_found_in_another_mount_namespace_and_after_its_file_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let driver = emulator::install(folder.path()).unwrap();
    let hidden = folder.path().join("hidden");
    fs::create_dir(&hidden).unwrap();
    // A file system that this process cannot see.
    let script = "mount -t tmpfs none $1 && cp $2 $1/libcuda.so.1 && shift 2 && exec \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-c", script, "sh"]).args([&hidden, &driver]);
    let python = Copier::command();
    unshare.arg(python.get_program()).args(python.get_args());
    let (mut watch, mut job) = (Watch::new(), Job::start(&mut unshare));
    watch.track(job.pid());
    let start = job.tell("arena a 4194304 -1");
    job.tell(&format!("load {}", hidden.join("libcuda.so.1").display()));
    assert!(!hidden.join("libcuda.so.1").exists());
    let theirs = format!("/proc/{}/root{}/libcuda.so.1", job.pid(), hidden.display());
    fs::remove_file(Path::new(&theirs)).unwrap();
    watch.look();
    assert_eq!(job.tell("copy cuMemcpyHtoD_v2 a 0 4096 9"), 0);
    let expected = GpuCallKind::Copy { direction: Direction::ToDevice, host: at(start, 4096) };
    assert_eq!(watch.kinds(), [expected; 9]);
}

#[test]
fn copies_that_the_buffer_has_no_room_for_are_counted_and_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (mut watch, mut job, _) = loaded(folder.path());
    let all = tensortier::source::gpu::GpuCalls::capacity() as u64 + 2000;
    assert_eq!(job.tell(&format!("copy cuMemcpyHtoD_v2 a 0 8 {all}")), 0);
    let mut told = 0;
    loop {
        match watch.drain().len() as u64 {
            0 => break,
            some => told += some,
        }
    }
    let lost = watch.programs.gpu.lost();
    assert!(lost > 0 && told > 0);
    assert_eq!(told + lost, all);
    assert_eq!(job.tell("copy cuMemcpyHtoD_v2 a 0 8 5"), 0);
    assert_eq!((watch.drain().len(), watch.programs.gpu.lost()), (5, lost), "after a drain there is room again");
}
