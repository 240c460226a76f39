//! Idle intervals as the planner ranks them.

use std::cmp::Ordering;

use super::intervals::Interval;

/// An interval that may be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) interval: Interval,
    pub(super) bytes: u64,
    /// Not looked at so far.
    pub(super) open: bool,
    /// Bytes times µs above capacity that it would take away; 0 once looked at.
    pub(super) benefit: f64,
}

impl Candidate {
    /// A greater benefit; of equal ones that are not zero, more bytes for longer.
    pub(super) fn better_than(&self, other: &Self) -> bool {
        let weight = |c: &Candidate| c.bytes as f64 * c.interval.idle_us;
        if self.benefit == other.benefit && self.benefit != 0.0 {
            return weight(self) > weight(other);
        }
        self.benefit > other.benefit
    }
}

/// A candidate in the queue: by benefit, then weight, then the earlier one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked {
    pub(super) c: Candidate,
    pub(super) at: usize,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.c.better_than(&other.c), other.c.better_than(&self.c)) {
            (true, _) => Ordering::Greater,
            (_, true) => Ordering::Less,
            _ => other.at.cmp(&self.at),
        }
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked {}
