//! Our own policies, by name. Pure functions of what they have seen: no clock, no system call.
//!
//! | name | rule |
//! |---|---|
//! | `auto` | per region: use over whole steps where its job has a step, else over time; priced as its accesses look |
//! | `step` | as `auto`, but each line is taken for a stream's, and regions are placed whole |
//! | `hotness` | as `step`, with no step: what is used most over time |
//! | `bandwidth` | as `auto`, all taken for streams |
//! | `balance` | Colloid's rule: move towards equal loaded latencies of the tiers |
//!
//! `auto` is the default; it splits streams over both tiers where that is faster. [`resident`] has the rule of all but
//! the last, [`value`] what they keep of a region, [`pattern`] how accesses look, [`split`] how much of a stream belongs
//! on the top tier.

mod pattern;
pub mod resident;
mod rules;
mod split;
pub mod value;
mod waterline;

pub use resident::Resident;
pub use rules::Rules;

use crate::{baseline::Colloid, cost::Costs, policy::Policy};

/// Names of our policies, the default first.
pub const NAMES: [&str; 5] = ["auto", "step", "hotness", "bandwidth", "balance"];

/// The policy of that name, new.
pub fn find(name: &str, costs: &Costs) -> Option<Box<dyn Policy>> {
    let rules = match name {
        "auto" => Rules::AUTO,
        "step" => Rules::STEP,
        "hotness" => Rules::HOTNESS,
        "bandwidth" => Rules::BANDWIDTH,
        "balance" => return Some(Box::new(Colloid::new(0).called("balance"))),
        _ => return None,
    };
    Some(Box::new(Resident::new(costs, rules)))
}

#[cfg(test)]
mod tests;
