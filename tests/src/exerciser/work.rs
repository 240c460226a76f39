//! The loops over the memory, and how long they took.
//!
//! A unit of work is a stripe, or one page where hot pages are scattered.

use std::{
    ops,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use anyhow::Result;
use hdrhistogram::Histogram;
use tensortier::units::{BLOCK, PAGE, Range};

use super::{
    layout::{Kind, Layout, STRIPE},
    memory::{self, Memory},
    options::{Options, Pattern},
    report::{Block, Quantiles},
};

/// What the workers share. Units are numbered over all pieces in address order; unit `n` belongs to thread
/// `n % threads`, so no word has two writers.
#[derive(Debug)]
pub struct Work {
    units: Vec<u64>,
    unit_bytes: u64,
    touches: Vec<AtomicU64>,
    windows: Vec<ops::Range<usize>>,
    warm: ops::Range<usize>,
    growing: ops::Range<usize>,
    grow_seconds: f64,
    warm_every: u64,
    pattern: Pattern,
    phase_seconds: Option<f64>,
    threads: usize,
    lines_per_unit: u64,
    stop: AtomicBool,
    phase: AtomicU64,
    phase_starts: Mutex<Vec<f64>>,
    longest_stall: AtomicU64,
}

impl Work {
    /// Numbers the units of the layout.
    pub fn new(options: &Options, layout: &Layout) -> Self {
        let scattered = options.pattern == Pattern::Scattered;
        let (unit_bytes, apart) = if scattered { (PAGE, BLOCK) } else { (STRIPE, STRIPE) };
        // Which page of a block it is follows from the block's place alone.
        let within = |n: u64| if scattered { memory::mix(n) % (BLOCK / PAGE) * PAGE } else { 0 };
        let of_piece = |range: Range| {
            let starts = (range.start..range.end).step_by(apart as usize);
            starts.zip(0..).map(move |(start, n)| start + within(n)).filter(move |start| *start < range.end)
        };
        let units: Vec<u64> = layout.pieces.iter().flat_map(|piece| of_piece(piece.range)).collect();
        let number = |range: &Range| {
            let before = |address: u64| units.partition_point(|unit| *unit < address);
            before(range.start)..before(range.end)
        };
        Self {
            windows: layout.windows.iter().map(number).collect(),
            warm: layout.ranges(Kind::Warm).next().as_ref().map_or(0..0, number),
            growing: layout.ranges(Kind::Growing).next().as_ref().map_or(0..0, number),
            grow_seconds: options.grow_seconds,
            touches: units.iter().map(|_| AtomicU64::new(0)).collect(),
            warm_every: options.warm_every,
            pattern: options.pattern,
            phase_seconds: options.phase_seconds,
            threads: options.threads as usize,
            lines_per_unit: options.lines_per_page * (unit_bytes / PAGE),
            stop: AtomicBool::new(false),
            phase: AtomicU64::new(0),
            phase_starts: Mutex::new(vec![0.0]),
            longest_stall: AtomicU64::new(0),
            units,
            unit_bytes,
        }
    }

    /// One worker: loops until [`Work::stop`].
    pub fn run(&self, memory: &Memory, thread: u64, began: Instant) -> Timings {
        let mut timings = Timings::new();
        let mut random = memory::mix(thread);
        let mut order: Option<(u64, Order)> = None;
        let mut last = Instant::now();
        let mut step_start = None;
        for number in 0.. {
            // A thread may have no unit of its own.
            if self.stop.load(Relaxed) {
                break;
            }
            let phase = self.phase_at(began.elapsed().as_secs_f64(), thread);
            let window = self.window(phase);
            let order = match &mut order {
                Some((of, order)) if *of == phase => order,
                other => &mut other.insert((phase, Order::new(self, window, thread as usize))).1,
            };
            let loop_start = last;
            for step in 0..order.units.len() {
                last = self.unit(memory, order.pick(step, &mut random), last, &mut timings);
                if self.stop.load(Relaxed) {
                    return timings;
                }
            }
            timings.loops.saturating_record((last - loop_start).as_nanos() as u64);
            let others = !self.warm.is_empty() || !self.growing.is_empty();
            if others && number % self.warm_every != 0 {
                continue;
            }
            let there = self.there(began.elapsed().as_secs_f64());
            let up_and_down = self.own(there.clone(), thread as usize).chain(self.own(there, thread as usize).rev());
            for unit in self.own(self.warm.clone(), thread as usize).chain(up_and_down) {
                last = self.unit(memory, unit, last, &mut timings);
            }
            if let Some(start) = step_start.replace(last) {
                timings.steps.saturating_record((last - start).as_nanos() as u64);
            }
        }
        timings
    }

    /// Ends the loops.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Touches so far of each chosen line in the unit that holds `address`; 0 where none does.
    pub fn touches(&self, address: u64) -> u64 {
        let after = self.units.partition_point(|unit| *unit <= address);
        let last = after.checked_sub(1).filter(|unit| address < self.units[*unit] + self.unit_bytes);
        last.map_or(0, |unit| self.touches[unit].load(Relaxed))
    }

    /// Touches of each block that had any, in cache lines.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for (unit, touches) in self.units.iter().zip(&self.touches) {
            let (start, accesses) = (unit / BLOCK * BLOCK, touches.load(Relaxed) * self.lines_per_unit);
            match blocks.last_mut() {
                Some(block) if block.start == start => block.accesses += accesses,
                _ if accesses > 0 => blocks.push(Block { start, accesses }),
                _ => {}
            }
        }
        blocks
    }

    /// When each phase began, in seconds.
    pub fn phases(&self) -> Vec<f64> {
        self.phase_starts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The present phase and its hot units.
    pub fn now(&self) -> (u64, ops::Range<usize>) {
        let phase = self.phase.load(Relaxed);
        (phase, self.window(phase))
    }

    /// Address of each unit.
    pub fn units(&self) -> &[u64] {
        &self.units
    }

    /// Bytes of a unit.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Cache lines touched in each unit so far.
    pub fn accesses(&self) -> Vec<u64> {
        self.touches.iter().map(|touches| touches.load(Relaxed) * self.lines_per_unit).collect()
    }

    /// The longest unit since this was last asked, in ns.
    pub fn take_longest_stall(&self) -> u64 {
        self.longest_stall.swap(0, Relaxed)
    }

    fn window(&self, phase: u64) -> ops::Range<usize> {
        self.windows[(phase % self.windows.len() as u64) as usize].clone()
    }

    fn phase_at(&self, seconds: f64, thread: u64) -> u64 {
        let Some(length) = self.phase_seconds else { return 0 };
        let phase = (seconds / length) as u64;
        if thread == 0 && self.phase.swap(phase, Relaxed) != phase {
            self.phase_starts.lock().unwrap_or_else(PoisonError::into_inner).push(seconds);
        }
        phase
    }

    fn own(&self, units: ops::Range<usize>, thread: usize) -> impl DoubleEndedIterator<Item = usize> + '_ {
        units.filter(move |unit| unit % self.threads == thread)
    }

    /// What has come of what grows.
    fn there(&self, seconds: f64) -> ops::Range<usize> {
        let all = self.growing.len();
        let grown = (all as f64 * (seconds / self.grow_seconds).min(1.0)).ceil() as usize;
        self.growing.start..self.growing.start + grown.min(all)
    }

    /// Does one unit; `last` is when the one before it ended.
    fn unit(&self, memory: &Memory, unit: usize, last: Instant, timings: &mut Timings) -> Instant {
        memory.touch(Range::new(self.units[unit], self.units[unit] + self.unit_bytes));
        let touches = &self.touches[unit];
        touches.store(touches.load(Relaxed) + 1, Relaxed);
        let now = Instant::now();
        let nanoseconds = (now - last).as_nanos() as u64;
        timings.units.saturating_record(nanoseconds);
        self.longest_stall.fetch_max(nanoseconds, Relaxed);
        now
    }
}

/// A thread's units of one window and the order of touching them.
struct Order {
    pattern: Pattern,
    units: Vec<usize>,
    /// Running sum of 1/rank, for [`Pattern::Zipf`].
    weights: Vec<f64>,
}

impl Order {
    fn new(work: &Work, window: ops::Range<usize>, thread: usize) -> Self {
        let mut units: Vec<usize> = work.own(window, thread).collect();
        let mut weights = Vec::new();
        if work.pattern == Pattern::Zipf {
            units.sort_unstable_by_key(|unit| memory::mix(*unit as u64));
            weights = (1..=units.len()).map(|rank| 1.0 / rank as f64).collect();
            (1..weights.len()).for_each(|n| weights[n] += weights[n - 1]);
        }
        Self { pattern: work.pattern, units, weights }
    }

    fn pick(&self, step: usize, random: &mut u64) -> usize {
        *random = random.wrapping_add(1);
        let draw = memory::mix(*random);
        match self.pattern {
            Pattern::Sweep | Pattern::Scattered => self.units[step],
            Pattern::Random => self.units[(draw % self.units.len() as u64) as usize],
            Pattern::Zipf => {
                let total = self.weights.last().copied().unwrap_or(0.0);
                let at = draw as f64 / u64::MAX as f64 * total;
                let rank = self.weights.partition_point(|weight| *weight < at);
                self.units[rank.min(self.units.len() - 1)]
            }
        }
    }
}

/// How long units, loops and steps took.
#[derive(Debug)]
pub struct Timings {
    units: Histogram<u64>,
    loops: Histogram<u64>,
    steps: Histogram<u64>,
}

impl Default for Timings {
    fn default() -> Self {
        Self::new()
    }
}

impl Timings {
    /// Nothing measured yet.
    ///
    /// # Panics
    /// Never: the bounds are valid.
    pub fn new() -> Self {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let histogram = || Histogram::new_with_bounds(1, HOUR_NS, 3).expect("valid bounds");
        Self { units: histogram(), loops: histogram(), steps: histogram() }
    }

    /// Takes in another thread's.
    ///
    /// # Errors
    /// None in practice: the bounds are the same.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.units.add(&other.units)?;
        self.loops.add(&other.loops)?;
        self.steps.add(&other.steps)?;
        Ok(())
    }

    /// Times of single units.
    pub fn units(&self) -> Quantiles {
        quantiles(&self.units)
    }

    /// Times of whole loops over the hot bytes.
    pub fn loops(&self) -> Quantiles {
        quantiles(&self.loops)
    }

    /// Times from one pass over the warm and growing bytes to the next; of loops, where there are none.
    pub fn steps(&self) -> Quantiles {
        quantiles(&self.steps)
    }
}

fn quantiles(histogram: &Histogram<u64>) -> Quantiles {
    Quantiles {
        count: histogram.len(),
        p50: histogram.value_at_quantile(0.5),
        p99: histogram.value_at_quantile(0.99),
        p999: histogram.value_at_quantile(0.999),
        max: histogram.max(),
        mean: histogram.mean(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn work(line: &str) -> (Work, Layout) {
        let options = Line::parse_from(format!("x {line}").split_whitespace()).options;
        let layout = Layout::new(&options).unwrap();
        (Work::new(&options, &layout), layout)
    }

    #[test]
    fn scattered_units_are_one_page_in_each_block_and_not_the_same() {
        let (work, layout) = work("--hot 32M --pattern scattered --lines-per-page 64");
        let first = layout.pieces[0].range.start;
        assert_eq!((work.units().len(), work.unit_bytes()), (16, PAGE));
        assert!(work.units().iter().zip(0..).all(|(unit, n)| (unit - first) / BLOCK == n && unit % PAGE == 0));
        assert!(work.units().windows(2).any(|pair| pair[0] % BLOCK != pair[1] % BLOCK));
        work.touches[3].store(7, Relaxed);
        let unit = work.units()[3];
        assert_eq!([unit - 1, unit, unit + PAGE - 1, unit + PAGE].map(|at| work.touches(at)), [0, 7, 7, 0]);
        assert_eq!(work.accesses()[3], 7 * 64);
    }

    #[test]
    fn what_grows_is_whole_in_the_end_and_never_before() {
        let (work, layout) = work("--hot 1M --warm 2M --grow 4M --grow-seconds 10");
        let growing = layout.ranges(Kind::Growing).next().unwrap();
        let there = |seconds: f64| {
            let there = work.there(seconds);
            assert_eq!(work.units()[there.start], growing.start);
            there.len() as u64 * STRIPE
        };
        assert_eq!([0.1, 5.0, 10.0, 99.0].map(there), [STRIPE, 2 << 20, 4 << 20, 4 << 20]);
    }
}
