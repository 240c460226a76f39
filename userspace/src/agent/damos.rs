//! Which jobs DAMON's schemes move, and keeping the schemes at what the rule of [`damos`] says.
//!
//! A job's actuator is chosen once, when its processes are first known, and it never has both: while schemes are its
//! own it is left out of plans, and where they have to be given up for good, plans begin only once they have ended.

mod service;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

pub(super) use self::service::Service;
use self::service::hot_on;
use super::{
    Agent,
    account::KdamondCost,
    aim,
    jobs::Job,
    params::{cadence_of, intervals_of},
};
use crate::{
    config::{Actuator, Limits, Mode},
    job::memcg,
    migrate::damos::{self, Route, Served, Terms},
    policy::Node,
    source::damon::{
        Intervals,
        cadence::Cadence,
        movers::{LONGEST_AGGREGATION, Round, Work},
    },
    units::{NodeId, NodeSet, Range},
};

/// Schemes are counted this often.
const ROUND: Duration = Duration::from_secs(1);
/// A job's control group is looked at again after this.
const LOOK: Duration = Duration::from_secs(5);
/// After so many rounds in a row that failed, `move_pages` takes over.
const FAILURES: u32 = 3;
/// At rest an aggregation still has so many samples.
const FEWEST_SAMPLES: u32 = 5;
/// The agent's end waits no longer for the last counts: before 6.14 each takes the kernel up to an aggregation.
const FAREWELL: Duration = Duration::from_secs(1);

/// The schemes of all jobs.
#[derive(Debug, Default)]
pub(super) struct Schemes {
    asked: Vec<Work>,
    at: Option<Instant>,
    costs: BTreeMap<NodeId, (u32, KdamondCost)>,
    failures: u32,
    cadence: Option<Cadence>,
    moved: Option<Instant>,
}

impl Schemes {
    /// CPU time of their kdamonds.
    pub fn cpu(&self) -> Duration {
        self.costs.values().map(|(_, cost)| cost.total()).sum()
    }

    /// Whether one has moved something lately.
    pub fn act(&self, now: Instant) -> bool {
        self.moved.is_some_and(|moved| now.duration_since(moved) < LOOK)
    }
}

impl Agent {
    /// Takes in what the schemes did, and has them do what is to be done now.
    pub(super) fn drive_schemes(&mut self, now: Instant) {
        self.choose_actuators(now);
        self.take_round(Duration::ZERO, now);
        match &self.damon {
            Err(error) => {
                // DAMON was ours and is no more: with it all schemes have ended.
                let why = error.to_string();
                self.schemes.asked.clear();
                self.jobs.iter_mut().for_each(|job| job.schemes.live = false);
                return self.give_up(&why);
            }
            Ok(damon) if damon.migrating => return,
            Ok(_) => {}
        }
        let works = self.scheme_works();
        let due = self.schemes.at.is_none_or(|at| now.duration_since(at) >= ROUND);
        let jobs = |works: &[Work]| -> BTreeSet<u64> {
            works.iter().flat_map(|work| &work.schemes).map(|scheme| scheme.job).collect()
        };
        let others = jobs(&works) != jobs(&self.schemes.asked);
        if others || due && !works.is_empty() {
            self.ask_schemes(works, now);
        }
    }

    /// Ends all schemes and takes in what they did last, as far as that is quickly told.
    pub(super) fn end_schemes(&mut self) {
        if self.schemes.asked.is_empty() {
            return;
        }
        let began = Instant::now();
        if self.damon.as_ref().is_ok_and(|damon| damon.migrating) {
            self.take_round(FAREWELL, began);
        }
        self.ask_schemes(Vec::new(), began);
        self.take_round(FAREWELL.saturating_sub(began.elapsed()), began);
    }

    fn ask_schemes(&mut self, works: Vec<Work>, now: Instant) {
        let Ok(damon) = &mut self.damon else { return };
        for scheme in works.iter().flat_map(|work| &work.schemes) {
            if let Some(job) = self.jobs.get_mut(scheme.job) {
                job.schemes.live = true;
            }
        }
        damon.migrate(works.clone());
        (self.schemes.asked, self.schemes.at) = (works, Some(now));
    }

    fn choose_actuators(&mut self, now: Instant) {
        let settled = |job: &Job| job.processes.is_empty() || job.schemes.chosen == Some(Actuator::MovePages);
        if self.jobs.iter().all(settled) {
            return;
        }
        let missing = self.schemes_missing();
        let two_tier = self.host.is_two_tier();
        for job in self.jobs.iter_mut().filter(|job| !settled(job)) {
            let chosen = job.schemes.chosen;
            let wanted = job.asked.mode == Mode::Migrate && job.asked.actuator == Actuator::Damos && two_tier;
            if chosen.is_none() && !wanted {
                job.schemes.choose(Actuator::MovePages);
            }
            let fresh = job.schemes.looked.is_some_and(|looked| now.duration_since(looked) < LOOK);
            if job.schemes.chosen == Some(Actuator::MovePages) || fresh {
                continue;
            }
            job.schemes.looked = Some(now);
            match (missing.clone().map_or_else(|| own_group(job, &self.tiers), Err), chosen) {
                (Ok(group), _) => job.schemes.serve(group),
                (Err(why), None) => {
                    job.schemes.choose(Actuator::MovePages);
                    job.schemes.say(&job.asked.name, format!("move_pages moves it, not DAMON's schemes: {why}"));
                }
                // It has been the schemes' job, and nothing else moves it.
                (Err(why), Some(_)) if job.schemes.group.take().is_some() => {
                    job.schemes.say(&job.asked.name, format!("its DAMON schemes rest and nothing moves it: {why}"));
                }
                (Err(_), Some(_)) => {}
            }
        }
    }

    /// Why this host or this agent has no schemes.
    fn schemes_missing(&self) -> Option<String> {
        let movers = match &self.damon {
            Err(error) => return Some(error.to_string()),
            Ok(damon) => match &damon.movers {
                Err(error) => return Some(error.to_string()),
                Ok(movers) => movers,
            },
        };
        if movers.is_empty() {
            return Some("the agent started with no actuator = \"damos\" in its config; start it anew".to_owned());
        }
        let unknown = movers.iter().find(|node| aim::node_ranges(&self.host, **node).is_empty());
        unknown.map(|node| format!("/proc/iomem does not tell the physical addresses of node {node}"))
    }

    fn scheme_works(&self) -> Vec<Work> {
        let Some(movers) = self.damon.as_ref().ok().and_then(|damon| damon.movers.as_ref().ok()) else {
            return Vec::new();
        };
        let hot = self.rule.promote_heat;
        let serve = |job: &Job| {
            let group = job.schemes.group.clone().filter(|_| job.moves())?;
            let hot = self.tiers.0.iter().map(|node| (*node, hot_on(&job.view, *node, hot))).collect();
            Some(Served { job: job.id, group, hot })
        };
        let jobs: Vec<Served> = self.jobs.iter().filter_map(serve).collect();
        let routes: Vec<Route> = movers.iter().filter_map(|node| self.route(*node)).collect();
        let Intervals { sampling, aggregation } = intervals_of(&self.config);
        let part = (LONGEST_AGGREGATION.as_secs_f64() / aggregation.as_secs_f64()).min(1.0);
        let aggregation = aggregation.mul_f64(part);
        let factor = self.schemes.cadence.as_ref().map_or(1, Cadence::factor);
        let sampling = (sampling.mul_f64(part) * factor).min(aggregation / FEWEST_SAMPLES);
        let terms = Terms {
            rate_bytes_per_sec: self.config.migrate.rate_bytes_per_sec,
            cpu: self.config.damon.cpu_percent / 100.0,
            promote_heat: self.config.hotness.promote_heat,
            idle: self.config.policy.pingpong_window,
            file_pages: self.config.migrate.file_pages,
            intervals: Intervals { sampling, aggregation },
            max_regions: self.config.damon.max_regions,
        };
        damos::works(&routes, &jobs, &terms)
    }

    /// Where pages of a node go, unless one of the two is being drained.
    fn route(&self, from: NodeId) -> Option<Route> {
        let host = &self.host;
        let is_top = host.top().contains(from);
        let to = if is_top { host.demotion_target(from) } else { host.nearest_top(from) }?;
        if self.avoided.contains(from) || self.avoided.contains(to) {
            return None;
        }
        let top = host.nodes.get(if is_top { &from } else { &to })?;
        let headroom = self.config.policy.headroom(top.total_bytes);
        let top = Node { id: top.id, total: top.total_bytes, free: top.available_bytes, headroom };
        Some(Route { from, ranges: aim::node_ranges(host, from), to, top })
    }

    fn take_round(&mut self, patience: Duration, now: Instant) {
        let Some(round) = self.damon.as_mut().ok().and_then(|damon| damon.round(patience)) else { return };
        let Round { gains, kdamonds, failed } = round;
        for gain in &gains {
            let Some(job) = self.jobs.get_mut(gain.job) else { continue };
            job.schemes.add(gain);
            if gain.stats.applied > 0 {
                self.schemes.moved = Some(now);
                // Which pages they were nobody tells: all are looked at again.
                job.processes.iter().for_each(|pid| self.memory.changing(*pid, Range::new(0, 0)));
            }
        }
        tracing::debug!(?gains, ?kdamonds, ?failed, "a round of DAMON's schemes");
        for (node, pid) in kdamonds {
            let (known, cost) = self.schemes.costs.entry(node).or_default();
            if *known != pid {
                *known = pid;
                cost.begin(pid);
            }
        }
        let shares = self.schemes.costs.values_mut().map(|(_, cost)| cost.read(now).0);
        let share = shares.fold(0.0, f64::max);
        let acts = self.schemes.act(now);
        let cadence = self.schemes.cadence.get_or_insert_with(|| cadence_of(&self.config, now));
        // What each region is used is not known here, so that more samples are never given up for it.
        let may_blur = || true;
        if cadence.step(acts, share, may_blur, now) {
            tracing::debug!(share, factor = cadence.factor(), "DAMON's schemes look at another rate");
        }
        let works = &self.schemes.asked;
        for job in self.jobs.iter_mut() {
            job.schemes.live = works.iter().flat_map(|work| &work.schemes).any(|scheme| scheme.job == job.id);
            let name = (job.id, job.asked.name.as_str());
            job.schemes.watch(name, &job.view, works, self.rule.promote_heat, now);
        }
        self.schemes.failures = if failed.is_empty() { 0 } else { self.schemes.failures + 1 };
        if let Some((node, error)) = failed.first().filter(|_| self.schemes.failures == FAILURES) {
            self.give_up(&format!("node {node}: {error}"));
        }
    }

    /// `move_pages` takes over the jobs of the schemes, as soon as none of theirs runs.
    fn give_up(&mut self, why: &str) {
        for job in self.jobs.iter_mut().filter(|job| job.schemes.actuator() == Actuator::Damos) {
            job.schemes.choose(Actuator::MovePages);
            job.schemes.say(&job.asked.name, format!("move_pages moves it, since DAMON's schemes failed: {why}"));
        }
    }
}

/// The control group by which schemes can tell the job's pages, or why they cannot serve it.
fn own_group(job: &Job, tiers: &NodeSet) -> Result<String, String> {
    let Limits { dram_bytes, cxl_bytes, .. } = job.asked.limits;
    if dram_bytes.is_some() || cxl_bytes.is_some() {
        return Err("budgets are kept by move_pages alone".to_owned());
    }
    if !job.allowed.0.is_empty() && !tiers.0.is_subset(&job.allowed.0) {
        return Err(format!("its cpuset has nodes {} alone, which schemes do not heed", job.allowed));
    }
    if job.bound_bytes() > 0 {
        return Err("it bound memory to nodes itself, which schemes do not heed".to_owned());
    }
    memcg::own(Path::new("/"), &job.processes)
}
