//! How hot each block of a job's memory is, learned from touches alone.
//!
//! Heat is kept per 2 MiB block ([`crate::units::BLOCK`]): DAMON's regions split and merge from one aggregation to the
//! next, so their own boundaries carry no memory; a fixed grid does, and it is the grain of a huge page and of a move.

mod cell;
mod map;

use std::{collections::BTreeMap, time::Instant};

pub use map::{HeatMap, HeatStats, Params};

use crate::units::{NodeId, Pid, Range};

/// The hotness of one stretch of memory, as the policy sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// The process.
    pub pid: Pid,
    /// At most one block; only populated addresses that may be moved.
    pub range: Range,
    /// Decayed share of samples that found it accessed, 0 (never) to 1 (always).
    pub heat: f32,
    /// Evidence behind `heat`: aggregations seen since the block was first known, saturating.
    pub seen: u32,
    /// Seconds since evidence last showed it used; since it was first known where that never happened.
    pub idle_s: f32,
    /// Resident bytes on each node.
    pub on: BTreeMap<NodeId, u64>,
    /// Bytes that the ledger knows cannot move (pinned), a part of `on`.
    pub unmovable: u64,
}

impl Region {
    /// Resident bytes on all nodes.
    pub fn resident(&self) -> u64 {
        self.on.values().sum()
    }
}

/// All regions of all jobs at one moment, ordered by process and address.
#[derive(Clone, Debug)]
pub struct HeatView {
    /// When the view was taken.
    pub at: Instant,
    /// The regions.
    pub regions: Vec<Region>,
}
