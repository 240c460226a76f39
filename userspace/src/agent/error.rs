//! Why there is no agent, or no job of it.

use crate::{host::HostError, source::ebpf::EbpfError, units::Pid};

/// Why the agent cannot run, or watch a job.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The host could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Neither faults nor DAMON can be seen, so there is nothing to decide from.
    #[error("no source of accesses works: {ebpf}")]
    Blind {
        /// Why the eBPF programs do not run; DAMON's reports come through them.
        ebpf: EbpfError,
    },
    /// A process could not be tracked.
    #[error("cannot watch process {pid}: {reason}")]
    Track {
        /// The process.
        pid: Pid,
        /// Why.
        reason: String,
    },
    /// No thread for moving pages.
    #[error("cannot start the migration thread: {0}")]
    Thread(#[from] std::io::Error),
}
