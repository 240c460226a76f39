//! The thresholds of a decision, and what it goes by.

use super::{
    Budget, Plan, Recent, Tiers,
    planner::Planner,
    spread::Spread,
    worth::{Evidence, Worth},
};
use crate::hotness::{HeatView, MOVE_COST_S};

/// What a policy goes by, and the thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// What a block is worth.
    pub evidence: Evidence,
    /// How much of the traffic the top tier should serve.
    pub spread: Spread,
    /// Colder blocks are never promoted for their heat, and do not take room that is free for a moment.
    pub promote_heat: f32,
    /// Whether the job gives back whatever is worth least, and gets nothing: it has more than its share.
    pub gives_back: bool,
    /// Aggregations that must have looked at a block before it moves, by its heat or down.
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
            evidence: Evidence::Heat,
            spread: Spread::None,
            promote_heat: 0.1,
            gives_back: false,
            min_seen: 2,
            young_seen: 5,
            young_share: 0.05,
            margin: 0.25,
            stay_s: 10.0,
            move_cost_s: MOVE_COST_S,
            decisive: 0.5,
        }
    }
}

impl Rule {
    /// What should move now.
    pub fn decide(&self, view: &HeatView, tiers: &Tiers, budget: &Budget, memory: &Recent) -> Plan {
        Planner::new(self, view, tiers, budget, memory).plan()
    }

    /// Whether a block that never moved would be worth a move into free room.
    pub(super) fn is_worth_it(&self, worth: &Worth) -> bool {
        let by_heat = self.evidence == Evidence::Heat || !worth.proven;
        (!by_heat || worth.used >= self.promote_heat) && worth.gain(None, 1, 0) >= self.move_cost_s
    }
}
