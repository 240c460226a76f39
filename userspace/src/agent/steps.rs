//! Each job's training step, learned from what is touched, and how long memory has been free.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use super::{Agent, jobs::Job};
use crate::{config::PolicyKind, observe::usdt, policy::Node, source::Touch, units::NodeId};

/// Memory is free to stay if it was free for so long, and for two steps.
const LASTS: Duration = Duration::from_secs(20);
/// Steps longer than half of this are not waited for.
const LONGEST: Duration = Duration::from_secs(600);

impl Agent {
    /// Tells each job's usage what was touched of it.
    pub(super) fn learn_steps(&mut self, touches: &[Touch], now: Instant) {
        let mut of_jobs: BTreeMap<u64, Vec<&Touch>> = BTreeMap::new();
        for touch in touches {
            if let Some(job) = self.jobs.of(touch.pid) {
                of_jobs.entry(job.id).or_default().push(touch);
            }
        }
        let default = self.config.policy.policy;
        // What goes by heat alone is not made to pay for it.
        let learns = |job: &&mut Job| job.asked.policy.unwrap_or(default) != PolicyKind::Hotness;
        let sampling = self.cadence.now().sampling.as_secs_f32().max(1e-6);
        for job in self.jobs.iter_mut().filter(learns) {
            job.usage.sampled(sampling.recip());
            let begun = job.usage.observe(of_jobs.remove(&job.id).unwrap_or_default(), now);
            if let (true, Some((number, step)), Some(pid)) = (begun > 0, job.usage.step(), job.processes.first()) {
                usdt::step(*pid, number, step);
            }
        }
    }

    /// What was free on each of the nodes all the time, for as long as a step may want it again.
    pub(super) fn lasting(&mut self, nodes: &[Node], now: Instant) -> BTreeMap<NodeId, u64> {
        let periods = self.jobs.iter().filter_map(|job| Some(job.usage.step()?.1.period));
        let two_steps = Duration::from_nanos(periods.max().unwrap_or(0).saturating_mul(2));
        let window = LASTS.max(two_steps).min(LONGEST);
        nodes
            .iter()
            .map(|node| (node.id, self.free.entry(node.id).or_default().least(node.free, window, now)))
            .collect()
    }
}

/// Free memory of one node over time: the values that no later one is under.
#[derive(Debug, Default)]
pub(super) struct Free {
    since: Option<Instant>,
    least: VecDeque<(Instant, u64)>,
}

impl Free {
    /// The least in the last `window`, with what is free now; 0 before it has been looked at for so long.
    fn least(&mut self, free: u64, window: Duration, now: Instant) -> u64 {
        let since = *self.since.get_or_insert(now);
        while self.least.back().is_some_and(|(_, before)| *before >= free) {
            self.least.pop_back();
        }
        self.least.push_back((now, free));
        let old = |at: Instant| now.saturating_duration_since(at) > window;
        while self.least.front().is_some_and(|(at, _)| old(*at)) {
            self.least.pop_front();
        }
        if now.saturating_duration_since(since) < window {
            return 0;
        }
        self.least.front().map_or(0, |(_, least)| *least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_free_all_the_time_lasts() {
        let (mut free, start) = (Free::default(), Instant::now());
        let mut look =
            |second: u64, bytes| free.least(bytes, Duration::from_secs(10), start + Duration::from_secs(second));
        assert_eq!((look(0, 90), look(5, 90)), (0, 0), "it is not known for long enough");
        assert_eq!(look(10, 80), 80);
        assert_eq!((look(12, 20), look(13, 70)), (20, 20), "a step wanted it for a moment");
        assert_eq!(look(22, 75), 20);
        assert_eq!((look(23, 75), look(34, 99)), (70, 99));
    }
}
