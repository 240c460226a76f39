//! What a plan of ours is made of, and the facts about a graph that these decisions rest on.
//!
//! The *gap* of a storage is the longest stretch of compute time between two of its uses: as a
//! rule from the forward pass to the backward pass. Memory is short because of the gaps, so that
//! is where a storage is decided about.

use tensortier_model::{Bytes, Machine, Nanos};

use crate::graph::{Graph, Liveness, Makers, OpId, StorageId, StorageKind};

/// How soon a storage leaves when room is wanted; among equals the one that is used again last.
pub(super) const FIRST: u8 = 0;
/// As [`FIRST`], after those.
pub(super) const NORMAL: u8 = 1;
/// As [`FIRST`], once nothing else is left.
pub(super) const LAST: u8 = 2;

/// All decisions; the plan follows from them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Genes {
    pub(super) order: Order,
    /// Forgotten in its gap, and computed again when it is read.
    pub(super) forget: Vec<bool>,
    /// Not dropped after its last use as traced, but after the last one in the plan: what is
    /// computed again from it then need not compute it again too.
    pub(super) extend: Vec<bool>,
    /// [`FIRST`], [`NORMAL`] or [`LAST`].
    pub(super) rank: Vec<u8>,
    /// Tier for its host copy plus one; 0 leaves it to the rule of the decoder.
    pub(super) tier: Vec<u8>,
    /// How many times its own length a copy in is issued before its latest safe time.
    pub(super) lead: u32,
}

impl Genes {
    /// Nothing is forgotten, in the traced order: Belady's choice of what leaves.
    pub(super) fn new(graph: &Graph) -> Self {
        let count = graph.storages.len();
        Self {
            order: Order::new(graph, graph.traced_order()),
            forget: vec![false; count],
            extend: vec![false; count],
            rank: vec![NORMAL; count],
            tier: vec![0; count],
            lead: 8,
        }
    }
}

/// An order of the operators, and what follows from it for each storage.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Order {
    pub(super) ops: Vec<OpId>,
    /// Position of each operator.
    pub(super) position: Vec<u32>,
    /// Position of the use before the gap; `u32::MAX` where there is none.
    pub(super) gap: Vec<u32>,
    /// Position of the last use.
    pub(super) last: Vec<u32>,
    /// Length of the gap in compute time.
    pub(super) idle: Vec<Nanos>,
}

impl Order {
    pub(super) fn new(graph: &Graph, ops: Vec<OpId>) -> Self {
        let count = graph.storages.len();
        let mut order = Self {
            position: vec![0; ops.len()],
            gap: vec![u32::MAX; count],
            last: vec![u32::MAX; count],
            idle: vec![0; count],
            ops,
        };
        let mut left = vec![0; count];
        let mut now = 0;
        for (at, &op) in order.ops.iter().enumerate() {
            order.position[op] = at as u32;
            let end = now + graph.flat.times[op];
            for touch in graph.flat.of(op) {
                let s = touch.storage as usize;
                // The first of equals: the earlier it goes the more room there is.
                if order.last[s] != u32::MAX && now - left[s] > order.idle[s] {
                    (order.idle[s], order.gap[s]) = (now - left[s], order.last[s]);
                }
                (order.last[s], left[s]) = (at as u32, end);
            }
            now = end;
        }
        order
    }
}

/// Storages that one kind of operator makes in one size: layers repeat, and so do good decisions.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// In the order they are made.
    pub(super) storages: Vec<StorageId>,
    /// Time to compute them again, without what they are made of.
    pub(super) time: Nanos,
    pub(super) bytes: Bytes,
}

/// What does not change during a search.
pub(super) struct Facts<'a> {
    pub(super) graph: &'a Graph,
    pub(super) machine: &'a Machine,
    /// The operator that makes a storage again: its only writer, if what that reads never changes
    /// afterwards, in whatever order.
    pub(super) maker: Vec<Option<OpId>>,
    /// What one operator alone writes has the same contents each time.
    pub(super) same: Vec<bool>,
    /// Can be made again for as long as it is needed, in the traced order.
    lasting: Vec<bool>,
    /// An operator writes it.
    pub(super) changes: Vec<bool>,
    pub(super) persistent: Vec<bool>,
    pub(super) bytes: Vec<Bytes>,
    /// Below this a copy is mostly latency.
    pub(super) small: Bytes,
    /// What can be forgotten with some gain, cheapest for its size first.
    pub(super) groups: Vec<Group>,
    /// Storages that recomputation reads after their last use as traced.
    pub(super) sources: Vec<StorageId>,
    /// All that may leave and are large enough to matter.
    pub(super) movable: Vec<StorageId>,
    pub(super) successors: Vec<Vec<OpId>>,
}

impl<'a> Facts<'a> {
    pub(super) fn new(graph: &'a Graph, machine: &'a Machine) -> Self {
        let traced = graph.traced_order();
        let live = Liveness::new(graph, &traced);
        let makers = Makers::new(graph, &live);
        let order = Order::new(graph, traced);
        let mut last_write = vec![None; graph.storages.len()];
        for (id, op) in graph.ops.iter().enumerate() {
            op.writes.iter().for_each(|&s| last_write[s] = Some(id));
        }
        let stays = |s: StorageId, reader: OpId| match graph.storages[s].kind.is_persistent() {
            true => last_write[s].is_none(),
            false => last_write[s].is_some_and(|write| write < reader),
        };
        let unchanged = |&op: &OpId| graph.ops[op].reads.iter().all(|&s| stays(s, op));
        let small = (machine.link.latency_ns as f64 * machine.link.h2d / 1e9) as Bytes;
        let mut changes = vec![false; graph.storages.len()];
        graph.flat.touches.iter().filter(|t| t.writes).for_each(|t| changes[t.storage as usize] = true);
        let mut facts = Self {
            graph,
            machine,
            changes,
            persistent: graph.storages.iter().map(|s| s.kind.is_persistent()).collect(),
            bytes: graph.storages.iter().map(|s| s.bytes).collect(),
            small,
            groups: Vec::new(),
            sources: Vec::new(),
            movable: (0..graph.storages.len()).filter(|&s| graph.storages[s].bytes >= small.max(1)).collect(),
            successors: crate::swapadvisor::genes::successors(graph),
            maker: makers.of.iter().map(|maker| maker.filter(unchanged)).collect(),
            same: makers.of.iter().map(Option::is_some).collect(),
            lasting: makers.lasting,
        };
        facts.groups = facts.grouped(&order);
        facts.sources = facts.read_again();
        facts
    }

    /// Can be forgotten, and is idle for longer than it takes to make it.
    pub(super) fn can_forget(&self, order: &Order, s: StorageId) -> bool {
        let maker = self.maker[s].filter(|_| self.lasting[s]);
        let temporary = self.graph.storages[s].kind == StorageKind::Temporary;
        temporary && maker.is_some_and(|op| order.idle[s] > self.graph.flat.times[op])
    }

    fn grouped(&self, order: &Order) -> Vec<Group> {
        let mut groups = std::collections::BTreeMap::<(&str, Bytes), Group>::new();
        for s in self.movable.iter().copied().filter(|&s| self.can_forget(order, s)) {
            let Some(maker) = self.maker[s] else { continue };
            let key = (self.graph.ops[maker].kernel.as_str(), self.bytes[s]);
            let group = groups.entry(key).or_insert(Group { storages: Vec::new(), time: 0, bytes: 0 });
            group.storages.push(s);
            group.time += self.graph.flat.times[maker];
            group.bytes += self.bytes[s];
        }
        let mut groups: Vec<Group> = groups.into_values().collect();
        for group in &mut groups {
            group.storages.sort_by_key(|&s| self.maker[s]);
        }
        let cost = |group: &Group| group.time as f64 / group.bytes as f64;
        groups.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        groups
    }

    fn read_again(&self) -> Vec<StorageId> {
        let mut read = vec![false; self.bytes.len()];
        for &s in self.groups.iter().flat_map(|group| &group.storages) {
            let maker = self.maker[s].unwrap_or_default();
            self.graph.ops[maker].reads.iter().for_each(|&r| read[r] = true);
        }
        (0..read.len()).filter(|&s| read[s] && self.graph.storages[s].kind == StorageKind::Temporary).collect()
    }
}
