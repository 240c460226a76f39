//! Modelled after memtierd's heat policy (intel/memtierd, `pkg/memtier/counters_heatmap.go` and `policy_heat.go`).
//!
//! **Heat.** With the tracker's accesses a page since the last look, after `s` seconds,
//!
//! ```text
//! heat = accesses + heat · HeatRetention^s, at most HeatMax        HeatMax 1, HeatRetention 0.9513
//! class = heat · HeatClasses / HeatMax, rounded down               HeatClasses 10
//! ```
//!
//! **Moves.** Ranges are gone through hottest first. A class has a list of nodes; here the upper half has DRAM and the
//! lower half CXL (the mapping is the user's to write, there is no default). A range that is not on a node of its class
//! is moved to one if there is room. The mover does 200 MB a second.

use super::{Plan, by_greatest};
use crate::policy::{Move, Policy, View};

const RETENTION: f64 = 0.9513;
const CLASSES: usize = 10;
/// The mover's bandwidth: 200 MB/s in the sample configuration.
const RATE: u64 = 200_000_000;

/// A heat map.
#[derive(Clone, Debug)]
pub struct Memtierd {
    heat: Vec<f64>,
}

impl Memtierd {
    /// All cold.
    pub fn new(regions: usize) -> Self {
        Self { heat: vec![0.0; regions] }
    }
}

impl Policy for Memtierd {
    fn name(&self) -> String {
        "memtierd heat".into()
    }

    fn decide(&mut self, view: &View) -> Vec<Move> {
        let seconds = view.interval as f64 / 1e9;
        for (heat, seen) in self.heat.iter_mut().zip(view.regions) {
            *heat = if seen.alive { (f64::from(seen.heat) + *heat * RETENTION.powf(seconds)).min(1.0) } else { 0.0 };
        }
        let mut plan = Plan::new(view);
        let mut left = (RATE as f64 * seconds) as u64;
        for region in by_greatest(view.alive(), |region| self.heat[region]) {
            let class = ((self.heat[region] * CLASSES as f64) as usize).min(CLASSES - 1);
            left -= if class >= CLASSES / 2 { plan.promote(region, left) } else { plan.demote(region, left) };
        }
        plan.moves
    }
}
