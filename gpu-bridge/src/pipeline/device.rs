//! What carries bytes: copy threads and the GPU's copy engines.

use tensortier_model::{Bytes, Nanos};

use super::kernel::Kernel;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Host to device.
    H2d,
    /// Device to host.
    D2h,
}

/// A copy that a job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Copies of one stream keep their order.
    pub stream: u64,
    /// Which way.
    pub direction: Direction,
    /// Address in host memory.
    pub host: u64,
    /// Address in device memory.
    pub device: u64,
    /// How much.
    pub bytes: Bytes,
    /// Node of the host memory, as far as it is known.
    pub node: u32,
    /// Whether the driver knows the host memory, so that the engine may reach it without staging.
    pub registered: bool,
}

/// What an operation does; addresses are absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A copy thread reads host memory and writes the staging ring.
    Fill {
        /// Host memory.
        host: u64,
        /// Offset in the direction's ring.
        ring: Bytes,
        /// Node that is read.
        node: u32,
    },
    /// A copy thread reads the staging ring and writes host memory.
    Drain {
        /// Offset in the direction's ring.
        ring: Bytes,
        /// Host memory.
        host: u64,
        /// Node that is written.
        node: u32,
    },
    /// The direction's engine moves bytes between its ring and the device.
    Staged {
        /// Which way.
        direction: Direction,
        /// Offset in the direction's ring.
        ring: Bytes,
        /// Device memory.
        device: u64,
    },
    /// The direction's engine moves bytes between registered host memory and the device.
    Direct {
        /// Which way.
        direction: Direction,
        /// Host memory.
        host: u64,
        /// Device memory.
        device: u64,
        /// Node of the host memory.
        node: u32,
    },
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Its number.
    pub id: u64,
    /// What it does.
    pub work: Work,
    /// How much.
    pub bytes: Bytes,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its number.
    pub id: u64,
    /// When a thread or the engine turned to it.
    pub began: Nanos,
    /// When it was over.
    pub ended: Nanos,
}

/// Copy threads, engines and a processor. An engine works in the order of [`Device::start`]; the pipeline starts at most
/// [`Limits::threads`](super::Limits::threads) thread operations at once.
pub trait Device {
    /// Starts an operation and returns.
    fn start(&mut self, op: Op);

    /// Waits for the next operation to end, until `until` at most, where there is one. `None` when that time has come;
    /// without it, when nothing is under way.
    fn next(&mut self, until: Option<Nanos>) -> Option<Done>;

    /// Runs a kernel after those launched before, beside all copies, and returns.
    fn launch(&mut self, id: u64, kernel: Kernel);

    /// The checksums of what a kernel that has ended read; `None` for one that could not run. Each is told once.
    fn sums(&mut self, id: u64) -> Option<Vec<u64>>;
}
