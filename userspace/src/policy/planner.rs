//! Which blocks move, by what a policy says that each is worth ([`super::worth`]): fill the top tier with what is worth
//! most, and move nothing that does not pay.
//!
//! **Threshold.** With `C` bytes of the top tier open to the jobs (what they have there, and what is free over the
//! headroom), the best placement under equal access costs is the `C` bytes of greatest worth: the capacity threshold of
//! MEMTIS (Lee et al., SOSP '23, section 4.2), there taken from a histogram, here from the sorted blocks themselves. It is
//! reached by taking candidates below, those worth most first, against victims above, those worth least first, until
//! they meet.
//!
//! **Benefit against cost** (ours). Heat, and use over steps, are shares of the samples that found a page used, so a
//! block moved up gains in proportion to `used · stay`, `stay` being the seconds that it is expected to stay so. A move
//! costs as much as [`Rule::move_cost_s`] seconds of full use. A block moves into free room where
//!
//! ```text
//! used · stay ≥ move_cost_s              and, by heat, heat ≥ promote_heat
//! ```
//!
//! and takes a victim's place, which costs two moves, where
//!
//! ```text
//! used ≥ (1 + margin) · victim    and    (used - victim) · stay ≥ 2 · move_cost_s
//! ```
//!
//! less what is in doubt. A victim that is hot must be less hot than the block, by the same margin, whatever its use over
//! steps ([`Worth::next`]): a job's first seconds, in which it filled its memory block after block, are not held against
//! any. What is used less than `promote_heat` takes only room that has long been free ([`Tiers::lasting`]): what a step
//! gives back the next one wants again.
//!
//! **Going back.** A block that moved less than its hold ago does not go back, unless its worth has changed by
//! [`Rule::decisive`] since. Each time it does go back soon, its hold doubles and its expected stay halves.
//!
//! **Headroom.** Where less than the headroom is free, the blocks worth least leave until it is, and an eighth more;
//! never one of `promote_heat` or hotter, which would be promoted again. It waits while more than [`Rule::young_share`] of
//! the memory is young (ours): a job that is still filling its memory takes at once whatever is freed.
//!
//! **Order.** The plan is cut into slices: the demotions that a few promotions need, then those promotions. Room is
//! made just in time, so a plan that is cut short has demoted little in vain; within a slice neighbours join into one
//! range, since the mover pays for each call. Room that a slice frees below counts from the next slice on.
//!
//! What is about to be copied to or from a GPU ([`Region::expected`], its job's own word) is no victim, however cold; of a
//! job that must give back it is the last one.
//!
//! A block with pinned pages stays whole: one of them stops a whole batch of the mover. One of which single pages are hot
//! stays below but for those ([`pages`]), and leaves the top tier only if most of it is there.

mod joined;
mod pages;
mod victims;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use self::joined::joined;
use super::{Budget, HeldBack, Move, Plan, Reason, Recent, Rule, Tiers, spread::Balance, worth::Worth};
use crate::{
    hotness::{HeatView, Region},
    units::{BLOCK, NodeId, Pid, Range},
};

/// Bytes of promotions in a slice.
const SLICE: u64 = 8 * BLOCK;

/// A region, one of the nodes that it has bytes on, and what it is worth.
#[derive(Clone, Copy)]
struct Part<'a> {
    region: &'a Region,
    node: NodeId,
    bytes: u64,
    worth: Worth,
}

impl Part<'_> {
    fn key(&self) -> (Pid, Range) {
        (self.region.pid, self.region.range)
    }
}

/// A plan as it grows.
pub(super) struct Planner<'a> {
    rule: &'a Rule,
    view: &'a HeatView,
    tiers: &'a Tiers,
    memory: &'a Recent,
    /// Bytes over the headroom of each node, as the moves so far leave it, and those of them that were long free.
    room: BTreeMap<NodeId, i64>,
    lasting: BTreeMap<NodeId, i64>,
    /// Room that the slice's promotions free below.
    freed: BTreeMap<NodeId, i64>,
    /// What may leave each top node, hottest first: the next victim is the last.
    victims: BTreeMap<NodeId, Vec<Part<'a>>>,
    /// Regions with a move in the plan; a block with bytes on both tiers is a candidate and a victim, but moves once.
    moved: BTreeSet<(Pid, Range)>,
    /// Victims that were passed over so far.
    passed_over: usize,
    id: u64,
    budget: u64,
    /// The traffic of the top tier, where it should not serve all.
    balance: Option<Balance>,
    demotions: Vec<Move>,
    promotions: Vec<Move>,
    moves: Vec<Move>,
    held_back: BTreeMap<HeldBack, u64>,
}

impl<'a> Planner<'a> {
    pub fn new(rule: &'a Rule, view: &'a HeatView, tiers: &'a Tiers, budget: &Budget, memory: &'a Recent) -> Self {
        let room =
            tiers.top.iter().chain(&tiers.lower).map(|node| (node.id, signed(node.free) - signed(node.headroom)));
        let lasting = (tiers.top.iter())
            .filter_map(|node| Some((node.id, signed(*tiers.lasting.get(&node.id)?) - signed(node.headroom))));
        let mut planner = Self {
            lasting: lasting.collect(),
            rule,
            view,
            tiers,
            memory,
            room: room.collect(),
            freed: BTreeMap::new(),
            victims: BTreeMap::new(),
            moved: BTreeSet::new(),
            passed_over: 0,
            id: budget.plan,
            budget: budget.bytes,
            balance: Balance::new(rule.spread, view, tiers),
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

    pub fn plan(mut self) -> Plan {
        self.restore_headroom();
        self.spread();
        self.single_pages();
        for candidate in self.candidates() {
            self.promote(candidate);
        }
        self.end_slice();
        Plan { id: self.id, moves: self.moves, held_back: self.held_back }
    }

    /// Parts on lower nodes that may move and are worth it, those worth most first. Of a block on several lower nodes
    /// only the largest part: a block moves once in a plan.
    fn candidates(&mut self) -> Vec<Part<'a>> {
        let mut candidates = Vec::new();
        for region in &self.view.regions {
            let parts = self.tiers.lower.iter().filter_map(|node| self.part(region, node.id));
            let Some(candidate) = parts.max_by_key(|part| (part.bytes, Reverse(part.node))) else { continue };
            if self.rule.gives_back || region.pages.is_some() || !self.rule.is_worth_it(&candidate.worth) {
                continue;
            }
            if region.unmovable > 0 {
                self.hold_back(HeldBack::Unmovable, candidate.bytes);
            } else if !candidate.worth.proven {
                self.hold_back(HeldBack::Unproven, candidate.bytes);
            } else if self.goes_back(&candidate, true) || !self.pays(&candidate, None) {
                self.hold_back(HeldBack::PingPong, candidate.bytes);
            } else {
                candidates.push(candidate);
            }
        }
        candidates.sort_by(|a, b| b.worth.rank().total_cmp(&a.worth.rank()));
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
                if victim.worth.used >= self.rule.promote_heat && !self.rule.gives_back {
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

    /// Sends down what is used most, where the top tier serves more than it should: the fewest bytes for the traffic.
    fn spread(&mut self) {
        for victim in self.victims.values().flatten().copied().collect::<Vec<_>>() {
            let Some(balance) = self.balance.filter(Balance::is_over) else { return };
            if !balance.may_leave(victim.region, victim.bytes) || self.moved.contains(&victim.key()) {
                continue;
            }
            if victim.bytes > self.budget {
                return self.hold_back(HeldBack::Budget, victim.bytes);
            }
            let Some(to) = self.below(victim.node, victim.bytes, &BTreeMap::new()) else { return };
            self.demote(victim, to, Reason::Spread);
        }
    }

    fn promote(&mut self, candidate: Part<'a>) {
        if self.moved.contains(&candidate.key()) {
            return;
        }
        if self.balance.is_some_and(|balance| !balance.has_room(candidate.region, candidate.bytes)) {
            return self.hold_back(HeldBack::Spread, candidate.bytes);
        }
        if candidate.bytes > self.budget {
            return self.hold_back(HeldBack::Budget, candidate.bytes);
        }
        let tops = self.tiers.top_for(candidate.region.pid, candidate.node);
        if let Some(to) = tops.iter().find(|to| self.fits(&candidate, **to)) {
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

    /// Whether there is room for it that it may take.
    fn fits(&self, candidate: &Part<'a>, to: NodeId) -> bool {
        let enough = |room: &i64| *room >= signed(candidate.bytes);
        let hot = candidate.worth.used >= self.rule.promote_heat;
        self.room.get(&to).is_some_and(enough) && (hot || self.lasting.get(&to).is_none_or(enough))
    }

    /// Whether so much of the memory is young, and of a use that nothing tells, that the jobs must be filling it.
    fn growing(&self) -> bool {
        let young = |region: &&Region| region.seen < self.rule.young_seen && !region.outlook.is_known();
        let young = self.view.regions.iter().filter(young);
        let (young, all): (u64, u64) =
            (young.map(Region::resident).sum(), self.view.regions.iter().map(Region::resident).sum());
        young as f64 > all as f64 * self.rule.young_share
    }

    /// Whether a move up (or down) would undo a recent one without a decisive change of worth.
    fn goes_back(&self, part: &Part, up: bool) -> bool {
        let Some(last) = self.memory.last(part.region.pid, part.region.range) else { return false };
        let (went_up, went_down) = (self.tiers.is_top(last.to), self.tiers.is_top(last.from));
        let undoes = if up { went_down && !went_up } else { went_up && !went_down };
        let held = self.view.at.saturating_duration_since(last.at) < self.memory.hold(last.offences);
        let change = if up { part.worth.rank() - last.heat } else { last.heat - part.worth.rank() };
        undoes && held && change < self.rule.decisive
    }

    /// Whether it pays to bring it up, in the place of `victim` where there is no room.
    fn pays(&self, part: &Part, victim: Option<&Part>) -> bool {
        let offences = self.memory.last(part.region.pid, part.region.range).map_or(0, |last| last.offences);
        let gain = part.worth.gain(victim.map(|victim| &victim.worth), self.view.regions.len(), offences);
        let moves = if victim.is_some() { 2.0 } else { 1.0 };
        gain >= moves * self.rule.move_cost_s
    }

    fn part(&self, region: &'a Region, node: NodeId) -> Option<Part<'a>> {
        let bytes = region.on.get(&node).copied().unwrap_or(0);
        (bytes > 0).then(|| Part { region, node, bytes, worth: Worth::of(region, self.rule) })
    }

    fn demote(&mut self, victim: Part<'a>, to: NodeId, reason: Reason) {
        self.moved.insert(victim.key());
        *self.room.entry(victim.node).or_default() += signed(victim.bytes);
        if let Some(lasting) = self.lasting.get_mut(&victim.node).filter(|_| reason == Reason::MakeRoom) {
            *lasting += signed(victim.bytes);
        }
        *self.room.entry(to).or_default() -= signed(victim.bytes);
        self.budget -= victim.bytes;
        if let Some(balance) = &mut self.balance {
            balance.leaves(victim.region, victim.bytes);
        }
        self.demotions.push(asked(victim, to, reason));
    }

    fn push_promotion(&mut self, candidate: Part<'a>, to: NodeId) {
        *self.room.entry(to).or_default() -= signed(candidate.bytes);
        if let Some(lasting) = self.lasting.get_mut(&to) {
            *lasting -= signed(candidate.bytes);
        }
        *self.freed.entry(candidate.node).or_default() += signed(candidate.bytes);
        self.budget -= candidate.bytes;
        if let Some(balance) = &mut self.balance {
            balance.comes(candidate.region, candidate.bytes);
        }
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

fn asked(part: Part, to: NodeId, reason: Reason) -> Move {
    let Region { pid, range, .. } = *part.region;
    Move { pid, range, from: part.node, to, bytes: part.bytes, reason, heat: part.worth.rank() }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "planner_tests.rs"]
mod tests;
