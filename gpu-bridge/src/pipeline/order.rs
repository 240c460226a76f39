//! The order in which a job uses its objects, learned from its own repetition. Ours.

use std::collections::BTreeMap;

use tensortier_model::Nanos;

/// Uses that are remembered: a step of a large model has some ten thousand.
const MOST: usize = 1 << 17;
/// Weight of the newest interval in a fading mean.
const NEWEST: f64 = 0.25;

/// A use that is to be expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The object.
    pub object: u64,
    /// When, if the job goes on as before.
    pub at: Nanos,
}

/// Occurrences of an object that a step may have begun with.
const CANDIDATES: usize = 8;

/// Learns a job's step: the shortest row of uses that the job has made twice in succession. A row that does not hold to
/// its end was none, and a longer one is looked for; one that held and ends is another phase, learned from anew.
#[derive(Debug)]
pub struct Order {
    history: Vec<u64>,
    /// Intervals before each use of the history.
    intervals: Vec<f64>,
    /// Where each object was used, newest last.
    places: BTreeMap<u64, Vec<usize>>,
    used: Nanos,
    /// The step, once it is known: objects, and nanoseconds from each use to the next.
    step: Vec<(u64, f64)>,
    /// Place in the step of the use to come.
    next: usize,
    /// Whether the step has held to its end.
    held: bool,
    /// Least length of a step.
    least: usize,
    /// Times that the job left its order.
    misses: u64,
}

impl Default for Order {
    fn default() -> Self {
        let (history, intervals, places, step) = Default::default();
        Self { history, intervals, places, used: 0, step, next: 0, held: false, least: 1, misses: 0 }
    }
}

impl Order {
    /// The job uses `object` now.
    pub fn used(&mut self, object: u64, now: Nanos) {
        let interval = now.saturating_sub(self.used) as f64;
        self.used = now;
        let length = self.step.len();
        if let Some(&(expected, _)) = self.step.get(self.next) {
            if expected == object {
                let mean = &mut self.step[(self.next + length - 1) % length].1;
                *mean += NEWEST * (interval - *mean);
                self.next = (self.next + 1) % length;
                self.held |= self.next == 0;
                if !self.held {
                    self.remember(object, interval);
                }
                return;
            }
            self.misses += 1;
            self.step.clear();
            if self.held {
                self.forget();
            } else {
                self.least = length + 1;
            }
        }
        self.remember(object, interval);
        self.learn();
    }

    /// The next `count` uses, soonest first; none while no step is known.
    pub fn ahead(&self, count: usize) -> impl Iterator<Item = Expected> + '_ {
        let length = self.step.len();
        let mut at = self.used as f64;
        (0..count.min(length)).map(move |k| {
            let place = (self.next + k) % length;
            at += self.step[(place + length - 1) % length].1;
            Expected { object: self.step[place].0, at: at as Nanos }
        })
    }

    /// Times that the job left its order.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    fn forget(&mut self) {
        *self = Self { used: self.used, misses: self.misses, ..Self::default() };
    }

    fn remember(&mut self, object: u64, interval: f64) {
        if self.history.len() == MOST {
            self.forget();
        }
        self.places.entry(object).or_default().push(self.history.len());
        self.history.push(object);
        self.intervals.push(interval);
    }

    /// Looks for a row that has just been made for the second time.
    fn learn(&mut self) {
        let length = self.history.len();
        let Some(places) = self.history.last().and_then(|object| self.places.get(object)) else { return };
        let periods = places.iter().rev().skip(1).take(CANDIDATES).map(|before| length - 1 - before);
        let twice = |&period: &usize| {
            length >= 2 * period
                && self.history[length - period..] == self.history[length - 2 * period..length - period]
        };
        let Some(period) = periods.filter(|period| *period >= self.least).find(twice) else { return };
        // The interval after a use is the one before its successor.
        let after = |i: usize| self.intervals[if i == length - 1 { length - period } else { i + 1 }];
        self.step = (length - period..length).map(|i| (self.history[i], after(i))).collect();
        (self.next, self.held) = (0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(order: &Order, count: usize) -> Vec<u64> {
        order.ahead(count).map(|use_| use_.object).collect()
    }

    #[test]
    fn a_step_is_known_after_two_and_its_times_after_that() {
        let mut order = Order::default();
        // Forward and back: 1 2 3 3 2 1, with objects used twice a step.
        let step = [1, 2, 3, 3, 2, 1];
        let mut now = 0;
        for i in 0..12 {
            // That 3 comes twice in succession is no step.
            assert!(order.misses() <= 1);
            now += 100;
            order.used(step[i % 6], now);
        }
        for i in 12..40 {
            now += 100;
            order.used(step[i % 6], now);
        }
        let ahead: Vec<_> = order.ahead(4).collect();
        assert_eq!(ahead.iter().map(|e| e.object).collect::<Vec<_>>(), [2, 1, 1, 2]);
        assert_eq!(ahead.iter().map(|e| e.at - now).collect::<Vec<_>>(), [100, 200, 300, 400]);
    }

    #[test]
    fn another_order_is_learned_anew() {
        let mut order = Order::default();
        (0..20).for_each(|i| order.used(i % 5, i));
        assert_eq!(objects(&order, 7), [0, 1, 2, 3, 4], "no more than a step");
        order.used(9, 20);
        assert_eq!((objects(&order, 3), order.misses()), (vec![], 1));
        (0..8).for_each(|i| order.used(10 + i % 4, 30 + i));
        assert_eq!(objects(&order, 2), [10, 11]);
    }
}
