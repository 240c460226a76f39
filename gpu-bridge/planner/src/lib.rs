//! Tensor planner over HBM, DRAM and CXL.
//!
//! ```text
//! trace ─► graph ─► planner ─► plan ─► sim   (how long a step takes, exactly)
//!                                  └─► check (is it correct at all; separate code)
//! ```
//!
//! [`graph`] holds one training step: operators with times, storages with sizes.
//! [`plan`] is what every planner emits: a program of runs, copies and drops.
//! [`sim`] runs that program on three FIFO streams; [`check`] replays it and refuses a
//! plan that reads absent data, exceeds a capacity or breaks an order. Sizes are bytes,
//! times nanoseconds, rates bytes per second.
//!
//! [`planners`] names all planners of graphs; [`ours`] is the one that decides everything
//! together. [`dtr`] runs operator logs under a budget with the DTR policy and [`delta`] with
//! DELTA's, which weighs recomputation against swapping by a [`knapsack`]; [`g10`] plans and runs G10's kernel lists. The latter two plan graphs as well.
//! [`traces`] says where recorded inputs of these systems are looked for. [`bounds`] says how
//! fast any plan could be, [`cli`] is `tensortier plan`.

mod belady;
pub mod bounds;
pub mod check;
pub mod cli;
pub mod delta;
pub mod dtr;
#[cfg(test)]
mod fuzz;
pub mod g10;
pub mod graph;
mod hoist;
pub mod knapsack;
pub mod ours;
pub mod plan;
pub mod planners;
pub mod sim;
pub mod swapadvisor;
pub mod traces;

pub use graph::{Graph, GraphError, OpId, StorageId, TensorId};
pub use plan::{Plan, Step};
