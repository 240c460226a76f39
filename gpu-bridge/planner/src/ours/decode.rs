//! From a sequence of runs to a plan: what leaves, where to, and when it is back.
//!
//! A *bucket* is a gap in the sequence: bucket `k` lies before run `k`. Where a run has no room,
//! storages leave by rank, those used again last first (Belady), and each in the bucket after its
//! last use: the out stream begins as early as the data is there. What must come back is placed
//! by [`crate::hoist`]. The step begins with as many persistent storages as fit, soonest used
//! first; one that has to leave before it was used has never been there.

use std::collections::BinaryHeap;

use tensortier_model::{Bytes, Nanos};

use super::{
    genes::{Facts, Genes},
    sequence::Sequence,
};
use crate::{
    belady::{NEVER, idle, pop_last},
    graph::{OpId, StorageId, StorageKind},
    hoist::{self, Arrival},
    plan::{Plan, Step},
    swapadvisor::Infeasible,
};

/// No tier.
const NOWHERE: u8 = u8::MAX;
/// Margin on the idle time that a slow tier needs; G10's default.
const MARGIN: f64 = 0.5;
/// Ranks, and one for what is too small to be worth a copy while there is anything else.
const HEAPS: usize = 4;

#[derive(Clone, Copy)]
struct Slot {
    resident: bool,
    /// The device has contents that no host copy has.
    dirty: bool,
    /// Has been used in this step.
    used: bool,
    /// Where its host copy is or its room is kept.
    tier: u8,
    /// Bucket after its last use, 0 before the first.
    bucket: u32,
    /// Run of its next use.
    next: u32,
}

const ABSENT: Slot = Slot { resident: false, dirty: true, used: false, tier: NOWHERE, bucket: 0, next: NEVER };

/// Decodes genes; keeps its buffers between calls.
pub(super) struct Decoder<'a> {
    facts: &'a Facts<'a>,
    pub(super) sequence: Sequence,
    slots: Vec<Slot>,
    free: Bytes,
    heaps: [BinaryHeap<(u32, u32)>; HEAPS],
    initial: Vec<bool>,
    moves: Vec<(u32, Step)>,
    arrivals: Vec<Arrival>,
    home: Vec<(StorageId, usize)>,
    tier_left: Vec<Bytes>,
    /// Persistent storages by first use.
    by_first_use: Vec<StorageId>,
    /// Change of the resident bytes at each run.
    occupied: Vec<i64>,
    /// When each run starts if nothing stalls.
    clock: Vec<Nanos>,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(facts: &'a Facts<'a>) -> Self {
        Self {
            facts,
            sequence: Sequence::default(),
            slots: Vec::new(),
            free: 0,
            heaps: Default::default(),
            initial: Vec::new(),
            moves: Vec::new(),
            arrivals: Vec::new(),
            home: Vec::new(),
            tier_left: Vec::new(),
            by_first_use: (0..facts.bytes.len()).filter(|&s| facts.persistent[s]).collect(),
            occupied: Vec::new(),
            clock: Vec::new(),
        }
    }

    /// The plan that follows from `genes`.
    ///
    /// # Errors
    /// [`Infeasible`] names the operator at which memory or the tiers run out.
    pub(super) fn decode(&mut self, genes: &Genes) -> Result<Plan, Infeasible> {
        if !self.sequence.build(self.facts, genes) {
            return Err(Infeasible::Order);
        }
        self.begin();
        for at in 0..self.sequence.ops.len() {
            self.run(at, genes)?;
        }
        self.end(genes)?;
        Ok(self.assemble(genes))
    }

    fn begin(&mut self) {
        let count = self.facts.bytes.len();
        self.slots.clear();
        self.slots.resize(count, ABSENT);
        self.initial.clear();
        self.initial.resize(count, false);
        self.moves.clear();
        self.arrivals.clear();
        self.home.clear();
        self.tier_left.clear();
        self.tier_left.extend(self.facts.machine.tiers.iter().map(|tier| tier.capacity));
        self.heaps.iter_mut().for_each(BinaryHeap::clear);
        self.free = self.facts.machine.hbm;
        self.occupied.clear();
        self.occupied.resize(self.sequence.ops.len() + 2, 0);
        self.clock.clear();
        let mut now = 0;
        for &op in &self.sequence.ops {
            self.clock.push(now);
            now += self.facts.graph.flat.times[op];
        }
        self.clock.push(now);
        let first = &self.sequence.first;
        self.by_first_use.sort_by_key(|&s| first[s]);
        for i in 0..self.by_first_use.len() {
            let s = self.by_first_use[i];
            self.slots[s].dirty = false;
            if self.take(s) {
                self.initial[s] = true;
                self.occupied[0] += self.facts.bytes[s] as i64;
                self.slots[s].resident = true;
                self.slots[s].next = self.sequence.first[s];
                // The step before may have changed it since it was last copied.
                self.slots[s].dirty = self.facts.changes[s];
                self.candidate(s, super::genes::NORMAL);
            }
        }
    }

    fn run(&mut self, at: usize, genes: &Genes) -> Result<(), Infeasible> {
        let op = self.sequence.ops[at];
        let touches = self.facts.graph.flat.of(op);
        for touch in touches {
            let s = touch.storage as usize;
            if self.slots[s].resident {
                continue;
            }
            if !self.take(s) {
                self.make_room(at as u32, op, s, genes)?;
            }
            if touch.reads {
                self.arrive(at as u32, op, s, genes)?;
            }
            self.occupied[at] += self.facts.bytes[s] as i64;
            self.slots[s].resident = true;
            // Not a candidate while the operator runs.
            self.slots[s].next = at as u32;
        }
        let from = self.sequence.starts[at] as usize;
        for (k, touch) in (from..).zip(touches) {
            let s = touch.storage as usize;
            let next = self.sequence.next[k];
            let slot = &mut self.slots[s];
            slot.used = true;
            // A host copy of what is the same each time stays good.
            slot.dirty |= touch.writes && !self.facts.same[s];
            slot.bucket = at as u32 + 1;
            slot.next = next;
            if next == NEVER && self.facts.graph.storages[s].kind == StorageKind::Temporary {
                slot.resident = false;
                self.moves.push((at as u32 + 1, Step::Drop(s)));
                self.give_back(s, at as u32 + 1);
            } else {
                self.candidate(s, genes.rank[s]);
            }
        }
        Ok(())
    }

    /// The step ends with the residents it began with.
    fn end(&mut self, genes: &Genes) -> Result<(), Infeasible> {
        let length = self.sequence.ops.len() as u32;
        let Some(&last) = self.sequence.ops.last() else { return Ok(()) };
        for s in 0..self.slots.len() {
            if self.slots[s].resident && !self.initial[s] {
                // A result has been used by whoever runs the step; anything else leaves as a victim.
                let result = self.facts.graph.storages[s].kind == StorageKind::Output;
                let bucket = if result { length } else { self.slots[s].bucket };
                if result {
                    self.moves.push((bucket, Step::Drop(s)));
                } else {
                    self.leave(last, s, bucket, genes)?;
                }
                self.slots[s].resident = false;
                self.give_back(s, bucket);
            }
        }
        for i in 0..self.by_first_use.len() {
            let s = self.by_first_use[i];
            let missing = !self.slots[s].resident;
            if missing && self.initial[s] {
                if !self.take(s) {
                    return Err(Infeasible::Op(last));
                }
                self.occupied[length as usize] += self.facts.bytes[s] as i64;
                self.arrive(length, last, s, genes)?;
            } else if missing && self.slots[s].tier == NOWHERE {
                // Never used: it stays where it was, on the host.
                self.settle(last, s, genes)?;
            }
        }
        Ok(())
    }

    fn assemble(&mut self, genes: &Genes) -> Plan {
        let mut plan = Plan::new("ours", self.facts.graph);
        plan.initial = (0..self.initial.len()).filter(|&s| self.initial[s]).collect();
        plan.home = std::mem::take(&mut self.home);
        let hbm = self.facts.machine.hbm;
        hoist::place(&self.facts.bytes, &self.clock, hbm, genes.lead, &mut self.occupied, &mut self.arrivals);
        self.moves.extend(self.arrivals.iter().map(|a| (a.bucket, Step::CopyIn(a.storage))));
        // Stable: within a bucket what leaves was decided before what comes.
        self.moves.sort_by_key(|&(bucket, _)| bucket);
        plan.steps.reserve_exact(self.sequence.ops.len() + self.moves.len());
        let mut moves = self.moves.iter().peekable();
        for (at, &op) in self.sequence.ops.iter().enumerate() {
            while let Some(&(_, step)) = moves.next_if(|&&(bucket, _)| bucket as usize <= at) {
                plan.steps.push(step);
            }
            plan.steps.push(Step::Run(op));
        }
        plan.steps.extend(moves.map(|&(_, step)| step));
        plan
    }

    fn take(&mut self, s: StorageId) -> bool {
        let left = self.free.checked_sub(self.facts.bytes[s]);
        self.free = left.unwrap_or(self.free);
        left.is_some()
    }

    fn give_back(&mut self, s: StorageId, bucket: u32) {
        self.occupied[bucket as usize] -= self.facts.bytes[s] as i64;
        self.free += self.facts.bytes[s];
    }

    fn candidate(&mut self, s: StorageId, rank: u8) {
        let heap = if self.facts.bytes[s] < self.facts.small { HEAPS - 1 } else { rank.into() };
        self.heaps[heap].push((self.slots[s].next, s as u32));
    }

    /// Lets storages go until `s` has room, and takes it.
    fn make_room(&mut self, at: u32, op: OpId, s: StorageId, genes: &Genes) -> Result<(), Infeasible> {
        let mut stuck = Vec::new();
        let room = loop {
            let Some(victim) = self.pop_victim(at) else {
                break Err(if stuck.is_empty() { Infeasible::Op(op) } else { Infeasible::Tiers(op) });
            };
            let slot = self.slots[victim];
            if !slot.used && self.initial[victim] {
                self.initial[victim] = false;
                self.slots[victim].dirty = false;
            } else if self.leave(op, victim, slot.bucket, genes).is_err() {
                stuck.push(victim);
                continue;
            }
            self.slots[victim].resident = false;
            self.give_back(victim, slot.bucket);
            if self.take(s) {
                break Ok(());
            }
        };
        for victim in stuck {
            self.candidate(victim, genes.rank[victim]);
        }
        room
    }

    fn pop_victim(&mut self, at: u32) -> Option<StorageId> {
        let slots = &self.slots;
        let next = |s: StorageId| slots[s].resident.then_some(slots[s].next);
        self.heaps.iter_mut().find_map(|heap| pop_last(heap, at, next))
    }

    /// Copies out what has no host copy, and drops.
    fn leave(&mut self, op: OpId, s: StorageId, bucket: u32, genes: &Genes) -> Result<(), Infeasible> {
        if self.slots[s].dirty {
            let tier = self.tier_for(s, bucket, genes).ok_or(Infeasible::Tiers(op))?;
            self.slots[s].dirty = false;
            self.moves.push((bucket, Step::CopyOut { storage: s, tier }));
        } else {
            self.settle(op, s, genes)?;
        }
        self.moves.push((bucket, Step::Drop(s)));
        Ok(())
    }

    /// Gives a clean storage its home on the host if it has none yet.
    fn settle(&mut self, op: OpId, s: StorageId, genes: &Genes) -> Result<(), Infeasible> {
        if self.slots[s].tier == NOWHERE {
            let tier = self.tier_for(s, self.slots[s].bucket, genes).ok_or(Infeasible::Tiers(op))?;
            self.home.push((s, tier));
        }
        Ok(())
    }

    /// The tier for a host copy, whose room is kept to the end of the step: the one that the genes
    /// name, or the slowest that is fast enough for the time the storage is idle; failing that,
    /// the first with room.
    fn tier_for(&mut self, s: StorageId, bucket: u32, genes: &Genes) -> Option<usize> {
        if self.slots[s].tier != NOWHERE {
            return Some(self.slots[s].tier.into());
        }
        let machine = self.facts.machine;
        let bytes = self.facts.bytes[s];
        let count = self.tier_left.len();
        let room = |tier: &usize| self.tier_left[*tier] >= bytes;
        let idle = idle(&self.clock, self.slots[s].next, bucket);
        let fast_enough = |tier: &usize| {
            let both_ways = machine.d2h(bytes, *tier) + machine.h2d(bytes, *tier);
            *tier > 0 && idle as f64 > both_ways as f64 * (1.0 + MARGIN)
        };
        let named = usize::from(genes.tier[s]).checked_sub(1).filter(|tier| *tier < count);
        let tier = named
            .filter(room)
            .or_else(|| (0..count).rev().filter(fast_enough).find(room))
            .or_else(|| (0..count).find(room))?;
        self.tier_left[tier] -= bytes;
        self.slots[s].tier = tier as u8;
        Some(tier)
    }

    /// A copy in for run `at`.
    fn arrive(&mut self, at: u32, op: OpId, s: StorageId, genes: &Genes) -> Result<(), Infeasible> {
        if self.facts.persistent[s] {
            self.settle(op, s, genes)?;
        }
        let took = self.facts.machine.h2d(self.facts.bytes[s], self.slots[s].tier.into());
        let deadline = match at as usize {
            n if n + 1 < self.clock.len() => self.clock[n],
            n => self.clock[n] + self.clock[self.sequence.first[s] as usize],
        };
        let earliest = self.slots[s].bucket;
        self.arrivals.push(Arrival { storage: s, need: at, earliest, bucket: at, took, deadline });
        Ok(())
    }
}
