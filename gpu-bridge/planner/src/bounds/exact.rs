//! The best plan of a tiny graph, by trying every program of runs, copies and drops.

use tensortier_model::{Machine, Nanos};

use crate::{
    graph::{Graph, OpId, StorageId, StorageKind},
    plan::{Plan, Step},
    sim,
};

/// The search space is larger than allowed, or the graph has storages that outlive the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("exact search is for graphs of a few operators without weights")]
pub struct TooLarge;

/// The shortest step over all orders and all programs that copy a storage out at most once
/// between writes, or none if no plan fits. For graphs of temporaries and results alone, on one tier.
///
/// # Errors
/// [`TooLarge`] after `limit` programs, or where the graph has weights.
pub fn exact(graph: &Graph, machine: &Machine, limit: usize) -> Result<Option<Nanos>, TooLarge> {
    if graph.ops.len() > 12 || graph.storages.iter().any(|s| s.kind.is_persistent()) {
        return Err(TooLarge);
    }
    let mut search = Exact {
        graph,
        machine,
        plan: Plan::new("exact", graph),
        ran: vec![false; graph.ops.len()],
        device: vec![false; graph.storages.len()],
        host: vec![false; graph.storages.len()],
        unused: vec![false; graph.storages.len()],
        best: None,
        left: limit,
    };
    search.extend()?;
    Ok(search.best)
}

struct Exact<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    plan: Plan,
    ran: Vec<bool>,
    device: Vec<bool>,
    host: Vec<bool>,
    /// Copied in and not used since: dropping it again would be pointless.
    unused: Vec<bool>,
    best: Option<Nanos>,
    left: usize,
}

impl Exact<'_> {
    fn extend(&mut self) -> Result<(), TooLarge> {
        self.left = self.left.checked_sub(1).ok_or(TooLarge)?;
        if self.ran.iter().all(|&ran| ran) {
            self.finish();
            return Ok(());
        }
        for op in 0..self.graph.ops.len() {
            if self.can_run(op) {
                self.run(op)?;
            }
        }
        for s in 0..self.device.len() {
            if self.device[s] && !self.host[s] && self.is_complete(s) {
                self.with(Step::CopyOut { storage: s, tier: 0 }, |it| it.host[s] = true)?;
            }
            if self.device[s] && self.host[s] && !self.unused[s] {
                self.with(Step::Drop(s), |it| it.device[s] = false)?;
            }
            let just_left = matches!(self.plan.steps.last(), Some(&Step::Drop(last)) if last == s);
            if !self.device[s] && self.host[s] && self.is_wanted(s) && !just_left && self.fits(s) {
                self.with(Step::CopyIn(s), |it| {
                    it.device[s] = true;
                    it.unused[s] = true;
                })?;
            }
        }
        Ok(())
    }

    fn with(&mut self, step: Step, change: impl FnOnce(&mut Self)) -> Result<(), TooLarge> {
        let before = (self.device.clone(), self.host.clone(), self.unused.clone());
        self.plan.steps.push(step);
        change(self);
        let result = self.extend();
        self.plan.steps.pop();
        (self.device, self.host, self.unused) = before;
        result
    }

    fn run(&mut self, op: OpId) -> Result<(), TooLarge> {
        let before = (self.device.clone(), self.host.clone(), self.unused.clone());
        let length = self.plan.steps.len();
        let of = &self.graph.ops[op];
        self.plan.steps.push(Step::Run(op));
        self.ran[op] = true;
        for &s in &of.writes {
            self.device[s] = true;
            self.host[s] = false;
        }
        for &s in &of.touches {
            self.unused[s] = false;
            if self.device[s] && !self.is_wanted(s) && self.graph.storages[s].kind == StorageKind::Temporary {
                self.plan.steps.push(Step::Drop(s));
                self.device[s] = false;
            }
        }
        let result = self.extend();
        self.ran[op] = false;
        self.plan.steps.truncate(length);
        (self.device, self.host, self.unused) = before;
        result
    }

    fn finish(&mut self) {
        let length = self.plan.steps.len();
        for s in 0..self.device.len() {
            if self.device[s] {
                self.plan.steps.push(Step::Drop(s));
            }
        }
        if let Ok(report) = sim::simulate(self.graph, self.machine, &self.plan) {
            self.best = Some(self.best.map_or(report.step_ns, |best| best.min(report.step_ns)));
        }
        self.plan.steps.truncate(length);
    }

    fn can_run(&self, op: OpId) -> bool {
        let of = &self.graph.ops[op];
        let made = of.writes.iter().filter(|&&s| !self.device[s]).map(|&s| self.graph.storages[s].bytes).sum::<u64>();
        !self.ran[op]
            && of.preds.iter().all(|&p| self.ran[p])
            && of.reads.iter().all(|&s| self.device[s])
            && self.resident() + made <= self.machine.hbm
    }

    fn fits(&self, s: StorageId) -> bool {
        self.resident() + self.graph.storages[s].bytes <= self.machine.hbm
    }

    fn resident(&self) -> u64 {
        (0..self.device.len()).filter(|&s| self.device[s]).map(|s| self.graph.storages[s].bytes).sum()
    }

    /// An operator that has not run needs it.
    fn is_wanted(&self, s: StorageId) -> bool {
        let waits = |(op, of): (usize, &crate::graph::Op)| !self.ran[op] && of.touches.binary_search(&s).is_ok();
        self.graph.ops.iter().enumerate().any(waits)
    }

    fn is_complete(&self, s: StorageId) -> bool {
        self.graph.ops.iter().enumerate().any(|(op, of)| self.ran[op] && of.writes.binary_search(&s).is_ok())
    }
}
