//! The host's side of a plan: what leaves the device, and the tier that keeps it.

use super::{Decoder, Infeasible, decode::NOWHERE};
use crate::{
    belady::idle,
    graph::{OpId, StorageId},
    plan::Step,
};

/// Margin on the idle time that a slow tier needs; G10's default.
const MARGIN: f64 = 0.5;

impl Decoder<'_> {
    /// Copies out what has no host copy, and drops.
    pub(super) fn leave(&mut self, op: OpId, s: StorageId, bucket: u32) -> Result<(), Infeasible> {
        if self.slots[s].dirty {
            let tier = self.tier_for(s, bucket).ok_or(Infeasible::Tiers(op))?;
            self.slots[s].dirty = false;
            self.moves.push((bucket, Step::CopyOut { storage: s, tier }));
        } else {
            self.settle(op, s)?;
        }
        self.moves.push((bucket, Step::Drop(s)));
        Ok(())
    }

    /// Gives a clean storage its home on the host if it has none yet.
    pub(super) fn settle(&mut self, op: OpId, s: StorageId) -> Result<(), Infeasible> {
        if self.slots[s].tier == NOWHERE {
            let tier = self.tier_for(s, self.slots[s].bucket).ok_or(Infeasible::Tiers(op))?;
            self.home.push((s, tier));
        }
        Ok(())
    }

    /// The tier for a host copy, whose room is kept to the end of the step: the slowest that is
    /// fast enough for the time the storage is idle, so that the fast ones keep room; failing
    /// that, the first with room.
    fn tier_for(&mut self, s: StorageId, bucket: u32) -> Option<usize> {
        if self.slots[s].tier != NOWHERE {
            return Some(self.slots[s].tier.into());
        }
        let bytes = self.layout.bytes[s];
        let count = self.tier_left.len();
        let room = |tier: &usize| self.tier_left[*tier] >= bytes;
        let tier = if count == 1 {
            Some(0).filter(room)
        } else {
            let idle = idle(&self.clock, self.slots[s].next, bucket);
            let fast_enough = |tier: &usize| {
                let both_ways = self.machine.d2h(bytes, *tier) + self.machine.h2d(bytes, *tier);
                *tier > 0 && idle as f64 > both_ways as f64 * (1.0 + MARGIN)
            };
            (0..count).rev().filter(fast_enough).find(room).or_else(|| (0..count).find(room))
        }?;
        self.tier_left[tier] -= bytes;
        self.slots[s].tier = tier as u8;
        Some(tier)
    }
}
