//! Policies: pure functions from what is known to what should move. No clock, no system call, no state of their own,
//! so that any decision can be replayed and printed (`--dry-run`).
//!
//! The policies differ in what a block is worth ([`worth`]) and in how much of the traffic the top tier should serve
//! ([`spread`]); what is moved for that, and what never is, is the same for all of them ([`planner`]). [`share`] has whose
//! the top tier is.

mod explain;
mod input;
mod planner;
mod rule;
pub mod share;
pub mod spread;
mod worth;

use std::collections::BTreeMap;

pub use explain::explain;
pub use input::{Budget, LastMove, Node, Recent, Tiers};
pub use rule::Rule;
use serde::{Deserialize, Serialize};
pub use share::Limits;
pub use spread::{Speed, Speeds, Spread};
pub use worth::Evidence;

use crate::units::{NodeId, Pid, Range};

/// Why a range moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Reason {
    /// Hot on a lower tier.
    Hot = 1,
    /// Cold on the top tier, and something hotter waits for the room.
    MakeRoom = 2,
    /// Cold on the top tier, whose free memory fell under the headroom.
    Headroom = 3,
    /// The operator asked for it (`drain`).
    Drain = 4,
    /// Over its job's budget, or in the room of a job that is served first.
    Budget = 5,
    /// Used so much that the top tier alone would be the slower one.
    Spread = 6,
}

/// One range to move from one node to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Move {
    /// The process.
    pub pid: Pid,
    /// The addresses; whole blocks where the block is wholly movable.
    pub range: Range,
    /// The node its bytes are on now.
    pub from: NodeId,
    /// The node they should be on.
    pub to: NodeId,
    /// Bytes on `from` that are expected to move.
    pub bytes: u64,
    /// Why.
    pub reason: Reason,
    /// The heat that decided it.
    pub heat: f32,
}

/// What to do now, in order: demotions that make room stand before the promotions that need it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// Counts up from 1 over an agent's life.
    pub id: u64,
    /// The moves, in order.
    pub moves: Vec<Move>,
    /// What the policy saw but would not move, by cause, in bytes (for `status` and `--dry-run`).
    pub held_back: BTreeMap<HeldBack, u64>,
}

/// Why bytes that looked worth moving stay where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBack {
    /// No room on the top tier and nothing colder there by the hysteresis margin.
    NoRoom,
    /// Moved the other way a short while ago.
    PingPong,
    /// Pinned, or refused too often.
    Unmovable,
    /// Too little evidence yet.
    Unproven,
    /// A budget of this decision (bytes a tick) was used up; it will be looked at again.
    Budget,
    /// The top tier serves as much as it should.
    Spread,
}

#[cfg(test)]
mod simulation;
