//! The graph as flat arrays, and a given order's next uses: what decoding reads in its inner loop.

use tensortier_model::{Bytes, Nanos};

use crate::{
    belady::NEVER,
    graph::{Graph, OpId, StorageKind, Touch},
};

/// Touches of all operators, one after the other.
pub(super) struct Layout {
    /// Operator `o` touches `touches[starts[o]..starts[o + 1]]`.
    pub(super) starts: Vec<u32>,
    pub(super) touches: Vec<Touch>,
    pub(super) bytes: Vec<Bytes>,
    pub(super) kinds: Vec<StorageKind>,
    pub(super) times: Vec<Nanos>,
    /// Whether an operator writes the storage.
    pub(super) changes: Vec<bool>,
}

impl Layout {
    pub(super) fn new(graph: &Graph) -> Self {
        let flat = &graph.flat;
        let mut changes = vec![false; graph.storages.len()];
        flat.touches.iter().filter(|touch| touch.writes).for_each(|touch| changes[touch.storage as usize] = true);
        Self {
            starts: flat.starts.clone(),
            touches: flat.touches.clone(),
            bytes: graph.storages.iter().map(|s| s.bytes).collect(),
            kinds: graph.storages.iter().map(|s| s.kind).collect(),
            times: flat.times.clone(),
            changes,
        }
    }

    pub(super) fn of(&self, op: OpId) -> std::ops::Range<usize> {
        self.starts[op] as usize..self.starts[op + 1] as usize
    }
}

/// When each touch's storage is used again, for one order.
#[derive(Default)]
pub(super) struct NextUse {
    /// Parallel to [`Layout::touches`]: position of the next touch in the order; for persistent
    /// storages past the end it is the first touch of the next step; [`NEVER`] if there is none.
    pub(super) next: Vec<u32>,
    /// For each storage its first position, or [`NEVER`].
    pub(super) first: Vec<u32>,
}

impl NextUse {
    pub(super) fn compute(&mut self, layout: &Layout, order: &[OpId]) {
        self.next.clear();
        self.next.resize(layout.touches.len(), NEVER);
        self.first.clear();
        self.first.resize(layout.bytes.len(), NEVER);
        for (at, &op) in order.iter().enumerate().rev() {
            for k in layout.of(op) {
                let s = layout.touches[k].storage as usize;
                self.next[k] = self.first[s];
                self.first[s] = at as u32;
            }
        }
        let length = order.len() as u32;
        for (next, touch) in self.next.iter_mut().zip(&layout.touches) {
            let s = touch.storage as usize;
            if *next == NEVER && layout.kinds[s].is_persistent() {
                *next = length + self.first[s];
            }
        }
    }
}
