//! Which processes are watched, and as which job: jobs that come and leave, forks, other programs, ends.

use std::time::Instant;

use super::{
    Agent, AgentError,
    aim::Aim,
    jobs::Ask,
    mover::Mover,
    params::{intervals_of, ledger_rules},
};
use crate::{
    control::server::Reply,
    job::running::Facts,
    source::job_events::{JobEventKind, JobId},
    units::Pid,
};

impl Agent {
    /// Watches processes, and every process that they make from now on, as a job. Gives the job's number.
    ///
    /// # Errors
    /// A process is gone, or the table of jobs or of tracked processes is full.
    pub fn add_job(&mut self, asked: Ask, client: Option<Reply>) -> Result<u64, AgentError> {
        let now = Instant::now();
        let pids = asked.pids.clone();
        let first = pids.first().copied().unwrap_or(Pid(0));
        let failed = |pid: Pid, reason: String| AgentError::Track { pid, reason };
        let (rules, before) = (ledger_rules(&self.config), self.counters());
        let aggregation = intervals_of(&self.config).aggregation;
        let job = self
            .jobs
            .add(asked, rules, before, aggregation, now)
            .ok_or_else(|| failed(first, "too many jobs".into()))?;
        job.client = client;
        let (id, slot) = (job.id, job.slot);
        let cleared = self.programs.faults.clear(slot).map_err(|error| failed(first, error.to_string()));
        let (mut watched, mut refused) = (0, cleared.err());
        for pid in pids {
            match self.track(pid, id, slot) {
                Ok(()) => watched += 1,
                // One of many may have ended since it was seen.
                Err(reason) => refused = Some(failed(pid, reason)),
            }
        }
        if watched == 0 {
            self.remove_job(id);
            return Err(refused.unwrap_or_else(|| failed(first, "there is none".into())));
        }
        self.aim = Aim::new(now);
        self.acted = now;
        Ok(id)
    }

    fn track(&mut self, pid: Pid, job: u64, slot: JobId) -> Result<(), String> {
        self.programs.jobs.track(pid, slot).map_err(|error| error.to_string())?;
        if let Err(error) = self.memory.add(pid) {
            self.programs.jobs.untrack(pid);
            return Err(error.to_string());
        }
        self.jobs.join(pid, job);
        if let Some(job) = self.jobs.get_mut(job) {
            job.helped.watch(pid);
        }
        Ok(())
    }

    /// Takes processes that are there already into a job.
    pub fn join(&mut self, pids: impl IntoIterator<Item = Pid>, id: u64) {
        for pid in pids {
            let Some(slot) = self.jobs.get(id).map(|job| job.slot) else { return };
            // It may have ended since it was seen.
            if let Err(error) = self.track(pid, id, slot) {
                tracing::debug!(%pid, error, "not watched");
            }
        }
    }

    /// Has a job leave: nothing more is planned for it. Its account is whole once [`Agent::has_left`].
    pub fn leave(&mut self, id: u64) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.leaving = true;
        }
    }

    /// Whether everything that was begun for the job is done.
    pub fn has_left(&mut self, id: u64) -> bool {
        self.settle(Instant::now());
        self.drive_schemes(Instant::now());
        let busy = self.mover.as_ref().is_some_and(Mover::busy);
        self.jobs.get(id).is_none_or(|job| (!busy || job.under_way == 0) && !job.schemes.live)
    }

    /// Watches a job no more; its processes run on.
    pub fn remove_job(&mut self, id: u64) {
        let Some(job) = self.jobs.remove(id) else { return };
        let tracked: Vec<Pid> =
            self.programs.jobs.tracked().filter(|(_, slot)| *slot == job.slot).map(|(pid, _)| pid).collect();
        for pid in tracked.into_iter().chain(job.processes) {
            self.programs.jobs.untrack(pid);
            self.memory.remove(pid);
            self.links.close(pid);
            self.gpu.forget(pid);
            self.heat.forget(pid);
        }
        self.aim.lost();
    }

    /// Takes in forks, other programs and ends since the last time.
    pub(super) fn follow_processes(&mut self) {
        let events = self.programs.jobs.drain().unwrap_or_else(|error| {
            tracing::warn!(%error, "the job's new processes may be missed");
            Vec::new()
        });
        for event in events {
            match event.kind {
                JobEventKind::Fork { .. } | JobEventKind::Found => {
                    let Some(job) = self.jobs.in_slot(event.job) else {
                        // Made while its job was leaving.
                        self.programs.jobs.untrack(event.pid);
                        continue;
                    };
                    if self.leave_out(event.pid, job) {
                        continue;
                    }
                    match self.memory.add(event.pid) {
                        Ok(()) => self.jobs.join(event.pid, job),
                        // It may have ended already; then there is nothing to watch.
                        Err(error) => tracing::debug!(pid = %event.pid, %error, "not watched"),
                    }
                }
                JobEventKind::Exec => {
                    let job = self.jobs.of(event.pid).map(|job| job.id);
                    if !job.is_some_and(|job| self.leave_out(event.pid, job)) {
                        self.memory.forget(event.pid);
                        self.gpu.forget(event.pid);
                        self.links.close(event.pid);
                        self.programs.gpu.restart(event.pid);
                    }
                }
                JobEventKind::Exit => self.forget(event.pid),
            }
        }
    }

    /// Leaves a process out of a job that may not have it; what it makes from now on is not of the job either.
    fn leave_out(&mut self, pid: Pid, job: u64) -> bool {
        let Some(job) = self.jobs.get_mut(job).filter(|job| job.asked.user != 0) else { return false };
        if Facts::read("/proc".as_ref(), pid).is_none_or(|facts| job.may_have(&facts)) {
            return false;
        }
        job.left_out += 1;
        self.programs.jobs.untrack(pid);
        self.forget(pid);
        true
    }

    /// A process has ended, or is of no job any more.
    pub(super) fn forget(&mut self, pid: Pid) {
        if let Some(job) = self.jobs.of_mut(pid) {
            job.faults.place(pid, self.memory.residents_of(pid));
            job.ledger.forget(pid);
            job.usage.forget(pid);
            job.scattered.forget(pid);
            job.group.read_kills();
        }
        self.jobs.leave(pid);
        self.links.close(pid);
        self.gpu.forget(pid);
        self.memory.remove(pid);
        self.heat.forget(pid);
    }
}
