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
//! **Ahead of use.** In a long step ([`crate::hotness::Soon`]) a block may be worth its place for a part of the step
//! alone. Of two of the same step, what they gain in its coming quarter counts instead where that is more; by half, since
//! the exchange is undone later; going back is then no offence that counts. They are ranked by that quarter, and the block
//! comes up when it is used more than its victim in the next sixteenth: not sooner, since the victim is still used, and
//! not only once it is seen to be used.
//!
//! A block of which too little is known for that does not come up, and is taken for what its heat says as a victim.

use super::Rule;
use crate::hotness::{Region, Soon};

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
    /// Use in the coming part of a long step.
    soon: Option<Soon>,
    heat: f32,
}

impl Worth {
    pub fn of(region: &Region, rule: &Rule) -> Self {
        let (outlook, heat) = (region.outlook, region.heat);
        match rule.evidence {
            Evidence::Usage if outlook.is_known() => {
                let (soon, doubt) = (outlook.soon, outlook.doubt);
                // What nobody has looked at yet is used as its neighbours are.
                let heat = if region.seen == 0 { outlook.used } else { heat };
                Self { used: outlook.used, doubt, stay_s: outlook.stay_s, proven: true, soon, heat }
            }
            evidence => {
                let proven = evidence == Evidence::Heat && region.seen >= rule.min_seen;
                Self { used: heat, doubt: 0.0, stay_s: rule.stay_s, proven, soon: None, heat }
            }
        }
    }

    /// The best of victims for this one: of no worth, for sure and for ever.
    pub fn nothing(&self) -> Self {
        let soon = self.soon.map(|soon| Soon { used: 0.0, doubt: 0.0, next: 0.0, ..soon });
        Self { used: 0.0, doubt: 0.0, stay_s: f32::INFINITY, proven: true, soon, heat: 0.0 }
    }

    /// What is gained for sure, in seconds of full use, by bringing it up; in the place of `victim`, where one has to
    /// leave, of `n` blocks that could. Each of its `offences` halves the stay that is expected.
    pub fn gain(&self, victim: Option<&Self>, n: usize, offences: u32) -> f32 {
        let stay_s = self.stay_s / (1u32 << offences.min(16)) as f32;
        let Some(victim) = victim else {
            let soon = self.soon.map_or(0.0, |soon| (soon.used - SURE * soon.doubt.sqrt()) * soon.seconds / 2.0);
            return soon.max((self.used - SURE * self.doubt.sqrt()) * stay_s);
        };
        let sure = SURE.max(2.0 * (n as f32).max(1.0).ln().sqrt());
        let difference = |more: f32, less: f32, doubt: f32| more - less - sure * doubt.sqrt();
        let long = difference(self.used, victim.used, self.doubt + victim.doubt) * stay_s.min(victim.stay_s);
        self.soon.zip(victim.soon).map_or(long, |(own, other)| {
            let soon = difference(own.used, other.used, own.doubt + other.doubt) * own.seconds.min(other.seconds);
            long.max(soon / 2.0)
        })
    }

    /// What blocks are ordered by.
    pub fn rank(&self) -> f32 {
        self.soon.map_or(self.used, |soon| soon.used)
    }

    /// Use of this one and of a victim from now on: by the step where both have one, and else as it was just now.
    pub fn next(&self, victim: &Self) -> (f32, f32) {
        self.soon.zip(victim.soon).map_or((self.heat, victim.heat), |(own, other)| (own.next, other.next))
    }
}
