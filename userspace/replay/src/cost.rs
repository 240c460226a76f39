//! What accesses and moves cost on two tiers.
//!
//! **Access** (ours). A line of a stream takes its share of the bandwidth; a line at random takes the latency divided
//! by the misses that the job keeps under way, and never less than its share of the bandwidth:
//!
//! ```text
//! stream = 64 B / rate          random = max(latency / outstanding, 64 B / rate)
//! ```
//!
//! **Move.** The kernel copies page by page: a fixed part for unmapping, flushing and mapping again, and the copy at
//! the slower of the source's read and the target's write rate. The job is taken to wait for all of it.
//!
//! These are sums over lines and bytes, so that an offline optimum of them is a linear program ([`crate::optimum`]).
//!
//! **Time** is what the sums leave out: both tiers deliver streams at the same time, and a loaded tier answers later.
//! With `u` the share of a tier's rate that is in use its latency is taken as `latency / (1 - u)` (the mean of an M/M/1
//! queue), `u` at most [`FULL`].

use tensortier_model::{Bytes, ProfileError, Profiles, TierProfile};

use crate::workload::{LINE, PAGE, Pattern};

/// The most that a tier is taken to be loaded, so that its latency stays finite.
pub const FULL: f64 = 0.9;

/// One of the two tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// DRAM.
    Top,
    /// CXL.
    Lower,
}

/// Speeds of the two tiers and the price of a move.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// DRAM.
    pub top: TierProfile,
    /// CXL.
    pub lower: TierProfile,
    /// Cache misses that the job keeps under way: ten line-fill buffers on each of some cores (ours).
    pub outstanding: f64,
    /// Nanoseconds that moving a page takes besides its copy: about what `move_pages(2)` needs (ours).
    pub move_page_ns: f64,
}

impl Costs {
    /// DRAM over the tier of that name.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`] where `profiles` lacks one of them.
    pub fn new(profiles: &Profiles, lower: &str) -> Result<Self, ProfileError> {
        let (top, lower) = (profiles.tier("dram")?.clone(), profiles.tier(lower)?.clone());
        Ok(Self { top, lower, outstanding: 80.0, move_page_ns: 1000.0 })
    }

    /// The tier's profile.
    pub fn tier(&self, level: Level) -> &TierProfile {
        match level {
            Level::Top => &self.top,
            Level::Lower => &self.lower,
        }
    }

    /// Nanoseconds that so many lines take on one tier, nothing else being under way.
    pub fn access_ns(&self, level: Level, pattern: Pattern, read: f64, written: f64) -> f64 {
        let tier = self.tier(level);
        let latency = match pattern {
            Pattern::Random => tier.latency_ns as f64 / self.outstanding,
            Pattern::Stream => 0.0,
        };
        read * latency.max(line_ns(tier.read)) + written * latency.max(line_ns(tier.write))
    }

    /// Nanoseconds that a move to `to` takes.
    pub fn move_ns(&self, bytes: Bytes, to: Level) -> f64 {
        let rate = match to {
            Level::Top => self.lower.read.min(self.top.write),
            Level::Lower => self.top.read.min(self.lower.write),
        };
        bytes as f64 * (1e9 / rate + self.move_page_ns / PAGE as f64)
    }

    /// Nanoseconds for all that one interval of `interval_ns` accesses, with both tiers at work at once.
    pub fn memory_ns(&self, traffic: &Traffic, interval_ns: f64) -> f64 {
        let [top, lower] = [Level::Top, Level::Lower].map(|level| self.stream_ns(level, traffic));
        let random = [Level::Top, Level::Lower].map(|level| {
            let (tier, lines) = (self.tier(level), traffic.random[level as usize]);
            let latency = self.loaded_latency_ns(level, traffic, interval_ns) / self.outstanding;
            lines.0 * latency.max(line_ns(tier.read)) + lines.1 * latency.max(line_ns(tier.write))
        });
        top.max(lower) + random[0] + random[1]
    }

    /// Latency of one tier under what an interval of `interval_ns` asks of it.
    pub fn loaded_latency_ns(&self, level: Level, traffic: &Traffic, interval_ns: f64) -> f64 {
        let (tier, lines) = (self.tier(level), traffic.random[level as usize]);
        let busy = self.stream_ns(level, traffic) + lines.0 * line_ns(tier.read) + lines.1 * line_ns(tier.write);
        tier.latency_ns as f64 / (1.0 - (busy / interval_ns.max(1.0)).min(FULL))
    }

    fn stream_ns(&self, level: Level, traffic: &Traffic) -> f64 {
        let lines = traffic.stream[level as usize];
        self.access_ns(level, Pattern::Stream, lines.0, lines.1)
    }
}

/// Lines (read, written) that an interval asks of each tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// At random.
    pub random: [(f64, f64); 2],
    /// In order.
    pub stream: [(f64, f64); 2],
}

impl Traffic {
    /// Adds accesses of a region with the share `top` of its bytes on the top tier.
    pub fn add(&mut self, pattern: Pattern, read: u64, written: u64, top: f64) {
        let to = match pattern {
            Pattern::Random => &mut self.random,
            Pattern::Stream => &mut self.stream,
        };
        for (lines, share) in to.iter_mut().zip([top, 1.0 - top]) {
            lines.0 += read as f64 * share;
            lines.1 += written as f64 * share;
        }
    }

    /// Lines of one tier.
    pub fn lines(&self, level: Level) -> f64 {
        let (random, stream) = (self.random[level as usize], self.stream[level as usize]);
        random.0 + random.1 + stream.0 + stream.1
    }
}

fn line_ns(rate: f64) -> f64 {
    LINE as f64 * 1e9 / rate
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Costs {
        Costs::new(&Profiles::builtin(), "cxl-asic").expect("built in")
    }

    #[test]
    fn a_random_line_pays_latency_and_a_streamed_one_bandwidth() {
        let costs = costs();
        let line = |level, pattern| costs.access_ns(level, pattern, 1.0, 0.0);
        assert_eq!(line(Level::Top, Pattern::Random), 100.0 / 80.0);
        assert_eq!(line(Level::Lower, Pattern::Random), 250.0 / 80.0);
        assert_eq!(line(Level::Top, Pattern::Stream), 64.0 / 200.0);
        assert!((line(Level::Lower, Pattern::Stream) - 64.0 / 22.0).abs() < 1e-12);
    }

    #[test]
    fn a_move_costs_its_pages_and_its_copy() {
        let page = costs().move_ns(PAGE, Level::Top);
        assert!((page - 1000.0 - 4096.0 / 22.0).abs() < 1e-9, "{page}");
        assert!(costs().move_ns(PAGE, Level::Lower) > page, "the slower write rate counts");
    }

    #[test]
    fn two_tiers_stream_at_once_and_a_loaded_one_answers_later() {
        let costs = costs();
        let time = |top| {
            let mut traffic = Traffic::default();
            traffic.add(Pattern::Stream, 100_000_000, 0, top);
            costs.memory_ns(&traffic, 1e9)
        };
        assert!(time(0.9) < time(1.0) && time(0.9) < time(0.5));
        let mut traffic = Traffic::default();
        assert_eq!(costs.loaded_latency_ns(Level::Top, &traffic, 1e9), 100.0);
        traffic.add(Pattern::Stream, 1_562_500_000, 0, 1.0);
        assert!((costs.loaded_latency_ns(Level::Top, &traffic, 1e9) - 200.0).abs() < 1e-6);
        traffic.add(Pattern::Stream, 100_000_000_000, 0, 1.0);
        assert!((costs.loaded_latency_ns(Level::Top, &traffic, 1e9) - 1000.0).abs() < 1e-6);
    }
}
