//! When to start which copy, so that objects are on the GPU when the job comes to them. Ours.
//!
//! What will be used and when comes from [`Order`]; how long its copy takes, from its node: the agent's published speeds
//! first, measured ones later. Copies are laid out backwards from their uses, one after the other on each node and on
//! the link; the latest start that this leaves, less a guard, is when a copy begins. So one from a slow card begins
//! earlier, past faster ones that are needed before it. The guard follows what happens: it grows by each stall, and
//! shrinks while objects come early.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tensortier_link::placement::Extent;
use tensortier_model::{Bytes, Nanos};

use super::order::Order;

/// Uses that are looked at.
const AHEAD: usize = 64;
/// Weight of the newest copy in a node's rate.
const NEWEST: f64 = 0.2;
/// What remains of the guard when an object came in time.
const SHRINK: f64 = 0.98;
/// First guard: some launches.
const FIRST_GUARD: f64 = 50_000.0;

/// Which node each address is on, from a published placement. A clone shares it.
#[derive(Clone, Debug, Default)]
pub struct Places(Arc<[Extent]>);

impl Places {
    /// The extents of a snapshot, in any order.
    pub fn new(mut extents: Vec<Extent>) -> Self {
        extents.sort_unstable_by_key(|extent| extent.start);
        Self(extents.into())
    }

    /// The extent that holds most of a range; `None` where no extent meets it.
    pub fn find(&self, start: u64, bytes: Bytes) -> Option<&Extent> {
        let end = start.saturating_add(bytes);
        let first = self.0.partition_point(|extent| extent.end <= start);
        let meeting = self.0[first..].iter().take_while(|extent| extent.start < end);
        meeting.max_by_key(|extent| extent.end.min(end) - extent.start.max(start))
    }
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Nanoseconds for each byte, and for each copy.
    per_byte: f64,
    fixed: f64,
    /// Copies under way, and whether there was one at a time since it was idle.
    coming: u32,
    alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Away,
    /// Its copy has begun.
    Coming(Nanos),
    /// On the GPU.
    Here,
}

#[derive(Debug)]
struct Object {
    bytes: Bytes,
    node: u32,
    state: State,
}

/// Decides what to copy ahead.
#[derive(Debug)]
pub struct Prefetch {
    order: Order,
    objects: BTreeMap<u64, Object>,
    nodes: BTreeMap<u32, Node>,
    /// Nanoseconds for each byte on the link.
    link: f64,
    /// Bytes on the GPU that objects may take, and take.
    room: Bytes,
    held: Bytes,
    guard: f64,
}

impl Prefetch {
    /// For a link of `link` bytes per second and `room` bytes on the GPU.
    pub fn new(link: f64, room: Bytes) -> Self {
        let (order, objects, nodes) = Default::default();
        Self { order, objects, nodes, link: 1e9 / link, room, held: 0, guard: FIRST_GUARD }
    }

    /// An object in host memory, and the published extent that it lies in, if any is known.
    pub fn declare(&mut self, object: u64, bytes: Bytes, place: Option<&Extent>) {
        let node = place.map_or(0, |extent| extent.node);
        let link = self.link;
        self.nodes.entry(node).or_insert_with(|| {
            let rate = place.map_or(0.0, |extent| f64::from(extent.read_mib_per_sec) * 1_048_576.0 / 1e9);
            let per_byte = if rate > 0.0 { (1.0 / rate).max(link) } else { link };
            let fixed = place.map_or(0.0, |extent| extent.latency_ns.into());
            Node { per_byte, fixed, coming: 0, alone: true }
        });
        self.objects.insert(object, Object { bytes, node, state: State::Away });
    }

    /// The agent has published where an object lies now: it may have moved since. A copy under way is still counted where it
    /// began, and the object is taken to have moved at the next word.
    pub fn relocate(&mut self, object: u64, place: Option<&Extent>) {
        let Some(entry) = self.objects.get(&object) else { return };
        let (bytes, state, before) = (entry.bytes, entry.state, entry.node);
        if matches!(state, State::Coming(_)) || place.map_or(0, |extent| extent.node) == before {
            return;
        }
        self.declare(object, bytes, place);
        if let Some(entry) = self.objects.get_mut(&object) {
            entry.state = state;
        }
    }

    /// The node that an object is taken to be on.
    pub fn node(&self, object: u64) -> Option<u32> {
        self.objects.get(&object).map(|object| object.node)
    }

    /// Objects whose copies are to begin now, the most urgent first. They count as begun.
    pub fn due(&mut self, now: Nanos) -> Vec<u64> {
        let mut seen = BTreeSet::new();
        let uses: Vec<_> = self
            .order
            .ahead(AHEAD)
            .filter(|use_| self.objects.get(&use_.object).is_some_and(|o| o.state == State::Away))
            .filter(|use_| seen.insert(use_.object))
            .collect();
        // Backwards: each copy ends before its use, and before the next one on its node and on the link begins.
        let (mut free, mut link) = (BTreeMap::new(), f64::INFINITY);
        let mut starts = Vec::new();
        for use_ in uses.iter().rev() {
            let object = &self.objects[&use_.object];
            let Node { per_byte, fixed, .. } = self.nodes[&object.node];
            let node = free.entry(object.node).or_insert(f64::INFINITY);
            let bytes = object.bytes as f64;
            *node = node.min(use_.at as f64) - fixed - bytes * per_byte;
            link = link.min(use_.at as f64) - bytes * self.link;
            starts.push((node.min(link) - self.guard, use_.object));
        }
        starts.retain(|start| start.0 <= now as f64);
        starts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut due = Vec::new();
        for (_, object) in starts {
            if self.begin(object, now) {
                due.push(object);
            }
        }
        due
    }

    /// An object's copy begins, as far as there is room; false where there is none or it is not away.
    pub fn begin(&mut self, object: u64, now: Nanos) -> bool {
        let Some(entry) = self.objects.get_mut(&object).filter(|o| o.state == State::Away) else { return false };
        if self.held + entry.bytes > self.room {
            return false;
        }
        self.held += entry.bytes;
        entry.state = State::Coming(now);
        if let Some(node) = self.nodes.get_mut(&entry.node) {
            node.alone = node.coming == 0;
            node.coming += 1;
        }
        true
    }

    /// An object's copy has ended.
    pub fn arrived(&mut self, object: u64, now: Nanos) {
        let Some(entry) = self.objects.get_mut(&object) else { return };
        if let (State::Coming(begun), Some(node)) = (entry.state, self.nodes.get_mut(&entry.node)) {
            // One that shared the node tells nothing of its speed.
            if node.alone {
                let took = (now.saturating_sub(begun) as f64 - node.fixed).max(0.0) / entry.bytes.max(1) as f64;
                node.per_byte += NEWEST * (took.max(self.link) - node.per_byte);
            }
            node.coming -= 1;
            entry.state = State::Here;
        }
    }

    /// The job comes to an object; true where it is on the GPU.
    pub fn wanted(&mut self, object: u64, now: Nanos) -> bool {
        self.order.used(object, now);
        self.is_here(object)
    }

    /// Whether an object is on the GPU.
    pub fn is_here(&self, object: u64) -> bool {
        self.objects.get(&object).is_some_and(|o| o.state == State::Here)
    }

    /// The job has waited `stall` for an object; 0 where it was there.
    pub fn waited(&mut self, stall: Nanos) {
        if stall > 0 {
            self.guard += stall as f64 / 4.0;
        } else {
            self.guard = (self.guard * SHRINK).max(FIRST_GUARD);
        }
    }

    /// The job needs an object no longer: its room is free. One whose copy is under way stays until it is there.
    pub fn released(&mut self, object: u64) {
        if let Some(entry) = self.objects.get_mut(&object)
            && entry.state == State::Here
        {
            entry.state = State::Away;
            self.held -= entry.bytes;
        }
    }

    /// Time before the latest start at which copies begin.
    pub fn guard(&self) -> Nanos {
        self.guard as Nanos
    }
}

#[cfg(test)]
#[path = "prefetch_tests.rs"]
mod tests;
