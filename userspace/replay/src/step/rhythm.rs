//! The step of a job whose memory is used again and again within one: from how alike its use is to what it was before.
//!
//! Where regions are used many times in a step, or a monitor finds them by chance, onsets come at any time; which
//! regions are used *together* still comes back a step later.
//!
//! **Rule** (ours; the autocorrelation of a random projection, with the choice of the lag as in pitch detection). Time
//! is cut into slots. A slot's *sketch* is the sum of the regions touched in it, each with a random sign in one of
//! [`BUCKETS`] sums: sketches have about the products that the sets themselves have. With `z` the sketches less their
//! mean over `n` slots,
//!
//! ```text
//! score(L) = Σ z(t)·z(t - L) / (n - L)  over  Σ z(t)·z(t) / n
//! ```
//!
//! over the last [`WINDOW`] slots, and over less and less of them, so that what was before the training is soon left
//! out. A candidate is a peak of at least [`LEAST`], or [`CHANCE`] over the root of `n`, that stands out by as much
//! from all shorter lags, where at least [`VARIES`] of the sketches is not the same all the time. Steps' lengths may
//! differ by a tenth, so slots are as long as that: at each [`Level`] twice as long as at the one before, for lags of
//! [`SHORTEST`] to 48 slots. A level has a say when two looks in a row agree. Of several the shortest lag is chosen that is
//! [`AS_GOOD`] as the best.
//!
//! **Length.** Each half period looks for the lag within a quarter of the candidate that fits it best, in slots half as
//! long. The mean of these lags, weighted by how far they stand out, is the mean step: each is the length of the step
//! before. How well they fit over the last two periods is the confidence. A step is told until no level agrees for
//! [`PATIENCE`] periods; then all that was learned is dropped.

mod length;

use std::collections::VecDeque;

use self::length::length;
use super::Found;

/// Sums of a sketch.
const BUCKETS: usize = 32;
/// Levels, the last with slots of 1,024 intervals.
const LEVELS: usize = 11;
/// Slots kept of each.
const SLOTS: usize = 384;
/// The most slots that a candidate is looked for in.
const WINDOW: usize = 144;
/// The least, and how many windows there are, each 0.7 of the one before.
const FEWEST: usize = 12;
const WINDOWS: u32 = 6;
/// The shortest lag in slots, on the first level and on the others.
const SHORTEST: [usize; 2] = [3, 10];
/// Least score of a candidate, and what it is times the root of the number of slots: few may be alike by chance.
const LEAST: f32 = 0.15;
const CHANCE: f32 = 1.2;
/// Least part of the sketches' squares that is not their mean's: where all is used all the time, chance alone is left.
const VARIES: f32 = 0.15;
/// Share of the best score that a shorter lag needs.
const AS_GOOD: f32 = 0.6;
/// Lags so near to each other, as a share, agree.
const NEAR: f64 = 0.25;
/// Periods that a length is the mean of.
const MEMORY: f64 = 12.0;
/// Periods in which no level agrees until a step is told no more.
const PATIENCE: f64 = 6.0;
/// Intervals without news that are filled with the one before; after more nothing is known.
const GAP: u64 = 64;

type Sketch = [f32; BUCKETS];

/// Finds the step of one job.
#[derive(Clone, Debug, Default)]
pub(super) struct Rhythm {
    levels: Vec<Level>,
    /// The slot of the first level that is under way: sum and count of its sketches, and its number.
    sum: Sketch,
    count: f32,
    number: u64,
    /// What is told, in intervals, and the slot in which it was last agreed with.
    told: Option<Found>,
    agreed: u64,
}

/// Slots of one length, oldest first.
#[derive(Clone, Debug, Default)]
struct Level {
    slots: VecDeque<Sketch>,
    /// The first half of the next level's slot.
    half: Option<Sketch>,
    /// Slots until the next look.
    wait: usize,
    /// What the last look found, in slots with its score, and whether the one before had found the same.
    candidate: Option<(f64, f32)>,
    twice: bool,
}

impl Rhythm {
    /// A region was touched in the interval under way; `hash` is one of its address.
    #[inline]
    pub(super) fn touch(&mut self, hash: u64) {
        let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
        self.sum[(hash >> 32) as usize % BUCKETS] += sign;
    }

    /// The interval under way ends now, in intervals since some beginning.
    pub(super) fn end(&mut self, now: f64) {
        self.count += 1.0;
        let number = now as u64;
        // An interval that spans several slots stands for them all.
        let slots = number.saturating_sub(self.number);
        if slots == 0 {
            return;
        }
        let mean = self.sum.map(|sum| sum / self.count);
        if slots > GAP {
            *self = Self::default();
        } else {
            (0..slots).for_each(|_| self.push(mean));
        }
        (self.sum, self.count, self.number) = ([0.0; BUCKETS], 0.0, number);
    }

    /// The step in intervals, and how sure it is, while one is told.
    pub(super) fn found(&self) -> Option<Found> {
        self.told
    }

    fn push(&mut self, mut sketch: Sketch) {
        let mut looked = false;
        for at in 0..LEVELS {
            if at == self.levels.len() {
                self.levels.push(Level::default());
            }
            let level = &mut self.levels[at];
            looked |= level.push(sketch, SHORTEST[at.min(1)]);
            let Some(first) = level.half.take() else {
                level.half = Some(sketch);
                break;
            };
            sketch = std::array::from_fn(|bucket| (first[bucket] + sketch[bucket]) / 2.0);
        }
        if looked {
            self.choose();
        }
    }

    fn choose(&mut self) {
        let says = |(at, level): (usize, &Level)| {
            let (lag, score) = level.candidate.filter(|_| level.twice)?;
            Some((lag * slot(at), score))
        };
        let says: Vec<(f64, f32)> = self.levels.iter().enumerate().filter_map(says).collect();
        let best = says.iter().map(|says| says.1).fold(0.0, f32::max);
        let good = says.iter().filter(|says| says.1 >= AS_GOOD * best).map(|says| says.0);
        let told = self.told.map(|told| told.period);
        // Several steps fit as well as one.
        let several = |lag: f64, told: f64| {
            let times = (lag / told).round();
            times >= 2.0 && (lag - times * told).abs() <= NEAR * told
        };
        let chosen = good.filter(|lag| !told.is_some_and(|told| several(*lag, told))).min_by(f64::total_cmp);
        if let Some(found) = chosen.or(told).and_then(|near| self.length(near)) {
            self.told = Some(found);
        }
        if chosen.is_some() {
            self.agreed = self.number;
        } else if told.is_some_and(|told| (self.number - self.agreed) as f64 > PATIENCE * told) {
            let Self { sum, count, number, .. } = *self;
            *self = Self { sum, count, number, ..Self::default() };
        }
    }

    /// The mean length of the last steps near a lag, by the longest slots of which one has twenty.
    fn length(&self, near: f64) -> Option<Found> {
        let at = (0..self.levels.len()).rev().find(|at| near / slot(*at) >= 20.0).unwrap_or(0);
        let (slots, near) = (&self.levels[at].slots, near / slot(at));
        let window = ((MEMORY * near) as usize).clamp(FEWEST.min(slots.len()), slots.len());
        let found = length(&centred(slots.iter().skip(slots.len() - window)).0, near)?;
        Some(Found { period: found.period * slot(at), ..found })
    }
}

/// Intervals in a slot of a level.
fn slot(level: usize) -> f64 {
    (1_u64 << level) as f64
}

impl Level {
    /// Says whether it looked.
    fn push(&mut self, sketch: Sketch, shortest: usize) -> bool {
        if self.slots.len() == SLOTS {
            self.slots.pop_front();
        }
        self.slots.push_back(sketch);
        self.wait = self.wait.saturating_sub(1);
        if self.wait > 0 || self.slots.len() < FEWEST {
            return false;
        }
        let known = self.slots.len().min(WINDOW);
        self.wait = known / 24 + 1;
        let windows = (0..WINDOWS).map(|at| (known as f64 * 0.7_f64.powi(at as i32)) as usize);
        let newest = |window: usize| self.slots.iter().skip(self.slots.len() - window);
        let found = windows.filter(|window| *window >= FEWEST).filter_map(|window| candidate(newest(window), shortest));
        let found = found.max_by(|a, b| a.1.total_cmp(&b.1));
        let near = |(a, b): ((f64, f32), (f64, f32))| (a.0 - b.0).abs() <= NEAR * b.0;
        self.twice = self.candidate.zip(found).is_some_and(near);
        self.candidate = found;
        true
    }
}

/// Sketches less their mean, and that.
fn centred<'a>(slots: impl ExactSizeIterator<Item = &'a Sketch> + Clone) -> (Vec<Sketch>, Sketch) {
    let (mut mean, count) = ([0.0; BUCKETS], slots.len() as f32);
    slots.clone().for_each(|slot| mean.iter_mut().zip(slot).for_each(|(mean, more)| *mean += more / count));
    (slots.map(|slot| std::array::from_fn(|bucket| slot[bucket] - mean[bucket])).collect(), mean)
}

fn product(a: &Sketch, b: &Sketch) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The lag that fits, in slots, and its score.
fn candidate<'a>(slots: impl ExactSizeIterator<Item = &'a Sketch> + Clone, shortest: usize) -> Option<(f64, f32)> {
    let (slots, steady) = centred(slots);
    let mean = |lag: usize| {
        let sum: f32 = slots[lag..].iter().zip(&slots).map(|(now, before)| product(now, before)).sum();
        sum / (slots.len() - lag) as f32
    };
    let energy = mean(0);
    if energy <= VARIES * (energy + product(&steady, &steady)) {
        return None;
    }
    let enough = LEAST.max(CHANCE / (slots.len() as f32).sqrt());
    let scores: Vec<f32> = (0..slots.len() / 3 + 2).map(|lag| mean(lag) / energy).collect();
    let mut least = f32::MAX;
    let mut peaks = Vec::new();
    for lag in 1..scores.len() - 1 {
        least = least.min(scores[lag - 1]);
        let score = scores[lag];
        let peak = score > scores[lag - 1] && score >= scores[lag + 1];
        if peak && lag >= shortest && score >= enough && score - least >= enough {
            peaks.push((lag as f64, score));
        }
    }
    let best = peaks.iter().map(|peak| peak.1).fold(0.0, f32::max);
    peaks.into_iter().find(|peak| peak.1 >= AS_GOOD * best)
}

#[cfg(test)]
#[path = "rhythm_tests.rs"]
mod tests;
