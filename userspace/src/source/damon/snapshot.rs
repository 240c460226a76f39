//! From DAMON's aggregation events to touches.

use std::time::Instant;

use super::Generation;
use crate::source::{Touch, TouchKind, damon_events::DamonRegion};

/// Reads the events of one generation after another, and measures how well DAMON keeps its intervals.
#[derive(Debug, Default)]
pub struct Snapshots {
    generation: Option<Generation>,
    passes: Passes,
    physical: Physical,
    fresh: bool,
    /// Events of kdamonds that are not the current one: late reports of an earlier generation.
    pub stale: u64,
}

/// What the newest aggregation of physical addresses saw; both 0 where processes are monitored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Physical {
    /// Bytes of regions that were looked at.
    pub looked_at: u64,
    /// Bytes of those that were found accessed at least once.
    pub accessed: u64,
}

/// The aggregations of a generation.
#[derive(Debug, Default)]
struct Passes {
    first: Option<Instant>,
    last: Option<Instant>,
    count: u64,
}

impl Snapshots {
    /// From now on events of `generation` are the ones that count.
    pub fn begin(&mut self, generation: Generation) {
        self.passes = Passes::default();
        self.generation = Some(generation);
    }

    /// The generation that is being read.
    pub fn generation(&self) -> Option<&Generation> {
        self.generation.as_ref()
    }

    /// Turns events into touches. All of one aggregation get one time, since the hotness stage takes touches of equal
    /// time as one look.
    pub fn touches(&mut self, events: &[DamonRegion], out: &mut Vec<Touch>) {
        let Some(generation) = &self.generation else {
            self.stale += events.len() as u64;
            return;
        };
        let samples = generation.intervals.samples() as f32;
        // Within an aggregation the events follow each other at once; between two there is an interval.
        let apart = generation.intervals.aggregation / 4;
        for event in events {
            let target = usize::try_from(event.target).ok().and_then(|number| generation.targets.get(number));
            let (Some(target), true) = (target, event.kdamond.0 == generation.kdamond) else {
                self.stale += 1;
                continue;
            };
            self.fresh = true;
            let at = match self.passes.last {
                Some(last) if event.at.saturating_duration_since(last) <= apart => last,
                _ => {
                    self.physical = Physical::default();
                    self.passes.begin(event.at)
                }
            };
            match target.pid {
                Some(pid) => {
                    let weight = (event.nr_accesses as f32 / samples).min(1.0);
                    out.push(Touch { pid, range: event.range, kind: TouchKind::Access, weight, at });
                }
                None => self.physical.add(event),
            }
        }
    }

    /// Achieved share of the sampling that was asked for: 1 where kdamond keeps up. `None` before the second
    /// aggregation of a generation.
    pub fn sampling_ratio(&self) -> Option<f64> {
        let (generation, first, last) = (self.generation.as_ref()?, self.passes.first?, self.passes.last?);
        let aggregations = self.passes.count.checked_sub(1).filter(|&count| count > 0)?;
        let asked = generation.intervals.aggregation.as_secs_f64() * aggregations as f64;
        Some(asked / last.duration_since(first).as_secs_f64())
    }

    /// What the newest aggregation of physical addresses saw.
    pub fn physical(&self) -> Physical {
        self.physical
    }

    /// Aggregations seen of this generation.
    pub fn aggregations(&self) -> u64 {
        self.passes.count
    }

    /// Whether an event came since the last call.
    pub fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }
}

impl Physical {
    fn add(&mut self, event: &DamonRegion) {
        self.looked_at += event.range.bytes();
        if event.nr_accesses > 0 {
            self.accessed += event.range.bytes();
        }
    }
}

impl Passes {
    fn begin(&mut self, at: Instant) -> Instant {
        self.first.get_or_insert(at);
        self.last = Some(at);
        self.count += 1;
        at
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use crate::{
        source::damon::{Intervals, Target},
        units::{Pid, Range},
    };

    fn reading() -> Snapshots {
        let target = |pid| Target { pid: Some(Pid(pid)), ranges: vec![Range::new(0, 4096)] };
        let mut snapshots = Snapshots::default();
        snapshots.begin(Generation {
            kdamond: 9,
            targets: vec![target(100), target(200)],
            intervals: Intervals { sampling: Duration::from_millis(50), aggregation: Duration::from_secs(1) },
            regions: 2,
            since: Instant::now(),
        });
        snapshots
    }

    fn event(at: Instant, kdamond: u32, target: u64, nr_accesses: u32) -> DamonRegion {
        let range = Range::new(0, 4096);
        DamonRegion { kdamond: Pid(kdamond), target, range, nr_accesses, age: 0, nr_regions: 1, at }
    }

    #[test]
    fn target_numbers_become_processes_and_counts_become_shares() {
        let (mut snapshots, mut touches, at) = (reading(), Vec::new(), Instant::now());
        let events = [event(at, 9, 0, 10), event(at + Duration::from_micros(9), 9, 1, 99)];
        snapshots.touches(&events, &mut touches);
        let shares: Vec<_> = touches.iter().map(|touch| (touch.pid.0, touch.weight)).collect();
        assert_eq!(shares, [(100, 0.5), (200, 1.0)]);
        assert_eq!(touches[0].at, touches[1].at, "one aggregation, one time");
    }

    #[test]
    fn physical_addresses_add_up_by_aggregation_and_touch_nobody() {
        let (mut snapshots, mut touches, at) = (reading(), Vec::new(), Instant::now());
        let mut generation = snapshots.generation().unwrap().clone();
        generation.targets = vec![Target { pid: None, ranges: vec![Range::new(0, 8192)] }];
        snapshots.begin(generation);
        let pass = |at, counts: [u32; 2]| counts.map(|count| event(at, 9, 0, count));
        snapshots.touches(&pass(at, [3, 1]), &mut touches);
        snapshots.touches(&pass(at + Duration::from_secs(1), [0, 2]), &mut touches);
        assert!(touches.is_empty() && snapshots.take_fresh());
        assert_eq!(snapshots.physical(), Physical { looked_at: 8192, accessed: 4096 });
    }

    #[test]
    fn other_kdamonds_and_unknown_targets_are_counted_not_used() {
        let (mut snapshots, mut touches, at) = (reading(), Vec::new(), Instant::now());
        snapshots.touches(&[event(at, 8, 0, 1), event(at, 9, 7, 1)], &mut touches);
        assert!(touches.is_empty() && !snapshots.take_fresh());
        assert_eq!(snapshots.stale, 2);
    }

    #[test]
    fn a_late_kdamond_shows_in_the_sampling_ratio() {
        let (mut snapshots, mut touches, start) = (reading(), Vec::new(), Instant::now());
        for pass in 0..5 {
            let at = start + Duration::from_secs(2 * pass);
            snapshots.touches(&[event(at, 9, 0, 0), event(at + Duration::from_millis(5), 9, 1, 0)], &mut touches);
        }
        assert_eq!(snapshots.aggregations(), 5);
        assert!((snapshots.sampling_ratio().unwrap() - 0.5).abs() < 1e-9);
    }
}
