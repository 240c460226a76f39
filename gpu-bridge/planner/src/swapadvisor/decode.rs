//! From an order and pools to a plan: one pass over the order with Belady's victims.
//!
//! A *bucket* is a gap in the order: bucket `k` lies before the operator at position `k`. A
//! victim leaves in the bucket after its last use, however much later its room is wanted; what
//! comes in its place may therefore come as early as that.
//!
//! The initial residents need no second pass: the step starts with as many persistent storages
//! as fit, soonest first use first, and one that is chosen as a victim before it has been used
//! is taken out of the initial set, as if it had never been there. At the end the residents are
//! made the initial ones again by explicit copies.

use std::collections::{BinaryHeap, VecDeque};

use tensortier_model::{Bytes, Machine, Nanos};

use super::layout::{Layout, NextUse};
use crate::{
    belady::{NEVER, pop_last},
    graph::{Graph, OpId, StorageId, StorageKind},
    hoist::{self, Arrival},
    plan::{Plan, Pools, Step},
};

/// How many times its own length a copy in may start before its latest safe time.
const LEAD: u32 = 8;

/// No tier.
pub(super) const NOWHERE: u8 = u8::MAX;
/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Infeasible {
    /// What the operator needs, and what cannot leave, does not fit.
    #[error("operator {0} and what cannot leave the device need more memory than there is")]
    Op(OpId),
    /// The tiers are full.
    #[error("no tier has room for what has to leave the device before operator {0}")]
    Tiers(OpId),
    /// No division into classes leaves each operator the slots it needs.
    #[error("no pools of fixed-size slots fit: they need {need} bytes of {capacity}")]
    Pools {
        /// Bytes of the smallest pools.
        need: Bytes,
        /// Bytes there are.
        capacity: Bytes,
    },
    /// The order is not one of the graph's.
    #[error("the order does not run each operator once, after its predecessors")]
    Order,
}

/// State of one storage during the pass.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) resident: bool,
    /// The device has contents that no host copy has.
    pub(super) dirty: bool,
    /// Has been used in this step.
    pub(super) used: bool,
    /// Where its host copy is or its room is kept.
    pub(super) tier: u8,
    /// Bucket after its last use, 0 before the first.
    pub(super) bucket: u32,
    /// Position of its next use.
    pub(super) next: u32,
}

/// A pool while decoding: slots of a class, or all bytes.
#[derive(Default)]
struct Class {
    /// Slots: the buckets since which each free one is free. Empty in byte mode.
    free: VecDeque<u32>,
    /// Byte mode: bytes free now.
    bytes: Bytes,
    /// Candidates by next use; entries that no longer hold are skipped.
    victims: BinaryHeap<(u32, u32)>,
    /// Candidates too small to be worth a copy while there are others.
    small: BinaryHeap<(u32, u32)>,
}

/// Decodes orders and pools of one graph on one machine; keeps its buffers between calls.
pub struct Decoder<'a> {
    graph: &'a Graph,
    pub(super) machine: &'a Machine,
    pub(super) layout: Layout,
    uses: NextUse,
    pub(super) slots: Vec<Slot>,
    classes: Vec<Class>,
    initial: Vec<bool>,
    pub(super) moves: Vec<(u32, Step)>,
    arrivals: Vec<Arrival>,
    pub(super) home: Vec<(StorageId, usize)>,
    pub(super) tier_left: Vec<Bytes>,
    /// Persistent storages by first use.
    by_first_use: Vec<StorageId>,
    /// Change of the resident bytes at each position, with what leaves gone after its last use.
    occupied: Vec<i64>,
    /// Time at which each position starts if nothing stalls.
    pub(super) clock: Vec<Nanos>,
    /// Below this a copy is mostly latency.
    small: Bytes,
    last_arrival: u32,
}

impl<'a> Decoder<'a> {
    /// A decoder for `graph` on `machine`.
    pub fn new(graph: &'a Graph, machine: &'a Machine) -> Self {
        Self {
            graph,
            machine,
            layout: Layout::new(graph),
            uses: NextUse::default(),
            slots: Vec::new(),
            classes: Vec::new(),
            initial: Vec::new(),
            moves: Vec::new(),
            arrivals: Vec::new(),
            home: Vec::new(),
            tier_left: Vec::new(),
            by_first_use: Vec::new(),
            occupied: Vec::new(),
            clock: Vec::new(),
            small: (machine.link.latency_ns as f64 * machine.link.h2d / 1e9) as Bytes,
            last_arrival: 0,
        }
    }

    /// The plan for `order` with `pools`, or with all memory as one pool of bytes.
    ///
    /// # Errors
    /// [`Infeasible`] names the operator at which memory or the tiers run out.
    pub fn decode(&mut self, order: &[OpId], pools: Option<&Pools>) -> Result<Plan, Infeasible> {
        if order.len() != self.graph.ops.len() {
            return Err(Infeasible::Order);
        }
        self.uses.compute(&self.layout, order);
        self.begin(order, pools);
        for (at, &op) in order.iter().enumerate() {
            self.operator(at as u32, op, pools)?;
        }
        self.end(order, pools)?;
        Ok(self.assemble(order, pools))
    }

    fn begin(&mut self, order: &[OpId], pools: Option<&Pools>) {
        let slot = Slot { resident: false, dirty: true, used: false, tier: NOWHERE, bucket: 0, next: NEVER };
        self.slots.clear();
        self.slots.resize(self.layout.bytes.len(), slot);
        self.initial.clear();
        self.initial.resize(self.layout.bytes.len(), false);
        self.moves.clear();
        self.arrivals.clear();
        self.home.clear();
        self.last_arrival = 0;
        self.tier_left.clear();
        self.tier_left.extend(self.machine.tiers.iter().map(|tier| tier.capacity));
        self.classes.iter_mut().for_each(|class| {
            class.free.clear();
            class.victims.clear();
            class.small.clear();
        });
        self.classes.resize_with(pools.map_or(1, |pools| pools.sizes.len()), Class::default);
        match pools {
            Some(pools) => {
                for (class, &count) in self.classes.iter_mut().zip(&pools.counts) {
                    class.free.extend(std::iter::repeat_n(0, count as usize));
                }
            }
            None => self.classes[0].bytes = self.machine.hbm,
        }
        self.occupied.clear();
        self.occupied.resize(order.len() + 2, 0);
        self.clock.clear();
        let mut now = 0;
        for &op in order {
            self.clock.push(now);
            now += self.layout.times[op];
        }
        self.clock.push(now);
        let kinds = &self.layout.kinds;
        self.by_first_use.clear();
        self.by_first_use.extend((0..kinds.len()).filter(|&s| kinds[s].is_persistent()));
        let first = &self.uses.first;
        self.by_first_use.sort_by_key(|&s| first[s]);
        for i in 0..self.by_first_use.len() {
            let s = self.by_first_use[i];
            self.slots[s].dirty = false;
            let class = class_of(pools, s);
            if self.take_free(class, s, pools.is_some()).is_some() {
                self.initial[s] = true;
                self.occupy(0, s);
                self.slots[s].resident = true;
                self.slots[s].next = self.uses.first[s];
                // The step before may have changed it since it was last copied.
                self.slots[s].dirty = self.layout.changes[s];
                self.candidate(class, s);
            }
        }
    }

    fn operator(&mut self, at: u32, op: OpId, pools: Option<&Pools>) -> Result<(), Infeasible> {
        let touches = self.layout.of(op);
        for k in touches.clone() {
            let touch = self.layout.touches[k];
            let s = touch.storage as usize;
            if self.slots[s].resident {
                continue;
            }
            let class = class_of(pools, s);
            let bucket = match self.take_free(class, s, pools.is_some()) {
                Some(bucket) => bucket,
                None => self.make_room(at, op, class, s, pools)?,
            };
            if touch.reads {
                self.arrive(at, op, s, bucket, pools)?;
            }
            self.occupy(at, s);
            let slot = &mut self.slots[s];
            slot.resident = true;
            // Not a candidate while the operator runs.
            slot.next = at;
        }
        for k in touches {
            let touch = self.layout.touches[k];
            let s = touch.storage as usize;
            let class = class_of(pools, s);
            let next = self.uses.next[k];
            let slot = &mut self.slots[s];
            slot.used = true;
            slot.dirty |= touch.writes;
            slot.bucket = at + 1;
            slot.next = next;
            if next == NEVER && self.layout.kinds[s] == StorageKind::Temporary {
                slot.resident = false;
                self.moves.push((at + 1, Step::Drop(s)));
                self.give_back(class, s, at + 1, pools.is_some());
            } else {
                self.candidate(class, s);
            }
        }
        Ok(())
    }

    /// The step ends with the residents it began with.
    fn end(&mut self, order: &[OpId], pools: Option<&Pools>) -> Result<(), Infeasible> {
        let length = order.len() as u32;
        let last = order[order.len() - 1];
        for s in 0..self.slots.len() {
            if self.slots[s].resident && !self.initial[s] {
                let result = self.layout.kinds[s] == StorageKind::Output;
                // A result has been used by whoever runs the step; anything else leaves as a victim.
                let bucket = if result { length } else { self.slots[s].bucket };
                if !result {
                    self.leave(last, s, bucket)?;
                } else {
                    self.moves.push((bucket, Step::Drop(s)));
                }
                self.slots[s].resident = false;
                self.give_back(class_of(pools, s), s, bucket, pools.is_some());
            }
        }
        for i in 0..self.by_first_use.len() {
            let s = self.by_first_use[i];
            let missing = !self.slots[s].resident;
            if missing && self.initial[s] {
                let class = class_of(pools, s);
                let bucket = self.take_free(class, s, pools.is_some()).ok_or(Infeasible::Op(last))?;
                self.occupy(length, s);
                self.arrive(length, last, s, bucket, pools)?;
            } else if missing && self.slots[s].tier == NOWHERE {
                // Never used: it stays where it was, on the host.
                self.settle(last, s)?;
            }
        }
        Ok(())
    }

    fn assemble(&mut self, order: &[OpId], pools: Option<&Pools>) -> Plan {
        let mut plan = Plan::new("swapadvisor", self.graph);
        plan.pools = pools.cloned();
        plan.initial = (0..self.initial.len()).filter(|&s| self.initial[s]).collect();
        plan.home = std::mem::take(&mut self.home);
        if pools.is_none() {
            let (clock, hbm) = (&self.clock, self.machine.hbm);
            hoist::place(&self.layout.bytes, clock, hbm, LEAD, &mut self.occupied, &mut self.arrivals);
            self.moves.extend(self.arrivals.iter().map(|a| (a.bucket, Step::CopyIn(a.storage))));
        }
        // Stable: within a bucket what leaves was decided before what comes, or comes last anyway.
        self.moves.sort_by_key(|&(bucket, _)| bucket);
        plan.steps.reserve_exact(order.len() + self.moves.len());
        let mut moves = self.moves.iter().peekable();
        for (at, &op) in order.iter().enumerate() {
            while let Some(&(_, step)) = moves.next_if(|&&(bucket, _)| bucket as usize <= at) {
                plan.steps.push(step);
            }
            plan.steps.push(Step::Run(op));
        }
        plan.steps.extend(moves.map(|&(_, step)| step));
        plan
    }

    /// Room from what is free: the bucket since which it is, or none.
    fn take_free(&mut self, class: usize, s: StorageId, slots: bool) -> Option<u32> {
        let class = &mut self.classes[class];
        if slots {
            return class.free.pop_front();
        }
        class.bytes = class.bytes.checked_sub(self.layout.bytes[s])?;
        Some(0)
    }

    fn occupy(&mut self, at: u32, s: StorageId) {
        self.occupied[at as usize] += self.layout.bytes[s] as i64;
    }

    fn give_back(&mut self, class: usize, s: StorageId, bucket: u32, slots: bool) {
        self.occupied[bucket as usize] -= self.layout.bytes[s] as i64;
        let class = &mut self.classes[class];
        if slots { class.free.push_back(bucket) } else { class.bytes += self.layout.bytes[s] }
    }

    fn candidate(&mut self, class: usize, s: StorageId) {
        let entry = (self.slots[s].next, s as u32);
        let class = &mut self.classes[class];
        if self.layout.bytes[s] < self.small { class.small.push(entry) } else { class.victims.push(entry) }
    }

    /// Evicts until `s` has room, and takes it.
    fn make_room(
        &mut self,
        at: u32,
        op: OpId,
        class: usize,
        s: StorageId,
        pools: Option<&Pools>,
    ) -> Result<u32, Infeasible> {
        let mut stuck = Vec::new();
        let room = loop {
            let Some(victim) = self.pop_victim(class, at) else {
                break Err(if stuck.is_empty() { Infeasible::Op(op) } else { Infeasible::Tiers(op) });
            };
            let slot = self.slots[victim];
            if !slot.used && self.initial[victim] {
                self.initial[victim] = false;
                self.slots[victim].dirty = false;
            } else if self.leave(op, victim, slot.bucket).is_err() {
                stuck.push(victim);
                continue;
            }
            self.slots[victim].resident = false;
            self.give_back(class, victim, slot.bucket, pools.is_some());
            if let Some(bucket) = self.take_free(class, s, pools.is_some()) {
                break Ok(bucket);
            }
        };
        for victim in stuck {
            self.candidate(class, victim);
        }
        room
    }

    /// The candidate used again last; none once only the running operator's storages are left.
    fn pop_victim(&mut self, class: usize, at: u32) -> Option<StorageId> {
        let class = &mut self.classes[class];
        let slots = &self.slots;
        let next = |s: StorageId| slots[s].resident.then_some(slots[s].next);
        [&mut class.victims, &mut class.small].into_iter().find_map(|heap| pop_last(heap, at, next))
    }

    /// A copy in for the operator at position `at`; `bucket` is where its slot is free.
    fn arrive(
        &mut self,
        at: u32,
        op: OpId,
        s: StorageId,
        bucket: u32,
        pools: Option<&Pools>,
    ) -> Result<(), Infeasible> {
        if self.layout.kinds[s].is_persistent() {
            self.settle(op, s)?;
        }
        let left = self.slots[s].bucket;
        if pools.is_some() {
            // First needed, first served: the stream is a queue.
            self.last_arrival = self.last_arrival.max(bucket).max(left);
            self.moves.push((self.last_arrival, Step::CopyIn(s)));
        } else {
            let tier = usize::from(self.slots[s].tier);
            let took = self.machine.h2d(self.layout.bytes[s], tier);
            let deadline = match at as usize {
                n if n + 1 < self.clock.len() => self.clock[n],
                n => self.clock[n] + self.clock[self.uses.first[s] as usize],
            };
            self.arrivals.push(Arrival { storage: s, need: at, earliest: left, bucket: at, took, deadline });
        }
        Ok(())
    }
}

fn class_of(pools: Option<&Pools>, s: StorageId) -> usize {
    pools.map_or(0, |pools| pools.class_of[s].into())
}
