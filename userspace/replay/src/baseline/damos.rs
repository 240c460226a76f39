//! Modelled after DAMOS with quota goals: `migrate_hot` and `migrate_cold` as damo's `mem_tier.sh` and the kernel's
//! `samples/damon/mtier.c` set them up (Linux 6.16).
//!
//! **Promotion.** Regions of the lower node accessed in 5 % of the samples or more, hottest first; the goal is
//! `node_mem_used_bp`: 99.7 % of DRAM in use. **Demotion.** Regions of DRAM that were not accessed, idle longest first;
//! the goal is `node_mem_free_bp`: 0.5 % of DRAM free.
//!
//! **Quota.** Each second the size that a scheme may move is corrected by how far its goal is (`mm/damon/core.c`,
//! `damon_feed_loop_next_input`). It starts at one byte, so that it takes half a minute to reach the most, 200 MB:
//!
//! ```text
//! score = 10000 · current / target
//! size' = size + size · (10000 - score) / 10000      from 1 byte to 200 MB
//! ```

use super::{Plan, by_greatest};
use crate::policy::{Move, Policy, View};

/// Access rate from which a region is hot.
const HOT: f32 = 0.05;
/// Bytes a second at most.
pub(super) const QUOTA: f64 = 200e6;
pub(super) const LEAST: f64 = 1.0;
pub(super) const USED_BP: f64 = 9970.0;
pub(super) const FREE_BP: f64 = 50.0;

/// Two schemes.
#[derive(Clone, Debug)]
pub struct Damos {
    promote: f64,
    demote: f64,
    idle: Vec<f64>,
}

impl Damos {
    /// Quotas at their floor.
    pub fn new(regions: usize) -> Self {
        Self { promote: LEAST, demote: LEAST, idle: vec![0.0; regions] }
    }
}

/// The next size for one that scored so.
pub(super) fn corrected(size: f64, current_bp: f64, target_bp: f64) -> f64 {
    let score = 10_000.0 * current_bp / target_bp;
    (size + size * (10_000.0 - score) / 10_000.0).clamp(LEAST, QUOTA)
}

impl Policy for Damos {
    fn name(&self) -> String {
        "DAMOS goals".into()
    }

    fn decide(&mut self, view: &View) -> Vec<Move> {
        let seconds = view.interval as f64 / 1e9;
        for (idle, seen) in self.idle.iter_mut().zip(view.regions) {
            *idle = if seen.heat > 0.0 || !seen.alive { 0.0 } else { *idle + seconds };
        }
        let free_bp = 10_000.0 * view.free() as f64 / view.capacity.max(1) as f64;
        self.promote = corrected(self.promote, 10_000.0 - free_bp, USED_BP);
        self.demote = corrected(self.demote, free_bp, FREE_BP);
        let mut plan = Plan::new(view);
        let mut left = (self.demote * seconds) as u64;
        for region in by_greatest(view.alive().filter(|&region| self.idle[region] > 0.0), |r| self.idle[r]) {
            left -= plan.demote(region, left);
        }
        let mut left = (self.promote * seconds) as u64;
        let hot = view.alive().filter(|&region| view.regions[region].heat >= HOT);
        for region in by_greatest(hot, |region| f64::from(view.regions[region].heat)) {
            left -= plan.promote(region, left);
        }
        plan.moves
    }
}
