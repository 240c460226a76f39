//! What agent and GPU bridge say to each other. The design is ours.
//!
//! ```text
//! agent ── placement ──▶ bridge   memory that both map; the agent writes, the bridge reads and never waits
//! agent ◀── hints ────── bridge   messages on a socket; hostile until checked
//! ```
//!
//! * [`placement`]: where the process's memory is, so that the bridge starts copies from CXL earlier than those from
//!   DRAM. One descriptor a process: addresses are that process's own.
//! * [`hints`]: what the process copies to and from the GPU, which no accessed bit shows.
//!
//! Both carry [`VERSION`]; a side that reads another one says so and goes on without the other. Every word is in the
//! machine's byte order: the two ends run on one machine. The crate makes no system call and has no dependency: the
//! agent maps and seals, the bridge maps read-only.

pub mod hints;
pub mod placement;

/// Version of everything in this crate. A change of any layout raises it.
pub const VERSION: u32 = 1;
