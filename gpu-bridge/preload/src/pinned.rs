//! Pinned host memory for the program, from a pool for each context, on the GPU's node.
//!
//! The program sees memory that the driver allocated: its own start, size, flags and identity, whatever extent of the pool
//! it is a part of; what it does not own of an extent is no memory that the driver knows.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tensortier_bridge::pool::{Class, Handle, HostMemory, Lifetime, NodeKind, NodeSpec, Pool, Registrar};

use crate::{copy, driver::Driver, sys};

/// Up to this size the pool packs objects closer than whole pages, which is not what the driver does.
pub const MOST_SMALL: usize = tensortier_bridge::pool::size::SLAB_MAX as usize;
/// Contexts with a pool; those of a program that makes more use the driver's memory.
const POOLS: usize = 16;
/// Refusals after which a context's pool is not asked again.
const PATIENCE: u32 = 3;
/// Numbers of buffers begin here: the driver's own count up from 1.
const FIRST_BUFFER: u64 = 1 << 62;

/// Memory that the pools have registered.
#[derive(Debug)]
pub struct Extents {
    ranges: Mutex<BTreeMap<u64, u64>>,
    /// Bounds of all that ever was: most addresses are outside, and are told without the lock.
    low: AtomicU64,
    high: AtomicU64,
}

impl Extents {
    fn new() -> Self {
        Self { ranges: Mutex::default(), low: AtomicU64::new(u64::MAX), high: AtomicU64::new(0) }
    }

    /// Whether an address can be one of a pool's.
    pub fn may_hold(&self, address: u64) -> bool {
        (self.low.load(Ordering::Acquire)..self.high.load(Ordering::Acquire)).contains(&address)
    }

    fn holds(&self, address: u64) -> bool {
        let ranges = self.ranges();
        ranges.range(..=address).next_back().is_some_and(|(start, bytes)| address - start < *bytes)
    }

    fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers extents with the program's driver, while their context is current.
#[derive(Debug)]
struct Register {
    driver: Driver,
    extents: Arc<Extents>,
}

impl Registrar for Register {
    fn register(&mut self, address: u64, bytes: u64) -> Result<(), String> {
        self.driver.register(address, bytes).map_err(|code| format!("cuMemHostRegister: {code}"))?;
        self.extents.low.fetch_min(address, Ordering::AcqRel);
        self.extents.high.fetch_max(address + bytes, Ordering::AcqRel);
        self.extents.ranges().insert(address, bytes);
        Ok(())
    }

    fn unregister(&mut self, address: u64, _: u64) {
        self.extents.ranges().remove(&address);
        self.driver.unregister(address);
    }
}

/// One context's pool.
struct Owned {
    pool: Pool<HostMemory, Register>,
    /// Freed while another context was current, whose end of work says nothing of this one's.
    waiting: Vec<Handle>,
    refusals: u32,
}

/// An allocation that the program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// First address.
    pub address: u64,
    /// As asked for.
    pub bytes: u64,
    /// As the driver shows them of its own memory.
    pub flags: u32,
    /// Its number among all allocations.
    pub buffer: u64,
    context: u64,
    handle: Handle,
}

impl Live {
    fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes
    }
}

/// Whose an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Not a pool's.
    Other,
    /// A pool's, in no allocation: for the program it is no memory that the driver knows.
    Nobody,
    /// Within an allocation.
    Program(Live),
}

/// All pools of the process.
pub struct Pinned {
    driver: Driver,
    pools: BTreeMap<u64, Option<Owned>>,
    live: BTreeMap<u64, Live>,
    flags: BTreeMap<u32, Option<u32>>,
    extents: Arc<Extents>,
    buffers: u64,
}

impl Pinned {
    /// No pools yet.
    pub fn new(driver: Driver) -> Self {
        let (pools, live, flags) = Default::default();
        Self { driver, pools, live, flags, extents: Arc::new(Extents::new()), buffers: FIRST_BUFFER }
    }

    /// What is asked without the lock on this.
    pub fn extents(&self) -> Arc<Extents> {
        Arc::clone(&self.extents)
    }

    /// Whose an address is.
    pub fn owner(&self, address: u64) -> Owner {
        if !self.extents.holds(address) {
            return Owner::Other;
        }
        let before = self.live.range(..=address).next_back().map(|(_, live)| *live);
        before.filter(|live| live.range().contains(&address)).map_or(Owner::Nobody, Owner::Program)
    }

    /// Memory for the program; `context` is current. `None`: the driver shall give it.
    pub fn allocate(&mut self, context: u64, bytes: u64, flags: u32) -> Option<u64> {
        let driver = self.driver;
        let flags = (*self.flags.entry(flags).or_insert_with(|| driver.shown_flags(flags)))?;
        if !self.pools.contains_key(&context) {
            if self.pools.len() >= POOLS {
                return None;
            }
            let pool = pool(driver, Arc::clone(&self.extents));
            self.pools.insert(context, pool.map(|pool| Owned { pool, waiting: Vec::new(), refusals: 0 }));
        }
        let owned = self.pools.get_mut(&context)?.as_mut()?;
        if owned.refusals >= PATIENCE {
            return None;
        }
        let pinned = owned.pool.allocate(bytes, Class::Gradients, Lifetime::Job).and_then(|handle| {
            let view = owned.pool.pin(handle)?;
            if !view.registered {
                owned.pool.unpin(handle)?;
                owned.pool.free(handle)?;
            }
            Ok((handle, view))
        });
        let Some((handle, view)) = pinned.ok().filter(|(_, view)| view.registered) else {
            owned.refusals += 1;
            return None;
        };
        self.buffers += 1;
        let (address, buffer) = (view.address, self.buffers);
        self.live.insert(address, Live { address, bytes, flags, buffer, context, handle });
        Some(address)
    }

    /// Takes an allocation back. All work of `context`, which is current, has ended.
    pub fn free(&mut self, live: Live, context: Option<u64>) {
        if self.live.remove(&live.address).is_none() {
            return;
        }
        if let Some(Some(owned)) = self.pools.get_mut(&live.context) {
            owned.waiting.push(live.handle);
        }
        let Some(Some(owned)) = context.and_then(|context| self.pools.get_mut(&context)) else { return };
        for handle in std::mem::take(&mut owned.waiting) {
            // Handles that the pool gave and that nobody else has: it takes them back.
            let _ = owned.pool.unpin(handle).and_then(|()| owned.pool.free(handle));
        }
    }
}

fn pool(driver: Driver, extents: Arc<Extents>) -> Option<Pool<HostMemory, Register>> {
    let node = copy::gpu_node(&driver)?;
    let (kind, distance, weight) = (NodeKind::Dram, 10, 1);
    // Half of the node: beyond, the driver finds room, or says that there is none.
    let budget = sys::node_bytes(node) / 2;
    let spec = NodeSpec { node, kind, distance, weight, budget, movable: false, register: true };
    Pool::new(vec![spec], HostMemory::new(), Register { driver, extents }).ok()
}
