//! What a byte of a region is worth on the top tier, and how sure that is.
//!
//! **Rule** (ours). The gain of a region, in nanoseconds saved a second for each byte, is averaged over whole windows
//! of one step, so that it does not matter when in the step it is used; without a step a window is ten seconds. In the
//! mean and the variance of the windows the last one weighs a twentieth, or more while there are few. Only time that
//! the region lives counts.
//!
//! A change shows earlier, by the cumulative sum of what is gained over (or under) the mean (Page, Biometrika 41,
//! 1954): when it comes to what one move costs and four standard deviations more (of as long a sum of independent
//! windows), what was known is dropped for the mean since the interval after which it began.
//!
//! **Stay.** A value is expected to last as long as it has lasted, but no longer than regions at its address live.

/// Seconds of a window while no step is known.
const NO_STEP: f64 = 10.0;
/// Least weight of the newest window.
const NEWEST: f64 = 0.05;
/// Standard deviations of a window that a change has to exceed.
const CHANGE: f64 = 4.0;
/// Part of the standard deviation that the cumulative sums ignore.
const SLACK: f64 = 0.5;

/// The value of one region's bytes.
#[derive(Clone, Debug, Default)]
pub struct Value {
    /// Nanoseconds saved a second and byte.
    pub mean: f64,
    variance: f64,
    /// Windows behind the mean; after a change the change itself counts for some.
    windows: f64,
    /// Since when the value has lasted, seconds.
    since: f64,
    /// Length of the window under way, what it brought so far, and how long the region has lived in it.
    window: f64,
    begun: f64,
    gain: f64,
    lived: f64,
    over: Sum,
    under: Sum,
    /// When the region was born, and how long those at its address lived.
    born: f64,
    life: Option<f64>,
}

/// A cumulative sum and for how long it has been over 0.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sum: f64,
    time: f64,
    /// What its first interval, which the change fell into, brought of that.
    first: (f64, f64),
}

impl Sum {
    fn add(&mut self, excess: f64, seconds: f64) {
        if self.time == 0.0 {
            self.first = (excess, seconds);
        }
        self.sum += excess;
        self.time += seconds;
        if self.sum <= 0.0 {
            *self = Self::default();
        }
    }

    /// The mean excess a second.
    fn mean(&self) -> f64 {
        let (sum, time) = (self.sum - self.first.0, self.time - self.first.1);
        if time > 0.0 { sum / time } else { self.sum / self.time }
    }
}

impl Value {
    /// A region begins to live.
    pub fn born(&mut self, now: f64) {
        self.born = now;
        if self.windows == 0.0 {
            (self.since, self.begun) = (now, now);
        }
    }

    /// It is gone.
    pub fn died(&mut self, now: f64) {
        let life = now - self.born;
        self.life = Some(self.life.map_or(life, |before| before + 0.3 * (life - before)));
    }

    /// Takes in `seconds` up to `now` in which a byte gained `gain`. `step` is the job's step in seconds, `swap` the
    /// price of moving a byte up and another one down.
    pub fn observe(&mut self, now: f64, seconds: f64, gain: f64, step: Option<f64>, swap: f64) {
        let window = step.unwrap_or(NO_STEP);
        if (window / self.window - 1.0).abs() > 0.2 || self.window == 0.0 {
            // Windows of another length say nothing of these.
            (self.window, self.windows, self.begun, self.gain, self.lived) = (window, 0.0, now - seconds, 0.0, 0.0);
            (self.over, self.under) = (Sum::default(), Sum::default());
        }
        self.gain += gain;
        self.lived += seconds;
        let deviation = self.variance.sqrt();
        let (expected, slack) = (self.mean * seconds, SLACK * deviation * seconds);
        self.over.add(gain - expected - slack, seconds);
        self.under.add(expected - gain - slack, seconds);
        let limit = |sum: &Sum| swap / 2.0 + CHANGE * deviation * (window * sum.time).sqrt();
        if self.over.sum > limit(&self.over) {
            self.change(now, self.mean + self.over.mean(), self.over.time);
        } else if self.under.sum > limit(&self.under) {
            self.change(now, self.mean - self.under.mean(), self.under.time);
        } else if now - self.begun >= window {
            self.close(now);
        }
    }

    fn change(&mut self, now: f64, mean: f64, lasted: f64) {
        (self.mean, self.variance, self.windows) = (mean.max(0.0), 0.0, 2.0);
        (self.since, self.begun, self.gain, self.lived) = (now - lasted, now, 0.0, 0.0);
        (self.over, self.under) = (Sum::default(), Sum::default());
    }

    fn close(&mut self, now: f64) {
        let mean = self.gain / self.lived;
        self.windows += 1.0;
        if self.windows == 1.0 {
            (self.mean, self.variance) = (mean, 0.0);
        } else {
            let weight = NEWEST.max(1.0 / self.windows);
            let off = mean - self.mean;
            self.mean += weight * off;
            self.variance = (1.0 - weight) * (self.variance + weight * off * off);
        }
        (self.begun, self.gain, self.lived) = (now, 0.0, 0.0);
    }

    /// The variance of the mean, infinite where too little is known to have one.
    pub fn doubt(&self) -> f64 {
        if self.windows < 2.0 { f64::INFINITY } else { self.variance / self.windows.min(2.0 / NEWEST - 1.0) }
    }

    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        self.windows >= 1.0
    }

    /// Seconds that the value is expected to last.
    pub fn stay(&self, now: f64) -> f64 {
        let lasted = now - self.since;
        self.life.map_or(lasted, |life| lasted.min((self.born + life - now).max(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWAP: f64 = 0.6;

    /// So many intervals of a second with these gains.
    fn after(value: &mut Value, from: u32, gains: impl IntoIterator<Item = f64>, step: Option<f64>) -> f64 {
        let mut now = f64::from(from);
        for gain in gains {
            now += 1.0;
            value.observe(now, 1.0, gain, step, SWAP);
        }
        now
    }

    #[test]
    fn over_whole_steps_it_does_not_matter_when_a_region_is_used() {
        let value = |at: usize| {
            let mut value = Value::default();
            value.born(0.0);
            after(&mut value, 0, (0..200).map(|second| if second % 20 == at { 0.1 } else { 0.0 }), Some(20.0));
            (value.mean, value.doubt())
        };
        assert_eq!(value(0), value(19));
        assert!((value(7).0 - 0.005).abs() < 1e-12 && value(7).1 < 1e-12, "{:?}", value(7));
    }

    #[test]
    fn a_change_shows_when_it_comes_to_a_move_and_starts_a_new_stay() {
        let mut value = Value::default();
        value.born(0.0);
        let now = after(&mut value, 0, [0.0; 100], None);
        assert_eq!((value.mean, value.stay(now)), (0.0, 100.0));
        let now = after(&mut value, 100, [0.2], None);
        assert_eq!(value.mean, 0.0, "0.2 is less than a move");
        let now = after(&mut value, now as u32, [0.2], None);
        assert!((value.mean - 0.2).abs() < 1e-12, "{}", value.mean);
        assert_eq!((value.stay(now), value.doubt()), (2.0, 0.0));
        let now = after(&mut value, now as u32, [0.0, 0.0], None);
        assert!(value.mean < 1e-12 && value.stay(now) == 2.0, "and back: {value:?}");
    }

    #[test]
    fn noise_is_doubted_and_two_windows_are_the_least() {
        let mut value = Value::default();
        value.born(0.0);
        after(&mut value, 0, [0.01; 10], None);
        assert!(value.is_known() && value.doubt().is_infinite());
        after(&mut value, 10, (0..200).map(|second| if second / 10 % 2 == 0 { 0.02 } else { 0.0 }), None);
        assert!((value.mean - 0.01).abs() < 0.002, "{}", value.mean);
        let deviation = value.doubt().sqrt();
        assert!((0.001..0.005).contains(&deviation), "{deviation}");
    }

    #[test]
    fn no_stay_is_longer_than_a_life() {
        let mut value = Value::default();
        for life in 0..5 {
            let from = life * 20;
            value.born(f64::from(from));
            after(&mut value, from, [0.01; 8], None);
            value.died(f64::from(from) + 8.0);
        }
        value.born(100.0);
        assert!((value.stay(103.0) - 5.0).abs() < 1e-9, "{}", value.stay(103.0));
        assert_eq!(value.stay(120.0), 0.0);
    }
}
