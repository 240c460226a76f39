//! The training step, learned from touches alone.
//!
//! A job that trains does the same again and again, each time a little faster or slower. What shows of that are
//! *onsets*: a region is touched that was not in the interval before. Whatever a region does within a step, each of its
//! onsets has another one a step earlier, and no other lag has that for all regions.
//!
//! **Rule** (ours; the autocorrelation of event trains, with the choice of the lag as in pitch detection). Each onset
//! is paired with the region's onsets before it, up to eight of them, and the lags counted in bins of equal ratio.
//! With `W` onsets, of regions whose onsets come `λ` times a second, and `n(L)` lags within 10 % of `L`,
//!
//! ```text
//! score(L) = n(L) / W - λ · 0.2 L            partners of an onset at that lag, less those by chance
//! period   = the mean lag within 16 % of the least L whose score is 0.85 of the best
//! ```
//!
//! The least one, since two steps fit as well as one. Steps' lengths may differ by a tenth either way: that is why the
//! window is as wide. A lag must have been seen over three times its length, with two partners a region on the average,
//! and its score be at least 0.25: regions touched at random score about 0.
//!
//! **Confidence** is the share of onsets, over the last two periods, that have a partner within 20 % of one. A period
//! is told from 0.5 on until it is under 0.25. A job that changes gets there within a few steps, and after three
//! periods all that was learned is dropped. An evaluation only lowers it.

pub mod judge;
mod rhythm;

use std::collections::HashMap;

use tensortier_model::Nanos;

use self::rhythm::Rhythm;

/// Regions of a job that its step is learned from, about.
pub const LEARN_FROM: usize = 4096;
/// Onsets of a region that are kept.
const PAST: usize = 8;
/// Ratio of one bin's lag to the next, as its logarithm.
const BIN: f64 = 0.03;
/// Bins on either side that count for a lag: about 10 %.
const AROUND: usize = 3;
/// Bins: lags up to 3,000 times the least.
const BINS: usize = 270;
/// Share of the best score that a lag needs.
const AS_GOOD: f64 = 0.85;
/// Least score of a period.
const LEAST_SCORE: f64 = 0.25;
/// Spread of the lags of one step: a tenth of jitter, and onsets that are known to an interval.
const SPREAD: f64 = 0.16;
/// Periods that the counts remember.
const MEMORY: f64 = 12.0;
/// From this confidence on the period is told.
const SURE: f64 = 0.5;
/// Under this one it is no longer, and under it for a while the job has changed.
const LOST: f64 = 0.25;
/// Onsets without a partner that a new period starts with: it has to prove itself.
const DOUBT: f64 = 4.0;

/// A period and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Mean time from one step's beginning to the next one's.
    pub period: Nanos,
    /// Share of onsets that came a period after one before, 0 to 1.
    pub confidence: f64,
}

/// Parts of a step of which is told what happens in them.
pub const PARTS: usize = 10;

/// What a job's regions do within a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pattern {
    /// How often a region's use begins in one step, the mean of the regions that are used at all.
    pub uses: f64,
    /// Share of these beginnings that fall into each tenth of the step.
    pub phases: [f64; PARTS],
}

/// Which regions of a job its step is learned from: those of some hashes of their addresses, so that any of an
/// address's bits choose alike (the finaliser of MurmurHash3).
#[derive(Clone, Copy, Debug)]
pub struct Sample(u64);

impl Sample {
    /// Of so many regions.
    pub fn of(regions: usize) -> Self {
        Self(((regions / LEARN_FROM).next_power_of_two() - 1) as u64)
    }

    /// Whether the region at this address is among them.
    #[inline]
    pub fn has(&self, address: u64) -> bool {
        hash(address) & self.0 == 0
    }
}

#[inline]
fn hash(mut address: u64) -> u64 {
    address = (address ^ address >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    address = (address ^ address >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    address ^ address >> 33
}

/// A period in seconds, or in what else its finder counts in, and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Found {
    period: f64,
    confidence: f64,
}

/// Learns the step of one job.
#[derive(Clone, Debug)]
pub struct Learner {
    trains: HashMap<u64, Train>,
    rhythm: Rhythm,
    /// Lags by bin: how many, and their sum in seconds. Empty before the first.
    lags: Vec<(f64, f64)>,
    /// Onsets, and the sum of their regions' onsets a second.
    onsets: f64,
    rates: f64,
    /// Onsets and those with a partner a period earlier, forgotten quickly.
    recent: (f64, f64),
    period: Option<f64>,
    /// Since when it is this one, and whether it is told.
    chosen: f64,
    told: bool,
    /// Since when there is something to learn from, and now, in seconds.
    since: f64,
    now: f64,
    swept: f64,
    /// The unit of lags, none of which is under two of them: the usual interval, or the first where that is not told.
    interval: Option<f64>,
}

/// Onsets of one region, oldest first, and when it was last touched.
#[derive(Clone, Debug, Default)]
struct Train {
    onsets: [f64; PAST],
    count: usize,
    touched: f64,
}

impl Train {
    fn past(&self) -> &[f64] {
        &self.onsets[..self.count]
    }

    fn push(&mut self, at: f64) {
        if self.count == PAST {
            self.onsets.rotate_left(1);
        } else {
            self.count += 1;
        }
        self.onsets[self.count - 1] = at;
    }
}

impl Default for Learner {
    fn default() -> Self {
        Self {
            trains: HashMap::new(),
            rhythm: Rhythm::default(),
            lags: Vec::new(),
            onsets: 0.0,
            rates: 0.0,
            recent: (0.0, 0.0),
            period: None,
            chosen: 0.0,
            told: false,
            since: 0.0,
            now: 0.0,
            swept: 0.0,
            interval: None,
        }
    }
}

impl Learner {
    /// Of a job whose intervals usually have this length: none of them, be it as short or long as may be, changes the unit.
    pub fn by(interval: Nanos) -> Self {
        Self { interval: Some((interval as f64 / 1e9).max(1e-6)), ..Self::default() }
    }

    /// Takes in one interval: when it ended, how long it was, and the first addresses of the regions touched in it.
    pub fn observe(&mut self, now: Nanos, interval: Nanos, touched: impl Iterator<Item = u64>) {
        let (now, interval) = (now as f64 / 1e9, (interval as f64 / 1e9).max(1e-6));
        let passed = now - self.now;
        self.now = now;
        let unit = *self.interval.get_or_insert(interval);
        self.forget(passed);
        for region in touched {
            self.rhythm.touch(hash(region));
            let train = self.trains.entry(region).or_default();
            let onset = train.count == 0 || now - train.touched > 1.5 * interval.max(passed);
            train.touched = now;
            if onset {
                let past = train.clone();
                train.push(now);
                self.onset(&past);
            }
        }
        self.rhythm.end(now / unit);
        self.learn();
        self.sweep();
    }

    /// The step, while it is known.
    pub fn step(&self) -> Option<Step> {
        let Found { period, confidence } = self.found()?;
        Some(Step { period: (period * 1e9) as Nanos, confidence })
    }

    /// By onsets, and by the rhythm where they do not tell.
    fn found(&self) -> Option<Found> {
        let by_onsets = self.period.filter(|_| self.told);
        let by_onsets = by_onsets.map(|period| Found { period, confidence: self.confidence() });
        let unit = self.interval?;
        by_onsets.or_else(|| self.rhythm.found().map(|found| Found { period: found.period * unit, ..found }))
    }

    /// What the regions did in a step's time up to the last onset, while a step is known: a job that rests, or has ended,
    /// is told by what it did. Steps have no mark in the touches: `origin` is what the caller counts them from.
    pub fn pattern(&self, origin: Nanos) -> Option<Pattern> {
        let period = self.found()?.period;
        let (mut begun, mut regions, mut phases) = (0.0, 0.0, [0.0; PARTS]);
        let last = self.trains.values().filter_map(|train| train.past().last()).copied().fold(0.0, f64::max);
        for train in self.trains.values() {
            let since = train.past().partition_point(|at| *at <= last - period);
            for at in &train.past()[since..] {
                let phase = ((at - origin as f64 / 1e9) / period).rem_euclid(1.0);
                phases[((phase * PARTS as f64) as usize).min(PARTS - 1)] += 1.0;
                begun += 1.0;
            }
            regions += f64::from(u8::from(since < train.count));
        }
        let share = |count: f64| if begun > 0.0 { count / begun } else { 0.0 };
        Some(Pattern { uses: begun / f64::max(regions, 1.0), phases: phases.map(share) })
    }

    fn confidence(&self) -> f64 {
        if self.recent.0 > 0.0 { self.recent.1 / self.recent.0 } else { 0.0 }
    }

    fn onset(&mut self, past: &Train) {
        let Some(first) = past.past().first() else { return };
        self.onsets += 1.0;
        self.rates += past.count as f64 / (self.now - first);
        self.lags.resize(BINS, (0.0, 0.0));
        for lag in past.past().iter().map(|at| self.now - at) {
            if let Some(bin) = self.bin(lag).and_then(|bin| self.lags.get_mut(bin)) {
                *bin = (bin.0 + 1.0, bin.1 + lag);
            }
        }
        if let Some(period) = self.period {
            let partner = past.past().iter().any(|at| (self.now - at - period).abs() <= 0.2 * period);
            self.recent = (self.recent.0 + 1.0, self.recent.1 + f64::from(u8::from(partner)));
        }
    }

    fn bin(&self, lag: f64) -> Option<usize> {
        let ratio = lag / (2.0 * self.interval?);
        (ratio >= 1.0).then(|| (ratio.ln() / BIN) as usize)
    }

    fn lag(&self, bin: usize) -> f64 {
        2.0 * self.interval.unwrap_or(1.0) * ((bin as f64 + 0.5) * BIN).exp()
    }

    fn forget(&mut self, passed: f64) {
        let Some(period) = self.period else { return };
        let keep = (-passed / (MEMORY * period)).exp();
        self.lags.iter_mut().for_each(|bin| *bin = (bin.0 * keep, bin.1 * keep));
        (self.onsets, self.rates) = (self.onsets * keep, self.rates * keep);
        let keep = (-passed / (2.0 * period)).exp();
        self.recent = (self.recent.0 * keep, self.recent.1 * keep);
    }

    fn learn(&mut self) {
        if let Some(period) = self.best((self.now - self.since) / 3.0) {
            if self.period.is_none_or(|before| (before - period).abs() > 0.2 * period) {
                self.chosen = self.now;
                self.recent = (DOUBT, 0.0);
            }
            self.period = Some(period);
        }
        let Some(period) = self.period else { return };
        self.told = self.confidence() >= if self.told { LOST } else { SURE };
        if self.confidence() < LOST && self.now - self.chosen > 3.0 * period {
            let Self { now, interval, .. } = *self;
            let rhythm = std::mem::take(&mut self.rhythm);
            *self = Self { rhythm, now, since: now, swept: now, interval, ..Self::default() };
        }
    }

    /// Forgets regions that were long gone when the counts forgot their onsets.
    fn sweep(&mut self) {
        let Some(period) = self.period.or(self.found().map(|found| found.period)) else { return };
        if self.now - self.swept > MEMORY * period {
            self.trains.retain(|_, train| self.now - train.touched <= MEMORY * period);
            self.swept = self.now;
        }
    }

    /// The period by the counts, if it is at most so long.
    fn best(&self, most: f64) -> Option<f64> {
        if self.lags.is_empty() || self.onsets < 2.0 * self.trains.len() as f64 {
            return None;
        }
        let window = |bin: usize| bin.saturating_sub(AROUND)..(bin + AROUND + 1).min(BINS);
        let score = |bin: usize| {
            let found: f64 = self.lags[window(bin)].iter().map(|bin| bin.0).sum();
            let width = (BIN * (AROUND as f64 + 0.5)).sinh() * 2.0 * self.lag(bin);
            (found - self.rates * width) / self.onsets.max(1.0)
        };
        let scores: Vec<f64> = (0..BINS).take_while(|bin| self.lag(*bin) <= most).map(score).collect();
        let best = scores.iter().copied().fold(LEAST_SCORE, f64::max);
        let first = scores.iter().position(|score| *score >= LEAST_SCORE.max(AS_GOOD * best))?;
        let near = &scores[first..scores.len().min(first + 2 * AROUND)];
        let peak = first + (0..near.len()).max_by(|a, b| near[*a].total_cmp(&near[*b]))?;
        (0..4).try_fold(self.lag(peak), |period, _| self.mean_lag(period))
    }

    /// The mean of the lags within [`SPREAD`] of a period: nearer to the true one than that, if it is near.
    fn mean_lag(&self, period: f64) -> Option<f64> {
        let near = |bin: &(f64, f64)| bin.0 > 0.0 && (bin.1 / bin.0 / period - 1.0).abs() <= SPREAD;
        let near = self.lags.iter().copied().filter(near);
        let (count, sum) = near.fold((0.0, 0.0), |all, bin| (all.0 + bin.0, all.1 + bin.1));
        (count > 0.0).then(|| sum / count)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
