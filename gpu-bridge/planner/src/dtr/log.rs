//! The operator log: what a step computes, reads, holds and lets go.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

/// Index of an operator call in [`OpLog::ops`].
pub type OpId = u32;
/// Index of a tensor in [`OpLog::tensors`].
pub type TensorId = u32;
/// Index of a storage in [`OpLog::storages`].
pub type StorageId = u32;

/// Uncompressed bytes above which a log is refused: a small compressed file can unpack to more than memory holds.
pub const MAX_LOG_BYTES: u64 = 1 << 30;

/// Why a log was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file could not be opened or read.
    #[error("{path}: cannot read the operator log: {source}")]
    Read {
        /// File named by the caller.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The log is larger than [`MAX_LOG_BYTES`].
    #[error("{path}: more than {MAX_LOG_BYTES} bytes uncompressed; split the log into single training steps")]
    TooLarge {
        /// File named by the caller.
        path: PathBuf,
    },
    /// One line cannot be understood or contradicts an earlier one.
    #[error("{path}:{line}: {what}")]
    Line {
        /// File named by the caller.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// One operator call.
#[derive(Clone, Debug)]
pub struct Op {
    /// Name in the log; `constant` for tensors that exist before the step.
    pub name: String,
    /// Measured run time, ns.
    pub time_ns: u64,
    /// Tensors it reads, in order, a tensor as often as it is named.
    pub inputs: Vec<TensorId>,
    /// Tensors it writes, in order; never empty.
    pub outputs: Vec<TensorId>,
    /// Bytes its results need: the sum over outputs that are not aliases.
    pub bytes: u64,
}

/// One tensor: a result of one call.
#[derive(Clone, Copy, Debug)]
pub struct TensorInfo {
    /// The call that writes it.
    pub op: OpId,
    /// The memory it lies in.
    pub storage: StorageId,
    /// Bytes the call allocates for it; 0 for an alias of an input.
    pub bytes: u64,
}

/// One piece of memory, shared by a tensor and its aliases.
#[derive(Clone, Copy, Debug)]
pub struct StorageInfo {
    /// Bytes it occupies.
    pub bytes: u64,
    /// The tensor that allocated it.
    pub root: TensorId,
}

/// One instruction of the step, in program order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Run an operator for the first time.
    Run(OpId),
    /// The program takes another reference to a tensor.
    Acquire(TensorId),
    /// The tensor must be in memory from here to the end: constants, and what the step leaves behind.
    Pin(TensorId),
    /// The program drops a reference to a tensor.
    Release(TensorId),
}

/// A checked log: every index is in range, every operator reads only tensors written before it, and no reference is
/// dropped that was not held.
#[derive(Clone, Debug, Default)]
pub struct OpLog {
    /// Calls in program order.
    pub ops: Vec<Op>,
    /// Tensors in the order they are written.
    pub tensors: Vec<TensorInfo>,
    /// Storages in the order they are allocated.
    pub storages: Vec<StorageInfo>,
    /// The program.
    pub steps: Vec<Step>,
    /// Sum of all run times, ns: the step with memory without limit.
    pub base_ns: u64,
}

impl OpLog {
    /// Loads a log, gzipped if the name ends in `.gz`.
    pub fn load(path: &Path) -> Result<Self, LogError> {
        let read_error = |source| LogError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(read_error)?;
        let mut text = String::new();
        let limit = MAX_LOG_BYTES + 1;
        if path.extension().is_some_and(|e| e == "gz") {
            MultiGzDecoder::new(BufReader::new(file)).take(limit).read_to_string(&mut text)
        } else {
            BufReader::new(file).take(limit).read_to_string(&mut text)
        }
        .map_err(read_error)?;
        if text.len() as u64 > MAX_LOG_BYTES {
            return Err(LogError::TooLarge { path: path.to_owned() });
        }
        Self::parse(&text, path)
    }

    /// Bytes of the constants: what is in memory before the step and never leaves it.
    pub fn constant_bytes(&self) -> u64 {
        self.ops.iter().filter(|op| op.is_constant()).map(|op| op.bytes).sum()
    }

    /// Largest need of one call, bytes: its results plus the storages its inputs allocated, each input counted as
    /// often as it is named. No budget below this can work; it is the figure the DTR authors print.
    pub fn largest_op_bytes(&self) -> u64 {
        let need = |op: &Op| op.bytes + op.inputs.iter().map(|&t| self.tensors[t as usize].bytes).sum::<u64>();
        self.ops.iter().map(need).max().unwrap_or(0)
    }

    /// Most bytes the program holds at any moment: results from when they are written until their last reference
    /// goes. Budgets are fractions of this. (A run without a limit may hold a little more, since it keeps constants
    /// that the program let go of.)
    pub fn peak_bytes(&self) -> u64 {
        let mut refs = vec![0u64; self.storages.len()];
        let (mut held, mut peak) = (0u64, 0u64);
        for &step in &self.steps {
            match step {
                Step::Run(op) => {
                    held += self.ops[op as usize].bytes;
                    peak = peak.max(held);
                    for &t in &self.ops[op as usize].outputs {
                        refs[self.storage_of(t) as usize] += 1;
                    }
                }
                Step::Acquire(t) => refs[self.storage_of(t) as usize] += 1,
                Step::Pin(_) => {}
                Step::Release(t) => {
                    let s = self.storage_of(t) as usize;
                    refs[s] -= 1;
                    if refs[s] == 0 {
                        held -= self.storages[s].bytes;
                    }
                }
            }
        }
        peak
    }

    /// The storage a tensor lies in.
    pub fn storage_of(&self, tensor: TensorId) -> StorageId {
        self.tensors[tensor as usize].storage
    }
}

impl Op {
    /// True for a tensor that exists before the step.
    pub fn is_constant(&self) -> bool {
        self.name == CONSTANT
    }
}

/// Name given to the calls that stand for constants.
pub(super) const CONSTANT: &str = "constant";
