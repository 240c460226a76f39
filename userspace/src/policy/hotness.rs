//! The `hotness` policy: fill the top tier with the hottest bytes, and move nothing that does not pay.
//!
//! **Threshold.** With `C` bytes of the top tier open to the jobs (what they have there, and what is free over the
//! headroom), the best placement under equal access costs is the `C` bytes of greatest heat: the capacity threshold of
//! MEMTIS (Lee et al., SOSP '23, section 4.2), there taken from a histogram, here from the sorted blocks themselves. It is
//! reached by taking candidates below hottest first against victims above coldest first until they meet.
//!
//! **Benefit against cost** (ours). Heat is the share of samples that found a page used, so a block moved up gains in
//! proportion to `heat · stay`, `stay` being the seconds that it is expected to stay so hot. A move costs as much as
//! [`Rule::move_cost_s`] seconds of full use. A block moves into free room where
//!
//! ```text
//! heat ≥ promote_heat    and    heat · stay ≥ move_cost_s
//! ```
//!
//! and takes a victim's place, which costs two moves, where
//!
//! ```text
//! heat ≥ (1 + margin) · victim    and    (heat - victim) · stay ≥ 2 · move_cost_s
//! ```
//!
//! **Going back.** A block that moved less than its hold ago does not go back, unless its heat has changed by
//! [`Rule::decisive`] since. Each time it does go back soon, its hold doubles and its expected stay halves.
//!
//! **Headroom.** Where less than the headroom is free, the coldest blocks leave until it is, and an eighth more; never
//! one of `promote_heat` or hotter, which would be promoted again. It waits while more than [`Rule::young_share`] of the
//! memory is young (ours): a job that is still filling its memory takes at once whatever is freed.
//!
//! **Order.** The plan is cut into slices: the demotions that a few promotions need, then those promotions. Room is
//! made just in time, so a plan that is cut short has demoted little in vain; within a slice neighbours join into one
//! range, since the mover pays for each call. Room that a slice frees below counts from the next slice on.
//!
//! A block with pinned pages stays whole: one of them stops a whole batch of the mover.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{Budget, HeldBack, Move, Plan, Reason, Recent, Tiers};
use crate::{
    hotness::{HeatView, Region},
    units::{BLOCK, NodeId, Pid, Range},
};

/// Bytes of promotions in a slice.
const SLICE: u64 = 8 * BLOCK;
/// Longest range that neighbours join into.
const JOINED: u64 = 16 * BLOCK;

/// The thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Colder blocks are never promoted.
    pub promote_heat: f32,
    /// Aggregations that must have looked at a block before it moves.
    pub min_seen: u32,
    /// A block is young until so many aggregations have looked at it.
    pub young_seen: u32,
    /// With a larger share of the bytes young the jobs are growing.
    pub young_share: f64,
    /// How much hotter than its victim a block must be, as a share of the victim's heat.
    pub margin: f32,
    /// Seconds that a block is expected to stay as hot as it is.
    pub stay_s: f32,
    /// Seconds of full use that one move costs.
    pub move_cost_s: f32,
    /// A change of heat that lets a block go back at once.
    pub decisive: f32,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            promote_heat: 0.1,
            min_seen: 2,
            young_seen: 5,
            young_share: 0.05,
            margin: 0.25,
            stay_s: 10.0,
            move_cost_s: 0.5,
            decisive: 0.5,
        }
    }
}

/// What should move now, by the default rule.
pub fn decide(view: &HeatView, tiers: &Tiers, budget: &Budget, memory: &Recent) -> Plan {
    Rule::default().decide(view, tiers, budget, memory)
}

impl Rule {
    /// What should move now.
    pub fn decide(&self, view: &HeatView, tiers: &Tiers, budget: &Budget, memory: &Recent) -> Plan {
        let mut planner = Planner::new(self, view, tiers, budget, memory);
        planner.restore_headroom();
        for candidate in planner.candidates() {
            planner.promote(candidate);
        }
        planner.end_slice();
        Plan { id: budget.plan, moves: planner.moves, held_back: planner.held_back }
    }
}

/// A region and one of the nodes that it has bytes on.
#[derive(Clone, Copy)]
struct Part<'a> {
    region: &'a Region,
    node: NodeId,
    bytes: u64,
}

impl Part<'_> {
    fn key(&self) -> (Pid, Range) {
        (self.region.pid, self.region.range)
    }
}

struct Planner<'a> {
    rule: &'a Rule,
    view: &'a HeatView,
    tiers: &'a Tiers,
    memory: &'a Recent,
    /// Bytes over the headroom of each node, as the moves so far leave it.
    room: BTreeMap<NodeId, i64>,
    /// Room that the slice's promotions free below.
    freed: BTreeMap<NodeId, i64>,
    /// What may leave each top node, hottest first: the next victim is the last.
    victims: BTreeMap<NodeId, Vec<Part<'a>>>,
    /// Regions with a move in the plan; a block with bytes on both tiers is a candidate and a victim, but moves once.
    moved: BTreeSet<(Pid, Range)>,
    budget: u64,
    demotions: Vec<Move>,
    promotions: Vec<Move>,
    moves: Vec<Move>,
    held_back: BTreeMap<HeldBack, u64>,
}

impl<'a> Planner<'a> {
    fn new(rule: &'a Rule, view: &'a HeatView, tiers: &'a Tiers, budget: &Budget, memory: &'a Recent) -> Self {
        let room =
            tiers.top.iter().chain(&tiers.lower).map(|node| (node.id, signed(node.free) - signed(node.headroom)));
        let mut planner = Self {
            rule,
            view,
            tiers,
            memory,
            room: room.collect(),
            freed: BTreeMap::new(),
            victims: BTreeMap::new(),
            moved: BTreeSet::new(),
            budget: budget.bytes,
            demotions: Vec::new(),
            promotions: Vec::new(),
            moves: Vec::new(),
            held_back: BTreeMap::new(),
        };
        for node in &tiers.top {
            planner.victims.insert(node.id, planner.victims_on(node.id));
        }
        planner
    }

    fn victims_on(&self, node: NodeId) -> Vec<Part<'a>> {
        let mut victims: Vec<Part> = (self.view.regions.iter())
            .filter(|region| region.unmovable == 0 && region.seen >= self.rule.min_seen)
            .filter_map(|region| part(region, node))
            .filter(|victim| !self.goes_back(victim.region, false))
            .collect();
        victims.sort_by(|a, b| {
            let (a, b) = (a.region, b.region);
            b.heat.total_cmp(&a.heat).then(a.idle_s.total_cmp(&b.idle_s)).then((b.pid, b.range).cmp(&(a.pid, a.range)))
        });
        victims
    }

    /// Hot parts on lower nodes that may move, hottest first. Of a block on several lower nodes only the largest part:
    /// a block moves once in a plan.
    fn candidates(&mut self) -> Vec<Part<'a>> {
        let mut candidates = Vec::new();
        for region in self.view.regions.iter().filter(|region| region.heat >= self.rule.promote_heat) {
            let parts = self.tiers.lower.iter().filter_map(|node| part(region, node.id));
            let Some(candidate) = parts.max_by_key(|part| (part.bytes, Reverse(part.node))) else { continue };
            if region.unmovable > 0 {
                self.hold_back(HeldBack::Unmovable, candidate.bytes);
            } else if region.seen < self.rule.min_seen {
                self.hold_back(HeldBack::Unproven, candidate.bytes);
            } else if self.goes_back(region, true) || !self.pays(region, region.heat, 1) {
                self.hold_back(HeldBack::PingPong, candidate.bytes);
            } else {
                candidates.push(candidate);
            }
        }
        candidates.sort_by(|a, b| b.region.heat.total_cmp(&a.region.heat));
        candidates
    }

    fn restore_headroom(&mut self) {
        let growing = self.growing();
        for node in &self.tiers.top {
            let short = -self.room.get(&node.id).copied().unwrap_or(0);
            if short <= 0 {
                continue;
            }
            if growing {
                self.hold_back(HeldBack::Unproven, short.unsigned_abs());
                continue;
            }
            let mut wanted = short + signed(node.headroom / 8);
            while wanted > 0 {
                let Some(victim) = self.next_victim(node.id) else { break };
                if victim.region.heat >= self.rule.promote_heat {
                    break;
                }
                let Some(to) = self.below(node.id, victim.bytes, &BTreeMap::new()) else {
                    self.hold_back(HeldBack::NoRoom, wanted.unsigned_abs());
                    break;
                };
                if victim.bytes > self.budget {
                    self.hold_back(HeldBack::Budget, wanted.unsigned_abs());
                    break;
                }
                self.demote(victim, to, Reason::Headroom);
                wanted -= signed(victim.bytes);
            }
        }
    }

    fn promote(&mut self, candidate: Part<'a>) {
        if self.moved.contains(&candidate.key()) {
            return;
        }
        if candidate.bytes > self.budget {
            return self.hold_back(HeldBack::Budget, candidate.bytes);
        }
        let tops = self.tiers.top_for(candidate.region.pid, candidate.node);
        let fits =
            |planner: &Self, to: &NodeId| planner.room.get(to).is_some_and(|room| *room >= signed(candidate.bytes));
        if let Some(to) = tops.iter().find(|to| fits(self, to)) {
            return self.push_promotion(candidate, *to);
        }
        for to in tops {
            // What the slice frees below may be just the room that a victim needs.
            let mut victims = self.victims_for(candidate, to);
            if victims.is_none() && !self.freed.is_empty() {
                self.end_slice();
                victims = self.victims_for(candidate, to);
            }
            let Some(victims) = victims else { continue };
            let bytes = candidate.bytes + victims.iter().map(|(victim, _)| victim.bytes).sum::<u64>();
            if bytes > self.budget {
                return self.hold_back(HeldBack::Budget, candidate.bytes);
            }
            for (victim, below) in victims {
                self.demote(victim, below, Reason::MakeRoom);
            }
            return self.push_promotion(candidate, to);
        }
        self.hold_back(HeldBack::NoRoom, candidate.bytes);
    }

    /// The coldest blocks on `top` whose leaving makes room for `candidate`, and where they go, if all are cold enough.
    fn victims_for(&mut self, candidate: Part<'a>, top: NodeId) -> Option<Vec<(Part<'a>, NodeId)>> {
        self.next_victim(top)?;
        let mut short = signed(candidate.bytes) - self.room.get(&top)?;
        let mut taken: BTreeMap<NodeId, i64> = BTreeMap::new();
        let mut chosen = Vec::new();
        for victim in self.victims.get(&top)?.iter().rev().filter(|victim| !self.moved.contains(&victim.key())) {
            if short <= 0 {
                break;
            }
            let (hot, cold) = (candidate.region.heat, victim.region.heat);
            let colder = hot >= cold * (1.0 + self.rule.margin) && self.pays(candidate.region, hot - cold, 2);
            if !colder {
                return None;
            }
            let below = self.below(top, victim.bytes, &taken)?;
            *taken.entry(below).or_default() += signed(victim.bytes);
            short -= signed(victim.bytes);
            chosen.push((*victim, below));
        }
        (short <= 0).then_some(chosen)
    }

    /// The nearest lower node with room for `bytes` besides what is `taken`.
    fn below(&self, top: NodeId, bytes: u64, taken: &BTreeMap<NodeId, i64>) -> Option<NodeId> {
        self.tiers.lower_for(top).into_iter().find(|node| {
            let room = self.room.get(node).copied().unwrap_or(0) - taken.get(node).copied().unwrap_or(0);
            room >= signed(bytes)
        })
    }

    /// The coldest block still on `node`; those that moved are dropped from the end of the list.
    fn next_victim(&mut self, node: NodeId) -> Option<Part<'a>> {
        let victims = self.victims.get_mut(&node)?;
        while victims.last().is_some_and(|victim| self.moved.contains(&victim.key())) {
            victims.pop();
        }
        victims.last().copied()
    }

    /// Whether so much of the memory is young that the jobs must be filling it.
    fn growing(&self) -> bool {
        let young = self.view.regions.iter().filter(|region| region.seen < self.rule.young_seen);
        let (young, all): (u64, u64) =
            (young.map(Region::resident).sum(), self.view.regions.iter().map(Region::resident).sum());
        young as f64 > all as f64 * self.rule.young_share
    }

    /// Whether a move up (or down) would undo a recent one without a decisive change of heat.
    fn goes_back(&self, region: &Region, up: bool) -> bool {
        let Some(last) = self.memory.last(region.pid, region.range) else { return false };
        let (went_up, went_down) = (self.tiers.is_top(last.to), self.tiers.is_top(last.from));
        let undoes = if up { went_down && !went_up } else { went_up && !went_down };
        let held = self.view.at.saturating_duration_since(last.at) < self.memory.hold(last.offences);
        let change = if up { region.heat - last.heat } else { last.heat - region.heat };
        undoes && held && change < self.rule.decisive
    }

    /// Whether `gain` over the expected stay pays for so many moves.
    fn pays(&self, region: &Region, gain: f32, moves: u32) -> bool {
        let offences = self.memory.last(region.pid, region.range).map_or(0, |last| last.offences);
        gain * self.rule.stay_s / (1u32 << offences.min(16)) as f32 >= moves as f32 * self.rule.move_cost_s
    }

    fn demote(&mut self, victim: Part<'a>, to: NodeId, reason: Reason) {
        self.moved.insert(victim.key());
        *self.room.entry(victim.node).or_default() += signed(victim.bytes);
        *self.room.entry(to).or_default() -= signed(victim.bytes);
        self.budget -= victim.bytes;
        self.demotions.push(asked(victim, to, reason));
    }

    fn push_promotion(&mut self, candidate: Part<'a>, to: NodeId) {
        *self.room.entry(to).or_default() -= signed(candidate.bytes);
        *self.freed.entry(candidate.node).or_default() += signed(candidate.bytes);
        self.budget -= candidate.bytes;
        self.moved.insert(candidate.key());
        self.promotions.push(asked(candidate, to, Reason::Hot));
        if self.promotions.iter().map(|step| step.bytes).sum::<u64>() >= SLICE {
            self.end_slice();
        }
    }

    fn end_slice(&mut self) {
        for slice in [std::mem::take(&mut self.demotions), std::mem::take(&mut self.promotions)] {
            self.moves.extend(joined(slice));
        }
        for (node, bytes) in std::mem::take(&mut self.freed) {
            *self.room.entry(node).or_default() += bytes;
        }
    }

    fn hold_back(&mut self, cause: HeldBack, bytes: u64) {
        *self.held_back.entry(cause).or_default() += bytes;
    }
}

fn part(region: &Region, node: NodeId) -> Option<Part<'_>> {
    let bytes = region.on.get(&node).copied().unwrap_or(0);
    (bytes > 0).then_some(Part { region, node, bytes })
}

fn asked(part: Part, to: NodeId, reason: Reason) -> Move {
    let Region { pid, range, heat, .. } = *part.region;
    Move { pid, range, from: part.node, to, bytes: part.bytes, reason, heat }
}

/// Neighbours of one kind as one range; its heat is the mean by bytes.
fn joined(mut moves: Vec<Move>) -> Vec<Move> {
    moves.sort_by_key(|step| (step.pid, step.range));
    let mut out: Vec<Move> = Vec::with_capacity(moves.len());
    for step in moves {
        let kind = |step: &Move| (step.pid, step.from, step.to, step.reason);
        match out.last_mut() {
            Some(last)
                if kind(last) == kind(&step)
                    && last.range.end == step.range.start
                    && last.bytes + step.bytes <= JOINED =>
            {
                let bytes = last.bytes + step.bytes;
                last.heat = (last.heat * last.bytes as f32 + step.heat * step.bytes as f32) / bytes as f32;
                last.bytes = bytes;
                last.range.end = step.range.end;
            }
            _ => out.push(step),
        }
    }
    out
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "hotness_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "simulation.rs"]
mod simulation;
