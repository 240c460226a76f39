//! What schemes do for one job.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{
    agent::account::Idle,
    config::Actuator,
    hotness::HeatView,
    observe::summary::SchemeMoved,
    source::damon::{
        movers::{Gain, Work},
        schemes::{Action, Stats},
    },
    units::{BLOCK, NodeId, PAGE},
};

/// Schemes with something to promote that move nothing for so long are spoken of.
const SILENT: Duration = Duration::from_secs(30);

/// What schemes do for one job.
#[derive(Debug, Default)]
pub(in crate::agent) struct Service {
    /// What moves its pages, once that is chosen.
    pub(super) chosen: Option<Actuator>,
    /// Its control group, while its schemes may run.
    pub(super) group: Option<String>,
    /// When the group was last looked at.
    pub(super) looked: Option<Instant>,
    /// Schemes of it may run.
    pub live: bool,
    done: BTreeMap<(NodeId, NodeId, Action), Stats>,
    /// What was done when they last moved something.
    when_moved: Stats,
    idle: Idle,
    choice: Option<String>,
    silence: Option<String>,
}

impl Service {
    /// Whether the executor may move the job: schemes were not chosen for it, and none of its own runs any more.
    pub fn leaves_it_to_plans(&self) -> bool {
        self.chosen == Some(Actuator::MovePages) && !self.live
    }

    /// What moves its pages.
    pub fn actuator(&self) -> Actuator {
        self.chosen.unwrap_or_default()
    }

    /// What schemes moved of it.
    pub fn moved(&self) -> Vec<SchemeMoved> {
        let row = |(&(from, to, action), stats): (&(NodeId, NodeId, Action), &Stats)| SchemeMoved {
            action: action.to_string(),
            from,
            to,
            tried_bytes: stats.tried,
            pages: stats.applied / PAGE,
            bytes: stats.applied,
        };
        self.done.iter().map(row).collect()
    }

    /// What the reader should know.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.choice.iter().chain(&self.silence).cloned()
    }

    pub(super) fn choose(&mut self, actuator: Actuator) {
        (self.chosen, self.group, self.choice, self.silence) = (Some(actuator), None, None, None);
    }

    /// Says why it is not the schemes, or not now, that move the job.
    pub(super) fn say(&mut self, job: &str, note: String) {
        tracing::warn!(job, "{note}");
        self.choice = Some(note);
    }

    /// Its group is its own.
    pub(super) fn serve(&mut self, group: String) {
        self.chosen = Some(Actuator::Damos);
        if self.group.replace(group).is_none() {
            self.choice = None;
        }
    }

    pub(super) fn add(&mut self, gain: &Gain) {
        self.done.entry((gain.from, gain.to, gain.action)).or_default().add(&gain.stats);
    }

    /// Says once where schemes of the job have something to promote and move nothing, and the likely reason.
    pub(super) fn watch(&mut self, job: (u64, &str), view: &HeatView, works: &[Work], hot: f32, now: Instant) {
        let (id, name) = job;
        let promotes = |work: &&Work| {
            let active = |scheme: &_| is_active(scheme, id);
            work.schemes.iter().any(active) && hot_on(view, work.node, hot) >= BLOCK
        };
        let waiting = works.iter().find(promotes);
        let mut sum = Stats::default();
        self.done.values().for_each(|stats| sum.add(stats));
        let since = sum.since(&self.when_moved);
        if since.applied > 0 || waiting.is_none() {
            (self.when_moved, self.silence) = (sum, None);
        }
        if self.idle.silent(since.applied > 0 || waiting.is_none(), SILENT, now)
            && let Some(work) = waiting
        {
            let (node, why) = (work.node, why_nothing(&since, work));
            let note =
                format!("its DAMON schemes have moved nothing for {SILENT:?}, with hot bytes on node {node}: {why}");
            tracing::warn!(job = name, "{note}");
            self.silence = Some(note);
        }
    }
}

fn is_active(scheme: &crate::source::damon::schemes::Scheme, job: u64) -> bool {
    scheme.job == job && scheme.action == Action::MigrateHot && scheme.bytes > 0
}

fn why_nothing(since: &Stats, work: &Work) -> String {
    let least = work.schemes.first().map_or(0, |scheme| scheme.accesses.0);
    match since {
        Stats { tried: 0, .. } => {
            let samples = work.intervals.samples();
            format!("0 bytes tried: no region of the node was found accessed in {least} of {samples} samples")
        }
        Stats { quota_exceeded: 1.., .. } => {
            "the quota is used up by regions of others; raise migrate.rate_bytes_per_sec or damon.cpu_percent"
                .to_owned()
        }
        _ => "what was tried is not anonymous memory of its control group, is pinned, or finds no free page".to_owned(),
    }
}

/// Hot bytes of a job on a node.
pub(super) fn hot_on(view: &HeatView, node: NodeId, hot: f32) -> u64 {
    let regions = view.regions.iter().filter(|region| region.heat >= hot);
    regions.filter_map(|region| region.on.get(&node)).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        hotness::{Outlook, Region},
        source::damon::{Intervals, schemes::Scheme},
        units::{Pid, Range},
    };

    const SLOW: NodeId = NodeId(1);

    fn work(bytes: u64) -> Work {
        let scheme = Scheme {
            job: 1,
            group: "/a".into(),
            file_pages: false,
            action: Action::MigrateHot,
            target: NodeId(0),
            accesses: (1, u32::MAX),
            age: 0,
            bytes,
            time: Duration::from_millis(200),
        };
        let intervals = Intervals { sampling: Duration::from_millis(50), aggregation: Duration::from_secs(1) };
        Work { node: SLOW, ranges: Vec::new(), intervals, max_regions: 10, schemes: vec![scheme] }
    }

    fn view(hot_bytes: u64) -> HeatView {
        let region = Region {
            pid: Pid(1),
            range: Range::new(0, BLOCK),
            heat: 0.5,
            seen: 9,
            idle_s: 0.0,
            on: [(SLOW, hot_bytes)].into(),
            unmovable: 0,
            outlook: Outlook::default(),
            expected: false,
            pages: None,
        };
        HeatView { at: Instant::now(), regions: vec![region] }
    }

    fn gain(tried: u64, applied: u64) -> Gain {
        let stats = Stats { tried, applied, quota_exceeded: 0 };
        Gain { job: 1, from: SLOW, to: NodeId(0), action: Action::MigrateHot, stats }
    }

    #[test]
    fn schemes_that_move_nothing_are_spoken_of_with_the_reason_until_they_do() {
        let (mut service, start) = (Service::default(), Instant::now());
        let look = |service: &mut Service, view: &HeatView, work, seconds| {
            service.watch((1, "a"), view, &[work], 0.1, start + Duration::from_secs(seconds));
            service.notes().next()
        };
        let (hot, nothing) = (view(BLOCK), view(0));
        assert_eq!(look(&mut service, &hot, work(BLOCK), 0), None);
        assert!(look(&mut service, &hot, work(BLOCK), 31).unwrap().contains("accessed in 1 of 20 samples"));
        service.add(&gain(BLOCK, 0));
        service.add(&gain(0, BLOCK));
        assert_eq!(look(&mut service, &hot, work(BLOCK), 32), None);
        assert_eq!(look(&mut service, &hot, work(0), 99), None, "it may not: there is no room");
        assert_eq!(look(&mut service, &nothing, work(BLOCK), 199), None, "nothing is hot there");
        service.add(&gain(BLOCK, 0));
        assert_eq!(look(&mut service, &hot, work(BLOCK), 200), None);
        assert!(look(&mut service, &hot, work(BLOCK), 231).unwrap().contains("pinned"));
    }

    #[test]
    fn a_job_is_never_both_actuators() {
        let mut service = Service::default();
        assert!(!service.leaves_it_to_plans(), "nothing is chosen yet");
        service.serve("/a".into());
        service.live = true;
        assert!(!service.leaves_it_to_plans());
        service.choose(Actuator::MovePages);
        assert!(!service.leaves_it_to_plans(), "a scheme may still run");
        service.live = false;
        assert!(service.leaves_it_to_plans());
    }
}
