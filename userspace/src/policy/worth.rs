//! What a block is worth on the top tier, by each policy.
//!
//! | policy | a block is worth |
//! |---|---|
//! | `hotness` | its heat now, for [`Rule::stay_s`] seconds |
//! | `step` | its use over whole steps ([`crate::hotness::Usage`]), for as long as that is expected to last |
//! | `bandwidth`, `balance`, `auto` | as `step`; how much of it the top tier serves is [`super::spread`]'s |
//!
//! Both are shares of the time: of the samples, those that found the block used. So the prices of a move are the same.
//!
//! **Doubt.** Use is known with a variance `σ²`. Only what is sure counts: of one block `z = 2` standard deviations are
//! taken off. Whoever looks for the best of `n` blocks and the worst of them finds a difference by chance alone, of
//! about `2 √(2 ln n)` standard deviations (the universal threshold of Donoho and Johnstone, Biometrika 81, 1994, at
//! either end), that is `2 √(ln n)` of those of a difference: so much is taken off where one takes another's place.
//! Blocks that a sweep uses alike never change places for being sampled unlike.
//!
//! A block of which too little is known for that does not come up, and is taken for what its heat says as a victim.

use super::Rule;
use crate::hotness::Region;

/// Standard deviations taken off the worth of one block.
const SURE: f32 = 2.0;

/// What a policy goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evidence {
    /// Heat now.
    #[default]
    Heat,
    /// Use over whole steps.
    Usage,
}

/// What a block is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Worth {
    /// Share of the time that it is used.
    pub used: f32,
    /// The variance of that.
    doubt: f32,
    /// Seconds that it is expected to last.
    stay_s: f32,
    /// Whether it is known well enough to come up.
    pub proven: bool,
}

impl Worth {
    pub fn of(region: &Region, rule: &Rule) -> Self {
        let outlook = region.outlook;
        match rule.evidence {
            Evidence::Usage if outlook.is_known() => {
                Self { used: outlook.used, doubt: outlook.doubt, stay_s: outlook.stay_s, proven: true }
            }
            evidence => {
                let proven = evidence == Evidence::Heat;
                Self { used: region.heat, doubt: 0.0, stay_s: rule.stay_s, proven }
            }
        }
    }

    /// What is gained for sure, in seconds of full use, by bringing it up; in the place of `victim`, where one has to
    /// leave, of `n` blocks that could.
    pub fn gain(&self, victim: Option<&Self>, n: usize) -> f32 {
        let Some(victim) = victim else { return (self.used - SURE * self.doubt.sqrt()) * self.stay_s };
        let sure = SURE.max(2.0 * (n as f32).max(1.0).ln().sqrt());
        let difference = self.used - victim.used - sure * (self.doubt + victim.doubt).sqrt();
        difference * self.stay_s.min(victim.stay_s)
    }
}
