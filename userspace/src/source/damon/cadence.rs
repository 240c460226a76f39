//! How often DAMON looks.
//!
//! While a job's hot set changes, looking often finds it soon; at rest it only costs. Rule (ours): kdamond's measured
//! share of a CPU is held under one budget while there is something to move and under a smaller one at rest, by
//! doubling the sampling interval, up to [`Intervals::REST`] times the base; the first plan after a rest brings it back.
//!
//! Between the two, once nothing moved for [`Cadence::QUIET`], kdamond looks half as often, and after that half as often
//! again, where the aggregation does not become longer by it: what changes is told as soon as before, from fewer samples.
//! In twice the time twice as many samples find a page used, all of them at the most, so it is not done where that would
//! make alike what is told apart by its use. Plans that go on for as long bring the samples back.

use std::time::{Duration, Instant};

/// DAMON's sampling and aggregation intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Each region is looked at once in this time.
    pub sampling: Duration,
    /// Counts are reported and reset once in this time.
    pub aggregation: Duration,
}

impl Intervals {
    /// How many times the base sampling interval is lengthened, at most.
    pub const REST: u32 = 16;
    /// With fewer samples, one chance access makes a region look hot.
    const FEWEST: u32 = 5;

    /// Samples in one aggregation: the count at which a region is seen always accessed.
    pub fn samples(&self) -> u32 {
        let samples = self.aggregation.as_micros() / self.sampling.as_micros().max(1);
        u32::try_from(samples).unwrap_or(u32::MAX).max(1)
    }

    /// Samples less often. The aggregation keeps its length, so that reaction stays quick, while it still holds
    /// [`Intervals::FEWEST`] samples.
    fn scaled(&self, factor: u32) -> Self {
        let sampling = self.sampling * factor;
        Self { sampling, aggregation: self.aggregation.max(sampling * Self::FEWEST) }
    }
}

/// Shares of one CPU that kdamond may take, 0 to 1.
#[derive(Clone, Copy, Debug)]
pub struct CpuBudget {
    /// While there is something to move.
    pub active: f64,
    /// Once nothing was worth moving for [`Cadence::PATIENCE`].
    pub rest: f64,
}

/// Keeps the cadence of one agent.
#[derive(Debug)]
pub struct Cadence {
    base: Intervals,
    budget: CpuBudget,
    factor: u32,
    /// Less often than while something moves.
    eased: bool,
    changed: Instant,
    last_plan: Instant,
    /// The first plan after a quiet.
    first_plan: Instant,
}

impl Cadence {
    /// Rest begins when nothing was worth moving for this long.
    pub const PATIENCE: Duration = Duration::from_secs(25);
    /// Nothing moved for so long, or something has for so long.
    pub const QUIET: Duration = Duration::from_secs(4);
    /// A share measured over less than this after a change says little.
    const SETTLE: Duration = Duration::from_secs(4);

    /// Starts at `base`.
    pub fn new(base: Intervals, budget: CpuBudget, now: Instant) -> Self {
        Self { base, budget, factor: 1, eased: false, changed: now, last_plan: now, first_plan: now }
    }

    /// The intervals in force.
    pub fn now(&self) -> Intervals {
        self.base.scaled(self.factor)
    }

    /// The factor on the base intervals, 1 when active.
    pub fn factor(&self) -> u32 {
        self.factor
    }

    /// Takes in whether the last decision moved anything, kdamond's share of a CPU, and whether twice the time would make
    /// alike what is used unlike; says whether the intervals changed, so that DAMON must be started anew with them.
    pub fn step(&mut self, moved: bool, kdamond_cpu: f64, blurs: impl FnOnce() -> bool, now: Instant) -> bool {
        let still = now.duration_since(self.last_plan);
        let resting = still >= Self::PATIENCE;
        if moved {
            self.first_plan = if still >= Self::QUIET { now } else { self.first_plan };
            self.last_plan = now;
        }
        let settled = now.duration_since(self.changed) >= Self::SETTLE;
        let goes_on = self.eased && now.duration_since(self.first_plan) >= Self::QUIET;
        let eases = || still >= Self::QUIET && self.keeps_aggregation(self.factor * 2) && !blurs();
        let (wanted, eased) = match moved {
            true if resting || (settled && goes_on) => (self.affordable(kdamond_cpu), false),
            false if settled && kdamond_cpu > self.budget.rest && (resting || eases()) => (self.factor * 2, true),
            _ if !resting && settled && kdamond_cpu > self.budget.active => (self.factor * 2, self.eased),
            _ => (self.factor, self.eased),
        };
        self.eased = eased;
        let wanted = wanted.min(Intervals::REST);
        let change = wanted != self.factor;
        if change {
            self.factor = wanted;
            self.changed = now;
        }
        change
    }

    fn keeps_aggregation(&self, factor: u32) -> bool {
        self.base.scaled(factor).aggregation == self.base.scaled(1).aggregation
    }

    /// The smallest factor whose cost, taken as proportional to how often kdamond looks, is within the active budget.
    fn affordable(&self, kdamond_cpu: f64) -> u32 {
        let at_base = kdamond_cpu * f64::from(self.factor);
        let mut factor = 1;
        while factor < self.factor && at_base / f64::from(factor) > self.budget.active {
            factor *= 2;
        }
        factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Intervals = Intervals { sampling: Duration::from_millis(50), aggregation: Duration::from_secs(1) };

    /// Steps a cadence once a second; kdamond costs `at_base` of a CPU at the base intervals. Returns the factors.
    fn factors(at_base: f64, seconds: u64, blurs: bool, moved: impl Fn(u64) -> bool) -> Vec<u32> {
        let start = Instant::now();
        let mut cadence = Cadence::new(BASE, CpuBudget { active: 0.2, rest: 0.03 }, start);
        (1..=seconds)
            .map(|second| {
                let cost = at_base / f64::from(cadence.factor());
                cadence.step(moved(second), cost, || blurs, start + Duration::from_secs(second));
                cadence.factor()
            })
            .collect()
    }

    #[test]
    fn rest_backs_off_until_it_is_cheap_and_a_plan_brings_it_back() {
        let factors = factors(0.16, 200, true, |second| second == 200);
        assert_eq!(factors[198], 8, "0.16 / 8 is the first under 0.03");
        assert_eq!(factors[199], 1);
    }

    #[test]
    fn rest_stops_at_a_bound() {
        assert_eq!(factors(9.0, 300, true, |_| false).last(), Some(&Intervals::REST));
    }

    #[test]
    fn what_is_cheap_is_never_slowed() {
        assert!(factors(0.02, 300, false, |_| false).iter().all(|&factor| factor == 1));
    }

    #[test]
    fn phases_shorter_than_the_patience_never_lengthen_the_aggregation() {
        assert!(factors(0.15, 300, true, |second| second % 20 < 3).iter().all(|&factor| factor == 1));
        let eased = factors(0.15, 300, false, |second| second % 20 < 3);
        assert!(eased.iter().all(|&factor| BASE.scaled(factor).aggregation == BASE.aggregation));
        assert_eq!(eased.last(), Some(&4), "and leave a quarter of the samples");
    }

    #[test]
    fn a_quiet_eases_it_and_plans_that_go_on_bring_the_samples_back() {
        let factors = factors(0.15, 60, false, |second| second <= 10 || second == 25 || second >= 40);
        let at = |second: usize| factors[second - 1];
        assert_eq!((at(13), at(14), at(18), at(25), at(39), at(43), at(44)), (1, 2, 4, 4, 4, 4, 1));
    }

    #[test]
    fn a_costly_scan_is_made_rarer_even_while_moving() {
        assert_eq!(factors(0.7, 60, true, |_| true).last(), Some(&4));
    }

    #[test]
    fn the_aggregation_grows_only_when_its_samples_run_out() {
        let seconds = |factor| BASE.scaled(factor).aggregation.as_secs_f64();
        assert_eq!((seconds(1), seconds(4), seconds(16)), (1.0, 1.0, 4.0));
        assert_eq!(BASE.scaled(16).samples(), 5);
    }

    #[test]
    fn samples_are_at_least_one() {
        let odd = Intervals { sampling: Duration::from_secs(2), aggregation: Duration::from_secs(1) };
        assert_eq!((BASE.samples(), odd.samples()), (20, 1));
    }
}
