//! The jobs that the agent watches, and which process belongs to which.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use tensortier_abi::MAX_JOBS;

use super::{account::FaultsByNode, damos::Service, group::Group, helped::Helped, looks::Gathered, report::Before};
use crate::{
    config::{Actuator, Limits, Mode, PolicyKind},
    control::server::Reply,
    hotness::{HeatView, Region, Scattered, Usage},
    job::{memory::Memory, running::Facts},
    ledger::{Ledger, Rules},
    observe::status::State,
    policy::{HeldBack, share::Claim},
    source::job_events::JobId,
    units::{NodeId, NodeSet, Pid},
};

/// Processes to watch as one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The processes; what they make from now on belongs to them.
    pub pids: Vec<Pid>,
    /// What people call the job.
    pub name: String,
    /// The user it belongs to.
    pub user: u32,
    /// How it came.
    pub origin: Origin,
    /// What is done with plans for it.
    pub mode: Mode,
    /// What is to move its pages, where that can be.
    pub actuator: Actuator,
    /// What decides on where they belong, where it has a word of its own.
    pub policy: Option<PolicyKind>,
    /// What it may have.
    pub limits: Limits,
}

/// How a job came to be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Started by `run`.
    Run,
    /// A process that was there, and all below it.
    Pid(Pid),
    /// A control group.
    Cgroup(PathBuf),
    /// A rule of the config, by its name.
    Rule(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run => f.write_str("run"),
            Self::Pid(pid) => write!(f, "attached by pid {pid}"),
            Self::Rule(name) => write!(f, "rule {name}"),
            Self::Cgroup(path) => write!(f, "attached by cgroup {}", path.display()),
        }
    }
}

/// A job: a process and what that made, with all that is known of it.
pub(super) struct Job {
    /// Counts up over an agent's life and is never given twice.
    pub id: u64,
    /// Its number in the kernel, which a later job may get.
    pub slot: JobId,
    pub asked: Ask,
    pub since: Instant,
    /// Those that live.
    pub processes: BTreeSet<Pid>,
    pub ledger: Ledger,
    pub faults: FaultsByNode,
    /// How much its memory is used over whole steps.
    pub usage: Usage,
    /// Its hot pages in blocks that are hardly used.
    pub scattered: Scattered,
    /// The last look; a job that has ended keeps its last one for the account.
    pub view: HeatView,
    pub held_back: BTreeMap<HeldBack, u64>,
    /// What DAMON's schemes do for it.
    pub schemes: Service,
    /// Moves handed to the executor whose outcome is still to come.
    pub under_way: usize,
    /// Bytes on each node that it bound to nodes of its own choice, as last read.
    pub bound: BTreeMap<NodeId, u64>,
    /// The memory policies that it set, with the bytes under each, as last read.
    pub policies: BTreeMap<String, u64>,
    /// The nodes that its cpuset allows, as last read.
    pub allowed: NodeSet,
    /// CPUs that its first process may run on.
    pub cpus: Vec<u32>,
    /// What its control groups leave it, as last read.
    pub group: Group,
    /// Nothing moves until it is resumed.
    pub paused: bool,
    /// Whether moving helps it.
    pub helped: Helped,
    /// Processes below it that run as another user, and were left out.
    pub left_out: usize,
    /// It is about to leave: nothing more is planned for it.
    pub leaving: bool,
    /// The counters that are not its own, as it began.
    pub before: Before,
    /// The client that follows it, and hears plans of a dry run.
    pub client: Option<Reply>,
    /// What was seen of it, while somebody records it.
    pub gathered: Option<Gathered>,
}

impl Job {
    /// Takes over what its processes' memory was read as.
    pub fn read(&mut self, memory: &Memory) {
        let facts = self.processes.iter().find_map(|pid| Facts::read("/proc".as_ref(), *pid));
        if let Some(first) = self.processes.first() {
            self.group.read("/".as_ref(), *first);
        }
        if let Some(facts) = facts {
            (self.allowed, self.cpus) = (facts.nodes, facts.cpus);
        }
        self.bound.clear();
        for (node, bytes) in self.processes.iter().flat_map(|pid| memory.bound(*pid)) {
            *self.bound.entry(node).or_default() += bytes;
        }
        self.policies.clear();
        for (policy, bytes) in self.processes.iter().flat_map(|pid| memory.policies(*pid)) {
            *self.policies.entry(policy.to_owned()).or_default() += bytes;
        }
    }

    /// Bytes that it bound to nodes of its own choice.
    pub fn bound_bytes(&self) -> u64 {
        self.bound.values().sum()
    }

    /// Whether a process can be of it: root's jobs have processes of any user, a user's job its user's alone. What a
    /// set-uid program does is not its caller's to look at or to move.
    pub fn may_have(&self, facts: &Facts) -> bool {
        self.asked.user == 0 || facts.user == Some(self.asked.user)
    }

    /// Whether moves are planned for it; never where DAMON's schemes move it.
    pub fn plans(&self) -> bool {
        self.moves() && self.schemes.leaves_it_to_plans()
    }

    /// Whether anything may move it, or would.
    pub fn moves(&self) -> bool {
        self.asked.mode != Mode::Watch && !self.paused && !self.leaving && !self.processes.is_empty()
    }

    /// Stops moving for it, or goes on.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
        if !paused {
            self.helped.go_on();
        }
    }

    /// Its claim on the top tier.
    pub fn claim(&self) -> Claim<'_> {
        let allowed = Some(&self.allowed).filter(|allowed| !allowed.0.is_empty());
        let held = self.view.regions.iter().map(Region::resident).sum();
        Claim { view: &self.view, limits: &self.asked.limits, allowed, ceiling: self.group.ceiling(held) }
    }

    /// Whether nothing bounds what it may have of these nodes.
    pub fn is_free(&self, tiers: &NodeSet) -> bool {
        let Limits { dram_bytes, cxl_bytes, .. } = self.asked.limits;
        let everywhere = self.allowed.0.is_empty() || tiers.0.is_subset(&self.allowed.0);
        dram_bytes.is_none() && cxl_bytes.is_none() && everywhere
    }

    /// What is done for it.
    pub fn state(&self) -> State {
        match self.asked.mode {
            _ if self.leaving => State::Leaving,
            _ if self.paused => State::Paused,
            Mode::Migrate => State::Migrating,
            Mode::DryRun => State::DryRun,
            Mode::Watch => State::Watching,
        }
    }

    /// Whether nothing of it is left, and nobody will ask for its account.
    pub fn is_over(&self) -> bool {
        self.processes.is_empty() && !self.leaving && self.client.as_ref().is_none_or(|client| !client.is_open())
    }
}

/// Jobs of one user other than root, however they came.
pub(super) const OF_A_USER: usize = MAX_JOBS as usize / 4;
/// Jobs kept for root.
const OF_ROOT: usize = MAX_JOBS as usize / 8;

/// All jobs.
#[derive(Default)]
pub(super) struct Jobs {
    table: BTreeMap<u64, Job>,
    /// The job of each process; one that has ended stays while its job does, since counts of it can still come.
    of: BTreeMap<Pid, u64>,
    last: u64,
}

impl Jobs {
    /// A new job without processes; `None` where the kernel's table of jobs is full.
    pub fn add(
        &mut self,
        asked: Ask,
        rules: Rules,
        before: Before,
        aggregation: Duration,
        now: Instant,
    ) -> Option<&mut Job> {
        // In turn rather than the lowest: a late event of a job that has left should not meet a new one.
        let slots = (1..=u64::from(MAX_JOBS)).map(|step| JobId(((self.last + step) % u64::from(MAX_JOBS)) as u32));
        let slot = slots.into_iter().find(|slot| self.table.values().all(|job| job.slot != *slot))?;
        self.last += 1;
        let mut asked = asked;
        if self.table.values().any(|job| job.asked.name == asked.name) {
            asked.name = format!("{}-{}", asked.name, self.last);
        }
        let job = Job {
            id: self.last,
            slot,
            asked,
            since: now,
            processes: BTreeSet::new(),
            ledger: Ledger::new(rules),
            faults: FaultsByNode::default(),
            usage: Usage::new(now, aggregation),
            scattered: Scattered::default(),
            view: HeatView { at: now, regions: Vec::new() },
            held_back: BTreeMap::new(),
            schemes: Service::default(),
            under_way: 0,
            bound: BTreeMap::new(),
            policies: BTreeMap::new(),
            allowed: NodeSet::default(),
            cpus: Vec::new(),
            group: Group::default(),
            paused: false,
            helped: Helped::default(),
            left_out: 0,
            leaving: false,
            before,
            client: None,
            gathered: None,
        };
        Some(self.table.entry(self.last).or_insert(job))
    }

    /// Whether a user other than root may begin one more: the table is everybody's.
    ///
    /// # Errors
    /// What it is full of, in words.
    pub fn room_for(&self, user: u32) -> Result<(), String> {
        let own = self.table.values().filter(|job| job.asked.user == user).count();
        if own >= OF_A_USER {
            return Err(format!("user {user} has {own} jobs, the most of one user; `detach` some"));
        }
        match self.table.len() {
            all if all + OF_ROOT >= MAX_JOBS as usize => {
                Err(format!("{all} jobs are watched; try again when some end"))
            }
            _ => Ok(()),
        }
    }

    /// Takes a job out.
    pub fn remove(&mut self, id: u64) -> Option<Job> {
        self.of.retain(|_, of| *of != id);
        self.table.remove(&id)
    }

    /// A process belongs to the job from now on, and to no other.
    pub fn join(&mut self, pid: Pid, id: u64) {
        self.leave(pid);
        if let Some(job) = self.table.get_mut(&id) {
            job.processes.insert(pid);
            self.of.insert(pid, id);
        }
    }

    /// A process has ended.
    pub fn leave(&mut self, pid: Pid) {
        if let Some(job) = self.of_mut(pid) {
            job.processes.remove(&pid);
        }
    }

    pub fn get(&self, id: u64) -> Option<&Job> {
        self.table.get(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Job> {
        self.table.get_mut(&id)
    }

    /// The job that a process belongs to or, where it has ended, belonged to.
    pub fn of_mut(&mut self, pid: Pid) -> Option<&mut Job> {
        self.table.get_mut(self.of.get(&pid)?)
    }

    /// The job that somebody means by its number, its name or the pid of one of its living processes.
    pub fn find(&self, word: &str) -> Option<&Job> {
        let number: Option<u64> = word.parse().ok();
        let by_pid =
            |job: &&Job| number.is_some_and(|number| job.processes.iter().any(|pid| u64::from(pid.0) == number));
        let jobs = || self.table.values();
        jobs().find(|job| job.asked.name == word).or_else(|| self.table.get(&number?)).or_else(|| jobs().find(by_pid))
    }

    /// The job that a living process belongs to.
    pub fn of(&self, pid: Pid) -> Option<&Job> {
        self.table.get(self.of.get(&pid)?).filter(|job| job.processes.contains(&pid))
    }

    /// The job with that number in the kernel.
    pub fn in_slot(&self, slot: JobId) -> Option<u64> {
        self.table.values().find(|job| job.slot == slot).map(|job| job.id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Job> {
        self.table.values()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.table.values_mut()
    }
}

#[cfg(test)]
mod tests;
