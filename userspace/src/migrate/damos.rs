//! The other actuator: DAMON's schemes migrate a job's pages, found by its control group. What they may do, from the
//! room there is. Pure; [`crate::source::damon`] has the kernel do it.
//!
//! **Rule** (ours). Each node has one kdamond: on a lower node a scheme a job promotes what is accessed to the nearest
//! node of the top tier, on a top node one demotes what is idle to the nearest node below. The bytes a second are those
//! of `move_pages`, shared by all schemes.
//!
//! Promotion has the free memory over the headroom. Demotion has what is short of
//!
//! ```text
//! 9/8 · headroom + hot bytes that wait below
//! ```
//!
//! so room is made before it is needed and nothing is demoted without need. The kernel has goals of its own for that
//! from 6.16; these work wherever schemes migrate. Amounts are powers of two: they change seldom, and a change costs a
//! commit.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    policy::Node,
    source::damon::{
        Intervals,
        movers::Work,
        schemes::{Action, Scheme},
    },
    units::{BLOCK, NodeId, Range},
};

/// A way that pages can take.
#[derive(Clone, Debug)]
pub struct Route {
    /// The node they leave.
    pub from: NodeId,
    /// Its physical addresses.
    pub ranges: Vec<Range>,
    /// The node they go to.
    pub to: NodeId,
    /// The one of the two that is on the top tier.
    pub top: Node,
}

impl Route {
    fn action(&self) -> Action {
        if self.to == self.top.id { Action::MigrateHot } else { Action::MigrateCold }
    }
}

/// A job whose pages schemes migrate.
#[derive(Clone, Debug)]
pub struct Served {
    /// Its number.
    pub job: u64,
    /// Its memory control group.
    pub group: String,
    /// Its hot bytes on each node, as far as they are known.
    pub hot: BTreeMap<NodeId, u64>,
}

/// How schemes migrate.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// The most bytes in a second.
    pub rate_bytes_per_sec: u64,
    /// The part of a CPU that a kdamond may use for it, 0 to 1.
    pub cpu: f64,
    /// Share of samples that must find a region accessed before it is worth moving up, 0 to 1.
    pub promote_heat: f32,
    /// How long a region must have been idle before it goes down.
    pub idle: Duration,
    /// Whether pages of files migrate.
    pub file_pages: bool,
    /// How often the nodes are looked at.
    pub intervals: Intervals,
    /// The most regions of a node.
    pub max_regions: u32,
}

/// What should run.
pub fn works(routes: &[Route], jobs: &[Served], terms: &Terms) -> Vec<Work> {
    let jobs_count = jobs.len().max(1) as u64;
    let most = terms.rate_bytes_per_sec * Scheme::INTERVAL.as_secs() / (routes.len().max(1) as u64 * jobs_count);
    let samples = terms.intervals.samples();
    let least = ((terms.promote_heat * samples as f32).ceil() as u32).clamp(1, samples);
    let aggregations = terms.idle.as_secs_f64() / terms.intervals.aggregation.as_secs_f64();
    let work = |route: &Route| {
        let action = route.action();
        let all = match action {
            Action::MigrateHot => route.top.free.saturating_sub(route.top.headroom),
            Action::MigrateCold => short(route, routes, jobs, most * jobs_count),
        };
        let scheme = |job: &Served| Scheme {
            job: job.job,
            group: job.group.clone(),
            file_pages: terms.file_pages,
            action,
            target: route.to,
            accesses: if action == Action::MigrateHot { (least, u32::MAX) } else { (0, 0) },
            age: if action == Action::MigrateHot { 0 } else { aggregations.ceil() as u32 },
            bytes: amount((all / jobs_count).min(most)),
            time: Scheme::INTERVAL.mul_f64(terms.cpu / jobs_count as f64),
        };
        Work {
            node: route.from,
            ranges: route.ranges.clone(),
            intervals: terms.intervals,
            max_regions: terms.max_regions,
            schemes: jobs.iter().map(scheme).collect(),
        }
    };
    if jobs.is_empty() { Vec::new() } else { routes.iter().map(work).collect() }
}

/// Bytes that the route's top node is short of.
fn short(route: &Route, routes: &[Route], jobs: &[Served], most: u64) -> u64 {
    let from_below = routes.iter().filter(|other| other.to == route.from);
    let waiting: u64 = from_below.flat_map(|other| jobs.iter().filter_map(|job| job.hot.get(&other.from))).sum();
    let wanted = route.top.headroom / 8 * 9 + waiting.min(most);
    wanted.saturating_sub(route.top.free)
}

/// A power of two up to `bytes`; none where that is less than a block.
fn amount(bytes: u64) -> u64 {
    if bytes < BLOCK { 0 } else { 1 << bytes.ilog2() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn routes(free: u64) -> Vec<Route> {
        let top = Node { id: NodeId(0), total: 1024 * MIB, free: free * MIB, headroom: 64 * MIB };
        let route = |from, to| Route { from: NodeId(from), ranges: vec![Range::new(0, BLOCK)], to: NodeId(to), top };
        vec![route(0, 2), route(2, 0)]
    }

    fn job(job: u64, hot_below: u64) -> Served {
        Served { job, group: format!("/job{job}"), hot: [(NodeId(2), hot_below * MIB)].into() }
    }

    fn terms() -> Terms {
        Terms {
            rate_bytes_per_sec: 1024 * MIB,
            cpu: 0.2,
            promote_heat: 0.05,
            idle: Duration::from_secs(10),
            file_pages: false,
            intervals: Intervals { sampling: Duration::from_millis(50), aggregation: Duration::from_secs(1) },
            max_regions: 2000,
        }
    }

    /// MiB a second down and up of the first job.
    fn amounts(free: u64, jobs: &[Served]) -> (u64, u64) {
        let works = works(&routes(free), jobs, &terms());
        (works[0].schemes[0].bytes / MIB, works[1].schemes[0].bytes / MIB)
    }

    #[test]
    fn room_decides_what_goes_up_and_what_must_leave() {
        assert_eq!(amounts(800, &[job(1, 0)]), (0, 512), "room enough: the half of the rate, and nothing leaves");
        assert_eq!(amounts(66, &[job(1, 0)]), (4, 2), "the eighth that is kept over the headroom is short by 6 MiB");
        assert_eq!(amounts(64, &[job(1, 100)]), (64, 0), "108 MiB are short for what waits below");
        assert_eq!(amounts(10, &[job(1, 0)]), (32, 0));
        assert_eq!(amounts(10, &[job(1, 1 << 20)]), (512, 0), "never over the rate");
    }

    #[test]
    fn jobs_share_the_rate_and_the_time_and_have_each_its_own_group() {
        let works = works(&routes(800), &[job(1, 0), job(5, 0)], &terms());
        let schemes = &works[1].schemes;
        assert_eq!((schemes[0].bytes / MIB, schemes[1].bytes / MIB), (256, 256));
        assert_eq!((schemes[0].group.as_str(), schemes[1].group.as_str()), ("/job1", "/job5"));
        assert_eq!(schemes[0].time, Duration::from_millis(100));
        assert!(super::works(&routes(800), &[], &terms()).is_empty());
    }

    #[test]
    fn hot_goes_up_and_idle_goes_down() {
        let works = works(&routes(800), &[job(1, 0)], &terms());
        let (down, up) = (&works[0].schemes[0], &works[1].schemes[0]);
        assert_eq!((down.action, down.target, down.accesses, down.age), (Action::MigrateCold, NodeId(2), (0, 0), 10));
        assert_eq!((up.action, up.target, up.accesses.0, up.age), (Action::MigrateHot, NodeId(0), 1, 0));
    }
}
