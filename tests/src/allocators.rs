//! Allocators that the pool is compared with, and the requests of training steps that all of them get.
//!
//! * *Power of two*: a block of the next power of two for each request, kept by size for ever. That is what PyTorch's
//!   pinned host allocator does (pytorch issue 95823).
//! * *BFC-style*: one arena, best fit with coalescing, grown by doubling. The rules here are ours, after the name: sizes
//!   in steps of 256 bytes; a block is split where the rest holds another request of that size or 128 MiB.
//!
//! Both only do sums over addresses: they map nothing, so their times are not compared with the pool's.

use std::collections::{BTreeMap, BTreeSet};

use tensortier_bridge::pool::{Class, Lifetime};
use tensortier_planner::graph::{Graph, Liveness, StorageKind};

/// One request of a trace.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// Object `.0` of so many bytes comes to be.
    Allocate(usize, u64, Class, Lifetime),
    /// Object `.0` ends.
    Free(usize),
    /// So many nanoseconds of the job's time pass.
    Compute(u64),
}

/// Which tensors of a step are in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// What an offloading job sends there: weights, optimizer state, gradients, and what is kept for the backward pass.
    Offloaded,
    /// Every tensor, with those that no job would send: the hardest case.
    All,
}

/// The requests of `steps` training steps of `graph`: weights, with three words of fp32 optimizer state for each, stay
/// for the job; what a step makes comes with its first use and goes after its last. What lives for more than a
/// sixteenth of the step's operators counts as kept for the backward pass.
pub fn requests(graph: &Graph, steps: usize, kept: Kept) -> Vec<Request> {
    let order = graph.traced_order();
    let live = Liveness::new(graph, &order);
    let mut trace = Vec::new();
    let mut objects = 0..;
    let mut allocate = |bytes: u64, class, lifetime| {
        let id = objects.next().unwrap_or(usize::MAX);
        (id, Request::Allocate(id, bytes, class, lifetime))
    };
    for storage in graph.storages.iter().filter(|s| s.bytes > 0 && s.kind.is_persistent()) {
        trace.push(allocate(storage.bytes, Class::Parameters, Lifetime::Job).1);
        for _ in 0..if storage.kind == StorageKind::Param { 3 } else { 0 } {
            trace.push(allocate(storage.bytes, Class::Optimizer, Lifetime::Job).1);
        }
    }
    let (mut begins, mut ends) = (vec![Vec::new(); order.len()], vec![Vec::new(); order.len()]);
    for (s, storage) in graph.storages.iter().enumerate().filter(|(_, s)| s.bytes > 0 && !s.kind.is_persistent()) {
        if let Some((first, last)) = live.span(graph, s) {
            let class = if storage.kind == StorageKind::Output { Class::Gradients } else { Class::Activations };
            let lifetime = if last - first > order.len() / 16 { Lifetime::Step } else { Lifetime::Window };
            if kept == Kept::Offloaded && class == Class::Activations && lifetime == Lifetime::Window {
                continue;
            }
            begins[first].push((s, storage.bytes, class, lifetime));
            ends[last].push(s);
        }
    }
    for _ in 0..steps {
        let mut now = BTreeMap::new();
        for (at, &op) in order.iter().enumerate() {
            for &(s, bytes, class, lifetime) in &begins[at] {
                let (id, request) = allocate(bytes, class, lifetime);
                now.insert(s, id);
                trace.push(request);
            }
            trace.push(Request::Compute(graph.ops[op].time));
            trace.extend(ends[at].iter().filter_map(|s| now.remove(s)).map(Request::Free));
        }
    }
    trace
}

/// What an allocator holds while a trace runs over it.
pub trait Reserve {
    /// Object `id` of `bytes`.
    fn allocate(&mut self, id: usize, bytes: u64);
    /// Ends object `id`.
    fn free(&mut self, id: usize);
    /// Bytes held from the system.
    fn reserved(&self) -> u64;
}

/// The power-of-two allocator.
#[derive(Debug, Default)]
pub struct PowerOfTwo {
    live: BTreeMap<usize, u64>,
    cached: BTreeMap<u64, usize>,
    reserved: u64,
}

impl Reserve for PowerOfTwo {
    fn allocate(&mut self, id: usize, bytes: u64) {
        let size = bytes.next_power_of_two();
        match self.cached.get_mut(&size).filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => self.reserved += size,
        }
        self.live.insert(id, size);
    }

    fn free(&mut self, id: usize) {
        if let Some(size) = self.live.remove(&id) {
            *self.cached.entry(size).or_default() += 1;
        }
    }

    fn reserved(&self) -> u64 {
        self.reserved
    }
}

/// Bytes that a block may be larger than its request.
const BFC_MOST_WASTE: u64 = 128 << 20;

/// The best-fit-with-coalescing allocator.
#[derive(Debug)]
pub struct Bfc {
    /// Free blocks by (size, region, offset), and by place.
    by_size: BTreeSet<(u64, u32, u64)>,
    by_place: BTreeMap<(u32, u64), u64>,
    live: BTreeMap<usize, (u32, u64, u64)>,
    regions: u32,
    next: u64,
    reserved: u64,
}

impl Default for Bfc {
    fn default() -> Self {
        let (by_size, by_place, live) = Default::default();
        Self { by_size, by_place, live, regions: 0, next: 1 << 20, reserved: 0 }
    }
}

impl Bfc {
    fn put(&mut self, region: u32, offset: u64, bytes: u64) {
        self.by_size.insert((bytes, region, offset));
        self.by_place.insert((region, offset), bytes);
    }

    fn cut(&mut self, region: u32, offset: u64, bytes: u64) {
        self.by_size.remove(&(bytes, region, offset));
        self.by_place.remove(&(region, offset));
    }
}

impl Reserve for Bfc {
    fn allocate(&mut self, id: usize, bytes: u64) {
        let size = bytes.next_multiple_of(256);
        if self.by_size.range((size, 0, 0)..).next().is_none() {
            while self.next < size {
                self.next *= 2;
            }
            self.put(self.regions, 0, self.next);
            self.reserved += self.next;
            self.regions += 1;
            self.next *= 2;
        }
        let Some(&(length, region, offset)) = self.by_size.range((size, 0, 0)..).next() else { return };
        self.cut(region, offset, length);
        let rest = length - size;
        let taken = if rest >= size || rest >= BFC_MOST_WASTE { size } else { length };
        if taken < length {
            self.put(region, offset + taken, length - taken);
        }
        self.live.insert(id, (region, offset, taken));
    }

    fn free(&mut self, id: usize) {
        let Some((region, mut offset, mut bytes)) = self.live.remove(&id) else { return };
        if let Some((&(r, before), &length)) = self.by_place.range(..(region, offset)).next_back()
            && r == region
            && before + length == offset
        {
            self.cut(region, before, length);
            (offset, bytes) = (before, bytes + length);
        }
        if let Some(&length) = self.by_place.get(&(region, offset + bytes)) {
            self.cut(region, offset + bytes, length);
            bytes += length;
        }
        self.put(region, offset, bytes);
    }

    fn reserved(&self) -> u64 {
        self.reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_of_two_block_is_used_again_by_its_size_only() {
        let mut pow2 = PowerOfTwo::default();
        pow2.allocate(0, 33);
        pow2.free(0);
        pow2.allocate(1, 64);
        assert_eq!(pow2.reserved(), 64);
        pow2.free(1);
        pow2.allocate(2, 10);
        assert_eq!(pow2.reserved(), 64 + 16);
    }

    #[test]
    fn bfc_coalesces_and_grows_by_doubling() {
        let mut bfc = Bfc::default();
        for id in 0..4 {
            bfc.allocate(id, 256 << 10);
        }
        assert_eq!(bfc.reserved(), 1 << 20);
        [1, 3, 0, 2].into_iter().for_each(|id| bfc.free(id));
        bfc.allocate(9, 1 << 20);
        assert_eq!(bfc.reserved(), 1 << 20, "the four blocks are one again");
        bfc.allocate(10, 1);
        assert_eq!(bfc.reserved(), 3 << 20, "the second region is twice the first");
    }

    #[test]
    fn bfc_keeps_a_rest_that_is_too_small_with_the_block() {
        let mut bfc = Bfc::default();
        bfc.allocate(0, 600 << 10);
        bfc.allocate(1, 300 << 10);
        assert_eq!(bfc.reserved(), 3 << 20, "424 KiB of the first MiB went to the first request");
    }
}
