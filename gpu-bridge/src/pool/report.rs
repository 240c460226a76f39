//! What the pool says: its errors, and what it holds.

use tensortier_model::Bytes;

use super::{backing::BackingError, class::Class, size, store::Handle};

/// Why the pool refused.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Registering there would defeat the placement.
    #[error(
        "node {node} is ZONE_MOVABLE: registering memory there makes the kernel move it to DRAM; bring the node up as \
         kernel memory (`daxctl reconfigure-device --mode=system-ram --no-movable`, or `echo online_kernel` to its \
         memory blocks), give the pool the device-dax file itself, or leave the node unregistered and have copies staged"
    )]
    Movable {
        /// The node.
        node: u32,
    },
    /// An object of no bytes, or of more than there are addresses.
    #[error("an object of {bytes} bytes: it must have between 1 and {}", size::MAX)]
    Size {
        /// Bytes asked for.
        bytes: Bytes,
    },
    /// No node has room within its budget.
    #[error("no room for {bytes} bytes of {class:?}: {nodes}; raise a budget or free objects")]
    Budget {
        /// Bytes asked for.
        bytes: Bytes,
        /// The object's class.
        class: Class,
        /// Each node with what it holds of its budget.
        nodes: String,
    },
    /// Budgets allow it, but no node gave memory; this is the last one's reason.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The object has been freed.
    #[error("object {0} has been freed")]
    Stale(Handle),
    /// A copy uses the object.
    #[error("object {0} is pinned by a copy; wait for it")]
    Pinned(Handle),
}

/// What a node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeUsage {
    /// Most it may hold.
    pub budget: Bytes,
    /// Mapped now.
    pub reserved: Bytes,
    /// Most that was mapped.
    pub peak: Bytes,
}

/// What the pool holds and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that objects asked for.
    pub live: Bytes,
    /// Bytes that they take, rounded.
    pub rounded: Bytes,
    /// Bytes mapped.
    pub reserved: Bytes,
    /// Most bytes that were live at once.
    pub peak_live: Bytes,
    /// Most bytes that were mapped at once.
    pub peak_reserved: Bytes,
    /// Objects.
    pub objects: usize,
    /// Extents.
    pub extents: usize,
    /// Extents that were registered.
    pub registrations: u64,
    /// Extents that the driver refused.
    pub registration_failures: u64,
    /// Objects that went to another node than the best one for their class.
    pub spilled: u64,
    /// Objects moved.
    pub moved: u64,
}
