//! What placement could have reached: the best fixed set of a job's memory on DRAM.
//!
//! **Rule** (ours). Time is cut into windows of equal length, from the start of each phase on. Of each window every
//! unit's touches are known, and the units touched most, as many as DRAM holds, are the best set that does not change
//! within it:
//!
//! ```text
//! share = touches of the units that fit / touches of all units
//! ```
//!
//! The last of them counts with the part that fits. A set that changes within a window can do better, at the price of
//! moving.

use serde::{Deserialize, Serialize};

/// One window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its first moment, in seconds since the first touch.
    pub from: f64,
    /// Its last.
    pub to: f64,
    /// The phase that it lies in.
    pub phase: u64,
    /// Cache lines touched in it.
    pub accesses: u64,
    /// Share of those that the best fixed set would have had on DRAM.
    pub share: f64,
}

/// Adds touches up and closes windows.
#[derive(Debug)]
pub struct Oracle {
    /// Units that DRAM holds.
    fit: f64,
    seconds: f64,
    open: Option<Open>,
    closed: Vec<Best>,
}

#[derive(Debug)]
struct Open {
    /// Phase, and number of the window in it.
    of: (u64, i64),
    from: f64,
    to: f64,
    touches: Vec<u64>,
}

impl Oracle {
    /// Of windows of `seconds` and DRAM for `dram` bytes of units of `unit_bytes`.
    pub fn new(dram: u64, unit_bytes: u64, seconds: f64) -> Self {
        Self { fit: dram as f64 / unit_bytes as f64, seconds, open: None, closed: Vec::new() }
    }

    /// Takes in each unit's touches from `from` to `to`, of a phase that began at `began`.
    pub fn take(&mut self, from: f64, to: f64, phase: u64, began: f64, touches: &[u64]) {
        let of = (phase, ((from - began) / self.seconds).floor() as i64);
        if self.open.as_ref().is_some_and(|open| open.of != of) {
            self.close();
        }
        let open = self.open.get_or_insert_with(|| Open { of, from, to, touches: vec![0; touches.len()] });
        open.to = to;
        open.touches.iter_mut().zip(touches).for_each(|(sum, more)| *sum += more);
    }

    /// All windows, the last one as long as it is.
    pub fn finish(mut self) -> Vec<Best> {
        self.close();
        self.closed
    }

    fn close(&mut self) {
        let Some(Open { of: (phase, _), from, to, touches }) = self.open.take() else { return };
        let accesses = touches.iter().sum();
        if accesses > 0 {
            self.closed.push(Best { from, to, phase, accesses, share: best_share(touches, self.fit) });
        }
    }
}

/// Share of the touches that the `fit` units touched most have.
fn best_share(mut touches: Vec<u64>, fit: f64) -> f64 {
    touches.sort_unstable_by(|a, b| b.cmp(a));
    let part = |n: usize| (fit - n as f64).clamp(0.0, 1.0);
    let on_dram: f64 = touches.iter().enumerate().map(|(n, touches)| *touches as f64 * part(n)).sum();
    on_dram / touches.iter().sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 64 << 10;

    #[test]
    fn the_most_touched_units_are_kept_and_the_last_in_part() {
        assert_eq!(best_share(vec![1, 5, 0, 3, 1], 2.5), (5.0 + 3.0 + 0.5) / 10.0);
        assert_eq!(best_share(vec![7; 8], 2.0), 0.25);
        assert_eq!(best_share(vec![7, 1], 9.0), 1.0);
    }

    #[test]
    fn windows_end_with_their_time_and_with_their_phase() {
        let mut oracle = Oracle::new(UNIT, UNIT, 5.0);
        // Touched one after the other, the first two in one window: no fixed set of one holds both.
        oracle.take(0.0, 1.0, 0, 0.0, &[4, 0]);
        oracle.take(4.9, 5.9, 0, 0.0, &[0, 4]);
        oracle.take(5.9, 7.0, 0, 0.0, &[0, 6]);
        oracle.take(6.9, 7.9, 1, 7.0, &[3, 3]);
        oracle.take(7.9, 8.9, 1, 7.0, &[9, 0]);
        let best = oracle.finish();
        let seen: Vec<_> =
            best.iter().map(|best| (best.phase, best.from, best.to, best.accesses, best.share)).collect();
        let first = (0, 0.0, 5.9, 8, 0.5);
        assert_eq!(seen, [first, (0, 5.9, 7.0, 6, 1.0), (1, 6.9, 7.9, 6, 0.5), (1, 7.9, 8.9, 9, 1.0)]);
    }
}
