//! Memory that a program hands out before it runs: which bytes, and after what they may be used.
//!
//! A plan counts bytes and gives no addresses. So that every plan that fits by count also fits here, a block may lie in
//! several parts where no hole is long enough. Of the holes that the simulation expects to be free by the time a block
//! is needed, the shortest that is long enough is taken, or else the longest ones, one after the other. Ours.

use std::collections::BTreeMap;

use tensortier_model::{Bytes, Nanos};

use crate::pipeline::kernel::{Range, Ranges};

/// So many tasks of each stream have ended: what a task waits for, and what has come to pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upto(pub [u32; 3]);

impl Upto {
    /// Both.
    pub fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|stream| self.0[stream].max(other.0[stream])))
    }

    /// Whether all of it has come to pass, by `done`.
    pub fn is_in(self, done: Self) -> bool {
        self.and(done) == done
    }
}

#[derive(Clone, Copy, Debug)]
struct Hole {
    bytes: Bytes,
    /// When it is expected to be free.
    time: Nanos,
    /// After what it is free.
    after: Upto,
}

/// One pool.
#[derive(Debug)]
pub struct Arena {
    holes: BTreeMap<Bytes, Hole>,
    /// End of the last byte ever handed out.
    high: Bytes,
}

impl Arena {
    /// `bytes` from `base` on.
    pub fn new(base: Bytes, bytes: Bytes) -> Self {
        let hole = Hole { bytes, time: 0, after: Upto::default() };
        Self { holes: BTreeMap::from([(base, hole)]), high: base }
    }

    /// `bytes` for use at `at`, and after what they may be used; `None` where there are not so many at any time.
    pub fn take(&mut self, bytes: Bytes, at: Nanos) -> Option<(Ranges, Upto)> {
        let mut times: Vec<_> = self.holes.values().map(|hole| (hole.time, hole.bytes)).collect();
        times.sort_unstable();
        let (mut sum, mut by) = (0, at);
        for (time, held) in times {
            if time > by && sum >= bytes {
                break;
            }
            (sum, by) = (sum + held, by.max(time));
        }
        if sum < bytes {
            return None;
        }
        let mut runs = self.runs(by);
        // The shortest that is long enough goes to the front, before the longest ones.
        runs.sort_by_key(|&(start, length)| (std::cmp::Reverse(length), start));
        if let Some(fits) = runs.iter().rposition(|&(_, length)| length >= bytes) {
            runs.swap(0, fits);
        }
        let (mut ranges, mut after, mut left) = (Ranges::new(), Upto::default(), bytes);
        for (start, length) in runs {
            let part = length.min(left);
            if part == 0 {
                break;
            }
            after = after.and(self.carve(start, part));
            ranges.push((start, part));
            left -= part;
        }
        self.high = ranges.iter().map(|(start, part)| start + part).fold(self.high, Bytes::max);
        Some((ranges, after))
    }

    /// Gives ranges back that are free at `time`, after `after`.
    pub fn give(&mut self, ranges: &[Range], time: Nanos, after: Upto) {
        for &(start, bytes) in ranges {
            self.holes.insert(start, Hole { bytes, time, after });
        }
    }

    /// End of the last byte ever handed out.
    pub fn high(&self) -> Bytes {
        self.high
    }

    /// What lies together and is free by a time: start and length.
    fn runs(&self, by: Nanos) -> Vec<(Bytes, Bytes)> {
        let mut runs: Vec<(Bytes, Bytes)> = Vec::new();
        for (&start, hole) in self.holes.iter().filter(|(_, hole)| hole.time <= by && hole.bytes > 0) {
            match runs.last_mut() {
                Some((first, length)) if *first + *length == start => *length += hole.bytes,
                _ => runs.push((start, hole.bytes)),
            }
        }
        runs
    }

    /// Takes `bytes` out of the holes from `start` on.
    fn carve(&mut self, start: Bytes, bytes: Bytes) -> Upto {
        let (mut at, end, mut after) = (start, start + bytes, Upto::default());
        while at < end
            && let Some(hole) = self.holes.remove(&at)
        {
            after = after.and(hole.after);
            let part = hole.bytes.min(end - at);
            if part < hole.bytes {
                self.holes.insert(at + part, Hole { bytes: hole.bytes - part, ..hole });
            }
            at += part;
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_fits_by_count_fits_and_waits_for_what_was_there() {
        let mut arena = Arena::new(100, 30);
        let blocks: Vec<_> = (0..3).map(|_| arena.take(10, 0).expect("room").0).collect();
        assert_eq!(blocks, [[(100, 10)], [(110, 10)], [(120, 10)]]);
        assert!(arena.take(1, u64::MAX).is_none());
        arena.give(&blocks[0], 50, Upto([1, 0, 0]));
        arena.give(&blocks[2], 70, Upto([0, 2, 0]));
        let (ranges, after) = arena.take(15, 0).expect("in parts, later");
        assert_eq!((ranges, after), (vec![(100, 10), (120, 5)], Upto([1, 2, 0])));
        let (ranges, after) = arena.take(5, 0).expect("the rest");
        assert_eq!((ranges, after), (vec![(125, 5)], Upto([0, 2, 0])));
    }

    #[test]
    fn what_is_free_early_enough_is_preferred() {
        let mut arena = Arena::new(0, 20);
        let blocks: Vec<_> = (0..2).map(|_| arena.take(10, 0).expect("room").0).collect();
        arena.give(&blocks[0], 90, Upto([0, 0, 9]));
        arena.give(&blocks[1], 10, Upto([1, 0, 0]));
        assert_eq!(arena.take(4, 20), Some((vec![(10, 4)], Upto([1, 0, 0]))));
        assert_eq!(arena.take(0, 20), Some((vec![], Upto::default())));
    }

    proptest! {
        /// Blocks that live at the same time never meet, and none fails that fits by count.
        #[test]
        fn no_byte_has_two_owners(sizes in prop::collection::vec((0..40u64, any::<u8>()), 1..80)) {
            let mut arena = Arena::new(7, 100);
            let mut live: Vec<Ranges> = Vec::new();
            for (now, (bytes, which)) in (0..).zip(sizes) {
                while live.iter().flatten().map(|r| r.1).sum::<u64>() + bytes > 100 {
                    let gone = live.remove(usize::from(which) % live.len());
                    arena.give(&gone, now + u64::from(which) % 5, Upto::default());
                }
                let (ranges, _) = arena.take(bytes, now).expect("fits by count");
                prop_assert_eq!(ranges.iter().map(|r| r.1).sum::<u64>(), bytes);
                live.push(ranges);
                let mut all: Vec<_> = live.iter().flatten().copied().collect();
                all.sort_unstable();
                prop_assert!(all.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
                prop_assert!(all.iter().all(|&(start, bytes)| start >= 7 && start + bytes <= 107));
            }
        }
    }
}
