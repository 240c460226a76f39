//! How much a job works: counts that grow with its work, whatever it does.
//!
//! User instructions, by perf_event_open(2) on each thread of a process; threads and children that are made later are
//! counted with the one that made them. A virtual machine often shows no hardware counters: there the read and write
//! calls of `/proc/PID/io` are counted (`CONFIG_TASK_IO_ACCOUNTING`, which distributions set).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
};

use perf_event::{
    Builder, Counter,
    events::{Event, Hardware},
};

use crate::units::{Pid, read_text};

/// Of a job with more threads so many are counted, with what they make: each takes a descriptor.
const THREADS: usize = 32;

/// The counters of one job.
#[derive(Default)]
pub struct WorkCounters {
    threads: Vec<Counter>,
    refused: Option<io::Error>,
    calls: BTreeMap<Pid, u64>,
    all_calls: u64,
}

/// A count since the counters were made, of one of two kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Instructions in user mode.
    Instructions(u64),
    /// Calls of the read and write kind.
    Calls(u64),
}

impl WorkCounters {
    /// Counts a process from now on, with all that its threads make. Where the machine has no such counter, calls are
    /// counted instead.
    pub fn watch(&mut self, pid: Pid) {
        self.watch_event(pid, &Hardware::INSTRUCTIONS);
    }

    fn watch_event<E: Event + Clone>(&mut self, pid: Pid, event: &E) {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()) {
            if self.refused.is_some() || self.threads.len() == THREADS {
                return;
            }
            match Builder::new(event.clone()).observe_pid(thread).any_cpu().inherit(true).enabled(true).build() {
                Ok(counter) => self.threads.push(counter),
                // It has just ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                // No descriptor is left, say: those that count are a part of the job all the same.
                Err(error) if !self.threads.is_empty() => {
                    tracing::debug!(%pid, thread, %error, "not counted");
                    return;
                }
                Err(error) => {
                    tracing::debug!(%pid, %error, "no hardware counter: read and write calls are counted");
                    self.refused = Some(error);
                }
            }
        }
    }

    /// What was counted so far; `processes` are those of the job that live.
    pub fn read(&mut self, processes: &BTreeSet<Pid>) -> Count {
        if self.refused.is_none() {
            return Count::Instructions(self.threads.iter_mut().filter_map(scaled).sum());
        }
        self.calls.retain(|pid, _| processes.contains(pid));
        for pid in processes {
            let Some(now) = read_text(format!("/proc/{pid}/io")).ok().and_then(|text| calls(&text)) else {
                continue;
            };
            // What it did before it was first seen is not of this job's time.
            let before = self.calls.insert(*pid, now).unwrap_or(now);
            self.all_calls += now.saturating_sub(before);
        }
        Count::Calls(self.all_calls)
    }
}

/// A counter that shared the hardware with others ran for a part of the time: what it missed is estimated.
fn scaled(counter: &mut Counter) -> Option<u64> {
    let data = counter.read_full().ok()?;
    let (enabled, running) = (data.time_enabled()?, data.time_running()?);
    let share = running.as_secs_f64() / enabled.as_secs_f64();
    Some(if share > 0.0 && share < 1.0 { (data.count() as f64 / share) as u64 } else { data.count() })
}

/// The read and write calls of a process's `io` file.
fn calls(text: &str) -> Option<u64> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    field("syscr:")?.checked_add(field("syscw:")?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};

    use perf_event::events::Software;

    use super::*;

    #[test]
    fn what_a_process_makes_later_is_counted_with_it() {
        let line = "read go; sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; echo done; read end";
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-c", line]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut counters = WorkCounters::default();
        // The time on a CPU stands for instructions, which this machine may not count.
        counters.watch_event(Pid(shell.id()), &Software::TASK_CLOCK);
        assert!(counters.refused.is_none() && counters.threads.len() == 1);
        shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        shell.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
        let stat = procfs::process::Process::new(shell.id() as i32).unwrap().stat().unwrap();
        let child_ns = (stat.cutime + stat.cstime) as u64 * 1_000_000_000 / procfs::ticks_per_second();
        let Count::Instructions(counted) = counters.read(&BTreeSet::new()) else { panic!("it was not refused") };
        assert!(child_ns > 0 && counted > child_ns / 10 * 8 && counted < child_ns * 3, "{counted} of {child_ns} ns");
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }

    #[test]
    fn where_the_hardware_refuses_calls_are_counted_from_the_first_look_on() {
        let refused = Some(io::Error::from_raw_os_error(libc::ENOENT));
        let mut counters = WorkCounters { refused, ..WorkCounters::default() };
        let mut child = std::process::Command::new("cat");
        let mut child = child.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let processes: BTreeSet<Pid> = [Pid(child.id())].into();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut echo = || {
            input.write_all(b"x").unwrap();
            output.read_exact(&mut [0]).unwrap();
        };
        echo();
        assert_eq!(counters.read(&processes), Count::Calls(0));
        (0..10).for_each(|_| echo());
        let Count::Calls(calls) = counters.read(&processes) else { panic!("calls are counted") };
        // Each is a read and a write; the last read may not have begun.
        assert!((19..=21).contains(&calls), "{calls}");
        drop(input);
        child.wait().unwrap();
        assert_eq!(counters.read(&BTreeSet::new()), Count::Calls(calls), "what has ended still counts");
    }

    #[test]
    fn the_io_file_is_read_by_name_and_nonsense_is_none() {
        assert_eq!(calls("rchar: 5\nwchar: 6\nsyscr: 7\nsyscw: 8\nread_bytes: 0\n"), Some(15));
        for bad in ["", "syscr: 7\n", "syscr: x\nsyscw: 8\n", &format!("syscr: {0}\nsyscw: {0}\n", u64::MAX)] {
            assert_eq!(calls(bad), None, "{bad}");
        }
    }
}
