//! Modelled after NUMA balancing as memory tiering (`kernel.numa_balancing=2`, Huang, Linux 5.18 and 6.1) and TPP
//! (Maruf et al., ASPLOS '23, section 5).
//!
//! **Scan.** Each second 256 MiB of a job's addresses are gone through in turn (`scan_size_mb` and
//! `scan_period_min_ms`) and their pages on the lower tier unmapped; the next access to each faults. A region is taken
//! whole when the scan has come past its end.
//!
//! **Promotion.** NUMA balancing promotes a page whose fault follows the scan by less than `hot_threshold_ms` (1 s: the
//! next interval). TPP promotes it if it is on the active list, which takes another access not long before: here within
//! ten intervals. Both only while there is free memory. The rate limit of 64 GiB/s is never reached.
//!
//! **Demotion.** kswapd demotes from the tail of the LRU list, that is what was touched longest ago, until 2 % of the
//! node are free and what failed promotions asked for, so that the next ones find room without waiting.

use super::{Plan, by_greatest};
use crate::policy::{Move, Policy, View};

/// Share of the top tier that is kept free.
const HEADROOM: f64 = 0.02;
/// Bytes that are scanned each second.
const SCAN: f64 = 256.0 * (1 << 20) as f64;
/// A region touched so many intervals ago is still on the active list.
const ACTIVE: u64 = 10;

/// Hint faults and an LRU list.
#[derive(Clone, Debug)]
pub struct Tpp {
    twice: bool,
    entries: Vec<Entry>,
    interval: u64,
    /// Where the scan is, and how many bytes it may do.
    cursor: usize,
    scan: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The last two intervals that touched it.
    before: u64,
    last: u64,
    /// The interval after which it was unmapped.
    unmapped: Option<u64>,
}

impl Tpp {
    /// The kernel's rule: an early fault.
    pub fn numab(regions: usize) -> Self {
        Self { twice: false, entries: vec![Entry::default(); regions], interval: ACTIVE, cursor: 0, scan: 0.0 }
    }

    /// TPP's rule: another access not long before.
    pub fn new(regions: usize) -> Self {
        Self { twice: true, ..Self::numab(regions) }
    }

    /// Takes in the accesses of an interval. Returns the regions that faulted and are hot.
    fn faults(&mut self, view: &View) -> Vec<usize> {
        self.interval += 1;
        let mut hot = Vec::new();
        for (region, (entry, seen)) in self.entries.iter_mut().zip(view.regions).enumerate() {
            if !seen.alive {
                *entry = Entry::default();
            } else if seen.heat > 0.0 {
                (entry.before, entry.last) = (entry.last, self.interval);
                if let Some(unmapped) = entry.unmapped.take() {
                    let (soon, again) = (self.interval - unmapped <= 1, self.interval - entry.before <= ACTIVE);
                    hot.extend((if self.twice { again } else { soon }).then_some(region));
                }
            }
        }
        hot
    }

    /// Unmaps what the scan comes past.
    fn scan(&mut self, view: &View) {
        self.scan += SCAN * view.interval as f64 / 1e9;
        for _ in 0..view.regions.len() {
            let region = self.cursor % view.regions.len();
            let seen = view.regions[region];
            if seen.bytes as f64 > self.scan {
                return;
            }
            if seen.alive {
                self.scan -= seen.bytes as f64;
                self.entries[region].unmapped = (seen.top < seen.bytes).then_some(self.interval);
            }
            self.cursor = region + 1;
        }
        // Once around is all there is to do.
        self.scan = 0.0;
    }
}

impl Policy for Tpp {
    fn name(&self) -> String {
        if self.twice { "TPP" } else { "NUMA balancing" }.into()
    }

    fn decide(&mut self, view: &View) -> Vec<Move> {
        let hot = self.faults(view);
        self.scan(view);
        let mut plan = Plan::new(view);
        let mut failed = 0;
        for region in hot {
            plan.promote(region, u64::MAX);
            failed += plan.below(region);
        }
        let headroom = (view.capacity as f64 * HEADROOM) as u64;
        let age = |region: usize| (self.interval - self.entries[region].last) as f64;
        plan.make_room(headroom.max(failed), &mut by_greatest(view.alive(), age).into_iter());
        plan.moves
    }
}
