//! Where accesses come from: one file a source. A source knows processes and addresses, and nothing of heat or policy.

mod bpf_sys;
pub mod damon;
pub mod damon_events;
pub mod ebpf;
pub mod fault;
pub mod format;
pub mod gpu;
pub mod job_events;
mod layout;
pub(crate) mod lost;
pub mod migrations;
pub mod work;

use std::time::Instant;

use crate::units::{Pid, Range};

/// What kind of evidence a [`Touch`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TouchKind {
    /// An access monitor looked at the range: `weight` is the share of its samples that found it accessed, 0 to 1.
    /// A weight of 0 is evidence too: the range was looked at and not used.
    Access,
    /// Page faults: `weight` is their count.
    Fault,
    /// A device read or wrote the range (copy to or from a GPU): `weight` is the number of transfers.
    Transfer,
}

/// One piece of evidence about how a process used a range of its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Touch {
    /// The process.
    pub pid: Pid,
    /// The addresses.
    pub range: Range,
    /// What was seen.
    pub kind: TouchKind,
    /// How much of it; the unit depends on `kind`.
    pub weight: f32,
    /// When the evidence was gathered.
    pub at: Instant,
}
