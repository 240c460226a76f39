//! Runs again what a forgotten storage is made of.

use std::collections::BTreeSet;

use super::Planner;
use crate::{
    graph::{OpId, StorageId},
    swapadvisor::Infeasible,
};

impl Planner<'_> {
    /// Makes `s` again: the operators it takes, in traced order, which is a valid one.
    pub(super) fn replay(&mut self, s: StorageId) -> Result<(), Infeasible> {
        let ops = self.missing(s)?;
        let graph = self.graph;
        // What a later one reads must not leave before.
        for &op in &ops {
            graph.ops[op].reads.iter().for_each(|&s| self.slots[s].locks += 1);
        }
        for &op in &ops {
            let of = &graph.ops[op];
            for &s in &of.reads {
                if !self.slots[s].resident {
                    self.copy_in(s)?;
                }
            }
            // Neither may its results, before all of them have room.
            of.writes.iter().for_each(|&s| self.slots[s].locks += 1);
            for &s in &of.writes {
                self.allocate(s)?;
            }
            self.run(op);
            of.writes.iter().chain(&of.reads).for_each(|&s| self.slots[s].locks -= 1);
            self.bury(&of.touches);
        }
        Ok(())
    }

    fn missing(&self, s: StorageId) -> Result<BTreeSet<OpId>, Infeasible> {
        let mut ops = BTreeSet::new();
        let mut open = vec![s];
        while let Some(s) = open.pop() {
            let slot = &self.slots[s];
            if slot.resident || slot.saved {
                continue;
            }
            let op = self.makers.of[s].ok_or(Infeasible::Op(self.at))?;
            if ops.insert(op) {
                open.extend(&self.graph.ops[op].reads);
            }
        }
        Ok(ops)
    }
}
