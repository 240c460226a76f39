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
//! either, and the mean of `t` seconds is in doubt by no less than `p (1 - p) / (n t)`. That part is *noise*: only
//! regions that one sample stands for share it. What comes after a change is averaged with what was seen of that, until
//! they are a window. What may be a change, and is not yet enough to be one, counts as one already, and a rise for as long
//! as it has been seen: a job that runs slower for a while uses all of its regions less, and what they differ by counts.
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
/// Part of the standard deviation, and of one sample where it is more, that the cumulative sums ignore.
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

    /// Variance of a mean over `seconds` that comes of sampling alone: as if one sample more had found it used, and one
    /// more not (Agresti and Coull, The American Statistician 52, 1998), since none and all are chance too.
    fn sampling(&self, mean: f32, seconds: f32) -> f32 {
        if self.samples == 0.0 {
            return 0.0;
        }
        let n = self.samples * seconds;
        let share = (mean.clamp(0.0, 1.0) * n + 1.0) / (n + 2.0);
        share * (1.0 - share) / n
    }

    /// The gain by one sample; 0 where use is counted. One by chance begins no change.
    fn one_sample(&self) -> f32 {
        if self.samples > 0.0 { 1.0 / self.samples } else { 0.0 }
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
    /// Variance of the mean that comes of sampling alone.
    noise: f32,
    /// Whether the window under way is the one that began with the change.
    fresh: bool,
    /// While a change is suspected of what is sampled.
    pending: Option<Pending>,
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

/// What a value would be by a change that is suspected, for how long that has been seen, and whether it is up.
#[derive(Clone, Copy, Debug)]
struct Pending {
    level: f32,
    seen: f32,
    rises: bool,
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
            (self.changed, self.up, self.fresh) = (false, false, false);
        }
        self.gain += gain;
        self.lived += seconds;
        let expected = self.mean * seconds;
        let variance = self.variance.max(of.sampling(self.mean, window));
        let deviation = if variance > 0.0 { variance.sqrt() } else { 0.0 };
        let slack = SLACK * (deviation * seconds).max(of.one_sample());
        self.over.add(gain - expected - slack, seconds);
        self.under.add(expected - gain - slack, seconds);
        // What speaks for a change comes to half of two moves, or to less where such a phase has brought more before.
        let enough = |sum: &Sum| sum.sum > 0.0 && sum.sum * (1.0 + of.phase * sum.sum / (sum.time * swap)) > 0.5 * swap;
        let suspected = enough(&self.over) || enough(&self.under);
        self.pending = None;
        if suspected {
            let ignored = if of.samples > 0.0 { slack / seconds } else { 0.0 };
            let rises = enough(&self.over);
            let (sum, sign) = if rises { (&self.over, 1.0) } else { (&self.under, -1.0) };
            let level = (self.mean + sign * (sum.sum / sum.time + ignored)).clamp(0.0, 1.0);
            self.pending = (of.samples > 0.0).then_some(Pending { level, seen: sum.time, rises });
            let deviation = self.spread(of).sqrt();
            // All of a step's use may come at once, and late.
            let due = of.step.map_or(0.0, |_| LATE * self.mean * window) + EVENTS * of.dispersion * window;
            let limit = |sum: &Sum| {
                due + 0.5 * swap / (1.0 + of.phase * sum.sum / (sum.time * swap).max(f32::MIN_POSITIVE))
                    + CHANGE * deviation * (window * sum.time).sqrt()
            };
            if self.over.sum > limit(&self.over) {
                let (excess, seen) = self.over.mean();
                return self.change(now, self.mean + excess + ignored, seen, self.over.time, of);
            }
            if self.under.sum > limit(&self.under) {
                let (excess, seen) = self.under.mean();
                return self.change(now, (self.mean - excess - ignored).max(0.0), seen, self.under.time, of);
            }
        }
        if self.fresh {
            self.mean = self.gain / self.lived;
            self.noise = of.sampling(self.mean, self.lived);
        }
        // A change would be taken for noise in a window that it fell into.
        let waits = suspected && of.step.is_none();
        if now - self.begun >= f64::from(if waits { WAIT * window } else { window }) {
            self.close(now, of);
        }
        None
    }

    /// Another mean, of the last `seen` seconds, for as long as that has lasted. Returns how long the region was up, where
    /// that has ended.
    fn change(&mut self, now: f64, mean: f32, seen: f32, lasted: f32, of: &Common) -> Option<f32> {
        let (rises, was_up) = (mean > self.mean, self.up || !self.changed);
        let is_up = rises || was_up && mean > 0.5 * self.mean;
        let stayed = ((now - self.since) as f32 - lasted).max(0.0);
        // What is seen first of a change is part of an interval: it may rise, and fall, in two.
        if !(if rises { self.up } else { is_up }) {
            self.since = now - f64::from(lasted);
        }
        (self.mean, self.variance, self.windows) = (mean, 0.0, 3.0);
        self.noise = of.sampling(mean, seen);
        (self.changed, self.up, self.fresh) = (true, is_up, of.samples > 0.0);
        (self.begun, self.gain, self.lived) =
            if self.fresh { (now - f64::from(seen), mean * seen, seen) } else { (now, 0.0, 0.0) };
        (self.over, self.under, self.pending) = (Sum::default(), Sum::default(), None);
        (was_up && !is_up).then_some(stayed)
    }

    fn close(&mut self, now: f64, of: &Common) {
        let mean = self.gain / self.lived;
        self.windows += f32::from(u8::from(!self.fresh));
        if self.windows == 1.0 {
            (self.mean, self.variance, self.noise) = (mean, 0.0, of.sampling(mean, self.lived));
        } else if !std::mem::take(&mut self.fresh) {
            let weight = NEWEST.max(1.0 / self.windows);
            let off = mean - self.mean;
            self.mean += weight * off;
            self.variance = (1.0 - weight) * (self.variance + weight * off * off);
            let newest = weight * weight * of.sampling(self.mean, self.lived);
            self.noise = (1.0 - weight) * (1.0 - weight) * self.noise + newest;
        }
        (self.begun, self.gain, self.lived) = (now, 0.0, 0.0);
    }

    fn spread(&self, of: &Common) -> f32 {
        self.variance.max(self.events(of)).max(of.sampling(self.mean, self.window.max(f32::MIN_POSITIVE)))
    }

    /// Variance of windows by what the job's are.
    fn events(&self, of: &Common) -> f32 {
        of.dispersion * (self.mean + of.dispersion / self.windows.max(1.0))
    }

    /// The variance of the mean, infinite where too little is known to have one.
    pub fn doubt(&self, of: &Common) -> f32 {
        let windows = self.windows.min(2.0 / NEWEST - 1.0);
        if windows <= 2.0 {
            return f32::INFINITY;
        }
        let few = (windows - 1.0) / (windows - 2.0);
        (self.variance.max(self.events(of)) / windows * few * few).max(self.noise(of))
    }

    /// The part of [`Value::doubt`] that comes of sampling this region and no other.
    pub fn noise(&self, of: &Common) -> f32 {
        self.pending.map_or(self.noise, |pending| of.sampling(pending.level, pending.seen))
    }

    /// The mean, or what it would be by a change that is suspected.
    pub fn expected(&self) -> f32 {
        self.pending.map_or(self.mean, |pending| pending.level)
    }

    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        self.windows >= 1.0
    }

    /// Seconds that the value is expected to last.
    pub fn stay(&self, now: f64, phase: f32) -> f32 {
        let lasted = (now - self.since) as f32;
        let stay = if self.changed { lasted.max(phase - lasted) } else { lasted.max(STAY) };
        let rising = self.pending.filter(|pending| pending.rises);
        let stay = rising.map_or(stay, |pending| stay.min(pending.seen));
        if self.life > 0.0 { stay.min((self.born - now) as f32 + self.life).max(0.0) } else { stay }
    }
}

#[cfg(test)]
#[path = "value_tests.rs"]
mod tests;
