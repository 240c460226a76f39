//! A planner's plan, run on a [`Device`](crate::pipeline::Device) with real bytes.
//!
//! ```text
//! Plan ─► check ─► program: tasks with addresses ─► run: kernels, copies in and copies out at once ─► Outcome
//!                                                        checksums of all that is read ◄─ in_core: the same step, plain
//! ```
//!
//! An operator is a [`Kernel`](crate::pipeline::kernel::Kernel): it takes the operator's time, reads the storages that the
//! operator reads and writes those that it writes, so that a tensor which is lost, stale or overwritten changes the
//! checksum of everything computed from it. Copies are the pipeline's. Each checksum is held against that of
//! [`InCore`], which runs the same step in plain memory; those of weights, inputs and results after the last step, too.
//!
//! Device memory is one block of as many bytes as the plan may use. A plan says how many bytes are granted when, not
//! which; [`arena`] chooses them so that no plan that fits by count fails.

pub mod arena;
mod in_core;
mod program;
mod run;
#[cfg(test)]
mod tests;
mod unroll;

use tensortier_model::Machine;
use tensortier_planner::{
    Graph, Plan,
    check::{self, Violation},
    sim::SimError,
};

pub use in_core::InCore;
pub use program::Program;
pub use run::{Outcome, Room, TierRoom, Wrong, run};

/// Why a plan did not run.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The checker refuses the plan.
    #[error("the plan of {planner} for {graph} is wrong: {violation}")]
    Refused {
        /// Who made it.
        planner: String,
        /// For what.
        graph: String,
        /// What is wrong.
        violation: Violation,
    },
    /// It cannot be carried out.
    #[error("the plan cannot be carried out: {0}")]
    Impossible(#[from] SimError),
    /// The device ran something else, or nothing.
    #[error("{what} of step {step} did not run: {why}")]
    Device {
        /// What.
        what: &'static str,
        /// Of which step.
        step: usize,
        /// Why.
        why: &'static str,
    },
    /// A weight or an input that is on the host at first is larger than the device.
    #[error("storage {storage} of {bytes} bytes is larger than the {device} bytes of the device that the plan uses")]
    TooLarge {
        /// Which.
        storage: usize,
        /// Its bytes.
        bytes: u64,
        /// The device's.
        device: u64,
    },
}

/// The program of a plan that the checker accepts, over so many training steps.
///
/// # Errors
/// What the checker finds, before anything is allocated or run.
pub fn prepare(graph: &Graph, machine: &Machine, plan: &Plan, steps: usize) -> Result<Program, ExecuteError> {
    check::check(graph, machine, plan).map_err(|violation| ExecuteError::Refused {
        planner: plan.planner.clone(),
        graph: graph.name.clone(),
        violation,
    })?;
    Ok(Program::new(graph, machine, plan, steps)?)
}
