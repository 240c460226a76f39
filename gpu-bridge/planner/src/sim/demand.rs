//! The second mode: a run time that moves data when it is missed.
//!
//! [`realize`] carries out a plan's runs, and its copies as far as they are possible; what the plan
//! has left out (absent data, no room) is done on demand, with a victim by [`Policy`]. The result is
//! a plan in which everything is explicit, so that [`super::simulate`] and [`crate::check`] apply.
//! A miss costs a [`Step::Fault`]: the copy starts once the operators before it have ended.
//!
//! Given a plan without copies this is on-demand swapping; the three policies are those of the
//! ODSwap branches of SwapAdvisor's runtime, as far as its code shows them: LRU; *naive history*,
//! Belady over the recorded previous step; *size history*, Belady among the storages of the nearest
//! sufficient size, passing over what is used within 80 steps. Both histories prefetch along the record.

use tensortier_model::{Bytes, Machine, Nanos};

use super::SimError;
use crate::{
    graph::{Graph, Liveness, OpId, StorageId, StorageKind},
    plan::{Plan, Step},
};

/// Rounds in which the residents of the start are sought that are also those of the end.
const ROUNDS: usize = 6;
/// What size history leaves alone at first: storages used within so many operators.
const SOON: usize = 80;

/// How a victim is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Used longest ago.
    Lru,
    /// Used again last, by the previous step's record.
    NaiveHistory,
    /// As naive history, among those of the nearest sufficient size.
    SizeHistory,
}

/// A run time that acts on demand.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// How victims are chosen.
    pub policy: Policy,
    /// Fixed cost of a miss.
    pub fault_ns: Nanos,
    /// Operators ahead for which absent data is fetched while there is room.
    pub prefetch: usize,
}

impl Demand {
    /// The run time of ODSwap: no cost beyond the copies; the histories look 80 operators ahead.
    pub fn odswap(policy: Policy) -> Self {
        Self { policy, fault_ns: 0, prefetch: if policy == Policy::Lru { 0 } else { SOON } }
    }
}

/// Makes every move explicit that carrying `plan` out takes.
///
/// # Errors
/// An operator that does not fit alone, full tiers, indices that do not exist.
pub fn realize(graph: &Graph, machine: &Machine, plan: &Plan, demand: Demand) -> Result<Plan, SimError> {
    super::check_indices(graph, machine, plan)?;
    let order: Vec<OpId> = plan.order().collect();
    let live = Liveness::new(graph, &order);
    let mut initial = plan.initial.clone();
    initial.retain(|&s| graph.storages[s].kind.is_persistent());
    for round in 0.. {
        let mut runtime = Runtime::new(graph, machine, plan, &live, demand, order.len());
        runtime.start(&initial)?;
        for (at, &step) in plan.steps.iter().enumerate() {
            runtime.follow(at, step, &order)?;
        }
        let start = runtime.initial.clone();
        let end = runtime.persistent_residents();
        if end == start || round == ROUNDS {
            runtime.restore(plan.steps.len())?;
            let mut made = Plan::new(plan.planner.clone(), graph);
            (made.initial, made.home, made.steps) = (start, runtime.home, runtime.steps);
            return Ok(made);
        }
        initial = end;
    }
    unreachable!("the last round returns")
}

struct Runtime<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    live: &'a Liveness,
    demand: Demand,
    length: usize,
    resident: Vec<bool>,
    dirty: Vec<bool>,
    tier: Vec<Option<usize>>,
    wanted_home: Vec<Option<usize>>,
    last_use: Vec<u64>,
    locked: Vec<bool>,
    clock: u64,
    /// Position of the operator being run, or of the next.
    at: usize,
    free: Bytes,
    tier_left: Vec<Bytes>,
    initial: Vec<StorageId>,
    home: Vec<(StorageId, usize)>,
    steps: Vec<Step>,
    faulted: bool,
    fetched_to: usize,
}

impl<'a> Runtime<'a> {
    fn new(
        graph: &'a Graph,
        machine: &'a Machine,
        plan: &Plan,
        live: &'a Liveness,
        demand: Demand,
        length: usize,
    ) -> Self {
        let n = graph.storages.len();
        let mut wanted_home = vec![None; n];
        plan.home.iter().for_each(|&(s, tier)| wanted_home[s] = Some(tier));
        let mut written = vec![false; n];
        graph.ops.iter().flat_map(|op| &op.writes).for_each(|&s| written[s] = true);
        Self {
            graph,
            machine,
            live,
            demand,
            length,
            resident: vec![false; n],
            dirty: written,
            tier: vec![None; n],
            wanted_home,
            last_use: vec![0; n],
            locked: vec![false; n],
            clock: 0,
            at: 0,
            free: machine.hbm,
            tier_left: machine.tiers.iter().map(|t| t.capacity).collect(),
            initial: Vec::new(),
            home: Vec::new(),
            steps: Vec::new(),
            faulted: false,
            fetched_to: 0,
        }
    }

    /// Persistent storages, those asked for first, as far as they fit; the rest is at home.
    fn start(&mut self, wanted: &[StorageId]) -> Result<(), SimError> {
        for &s in wanted {
            let bytes = self.graph.storages[s].bytes;
            if !self.resident[s] && bytes <= self.free {
                self.free -= bytes;
                self.resident[s] = true;
                self.initial.push(s);
            }
        }
        for s in 0..self.graph.storages.len() {
            if self.graph.storages[s].kind.is_persistent() && !self.resident[s] {
                self.settle(0, s)?;
                self.dirty[s] = false;
            }
        }
        self.initial.sort_unstable();
        Ok(())
    }

    fn follow(&mut self, index: usize, step: Step, order: &[OpId]) -> Result<(), SimError> {
        match step {
            Step::Run(op) => self.run(index, op, order),
            Step::CopyOut { storage, tier } if self.resident[storage] => self.copy_out(index, storage, Some(tier)),
            Step::CopyIn(s) if !self.resident[s] && self.tier[s].is_some() => {
                self.make_room(index, s)?;
                self.copy_in(s);
                Ok(())
            }
            Step::Drop(s) if self.resident[s] => {
                let storage = &self.graph.storages[s];
                let over = self.at >= self.length;
                let needed = storage.kind.is_persistent()
                    || storage.kind == StorageKind::Output && !over
                    || self.next_use(s).is_some();
                if needed {
                    self.evict(index, s)
                } else {
                    self.drop(s);
                    Ok(())
                }
            }
            Step::Fault(ns) => {
                self.steps.push(Step::Fault(ns));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn run(&mut self, index: usize, op: OpId, order: &[OpId]) -> Result<(), SimError> {
        let of = &self.graph.ops[op];
        self.prefetch(order);
        self.faulted = false;
        of.touches.iter().for_each(|&s| self.locked[s] = true);
        for &s in &of.touches {
            if self.resident[s] {
                continue;
            }
            self.make_room(index, s)?;
            if of.reads.binary_search(&s).is_ok() {
                if self.tier[s].is_none() {
                    return Err(SimError::NoHostCopy { step: index, storage: s });
                }
                self.fault();
                self.copy_in(s);
            } else {
                self.free -= self.graph.storages[s].bytes;
                self.resident[s] = true;
            }
        }
        self.steps.push(Step::Run(op));
        self.clock += 1;
        for &s in &of.touches {
            self.locked[s] = false;
            self.last_use[s] = self.clock;
        }
        of.writes.iter().for_each(|&s| self.dirty[s] = true);
        self.at += 1;
        Ok(())
    }

    /// Fetches along the record while there is room.
    fn prefetch(&mut self, order: &[OpId]) {
        self.fetched_to = self.fetched_to.max(self.at);
        let end = (self.at + self.demand.prefetch).min(self.length);
        while self.fetched_to < end {
            for &s in &self.graph.ops[order[self.fetched_to]].reads {
                if !self.resident[s] && self.tier[s].is_some() && !self.dirty[s] {
                    if self.graph.storages[s].bytes > self.free {
                        return;
                    }
                    self.copy_in(s);
                }
            }
            self.fetched_to += 1;
        }
    }

    fn make_room(&mut self, index: usize, s: StorageId) -> Result<(), SimError> {
        let bytes = self.graph.storages[s].bytes;
        while self.free < bytes {
            let victim = self.victim(bytes - self.free).ok_or(SimError::HbmFull {
                step: index,
                need: bytes - self.free,
                capacity: self.machine.hbm,
            })?;
            if self.dirty[victim] {
                self.fault();
            }
            self.evict(index, victim)?;
        }
        Ok(())
    }

    fn victim(&self, need: Bytes) -> Option<StorageId> {
        let bytes = |s: StorageId| self.graph.storages[s].bytes;
        let all = (0..self.resident.len()).filter(|&s| self.resident[s] && !self.locked[s] && bytes(s) > 0);
        let distance = |s: StorageId| self.next_use(s).map_or(usize::MAX, |next| next - self.at);
        match self.demand.policy {
            Policy::Lru => all.min_by_key(|&s| self.last_use[s]),
            Policy::NaiveHistory => all.max_by_key(|&s| distance(s)),
            Policy::SizeHistory => {
                let all: Vec<_> = all.map(|s| (s, distance(s))).collect();
                let mut soon = SOON;
                loop {
                    let fits = all.iter().filter(|&&(s, d)| bytes(s) >= need && d > soon);
                    let best = fits.min_by_key(|&&(s, d)| (bytes(s), std::cmp::Reverse(d)));
                    match best {
                        Some(&(s, _)) => return Some(s),
                        None if soon == 0 => return all.iter().max_by_key(|&&(_, d)| d).map(|&(s, _)| s),
                        None => soon /= 2,
                    }
                }
            }
        }
    }

    /// Position of the next use, beyond the end for persistent storages.
    fn next_use(&self, s: StorageId) -> Option<usize> {
        let uses = &self.live.uses[s];
        let next = uses.partition_point(|&at| at < self.at);
        match uses.get(next) {
            Some(&at) => Some(at),
            None if self.graph.storages[s].kind.is_persistent() => uses.first().map(|&at| at + self.length),
            None => None,
        }
    }

    fn fault(&mut self) {
        if !self.faulted {
            self.steps.push(Step::Fault(self.demand.fault_ns));
            self.faulted = true;
        }
    }

    fn evict(&mut self, index: usize, s: StorageId) -> Result<(), SimError> {
        if self.dirty[s] {
            self.copy_out(index, s, None)?;
        } else {
            self.settle(index, s)?;
        }
        self.drop(s);
        // What is fetched ahead may be driven out again.
        self.fetched_to = self.at;
        Ok(())
    }

    fn drop(&mut self, s: StorageId) {
        self.steps.push(Step::Drop(s));
        self.resident[s] = false;
        self.free += self.graph.storages[s].bytes;
    }

    fn copy_in(&mut self, s: StorageId) {
        self.steps.push(Step::CopyIn(s));
        self.free -= self.graph.storages[s].bytes;
        self.resident[s] = true;
        self.dirty[s] = false;
        self.clock += 1;
        self.last_use[s] = self.clock;
    }

    fn copy_out(&mut self, index: usize, s: StorageId, tier: Option<usize>) -> Result<(), SimError> {
        if tier.is_some_and(|tier| self.tier[s] != Some(tier)) {
            // The room in the old tier stays taken: a home found later is one from the start of the step.
            self.tier[s] = None;
            self.wanted_home[s] = tier;
        }
        let tier = self.room(index, s)?;
        self.steps.push(Step::CopyOut { storage: s, tier });
        self.dirty[s] = false;
        Ok(())
    }

    /// A clean storage that leaves needs a home.
    fn settle(&mut self, index: usize, s: StorageId) -> Result<(), SimError> {
        if self.tier[s].is_none() {
            let tier = self.room(index, s)?;
            self.home.push((s, tier));
        }
        Ok(())
    }

    fn room(&mut self, index: usize, s: StorageId) -> Result<usize, SimError> {
        if let Some(tier) = self.tier[s] {
            return Ok(tier);
        }
        let bytes = self.graph.storages[s].bytes;
        let wanted = self.wanted_home[s];
        let tier = wanted
            .into_iter()
            .chain(0..self.tier_left.len())
            .find(|&tier| self.tier_left[tier] >= bytes)
            .ok_or(SimError::TierFull { step: index, tier: wanted.unwrap_or(0) })?;
        self.tier_left[tier] -= bytes;
        self.tier[s] = Some(tier);
        Ok(tier)
    }

    fn persistent_residents(&self) -> Vec<StorageId> {
        let of = |s: &StorageId| self.resident[*s] && self.graph.storages[*s].kind.is_persistent();
        (0..self.resident.len()).filter(of).collect()
    }

    /// Ends with the residents of the start.
    fn restore(&mut self, index: usize) -> Result<(), SimError> {
        for s in 0..self.resident.len() {
            let persistent = self.graph.storages[s].kind.is_persistent();
            if self.resident[s] && !persistent {
                self.drop(s);
            } else if self.resident[s] && self.initial.binary_search(&s).is_err() {
                self.evict(index, s)?;
            }
        }
        for s in self.initial.clone() {
            if !self.resident[s] {
                self.copy_in(s);
            }
        }
        Ok(())
    }
}
