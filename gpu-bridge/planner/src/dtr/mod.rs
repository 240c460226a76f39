//! Dynamic tensor rematerialisation (DTR) on operator logs.
//!
//! A log is one training step as its operators ran: what each one read and wrote, how long it took, how many bytes
//! its results hold, and when the program let go of a tensor. [`OpLog`] loads and checks it. [`Runtime`] runs the step
//! again under a memory budget: where a result does not fit, the [`Policy`] makes room, and what it threw away is
//! computed again when an operator needs it. [`Dtr`] is the policy of the DTR paper (Kirisame et al., ICLR 2021) with
//! its three cost functions; `delta` brings its own policy to the same runtime.
//!
//! The operator semantics and the order in which ties fall are those of the simulator that the DTR authors published,
//! as facts, so that the overheads it prints come out here to the digit:
//!
//! - the storages that may be evicted form a list; one that becomes evictable goes to its end, and one that leaves
//!   keeps the others in order;
//! - the scan takes the last of equal minima, and stops at the first storage whose cost is exactly zero;
//! - a storage is evicted at once when the program's last reference to it goes, unless it is pinned;
//! - recomputing an operator brings back all of its results; those that were there already are dropped again;
//! - the clock starts at 1 ns, and constants and the step's final outputs are pinned.

mod classes;
mod heuristic;
mod log;
mod neighbourhood;
mod parse;
mod pool;
mod runtime;
mod state;

pub(crate) use classes::Classes;
pub use heuristic::{Dtr, Heuristic};
pub use log::{LogError, Op, OpId, OpLog, Step, StorageId, StorageInfo, TensorId, TensorInfo};
pub use pool::Pool;
pub use runtime::{Outcome, Policy, Runtime, Stop};
pub use state::{Place, State};

#[cfg(test)]
pub(crate) mod random;
#[cfg(test)]
mod tests;
