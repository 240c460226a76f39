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
mod processes;
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
    params::{cadence_of, heat_params, rule_of, speeds_of, take_damon, tier_nodes},
    steps::Free,
};
use crate::{
    config::Config,
    host::Host,
    hotness::HeatMap,
    job::memory::Memory,
    observe::usdt::EventsLost,
    policy::{Rule, Speed},
    publish::Links,
    source::{
        Touch, TouchKind,
        damon::{Damon, DamonError, cadence::Cadence, snapshot::Snapshots},
        ebpf::{Options, Programs},
    },
    units::{NodeId, NodeSet},
};

/// Time between two ticks while there is no job.
const NOBODY: Duration = Duration::from_secs(10);
/// Without any news it is decided anew after this.
const STALE: Duration = Duration::from_secs(2);
/// Page faults and changed memory alone are decided on no more often.
const OFTEN: Duration = Duration::from_secs(1);
/// At rest a tick comes this often.
const LONGEST_TICK: Duration = Duration::from_secs(8);

/// What the sources had.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    /// Page faults alone.
    Faults,
    /// What the monitor or a GPU saw of use.
    Uses,
}

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
    /// When it was last decided, and whether anything but use has changed since.
    decided: Instant,
    news: bool,
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
            decided: now,
            news: false,
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

    /// Time between two ticks: an eighth of the time since something was to move (ours), within [`LONGEST_TICK`].
    pub fn interval(&self) -> Duration {
        if self.jobs.iter().next().is_none() {
            return NOBODY;
        }
        let tick = self.config.agent.tick;
        if self.is_recorded() || self.gpu.fast || self.looks_closer() {
            return tick;
        }
        (self.acted.elapsed() / 8).clamp(tick, tick.max(LONGEST_TICK))
    }

    /// Carries what was seen since the last tick through to what should move.
    pub fn tick(&mut self) {
        let now = Instant::now();
        self.follow_processes();
        let settled = self.settle(now);
        let (read, gone) = self.memory.refresh(now);
        let unseen = |job: &jobs::Job| job.view.regions.is_empty();
        let first = read.iter().any(|pid| self.jobs.of(*pid).is_some_and(unseen));
        self.news |= !read.is_empty() || !gone.is_empty();
        for pid in read {
            if let Some(job) = self.jobs.of_mut(pid) {
                job.faults.place(pid, self.memory.residents_of(pid));
                job.read(&self.memory);
            }
            self.publish(pid);
        }
        gone.iter().for_each(|pid| self.forget(*pid));
        let heard = self.listen(now);
        self.weigh(now);
        self.drive_schemes(now);
        let found = self.see_closer(now);
        // The monitor tells once an aggregation, which is longer than a tick: the same evidence gives the same decision,
        // and what a growing job faults in is no evidence of use.
        self.news |= heard == Heard::Faults;
        let decided = now.duration_since(self.decided);
        if settled || first || found || heard == Heard::Uses || self.news && decided >= OFTEN || decided >= STALE {
            (self.decided, self.news) = (now, false);
            if let Err(error) = self.host.refresh_free(&self.root) {
                self.reread_host(&error);
            }
            self.decide(now);
        }
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

    /// What came of the moves under way; whether anything did.
    fn settle(&mut self, now: Instant) -> bool {
        let Some(mover) = &mut self.mover else { return false };
        let busy = mover.busy();
        let outcomes = mover.outcomes();
        let any = !outcomes.is_empty() || mover.busy() != busy;
        for outcome in outcomes {
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
        any
    }

    /// Gathers what the sources have, as evidence.
    fn listen(&mut self, now: Instant) -> Heard {
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
        match touches.iter().all(|touch| touch.kind == TouchKind::Fault) {
            true if touches.is_empty() => Heard::Nothing,
            true => Heard::Faults,
            false => Heard::Uses,
        }
    }
}
