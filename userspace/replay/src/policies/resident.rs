//! The resident set that costs least, and no move that does not pay: the rule of `auto`, `step`, `hotness` and
//! `bandwidth`.
//!
//! **Value.** A region's byte is worth its lines a second ([`super::value`]) times what a line saves on the top tier,
//! which depends on how it is accessed ([`super::pattern`]; [`Costs::access_ns`]): the difference of latencies over the
//! misses under way, or that of bandwidths.
//!
//! **Resident set.** Under the capacity, a step costs least with the bytes of greatest value on the top tier (the
//! fractional knapsack, Dantzig, Operations Research 5(2), 1957). Over whole steps an optimizer that is swept once a
//! step has the same value everywhere, wherever the sweep is: nothing is worth moving, where recency moves all of it.
//!
//! **Moves** (ours). With the values `v` of two regions' bytes, in nanoseconds saved a second, `σ²` their doubt, `up`
//! and `down` the prices of moving a byte and `stay` the seconds that both values are expected to last, a byte takes
//! another's place where
//!
//! ```text
//! (v_in - v_out - 2 · √(σ_in² + σ_out²)) · stay ≥ up + down
//! ```
//!
//! and free room where `(v - 2σ) · stay ≥ up`. After a change the stay is at least what the value has lasted, so that by
//! the time of a move no more was lost than it costs: the bound of renting against buying (Karlin et al., Algorithmica
//! 3, 1988). Differences by chance, as those of experts that are routed to at random, move nothing.
//!
//! **Streams** ([`super::split`]). What a stream has on the top tier over its share leaves where the time that it costs
//! there, lines times the time of one, comes to a move down within the stay.
//!
//! **Placement.** A new region whose address is known goes to the top tier where it is worth as much as the least that
//! is there; others, and all while there is room for everything, by first touch.
//!
//! **Cost.** One pass over all regions takes in the interval, adds the bytes of each value to a histogram (bins of one
//! sixteenth of an octave) and finds least and greatest value on either tier. The bin in which the capacity ends is the
//! waterline: only what is below it and on top, or the other way around, and differs enough from the other side's best
//! to pay at all, is looked at again, and of that no more than [`MOST`](super::waterline::MOST) regions. So a decision is linear in the regions.

use std::collections::HashMap;

use tensortier_model::{Bytes, Nanos};

use super::{
    pattern::Evidence,
    rules::{Prices, Rules},
    split::{Share, Streams},
    value::{Common, STAY, Value},
    waterline::{BINS, bin_of, least_first, waterline},
};
use crate::{
    cost::Costs,
    policy::{Move, Policy, Seen, View},
    step::{LEARN_FROM, Learner, Sample, Step},
    workload::{PAGE, Pattern},
};

/// Standard deviations that a difference must exceed.
const SURE: f32 = 2.0;
/// What left longer ago than this is forgotten, once much has left.
const FORGET: f64 = 1800.0;

/// What is kept of a region.
#[derive(Clone, Copy, Debug)]
struct State {
    value: Value,
    start: u64,
    evidence: Evidence,
    /// Share of it that belongs on the top tier at the most.
    share: Share,
    /// Its job's place in the list; none where no region lives.
    job: u32,
}

const NOBODY: u32 = u32::MAX;

impl Default for State {
    fn default() -> Self {
        Self { value: Value::default(), start: 0, evidence: Evidence::default(), share: Share::default(), job: NOBODY }
    }
}

/// What is kept of a job.
struct Job {
    id: u32,
    learner: Learner,
    common: Common,
    /// Addresses touched in this interval, of those that the step is learned from.
    touched: Vec<u64>,
    /// Sums of variances and means.
    sums: (f64, f64),
}

/// What one pass found.
struct Found {
    /// Bytes by value.
    bytes: Vec<Bytes>,
    alive: Bytes,
    top: Bytes,
    /// The least value on the top tier, and the greatest below.
    least: f32,
    most: f32,
    streams: Streams,
}

/// Keeps what is worth most on the top tier.
pub struct Resident {
    rules: Rules,
    prices: Prices,
    jobs: Vec<Job>,
    places: HashMap<u32, u32>,
    states: Vec<State>,
    /// The bin of each region's value.
    bins: Vec<u16>,
    /// Regions that live no more by job and address, and since when.
    gone: HashMap<(u32, u64), (State, f64)>,
    now: f64,
    /// The least value on the top tier while not all fits.
    least: f32,
}

impl Resident {
    /// Nothing known.
    pub fn new(costs: &Costs, rules: Rules) -> Self {
        Self {
            rules,
            prices: Prices::new(costs),
            jobs: Vec::new(),
            places: HashMap::new(),
            states: Vec::new(),
            bins: Vec::new(),
            gone: HashMap::new(),
            now: 0.0,
            least: 0.0,
        }
    }

    /// What was learned of a job's step.
    pub fn step(&self, job: u32) -> Option<Step> {
        self.places.get(&job).and_then(|&place| self.jobs[place as usize].learner.step())
    }

    /// End of the last interval.
    #[cfg(test)]
    pub(super) fn now(&self) -> Nanos {
        (self.now * 1e9) as Nanos
    }

    fn pattern(&self, state: &State) -> Pattern {
        if self.rules.patterns { state.evidence.pattern() } else { Pattern::Stream }
    }

    fn worth(&self, state: &State) -> f32 {
        state.value.mean * self.prices.saved(self.pattern(state))
    }

    fn place_of(&mut self, job: u32) -> u32 {
        let new = self.jobs.len() as u32;
        let place = *self.places.entry(job).or_insert(new);
        if place == new {
            let (learner, common) = (Learner::default(), Common::default());
            self.jobs.push(Job { id: job, learner, common, touched: Vec::new(), sums: (0.0, 0.0) });
        }
        place
    }

    fn bury(&mut self, region: usize) {
        let mut state = std::mem::take(&mut self.states[region]);
        state.value.died(self.now);
        self.gone.insert((self.jobs[state.job as usize].id, state.start), (state, self.now));
        if self.gone.len() > self.states.len() + 4 * LEARN_FROM {
            let now = self.now;
            self.gone.retain(|_, (_, since)| now - *since < FORGET);
        }
    }

    /// One pass over all regions.
    fn observe(&mut self, view: &View) -> Found {
        let seconds = (view.interval as f64 / 1e9) as f32;
        let sample = Sample::of(view.regions.len());
        let mut found =
            Found { bytes: vec![0; BINS], alive: 0, top: 0, least: f32::MAX, most: 0.0, streams: Streams::default() };
        self.states.resize(view.regions.len(), State::default());
        self.bins.resize(view.regions.len(), 0);
        let swap = self.prices.saved.map(|saved| (self.prices.up + self.prices.down) / saved);
        let mut last = (None, NOBODY);
        for (region, seen) in view.regions.iter().enumerate() {
            let before = self.states[region].job;
            if !seen.alive {
                if before != NOBODY {
                    self.bury(region);
                }
                continue;
            }
            if last.0 != Some(seen.job) {
                last = (Some(seen.job), self.place_of(seen.job));
            }
            if before != last.1 || self.states[region].start != seen.start {
                if before != NOBODY {
                    self.bury(region);
                }
                let known = self.gone.remove(&(seen.job, seen.start)).map(|(state, _)| state).unwrap_or_default();
                self.states[region] = State { start: seen.start, job: last.1, ..known };
                self.states[region].value.born(self.now - f64::from(seconds));
            }
            let job = &mut self.jobs[last.1 as usize];
            if seen.heat > 0.0 && sample.has(seen.start) && self.rules.steps {
                job.touched.push(seen.start);
            }
            let state = &mut self.states[region];
            let gain = seen.lines as f32 / seen.bytes.max(1) as f32;
            state.evidence.observe(seen.heat, gain * PAGE as f32);
            let stream = !self.rules.patterns || state.evidence.pattern() == Pattern::Stream;
            let ended = state.value.observe(self.now, seconds, gain, &job.common, swap[usize::from(stream)]);
            if let Some(phase) = ended {
                job.common.ended(phase);
            }
            job.sums.0 += f64::from(state.value.variance);
            job.sums.1 += f64::from(state.value.mean);
            let worth = state.value.mean * self.prices.saved[usize::from(stream)];
            let bin = bin_of(worth);
            self.bins[region] = bin as u16;
            found.bytes[bin] += seen.bytes;
            found.alive += seen.bytes;
            found.top += seen.top;
            if seen.top > 0 {
                found.least = found.least.min(worth);
            }
            if seen.top < seen.bytes {
                found.most = found.most.max(worth);
            }
            if stream && seen.lines > 0 {
                found.streams.lines += seen.lines as f32;
                found.streams.top += gain * seen.top as f32;
            }
        }
        self.learn(view.now, view.interval);
        found
    }

    fn learn(&mut self, now: Nanos, interval: Nanos) {
        for job in &mut self.jobs {
            job.learner.observe(now, interval, job.touched.drain(..));
            job.common.step = job.learner.step().map(|step| (step.period as f64 / 1e9) as f32);
            let (variance, mean) = std::mem::take(&mut job.sums);
            job.common.disperse(variance, mean, interval as f32 / 1e9);
        }
    }

    /// Sends down what streams have over their share. Returns the bytes that become free.
    fn split(&mut self, view: &View, streams: Streams, moves: &mut Vec<Move>) -> Bytes {
        let mut freed = 0;
        for (region, seen) in view.regions.iter().enumerate().filter(|(_, seen)| seen.alive && seen.lines > 0) {
            let state = self.states[region];
            let common = self.common(&state);
            if self.pattern(&state) != Pattern::Stream || common.step.is_none() {
                continue;
            }
            let has = seen.top as f32 / seen.bytes.max(1) as f32;
            let share = &mut self.states[region].share;
            share.observe(streams.wanted(self.prices.weight, has));
            let worth = state.value.mean * self.prices.top_line * state.value.stay(self.now, common.phase);
            if let Some(share) = share.excess(has).filter(|_| worth >= self.prices.down) {
                let top = (f64::from(share) * seen.bytes as f64) as Bytes;
                freed += seen.top - top;
                moves.push(Move { region, top });
            }
        }
        freed
    }

    fn common(&self, state: &State) -> Common {
        self.jobs[state.job as usize].common
    }

    /// Bytes of it that may come up.
    fn most_on_top(&self, region: usize, seen: &Seen) -> Bytes {
        if !self.rules.splits {
            return seen.bytes;
        }
        let has = seen.top as f32 / seen.bytes.max(1) as f32;
        (f64::from(self.states[region].share.room(has)) * seen.bytes as f64) as Bytes
    }

    /// Whether a byte of one pays in the place of a byte of the other, or in free room.
    fn pays(&self, incoming: usize, outgoing: Option<usize>) -> bool {
        let of = |region: usize| {
            let state = &self.states[region];
            let (common, price) = (self.common(state), self.prices.saved(self.pattern(state)));
            let doubt = state.value.doubt(&common) * price * price;
            (state.value.mean * price, doubt, state.value.stay(self.now, common.phase))
        };
        let (value, doubt, stay) = of(incoming);
        let (least, more, other) = outgoing.map_or((0.0, 0.0, f32::MAX), of);
        let price = if outgoing.is_some() { self.prices.up + self.prices.down } else { self.prices.up };
        (value - least - SURE * (doubt + more).sqrt()) * stay.min(other) >= price
    }

    /// What may come up, greatest value first, and what may go down, least first.
    fn candidates(&self, view: &View, found: &Found, free: Bytes) -> (Vec<usize>, Vec<usize>) {
        let waterline = waterline(&found.bytes, view.capacity) as u16;
        let longest = STAY.max(self.now as f32);
        let swap = (self.prices.up + self.prices.down) / longest;
        let least_in = if free > 0 { self.prices.up / longest } else { found.least + swap };
        let most_out = found.most - swap;
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for (region, (seen, &bin)) in view.regions.iter().zip(&self.bins).enumerate().filter(|(_, of)| of.0.alive) {
            if (free > 0 || bin >= waterline) && seen.top < seen.bytes {
                let worth = self.worth(&self.states[region]);
                if worth >= least_in && seen.top < self.most_on_top(region, seen) {
                    up.push((-worth, region as u32));
                }
            }
            if bin <= waterline && seen.top > 0 {
                let worth = self.worth(&self.states[region]);
                if worth <= most_out {
                    down.push((worth, region as u32));
                }
            }
        }
        (least_first(up), least_first(down))
    }
}

impl Policy for Resident {
    fn name(&self) -> String {
        self.rules.name.into()
    }

    fn place(&mut self, _: usize, new: &Seen, room: Bytes) -> Bytes {
        let known = self.gone.get(&(new.job, new.start)).map(|(state, _)| state).filter(|state| state.value.is_known());
        if known.is_some_and(|state| self.worth(state) < self.least) { 0 } else { new.bytes.min(room) }
    }

    fn decide(&mut self, view: &View) -> Vec<Move> {
        self.now = view.now as f64 / 1e9;
        let found = self.observe(view);
        let mut moves = Vec::new();
        let mut free = view.capacity.saturating_sub(found.top);
        if self.rules.splits {
            free += self.split(view, found.streams, &mut moves);
        }
        self.least = if found.alive <= view.capacity { 0.0 } else { found.least };
        let mut tops: HashMap<usize, Bytes> = moves.iter().map(|step| (step.region, step.top)).collect();
        let now = |tops: &HashMap<usize, Bytes>, region: usize| {
            tops.get(&region).copied().unwrap_or(view.regions[region].top)
        };
        let (up, down) = self.candidates(view, &found, free);
        let mut victims = down.into_iter().filter(|&region| now(&tops, region) > 0).collect::<Vec<_>>().into_iter();
        let mut victim = victims.next();
        for region in up {
            let has = now(&tops, region);
            let wanted = self.most_on_top(region, &view.regions[region]).saturating_sub(has);
            if wanted == 0 || has < view.regions[region].top || !self.pays(region, None) {
                continue;
            }
            while let Some(leaves) = victim.filter(|_| wanted > free) {
                if leaves == region || !self.pays(region, Some(leaves)) {
                    break;
                }
                let there = now(&tops, leaves);
                let bytes = there.min(wanted - free);
                free += bytes;
                tops.insert(leaves, there - bytes);
                moves.push(Move { region: leaves, top: there - bytes });
                if bytes == there {
                    victim = victims.next();
                }
            }
            let bytes = wanted.min(free);
            if bytes > 0 {
                free -= bytes;
                tops.insert(region, has + bytes);
                moves.push(Move { region, top: has + bytes });
            }
        }
        moves
    }
}
