//! Copies between host and GPU at the speed of the link, with Dynamic Adaptive Pipelining.
//!
//! ```text
//!             pageable source                    copy engine
//! H2D   DRAM, CXL ── copy threads ──▶ staging ring ──────────▶ GPU      registered source: directly
//! D2H   DRAM, CXL ◀── copy threads ── staging ring ◀────────── GPU      both directions at once
//!                        │                │
//!                     threads           chunk, depth  ◀── tune.rs: what was measured
//! ```
//!
//! *Published* (abstract only, see [crate]): the paper's system has "Dynamic Adaptive Pipelining (DAP) to enhance
//! communication–computation overlap". What it adapts and how is not in the abstract. *Ours*: all of this module. The
//! three things that adapt ([`tune`]):
//! * **chunk** and **threads** of each size of copy: to what the measured cost of every stage predicts to be the fastest,
//!   among all that stands between the first fill and the last byte;
//! * **depth** of the ring: up when the engine starved while there was no room, down when chunks lie ready early.
//!
//! What a job will use next comes from its own repetition ([`order`]); when to start each copy, from where it is
//! ([`prefetch`]): by the agent's published placement, those from CXL earlier than those from DRAM.
//!
//! The scheduler ([`flow`]) runs on a [`Clock`](tensortier_model::Clock) and a [`Device`]. [`VirtualDevice`] is the one
//! of simulations: modelled speeds, virtual time, and real bytes where they are wanted.
//!
//! **Order.** Copies of one stream finish in the order of submission. Of one direction they overlap in the pipeline,
//! engine order kept; a copy that turns the direction, or writes host memory that an earlier one still writes, begins
//! when those before it have ended. Streams have no order among each other.

mod cost;
pub mod device;
pub mod flow;
pub mod kernel;
mod lane;
pub mod order;
pub mod prefetch;
pub mod tune;
mod virtual_device;

pub use device::{Copy, Device, Direction, Done, Op, Work};
pub use flow::{Completion, CopyId, Pipeline};
pub use tune::{Limits, Settings, Tuning};
pub use virtual_device::{Memories, VirtualDevice, VirtualHost};

#[cfg(test)]
mod tests;
