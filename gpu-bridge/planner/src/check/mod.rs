//! Is a plan correct? Code apart from [`crate::sim`], so that neither hides the other's errors.
//!
//! [`check`] replays the steps one after the other, twice over, and follows the *contents* of
//! every copy: which operator wrote it last. A read is right if the contents are those that the
//! traced order would have given it. [`check_timeline`] takes the times a simulation claims and
//! looks at them as a witness would: data there before it is read, no stream in two places, no
//! copy faster than its link, no capacity exceeded at any instant.

mod contents;
#[cfg(test)]
mod tests;
mod times;

use tensortier_model::{Bytes, Machine, Nanos};

use crate::{
    graph::{Graph, OpId, StorageId},
    plan::Plan,
    sim::Span,
};

/// What is wrong with a plan. `step` is an index into [`Plan::steps`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An operator, storage, tier or class that does not exist.
    #[error("step {step}: {what} {index} does not exist")]
    Unknown {
        /// Where.
        step: usize,
        /// What kind.
        what: &'static str,
        /// Its number.
        index: usize,
    },
    /// Data that is not there is read, copied or dropped.
    #[error("step {step}: storage {storage} is not on the device")]
    Absent {
        /// Where.
        step: usize,
        /// What.
        storage: StorageId,
    },
    /// A copy in of data that is there.
    #[error("step {step}: storage {storage} is already on the device")]
    Present {
        /// Where.
        step: usize,
        /// What.
        storage: StorageId,
    },
    /// A copy in without a host copy, or of one that has been overwritten on the device since.
    #[error("step {step}: storage {storage} has no valid copy on the host")]
    NoHostCopy {
        /// Where.
        step: usize,
        /// What.
        storage: StorageId,
    },
    /// The data is there but is an older or newer state than the operator has to read.
    #[error("step {step}: operator {op} reads storage {storage} in the wrong state")]
    WrongContents {
        /// Where.
        step: usize,
        /// The reader.
        op: OpId,
        /// What.
        storage: StorageId,
    },
    /// An operator runs before one that has to run first.
    #[error("step {step}: operator {op} runs before operator {before}, on which it depends")]
    Order {
        /// Where.
        step: usize,
        /// The early one.
        op: OpId,
        /// The one that is missing.
        before: OpId,
    },
    /// An operator of the step is never run.
    #[error("operator {0} never runs")]
    NeverRun(OpId),
    /// The only copy of a weight or a gradient is dropped.
    #[error("step {step}: the only copy of storage {storage} is dropped")]
    Lost {
        /// Where.
        step: usize,
        /// What.
        storage: StorageId,
    },
    /// More bytes on the device than it may hold.
    #[error("step {step}: {bytes} bytes on a device of {capacity}")]
    HbmFull {
        /// Where.
        step: usize,
        /// How many.
        bytes: Bytes,
        /// The limit.
        capacity: Bytes,
    },
    /// More storages in a size class than it has slots, or one too large for its slot.
    #[error("step {step}: storage {storage} finds no slot of class {class}")]
    NoSlot {
        /// Where.
        step: usize,
        /// What.
        storage: StorageId,
        /// Its class.
        class: usize,
    },
    /// More bytes in a tier than it may hold.
    #[error("step {step}: {bytes} bytes in tier {tier} of {capacity}")]
    TierFull {
        /// Where.
        step: usize,
        /// Which.
        tier: usize,
        /// How many.
        bytes: Bytes,
        /// The limit.
        capacity: Bytes,
    },
    /// The step ends with other residents than it began with.
    #[error("storage {0} is resident at one end of the step only")]
    NotCyclic(StorageId),
    /// Times that cannot be: see the text.
    #[error("iteration {iteration}, step {step}, at {at} ns: {what}")]
    Time {
        /// Which repetition.
        iteration: usize,
        /// Where.
        step: usize,
        /// When.
        at: Nanos,
        /// What is impossible.
        what: &'static str,
    },
}

/// Checks that `plan` does the work of `graph` within `machine`'s capacities.
///
/// # Errors
/// The first violation.
pub fn check(graph: &Graph, machine: &Machine, plan: &Plan) -> Result<(), Violation> {
    contents::check(graph, machine, plan)
}

/// Checks the times that a simulation claims for `plan`, which [`check`] has accepted.
///
/// # Errors
/// The first violation.
pub fn check_timeline(graph: &Graph, machine: &Machine, plan: &Plan, spans: &[Span]) -> Result<(), Violation> {
    times::check(graph, machine, plan, spans)
}
