//! The `step` policy: the resident set that costs a step least, and no move that does not pay.
//!
//! **Resident set.** Under the capacity, a step costs least with the bytes of greatest gain a step on the top tier (the
//! fractional knapsack, Dantzig, Operations Research 5(2), 1957). Over whole steps an optimizer that is swept once a
//! step has the same value everywhere, wherever the sweep is: nothing is worth moving, where recency moves all of it.
//!
//! **Moves** (ours). With the values `v` of two regions' bytes, in nanoseconds saved a second, `σ²` the variances of
//! these means, `up` and `down` the prices of moving a byte and `stay` the seconds that both values are expected to
//! last ([`Value`]), a byte takes another's place where
//!
//! ```text
//! (v_in - v_out - 2 · √(σ_in² + σ_out²)) · stay ≥ up + down
//! ```
//!
//! and free room where `(v - 2σ) · stay ≥ up`. The expected stay is how long the value has lasted, so that by the time
//! of a move about as much was lost as it costs: the bound of renting against buying (Karlin et al., Algorithmica 3,
//! 1988). Differences by chance, as those of experts that are routed to at random, move nothing.
//!
//! **Placement.** A new region whose address is known goes to the top tier where it is worth as much as the least that
//! is there; others, and all while there is room for everything, by first touch.

use std::collections::HashMap;

use tensortier_model::Bytes;

use super::{Learner, Step, value::Value};
use crate::{
    cost::{Costs, Level},
    policy::{Move, Policy, Seen, View},
    workload::Pattern,
};

/// Standard deviations that a difference must exceed.
const SURE: f64 = 2.0;

/// Learns each job's step and keeps what is worth most.
pub struct StepPolicy {
    /// Nanoseconds that a line saves on the top tier, and the prices of moving a byte up and down.
    line: f64,
    up: f64,
    down: f64,
    learners: HashMap<u32, Learner>,
    values: HashMap<(u32, u64), Value>,
    /// Which regions lived.
    lived: Vec<Option<(u32, u64)>>,
    now: f64,
    /// The least value on the top tier while not all fits.
    least: f64,
}

impl StepPolicy {
    /// Nothing known. A line is taken to save what it saves in a stream: patterns are not seen.
    pub fn new(costs: &Costs) -> Self {
        let line = |level| costs.access_ns(level, Pattern::Stream, 1.0, 0.0);
        Self {
            line: line(Level::Lower) - line(Level::Top),
            up: costs.move_ns(1 << 20, Level::Top) / f64::from(1 << 20),
            down: costs.move_ns(1 << 20, Level::Lower) / f64::from(1 << 20),
            learners: HashMap::new(),
            values: HashMap::new(),
            lived: Vec::new(),
            now: 0.0,
            least: 0.0,
        }
    }

    /// What was learned of a job's step.
    pub fn step(&self, job: u32) -> Option<Step> {
        self.learners.get(&job).and_then(Learner::step)
    }

    fn observe(&mut self, view: &View) {
        let mut jobs: HashMap<u32, Vec<u64>> = HashMap::new();
        for region in view.alive().map(|region| &view.regions[region]) {
            let touched = jobs.entry(region.job).or_default();
            touched.extend((region.heat > 0.0).then_some(region.start));
        }
        for (job, touched) in jobs {
            self.learners.entry(job).or_default().observe(view.now, view.interval, touched.into_iter());
        }
        let seconds = view.interval as f64 / 1e9;
        self.lived.resize(view.regions.len(), None);
        for (region, lived) in view.regions.iter().zip(&mut self.lived) {
            if let Some(gone) = lived.take_if(|_| !region.alive)
                && let Some(value) = self.values.get_mut(&gone)
            {
                value.died(self.now);
            }
            if !region.alive {
                continue;
            }
            let key = (region.job, region.start);
            let value = self.values.entry(key).or_default();
            if lived.replace(key).is_none() {
                value.born(self.now - seconds);
            }
            let gain = region.lines as f64 * self.line / region.bytes.max(1) as f64;
            let step = self.learners.get(&region.job).and_then(Learner::step).map(|step| step.period as f64 / 1e9);
            value.observe(self.now, seconds, gain, step, self.up + self.down);
        }
    }

    fn value(&self, seen: &Seen) -> Option<&Value> {
        self.values.get(&(seen.job, seen.start))
    }

    /// Whether a byte of one pays in the place of a byte of the other, or in free room.
    fn pays(&self, incoming: &Value, outgoing: Option<&Value>) -> bool {
        let stay = incoming.stay(self.now).min(outgoing.map_or(f64::MAX, |value| value.stay(self.now)));
        let (least, price) = outgoing.map_or((0.0, self.up), |value| (value.mean, self.up + self.down));
        let doubt = (incoming.doubt() + outgoing.map_or(0.0, Value::doubt)).sqrt();
        (incoming.mean - least - SURE * doubt) * stay >= price
    }
}

impl Policy for StepPolicy {
    fn name(&self) -> String {
        "step".into()
    }

    fn place(&mut self, _: usize, new: &Seen, room: Bytes) -> Bytes {
        let known = self.value(new).filter(|value| value.is_known());
        if known.is_some_and(|value| value.mean < self.least) { 0 } else { new.bytes.min(room) }
    }

    fn decide(&mut self, view: &View) -> Vec<Move> {
        self.now = view.now as f64 / 1e9;
        self.observe(view);
        let value = |region: usize| self.value(&view.regions[region]);
        let mean = |region: usize| value(region).map_or(0.0, |value| value.mean);
        let mut by_value: Vec<usize> = view.alive().collect();
        by_value.sort_by(|a, b| mean(*b).total_cmp(&mean(*a)));
        let mut free = view.free();
        let mut top: Vec<Bytes> = view.regions.iter().map(|region| region.top).collect();
        let mut victims = by_value.iter().rev().copied().filter(|&region| view.regions[region].top > 0).peekable();
        let mut moves = Vec::new();
        for &region in &by_value {
            let Some(incoming) = value(region) else { continue };
            let mut below = view.regions[region].bytes - top[region];
            if below == 0 || !self.pays(incoming, None) {
                continue;
            }
            while below > free {
                let cheaper = |victim: &usize| value(*victim).is_some_and(|out| self.pays(incoming, Some(out)));
                let Some(victim) = victims.next_if(|victim| *victim != region && cheaper(victim)) else { break };
                free += top[victim];
                top[victim] = 0;
                moves.push(Move { region: victim, top: 0 });
            }
            below = below.min(free);
            if below > 0 {
                free -= below;
                top[region] += below;
                moves.push(Move { region, top: top[region] });
            }
        }
        let all: Bytes = view.alive().map(|region| view.regions[region].bytes).sum();
        let resident = by_value.iter().rev().find(|&&region| top[region] > 0);
        self.least = if all <= view.capacity { 0.0 } else { resident.map_or(0.0, |&region| mean(region)) };
        moves
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
