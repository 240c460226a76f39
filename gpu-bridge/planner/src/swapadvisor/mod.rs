//! SwapAdvisor (Huang, Jin, Li; ASPLOS 2020): joint search over schedule, memory pools and swaps.
//!
//! Built after the paper's abstract and what others report of its sections 4 and 5; the authors
//! published their runtime but neither planner nor search. From them: fixed-size pools, victims
//! from the same size class, Belady's choice, swaps in as early as the victim's last use allows,
//! two passes over the initial residents, and a genetic search over schedule and pools. Ours: the
//! details of every operator and constant, the global mode without classes, the choice of tier.
//!
//! ```text
//! Genes (order, classes, counts) ─► Decoder ─► Plan ─► sim ─► time      search keeps the best
//! ```

mod decode;
pub mod genes;
mod host;
mod layout;
mod pools;
mod search;
#[cfg(test)]
mod tests;

pub use decode::{Decoder, Infeasible};
pub use pools::{Shape, Sizes};
pub use search::{Found, Mode, Progress, Search};

use tensortier_model::Machine;

use crate::{
    graph::{Graph, OpId},
    plan::Plan,
};

/// Belady over the whole memory: victims are those used again last, whatever their size, and
/// copies in are issued as early as memory allows. A superset of the class-restricted planner's
/// choices, at the price that memory may fragment where an allocator cannot map pages.
///
/// # Errors
/// [`Infeasible`] where an operator and what cannot leave exceed the machine.
pub fn global(graph: &Graph, machine: &Machine, order: &[OpId]) -> Result<Plan, Infeasible> {
    let mut plan = Decoder::new(graph, machine).decode(order, None)?;
    plan.planner = "belady".into();
    Ok(plan)
}
