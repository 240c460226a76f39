//! One training step as a graph: operators, the tensors they read and write, and the
//! storages behind the tensors.
//!
//! A *storage* is a block of memory; tensors that share one are views of each other. Plans
//! move storages. Operators are kept in the traced order, which is a valid one; [`Op::preds`]
//! are the edges that any other order has to respect (read after write, write after read,
//! write after write on a storage, and the traced edges through views).
//!
//! Gradients (and whatever else a step returns) stay live until the end of the step or until
//! they have been copied to the host: nothing reads them inside the step, but they are its result.

mod build;
mod flat;
pub mod json;
mod liveness;
mod makers;
pub mod random;
#[cfg(test)]
mod tests;

use tensortier_model::{Bytes, Nanos};

pub use build::{GraphBuilder, NewOp};
pub(crate) use flat::{Flat, Touch};
pub use liveness::Liveness;
pub(crate) use makers::Makers;

/// Index into [`Graph::ops`].
pub type OpId = usize;
/// Index into [`Graph::tensors`].
pub type TensorId = usize;
/// Index into [`Graph::storages`].
pub type StorageId = usize;

/// What an operator does to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Runs on the device: reads its inputs, writes its outputs.
    Compute,
    /// Makes a new view of a storage; costs no time and touches no data.
    View,
    /// Allocates without writing; costs no time.
    Alloc,
}

/// What a storage holds, which decides how it begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageKind {
    /// Weights: there before the step and after it; a copy on the host is valid.
    Param,
    /// Buffers of the model, as [`StorageKind::Param`].
    Buffer,
    /// The batch, as [`StorageKind::Param`]: it is assumed to be on the host or already fetched.
    Input,
    /// Made in the step, dead after its last use.
    Temporary,
    /// Made in the step and its result (gradients): live until the end or until it is on the host.
    Output,
}

impl StorageKind {
    /// Exists before the step begins and after it ends.
    pub fn is_persistent(self) -> bool {
        matches!(self, Self::Param | Self::Buffer | Self::Input)
    }
}

/// A block of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// Size.
    pub bytes: Bytes,
    /// How it begins and ends.
    pub kind: StorageKind,
}

/// A tensor: a view of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The memory behind it.
    pub storage: StorageId,
    /// Bytes this view covers; for an expanded view more than the storage has.
    pub bytes: Bytes,
    /// The operator that made it; none for what exists before the step.
    pub producer: Option<OpId>,
}

/// An operator of the traced step.
#[derive(Debug, Clone, PartialEq)]
pub struct Op {
    /// The trace's name of this call.
    pub name: String,
    /// What is called, for example `aten.mm.default`.
    pub kernel: String,
    /// What it does to memory.
    pub kind: OpKind,
    /// Tensors it takes.
    pub inputs: Vec<TensorId>,
    /// Tensors it makes.
    pub outputs: Vec<TensorId>,
    /// Storages whose contents it needs on the device, ascending.
    pub reads: Vec<StorageId>,
    /// Storages it writes, ascending; one that is also read is changed in place.
    pub writes: Vec<StorageId>,
    /// `reads` and `writes` together, ascending: what must be resident while it runs.
    pub touches: Vec<StorageId>,
    /// Operators that must run before it in every order, ascending.
    pub preds: Vec<OpId>,
    /// Time on the device.
    pub time: Nanos,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: Bytes,
}

/// A training step.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// What was traced.
    pub name: String,
    /// Operators in traced order.
    pub ops: Vec<Op>,
    /// Tensors in order of appearance.
    pub tensors: Vec<Tensor>,
    /// Storages in order of appearance.
    pub storages: Vec<Storage>,
    pub(crate) flat: Flat,
}

impl Graph {
    /// Time of a step with unlimited memory: the sum over operators.
    pub fn ideal_time(&self) -> Nanos {
        self.ops.iter().map(|op| op.time).sum()
    }

    /// The most bytes that one operator needs resident while it runs.
    pub fn largest_op(&self) -> Bytes {
        self.ops.iter().map(|op| self.bytes_of(&op.touches)).max().unwrap_or(0)
    }

    /// Bytes of a set of storages.
    pub fn bytes_of(&self, storages: &[StorageId]) -> Bytes {
        storages.iter().map(|&s| self.storages[s].bytes).sum()
    }

    /// Bytes of everything that exists before the step.
    pub fn persistent_bytes(&self) -> Bytes {
        self.storages.iter().filter(|s| s.kind.is_persistent()).map(|s| s.bytes).sum()
    }

    /// The traced order: `0, 1, 2, …`.
    pub fn traced_order(&self) -> Vec<OpId> {
        (0..self.ops.len()).collect()
    }

    /// Highest sum of live bytes over the traced order, with everything persistent resident.
    pub fn peak(&self) -> Bytes {
        Liveness::new(self, &self.traced_order()).peak(self)
    }
}

/// What can be wrong with a graph.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// The file could not be read or unpacked.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Larger than any graph this loader takes.
    #[error("{path}: more than {limit} bytes unpacked; a graph of a training step has a few MiB")]
    TooLarge {
        /// The file.
        path: std::path::PathBuf,
        /// The limit.
        limit: u64,
    },
    /// Not JSON of the documented form.
    #[error("{path}: {source}")]
    Parse {
        /// The file.
        path: std::path::PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// Written by a newer version.
    #[error("{path}: format version {found}; this program reads versions 1 to {newest}")]
    Version {
        /// The file.
        path: std::path::PathBuf,
        /// The file's version.
        found: u32,
        /// The newest that is known.
        newest: u32,
    },
    /// Well-formed, but no training step.
    #[error("{name}: {what}")]
    Invalid {
        /// The file or the graph's name.
        name: String,
        /// What is wrong, with the node's or storage's number.
        what: String,
    },
}
