//! How many pages to ask for in one call, and in which segments, so that the job's threads wait no longer than the cap.
//!
//! A thread that touches a page under migration waits for the kernel batch that the page is in: `migrate_pages` unmaps up
//! to [`KERNEL_BATCH`] base pages, copies them, and maps them again (mm/migrate.c, since 6.3; older kernels go page by
//! page). A huge page is a batch of its own. Base pages that cost much are cut into smaller batches by fences: the kernel
//! migrates what it has queued whenever it meets an address that it cannot queue, and address 0 never can be.
//!
//! So the wait is set by the segment and the throughput by the call: each call first drains every CPU's LRU caches and
//! sleeps for a grace period, while nothing is unmapped and nobody waits. For the same reason a segment's cost is counted
//! in the time that the call was on the CPU.

use std::{collections::HashMap, time::Duration};

use crate::units::{NodeId, PAGE};

/// NR_MAX_BATCHED_MIGRATION: the base pages that the kernel unmaps at once.
const KERNEL_BATCH: u64 = 512;
/// How far above the mean one segment of a call is allowed for.
const MARGIN: f64 = 1.5;
/// The share of the cap to aim at, margin included: calls of one size vary.
const AIM: f64 = 0.6;
/// The longest call, so that a stop is soon heard and the LRU caches come back.
const LONGEST_CALL: Duration = Duration::from_millis(400);
/// The size of the first segment and the first call, before anything is known.
const FIRST: u64 = 32;
/// Weight of the newest call in the mean cost of a page.
const NEWEST: f64 = 0.3;

/// Between which nodes, and in which page size: what a page costs to move depends on these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// From this node.
    pub from: NodeId,
    /// To this node.
    pub to: NodeId,
    /// Base pages of one page of the lane: 1 or 512.
    pub unit: u64,
}

/// What one call took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// By the clock.
    pub wall: Duration,
    /// On the CPU.
    pub busy: Duration,
}

/// What is known of a lane.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Base pages of a call.
    call: u64,
    /// Seconds of CPU time that a base page costs.
    cost: f64,
}

/// The sizes of each lane, learned from the calls and kept across plans.
#[derive(Debug)]
pub struct Pace {
    cap: Duration,
    largest: u64,
    lanes: HashMap<Lane, Known>,
}

impl Pace {
    /// No segment is to take longer than `cap`, and no call to ask for more than `largest` bytes.
    pub fn new(cap: Duration, largest: u64) -> Self {
        Self { cap, largest: (largest / PAGE).max(1), lanes: HashMap::new() }
    }

    /// Pages (of the lane's size) to ask for in the next call; never 0.
    pub fn call(&self, lane: Lane) -> usize {
        let base = self.lanes.get(&lane).map_or(FIRST, |known| known.call);
        (base / lane.unit).max(1) as usize
    }

    /// Pages (of the lane's size) between two fences of it; never 0.
    pub fn segment(&self, lane: Lane) -> usize {
        let room = self.cap.as_secs_f64() * AIM / MARGIN;
        let base = self.lanes.get(&lane).map_or(FIRST, |known| (room / known.cost.max(1e-12)) as u64);
        if lane.unit >= KERNEL_BATCH { 1 } else { base.clamp(1, KERNEL_BATCH) as usize }
    }

    /// How long a thread can have waited for a page of a call of `pages` base pages, `segment` of them at once.
    pub fn stall(pages: u64, segment: u64, took: Took) -> Duration {
        took.busy.mul_f64((MARGIN * segment as f64 / pages.max(1) as f64).min(1.0))
    }

    /// Whether single pages take longer than the cap in the mean: smaller a segment cannot be.
    pub fn beyond(&self, lane: Lane) -> bool {
        self.lanes.get(&lane).is_some_and(|known| known.cost * lane.unit as f64 > self.cap.as_secs_f64())
    }

    /// Learns from a call.
    pub fn learn(&mut self, lane: Lane, pages: u64, took: Took) {
        let each = |time: Duration| time.as_secs_f64() / pages.max(1) as f64;
        let first = Known { call: FIRST.max(lane.unit), cost: each(took.busy) };
        let known = self.lanes.entry(lane).or_insert(first);
        known.cost += NEWEST * (each(took.busy) - known.cost);
        // A call smaller than asked for (the end of a move) says nothing against the size.
        let fits = LONGEST_CALL.as_secs_f64() / each(took.wall).max(1e-12);
        let grown = if pages < known.call { known.call } else { known.call * 2 };
        // One slow call may be the host's doing: it halves the size at most, and growth comes back as fast.
        let next = (fits as u64).max(known.call / 2).min(grown);
        known.call = next.clamp(lane.unit, self.largest.max(lane.unit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: Duration = Duration::from_millis(20);

    fn lane(unit: u64) -> Lane {
        Lane { from: NodeId(1), to: NodeId(0), unit }
    }

    /// Runs full calls that sleep for `fixed` µs and then cost `each` µs a base page; gives call and segment as they
    /// settle, and the longest stall after the first ten calls.
    fn settle(unit: u64, fixed: f64, each: f64) -> (u64, u64, Duration) {
        let mut pace = Pace::new(CAP, 64 << 20);
        let mut longest = Duration::ZERO;
        for call in 0..60 {
            let (pages, segment) = (pace.call(lane(unit)) as u64 * unit, pace.segment(lane(unit)) as u64 * unit);
            let busy = Duration::from_secs_f64(pages as f64 * each * 1e-6);
            let took = Took { wall: busy + Duration::from_secs_f64(fixed * 1e-6), busy };
            if call > 10 {
                longest = longest.max(Pace::stall(pages, segment, took));
            }
            pace.learn(lane(unit), pages, took);
        }
        (pace.call(lane(unit)) as u64 * unit, pace.segment(lane(unit)) as u64 * unit, longest)
    }

    #[test]
    fn segments_stay_under_the_cap_and_calls_pay_their_own_cost_back() {
        for (fixed, each) in [(500.0, 30.0), (5000.0, 100.0), (20_000.0, 400.0)] {
            let (pages, segment, longest) = settle(1, fixed, each);
            assert!(longest <= CAP, "{each} µs a page: {longest:?}");
            assert!(segment as f64 * each > 5000.0, "{each} µs a page: only {segment} at once");
            assert!(fixed < 0.15 * pages as f64 * each, "{each} µs a page: only {pages} a call");
        }
    }

    #[test]
    fn where_pages_are_cheap_the_kernels_own_batch_is_the_segment() {
        let (pages, segment, longest) = settle(1, 100.0, 2.0);
        assert!(pages > 8 * KERNEL_BATCH && segment == KERNEL_BATCH, "{pages} {segment}");
        assert!(longest <= CAP, "{longest:?}");
    }

    #[test]
    fn a_huge_page_is_a_segment_however_dear() {
        assert_eq!(settle(512, 0.0, 2000.0).0, 512);
        let (pages, segment, _) = settle(512, 3000.0, 10.0);
        assert!(pages >= 16 * 512 && segment == 512, "{pages}");
        let mut pace = Pace::new(CAP, 1);
        let second = Took { wall: Duration::from_secs(1), busy: Duration::from_secs(1) };
        for unit in [1, 512] {
            pace.learn(lane(unit), 1024, second);
        }
        assert!(pace.call(lane(512)) == 1 && pace.beyond(lane(512)) && !pace.beyond(lane(1)));
    }

    #[test]
    fn the_end_of_a_move_does_not_shrink_the_call() {
        let mut pace = Pace::new(CAP, 64 << 20);
        let took =
            |pages: u64| Took { wall: Duration::from_micros(40 * pages), busy: Duration::from_micros(40 * pages) };
        for _ in 0..20 {
            let pages = pace.call(lane(1)) as u64;
            pace.learn(lane(1), pages, took(pages));
        }
        let before = pace.call(lane(1));
        pace.learn(lane(1), 3, took(3));
        assert_eq!(pace.call(lane(1)), before);
    }
}
