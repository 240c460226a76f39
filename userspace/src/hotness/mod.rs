//! How hot each block of a job's memory is, learned from touches alone.
//!
//! Heat is kept per 2 MiB block ([`crate::units::BLOCK`]): DAMON's regions split and merge from one aggregation to the
//! next, so their own boundaries carry no memory; a fixed grid does, and it is the grain of a huge page and of a move.
//!
//! [`HeatMap`] has what is hot now, [`Usage`] what is used over whole training steps, and the step itself, [`Scattered`]
//! single hot pages of blocks that are hardly used.

mod cell;
mod map;
mod neighbours;
pub mod scattered;
mod turns;
mod usage;

use std::{collections::BTreeMap, time::Instant};

pub use map::{HeatMap, HeatStats, Params};
pub use scattered::Scattered;
use tensortier_core::PageBits;
pub use turns::{Soon, Turns};
pub use usage::{MOVE_COST_S, Usage};

use crate::units::{BLOCK, NodeId, Pid, Range};

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
    /// Bytes that are known not to move (pinned), a part of `on`.
    pub unmovable: u64,
    /// Its process has said that it is about to be copied to or from a GPU: it is not demoted now.
    pub expected: bool,
    /// What is expected of its use; nothing in a view that was not [foreseen](HeatView::foresee).
    pub outlook: Outlook,
    /// Single pages of a block that is hardly used, hot and still to be moved, by their number in the block; none moves it
    /// as a whole. `None` where nothing is known of single pages.
    pub pages: Option<Box<PageBits>>,
}

/// What is expected of a block's use, from whole steps where its job has a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// Seconds of full use in a second, 0 to 1.
    pub used: f32,
    /// The variance of that; infinite while too little is known.
    pub doubt: f32,
    /// The part of `doubt` that comes of sampling alone.
    pub noise: f32,
    /// Blocks that one sample stands for, this one among them: their noise is the same.
    pub alike: f32,
    /// Seconds that it is expected to last.
    pub stay_s: f32,
    /// Use in the coming part of a step, where steps are long and the block's part in them is known.
    pub soon: Option<Soon>,
}

impl Default for Outlook {
    /// Nothing is known.
    fn default() -> Self {
        Self { used: 0.0, doubt: f32::INFINITY, noise: 0.0, alike: 1.0, stay_s: 0.0, soon: None }
    }
}

impl Outlook {
    /// Whether enough is known to go by.
    pub fn is_known(&self) -> bool {
        self.doubt.is_finite()
    }
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

impl HeatView {
    /// Fills in what a job's usage says of each region.
    pub fn foresee(&mut self, usage: &Usage) {
        for region in &mut self.regions {
            region.outlook = usage.outlook(region.pid, region.range.start / BLOCK, self.at);
        }
        neighbours::agree(&mut self.regions);
    }

    /// Fills in which single pages of each region are hot.
    pub fn scatter(&mut self, scattered: &Scattered) {
        for region in &mut self.regions {
            region.pages = scattered.pages(region.pid, region.range.start / BLOCK).map(Box::new);
        }
    }
}
