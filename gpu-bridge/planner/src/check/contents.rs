//! The replay in issue order.

use std::collections::HashMap;

use tensortier_model::{Bytes, Machine};

use super::Violation;
use crate::{
    graph::{Graph, OpId, StorageId, StorageKind},
    plan::{Plan, Step},
};

/// Who wrote a copy last; `None` is what a persistent storage has when the step begins.
type Contents = Option<OpId>;

struct Replay<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    plan: &'a Plan,
    device: HashMap<StorageId, Contents>,
    host: HashMap<StorageId, (usize, Contents)>,
    /// Contents each storage has when the traced step is over.
    final_contents: Vec<Contents>,
    has_run: Vec<bool>,
    last_run: usize,
    last_named: Vec<usize>,
    device_bytes: Bytes,
    slots: Vec<u32>,
    tier_bytes: Vec<Bytes>,
}

pub(super) fn check(graph: &Graph, machine: &Machine, plan: &Plan) -> Result<(), Violation> {
    check_names(graph, machine, plan)?;
    let expected = expected_contents(graph);
    let mut final_contents = vec![None; graph.storages.len()];
    for (op, of) in graph.ops.iter().enumerate() {
        for &s in &of.writes {
            final_contents[s] = Some(op);
        }
    }
    let mut last_named = vec![0; graph.storages.len()];
    let mut last_run = 0;
    for (at, step) in plan.steps.iter().enumerate() {
        match *step {
            Step::Run(op) => {
                last_run = at;
                for &s in &graph.ops[op].touches {
                    last_named[s] = at;
                }
            }
            Step::CopyOut { storage: s, .. } | Step::CopyIn(s) | Step::Drop(s) => last_named[s] = at,
            Step::Fault(_) => {}
        }
    }
    let mut replay = Replay {
        graph,
        machine,
        plan,
        device: HashMap::new(),
        host: HashMap::new(),
        final_contents,
        has_run: Vec::new(),
        last_run,
        last_named,
        device_bytes: 0,
        slots: vec![0; plan.pools.as_ref().map_or(0, |pools| pools.sizes.len())],
        tier_bytes: vec![0; machine.tiers.len()],
    };
    for &(s, tier) in &plan.home {
        if !replay.host.contains_key(&s) {
            replay.put_on_host(0, s, tier, None)?;
        }
    }
    for &s in &plan.initial {
        if !graph.storages[s].kind.is_persistent() {
            return Err(Violation::NotCyclic(s));
        }
        if replay.device.contains_key(&s) {
            return Err(Violation::Present { step: 0, storage: s });
        }
        replay.put_on_device(0, s, None)?;
    }
    // The second round starts from what the first left behind.
    replay.round(&expected)?;
    replay.round(&expected)
}

impl Replay<'_> {
    fn round(&mut self, expected: &[HashMap<StorageId, Contents>]) -> Result<(), Violation> {
        self.has_run = vec![false; self.graph.ops.len()];
        for (at, &step) in self.plan.steps.iter().enumerate() {
            match step {
                Step::Run(op) => self.run(at, op, &expected[op])?,
                Step::CopyOut { storage, tier } => {
                    let contents = *self.device.get(&storage).ok_or(Violation::Absent { step: at, storage })?;
                    self.put_on_host(at, storage, tier, contents)?;
                }
                Step::CopyIn(storage) => {
                    if self.device.contains_key(&storage) {
                        return Err(Violation::Present { step: at, storage });
                    }
                    let &(_, contents) = self.host.get(&storage).ok_or(Violation::NoHostCopy { step: at, storage })?;
                    self.put_on_device(at, storage, contents)?;
                }
                Step::Drop(storage) => self.drop(at, storage)?,
                Step::Fault(_) => {}
            }
        }
        if let Some(op) = self.has_run.iter().position(|&ran| !ran) {
            return Err(Violation::NeverRun(op));
        }
        self.wrap()
    }

    fn run(&mut self, at: usize, op: OpId, expected: &HashMap<StorageId, Contents>) -> Result<(), Violation> {
        let of = &self.graph.ops[op];
        if let Some(&before) = of.preds.iter().find(|&&p| !self.has_run[p]) {
            return Err(Violation::Order { step: at, op, before });
        }
        for &s in &of.reads {
            match self.device.get(&s) {
                None => return Err(Violation::Absent { step: at, storage: s }),
                Some(contents) if *contents != expected[&s] => {
                    return Err(Violation::WrongContents { step: at, op, storage: s });
                }
                Some(_) => {}
            }
        }
        for &s in &of.writes {
            self.put_on_device(at, s, Some(op))?;
        }
        self.has_run[op] = true;
        Ok(())
    }

    fn drop(&mut self, at: usize, s: StorageId) -> Result<(), Violation> {
        let contents = self.device.remove(&s).ok_or(Violation::Absent { step: at, storage: s })?;
        self.device_bytes -= self.graph.storages[s].bytes;
        if let Some(pools) = &self.plan.pools {
            self.slots[usize::from(pools.class_of[s])] -= 1;
        }
        let saved = self.host.get(&s).is_some_and(|&(_, host)| host == contents);
        let kind = self.graph.storages[s].kind;
        let is_result = kind == StorageKind::Output && at < self.last_run && self.final_contents[s] == contents;
        let needed = kind.is_persistent() || is_result;
        if needed && !saved {
            return Err(Violation::Lost { step: at, storage: s });
        }
        if kind == StorageKind::Temporary && self.last_named[s] == at {
            self.take_from_host(s);
        }
        Ok(())
    }

    fn wrap(&mut self) -> Result<(), Violation> {
        let mut left: Vec<StorageId> = self.device.keys().copied().collect();
        let mut initial = self.plan.initial.clone();
        left.sort_unstable();
        initial.sort_unstable();
        if let Some(&s) = left.iter().find(|s| initial.binary_search(s).is_err()) {
            return Err(Violation::NotCyclic(s));
        }
        if let Some(&s) = initial.iter().find(|s| left.binary_search(s).is_err()) {
            return Err(Violation::NotCyclic(s));
        }
        for s in 0..self.graph.storages.len() {
            if !self.graph.storages[s].kind.is_persistent() {
                self.take_from_host(s);
                continue;
            }
            // What a buffer holds at the end of a step is what the next one begins with.
            let newest = self.final_contents[s];
            if self.host.get(&s).is_some_and(|&(_, contents)| contents != newest) {
                self.take_from_host(s);
            }
            match (self.device.get_mut(&s), self.host.get_mut(&s)) {
                (None, None) => return Err(Violation::Lost { step: self.plan.steps.len(), storage: s }),
                (Some(contents), _) if *contents != newest => {
                    return Err(Violation::Lost { step: self.plan.steps.len(), storage: s });
                }
                (device, host) => {
                    device.into_iter().for_each(|contents| *contents = None);
                    host.into_iter().for_each(|(_, contents)| *contents = None);
                }
            }
        }
        Ok(())
    }

    fn put_on_device(&mut self, step: usize, s: StorageId, contents: Contents) -> Result<(), Violation> {
        if self.device.insert(s, contents).is_some() {
            return Ok(());
        }
        self.device_bytes += self.graph.storages[s].bytes;
        if let Some(pools) = &self.plan.pools {
            let class = usize::from(pools.class_of[s]);
            self.slots[class] += 1;
            if self.slots[class] > pools.counts[class] || self.graph.storages[s].bytes > pools.sizes[class] {
                return Err(Violation::NoSlot { step, storage: s, class });
            }
        }
        let (bytes, capacity) = (self.device_bytes, self.machine.hbm);
        if bytes > capacity { Err(Violation::HbmFull { step, bytes, capacity }) } else { Ok(()) }
    }

    fn put_on_host(&mut self, step: usize, s: StorageId, tier: usize, contents: Contents) -> Result<(), Violation> {
        self.take_from_host(s);
        self.host.insert(s, (tier, contents));
        self.tier_bytes[tier] += self.graph.storages[s].bytes;
        let (bytes, capacity) = (self.tier_bytes[tier], self.machine.tiers[tier].capacity);
        if bytes > capacity { Err(Violation::TierFull { step, tier, bytes, capacity }) } else { Ok(()) }
    }

    fn take_from_host(&mut self, s: StorageId) {
        if let Some((tier, _)) = self.host.remove(&s) {
            self.tier_bytes[tier] -= self.graph.storages[s].bytes;
        }
    }
}

/// For each operator, the contents of each storage it reads when the step runs as traced.
fn expected_contents(graph: &Graph) -> Vec<HashMap<StorageId, Contents>> {
    let mut now: Vec<Contents> = vec![None; graph.storages.len()];
    graph
        .ops
        .iter()
        .enumerate()
        .map(|(op, of)| {
            let reads = of.reads.iter().map(|&s| (s, now[s])).collect();
            for &s in &of.writes {
                now[s] = Some(op);
            }
            reads
        })
        .collect()
}

fn check_names(graph: &Graph, machine: &Machine, plan: &Plan) -> Result<(), Violation> {
    let known = |step, what, index: usize, count: usize| {
        if index < count { Ok(()) } else { Err(Violation::Unknown { step, what, index }) }
    };
    let (ops, storages, tiers) = (graph.ops.len(), graph.storages.len(), machine.tiers.len());
    for &s in &plan.initial {
        known(0, "storage", s, storages)?;
    }
    for &(s, tier) in &plan.home {
        known(0, "storage", s, storages)?;
        known(0, "tier", tier, tiers)?;
    }
    if let Some(pools) = &plan.pools {
        let classes = pools.sizes.len().min(pools.counts.len());
        if pools.class_of.len() != storages {
            return Err(Violation::Unknown { step: 0, what: "class of storage", index: pools.class_of.len() });
        }
        for &class in &pools.class_of {
            known(0, "class", class.into(), classes)?;
        }
        let (bytes, capacity) = (pools.bytes(), machine.hbm);
        if bytes > capacity {
            return Err(Violation::HbmFull { step: 0, bytes, capacity });
        }
    }
    for (at, step) in plan.steps.iter().enumerate() {
        match *step {
            Step::Run(op) => known(at, "operator", op, ops)?,
            Step::CopyOut { storage, tier } => {
                known(at, "storage", storage, storages)?;
                known(at, "tier", tier, tiers)?;
            }
            Step::CopyIn(s) | Step::Drop(s) => known(at, "storage", s, storages)?,
            Step::Fault(_) => {}
        }
    }
    Ok(())
}
