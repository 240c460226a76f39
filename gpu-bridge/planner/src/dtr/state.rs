//! What is where while a step runs.

use super::log::{OpId, OpLog, StorageId, TensorId};
use super::pool::Pool;

/// Where a storage's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In device memory.
    Device,
    /// Nowhere: it must be computed, for the first time or again.
    Gone,
    /// In host memory only; the policy that put it there can restore it.
    Host,
}

/// State of one storage.
#[derive(Clone, Debug)]
pub struct StorageState {
    /// Where it is.
    pub place: Place,
    /// How often it is needed just now; a locked storage is not evicted.
    pub locks: u32,
    /// References the program holds.
    pub refs: u64,
    /// Locked for ever.
    pub pinned: bool,
    /// Sum of the times of the distinct calls that write its tensors, ns: what computing it again costs by itself.
    pub compute_ns: u64,
    /// Clock when it was last read or written, ns.
    pub used_at: u64,
    /// Its tensors so far, the root first.
    pub tensors: Vec<TensorId>,
}

/// State of the whole step: storages, tensors, the pool, memory and the clock.
#[derive(Clone, Debug)]
pub struct State<'a> {
    /// The step.
    pub log: &'a OpLog,
    /// By storage.
    pub storages: Vec<StorageState>,
    /// By tensor: its value is known (its storage is on the device or in the host).
    pub defined: Vec<bool>,
    /// By tensor: results of the calls so far that read it, once for each time they name it.
    pub readers: Vec<Vec<TensorId>>,
    /// What may be evicted.
    pub pool: Pool,
    /// Bytes in device memory.
    pub held: u64,
    /// Most bytes ever in device memory.
    pub peak: u64,
    /// Bytes that may be held.
    pub budget: u64,
    /// Time so far, ns.
    pub clock: u64,
    /// Time spent computing results again, ns.
    pub remat_ns: u64,
    /// Storages dropped under pressure.
    pub evictions: u64,
}

impl<'a> State<'a> {
    pub(super) fn new(log: &'a OpLog, budget: u64) -> Self {
        let fresh = StorageState {
            place: Place::Gone,
            locks: 0,
            refs: 0,
            pinned: false,
            compute_ns: 0,
            used_at: 0,
            tensors: Vec::new(),
        };
        State {
            log,
            storages: vec![fresh; log.storages.len()],
            defined: vec![false; log.tensors.len()],
            readers: vec![Vec::new(); log.tensors.len()],
            pool: Pool::new(log.storages.len()),
            held: 0,
            peak: 0,
            budget,
            clock: 1,
            remat_ns: 0,
            evictions: 0,
        }
    }

    /// The storage of a tensor.
    pub fn storage(&self, t: TensorId) -> &StorageState {
        &self.storages[self.log.storage_of(t) as usize]
    }

    /// True if an operator can read the tensor now.
    pub fn readable(&self, t: TensorId) -> bool {
        self.defined[t as usize] && self.storage(t).place == Place::Device
    }

    /// Inputs of the call that wrote a tensor.
    pub fn parents(&self, t: TensorId) -> &'a [TensorId] {
        &self.log.ops[self.log.tensors[t as usize].op as usize].inputs
    }

    /// The storages next to one in the graph: those its calls read, and those of the results that read it.
    pub fn neighbours(&self, s: StorageId) -> impl Iterator<Item = StorageId> + '_ {
        self.storages[s as usize].tensors.iter().flat_map(move |&t| {
            self.parents(t).iter().chain(&self.readers[t as usize]).map(|&u| self.log.storage_of(u))
        })
    }

    /// Forgets a storage's bytes; its tensors must be computed before they are read again.
    pub fn drop_storage(&mut self, s: StorageId) {
        let storage = &mut self.storages[s as usize];
        if storage.place == Place::Device {
            self.held -= self.log.storages[s as usize].bytes;
        }
        storage.place = Place::Gone;
        self.pool.remove(s);
        for &t in &storage.tensors {
            self.defined[t as usize] = false;
        }
    }

    /// Takes a storage out of device memory; its tensors stay known.
    pub fn move_to_host(&mut self, s: StorageId) {
        debug_assert_eq!(self.storages[s as usize].place, Place::Device);
        self.storages[s as usize].place = Place::Host;
        self.held -= self.log.storages[s as usize].bytes;
        self.pool.remove(s);
    }

    /// Puts a storage from the host back into device memory.
    pub fn move_to_device(&mut self, s: StorageId) {
        debug_assert_eq!(self.storages[s as usize].place, Place::Host);
        self.storages[s as usize].place = Place::Device;
        self.held += self.log.storages[s as usize].bytes;
        self.peak = self.peak.max(self.held);
        if self.storages[s as usize].locks == 0 {
            self.pool.push(s);
        }
    }

    /// Makes the results of a call exist as values to come: readers, references, compute cost.
    pub(super) fn create(&mut self, op: OpId) {
        let log = self.log;
        let call = &log.ops[op as usize];
        for &t in &call.outputs {
            let s = &mut self.storages[log.storage_of(t) as usize];
            if !s.tensors.iter().any(|&u| log.tensors[u as usize].op == op) {
                s.compute_ns += call.time_ns;
            }
            s.tensors.push(t);
            s.refs += 1;
        }
        for &p in &call.inputs {
            self.readers[p as usize].extend_from_slice(&call.outputs);
        }
    }

    pub(super) fn lock(&mut self, t: TensorId) {
        let s = self.log.storage_of(t);
        let storage = &mut self.storages[s as usize];
        debug_assert_eq!(storage.place, Place::Device);
        storage.locks += 1;
        if storage.locks == 1 {
            self.pool.remove(s);
        }
    }

    pub(super) fn unlock(&mut self, t: TensorId) {
        let s = self.log.storage_of(t);
        let storage = &mut self.storages[s as usize];
        storage.locks -= 1;
        if storage.locks == 0 {
            self.pool.push(s);
        }
    }

    /// Allocates a call's results and makes them known. Returns the storages that came into being by it, the target's
    /// last: the order in which they become evictable.
    pub(super) fn define(&mut self, target: TensorId) -> Vec<StorageId> {
        let log = self.log;
        let op = &log.ops[log.tensors[target as usize].op as usize];
        self.held += op.bytes;
        self.peak = self.peak.max(self.held);
        let siblings = op.outputs.iter().copied().filter(|&u| u != target);
        let mut fresh = Vec::new();
        for u in siblings.chain([target]) {
            if self.defined[u as usize] {
                self.held -= log.tensors[u as usize].bytes;
            } else if self.storage(u).place == Place::Gone {
                fresh.push(log.storage_of(u));
            }
        }
        for &u in &op.outputs {
            if !self.defined[u as usize] {
                self.defined[u as usize] = true;
                let s = &mut self.storages[log.storage_of(u) as usize];
                if s.place == Place::Gone {
                    s.place = Place::Device;
                }
            }
        }
        for &s in &fresh {
            self.pool.push(s);
        }
        fresh
    }
}
