//! What tells `auto`, `step`, `hotness` and `bandwidth` apart, and what lines and moves cost them.
//!
//! Prices are those of [`Costs`], of lines that are read: what was written is not seen apart.

use super::split;
use crate::{
    cost::{Costs, Level},
    workload::Pattern,
};

/// What a policy of this kind does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub(super) name: &'static str,
    /// Learns each job's step.
    pub(super) steps: bool,
    /// Tells streams from random accesses; else all are streams.
    pub(super) patterns: bool,
    /// Splits streams.
    pub(super) splits: bool,
}

impl Rules {
    /// All of it.
    pub const AUTO: Self = Self { name: "auto", steps: true, patterns: true, splits: true };
    /// By steps alone.
    pub const STEP: Self = Self { name: "step", steps: true, patterns: false, splits: false };
    /// By use over time alone.
    pub const HOTNESS: Self = Self { name: "hotness", steps: false, patterns: false, splits: false };
    /// All are streams.
    pub const BANDWIDTH: Self = Self { name: "bandwidth", steps: true, patterns: false, splits: true };
}

/// Nanoseconds of lines and bytes.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    /// Saved by a line on the top tier, at random and in a stream.
    pub saved: [f32; 2],
    /// Moving a byte.
    pub up: f32,
    pub down: f32,
    /// A line of a stream on the top tier, and the share of a stream that belongs there.
    pub top_line: f32,
    pub weight: f32,
}

impl Prices {
    /// On these tiers.
    pub fn new(costs: &Costs) -> Self {
        let line = |level, pattern| costs.access_ns(level, pattern, 1.0, 0.0) as f32;
        let saved = |pattern| (line(Level::Lower, pattern) - line(Level::Top, pattern)).max(1e-9);
        let byte = |to| (costs.move_ns(1 << 20, to) / f64::from(1 << 20)) as f32;
        Self {
            saved: [saved(Pattern::Random), saved(Pattern::Stream)],
            up: byte(Level::Top),
            down: byte(Level::Lower),
            top_line: line(Level::Top, Pattern::Stream),
            weight: split::weight(costs),
        }
    }

    /// Saved by a line of that pattern.
    pub fn saved(&self, pattern: Pattern) -> f32 {
        self.saved[usize::from(pattern == Pattern::Stream)]
    }
}
