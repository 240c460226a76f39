//! The processes of a job: how it is started, which memory it has, which of that may be moved, and where it is.

use std::collections::BTreeMap;

use crate::units::{NodeId, Pid, Range};

pub mod caller;
pub mod cgroup;
pub mod launch;
pub mod mappings;
pub mod memcg;
pub mod memory;
pub mod numa_maps;
mod number;
pub mod place;
pub mod populated;
pub mod residency;
pub mod running;
pub mod signals;
mod spawn;
pub mod vma;

/// Where the resident bytes of one range are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The process.
    pub pid: Pid,
    /// At most one block ([`crate::units::BLOCK`]).
    pub range: Range,
    /// Resident bytes on each node.
    pub on: BTreeMap<NodeId, u64>,
}
