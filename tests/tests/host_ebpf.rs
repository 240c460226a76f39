//! The eBPF programs on this machine's own kernel: exact counts. They need root, BPF and tracefs; where these are missing
//! they fail and say so.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, fs, path::Path, process::Command, thread::sleep, time::Duration};

use tensortier::{
    source::{
        ebpf::{Options, Programs},
        fault::RegionFaults,
        job_events::{JobEvent, JobEventKind, JobId},
    },
    units::{PAGE, Pid, Range},
};
use tensortier_core::{VmaIter, VmaKind, flags};
use tensortier_tests::worker::{Reply, Worker};

const JOB: JobId = JobId(7);

fn worker() -> Worker {
    Worker::start(Path::new(env!("CARGO_BIN_EXE_bench-faultcost"))).unwrap()
}

fn load(options: &Options) -> Programs {
    Programs::load(options).unwrap_or_else(|error| panic!("host tests need root, BPF and tracefs: {error}"))
}

fn tracked() -> (Programs, Worker) {
    let (mut programs, worker) = (load(&Options::default()), worker());
    programs.jobs.track(Pid(worker.pid()), JOB).unwrap();
    (programs, worker)
}

fn inside(faults: &[RegionFaults], reply: &Reply) -> (u64, u64) {
    // The first and last region hold neighbours' pages as well; these do not fault while the worker waits.
    let range = Range::new(reply.start, reply.end);
    let mine = faults.iter().filter(|fault| fault.pid.0 == reply.pid && fault.range.intersect(&range).is_some());
    mine.fold((0, 0), |(user, kernel), fault| (user + fault.count.user, kernel + fault.count.kernel))
}

fn within_one_percent(counted: u64, charged: u64) {
    assert!(counted.abs_diff(charged) * 100 <= charged, "counted {counted}, the kernel charged {charged}");
}

/// Drains until the process is seen off, as the agent does tick by tick.
fn until_exit(programs: &mut Programs, pid: u32) -> Vec<JobEvent> {
    let mut events = Vec::new();
    for _ in 0..200 {
        events.extend(programs.jobs.drain().unwrap());
        if events.iter().any(|event| event.pid.0 == pid && event.kind == JobEventKind::Exit) {
            return events;
        }
        sleep(Duration::from_millis(10));
    }
    panic!("no exit of {pid} in {events:?}");
}

#[test]
fn every_program_attaches_here_or_says_why_not() {
    let programs = load(&Options::default());
    for attachment in programs.attachments() {
        let event = Path::new("/sys/kernel/tracing/events").join(attachment.event);
        assert_eq!(attachment.missing.is_none(), event.exists(), "{attachment:?}");
    }
}

#[test]
fn a_touch_loop_is_counted_page_by_page_in_its_regions() {
    let (mut programs, mut worker) = tracked();
    let reply = worker.ask("touch 8192").unwrap();
    let faults = programs.faults.drain().unwrap();
    let (user, _) = inside(&faults, &reply);
    within_one_percent(user, 8192);
    within_one_percent(programs.faults.total(JOB).unwrap().total(), reply.faults);
    let whole = faults
        .iter()
        .filter(|fault| fault.range.start >= reply.start && fault.range.end <= reply.end && fault.count.user == 512);
    assert!(whole.count() >= 15, "whole regions of 16 that lie inside: {faults:?}");
    assert!(inside(&programs.faults.drain().unwrap(), &reply).0 == 0, "a drain takes the counts away");
    assert_eq!(programs.faults.lost(), 0);
}

#[test]
fn faults_inside_system_calls_are_counted_apart() {
    let (mut programs, mut worker) = tracked();
    let reply = worker.ask("read 8192").unwrap();
    let (user, kernel) = inside(&programs.faults.drain().unwrap(), &reply);
    within_one_percent(kernel, 8192);
    assert!(user < 82, "{user}");
}

#[test]
fn a_process_that_is_not_tracked_is_not_counted() {
    let (mut programs, mut worker) = (load(&Options::default()), worker());
    worker.ask("touch 8192").unwrap();
    assert_eq!(programs.faults.drain().unwrap(), []);
    programs.jobs.track(Pid(worker.pid()), JOB).unwrap();
    programs.jobs.untrack(Pid(worker.pid()));
    worker.ask("touch 8192").unwrap();
    assert_eq!(programs.faults.total(JOB).unwrap().total(), 0);
}

#[test]
fn a_child_is_tracked_from_its_first_instruction_to_its_end() {
    let (mut programs, mut worker) = tracked();
    let reply = worker.ask("run /usr/bin/env true").unwrap();
    let events = until_exit(&mut programs, reply.pid);
    let mine: Vec<_> = events.iter().filter(|event| event.pid.0 == reply.pid).collect();
    assert_eq!(mine[0].kind, JobEventKind::Fork { parent: Pid(worker.pid()) });
    // `env`, and `true` which it becomes.
    assert_eq!(mine.iter().filter(|event| event.kind == JobEventKind::Exec).count(), 2, "{mine:?}");
    assert!(mine.iter().all(|event| event.job == JOB));
    let counted: u64 = programs
        .faults
        .drain()
        .unwrap()
        .iter()
        .filter(|fault| fault.pid.0 == reply.pid)
        .map(|fault| fault.count.total())
        .sum();
    // exec fills the new stack with arguments and environment itself: pages that are charged without an exception, which
    // a random stack top cuts at random.
    let words: usize = std::env::vars_os().map(|(name, value)| name.len() + value.len() + 10).sum();
    let filled = 2 * (words as u64 / PAGE + 2);
    let charged = reply.faults;
    let exact = counted <= charged + 3 && charged <= counted + filled;
    assert!(charged > 50 && exact, "counted {counted}, charged {charged}, up to {filled} of them by exec");
    assert_eq!(programs.jobs.tracked().collect::<Vec<_>>(), [(Pid(worker.pid()), JOB)]);
}

#[test]
fn grandchildren_are_tracked_and_seen_off() {
    let (mut programs, mut worker) = tracked();
    worker.ask("run /bin/sh -c (/bin/true;/bin/true);/bin/true;exit_0").unwrap();
    let pid = worker.pid();
    drop(worker);
    let events = until_exit(&mut programs, pid);
    let count = |wanted: fn(&JobEventKind) -> bool| events.iter().filter(|event| wanted(&event.kind)).count();
    assert!(count(|kind| matches!(kind, JobEventKind::Fork { .. })) >= 4, "{events:?}");
    assert_eq!(count(|kind| matches!(kind, JobEventKind::Fork { .. })) + 1, count(|kind| *kind == JobEventKind::Exit));
    assert_eq!(programs.jobs.tracked().count(), 0);
}

#[test]
fn threads_are_not_processes() {
    let (mut programs, mut worker) = tracked();
    worker.ask("threads 16").unwrap();
    assert_eq!(programs.jobs.drain().unwrap(), []);
    assert_eq!(programs.jobs.tracked().count(), 1);
}

/// cases.md row 45: faults beyond what the map holds are counted as lost, totals stay right, and it goes on.
#[test]
fn loss_is_counted_and_it_keeps_going() {
    let mut programs = load(&Options { regions: 64, ..Options::default() });
    let mut workers: Vec<Worker> = (0..std::thread::available_parallelism().unwrap().get()).map(|_| worker()).collect();
    for worker in &workers {
        programs.jobs.track(Pid(worker.pid()), JOB).unwrap();
    }
    let charged: u64 = std::thread::scope(|scope| {
        let running: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(|| worker.ask("spread 2048").unwrap().faults)).collect();
        running.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let kept: u64 = programs.faults.drain().unwrap().iter().map(|fault| fault.count.total()).sum();
    let (total, lost) = (programs.faults.total(JOB).unwrap().total(), programs.faults.lost());
    within_one_percent(total, charged);
    assert!(lost > 0);
    assert_eq!(kept + lost, total, "what is not kept is counted as lost");

    let reply = workers[0].ask("touch 4096").unwrap();
    assert!(inside(&programs.faults.drain().unwrap(), &reply).0 >= 4096, "after a drain there is room again");
    assert_eq!(programs.faults.lost(), lost);
}

/// Job events lost to a full ring buffer: the kernel's table brings every process back, and none stays for ever.
#[test]
fn a_flood_of_short_processes_leaves_none_behind() {
    let (mut programs, mut worker) = tracked();
    worker.ask("run /bin/sh -c i=0;while_[_$i_-lt_1500_];do_(:);i=$((i+1));done").unwrap();
    assert!(programs.jobs.lost() > 0, "1500 forks and exits overflow the ring buffer");
    let pid = worker.pid();
    drop(worker);
    until_exit(&mut programs, pid);
    assert_eq!(programs.jobs.tracked().collect::<Vec<_>>(), []);
}

#[test]
fn perf_sees_the_events_that_we_see() {
    let programs = load(&Options::default());
    let five = "for i in 1 2 3 4 5; do /bin/true; done; exit 0";
    // -a: bound to a process, perf on 6.12 never counts sched_process_exit, with our programs or without.
    let perf = ["stat", "-a", "-x,", "-e", "task:task_newtask,sched:sched_process_exit", "--", "sh", "-c", five];
    let counted = Command::new("perf").args(perf).output().unwrap();
    let text = String::from_utf8(counted.stderr).unwrap();
    for event in ["task:task_newtask", "sched:sched_process_exit"] {
        let line = text.lines().find(|line| line.contains(event)).unwrap_or_else(|| panic!("no {event} in {text}"));
        let count: u64 = line.split(',').next().unwrap().parse().unwrap();
        assert!(count >= 5, "{text}");
    }
    drop(programs);
}

#[test]
fn the_vma_iterator_says_what_proc_says() {
    let worker = worker();
    let mut iterator = VmaIter::new().unwrap_or_else(|error| panic!("host tests need root and BTF: {error}"));
    let mut vmas = Vec::new();
    iterator.read(worker.pid(), &mut vmas).unwrap();
    let listed: BTreeMap<u64, String> = fs::read_to_string(format!("/proc/{}/maps", worker.pid()))
        .unwrap()
        .lines()
        .filter(|line| !line.ends_with("[vsyscall]"))
        .map(|line| (u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap(), line.to_owned()))
        .collect();
    assert!(vmas.len() > 10);
    assert_eq!(vmas.len(), listed.len());
    for vma in &vmas {
        let bit = |flag, letter| if vma.has(flag) { letter } else { '-' };
        let rights: String = [bit(flags::READ, 'r'), bit(flags::WRITE, 'w'), bit(flags::EXEC, 'x')].iter().collect();
        let shared = if vma.has(flags::SHARED) { 's' } else { 'p' };
        let begin = format!("{:x}-{:x} {rights}{shared} ", vma.start, vma.end);
        let line = &listed[&vma.start];
        assert!(line.trim_start_matches('0').starts_with(&begin), "{vma:?} is not {line}");
        let words: Vec<_> = line.split_whitespace().collect();
        if !words.get(5).is_some_and(|path| on_overlay(path)) {
            assert_eq!(words[3], format!("{:02x}:{:02x}", vma.dev.0, vma.dev.1));
            assert_eq!(words[4], vma.inode.to_string());
        }
        assert_eq!(vma.kind == VmaKind::Anon, vma.inode == 0, "{line}");
    }
    let mut none = Vec::new();
    iterator.read(0x7fff_fff0, &mut none).unwrap();
    assert_eq!(none, [], "a process that is gone has none");
}

/// For a file on overlayfs, /proc names the overlay's inode and the iterator the one whose pages are mapped.
fn on_overlay(path: &str) -> bool {
    let told = Command::new("stat").args(["-f", "-c", "%T", path]).output().unwrap();
    String::from_utf8_lossy(&told.stdout).trim() == "overlayfs"
}
