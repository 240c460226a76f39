//! How chunk, threads and depth follow what is measured. Ours.
//!
//! Large chunks make the engine wait for the first fill; small ones make it pay its fixed cost often. Few threads let it
//! starve; more than a tier can feed delay each other's chunks and take cores from the job. Which of these stalls weighs
//! how much depends on link, tier, copy size and on whether copies come one by one or queued. All of that is measured
//! ([`Costs`]: each operation's time by size, node and number of threads; [`Window`]: copies under way at once, stalls, earliness), and each size of copy gets the settings that the measured costs predict to be the fastest; of those
//! within [`CLOSE`] the ones with the fewest threads, then the smallest chunks.
//!
//! A number of threads that was never tried is expected to help as the last one did. So it is tried where that would
//! help, and measured then. When costs drift, everything is chosen anew.
//!
//! Falls short where copies come in bursts: their mean number under way stands for a queue that is always as long, and
//! the gaps between bursts are not seen. A test holds how far.

use std::collections::BTreeMap;

use tensortier_model::{Bytes, Nanos};

use super::cost::Costs;

/// Least chunk: below it no engine reaches half its rate.
pub const MIN_CHUNK: Bytes = 64 << 10;
/// Largest chunk: the overhead is then below a thirtieth on every link of the profiles.
const MAX_CHUNK: Bytes = 16 << 20;
/// Settings this near to the best are as good.
const CLOSE: f64 = 1.01;
/// Costs that moved by this factor call for new settings.
const DRIFT: f64 = 1.1;
/// Windows after which costs at other numbers of threads are forgotten.
const FORGET: u32 = 256;
/// Weight that a window keeps when the next comes.
const MEMORY: f64 = 0.8;
/// Share of the time that the engine may be starved before the ring gets deeper.
const STARVED: f64 = 0.02;

/// What the host allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of each direction's ring, at least 64 KiB; pinned once.
    pub ring: Bytes,
    /// Copy threads of both directions together, at least one.
    pub threads: u32,
}

/// What a direction runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of a chunk.
    pub chunk: Bytes,
    /// Chunks in the ring at once.
    pub depth: u32,
    /// Copy threads.
    pub threads: u32,
}

/// Whether settings move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// They stay: the baseline.
    Fixed(Settings),
    /// They follow what is measured.
    Adaptive,
}

/// What was measured over some chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    /// Chunks that the engine moved.
    pub chunks: u64,
    /// Copies that came.
    pub copies: u64,
    /// For each of them, how many were under way with it, summed.
    pub queued: u64,
    /// Time that the engine worked.
    pub busy: Nanos,
    /// Time that it stood still between two chunks.
    pub starved: Nanos,
    /// Time that chunks lay filled before the engine came.
    pub early: Nanos,
    /// Whether a thread or the engine found no room in the ring.
    pub blocked: bool,
}

/// The settings of one direction and how they came about.
#[derive(Debug)]
pub struct Tuner {
    limits: Limits,
    tuning: Tuning,
    costs: Costs,
    /// The costs that `chosen` rests on.
    basis: Costs,
    /// Chunk and threads by size class of the copy and node.
    chosen: BTreeMap<(u32, u32), (Bytes, u32)>,
    /// Copies that are under way at once, and the fading sums that it is the quotient of.
    outstanding: u64,
    queued: f64,
    copies: f64,
    /// Chunks of depth beyond what threads and engine hold.
    spare: u32,
    windows: u32,
}

impl Tuner {
    /// Settings that nothing has been learned for.
    pub fn new(limits: Limits, tuning: Tuning) -> Self {
        let limits = Limits { threads: limits.threads.max(1), ..limits };
        let (costs, chosen) = (Costs::new(), BTreeMap::new());
        Self {
            limits,
            tuning,
            basis: costs.clone(),
            costs,
            chosen,
            outstanding: 1,
            queued: 0.0,
            copies: 0.0,
            spare: 0,
            windows: 0,
        }
    }

    /// The settings for a copy of `bytes` on `node`.
    pub fn settings(&mut self, bytes: Bytes, node: u32) -> Settings {
        if let Tuning::Fixed(settings) = self.tuning {
            return settings;
        }
        let class = (bytes.max(1) * bytes.max(1)).ilog2();
        let (chunk, threads) = match self.chosen.get(&(class, node)) {
            Some(&chosen) => chosen,
            None => {
                let chosen = self.choose(bytes, node);
                self.chosen.insert((class, node), chosen);
                chosen
            }
        };
        Settings { chunk: even(bytes, chunk), depth: threads + 2 + self.spare, threads }
    }

    /// The fastest chunk and threads by the costs measured.
    fn choose(&self, bytes: Bytes, node: u32) -> (Bytes, u32) {
        let mut all = Vec::new();
        // The first copy shows what one thread does.
        let threads = if self.costs.knows(node) { self.limits.threads } else { 1 };
        for threads in 1..=threads {
            let most = (self.limits.ring / u64::from(threads + 2 + self.spare)).clamp(MIN_CHUNK, MAX_CHUNK);
            let mut chunk = MIN_CHUNK;
            while chunk <= most.min(bytes * 2) {
                let time = self.costs.predict(node, bytes, self.outstanding, even(bytes, chunk), threads);
                all.push((time, threads, chunk));
                chunk += (chunk / 4).next_multiple_of(4096);
            }
        }
        let best = all.iter().map(|option| option.0).fold(f64::INFINITY, f64::min);
        let close = all.into_iter().filter(|option| option.0 <= best * CLOSE);
        close.min_by_key(|option| (option.1, option.2)).map_or((MIN_CHUNK, 1), |(_, threads, chunk)| (chunk, threads))
    }

    /// A thread moved `bytes` on `node` in `time`, `busy` at work on average.
    pub fn threaded(&mut self, node: u32, busy: f64, bytes: Bytes, time: Nanos) {
        self.costs.thread(node, busy, bytes, time);
    }

    /// The engine moved `bytes` in `time`.
    pub fn staged(&mut self, bytes: Bytes, time: Nanos) {
        self.costs.engine(bytes, time);
    }

    /// Moves the settings by what a window showed.
    pub fn learn(&mut self, window: &Window) {
        self.windows += 1;
        self.queued = self.queued * MEMORY + window.queued as f64;
        self.copies = self.copies * MEMORY + window.copies as f64;
        // A window in which no copy came tells nothing.
        let outstanding =
            if self.copies > 0.0 { (self.queued / self.copies).round().max(1.0) as u64 } else { self.outstanding };
        let moved = outstanding != self.outstanding;
        self.outstanding = outstanding;
        if self.windows.is_multiple_of(FORGET) {
            self.costs.forget();
        }
        self.learn_depth(window);
        if moved || self.costs.drift(&self.basis) > DRIFT {
            self.basis = self.costs.clone();
            self.chosen.clear();
        }
    }

    fn learn_depth(&mut self, window: &Window) {
        let starved = window.starved as f64 > STARVED * (window.busy + window.starved) as f64;
        if starved && window.blocked {
            self.spare = (self.spare + 1).min(self.limits.threads);
        } else if !starved && window.early > 2 * window.busy {
            self.spare = self.spare.saturating_sub(1);
        }
    }
}

/// A chunk near `chunk` of which a copy of `bytes` is a whole number and a half: the half goes first in, last out, where
/// the other stage waits for it.
fn even(bytes: Bytes, chunk: Bytes) -> Bytes {
    let halves = (2 * bytes).div_ceil(chunk.max(1)).max(1);
    // One chunk, or an odd number of halves.
    let halves = if halves <= 2 { 2 } else { halves | 1 };
    (2 * bytes).div_ceil(halves).next_multiple_of(4096)
}
