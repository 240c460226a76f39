//! What a policy sees and what it may do, in terms of a replay: one job's machine with two tiers.

use tensortier_model::{Bytes, Nanos};

/// A rule that places regions. It knows nothing but its views: no clock, no system call, no look ahead.
pub trait Policy {
    /// Its name in tables.
    fn name(&self) -> String;

    /// How many bytes of a new region go to the top tier, of which `room` are free. Linux' first touch by default.
    fn place(&mut self, region: usize, new: &Seen, room: Bytes) -> Bytes {
        let _ = region;
        new.bytes.min(room)
    }

    /// What moves after an interval, in order: what makes room stands before what needs it.
    fn decide(&mut self, view: &View) -> Vec<Move>;
}

/// A region's share of the top tier from now on. Several moves of one region in a plan: each from where the last left
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Index of the region.
    pub region: usize,
    /// Bytes that it shall have on the top tier.
    pub top: Bytes,
}

/// One interval as it was seen.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// When it ended.
    pub now: Nanos,
    /// How long it was.
    pub interval: Nanos,
    /// Bytes of the top tier.
    pub capacity: Bytes,
    /// All regions by index, those that do not live among them.
    pub regions: &'a [Seen],
    /// What the top and the lower tier did.
    pub tiers: [Load; 2],
}

impl View<'_> {
    /// Bytes of the top tier that nobody has.
    pub fn free(&self) -> Bytes {
        self.capacity.saturating_sub(self.regions.iter().map(|region| region.top).sum())
    }

    /// Indices of the regions that live.
    pub fn alive(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        (0..self.regions.len()).filter(|&region| self.regions[region].alive)
    }
}

/// One region as it was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Whether it is allocated; all else is 0 where it is not.
    pub alive: bool,
    /// The job it is of.
    pub job: u32,
    /// Its first address: allocators hand the same ones out again.
    pub start: u64,
    /// Its size.
    pub bytes: Bytes,
    /// Bytes on the top tier.
    pub top: Bytes,
    /// Share of looks that found it accessed, 0 to 1: what accessed bits show.
    pub heat: f32,
    /// Lines accessed: what a sampling PMU shows, scaled up.
    pub lines: u64,
}

/// What a tier did in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Lines that it served.
    pub lines: f64,
    /// Latency of one, loaded as it was.
    pub latency_ns: f64,
}
