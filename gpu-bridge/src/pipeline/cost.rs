//! What operations cost, as measured, and what a copy would take with other settings. Ours.

use std::collections::BTreeMap;

use tensortier_model::{Bytes, Nanos};

/// Weight that a sample keeps when the next comes.
const MEMORY: f64 = 0.95;
/// What is assumed before anything is measured: a launch of 10 µs, as in the link profiles, and a thread of 8 GB/s.
const FIRST_ENGINE: Fit = Fit::new(10_000.0, 0.04);
const FIRST_THREAD: Fit = Fit::new(3_000.0, 0.125);
/// Chunks of which each is followed; more repeat the slower stage.
const FOLLOWED: usize = 48;

/// Time of an operation as fixed cost plus cost per byte, nanoseconds: least squares, old samples fading.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    /// Whatever the size.
    pub fixed: f64,
    /// For each byte.
    pub per_byte: f64,
}

impl Fit {
    const fn new(fixed: f64, per_byte: f64) -> Self {
        Self { weight: 0.0, x: 0.0, y: 0.0, xx: 0.0, xy: 0.0, fixed, per_byte }
    }

    fn add(&mut self, bytes: Bytes, time: Nanos) {
        let (x, y) = (bytes as f64, time as f64);
        let sums = [&mut self.weight, &mut self.x, &mut self.y, &mut self.xx, &mut self.xy];
        for (sum, sample) in sums.into_iter().zip([1.0, x, y, x * x, x * y]) {
            *sum = *sum * MEMORY + sample;
        }
        let (mean_x, mean_y) = (self.x / self.weight, self.y / self.weight);
        let variance = self.xx / self.weight - mean_x * mean_x;
        let slope = (self.xy / self.weight - mean_x * mean_y) / variance;
        // Sizes too much alike tell nothing of the fixed part: it stays as it was.
        if variance > 1e-2 * mean_x * mean_x && slope > 0.0 {
            self.fixed = (mean_y - slope * mean_x).max(0.0);
        }
        self.fixed = self.fixed.min(mean_y * 0.9);
        self.per_byte = (mean_y - self.fixed) / mean_x;
    }

    fn time(&self, bytes: f64) -> f64 {
        self.fixed + bytes * self.per_byte
    }
}

/// A node's threads.
#[derive(Clone, Debug)]
struct Threads {
    /// One at work.
    alone: Fit,
    /// Nanoseconds for each byte by how many are at work, fading means.
    crowd: BTreeMap<u32, f64>,
}

impl Threads {
    /// Cost of each operation while `busy` are at work. Where that was never seen, it is as for the nearest fewer, or,
    /// where those already slowed each other down, the same together.
    fn cost(&self, busy: u32) -> Fit {
        let one = self.alone.per_byte;
        let per_byte = match self.crowd.range(..=busy).next_back() {
            Some((&seen, &each)) if each > 1.1 * one => each * f64::from(busy) / f64::from(seen),
            Some((_, &each)) => each,
            None => one,
        };
        Fit { per_byte, ..self.alone }
    }
}

/// What one direction's operations cost.
#[derive(Clone, Debug)]
pub struct Costs {
    /// The engine, from the ring or to it.
    engine: Fit,
    /// Threads by the node that they read or write.
    nodes: BTreeMap<u32, Threads>,
}

impl Costs {
    pub fn new() -> Self {
        Self { engine: FIRST_ENGINE, nodes: BTreeMap::new() }
    }

    pub fn engine(&mut self, bytes: Bytes, time: Nanos) {
        self.engine.add(bytes, time);
    }

    /// A thread moved `bytes` on `node`; on average `busy` were at work.
    pub fn thread(&mut self, node: u32, busy: f64, bytes: Bytes, time: Nanos) {
        let threads = self.nodes.entry(node).or_insert_with(|| Threads { alone: FIRST_THREAD, crowd: BTreeMap::new() });
        if busy < 1.2 {
            threads.alone.add(bytes, time);
            return;
        }
        let each = (time as f64 - threads.alone.fixed).max(1.0) / bytes as f64;
        let mean = threads.crowd.entry(busy.round() as u32).or_insert(each);
        *mean = *mean * MEMORY + each * (1.0 - MEMORY);
    }

    /// Whether a single thread on `node` has been seen.
    pub fn knows(&self, node: u32) -> bool {
        self.nodes.get(&node).is_some_and(|threads| threads.alone.weight > 0.0)
    }

    /// Forgets what more than one thread cost, so that each number is tried again.
    pub fn forget(&mut self) {
        self.nodes.values_mut().for_each(|threads| threads.crowd.clear());
    }

    fn threads(&self, node: u32, busy: u32) -> Fit {
        self.nodes.get(&node).map_or(FIRST_THREAD, |threads| threads.cost(busy))
    }

    /// Time for each of many copies of `bytes` on `node`, of which at most `queued` are under way at once, in chunks of
    /// `chunk` by `threads`. In this direction or the other: a row of two stages takes as long backwards.
    pub fn predict(&self, node: u32, bytes: Bytes, queued: u64, chunk: Bytes, threads: u32) -> f64 {
        let each = bytes.div_ceil(chunk) as usize;
        let fills: Vec<_> = (1..=threads).map(|busy| self.threads(node, busy)).collect();
        let mut coming = sizes(bytes, chunk).cycle();
        // One copy at a time is followed from end to end; of more, what they do once the pipeline is full.
        let follow = if queued == 1 { each.min(FOLLOWED) } else { FOLLOWED.max(3 * queued as usize) };
        // When each chunk was through; fixed cost and bytes that each thread has left of its chunk, and the chunk.
        let mut through: Vec<f64> = Vec::with_capacity(follow);
        let mut running: Vec<(f64, f64, f64)> = Vec::with_capacity(fills.len());
        let (mut now, mut begun) = (0.0_f64, 0);
        while through.len() < follow {
            // The copy that has to be over before the next chunk's can begin, and when it is.
            let before = (begun / each + 1).checked_sub(queued as usize).map_or(0, |copies| copies * each);
            let from = if before == 0 { Some(0.0) } else { through.get(before - 1).copied() };
            let mut step = f64::INFINITY;
            if let Some(from) = from.filter(|_| begun < follow && running.len() < fills.len()) {
                if from <= now {
                    let Some(size) = coming.next() else { break };
                    running.push((fills[0].fixed, size, size));
                    begun += 1;
                    continue;
                }
                step = from - now;
            }
            let fill = fills[running.len().max(1) - 1];
            let left = |&(fixed, bytes, _): &(f64, f64, f64)| fixed + bytes * fill.per_byte;
            step = running.iter().map(left).fold(step, f64::min);
            now += step;
            running.retain_mut(|run| {
                let rest = left(run) - step;
                (run.0, run.1) = ((run.0 - step).max(0.0), run.1.min(rest / fill.per_byte));
                if rest <= 1e-6 {
                    let free = through.last().map_or(now, |last| last.max(now));
                    through.push(free + self.engine.time(run.2));
                }
                rest > 1e-6
            });
        }
        let (mean, last) = (bytes as f64 / each as f64, fills[fills.len() - 1]);
        let repeat = self.engine.time(mean).max(last.time(mean) / f64::from(threads));
        let end = through.last().copied().unwrap_or(0.0);
        if queued == 1 {
            return end + (each - follow) as f64 * repeat;
        }
        let half = follow / 2;
        (end - through[half - 1]) / (follow - half) as f64 * each as f64
    }

    /// How far these costs are from `other`, as a factor of at least 1: the larger of engine's and threads' change.
    pub fn drift(&self, other: &Self) -> f64 {
        let apart = |a: &Fit, b: &Fit| {
            let (a, b) = (a.time(1e6), b.time(1e6));
            (a / b).max(b / a)
        };
        let mut most = apart(&self.engine, &other.engine);
        for (node, threads) in &self.nodes {
            let Some(was) = other.nodes.get(node) else { return f64::INFINITY };
            most = most.max(apart(&threads.alone, &was.alone));
            for busy in threads.crowd.keys() {
                most = most.max(apart(&threads.cost(*busy), &was.cost(*busy)));
            }
        }
        most
    }
}

/// The chunks of a copy: the odd part, then whole ones.
fn sizes(bytes: Bytes, chunk: Bytes) -> impl Iterator<Item = f64> + Clone {
    let odd = bytes % chunk;
    let whole = std::iter::repeat_n(chunk as f64, (bytes / chunk) as usize);
    (odd > 0).then_some(odd as f64).into_iter().chain(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_and_per_byte_costs_are_told_apart_and_changes_are_followed() {
        let mut fit = FIRST_ENGINE;
        for i in 0..200_u64 {
            let bytes = 100_000 * (1 + i % 3);
            fit.add(bytes, 5_000 + bytes / 20);
        }
        assert!((fit.fixed - 5_000.0).abs() < 5.0 && (fit.per_byte - 0.05).abs() < 1e-4, "{fit:?}");
        for _ in 0..200 {
            fit.add(200_000, 5_000 + 20_000);
        }
        assert!((fit.time(200_000.0) - 25_000.0).abs() < 50.0, "{fit:?}");
    }

    #[test]
    fn a_row_of_two_stages_is_predicted() {
        let mut costs = Costs::new();
        for bytes in [1000, 2000, 3000].into_iter().cycle().take(300) {
            costs.engine(bytes, 100 + bytes / 10);
            costs.thread(0, 1.0, bytes, 50 + bytes / 5);
        }
        // Fills of 250 end at 250, 500, 750, 1000; the engine takes 200 for each.
        let time = costs.predict(0, 4000, 1, 1000, 1);
        assert!((time - 1200.0).abs() < 2.0, "{time}");
        // Two threads, as fast each: 250, 250, 500, 500; the engine ends at 450, 650, 850, 1050.
        let time = costs.predict(0, 4000, 1, 1000, 2);
        assert!((time - 1050.0).abs() < 2.0, "{time}");
        // Many copies: the slower stage alone counts, but one chunk at a time goes through both.
        let time = costs.predict(0, 4000, 8, 1000, 1);
        assert!((time - 1000.0).abs() < 5.0, "{time}");
        let time = costs.predict(0, 1000, 1, 1000, 4);
        assert!((time - 450.0).abs() < 2.0, "{time}");
    }

    #[test]
    fn a_tier_that_is_used_up_is_shared() {
        let mut costs = Costs::new();
        for bytes in [100_000, 200_000].into_iter().cycle().take(100) {
            costs.thread(3, 1.0, bytes, bytes / 10);
        }
        assert!((costs.threads(3, 8).per_byte - 0.1).abs() < 1e-3, "more threads are expected to help");
        for _ in 0..100 {
            costs.thread(3, 4.0, 100_000, 20_000);
        }
        assert!((costs.threads(3, 2).per_byte - 0.1).abs() < 1e-3);
        assert!((costs.threads(3, 8).per_byte - 0.4).abs() < 1e-3, "until they were seen not to");
    }
}
