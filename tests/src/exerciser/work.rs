//! The loops over hot and warm stripes, and how long they took.

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

/// What the workers share. Stripes are numbered over all pieces in address order; stripe `n` belongs to thread
/// `n % threads`, so no word has two writers.
#[derive(Debug)]
pub struct Work {
    stripes: Vec<u64>,
    touches: Vec<AtomicU64>,
    windows: Vec<ops::Range<usize>>,
    warm: ops::Range<usize>,
    warm_every: u64,
    pattern: Pattern,
    phase_seconds: Option<f64>,
    threads: usize,
    lines_per_stripe: u64,
    stop: AtomicBool,
    phase: AtomicU64,
    phase_starts: Mutex<Vec<f64>>,
    longest_stall: AtomicU64,
}

impl Work {
    /// Numbers the stripes of the layout.
    pub fn new(options: &Options, layout: &Layout) -> Self {
        let of_piece = |range: Range| (range.start..range.end).step_by(STRIPE as usize);
        let stripes: Vec<u64> = layout.pieces.iter().flat_map(|piece| of_piece(piece.range)).collect();
        let number = |range: &Range| {
            let first = stripes.partition_point(|stripe| *stripe < range.start);
            first..first + (range.bytes() / STRIPE) as usize
        };
        Self {
            windows: layout.windows.iter().map(number).collect(),
            warm: layout.ranges(Kind::Warm).next().as_ref().map_or(0..0, number),
            touches: stripes.iter().map(|_| AtomicU64::new(0)).collect(),
            warm_every: options.warm_every,
            pattern: options.pattern,
            phase_seconds: options.phase_seconds,
            threads: options.threads as usize,
            lines_per_stripe: options.lines_per_page * (STRIPE / PAGE),
            stop: AtomicBool::new(false),
            phase: AtomicU64::new(0),
            phase_starts: Mutex::new(vec![0.0]),
            longest_stall: AtomicU64::new(0),
            stripes,
        }
    }

    /// One worker: loops until [`Work::stop`].
    pub fn run(&self, memory: &Memory, thread: u64, began: Instant) -> Timings {
        let mut timings = Timings::new();
        let mut random = memory::mix(thread);
        let mut order: Option<(u64, Order)> = None;
        let mut last = Instant::now();
        for number in 0.. {
            let phase = self.phase_at(began.elapsed().as_secs_f64(), thread);
            let window = self.window(phase);
            let order = match &mut order {
                Some((of, order)) if *of == phase => order,
                other => &mut other.insert((phase, Order::new(self, window, thread as usize))).1,
            };
            let loop_start = last;
            for step in 0..order.stripes.len() {
                last = self.unit(memory, order.pick(step, &mut random), last, &mut timings);
                if self.stop.load(Relaxed) {
                    return timings;
                }
            }
            timings.loops.saturating_record((last - loop_start).as_nanos() as u64);
            if number % self.warm_every == 0 {
                for stripe in self.own(self.warm.clone(), thread as usize) {
                    last = self.unit(memory, stripe, last, &mut timings);
                }
            }
        }
        timings
    }

    /// Ends the loops.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Touches so far of each chosen line in the stripe that holds `address`.
    pub fn touches(&self, address: u64) -> u64 {
        let after = self.stripes.partition_point(|stripe| *stripe <= address);
        after.checked_sub(1).map_or(0, |stripe| self.touches[stripe].load(Relaxed))
    }

    /// Touches of each block that had any, in cache lines.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for (stripe, touches) in self.stripes.iter().zip(&self.touches) {
            let (start, accesses) = (stripe / BLOCK * BLOCK, touches.load(Relaxed) * self.lines_per_stripe);
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

    /// The present phase and its hot stripes.
    pub fn now(&self) -> (u64, ops::Range<usize>) {
        let phase = self.phase.load(Relaxed);
        (phase, self.window(phase))
    }

    /// Address of each stripe.
    pub fn stripes(&self) -> &[u64] {
        &self.stripes
    }

    /// Cache lines touched in each stripe so far.
    pub fn accesses(&self) -> Vec<u64> {
        self.touches.iter().map(|touches| touches.load(Relaxed) * self.lines_per_stripe).collect()
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

    fn own(&self, stripes: ops::Range<usize>, thread: usize) -> impl Iterator<Item = usize> + '_ {
        stripes.filter(move |stripe| stripe % self.threads == thread)
    }

    /// Touches one stripe; `last` is when the unit before it ended.
    fn unit(&self, memory: &Memory, stripe: usize, last: Instant, timings: &mut Timings) -> Instant {
        memory.touch(self.stripes[stripe]);
        let touches = &self.touches[stripe];
        touches.store(touches.load(Relaxed) + 1, Relaxed);
        let now = Instant::now();
        let nanoseconds = (now - last).as_nanos() as u64;
        timings.units.saturating_record(nanoseconds);
        self.longest_stall.fetch_max(nanoseconds, Relaxed);
        now
    }
}

/// A thread's stripes of one window and the order of touching them.
struct Order {
    pattern: Pattern,
    stripes: Vec<usize>,
    /// Running sum of 1/rank, for [`Pattern::Zipf`].
    weights: Vec<f64>,
}

impl Order {
    fn new(work: &Work, window: ops::Range<usize>, thread: usize) -> Self {
        let mut stripes: Vec<usize> = work.own(window, thread).collect();
        let mut weights = Vec::new();
        if work.pattern == Pattern::Zipf {
            stripes.sort_unstable_by_key(|stripe| memory::mix(*stripe as u64));
            weights = (1..=stripes.len()).map(|rank| 1.0 / rank as f64).collect();
            (1..weights.len()).for_each(|n| weights[n] += weights[n - 1]);
        }
        Self { pattern: work.pattern, stripes, weights }
    }

    fn pick(&self, step: usize, random: &mut u64) -> usize {
        *random = random.wrapping_add(1);
        let draw = memory::mix(*random);
        match self.pattern {
            Pattern::Sweep => self.stripes[step],
            Pattern::Random => self.stripes[(draw % self.stripes.len() as u64) as usize],
            Pattern::Zipf => {
                let total = self.weights.last().copied().unwrap_or(0.0);
                let at = draw as f64 / u64::MAX as f64 * total;
                let rank = self.weights.partition_point(|weight| *weight < at);
                self.stripes[rank.min(self.stripes.len() - 1)]
            }
        }
    }
}

/// How long units and loops took.
#[derive(Debug)]
pub struct Timings {
    units: Histogram<u64>,
    loops: Histogram<u64>,
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
        Self { units: histogram(), loops: histogram() }
    }

    /// Takes in another thread's.
    ///
    /// # Errors
    /// None in practice: the bounds are the same.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.units.add(&other.units)?;
        self.loops.add(&other.loops)?;
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
