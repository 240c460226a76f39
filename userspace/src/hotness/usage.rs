//! How much each block of a job is used over whole training steps, how sure that is and how long it should last.
//!
//! **Step.** Learned from what the monitor found accessed and from page faults ([`tensortier_replay::step`]); nothing of
//! the job is changed. Blocks are the regions that it is learned from.
//!
//! **Use** ([`value`](tensortier_replay::policies::value), with the share of samples that found a block accessed in the
//! place of lines). Its unit is the second of full use, in which every sample found it. It is averaged over windows of
//! one step, and of ten seconds where the job has none, so that it does not matter when in a step a block is used: an
//! optimizer that is swept once a step has the same use everywhere, wherever the sweep is. A lasting change shows
//! earlier, by its cumulative sum.
//!
//! Of long steps it is kept, too, when in them a block is used ([`super::turns`]).
//!
//! A copy to or from a device leaves no accessed bit. It counts as one sample that found the block accessed, in the
//! aggregation under way.
//!
//! Touches of one aggregation come with one time. It is taken in when a later one begins, or [`LATE`] after it. Where
//! no monitor looks, the page faults and copies of a second are one.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use tensortier_replay::{
    policies::value::{Common, Value},
    step::{Learner, Pattern, Sample, Step},
};

use super::{
    Outlook, Turns,
    map::{FORGET, SAME, means, overlap},
    turns::LONG_S,
};
use crate::{
    source::{Touch, TouchKind},
    units::{BLOCK, Pid},
};

/// Seconds of full use that moving a block once costs (ours).
pub const MOVE_COST_S: f32 = 0.5;
/// Touches of an aggregation that are still to come, come within this.
const LATE: Duration = Duration::from_millis(250);
/// Seconds that the first aggregation stands for.
const FIRST_S: f32 = 1.0;
/// Seconds that one aggregation stands for at the most: while DAMON is aimed anew nobody looks.
const MOST_S: f32 = 10.0;
/// Without an aggregation for so many of the usual spacings no monitor looks.
const SPACINGS: u32 = 3;
/// What so many aggregations did not look at was not there. One aggregation may be taken for two.
const MISSED: u64 = 4;
/// Samples a second until another number is told.
const SAMPLES_PER_S: f32 = 20.0;
/// Use that is next to none: where no monitor looks, such a block is forgotten in time.
const NOTHING: f32 = 1e-3;
/// Blocks kept for one job.
const MOST_BLOCKS: u64 = 4 << 20;

/// The use of one job's memory.
#[derive(Debug)]
pub struct Usage {
    learner: Learner,
    common: Common,
    blocks: HashMap<(Pid, u64), Block>,
    /// The aggregation under way, and blocks of page faults since the last one.
    open: Vec<Touch>,
    faulted: HashSet<u64>,
    /// How often devices copied each block since then.
    copied: HashMap<(Pid, u64), f32>,
    made: Instant,
    /// The last aggregation, and the time between the last two; whether there was one that was not of faults alone.
    last: Option<Instant>,
    spacing: Duration,
    monitored: bool,
    /// Aggregations so far.
    count: u64,
    swept: Instant,
    /// Steps counted by the learned period, and when the next one begins.
    steps: u64,
    next: Option<Instant>,
    /// Length in seconds of the steps that blocks' turns are parts of.
    long_s: Option<f32>,
}

#[derive(Debug, Default)]
struct Block {
    value: Value,
    /// When in a step it is used, while steps are long.
    turns: Option<Box<Turns>>,
    /// Blocks that the monitor looked at as one with it, and it.
    alike: f32,
    /// The last aggregation that looked at it: its number, and its time in seconds since the usage was made.
    seen: u64,
    looked: f64,
}

impl Usage {
    /// Nothing known; `aggregation` is what DAMON's usually takes.
    pub fn new(now: Instant, aggregation: Duration) -> Self {
        Self {
            learner: Learner::by(aggregation.as_nanos() as u64),
            common: Common { samples: SAMPLES_PER_S, ..Common::default() },
            blocks: HashMap::new(),
            open: Vec::new(),
            faulted: HashSet::new(),
            copied: HashMap::new(),
            made: now,
            last: None,
            spacing: Duration::from_secs(1),
            monitored: false,
            count: 0,
            swept: now,
            steps: 0,
            next: None,
            long_s: None,
        }
    }

    /// How often each block is sampled in a second from now on.
    pub fn sampled(&mut self, per_second: f32) {
        self.common.samples = per_second;
    }

    /// Takes in touches of the job's processes. Gives the number of steps that began since the last call.
    pub fn observe<'a>(&mut self, touches: impl IntoIterator<Item = &'a Touch>, now: Instant) -> u64 {
        let before = self.steps;
        for touch in touches {
            let blocks = touch.range.blocks();
            let usable = touch.weight.is_finite() && touch.weight >= 0.0 && touch.range.bytes() > 0;
            if !usable || blocks.end - blocks.start > MOST_BLOCKS {
                continue;
            }
            match touch.kind {
                TouchKind::Access => {
                    if self.open.first().is_some_and(|open| touch.at > open.at + SAME) {
                        self.close();
                    }
                    self.open.push(*touch);
                }
                // Faults have no share of samples: they tell of steps, not of how much a block is used.
                TouchKind::Fault | TouchKind::Transfer => {
                    let room = (self.faulted.len() as u64) < MOST_BLOCKS && touch.weight > 0.0;
                    for block in blocks.filter(|_| room) {
                        self.faulted.insert(address(touch.pid, block));
                        if touch.kind == TouchKind::Transfer {
                            let share = overlap(block, &touch.range) as f32 / BLOCK as f32;
                            *self.copied.entry((touch.pid, block)).or_default() += share * touch.weight;
                        }
                    }
                }
            }
        }
        if self.open.first().is_some_and(|open| now > open.at + LATE) {
            self.close();
        }
        let wait = if self.monitored { self.spacing * SPACINGS } else { self.spacing };
        if self.open.is_empty() && now >= self.last.unwrap_or(self.made) + wait {
            self.take_in(now);
        }
        self.steps - before
    }

    /// The step, while it is known, and how many began so far.
    pub fn step(&self) -> Option<(u64, Step)> {
        Some((self.steps, self.learner.step()?))
    }

    /// What blocks do within a step, while it is known; their phases from where steps are counted.
    pub fn pattern(&self) -> Option<Pattern> {
        let next = self.next?.saturating_duration_since(self.made);
        self.learner.pattern(next.as_nanos() as u64)
    }

    /// What is expected of a block.
    pub fn outlook(&self, pid: Pid, block: u64, now: Instant) -> Outlook {
        let Some(Block { value, turns, alike, .. }) = self.blocks.get(&(pid, block)) else { return Outlook::default() };
        let soon = self.phase(now).zip(turns.as_ref()).zip(self.long_s);
        let soon = soon.and_then(|((phase, turns), step_s)| turns.soon(phase, step_s, self.common.samples));
        let now = now.saturating_duration_since(self.made).as_secs_f64();
        let (doubt, stay_s) = (value.doubt(&self.common), value.stay(now, self.common.phase));
        Outlook { used: value.expected(), doubt, noise: value.noise(&self.common), alike: *alike, stay_s, soon }
    }

    /// Drops a process that has ended.
    pub fn forget(&mut self, pid: Pid) {
        self.blocks.retain(|(of, _), _| *of != pid);
        self.open.retain(|touch| touch.pid != pid);
        self.copied.retain(|(of, _), _| *of != pid);
    }

    /// Takes in the aggregation under way.
    fn close(&mut self) {
        if let Some(at) = self.open.iter().map(|touch| touch.at).max() {
            if let (true, Some(last)) = (self.monitored, self.last) {
                self.spacing = at.saturating_duration_since(last).clamp(Duration::from_millis(50), FORGET);
            }
            self.monitored = true;
            self.take_in(at);
        }
    }

    fn take_in(&mut self, at: Instant) {
        let mut open = std::mem::take(&mut self.open);
        open.sort_by(|a, b| (a.pid, a.range).cmp(&(b.pid, b.range)).then(a.weight.total_cmp(&b.weight)));
        let now = at.saturating_duration_since(self.made).as_secs_f64();
        let passed = self.last.map(|last| at.saturating_duration_since(last));
        let seconds = passed.map_or(FIRST_S, |passed| passed.as_secs_f32()).clamp(1e-3, MOST_S);
        let looked = !open.is_empty() || !self.monitored;
        self.count += u64::from(looked);
        let sample = Sample::of(self.blocks.len());
        let mut touched: Vec<u64> = self.faulted.drain().filter(|&address| sample.has(address)).collect();
        let mut sums = (0.0, 0.0);
        // The aggregation stands for the time before it.
        let half = Duration::from_secs_f32(seconds / 2.0).min(at.saturating_duration_since(self.made));
        let middle = self.long_s.zip(self.phase(at - half));
        for (pid, block, weight, alike) in self.seen_of(&open, seconds) {
            if weight > 0.0 && sample.has(address(pid, block)) {
                touched.push(address(pid, block));
            }
            let full = self.blocks.len() as u64 >= MOST_BLOCKS;
            if full && !self.blocks.contains_key(&(pid, block)) {
                continue;
            }
            let known = self.blocks.entry((pid, block)).or_default();
            let mut lived = seconds;
            if known.seen + MISSED >= self.count && known.seen > 0 {
                lived = ((now - known.looked) as f32).clamp(seconds, MOST_S);
            } else {
                if known.seen > 0 {
                    known.value.died(known.looked);
                }
                known.value.born(now - f64::from(seconds));
            }
            (known.seen, known.looked, known.alike) = (self.count, now, alike);
            if let Some((step_s, phase)) = middle {
                known.turns.get_or_insert_default().observe(phase, seconds, step_s, weight);
            }
            let ended = known.value.observe(now, lived, weight * lived, &self.common, 2.0 * MOVE_COST_S);
            if let Some(phase) = ended {
                self.common.ended(phase);
            }
            sums.0 += f64::from(known.value.variance);
            sums.1 += f64::from(known.value.mean);
        }
        if looked {
            self.common.disperse(sums.0, sums.1, seconds);
        }
        touched.sort_unstable();
        touched.dedup();
        let interval = Duration::from_secs_f32(seconds).as_nanos() as u64;
        self.learner.observe(at.saturating_duration_since(self.made).as_nanos() as u64, interval, touched.into_iter());
        self.common.step = self.learner.step().map(|step| (step.period as f64 / 1e9) as f32);
        self.last = Some(at);
        self.count_steps(at);
        self.turn_to(self.common.step.filter(|step| *step >= LONG_S && self.next.is_some()));
        self.sweep(at, now);
    }

    /// The share of samples that found each block accessed, copies taken in, and how many blocks were looked at as one.
    /// Where no monitor looks, what is not copied is not used.
    fn seen_of(&mut self, open: &[Touch], seconds: f32) -> Vec<(Pid, u64, f32, f32)> {
        let mut copied = std::mem::take(&mut self.copied);
        if !self.monitored {
            let used = self.blocks.iter().filter(|(_, block)| block.value.expected() > NOTHING);
            for (block, _) in used {
                copied.entry(*block).or_default();
            }
        }
        let samples = self.common.samples * seconds;
        let mut seen = Vec::with_capacity(copied.len());
        for of in open.chunk_by(|a, b| a.pid == b.pid) {
            let pid = of[0].pid;
            seen.extend(means(of).into_iter().map(|(block, weight, alike)| {
                let copies = copied.remove(&(pid, block)).unwrap_or_default();
                (pid, block, (weight + copies / samples).min(1.0), alike)
            }));
        }
        let mut rest: Vec<_> = copied.into_iter().collect();
        rest.sort_unstable_by_key(|(block, _)| *block);
        seen.extend(rest.into_iter().map(|((pid, block), copies)| (pid, block, (copies / samples).min(1.0), 1.0)));
        seen
    }

    /// Steps have no mark in the touches: they are counted from where the period became known.
    fn count_steps(&mut self, at: Instant) {
        let Some(step) = self.learner.step().filter(|step| step.period > 0) else {
            self.next = None;
            return;
        };
        let next = *self.next.get_or_insert(at);
        if at >= next {
            let begun = (at - next).as_nanos() as u64 / step.period + 1;
            self.steps += begun;
            self.next = Some(next + Duration::from_nanos(begun.saturating_mul(step.period)));
        }
    }

    /// Where in a step a moment is, 0 to 1, by the steps that are counted.
    fn phase(&self, at: Instant) -> Option<f64> {
        let (next, step) = (self.next?, f64::from(self.common.step?));
        let left = next.saturating_duration_since(at).as_secs_f64() - at.saturating_duration_since(next).as_secs_f64();
        Some((-left / step).rem_euclid(1.0))
    }

    /// Blocks' turns are parts of steps of this length from now on: those of another length say nothing of these.
    fn turn_to(&mut self, step_s: Option<f32>) {
        let as_long = |(new, old): (f32, f32)| (new - old).abs() <= 0.2 * old;
        if !step_s.zip(self.long_s).is_some_and(as_long) && step_s != self.long_s {
            self.blocks.values_mut().for_each(|block| block.turns = None);
            self.long_s = step_s;
        }
    }

    fn sweep(&mut self, at: Instant, now: f64) {
        if at.saturating_duration_since(self.swept) > FORGET / 10 {
            self.swept = at;
            self.blocks.retain(|_, block| now - block.looked < FORGET.as_secs_f64());
        }
    }
}

/// One number for a block of a process.
fn address(pid: Pid, block: u64) -> u64 {
    (u64::from(pid.0) << 40) ^ block
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
