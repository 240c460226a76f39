//! Which processes belong to a job, kept by the kernel from the first instruction of each: a child of a tracked process
//! is tracked before it runs.
//!
//! Pids are those of the initial pid namespace; an agent in another one is refused by [`JobEvents::track`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Instant,
};

use aya::maps::{HashMap, Map, MapData, RingBuf};
use serde::Serialize;
use tensortier_abi::{
    JOB_COUNTS_FAULTS, JOB_ENDED, JOB_EVENT_EXEC, JOB_EVENT_EXIT, JOB_EVENT_FORK, JobEntry, MAX_JOBS, maps,
};

use super::{
    bpf_sys,
    ebpf::EbpfError,
    lost::{Clock, LossCount},
};
use crate::units::Pid;

/// A job's number, below [`MAX_JOBS`]; it may be given again once the job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct JobId(pub u32);

/// What happened to a process of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEventKind {
    /// It was made by `parent`, and is tracked.
    Fork {
        /// The process that made it.
        parent: Pid,
    },
    /// It is tracked; the event of its making was lost.
    Found,
    /// It runs another program.
    Exec,
    /// It is gone: no thread of it can run any more. It is no longer tracked.
    Exit,
}

/// Something that happened to a process of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobEvent {
    /// The job.
    pub job: JobId,
    /// The process.
    pub pid: Pid,
    /// What happened.
    pub kind: JobEventKind,
    /// When.
    pub at: Instant,
}

/// The processes tracked, and what happens to them.
pub struct JobEvents {
    jobs: HashMap<MapData, u32, JobEntry>,
    events: RingBuf<MapData>,
    lost: LossCount,
    lost_before: u64,
    known: BTreeMap<Pid, JobId>,
    /// Reported as ending, not yet seen gone.
    leaving: BTreeSet<Pid>,
}

impl JobEvents {
    pub(super) fn new(jobs: Map, events: Map, lost: LossCount) -> Result<Self, EbpfError> {
        Ok(Self {
            jobs: HashMap::try_from(jobs).map_err(refused)?,
            events: RingBuf::try_from(events).map_err(|error| EbpfError::map(maps::JOB_EVENTS, error))?,
            lost,
            lost_before: 0,
            known: BTreeMap::new(),
            leaving: BTreeSet::new(),
        })
    }

    /// Tracks a process and, from now on, every process that it makes. Children that it has already are not found here.
    ///
    /// # Errors
    /// The job's number is too high, the map is full, or the agent runs in a pid namespace of its own.
    pub fn track(&mut self, pid: Pid, job: JobId) -> Result<(), EbpfError> {
        if job.0 >= MAX_JOBS {
            return Err(refused(format!("job {} is beyond the {MAX_JOBS} at a time", job.0)));
        }
        if !in_initial_pid_namespace() {
            return Err(refused("the agent is in a pid namespace of its own; run it in the host's (hostPID: true)"));
        }
        let entry = JobEntry { job: job.0, flags: JOB_COUNTS_FAULTS };
        self.jobs.insert(pid.0, entry, 0).map_err(|error| refused(format!("cannot track process {pid}: {error}")))?;
        self.known.insert(pid, job);
        Ok(())
    }

    /// Ends [`track`](Self::track) for one process; its children stay tracked.
    pub fn untrack(&mut self, pid: Pid) {
        self.known.remove(&pid);
        self.leaving.remove(&pid);
        if let Err(error) = self.jobs.remove(&pid.0) {
            tracing::debug!(%pid, %error, "process was not tracked");
        }
    }

    /// The processes tracked, as of the last drain.
    pub fn tracked(&self) -> impl Iterator<Item = (Pid, JobId)> + '_ {
        self.known.iter().map(|(pid, job)| (*pid, *job))
    }

    /// Takes what happened since the last drain, in order. Where events were lost, the kernel's own table is compared
    /// instead: no process stays unknown, and none stays after its end.
    ///
    /// # Errors
    /// The kernel refuses to read its table.
    pub fn drain(&mut self) -> Result<Vec<JobEvent>, EbpfError> {
        let clock = Clock::read();
        let mut events = Vec::new();
        let most = tensortier_abi::JOB_EVENTS_BYTES as usize / size_of::<tensortier_abi::JobEvent>();
        for _ in 0..most {
            let Some(item) = self.events.next() else { break };
            let record: tensortier_abi::JobEvent =
                bpf_sys::read_record(&item).ok_or_else(|| EbpfError::map(maps::JOB_EVENTS, "a short record"))?;
            drop(item);
            let (job, pid, at) = (JobId(record.job), Pid(record.tgid), clock.instant(record.at_ns));
            match record.kind {
                // Tracked as another job's since it was made: the table has what holds.
                JOB_EVENT_FORK if self.jobs.get(&pid.0, 0).is_ok_and(|entry| entry.job != record.job) => {}
                JOB_EVENT_FORK => {
                    // The number of one that was leaving: it is gone, and this is another process.
                    if self.leaving.remove(&pid) {
                        events.push(JobEvent { job: self.known[&pid], pid, kind: JobEventKind::Exit, at });
                    }
                    self.known.insert(pid, job);
                    events.push(JobEvent { job, pid, kind: JobEventKind::Fork { parent: Pid(record.parent) }, at });
                }
                JOB_EVENT_EXEC => events.push(JobEvent { job, pid, kind: JobEventKind::Exec, at }),
                JOB_EVENT_EXIT => drop(self.known.contains_key(&pid).then(|| self.leaving.insert(pid))),
                _ => {}
            }
        }
        let lost = self.lost.total();
        if lost != self.lost_before {
            self.resync(&mut events)?;
            self.lost_before = lost;
        }
        self.see_off(&mut events);
        Ok(events)
    }

    /// Events and processes lost since load.
    pub fn lost(&self) -> u64 {
        self.lost.total()
    }

    /// Compares what is known with the kernel's table.
    fn resync(&mut self, events: &mut Vec<JobEvent>) -> Result<(), EbpfError> {
        let at = Instant::now();
        let table: BTreeMap<u32, JobEntry> = self.jobs.iter().collect::<Result<_, _>>().map_err(refused)?;
        for (&tgid, entry) in &table {
            let (pid, job) = (Pid(tgid), JobId(entry.job));
            if self.known.insert(pid, job).is_none() {
                events.push(JobEvent { job, pid, kind: JobEventKind::Found, at });
            }
            if entry.flags & JOB_ENDED != 0 {
                self.leaving.insert(pid);
            }
        }
        // The kernel forgets a process itself where a stranger got its number.
        self.leaving.extend(self.known.keys().filter(|pid| !table.contains_key(&pid.0)));
        Ok(())
    }

    /// Removes the leaving ones that are gone.
    fn see_off(&mut self, events: &mut Vec<JobEvent>) {
        let at = Instant::now();
        for pid in self.leaving.clone() {
            let entry = self.jobs.get(&pid.0, 0).ok();
            // Without an entry, the number is a stranger's by now.
            let gone = entry.is_none_or(|_| is_gone(pid));
            if !gone {
                continue;
            }
            if let Some(job) = self.known.get(&pid).copied() {
                events.push(JobEvent { job, pid, kind: JobEventKind::Exit, at });
            }
            self.leaving.remove(&pid);
            // Not where the number already is a new child's, whose event is still to come.
            if entry.is_some_and(|entry| entry.flags & JOB_ENDED != 0) {
                self.untrack(pid);
            } else {
                self.known.remove(&pid);
            }
        }
    }
}

fn refused(reason: impl ToString) -> EbpfError {
    EbpfError::map(maps::JOBS, reason)
}

/// Whether no thread of the process can run any more: it does not exist, or is a zombie to its last thread.
fn is_gone(pid: Pid) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| match fs::read_to_string(thread.path().join("stat")) {
        // `pid (name) state …`: the name may hold anything, so from the last parenthesis on.
        Ok(stat) => {
            stat.rsplit_once(')').is_some_and(|(_, rest)| matches!(rest.trim_start().as_bytes(), [b'Z' | b'X', ..]))
        }
        Err(_) => true,
    })
}

/// The initial namespace's number is fixed (`PROC_PID_INIT_INO`, linux/proc_ns.h).
fn in_initial_pid_namespace() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_run_any_more_is_gone() {
        assert!(!is_gone(Pid(std::process::id())));
        assert!(is_gone(Pid(0x7fff_fff0)));
    }
}
