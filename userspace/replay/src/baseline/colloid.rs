//! Modelled after Colloid (Vuppalapati and Agarwal, SOSP '24, section 3).
//!
//! **Principle.** Balance the *loaded* latencies `L_D` of DRAM and `L_A` of the other tier, rather than fill DRAM. With
//! `p` the share of accesses that DRAM serves:
//!
//! ```text
//! |L_D - L_A| < δ · L_D                stay
//! L_D < L_A:  p_lo = p                 more of the accesses to DRAM
//! L_D > L_A:  p_hi = p                 fewer
//! Δp = |(p_lo + p_hi) / 2 - p|
//! ```
//!
//! If `p_hi - p_lo` has shrunk under `ε` while the latencies still differ, the equilibrium has moved, and the end that
//! they point at is opened again. Then pages of a total access probability of at most `Δp` move to the tier that is
//! faster now, hottest first; the coldest pages of DRAM make room. No more bytes move in an interval than `Δp` of those
//! that it accessed (the dynamic migration limit). Access probabilities are an exponential mean of sampled counts.

use super::{Plan, by_greatest};
use crate::{
    policy::{Move, Policy, View},
    workload::LINE,
};

const DELTA: f64 = 0.05;
const EPSILON: f64 = 0.01;
/// Weight of the newest counts in the mean.
const NEWEST: f64 = 0.2;

/// Access probabilities and the bounds of the search.
#[derive(Clone, Debug)]
pub struct Colloid {
    lines: Vec<f64>,
    low: f64,
    high: f64,
    name: &'static str,
}

impl Colloid {
    /// Nothing known.
    pub fn new(regions: usize) -> Self {
        Self { lines: vec![0.0; regions], low: 0.0, high: 1.0, name: "Colloid" }
    }

    /// The same under another name.
    pub fn called(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// How the share of DRAM should change; `None` while the tiers are balanced.
    pub(super) fn shift(&mut self, share: f64, top_ns: f64, lower_ns: f64) -> Option<f64> {
        if (top_ns - lower_ns).abs() < DELTA * top_ns {
            return None;
        }
        let up = top_ns < lower_ns;
        if up {
            self.low = share;
        } else {
            self.high = share;
        }
        if self.high < self.low + EPSILON {
            if up {
                self.high = 1.0;
            } else {
                self.low = 0.0;
            }
        }
        Some((self.low + self.high) / 2.0 - share)
    }
}

impl Policy for Colloid {
    fn name(&self) -> String {
        self.name.into()
    }

    fn decide(&mut self, view: &View) -> Vec<Move> {
        self.lines.resize(view.regions.len(), 0.0);
        for (lines, seen) in self.lines.iter_mut().zip(view.regions) {
            *lines = if seen.alive { *lines + NEWEST * (seen.lines as f64 - *lines) } else { 0.0 };
        }
        let [top, lower] = view.tiers;
        let (served, total) = (top.lines + lower.lines, self.lines.iter().sum::<f64>());
        if served <= 0.0 || total <= 0.0 {
            return Vec::new();
        }
        let Some(shift) = self.shift(top.lines / served, top.latency_ns, lower.latency_ns) else { return Vec::new() };
        let mut plan = Plan::new(view);
        let density = |region: usize| self.lines[region] / view.regions[region].bytes.max(1) as f64;
        let mut left = shift.abs();
        let mut bytes = (left * served * LINE as f64) as u64;
        let mut victims = by_greatest(view.alive(), |region| -density(region)).into_iter().peekable();
        for region in by_greatest(view.alive(), density) {
            let here = if shift > 0.0 { plan.below(region) } else { plan.top[region] }.min(bytes);
            let chance = density(region) / total * here as f64;
            if here == 0 || chance <= 0.0 || chance > left {
                continue;
            }
            if shift > 0.0 {
                // No colder victim, no move.
                let colder = |victim: &usize| density(*victim) < density(region);
                let mut colder = std::iter::from_fn(|| victims.next_if(colder));
                plan.make_room(here, &mut colder);
                plan.promote(region, here);
            } else {
                plan.demote(region, here);
            }
            left -= chance;
            bytes -= here;
        }
        plan.moves
    }
}
