//! How much of a stream belongs on the top tier, so that both tiers end at the same time.
//!
//! **Rule** (ours; the weights are those of weighted interleave). Tiers deliver streams at once, so an interval takes as
//! long as the slower of the two. With `B` bytes streamed in it, `T` of them from the top tier, and the rates `r`,
//!
//! ```text
//! w = r_top / (r_top + r_lower)          both end together where T = w · B
//! T > w · B:     the share s of a region there should be  s · w · B / T
//! otherwise:     all of it may be there; what is within a tenth of balance stays as it is
//! ```
//!
//! A region's share is the mean over the intervals that streamed it, in which the newest weighs a tenth. Only what is
//! over that share has reason to leave; it does where the time that it costs on the top tier comes to a move
//! ([`super::resident`]).

use crate::cost::Costs;

const NEWEST: f32 = 0.02;
/// Uses from which the mean counts.
const KNOWN: f32 = 8.0;
/// Excess that is left alone.
const LITTLE: f32 = 0.03;
/// Share of the balance that counts as balanced.
const NEAR: f32 = 0.1;

/// What an interval streamed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streams {
    /// Lines, and those of them that the top tier served.
    pub lines: f32,
    pub top: f32,
}

/// The share of a balanced stream that the top tier serves.
pub fn weight(costs: &Costs) -> f32 {
    (costs.top.read / (costs.top.read + costs.lower.read)) as f32
}

impl Streams {
    /// The share that a region with the share `has` should have, by this interval.
    pub fn wanted(&self, weight: f32, has: f32) -> f32 {
        let balanced = weight * self.lines;
        if self.top > balanced {
            has * balanced / self.top
        } else if self.top > (1.0 - NEAR) * balanced {
            has
        } else {
            1.0
        }
    }
}

/// The share of a region that belongs on the top tier.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// How much does not, in the mean.
    less: f32,
    uses: f32,
}

impl Share {
    /// Takes in one use.
    pub fn observe(&mut self, wanted: f32) {
        self.uses = (self.uses + 1.0).min(1.0 / NEWEST);
        self.less += (1.0 - wanted - self.less) / self.uses;
    }

    /// What it should have instead, where it has too much.
    pub fn excess(&self, has: f32) -> Option<f32> {
        (self.uses >= KNOWN && has > 1.0 - self.less + LITTLE).then_some(1.0 - self.less)
    }

    /// The share that it may be given.
    pub fn room(&self, has: f32) -> f32 {
        if self.less <= LITTLE {
            1.0
        } else if has < 1.0 - self.less - NEAR {
            1.0 - self.less
        } else {
            has
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stream_alone_ends_at_the_balance_and_one_beside_a_slow_one_may_have_all() {
        let (mut has, mut share) = (1.0, Share::default());
        for _ in 0..100 {
            share.observe(Streams { lines: 100.0, top: 100.0 * has }.wanted(0.9, has));
            has = share.excess(has).unwrap_or(has);
        }
        assert!((0.88..=0.92).contains(&has), "{has}");
        assert_eq!(Streams { lines: 100.0, top: 50.0 }.wanted(0.9, 1.0), 1.0);
        let both = Streams { lines: 200.0, top: 200.0 };
        assert!((both.wanted(0.9, 1.0) - 0.9).abs() < 1e-6, "two that run together share the cut");
    }
}
