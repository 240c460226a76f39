//! Did moving help? The rate of a job's work while its pages stood still before moves, and after them.
//!
//! **Method** (ours). A job that is not changed says nothing of its steps, so its work is counted from outside: user
//! instructions, as CPI² counts the progress of batch jobs (Zhang et al., EuroSys 2013), or its read and write calls on a
//! machine without hardware counters. A step takes about the same of either each time, so the rate is steps a second up
//! to a constant, and of two rates the quotient is that of the step times.
//!
//! A rate is the median of samples of a second or more, with the notches of McGill, Tukey and Larsen (1978): median
//! ± 1.57 × interquartile range / √n, about 95 % of confidence where two are compared. Two rates differ where their
//! notches do not meet and the medians are 5 % apart. Samples while pages move are in neither rate, and a rate whose
//! first and second half differ (a job that warms up) is none: then the answer is that it is not known.
//!
//! What this cannot see: threads that spin retire instructions too, a timer's writes are no steps, and a job that turns
//! to other work just while pages move looks like one that moving changed. So one slower spell is only said, two in a
//! row stop the moves, and a fall to a tenth, more than any tier costs, is other work. A job that gives room to others is
//! expected to be slower: that is told, and stops nothing. Of spells at an unchanged rate with noise of up to 30 %, under
//! 4 in 100 are called slower and under 3 in 1000 stop the moves (ours; a test simulates them).

use std::{collections::VecDeque, fmt};

use serde::{Deserialize, Serialize};

/// Samples that a rate needs.
const LEAST: usize = 8;
/// Samples before the moves that are kept: what was long ago is no comparison.
const BEFORE: usize = 16;
/// Samples after the moves among which a steady rate is looked for.
const PATIENCE: usize = 2 * BEFORE;
/// Moves that go on for so many samples are held against what was before them without waiting for their end.
const DURING: usize = 40;
/// Medians nearer than this are the same.
const MARGIN: f64 = 0.05;
/// A slower rate than this share of the one before is other work.
const OTHER_WORK: f64 = 0.1;
/// Slower spells in a row that stop the moves.
const STOP_AFTER: usize = 2;

/// What is counted as a job's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Instructions in user mode.
    Instructions,
    /// Calls of the read and write kind (`/proc/PID/io`).
    Calls,
}

/// What moved during a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moves {
    /// Nothing.
    None,
    /// Pages that were to make the job faster.
    ForIt,
    /// Pages that had to go for others: for a budget, or for room.
    ForOthers,
}

/// Work a second over some samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// The median.
    pub per_second: f64,
    /// The lower notch.
    pub low: f64,
    /// The upper notch.
    pub high: f64,
}

/// What became of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Higher, beyond the noise.
    Faster,
    /// Lower, beyond the noise.
    Slower,
    /// None that could be told from noise.
    NoDifference,
    /// So much lower that the job does something else now.
    OtherWork,
}

/// What can be said of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// What is counted.
    pub work: Option<Work>,
    /// The rate before the first moves that had a steady one; the one now, where nothing has moved.
    pub before: Option<Rate>,
    /// The rate since the last moves.
    pub after: Option<Rate>,
    /// What became of it.
    pub verdict: Option<Verdict>,
    /// Time that the same work takes after the moves, as a share of the time before.
    pub step_time_ratio: Option<f64>,
    /// Why there is no verdict though pages moved.
    pub unknown: Option<String>,
    /// Whether moving was stopped, since the job ran slower after moves.
    pub stopped: bool,
}

impl fmt::Display for Progress {
    /// One sentence; nothing where nothing has moved.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.work {
            Some(Work::Instructions) => "instructions",
            Some(Work::Calls) => "read and write calls",
            None => return Ok(()),
        };
        match (self.before, self.after, self.verdict) {
            (Some(before), Some(after), Some(verdict)) => {
                let (before, after) = (short(before.per_second), short(after.per_second));
                write!(f, "{before} {of} a second before the moves, {after} after them: ")?;
                let ratio = self.step_time_ratio.unwrap_or(f64::NAN);
                match verdict {
                    Verdict::Faster => write!(f, "faster, the same work takes {ratio:.2} of the time"),
                    Verdict::Slower => write!(f, "slower, the same work takes {ratio:.2} times as long"),
                    Verdict::NoDifference => f.write_str("no difference beyond the noise"),
                    Verdict::OtherWork => f.write_str("the job does other work now"),
                }
            }
            _ => match &self.unknown {
                Some(why) => write!(f, "whether moving helped is not known: {why}"),
                None => Ok(()),
            },
        }
    }
}

/// With three digits and the unit's letter.
fn short(count: f64) -> String {
    let (scale, letter) = match count {
        count if count >= 1e9 => (1e9, " G"),
        count if count >= 1e6 => (1e6, " M"),
        count if count >= 1e3 => (1e3, " k"),
        _ => (1.0, ""),
    };
    let count = count / scale;
    let digits = if count >= 100.0 { 0 } else { 1 };
    format!("{count:.digits$}{letter}")
}

impl Rate {
    /// The rate of samples; `None` where they are few, show no work, or rise or fall.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let rate = Self::notched(samples).filter(|rate| samples.len() >= LEAST && rate.per_second > 0.0)?;
        let (early, late) = samples.split_at(samples.len() / 2);
        let steady = Self::notched(early)?.compare(&Self::notched(late)?) == Verdict::NoDifference;
        steady.then_some(rate)
    }

    fn notched(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len().checked_sub(1)?) as f64;
            let (low, high) = (*sorted.get(place.floor() as usize)?, *sorted.get(place.ceil() as usize)?);
            Some(low + (high - low) * place.fract())
        };
        let notch = 1.57 * (at(0.75)? - at(0.25)?) / (sorted.len() as f64).sqrt();
        let per_second = at(0.5)?;
        Some(Self { per_second, low: per_second - notch, high: per_second + notch })
    }

    /// What became of this rate.
    pub fn compare(&self, after: &Self) -> Verdict {
        let ratio = after.per_second / self.per_second;
        if ratio < OTHER_WORK {
            Verdict::OtherWork
        } else if ratio < 1.0 - MARGIN && after.high < self.low {
            Verdict::Slower
        } else if ratio > 1.0 + MARGIN && after.low > self.high {
            Verdict::Faster
        } else {
            Verdict::NoDifference
        }
    }
}

/// The samples of one job, and what they came to.
#[derive(Debug, Default)]
pub struct Tracker {
    still: VecDeque<f64>,
    spell: Option<Spell>,
    moves_seen: bool,
    first: Option<Rate>,
    now: Option<Rate>,
    /// Rates before and after each of the last spells, as long as they were slower ones.
    slower: Vec<(f64, f64)>,
}

/// From the first page that moves until nothing has moved for long enough to have a rate again.
#[derive(Debug, Default)]
struct Spell {
    for_others: bool,
    before: Option<Rate>,
    during: Vec<f64>,
    after: Vec<f64>,
}

impl Tracker {
    /// Takes in the rate of one sample, and what moved meanwhile.
    pub fn add(&mut self, rate: f64, moves: Moves) {
        let (moved, for_others) = (moves > Moves::None, moves == Moves::ForOthers);
        let Some(spell) = &mut self.spell else {
            if moved {
                let before = Rate::of(self.still.make_contiguous());
                self.first = self.first.or(before);
                self.spell = Some(Spell { for_others, before, during: vec![rate], after: Vec::new() });
                self.moves_seen = true;
                return;
            }
            if self.still.len() == BEFORE {
                self.still.pop_front();
            }
            return self.still.push_back(rate);
        };
        if moved {
            spell.for_others |= for_others;
            spell.after.clear();
            spell.during.push(rate);
            if spell.during.len() >= DURING {
                let (before, during) = (spell.before, Rate::of(&std::mem::take(&mut spell.during)));
                let for_others = std::mem::replace(&mut spell.for_others, for_others);
                self.judge(before, during, for_others);
            }
            return;
        }
        spell.after.push(rate);
        // Caches and TLBs fill again in the first one. A job that is disturbed just then is waited for.
        if spell.after.len() <= LEAST {
            return;
        }
        let after = &spell.after[(spell.after.len() - BEFORE.min(spell.after.len() - 1))..];
        let rate = Rate::of(after);
        if rate.is_some() || spell.after.len() > PATIENCE {
            let (before, for_others) = (spell.before, spell.for_others);
            self.still = after.iter().copied().collect();
            self.spell = None;
            self.judge(before, rate, for_others);
        }
    }

    fn judge(&mut self, before: Option<Rate>, after: Option<Rate>, for_others: bool) {
        self.now = after;
        let (Some(before), Some(after), false) = (before, after, for_others) else { return };
        if before.compare(&after) == Verdict::Slower {
            self.slower.push((before.per_second, after.per_second));
        } else {
            self.slower.clear();
        }
    }

    /// Whether the job ran slower after the last moves.
    pub fn slower(&self) -> bool {
        !self.slower.is_empty()
    }

    /// Whether it did so often enough to stop moving.
    pub fn stops(&self) -> bool {
        self.slower.len() >= STOP_AFTER
    }

    /// The rates of the slower spells, for people.
    pub fn figures(&self) -> String {
        let spells = self.slower.iter().map(|(before, after)| format!("{} to {}", short(*before), short(*after)));
        spells.collect::<Vec<_>>().join(", then ")
    }

    /// Begins anew: what was is no comparison for what comes.
    pub fn restart(&mut self) {
        *self = Self::default();
    }

    /// What can be said now.
    pub fn progress(&self) -> Progress {
        let compared = self.first.zip(self.now);
        let before = self.first.or_else(|| Rate::of(&self.still.iter().copied().collect::<Vec<_>>()));
        let unknown = match (compared, self.moves_seen) {
            (Some(_), _) | (None, false) => None,
            (None, true) if self.first.is_none() => Some("pages moved before there was a steady rate to compare with"),
            (None, true) => Some("no steady rate since the last moves"),
        };
        Progress {
            before: before.filter(|_| self.first.is_some() || !self.moves_seen),
            after: self.now,
            verdict: compared.map(|(before, after)| before.compare(&after)),
            step_time_ratio: compared.map(|(before, after)| before.per_second / after.per_second),
            unknown: unknown.map(str::to_owned),
            ..Progress::default()
        }
    }
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
