//! Accesses at any time, gathered into intervals.

use std::collections::BTreeMap;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::{Bytes, Nanos};

use crate::workload::{LINE, Pattern, Region, SAMPLES, Touch, Workload, expected_heat};

/// Length of an interval.
const INTERVAL: Nanos = 1_000_000_000;
/// Addresses from one region's start to the next: no two touch, as under an allocator with guard pages.
const STRIDE: u64 = 1 << 32;

/// Regions and accesses so far.
#[derive(Default)]
pub struct Timeline {
    regions: Vec<Region>,
    /// Lines read and written, by interval and region.
    touches: BTreeMap<(usize, usize), (u64, u64)>,
    steps: Vec<Vec<Nanos>>,
}

/// What is done to a region: passes over all of its lines.
#[derive(Clone, Copy)]
pub struct Passes {
    pub read: f64,
    pub written: f64,
}

impl Timeline {
    /// A region of `job` that lives until it is freed. It has the address of the `slot`.
    pub fn region(&mut self, job: u32, slot: usize, bytes: Bytes, pattern: Pattern, born: f64) -> usize {
        let (start, born) = (STRIDE * (1 + slot as u64), (nanos(born) / INTERVAL) as usize);
        self.regions.push(Region { start, bytes, job, pattern, born, dies: usize::MAX });
        self.regions.len() - 1
    }

    /// So many regions that live from the beginning.
    pub fn regions(&mut self, job: u32, count: usize, bytes: Bytes, pattern: Pattern) -> Vec<usize> {
        (0..count).map(|_| self.region(job, self.regions.len(), bytes, pattern, 0.0)).collect()
    }

    /// The region is gone once what it is used for at `at` (seconds) is over.
    pub fn free(&mut self, region: usize, at: f64) {
        self.regions[region].dies = (nanos(at) / INTERVAL) as usize + 1;
    }

    /// A step of `job` begins, or its last one ends, at `at` seconds.
    pub fn step(&mut self, job: u32, at: f64) {
        let job = job as usize;
        self.steps.resize(self.steps.len().max(job + 1), Vec::new());
        self.steps[job].push(nanos(at));
    }

    /// Accesses spread evenly over `from` to `to` seconds.
    pub fn touch(&mut self, region: usize, from: f64, to: f64, passes: Passes) {
        let lines = |passes: f64| (passes * (self.regions[region].bytes / LINE) as f64) as u64;
        let (read, written) = (lines(passes.read), lines(passes.written));
        let (from, to) = (nanos(from), nanos(to).max(nanos(from) + 1));
        let until = |lines: u64, at: Nanos| (u128::from(lines) * u128::from(at - from) / u128::from(to - from)) as u64;
        for interval in from / INTERVAL..=(to - 1) / INTERVAL {
            let (begin, end) = (from.max(interval * INTERVAL), to.min((interval + 1) * INTERVAL));
            let entry = self.touches.entry((interval as usize, region)).or_default();
            entry.0 += until(read, end) - until(read, begin);
            entry.1 += until(written, end) - until(written, begin);
        }
    }

    /// The workload; heat is drawn with `random`, or expected.
    pub fn finish(&mut self, name: &str, mut random: Option<&mut Xoshiro256PlusPlus>) -> Workload {
        let last = self.touches.last_key_value().map_or(0, |((interval, _), _)| interval + 1);
        let mut touches = vec![Vec::new(); last];
        let mut regions = std::mem::take(&mut self.regions);
        regions.iter_mut().for_each(|region| region.dies = region.dies.min(last));
        for (&(interval, region), &(read, written)) in
            self.touches.iter().filter(|(_, (read, written))| read + written > 0)
        {
            let Region { pattern, bytes, .. } = regions[region];
            let expected = expected_heat(pattern, bytes, read + written);
            let heat = match &mut random {
                Some(random) => {
                    let found = (0..SAMPLES).filter(|_| random.random_bool(expected)).count();
                    found as f32 / SAMPLES as f32
                }
                None => expected as f32,
            };
            touches[interval].push(Touch { region, read, written, heat });
        }
        let steps = std::mem::take(&mut self.steps);
        Workload { name: name.into(), interval: INTERVAL, regions, touches, steps }
    }
}

fn nanos(seconds: f64) -> Nanos {
    (seconds * 1e9).round() as Nanos
}
