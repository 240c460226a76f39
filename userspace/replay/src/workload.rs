//! What a job does: regions that live for a while, and the accesses of each interval.
//!
//! The unit of access is the cache line of 64 bytes, the unit of time an interval as a monitor would report it. A
//! workload is the truth: what a policy sees of it is made in [`crate::sim`].

use std::ops::Range;

use tensortier_model::{Bytes, Nanos};

/// Bytes of one access.
pub const LINE: Bytes = 64;
/// Bytes of a page.
pub const PAGE: Bytes = 4096;
/// Looks at a region in an interval, as DAMON takes them: a page at random, was it accessed since the last look.
pub const SAMPLES: u32 = 20;

/// How a region is accessed, which decides whether a tier's latency or its bandwidth counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Lines in no order: each pays the latency, many are under way at once.
    Random,
    /// From end to end: prefetched, so only bandwidth counts.
    Stream,
}

/// A range of addresses whose bytes are accessed alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its first address.
    pub start: u64,
    /// Its size.
    pub bytes: Bytes,
    /// The job it is of, counted from 0.
    pub job: u32,
    /// How it is accessed.
    pub pattern: Pattern,
    /// The interval in which it is allocated.
    pub born: usize,
    /// The first interval without it.
    pub dies: usize,
}

/// Accesses of one region in one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Touch {
    /// Index of the region.
    pub region: usize,
    /// Lines read.
    pub read: u64,
    /// Lines written.
    pub written: u64,
    /// Share of [`SAMPLES`] that find it accessed, 0 to 1.
    pub heat: f32,
}

impl Touch {
    /// Lines read and written.
    pub fn lines(&self) -> u64 {
        self.read + self.written
    }
}

/// A job, or several at once, over a stretch of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What it is.
    pub name: String,
    /// Length of an interval.
    pub interval: Nanos,
    /// All regions that ever live.
    pub regions: Vec<Region>,
    /// Touches of each interval, by region.
    pub touches: Vec<Vec<Touch>>,
    /// For each job the times at which its steps begin, and the end of the last one.
    pub steps: Vec<Vec<Nanos>>,
}

impl Workload {
    /// Number of intervals.
    pub fn intervals(&self) -> usize {
        self.touches.len()
    }

    /// The most bytes alive at once.
    pub fn footprint(&self) -> Bytes {
        let mut change = vec![0i128; self.intervals() + 1];
        for region in &self.regions {
            change[region.born.min(self.intervals())] += i128::from(region.bytes);
            change[region.dies.min(self.intervals())] -= i128::from(region.bytes);
        }
        let mut alive = 0;
        let most = change.into_iter().map(|change| {
            alive += change;
            alive
        });
        most.max().and_then(|most| Bytes::try_from(most).ok()).unwrap_or(0)
    }

    /// The first interval that lies wholly after `steps` steps of the first job.
    pub fn after_steps(&self, steps: usize) -> usize {
        let start = self.steps.first().and_then(|starts| starts.get(steps)).copied();
        start.map_or(self.intervals(), |at| at.div_ceil(self.interval.max(1)) as usize).min(self.intervals())
    }

    /// The same job in some of its intervals only. What lived before counts as allocated at their beginning.
    pub fn window(&self, intervals: Range<usize>) -> Self {
        let end = intervals.end.min(self.intervals());
        let first = intervals.start.min(end);
        let clip = |at: usize| at.clamp(first, end) - first;
        let (from, to) = (first as Nanos * self.interval, end as Nanos * self.interval);
        let steps =
            |starts: &Vec<Nanos>| starts.iter().filter(|at| (from..=to).contains(*at)).map(|at| at - from).collect();
        Self {
            name: self.name.clone(),
            interval: self.interval,
            regions: self.regions.iter().map(|r| Region { born: clip(r.born), dies: clip(r.dies), ..*r }).collect(),
            touches: self.touches[first..end].to_vec(),
            steps: self.steps.iter().map(steps).collect(),
        }
    }
}

/// The heat that a monitor is expected to report for `lines` accesses of a region in one interval: the chance that a
/// page taken at random was accessed between two looks, with accesses spread evenly (a Poisson process; ours). A stream
/// visits a page once for all of its lines.
pub fn expected_heat(pattern: Pattern, bytes: Bytes, lines: u64) -> f64 {
    let visits = match pattern {
        Pattern::Random => lines as f64,
        Pattern::Stream => lines as f64 / (PAGE / LINE) as f64,
    };
    let pages = (bytes / PAGE).max(1) as f64;
    1.0 - (-visits / (pages * f64::from(SAMPLES))).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pass_over_a_region_is_found_by_one_look_in_twenty() {
        let bytes = 1 << 30;
        let heat = expected_heat(Pattern::Stream, bytes, bytes / LINE);
        assert!((heat - 0.0488).abs() < 1e-3, "{heat}");
        let random = expected_heat(Pattern::Random, bytes, bytes / LINE);
        assert!(random > 0.9, "{random}");
        assert_eq!(expected_heat(Pattern::Random, bytes, 0), 0.0);
    }

    #[test]
    fn a_window_clips_lives_touches_and_steps() {
        let region = |born, dies| Region { start: 0, bytes: 8, job: 0, pattern: Pattern::Random, born, dies };
        let touch = |read| vec![Touch { region: 0, read, written: 0, heat: 0.0 }];
        let whole = Workload {
            name: "w".into(),
            interval: 10,
            regions: vec![region(0, 4), region(1, 2), region(3, 4)],
            touches: (0..4).map(touch).collect(),
            steps: vec![vec![0, 15, 31]],
        };
        assert_eq!((whole.footprint(), whole.after_steps(1), whole.after_steps(7)), (16, 2, 4));
        let part = whole.window(2..4);
        assert_eq!(part.regions.iter().map(|r| (r.born, r.dies)).collect::<Vec<_>>(), [(0, 2), (0, 0), (1, 2)]);
        assert_eq!(part.touches, [touch(2), touch(3)]);
        assert_eq!(part.steps, [[11]]);
    }
}
