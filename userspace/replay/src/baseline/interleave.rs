//! Modelled after weighted interleave (`MPOL_WEIGHTED_INTERLEAVE`, Linux 6.9) with weights in proportion to bandwidth.
//!
//! **Rule.** Of each new region's pages the share
//!
//! ```text
//! w = read rate of DRAM / (read rate of DRAM + read rate of CXL)
//! ```
//!
//! goes to DRAM as long as there is room, so that a stream over all of it ends on both tiers at the same time
//! (`Documentation/ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave`). Nothing moves.

use tensortier_model::Bytes;

use crate::{
    cost::Costs,
    policy::{Move, Policy, Seen, View},
};

/// Splits what is new, and never moves anything.
#[derive(Clone, Copy, Debug)]
pub struct Interleave {
    share: f64,
}

impl Interleave {
    /// With weights for these tiers.
    pub fn new(costs: &Costs) -> Self {
        Self { share: costs.top.read / (costs.top.read + costs.lower.read) }
    }
}

impl Policy for Interleave {
    fn name(&self) -> String {
        "weighted interleave".into()
    }

    fn place(&mut self, _: usize, new: &Seen, room: Bytes) -> Bytes {
        ((new.bytes as f64 * self.share) as Bytes).min(room)
    }

    fn decide(&mut self, _: &View) -> Vec<Move> {
        Vec::new()
    }
}
