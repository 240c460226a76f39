//! The object pool: where tensors that leave the GPU live.
//!
//! ```text
//! class → placements (class.rs) → region of a placement and a lifetime (region.rs)
//!                                   small: slab (slab.rs) │ large: best fit, coalescing (blocks.rs)
//!                                   no room: an extent, within each node's budget (extent.rs)
//!                                     mapped, bound, touched (backing.rs, memory.rs), registered once (Registrar)
//! ```
//!
//! *Published* (abstract only, see [crate]): NUMA-aware allocation and a hybrid of object allocators exist in the paper's
//! system. *Ours*: everything else, among it
//! * the [classes](Class) and their order of nodes. That optimizer state belongs in DRAM and what only DMA reads may lie
//!   in CXL is also the finding of arXiv 2507.03305, whose budget rule (local first, then the cards) is the model;
//! * sizes ([`size`]): classes 1/8 apart up to 32 KiB, pages above, alignment to 2 MiB only above 32 MiB, never a power
//!   of two (which costs up to twice the memory: pytorch issue 95823);
//! * extents that lifetimes of one placement pass on to each other, so that a steady job registers nothing;
//! * pages preferred on their node and checked by `move_pages`, never bound: a bound page on a full node calls the OOM
//!   killer, and a CUDA process bound to a node without CPUs fails in the driver (open-gpu-kernel-modules issue 885).
//!
//! **Registration pins.** On a node whose memory is `ZONE_MOVABLE` the kernel moves pages to DRAM before it pins them, so
//! CXL memory would be taken and DRAM used. [`Pool::new`] refuses such a node and says what to do.

mod backing;
mod blocks;
mod class;
mod extent;
mod memory;
mod region;
mod report;
pub mod size;
mod slab;
mod store;
mod stripe;
mod zone;

pub use backing::{Backing, BackingError, DaxDevice, FakeNodes, HostMemory, Run};
pub(crate) use blocks::Blocks;
pub use class::{Class, Lifetime, NodeKind, NodeSpec, Placement};
pub use extent::{NoRegistrar, Registrar};
pub use memory::Mapping;
pub use report::{NodeUsage, PoolError, Usage};
pub use store::{Handle, Pool, View};
pub use zone::movable_nodes;

#[cfg(test)]
mod tests;
