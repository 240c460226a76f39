//! Large copies of pageable memory, in chunks through a registered ring, on the stream that the program named.

use std::{mem, sync::Arc};

use tensortier_bridge::{
    device::StreamDevice,
    pipeline::{Copy, Direction, Limits, Pipeline, Tuning},
    pool::{Backing, HostMemory, Mapping, Run, movable_nodes, size},
};
use tensortier_model::RealClock;

use crate::{driver::Driver, sys};

/// Copies below this size go to the driver: its own staging takes no longer than ours takes to begin.
pub const LEAST: u64 = 1 << 20;
/// Bytes of each direction's ring; pinned once for each context.
const RING: u64 = 32 << 20;
/// Most copy threads: four feed a link of 55 GB/s on hosts with as many memory channels.
const THREADS: usize = 4;
/// Chunks at the engine at once are two; some to spare.
const EVENTS: usize = 4;

/// How a copy that was begun ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every byte has arrived.
    Arrived,
    /// The driver refused the first chunk: nothing was copied.
    Refused,
    /// The driver's code, after some of it was copied.
    Failed(i32),
}

/// The ring and the threads of one context, and what was learned of its link.
pub struct Copies {
    pipeline: Pipeline<Arc<RealClock>, StreamDevice>,
}

impl Copies {
    /// For the current context. The ring is on the GPU's node, or this thread's where that is not known. `None`: the
    /// node's memory is movable (a pin would move it), the driver does not register it, no room, no threads.
    pub fn new(driver: &Driver) -> Option<Self> {
        let node = gpu_node(driver)?;
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(THREADS));
        let limits = Limits { ring: RING, threads: threads as u32 };
        let events = driver.events(EVENTS)?;
        let rings = [ring(driver, node)?, ring(driver, node)?];
        let clock = Arc::new(RealClock::new());
        let addresses = [rings[0].address(), rings[1].address()];
        let device = driver.device(Arc::clone(&clock), limits, addresses, events)?;
        // They live as long as the process: a copy engine may know them.
        rings.into_iter().for_each(mem::forget);
        Some(Self { pipeline: Pipeline::new(clock, device, limits, Tuning::Adaptive) })
    }

    /// Copies, and waits for the end. Both ranges are valid, the stream is the current context's; the node is that of the
    /// host memory.
    pub fn copy(
        &mut self,
        direction: Direction,
        device: u64,
        (host, node): (u64, u32),
        bytes: u64,
        stream: u64,
    ) -> Outcome {
        self.pipeline.device().begin(stream);
        let id = self.pipeline.submit(Copy { stream: 0, direction, host, device, bytes, node, registered: false });
        self.pipeline.wait(id);
        while self.pipeline.completed().is_some() {}
        match self.pipeline.device().outcome() {
            (_, None) => Outcome::Arrived,
            (0, Some(_)) => Outcome::Refused,
            (_, Some(code)) => Outcome::Failed(code),
        }
    }
}

/// The node near the current context's GPU; `None` where its memory cannot be pinned.
pub fn gpu_node(driver: &Driver) -> Option<u32> {
    let near = driver.pci_address().and_then(|address| sys::node_of_pci(&address));
    let node = near.or_else(sys::node_here).unwrap_or(0);
    let zones = std::fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
    (!movable_nodes(&zones).contains(&node)).then_some(node)
}

/// A registered ring on a node; anywhere, where the kernel does not let this process choose.
fn ring(driver: &Driver, node: u32) -> Option<Mapping> {
    let bound = HostMemory::new().map(&[Run { node, bytes: RING }], size::HUGE);
    let mapping = bound.ok().or_else(|| {
        let mut anywhere = Mapping::anonymous(RING, size::HUGE).ok()?;
        anywhere.populate().ok()?;
        Some(anywhere)
    })?;
    driver.register(mapping.address(), RING).is_ok().then_some(mapping)
}
