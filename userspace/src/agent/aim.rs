//! What DAMON is aimed at: when the memory of the jobs has changed so much that monitoring should begin anew with it.
//!
//! A new aim costs the aggregation under way, so it is worth it only for a real change, and not too often: a young job
//! changes all the time, an old one hardly. The spacing grows with the age of the job (ours).

use std::time::{Duration, Instant};

use crate::{
    host::Host,
    job::memory::Memory,
    source::damon::{Intervals, Target},
    units::{BLOCK, NodeId, PAGE, Pid, Range, join},
};

/// Processes with less are left out, unless all have less: interpreters' helpers, shells, launchers.
const SMALL: u64 = 8 << 20;
/// A hole up to this is watched with what is around it: a region less costs more than it finds.
const GAP: u64 = BLOCK;
/// The part of the memory that must be new or gone, at least.
const CHANGE: f64 = 0.04;
const LONGEST_SPACING: Duration = Duration::from_secs(10);

/// The current aim.
#[derive(Debug)]
pub struct Aim {
    targets: Vec<Target>,
    intervals: Option<Intervals>,
    at: Option<Instant>,
    born: Instant,
}

impl Aim {
    /// Nothing aimed at yet; the job begins now.
    pub fn new(now: Instant) -> Self {
        Self { targets: Vec::new(), intervals: None, at: None, born: now }
    }

    /// The monitor has stopped: aim again at the next chance.
    pub fn lost(&mut self) {
        (self.targets, self.intervals, self.at) = (Vec::new(), None, None);
    }

    /// The targets to watch from now on, where they should change to what is `wanted`.
    pub fn next(&mut self, wanted: Vec<Target>, intervals: Intervals, now: Instant) -> Option<Vec<Target>> {
        let young = now.duration_since(self.born) / 4;
        let spacing = (intervals.aggregation * 3).max(young).min(LONGEST_SPACING.max(intervals.aggregation * 3));
        let other_intervals = self.intervals.is_some_and(|before| before != intervals);
        if !other_intervals && self.at.is_some_and(|at| now.duration_since(at) < spacing) {
            return None;
        }
        let total: u64 = wanted.iter().map(Target::bytes).sum();
        if total == 0 || (!other_intervals && (difference(&self.targets, &wanted) as f64) < total as f64 * CHANGE) {
            return None;
        }
        (self.targets, self.intervals, self.at) = (wanted.clone(), Some(intervals), Some(now));
        Some(wanted)
    }
}

/// The processes' movable memory.
pub fn targets(memory: &Memory) -> Vec<Target> {
    let of = |pid: Pid| {
        let ranges = memory.residents_of(pid).iter().map(|resident| resident.range);
        Target { pid: Some(pid), ranges: join(ranges, GAP) }
    };
    let all: Vec<Target> = memory.pids().map(of).filter(|target| target.bytes() > 0).collect();
    let large = all.iter().any(|target| target.bytes() >= SMALL);
    all.into_iter().filter(|target| !large || target.bytes() >= SMALL).collect()
}

/// Where the kernel monitors physical addresses alone: all ranges of all lower tiers. DAMON takes one target then.
pub fn physical(host: &Host) -> Vec<Target> {
    let mut ranges: Vec<Range> = host.lower().0.iter().flat_map(|id| node_ranges(host, *id)).collect();
    ranges.sort();
    vec![Target { pid: None, ranges }]
}

/// The physical addresses of a node, ascending; whole pages, which firmware's ranges need not be.
pub fn node_ranges(host: &Host, node: NodeId) -> Vec<Range> {
    let ranges = host.nodes.get(&node).into_iter().flat_map(|node| &node.phys_ranges);
    let whole = ranges.map(|range| Range::new(range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE));
    whole.filter(|range| range.bytes() > 0).collect()
}

/// Bytes that are in one of the two and not in the other.
fn difference(before: &[Target], after: &[Target]) -> u64 {
    let common: u64 = after
        .iter()
        .filter_map(|new| Some((before.iter().find(|old| old.pid == new.pid)?, new)))
        .map(|(old, new)| overlap(&old.ranges, &new.ranges))
        .sum();
    let bytes = |targets: &[Target]| targets.iter().map(Target::bytes).sum::<u64>();
    bytes(before) + bytes(after) - 2 * common
}

/// Bytes common to two ascending lists.
fn overlap(a: &[Range], b: &[Range]) -> u64 {
    let (mut i, mut j, mut bytes) = (0, 0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        bytes += x.intersect(y).map_or(0, |common| common.bytes());
        if x.end < y.end { i += 1 } else { j += 1 }
    }
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::*;
    use crate::{host::PhysRange, units::NodeId};

    fn target(pid: u32, ranges: &[(u64, u64)]) -> Target {
        Target { pid: Some(Pid(pid)), ranges: ranges.iter().map(|&(start, end)| Range::new(start, end)).collect() }
    }

    #[test]
    fn every_physical_range_of_the_lower_tier_is_watched_in_one_target() {
        let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/host/numa-6.12");
        let mut host = Host::read(&recorded).unwrap();
        let lower: Vec<NodeId> = host.lower().0.into_iter().collect();
        let [node] = lower[..] else { panic!("{lower:?}") };
        let split = [(9, 12), (1, 2), (4, 8)].map(|(start, end)| Range::new(start << 30, end << 30));
        let torn = Range::new(split[1].start - 7, split[1].end + 0xc00);
        host.nodes.get_mut(&node).unwrap().phys_ranges =
            [split[0], torn, split[2]].iter().map(|range| PhysRange { start: range.start, end: range.end }).collect();
        let [target] = &physical(&host)[..] else { panic!("DAMON takes one target") };
        assert_eq!((target.pid, &target.ranges[..]), (None, &[split[1], split[2], split[0]][..]));
    }

    #[test]
    fn the_difference_counts_new_gone_and_moved_bytes() {
        let before = [target(1, &[(0, 100), (200, 300)]), target(2, &[(0, 50)])];
        assert_eq!(difference(&before, &before), 0);
        let after = [target(1, &[(50, 250)])];
        // Of 250 before and 200 after, 50..100 and 200..250 are common.
        assert_eq!(difference(&before, &after), 250);
        assert_eq!(difference(&[], &after), 200);
    }
}
