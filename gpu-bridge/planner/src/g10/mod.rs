//! Planning by idle intervals, after G10 (Zhang et al., MICRO 2023), read from its published source.
//!
//! Between two uses a tensor is idle; if the idle time is long enough to move it out and back, device memory can be
//! had for nothing. The planner takes the interval that relieves memory most, books the transfers on the links, and
//! repeats until every kernel fits ([`plan`](fn@plan)). What it could not place is left to least-recently-used
//! eviction at run time, which [`simulate`] models. Backing memory is the host and a slower, larger *far* tier: an SSD
//! in G10, CXL memory in [`Profile::cxl`].
//!
//! [`Workload`] reads G10's kernel and tensor lists, [`Plan`] its own plans, and [`compare`](fn@compare) puts two plans
//! side by side, move by move.
//!
//! [`plan_graph`] plans a [`crate::Graph`] and gives a [`crate::Plan`].
//!
//! What differs from G10 and why is said where it does; the rest is a reconstruction from reading its source.

mod as_graph;
mod candidate;
mod compare;
mod graph;
mod intervals;
mod links;
mod load;
mod order;
mod pages;
mod plan;
mod profile;
mod simulate;

pub use compare::{Comparison, Difference, compare};
pub use graph::plan_graph;
pub use intervals::{Interval, Lifetime, idle_intervals, lifetimes};
pub use load::{Kernel, LoadError, Tensor, Workload};
pub use plan::{Backing, Move, Plan, Planned, plan};
pub use profile::{Profile, Rules};
pub use simulate::{Run, SimulateError, simulate};

#[cfg(test)]
mod tests;
