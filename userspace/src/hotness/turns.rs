//! When in a long step a block is used, so that it can come up ahead of that.
//!
//! **Rule** (ours). A step of [`LONG_S`] or more is divided into [`PARTS`]; of each is kept what share of the samples
//! found the block used, over the last [`STEPS`] steps. What comes is read from there: the use over the next part, and
//! over the next quarter of the step. In a quarter of a shorter step no use would pay for coming up and leaving again.
//! Steps have no mark in the touches and vary in length, so a part is known to one beside it.

/// The least length of a step whose parts are told apart, in seconds: in a quarter of it a block that is used all the time
/// pays for four times the moves of an exchange and of its undoing, at [`super::MOVE_COST_S`] each.
pub const LONG_S: f32 = 32.0;
/// Parts of a step.
const PARTS: usize = 16;
/// Parts that are looked ahead.
const AHEAD: usize = PARTS / 4;
/// Steps that a part's mean is over.
const STEPS: f32 = 3.0;

/// Use in each part of a step.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// Share of samples, and the seconds that it is the mean of.
    parts: [(f32, f32); PARTS],
}

/// What is expected of a block's use in the coming part of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Soon {
    /// Share of the coming quarter of the step that it is used.
    pub used: f32,
    /// The variance of that.
    pub doubt: f32,
    /// Length of that quarter in seconds.
    pub seconds: f32,
    /// Share of the next sixteenth of the step that it is used.
    pub next: f32,
}

impl Turns {
    /// Takes in `seconds` around `phase` of a step, 0 to 1, of which the block was used the share `used`.
    pub fn observe(&mut self, phase: f64, seconds: f32, step_s: f32, used: f32) {
        let (mean, time) = &mut self.parts[part(phase)];
        *time = (*time + seconds).min(STEPS * step_s / PARTS as f32).max(seconds);
        *mean += seconds / *time * (used - *mean);
    }

    /// What comes after `phase`, of `samples` a second; `None` where a part of it was never seen.
    pub fn soon(&self, phase: f64, step_s: f32, samples: f32) -> Option<Soon> {
        let coming = |n: usize| self.parts[(part(phase) + n) % PARTS];
        let seen = (0..=AHEAD).map(|n| coming(n).1).fold(f32::INFINITY, f32::min);
        if seen <= 0.0 {
            return None;
        }
        // The rest of the present part, and as much of the last one as that is short of a whole.
        let gone = (phase * PARTS as f64).fract() as f32;
        let over = |n: usize| coming(n).0 * (1.0 - gone) + coming(n + 1).0 * gone;
        let used = (0..AHEAD).map(over).sum::<f32>() / AHEAD as f32;
        let doubt = used * (1.0 - used).max(0.0) / (samples * seen * AHEAD as f32).max(1.0);
        Some(Soon { used, doubt, seconds: step_s * AHEAD as f32 / PARTS as f32, next: over(0) })
    }
}

fn part(phase: f64) -> usize {
    ((phase * PARTS as f64) as usize).min(PARTS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_what_came_there_in_the_steps_before() {
        let mut turns = Turns::default();
        assert_eq!(turns.soon(0.0, 32.0, 20.0), None);
        // Used in the second half of each step.
        for second in 0..96 {
            let phase = f64::from(second % 32) / 32.0;
            turns.observe(phase, 1.0, 32.0, if phase >= 0.5 { 0.8 } else { 0.0 });
        }
        let soon = |phase| turns.soon(phase, 32.0, 20.0).expect("all of a step was seen");
        assert_eq!((soon(0.1).used, soon(0.1).next, soon(0.1).doubt), (0.0, 0.0, 0.0));
        assert!((soon(0.5).used - 0.8).abs() < 1e-6 && (soon(0.5).next - 0.8).abs() < 1e-6 && soon(0.5).seconds == 8.0);
        let half = soon(0.375);
        assert!((half.used - 0.4).abs() < 1e-6 && half.next == 0.0 && half.doubt > 0.0, "{half:?}");
        assert!((soon(0.46875).next - 0.4).abs() < 1e-6, "half of the next part: {:?}", soon(0.46875));
        assert!(soon(0.99).used < 0.05, "the next step begins without it");
    }

    #[test]
    fn a_change_is_followed_within_some_steps() {
        let mut turns = Turns::default();
        for step in 0..12 {
            turns.observe(0.2, 2.0, 32.0, if step < 6 { 1.0 } else { 0.0 });
        }
        assert!(turns.parts[3].0 < 0.1, "{turns:?}");
    }
}
