//! DELTA on a graph: the same choice for each tensor, made ahead of time, as a [`Plan`].
//!
//! The step is gone through in its traced order. Where memory is short, every storage that may leave is a candidate; it
//! leaves in the cheapest of its ways (forget it and run its operator again, or copy it to one of the tiers), and a
//! covering [`knapsack`] says which ones leave. Copies in are then issued earlier ([`Plan::advance`]); copies out need
//! no such pass, since the out stream takes them as soon as the data is there. The abstract names knapsack and
//! bidirectional prefetching; all of this is our reading of it.
//!
//! Weights take part: they leave without a copy where the host has one. A storage can be computed again if a single
//! operator writes it, and all that this operator reads is there in the same state or can be made again. As DTR and
//! DELTA do, this takes operators for functions of their inputs: random ones must replay their state.

mod price;
mod replay;

use tensortier_model::{Bytes, Machine, Nanos};

use super::Switches;
use crate::{
    graph::{Graph, Liveness, Makers, OpId, StorageId, StorageKind},
    knapsack,
    plan::{Plan, Step},
    sim,
    swapadvisor::Infeasible,
};

use price::{Action, Queue};

/// Size of the knapsack scheme's subsets.
const SUBSETS: usize = 1;
/// How many times its own length a return is taken to start before it is needed.
const LEAD: u64 = 8;

/// Prices of the link that are tried, in shares of a copy's time.
const TOLLS: [f64; 4] = [0.0, 0.25, 0.5, 1.0];

/// The plan for `graph` on `machine`. A copy also delays those behind it, by how much is not known beforehand; so the
/// link has a price (ours), and of the plans for a few prices the one with the shortest step is kept. Swapping alone is
/// among them, since recomputation may have no room for its intermediate results.
///
/// # Errors
/// [`Infeasible`] where an operator and what cannot leave exceed the machine, or the tiers are full.
pub fn plan(graph: &Graph, machine: &Machine, switches: Switches) -> Result<Plan, Infeasible> {
    let tolled = TOLLS.map(|toll| (switches, toll));
    let alone = (Switches { recompute: false, ..switches }, 0.0);
    let tries: Vec<_> = match (switches.recompute, switches.swap) {
        (true, true) => tolled.into_iter().chain([alone]).collect(),
        _ => vec![(switches, 0.0)],
    };
    let mut best: Result<(Nanos, Plan), Infeasible> = Err(Infeasible::Order);
    for (switches, toll) in tries {
        let planned = Planner::new(graph, machine, switches, toll).plan();
        let timed = planned.map(|plan| {
            let step = sim::simulate(graph, machine, &plan).map_or(Nanos::MAX, |report| report.step_ns);
            (step, plan)
        });
        match (&timed, &best) {
            (_, Err(_)) => best = timed,
            (Ok(new), Ok(old)) if new.0 < old.0 => best = timed,
            _ => {}
        }
    }
    best.map(|(_, plan)| plan)
}

#[derive(Clone, Copy, Default)]
struct Slot {
    resident: bool,
    /// The host has a copy of the present contents.
    saved: bool,
    tier: Option<usize>,
    /// Holders that need it where it is.
    locks: u32,
    /// Has been used in this step.
    used: bool,
    /// When its contents are complete, or when it has left.
    since: Nanos,
    /// Uses of the traced order that are past.
    past: usize,
}

struct Planner<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    switches: Switches,
    /// Price of the link, in shares of a copy's time.
    toll: f64,
    live: Liveness,
    /// Start of each operator when nothing stalls, and the end of the step.
    base: Vec<Nanos>,
    makers: Makers,
    slots: Vec<Slot>,
    initial: Vec<bool>,
    at: OpId,
    clock: Nanos,
    out_free: Nanos,
    in_free: Nanos,
    free: Bytes,
    tier_left: Vec<Bytes>,
    plan: Plan,
}

impl<'a> Planner<'a> {
    fn new(graph: &'a Graph, machine: &'a Machine, switches: Switches, toll: f64) -> Self {
        let base = graph.ops.iter().scan(0, |now, op| {
            let start = *now;
            *now += op.time;
            Some(start)
        });
        let live = Liveness::new(graph, &graph.traced_order());
        Self {
            graph,
            machine,
            switches,
            toll,
            makers: Makers::new(graph, &live),
            live,
            base: base.chain([graph.ideal_time()]).collect(),
            slots: vec![Slot::default(); graph.storages.len()],
            initial: vec![false; graph.storages.len()],
            at: 0,
            clock: 0,
            out_free: 0,
            in_free: 0,
            free: machine.hbm,
            tier_left: machine.tiers.iter().map(|tier| tier.capacity).collect(),
            plan: Plan::new("delta", graph),
        }
    }

    fn plan(mut self) -> Result<Plan, Infeasible> {
        self.begin();
        for op in 0..self.graph.ops.len() {
            self.at = op;
            self.operator(op)?;
        }
        self.end()?;
        self.plan.initial = (0..self.initial.len()).filter(|&s| self.initial[s]).collect();
        if self.switches.reload_ahead {
            self.plan.advance(self.graph, self.machine);
        }
        Ok(self.plan)
    }

    /// Persistent storages, soonest used first, as far as they fit; the others are at home.
    fn begin(&mut self) {
        let mut changes = vec![false; self.slots.len()];
        self.graph.ops.iter().flat_map(|op| &op.writes).for_each(|&s| changes[s] = true);
        let mut persistent: Vec<StorageId> =
            (0..self.slots.len()).filter(|&s| self.graph.storages[s].kind.is_persistent()).collect();
        persistent.sort_by_key(|&s| self.live.uses[s].first().copied().unwrap_or(usize::MAX));
        for s in persistent {
            let bytes = self.graph.storages[s].bytes;
            let fits = bytes <= self.free;
            if fits {
                self.free -= bytes;
            }
            self.initial[s] = fits;
            self.slots[s].resident = fits;
            // The step before may have changed it since it was last copied.
            self.slots[s].saved = !(fits && changes[s]);
        }
    }

    fn operator(&mut self, op: OpId) -> Result<(), Infeasible> {
        let of = &self.graph.ops[op];
        of.touches.iter().for_each(|&s| self.slots[s].locks += 1);
        for &s in &of.reads {
            self.restore(s)?;
        }
        for &s in &of.writes {
            self.allocate(s)?;
        }
        self.run(op);
        of.writes.iter().for_each(|&s| self.slots[s].saved = false);
        of.touches.iter().for_each(|&s| self.slots[s].locks -= 1);
        self.at = op + 1;
        self.bury(&of.touches);
        Ok(())
    }

    fn run(&mut self, op: OpId) {
        let of = &self.graph.ops[op];
        let ready = of.reads.iter().map(|&s| self.slots[s].since).max().unwrap_or(0);
        self.clock = self.clock.max(ready) + of.time;
        for &s in &of.touches {
            self.slots[s].used = true;
        }
        of.writes.iter().for_each(|&s| self.slots[s].since = self.clock);
        self.plan.steps.push(Step::Run(op));
    }

    /// Drops what nothing needs any more.
    fn bury(&mut self, storages: &[StorageId]) {
        for &s in storages {
            let over = self.graph.storages[s].kind == StorageKind::Temporary && self.next_use(s).is_none();
            if over && self.slots[s].resident && self.slots[s].locks == 0 {
                self.drop(s);
            }
        }
    }

    /// Position of the next use; of persistent storages past the end the first of the next step.
    fn next_use(&mut self, s: StorageId) -> Option<usize> {
        let (uses, past) = (&self.live.uses[s], &mut self.slots[s].past);
        while uses.get(*past).is_some_and(|&at| at < self.at) {
            *past += 1;
        }
        match uses.get(*past) {
            Some(&at) => Some(at),
            None if self.graph.storages[s].kind.is_persistent() => uses.first().map(|&at| at + self.graph.ops.len()),
            None => None,
        }
    }

    /// Compute time until a position, which may be one of the next step.
    fn until(&self, position: usize) -> Nanos {
        let length = self.graph.ops.len();
        let lap = if position >= length { self.base[length] } else { 0 };
        (lap + self.base[position % length]).saturating_sub(self.base[self.at.min(length)])
    }

    fn allocate(&mut self, s: StorageId) -> Result<(), Infeasible> {
        if !self.slots[s].resident {
            self.make_room(self.graph.storages[s].bytes)?;
            self.free -= self.graph.storages[s].bytes;
            self.slots[s].resident = true;
        }
        Ok(())
    }

    fn restore(&mut self, s: StorageId) -> Result<(), Infeasible> {
        match self.slots[s] {
            Slot { resident: true, .. } => Ok(()),
            Slot { saved: true, .. } => self.copy_in(s),
            _ => self.replay(s),
        }
    }

    fn copy_in(&mut self, s: StorageId) -> Result<(), Infeasible> {
        self.allocate(s)?;
        let tier = self.settle(s)?;
        let took = self.machine.h2d(self.graph.storages[s].bytes, tier);
        let ahead = if self.switches.reload_ahead { LEAD * took } else { 0 };
        let start = self.in_free.max(self.slots[s].since).max(self.clock.saturating_sub(ahead));
        self.in_free = start + took;
        self.slots[s].since = self.in_free;
        self.plan.steps.push(Step::CopyIn(s));
        Ok(())
    }

    fn drop(&mut self, s: StorageId) {
        self.plan.steps.push(Step::Drop(s));
        self.free += self.graph.storages[s].bytes;
        self.slots[s].resident = false;
        self.slots[s].since = self.clock;
    }

    /// The tier of a storage; one without gets a home there.
    fn settle(&mut self, s: StorageId) -> Result<usize, Infeasible> {
        if let Some(tier) = self.slots[s].tier {
            return Ok(tier);
        }
        let bytes = self.graph.storages[s].bytes;
        let room = (0..self.tier_left.len()).find(|&tier| self.tier_left[tier] >= bytes);
        let tier = room.ok_or(Infeasible::Tiers(self.at))?;
        self.keep(s, tier);
        self.plan.home.push((s, tier));
        Ok(tier)
    }

    fn keep(&mut self, s: StorageId, tier: usize) {
        self.tier_left[tier] -= self.graph.storages[s].bytes;
        self.slots[s].tier = Some(tier);
    }

    fn make_room(&mut self, bytes: Bytes) -> Result<(), Infeasible> {
        while self.free < bytes {
            let queue = Queue::new(self);
            let mut candidates = Vec::new();
            for s in 0..self.slots.len() {
                let slot = self.slots[s];
                if slot.resident && slot.locks == 0 && self.graph.storages[s].bytes > 0 {
                    candidates.extend(self.cheapest(s, &queue).map(|(action, cost)| (s, action, cost)));
                }
            }
            let item =
                |&(s, _, cost): &(StorageId, Action, f64)| knapsack::Item { bytes: self.graph.storages[s].bytes, cost };
            let items: Vec<_> = candidates.iter().map(item).collect();
            let cover = if self.switches.knapsack {
                knapsack::cover(&items, bytes - self.free, SUBSETS).map(|cover| cover.items)
            } else {
                (0..items.len()).min_by(|&a, &b| items[a].cost.total_cmp(&items[b].cost)).map(|best| vec![best])
            };
            let before = self.free;
            for i in cover.ok_or(Infeasible::Op(self.at.min(self.graph.ops.len() - 1)))? {
                let (s, action, _) = candidates[i];
                self.release(s, action);
            }
            if self.free == before {
                return Err(Infeasible::Tiers(self.at));
            }
        }
        Ok(())
    }

    /// Lets a storage go, unless its tier has filled up meanwhile.
    fn release(&mut self, s: StorageId, action: Action) {
        match action {
            Action::Forget => {}
            Action::Leave if self.initial[s] && !self.slots[s].used => {
                // As if it had never been there.
                self.initial[s] = false;
                self.slots[s].resident = false;
                self.slots[s].saved = true;
                self.free += self.graph.storages[s].bytes;
                return;
            }
            Action::Leave => {
                if self.settle(s).is_err() {
                    return;
                }
            }
            Action::Swap(tier) => {
                if self.slots[s].tier.is_none() {
                    if self.tier_left[tier] < self.graph.storages[s].bytes {
                        return;
                    }
                    self.keep(s, tier);
                }
                self.copy_out(s, tier);
                // It is gone because the room is wanted now.
                self.clock = self.clock.max(self.out_free);
            }
        }
        self.drop(s);
    }

    fn copy_out(&mut self, s: StorageId, tier: usize) {
        let took = self.machine.d2h(self.graph.storages[s].bytes, tier);
        self.out_free = self.out_free.max(self.slots[s].since) + took;
        self.slots[s].saved = true;
        self.plan.steps.push(Step::CopyOut { storage: s, tier });
    }

    /// Ends with the residents of the start.
    fn end(&mut self) -> Result<(), Infeasible> {
        let last = self.graph.ops.len() - 1;
        for s in 0..self.slots.len() {
            let persistent = self.graph.storages[s].kind.is_persistent();
            if self.slots[s].resident && !self.initial[s] {
                if persistent && !self.slots[s].saved {
                    let tier = self.settle(s)?;
                    self.copy_out(s, tier);
                }
                self.drop(s);
            } else if persistent && !self.initial[s] {
                self.settle(s)?;
            }
        }
        for s in 0..self.slots.len() {
            if self.initial[s] && !self.slots[s].resident {
                self.copy_in(s).map_err(|_| Infeasible::Op(last))?;
            }
        }
        Ok(())
    }
}
