//! The agent: wires the stages. Each [`Agent::tick`] carries what was seen through to what should move; pages move on a
//! thread of their own ([`mover`]), DAMON's sysfs is written on another, and nothing here waits for either.

mod account;
mod aim;
pub mod daemon;
mod damos;
mod decide;
mod error;
mod gpu;
mod group;
mod helped;
mod homes;
mod jobs;
mod looks;
mod monitor;
mod mover;
mod params;
mod policies;
mod reload;
mod report;
mod rules;
mod scattered;
mod steps;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

pub use self::error::AgentError;
pub use self::jobs::{Ask, Origin};
pub use self::params::migrate_params;
pub use self::reload::read_host;
use self::{
    account::{Idle, KdamondCost},
    aim::Aim,
    damos::Schemes,
    homes::Homes,
    jobs::Jobs,
    mover::Mover,
    params::{cadence_of, heat_params, ledger_rules, rule_of, speeds_of, take_damon, tier_nodes},
    steps::Free,
};
use crate::{
    config::Config,
    control::server::Reply,
    host::Host,
    hotness::HeatMap,
    job::{memory::Memory, running::Facts},
    observe::usdt::EventsLost,
    policy::{Rule, Speed},
    publish::Links,
    source::{
        Touch,
        damon::{Damon, DamonError, cadence::Cadence, snapshot::Snapshots},
        ebpf::{Options, Programs},
        job_events::{JobEventKind, JobId},
    },
    units::{NodeId, NodeSet, Pid},
};

/// Time between two ticks while there is no job.
const NOBODY: Duration = Duration::from_secs(10);
/// At rest a tick comes this often.
const LONGEST_TICK: Duration = Duration::from_secs(8);

/// One agent. Dropping it stops moving and monitoring; jobs run on with all their memory.
pub struct Agent {
    config: Config,
    root: PathBuf,
    host: Host,
    tiers: NodeSet,
    /// Nodes that are being drained.
    avoided: NodeSet,
    programs: Programs,
    damon: Result<Damon, DamonError>,
    snapshots: Snapshots,
    cadence: Cadence,
    aim: Aim,
    schemes: Schemes,
    homes: Homes,
    memory: Memory,
    heat: HeatMap,
    gpu: gpu::Gpu,
    links: Links,
    /// Reads accessed bits of single pages.
    pages: scattered::Pages,
    rule: Rule,
    /// What the tiers can do, and what was free on their nodes.
    speeds: Option<[Speed; 2]>,
    free: BTreeMap<NodeId, Free>,
    jobs: Jobs,
    mover: Option<Mover>,
    kdamond: KdamondCost,
    quiet_monitor: Idle,
    vain_moves: Idle,
    /// The number of the last plan.
    plan: u64,
    /// Whether the last decision wanted something moved.
    moving: bool,
    /// When a job last began or something was last to move.
    acted: Instant,
    started: Instant,
    before: report::Before,
    losses: EventsLost,
    /// When losses were last told.
    told: Instant,
    bpf_map_bytes: u64,
}

impl Agent {
    /// Loads the programs and takes DAMON where it is free. Where DAMON is not to be had, faults are the only source and
    /// [`Agent::watched`](report) says so.
    ///
    /// # Errors
    /// [`AgentError`]: nothing could be seen, or a thread is not to be had.
    pub fn new(config: Config, host: Host) -> Result<Self, AgentError> {
        let now = Instant::now();
        let tiers = tier_nodes(&host);
        let programs = Programs::load(&Options::default()).map_err(|ebpf| AgentError::Blind { ebpf })?;
        let damon = take_damon(&config, &host);
        match &damon {
            Ok(_) => {}
            Err(error @ DamonError::Off) => tracing::info!(%error, "hotness comes from page faults alone"),
            Err(error) => tracing::warn!(%error, "hotness comes from page faults alone"),
        }
        let mover = host.is_two_tier().then(|| Mover::start(migrate_params(&config))).transpose()?;
        let missing = host.missing(&config);
        if !missing.0.is_empty() {
            tracing::warn!(%missing, "nodes that the config names have no memory here: going on without them");
        }
        let mut agent = Self {
            root: PathBuf::from("/"),
            programs,
            damon,
            snapshots: Snapshots::default(),
            cadence: cadence_of(&config, now),
            aim: Aim::new(now),
            schemes: Schemes::default(),
            homes: Homes::default(),
            memory: Memory::new(tiers.clone(), config.migrate.file_pages),
            heat: HeatMap::new(heat_params(&config)),
            gpu: gpu::Gpu::default(),
            links: Links::default(),
            pages: scattered::Pages::default(),
            rule: rule_of(&config),
            speeds: speeds_of(&host),
            free: BTreeMap::new(),
            jobs: Jobs::default(),
            mover,
            kdamond: KdamondCost::default(),
            quiet_monitor: Idle::default(),
            vain_moves: Idle::default(),
            plan: 0,
            moving: false,
            acted: now,
            started: now,
            before: report::Before::default(),
            losses: EventsLost::default(),
            told: now,
            bpf_map_bytes: account::bpf_map_bytes(),
            config,
            host,
            tiers,
            avoided: NodeSet::default(),
        };
        agent.before = agent.counters();
        Ok(agent)
    }

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
        let job = self.jobs.add(asked, rules, before, now).ok_or_else(|| failed(first, "too many jobs".into()))?;
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

    /// Time between two ticks: an eighth of the time since something was to move (ours), within [`LONGEST_TICK`].
    pub fn interval(&self) -> Duration {
        if self.jobs.iter().next().is_none() {
            return NOBODY;
        }
        let tick = self.config.agent.tick;
        if self.is_recorded() || self.gpu.fast || self.jobs.iter().any(|job| job.scattered.looks()) {
            return tick;
        }
        (self.acted.elapsed() / 8).clamp(tick, tick.max(LONGEST_TICK))
    }

    /// Carries what was seen since the last tick through to what should move.
    pub fn tick(&mut self) {
        let now = Instant::now();
        if let Err(error) = self.host.refresh_free(&self.root) {
            self.reread_host(&error);
        }
        self.follow_processes();
        self.settle(now);
        let (read, gone) = self.memory.refresh(now);
        for pid in read {
            if let Some(job) = self.jobs.of_mut(pid) {
                job.faults.place(pid, self.memory.residents_of(pid));
                job.read(&self.memory);
            }
            self.publish(pid);
        }
        gone.iter().for_each(|pid| self.forget(*pid));
        self.listen(now);
        self.weigh(now);
        self.drive_schemes(now);
        self.decide(now);
        self.look_closer(now);
        self.moving |= self.schemes.act(now);
        if self.moving {
            self.acted = now;
        }
        self.watch_monitor(now);
        if now.duration_since(self.told) >= self.seldom() {
            self.tell_losses(now);
        }
        let over: Vec<u64> = self.jobs.iter().filter(|job| job.is_over()).map(|job| job.id).collect();
        for id in over {
            // Nobody asked for it, and nobody can any more.
            if let Some(left) = self.left(id) {
                tracing::info!("{left}");
            }
            self.remove_job(id);
        }
    }

    fn follow_processes(&mut self) {
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

    fn forget(&mut self, pid: Pid) {
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

    /// What came of the moves under way.
    fn settle(&mut self, now: Instant) {
        let Some(mover) = &mut self.mover else { return };
        for outcome in mover.outcomes() {
            self.memory.moved(outcome.asked.pid, outcome.asked.range);
            if let Some(job) = self.jobs.of_mut(outcome.asked.pid) {
                job.ledger.record(&outcome, now);
                job.under_way = job.under_way.saturating_sub(1);
            }
            if self.vain_moves.silent(outcome.moved > 0, Duration::from_secs(20), now) {
                let causes = format!("{:?}", outcome.failed);
                tracing::warn!(pid = %outcome.asked.pid, range = %outcome.asked.range, causes, "moves were asked for and no page has moved for 20 s");
            }
        }
    }

    /// Gathers what the sources have, as evidence.
    fn listen(&mut self, now: Instant) {
        let mut touches: Vec<Touch> = Vec::new();
        match self.programs.faults.drain() {
            Ok(faults) => {
                faults.iter().for_each(|region| self.memory.changing(region.pid, region.range));
                touches.extend(faults.iter().map(|region| region.touch(now)));
                for region in &faults {
                    if let Some(job) = self.jobs.of_mut(region.pid) {
                        job.faults.add(region);
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "page faults of this tick are counted in the next"),
        }
        match self.programs.damon.drain() {
            Ok(regions) => self.snapshots.touches(&regions, &mut touches),
            Err(error) => tracing::warn!(%error, "an aggregation of DAMON is lost"),
        }
        self.hear_gpus(now, &mut touches);
        self.hear_hints(now, &mut touches);
        let used = touches.iter().filter(|touch| touch.weight > 0.0).count();
        tracing::trace!(touches = touches.len(), used, "listened");
        for job in self.jobs.iter_mut() {
            job.gathered.take_if(|gathered| gathered.is_over(now));
        }
        if self.is_recorded() {
            for touch in &touches {
                if let Some(job) = self.jobs.of_mut(touch.pid) {
                    job.gather(touch);
                }
            }
        }
        self.heat.observe(&touches);
        self.learn_steps(&touches, now);
    }
}
