//! Modelled after MEMTIS (Lee et al., SOSP '23, sections 4.1 and 4.2).
//!
//! **Histogram.** The PMU's samples are counted for each page. Bin `n` of the histogram holds the bytes whose count is
//! in `2^n .. 2^(n+1)`. Every 20 intervals all counts are halved, which shifts the bins by one.
//!
//! **Thresholds.** `T_hot` is the lowest bin such that all bins from it on fit into the top tier. If they fill less
//! than 90 % of it, pages of the next bin below are warm and stay where they are; otherwise nothing is warm.
//!
//! **Moves.** Hot pages below are promoted. Cold pages make room for them, and warm ones where those do not suffice.

use super::{Plan, by_greatest};
use crate::policy::{Move, Policy, View};

/// Intervals between coolings (the source: two million samples; ours in time).
const COOLING: u64 = 20;
/// Share of the top tier under which a warm bin exists.
const ALPHA: f64 = 0.9;

/// Counts of all regions.
#[derive(Clone, Debug)]
pub struct Memtis {
    /// Accesses of a page of each region.
    counts: Vec<f64>,
    interval: u64,
}

impl Memtis {
    /// Nothing counted yet.
    pub fn new(regions: usize) -> Self {
        Self { counts: vec![0.0; regions], interval: 0 }
    }

    fn count(&mut self, view: &View) {
        self.interval += 1;
        let cools = self.interval.is_multiple_of(COOLING);
        for (count, seen) in self.counts.iter_mut().zip(view.regions) {
            *count += seen.lines as f64 / (seen.bytes as f64 / 4096.0).max(1.0);
            if !seen.alive {
                *count = 0.0;
            } else if cools {
                *count /= 2.0;
            }
        }
    }

    fn bin(&self, region: usize) -> i32 {
        if self.counts[region] < 1.0 { -1 } else { self.counts[region].log2() as i32 }
    }

    /// The hot and the warm threshold.
    fn thresholds(&self, view: &View) -> (i32, i32) {
        let mut bytes = [0u64; 64];
        for region in view.alive() {
            if let Ok(bin) = usize::try_from(self.bin(region)) {
                bytes[bin.min(63)] += view.regions[region].bytes;
            }
        }
        let (mut hot, mut sum) = (64, 0);
        for bin in (0..64).rev() {
            if sum + bytes[bin] > view.capacity {
                break;
            }
            sum += bytes[bin];
            hot = bin as i32;
        }
        let warm = if (sum as f64) < ALPHA * view.capacity as f64 { hot - 1 } else { hot };
        (hot, warm)
    }
}

impl Policy for Memtis {
    fn name(&self) -> String {
        "MEMTIS".into()
    }

    fn decide(&mut self, view: &View) -> Vec<Move> {
        self.count(view);
        let (hot, warm) = self.thresholds(view);
        let mut plan = Plan::new(view);
        let coldest = |region: usize| -self.counts[region];
        let cold = by_greatest(view.alive().filter(|&region| self.bin(region) < warm), coldest);
        let lukewarm = by_greatest(view.alive().filter(|&region| (warm..hot).contains(&self.bin(region))), coldest);
        let mut victims = cold.into_iter().chain(lukewarm);
        for region in by_greatest(view.alive().filter(|&region| self.bin(region) >= hot), |r| self.counts[r]) {
            plan.make_room(plan.below(region), &mut victims);
            plan.promote(region, u64::MAX);
        }
        plan.moves
    }
}
