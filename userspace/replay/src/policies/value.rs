//! What a byte of a region is used, how sure that is, and how long it is expected to last.
//!
//! **Rule** (ours). The use of a region, in lines a second for each byte, is averaged over whole windows of one step,
//! so that it does not matter when in the step it is used; without a step a window is ten seconds. In the mean and the
//! variance of the windows the last one weighs a hundredth, or more while there are few. Only time that the region
//! lives counts.
//!
//! A change shows earlier, by the cumulative sum of what is used over (or under) the mean (Page, Biometrika 41, 1954):
//! when it comes to `limit`, what was known is dropped for the mean since the interval after which it began. With `swap`
//! the price of two moves, `e` the mean excess of the `t` seconds that the sum has been over 0, and windows of `w`
//! seconds with the variance `s²`,
//!
//! ```text
//! limit = swap / 2 / (1 + phase · e / swap) + 4 · s · √(w · t) + 8/3 · φ · w + 1.2 · mean · w
//! ```
//!
//! Half a swap while nothing is known of how long changes last; less, the more one has brought before (*phase*, below).
//! The third term is for few events of the size `φ · w`, which a normal distribution does not cover (Bernstein's
//! inequality, with the eight that makes four standard deviations). The last one counts where the job has a step, `w`:
//! all of a step's use may come at once, and late.
//!
//! While the first term alone is exceeded and no step is known, a window waits for up to half of its length before it
//! ends, so that a change does not pass for noise.
//!
//! **Doubt.** The variance of the mean of `n` windows is `s² / n`; for few windows that is too little, and the limits
//! of Student's distribution are met closely by `(n - 1) / (n - 2)` standard deviations in the place of one. Few
//! windows may also all look alike by chance: a region's variance is taken to be no less than its job's ratio `φ` of
//! variance to mean times the region's mean, with one event more than was seen (a Poisson process of events of that
//! size):
//!
//! ```text
//! s² = max(its own, φ · (mean + φ / n))          φ = Σ variances / Σ means over the job
//! ```
//!
//! Where use is a share of `n` samples a second and no count, a window's variance is no less than `p (1 - p) / (n w)`
//! either, and the mean of a change that was seen for `t` seconds is in doubt by `p (1 - p) / (n t)` until windows have
//! taken its place.
//!
//! **Stay.** A value after a change is expected to last as long as it has lasted, or as long as what rose in the job
//! before stayed up (its *phase*: until a value fell to less than half), less what has passed. One that has not changed
//! is expected to last half an hour, or as long as it has lasted: training takes hours (ours). None lasts longer than
//! regions at its address live.

/// Seconds of a window while no step is known.
const NO_STEP: f32 = 10.0;
/// Least weight of the newest window.
const NEWEST: f32 = 0.01;
/// Standard deviations of a window that a change has to exceed.
const CHANGE: f32 = 4.0;
/// Part of the standard deviation that the cumulative sums ignore.
const SLACK: f32 = 0.5;
/// Events, of the size of the job's, that a change has to exceed.
const EVENTS: f32 = 8.0 / 3.0;
/// Windows after which one ends in which a change is suspected.
const WAIT: f32 = 1.5;
/// Steps' worth of use that may come at once.
const LATE: f32 = 1.2;
/// Seconds that a value is expected to last before anything else is known.
pub const STAY: f32 = 1800.0;

/// Seconds over which the dispersion is averaged: one change of much memory is no noise.
const SLOWLY: f32 = 60.0;
/// Weight of the newest phase.
const NEW_PHASE: f32 = 0.3;

/// What the regions of a job have in common.
#[derive(Clone, Copy, Debug, Default)]
pub struct Common {
    /// Length of a step in seconds.
    pub step: Option<f32>,
    /// Ratio of the windows' variance to their mean.
    pub dispersion: f32,
    /// Seconds that what was much used stayed so, before it changed.
    pub phase: f32,
    /// Samples a second of which use is a share, 0 where it is counted.
    pub samples: f32,
}

impl Common {
    /// Takes in an interval of `seconds`: the sums of all regions' variances and means after it.
    pub fn disperse(&mut self, variance: f64, mean: f64, seconds: f32) {
        let dispersion = if mean > 0.0 { (variance / mean) as f32 } else { 0.0 };
        self.dispersion += (seconds / SLOWLY).min(1.0) * (dispersion - self.dispersion);
    }

    /// Variance of a mean over `seconds` that comes of sampling alone.
    fn sampling(&self, mean: f32, seconds: f32) -> f32 {
        if self.samples == 0.0 {
            return 0.0;
        }
        let share = mean.clamp(0.0, 1.0);
        share * (1.0 - share) / (self.samples * seconds)
    }

    /// Takes in for how long a region was much used, until now.
    pub fn ended(&mut self, phase: f32) {
        self.phase += NEW_PHASE * (phase - self.phase);
    }
}

/// The use of one region's bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Value {
    /// Since when the value has lasted, when the window under way began, when the region was born: seconds.
    since: f64,
    begun: f64,
    born: f64,
    /// Lines a second and byte.
    pub mean: f32,
    /// Of the windows.
    pub variance: f32,
    /// What the mean of a change still adds to the doubt.
    first_doubt: f32,
    /// Windows behind the mean; after a change the change itself counts for some.
    windows: f32,
    /// Length of the window under way, what it brought so far, and how long the region has lived in it.
    window: f32,
    gain: f32,
    lived: f32,
    over: Sum,
    under: Sum,
    /// How long regions at its address lived; 0 where none has died.
    life: f32,
    /// Whether the mean is that of a change.
    changed: bool,
    /// And whether it is still up from there.
    up: bool,
}

/// A cumulative sum and for how long it has been over 0.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sum: f32,
    time: f32,
    /// What its first interval, which the change fell into, brought of that.
    first: (f32, f32),
}

impl Sum {
    #[inline]
    fn add(&mut self, excess: f32, seconds: f32) {
        if self.sum + excess <= 0.0 {
            // Nearly always: nothing over the mean, and nothing before.
            *self = Self::default();
            return;
        }
        if self.time == 0.0 {
            self.first = (excess, seconds);
        }
        self.sum += excess;
        self.time += seconds;
    }

    /// The mean excess a second, and the seconds that it is the mean of.
    fn mean(&self) -> (f32, f32) {
        let (sum, time) = (self.sum - self.first.0, self.time - self.first.1);
        if time > 0.0 { (sum / time, time) } else { (self.sum / self.time, self.time) }
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
        let life = (now - self.born) as f32;
        self.life = if self.life == 0.0 { life } else { self.life + 0.3 * (life - self.life) };
    }

    /// Takes in `seconds` up to `now` in which a byte had `gain` lines. `swap` is the price, in lines that pay it, of
    /// moving a byte up and another one down. Returns for how long the region was much used, where that has just ended.
    #[inline]
    pub fn observe(&mut self, now: f64, seconds: f32, gain: f32, of: &Common, swap: f32) -> Option<f32> {
        let window = of.step.unwrap_or(NO_STEP);
        if (window - self.window).abs() > 0.2 * self.window {
            // Windows of another length say nothing of these.
            let begun = now - f64::from(seconds);
            (self.window, self.windows, self.begun, self.gain, self.lived) = (window, 0.0, begun, 0.0, 0.0);
            (self.over, self.under) = (Sum::default(), Sum::default());
            (self.changed, self.up) = (false, false);
        }
        self.gain += gain;
        self.lived += seconds;
        let expected = self.mean * seconds;
        let variance = self.variance.max(of.sampling(self.mean, window));
        let slack = if variance > 0.0 { SLACK * variance.sqrt() * seconds } else { 0.0 };
        self.over.add(gain - expected - slack, seconds);
        self.under.add(expected - gain - slack, seconds);
        // What speaks for a change comes to half of two moves, or to less where such a phase has brought more before.
        let enough = |sum: &Sum| sum.sum > 0.0 && sum.sum * (1.0 + of.phase * sum.sum / (sum.time * swap)) > 0.5 * swap;
        let suspected = enough(&self.over) || enough(&self.under);
        if suspected {
            let deviation = self.spread(of).sqrt();
            // All of a step's use may come at once, and late.
            let due = of.step.map_or(0.0, |_| LATE * self.mean * window) + EVENTS * of.dispersion * window;
            let limit = |sum: &Sum| {
                due + 0.5 * swap / (1.0 + of.phase * sum.sum / (sum.time * swap).max(f32::MIN_POSITIVE))
                    + CHANGE * deviation * (window * sum.time).sqrt()
            };
            if self.over.sum > limit(&self.over) {
                let (excess, seen) = self.over.mean();
                return self.change(now, self.mean + excess, self.over.time, of.sampling(self.mean + excess, seen));
            }
            if self.under.sum > limit(&self.under) {
                let (excess, seen) = self.under.mean();
                let mean = (self.mean - excess).max(0.0);
                return self.change(now, mean, self.under.time, of.sampling(mean, seen));
            }
        }
        // A change would be taken for noise in a window that it fell into.
        let waits = suspected && of.step.is_none();
        if now - self.begun >= f64::from(if waits { WAIT * window } else { window }) {
            self.close(now);
        }
        None
    }

    /// Another mean, in doubt by `doubt`, for as long as that has lasted. Returns how long the region was up, where that has
    /// ended.
    fn change(&mut self, now: f64, mean: f32, lasted: f32, doubt: f32) -> Option<f32> {
        let (rises, was_up) = (mean > self.mean, self.up || !self.changed);
        let is_up = rises || was_up && mean > 0.5 * self.mean;
        let stayed = ((now - self.since) as f32 - lasted).max(0.0);
        // What is seen first of a change is part of an interval: it may rise, and fall, in two.
        if !(if rises { self.up } else { is_up }) {
            self.since = now - f64::from(lasted);
        }
        (self.mean, self.variance, self.windows, self.first_doubt) = (mean, 0.0, 3.0, doubt);
        (self.changed, self.up) = (true, is_up);
        (self.begun, self.gain, self.lived) = (now, 0.0, 0.0);
        (self.over, self.under) = (Sum::default(), Sum::default());
        (was_up && !is_up).then_some(stayed)
    }

    fn close(&mut self, now: f64) {
        let mean = self.gain / self.lived;
        self.windows += 1.0;
        if self.windows == 1.0 {
            (self.mean, self.variance, self.first_doubt) = (mean, 0.0, 0.0);
        } else {
            let weight = NEWEST.max(1.0 / self.windows);
            let off = mean - self.mean;
            self.mean += weight * off;
            self.variance = (1.0 - weight) * (self.variance + weight * off * off);
            self.first_doubt *= (1.0 - weight) * (1.0 - weight);
        }
        (self.begun, self.gain, self.lived) = (now, 0.0, 0.0);
    }

    fn spread(&self, of: &Common) -> f32 {
        let events = of.dispersion * (self.mean + of.dispersion / self.windows.max(1.0));
        self.variance.max(events).max(of.sampling(self.mean, self.window.max(f32::MIN_POSITIVE)))
    }

    /// The variance of the mean, infinite where too little is known to have one.
    pub fn doubt(&self, of: &Common) -> f32 {
        let windows = self.windows.min(2.0 / NEWEST - 1.0);
        if windows <= 2.0 {
            return f32::INFINITY;
        }
        let few = (windows - 1.0) / (windows - 2.0);
        self.spread(of) / windows * few * few + self.first_doubt
    }

    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        self.windows >= 1.0
    }

    /// Seconds that the value is expected to last.
    pub fn stay(&self, now: f64, phase: f32) -> f32 {
        let lasted = (now - self.since) as f32;
        let stay = if self.changed { lasted.max(phase - lasted) } else { lasted.max(STAY) };
        if self.life > 0.0 { stay.min((self.born - now) as f32 + self.life).max(0.0) } else { stay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWAP: f32 = 0.6;

    /// So many intervals of a second with these gains; what ended in them.
    fn after(value: &mut Value, from: u32, gains: impl IntoIterator<Item = f32>, step: Option<f32>) -> (f64, Vec<f32>) {
        let (mut now, mut ended) = (f64::from(from), Vec::new());
        let of = Common { step, ..Common::default() };
        for gain in gains {
            now += 1.0;
            ended.extend(value.observe(now, 1.0, gain, &of, SWAP));
        }
        (now, ended)
    }

    #[test]
    fn over_whole_steps_it_does_not_matter_when_a_region_is_used() {
        let value = |at: usize| {
            let mut value = Value::default();
            value.born(0.0);
            after(&mut value, 0, (0..200).map(|second| if second % 20 == at { 0.1 } else { 0.0 }), Some(20.0));
            (value.mean, value.doubt(&Common::default()))
        };
        assert_eq!(value(0), value(19));
        assert!((value(7).0 - 0.005).abs() < 1e-7 && value(7).1 < 1e-12, "{:?}", value(7));
    }

    #[test]
    fn a_change_shows_when_it_comes_to_a_move_and_starts_a_new_stay() {
        let mut value = Value::default();
        value.born(0.0);
        let (now, _) = after(&mut value, 0, [0.0; 100], None);
        assert_eq!((value.mean, value.stay(now, 0.0)), (0.0, STAY));
        let (now, _) = after(&mut value, 100, [0.2], None);
        assert_eq!(value.mean, 0.0, "0.2 is less than a move");
        let (now, _) = after(&mut value, now as u32, [0.2], None);
        assert!((value.mean - 0.2).abs() < 1e-6, "{}", value.mean);
        assert_eq!((value.stay(now, 0.0), value.stay(now, 60.0), value.doubt(&Common::default())), (2.0, 58.0, 0.0));
        let (now, ended) = after(&mut value, now as u32, [0.2, 0.0, 0.0], None);
        assert!(value.mean < 1e-6 && value.stay(now, 0.0) == 2.0, "and back: {value:?}");
        assert_eq!(ended, [3.0], "used for three seconds");
    }

    #[test]
    fn noise_is_doubted_and_three_windows_are_the_least() {
        let mut value = Value::default();
        value.born(0.0);
        after(&mut value, 0, [0.01; 20], None);
        assert!(value.is_known() && value.doubt(&Common::default()).is_infinite());
        after(&mut value, 20, (0..200).map(|second| if second / 10 % 2 == 0 { 0.02 } else { 0.0 }), None);
        assert!((value.mean - 0.01).abs() < 0.002, "{}", value.mean);
        let deviation = value.doubt(&Common::default()).sqrt();
        assert!((0.001..0.005).contains(&deviation), "{deviation}");
    }

    #[test]
    fn what_was_never_used_is_doubted_where_its_job_is_used_at_random() {
        let mut value = Value::default();
        value.born(0.0);
        after(&mut value, 0, [0.0; 40], None);
        assert_eq!(value.doubt(&Common::default()), 0.0);
        let random = Common { dispersion: 0.02, ..Common::default() };
        let one_event = 0.02 / 4.0;
        assert!(
            (value.doubt(&random).sqrt() / (one_event * 1.5) - 1.0).abs() < 1e-5,
            "{}",
            value.doubt(&random).sqrt()
        );
    }

    #[test]
    fn a_share_of_samples_is_in_doubt_by_how_few_they_are() {
        let of = Common { samples: 20.0, ..Common::default() };
        let mut value = Value::default();
        value.born(0.0);
        let mut now = 0.0;
        let mut ended = 0;
        let mut observe = |value: &mut Value, gain: f32| {
            now += 1.0;
            ended += u32::from(value.observe(now, 1.0, gain, &of, SWAP).is_some());
        };
        (0..30).for_each(|_| observe(&mut value, 0.0));
        assert_eq!(value.doubt(&of), 0.0);
        // It is used from now on: half of the samples find it, some seconds more than others.
        (0..6).for_each(|_| observe(&mut value, 0.8));
        let first = value.doubt(&of);
        assert!((value.mean - 0.8).abs() < 1e-6 && first >= 0.16 / 20.0 / 6.0, "{value:?} {first}");
        (0..200).for_each(|second| observe(&mut value, if second % 3 == 0 { 0.7 } else { 0.4 }));
        assert!((value.mean - 0.5).abs() < 0.05 && value.doubt(&of) < first / 4.0, "{value:?} {}", value.doubt(&of));
        assert_eq!(ended, 0, "such differences are no changes");
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
        assert!((value.stay(103.0, 0.0) - 5.0).abs() < 1e-5, "{}", value.stay(103.0, 0.0));
        assert_eq!(value.stay(120.0, 0.0), 0.0);
    }
}
