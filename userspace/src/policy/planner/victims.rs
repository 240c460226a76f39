//! What leaves the top tier for something better, and where it goes.

use std::collections::BTreeMap;

use super::{Part, Planner, signed};
use crate::units::NodeId;

/// Victims that are passed over for one block, and in one plan: it must not look at all of them for each.
const PASSED_OVER: usize = 64;
const PASSED_OVER_IN_ALL: usize = 4096;

impl<'a> Planner<'a> {
    /// What may leave a node, hottest first.
    pub(super) fn victims_on(&self, node: NodeId) -> Vec<Part<'a>> {
        let mut victims: Vec<Part> = (self.view.regions.iter())
            .filter(|region| region.unmovable == 0 && region.seen >= self.rule.min_seen)
            .filter(|region| !region.expected || self.rule.gives_back)
            .filter_map(|region| self.part(region, node))
            .filter(|victim| victim.region.pages.is_none() || 2 * victim.bytes > victim.region.resident())
            .filter(|victim| !self.goes_back(victim, false))
            .collect();
        victims.sort_by(|a, b| {
            let order = b.region.expected.cmp(&a.region.expected).then(b.worth.rank().total_cmp(&a.worth.rank()));
            order.then(a.region.idle_s.total_cmp(&b.region.idle_s)).then(b.key().cmp(&a.key()))
        });
        victims
    }

    /// The blocks on `top` worth least whose leaving makes room for `candidate`, and where they go, if all are worth
    /// little enough.
    pub(super) fn victims_for(&mut self, candidate: Part<'a>, top: NodeId) -> Option<Vec<(Part<'a>, NodeId)>> {
        let best = Part { worth: candidate.worth.nothing(), ..self.next_victim(top)? };
        if !self.pays(&candidate, Some(&best)) {
            // It would pass over all of them.
            return None;
        }
        let mut short = signed(candidate.bytes) - self.room.get(&top)?;
        let mut taken: BTreeMap<NodeId, i64> = BTreeMap::new();
        let (mut chosen, mut passed_over) = (Vec::new(), 0);
        for victim in self.victims.get(&top)?.iter().rev().filter(|victim| !self.moved.contains(&victim.key())) {
            if short <= 0 || passed_over > PASSED_OVER || self.passed_over > PASSED_OVER_IN_ALL {
                break;
            }
            let beats = |more: f32, less: f32| more >= less * (1.0 + self.rule.margin);
            if !beats(candidate.worth.rank(), victim.worth.rank()) {
                return None;
            }
            // One that is hot just now, or of which little is known, is no reason to keep the next.
            let (now, then) = candidate.worth.next(&victim.worth);
            if then >= self.rule.promote_heat && !beats(now, then) || !self.pays(&candidate, Some(victim)) {
                passed_over += 1;
                self.passed_over += 1;
                continue;
            }
            let below = self.below(top, victim.bytes, &taken)?;
            *taken.entry(below).or_default() += signed(victim.bytes);
            short -= signed(victim.bytes);
            chosen.push((*victim, below));
        }
        (short <= 0).then_some(chosen)
    }

    /// The nearest lower node with room for `bytes` besides what is `taken`.
    pub(super) fn below(&self, top: NodeId, bytes: u64, taken: &BTreeMap<NodeId, i64>) -> Option<NodeId> {
        self.tiers.lower_for(top).into_iter().find(|node| {
            let room = self.room.get(node).copied().unwrap_or(0) - taken.get(node).copied().unwrap_or(0);
            room >= signed(bytes)
        })
    }

    /// The coldest block still on `node`; those that moved are dropped from the end of the list.
    pub(super) fn next_victim(&mut self, node: NodeId) -> Option<Part<'a>> {
        let victims = self.victims.get_mut(&node)?;
        while victims.last().is_some_and(|victim| self.moved.contains(&victim.key())) {
            victims.pop();
        }
        victims.last().copied()
    }
}
