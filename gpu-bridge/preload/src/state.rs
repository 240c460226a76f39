//! What is taken over, and what goes to the driver untouched.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use tensortier_bridge::pipeline::Direction;

use crate::{
    agent::Agent,
    copy::{Copies, LEAST, Outcome},
    counts::{Counts, add},
    driver::{CAPTURE_INVALIDATED, Driver, INVALID_VALUE, NOT_REGISTERED},
    pinned::{Extents, MOST_SMALL, Owner, Pinned},
    sys,
};

/// Contexts with a ring; copies of a program that makes more are the driver's.
const RINGS: usize = 16;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`: write-combined memory is the driver's to make.
const FLAGS: u32 = 3;

/// A context's ring, or that it cannot have one.
type Ring = Option<Arc<Mutex<Copies>>>;

/// The library in one process.
pub struct State {
    /// The program's driver.
    pub driver: Driver,
    /// What was done.
    pub counts: Counts,
    process: u32,
    broken: AtomicBool,
    /// Stream captures under way.
    captures: AtomicI64,
    rings: Mutex<BTreeMap<u64, Ring>>,
    pinned: Mutex<Pinned>,
    extents: Arc<Extents>,
    agent: Agent,
}

impl State {
    /// On a driver.
    pub fn new(driver: Driver) -> Self {
        let pinned = Pinned::new(driver);
        let extents = pinned.extents();
        let (counts, broken, captures, rings) = Default::default();
        let process = std::process::id();
        let (pinned, agent) = (Mutex::new(pinned), Agent::new());
        Self { driver, counts, process, broken, captures, rings, pinned, extents, agent }
    }

    /// Whether this is the process that it was made in. A child of `fork` has no copy threads, and no CUDA either.
    pub fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Takes nothing over from now on; what the program has of a pool it keeps, and may free.
    pub fn give_up(&self) {
        self.broken.store(true, Ordering::Relaxed);
        add(&self.counts.panics, 1);
    }

    fn works(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }

    fn pinned(&self) -> MutexGuard<'_, Pinned> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that begins or ends a capture was answered.
    pub fn captured(&self, begins: bool, code: i32) {
        match (begins, code) {
            (true, 0) => drop(self.captures.fetch_add(1, Ordering::SeqCst)),
            // Invalid, it has ended all the same.
            (false, 0 | CAPTURE_INVALIDATED) => drop(self.captures.fetch_sub(1, Ordering::SeqCst)),
            _ => {}
        }
    }

    fn captures(&self) -> bool {
        self.captures.load(Ordering::SeqCst) != 0
    }

    /// A copy between host and device on a stream (0: the default one); `None`: the driver shall make it.
    pub fn copy(&self, direction: Direction, device: u64, host: u64, bytes: usize, stream: u64) -> Option<i32> {
        let bytes = bytes as u64;
        if bytes < LEAST || host == 0 || !self.works() {
            return None;
        }
        let counts = &self.counts;
        let passed = |counter| {
            add(counter, 1);
            None
        };
        let _relaxed = self.driver.relaxed();
        if self.captures() || self.driver.may_capture(stream) {
            return passed(&counts.passed_capturing);
        }
        let Some(last) = host.checked_add(bytes - 1) else { return passed(&counts.passed_unsure) };
        if !self.driver.is_pageable(host) || !self.driver.is_pageable(last) {
            return passed(&counts.passed_known);
        }
        if !self.driver.holds(device, bytes) || !sys::is_mapped(host, bytes) {
            return passed(&counts.passed_unsure);
        }
        let Some(ring) = self.ring() else { return passed(&counts.passed_no_ring) };
        let Ok(mut copies) = ring.try_lock() else { return passed(&counts.passed_busy) };
        let node = self.agent.node_of(host, bytes).or_else(|| sys::node_of(host)).unwrap_or(0);
        match copies.copy(direction, device, (host, node), bytes, stream) {
            Outcome::Arrived => {
                add(&counts.staged_copies, 1);
                add(&counts.staged_bytes, bytes);
                add(&counts.untold_copies, u64::from(!self.agent.copied(direction, host, bytes)));
                Some(0)
            }
            Outcome::Refused => passed(&counts.passed_refused),
            Outcome::Failed(code) => {
                add(&counts.failed_copies, 1);
                Some(code)
            }
        }
    }

    /// The current context's ring, made at its first copy.
    fn ring(&self) -> Ring {
        let context = self.driver.context()?;
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ring) = rings.get(&context) {
            return ring.clone();
        }
        if rings.len() >= RINGS {
            return None;
        }
        let ring = Copies::new(&self.driver).map(|copies| Arc::new(Mutex::new(copies)));
        rings.insert(context, ring.clone());
        ring
    }

    /// Pinned host memory; `None`: the driver shall give it, or say why not.
    pub fn allocate(&self, bytes: usize, flags: u32) -> Option<u64> {
        if bytes <= MOST_SMALL || !self.works() {
            return None;
        }
        let found = (flags & !FLAGS == 0 && !self.captures()).then(|| {
            let _relaxed = self.driver.relaxed();
            let context = self.driver.context()?;
            self.pinned().allocate(context, bytes as u64, flags)
        });
        let address = found.flatten();
        match address {
            Some(_) => {
                add(&self.counts.pooled_allocations, 1);
                add(&self.counts.pooled_bytes, bytes as u64);
            }
            None => add(&self.counts.passed_allocations, 1),
        }
        address
    }

    /// Whose an address is.
    pub fn owner(&self, address: u64) -> Owner {
        if !self.extents.may_hold(address) {
            return Owner::Other;
        }
        self.pinned().owner(address)
    }

    /// Frees pinned memory of a pool, by its first address; `None`: it is not a pool's.
    pub fn free(&self, address: u64) -> Option<i32> {
        let live = match self.owner(address) {
            Owner::Other => return None,
            Owner::Program(live) if live.address == address => live,
            Owner::Program(_) | Owner::Nobody => return Some(self.refuse(INVALID_VALUE)),
        };
        // As the driver does, before memory has another use.
        match self.driver.synchronize() {
            0 => {
                let context = self.driver.context();
                self.pinned().free(live, context);
                Some(0)
            }
            code => Some(code),
        }
    }

    /// The answer to `cuMemHostUnregister` of a pool's memory, which the program never registered.
    pub fn unregister(&self, address: u64) -> Option<i32> {
        match self.owner(address) {
            Owner::Other => None,
            _ => Some(self.refuse(NOT_REGISTERED)),
        }
    }

    /// A refusal; that of the context goes first, as the driver has it.
    fn refuse(&self, code: i32) -> i32 {
        match self.driver.status() {
            0 => code,
            first => first,
        }
    }
}
