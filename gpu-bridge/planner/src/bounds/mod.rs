//! How fast any plan could be: lower bounds on the step time of plans that swap.
//!
//! Plans that recompute are not covered: they can leave data out that these bounds count. Copy
//! latency is left out and the fastest tier stands for all, which only lowers a bound.
//!
//! - [`order_free`]: over every order of the operators.
//! - [`order_fixed`]: for one order; the larger of a cut and of a linear program over windows.
//! - [`exact`]: the optimum, for graphs of a few operators.
//!
//! All three are ours. They rest on this: operators of one step do not overlap those of the
//! next, so in the steady state a step takes at least the time from its first operator's start
//! to its last one's end.

mod cut;
mod exact;
mod program;
#[cfg(test)]
mod tests;

pub use exact::{TooLarge, exact};

use tensortier_model::{Bytes, Machine, Nanos};

use crate::graph::{Graph, OpId};

/// Fastest rates to and from any tier, bytes per nanosecond.
#[derive(Clone, Copy)]
struct Rates {
    into: f64,
    out: f64,
}

impl Rates {
    fn of(machine: &Machine) -> Self {
        let fastest =
            |rate: &dyn Fn(&tensortier_model::Tier) -> f64| machine.tiers.iter().map(rate).fold(0.0, f64::max);
        Self {
            into: fastest(&|t| t.profile.read.min(machine.link.h2d)) / 1e9,
            out: fastest(&|t| t.profile.write.min(machine.link.d2h)) / 1e9,
        }
    }

    /// Time to move so much, at least; unbounded where there is no tier.
    fn time(bytes: Bytes, rate: f64) -> Nanos {
        if bytes == 0 { 0 } else { (bytes as f64 / rate) as Nanos }
    }
}

/// No order of the operators has a shorter step, unless it recomputes.
pub fn order_free(graph: &Graph, machine: &Machine) -> Nanos {
    graph.ideal_time().max(cut::over_orders(graph, machine.hbm, Rates::of(machine)))
}

/// No plan that runs the operators in `order` has a shorter step, unless it recomputes.
pub fn order_fixed(graph: &Graph, machine: &Machine, order: &[OpId]) -> Nanos {
    let rates = Rates::of(machine);
    let cut = cut::in_order(graph, machine.hbm, rates, order);
    let program = program::solve(graph, machine.hbm, rates, order).unwrap_or(0);
    graph.ideal_time().max(cut).max(program)
}
