//! The look at a timeline: every claim is checked against what must have ended before.

use std::collections::HashMap;

use tensortier_model::{Machine, Nanos};

use super::Violation;
use crate::{
    graph::{Graph, StorageId, StorageKind},
    plan::{Plan, Step},
    sim::Span,
};

/// What has happened to a storage so far, over all iterations.
#[derive(Default, Clone)]
struct Seen {
    /// End of the step that brought its contents to the device.
    arrived: Nanos,
    /// End of the last step that used the device copy.
    used: Nanos,
    copied_out: Nanos,
    copied_in: Nanos,
    resident: bool,
    tier: Option<usize>,
}

struct Witness<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    plan: &'a Plan,
    seen: HashMap<StorageId, Seen>,
    compute_end: Nanos,
    in_end: Nanos,
    out_end: Nanos,
    tier_end: Vec<Nanos>,
    fault: Nanos,
    /// (instant, pool, change); frees sort before allocations of the same instant.
    device: Vec<(Nanos, usize, i64, usize, usize)>,
}

pub(super) fn check(graph: &Graph, machine: &Machine, plan: &Plan, spans: &[Span]) -> Result<(), Violation> {
    let mut witness = Witness {
        graph,
        machine,
        plan,
        seen: HashMap::new(),
        compute_end: 0,
        in_end: 0,
        out_end: 0,
        tier_end: vec![0; machine.tiers.len()],
        fault: 0,
        device: Vec::new(),
    };
    for &(s, tier) in &plan.home {
        witness.seen.entry(s).or_default().tier = Some(tier);
    }
    for &s in &plan.initial {
        witness.seen.entry(s).or_default().resident = true;
        witness.change(0, s, 1, 0, 0);
    }
    for (n, span) in spans.iter().enumerate() {
        let (iteration, step) = (n / plan.steps.len(), n % plan.steps.len());
        if (span.iteration, span.step) != (iteration, step) {
            return Err(Violation::Time { iteration, step, at: span.start, what: "the timeline skips a step" });
        }
        witness.step(span)?;
    }
    witness.capacities()
}

impl Witness<'_> {
    fn step(&mut self, span: &Span) -> Result<(), Violation> {
        let bad = |what| Violation::Time { iteration: span.iteration, step: span.step, at: span.start, what };
        let took = span.end.checked_sub(span.start).ok_or_else(|| bad("a step ends before it starts"))?;
        match self.plan.steps[span.step] {
            Step::Run(op) => {
                let of = &self.graph.ops[op];
                if took != of.time {
                    return Err(bad("an operator takes another time than its own"));
                }
                if span.start < self.compute_end {
                    return Err(bad("two operators run at once"));
                }
                self.compute_end = span.end;
                for &s in &of.touches {
                    let seen = self.seen.entry(s).or_default();
                    if seen.resident && span.start < seen.arrived {
                        return Err(bad("an operator runs before its data is there"));
                    }
                    let writes = of.writes.contains(&s);
                    if writes && seen.resident && span.start < seen.copied_out {
                        return Err(bad("an operator changes data that is being copied"));
                    }
                    let appears = !seen.resident;
                    if writes {
                        seen.arrived = span.end;
                    }
                    seen.used = if appears { span.end } else { seen.used.max(span.end) };
                    seen.resident = true;
                    if appears {
                        self.change(span.start, s, 1, span.iteration, span.step);
                    }
                }
            }
            Step::CopyOut { storage, tier } => {
                let bytes = self.graph.storages[storage].bytes;
                if took < self.machine.d2h(bytes, tier) {
                    return Err(bad("a copy out is faster than its path"));
                }
                let seen = self.seen.entry(storage).or_default();
                if span.start < seen.arrived {
                    return Err(bad("a copy out starts before its data is there"));
                }
                if span.start < seen.copied_in && seen.tier == Some(tier) {
                    return Err(bad("a copy out overwrites a host copy that is being read"));
                }
                if span.start < self.out_end || self.is_blocked(span, tier) {
                    return Err(bad("two copies out at once, or before the fault that asks for one"));
                }
                let seen = self.seen.entry(storage).or_default();
                seen.copied_out = span.end;
                seen.used = seen.used.max(span.end);
                seen.tier = Some(tier);
                self.out_end = span.end;
                self.tier_end[tier] = self.tier_end[tier].max(span.end);
            }
            Step::CopyIn(storage) => {
                let tier = self.seen.get(&storage).and_then(|seen| seen.tier);
                let tier = tier.ok_or_else(|| bad("a copy in from nowhere"))?;
                if took < self.machine.h2d(self.graph.storages[storage].bytes, tier) {
                    return Err(bad("a copy in is faster than its path"));
                }
                if span.start < self.in_end || self.is_blocked(span, tier) {
                    return Err(bad("two copies in at once, or before the fault that asks for one"));
                }
                let seen = self.seen.entry(storage).or_default();
                if span.start < seen.copied_out {
                    return Err(bad("a copy in starts before the copy out has ended"));
                }
                (seen.arrived, seen.copied_in, seen.used, seen.resident) = (span.end, span.end, span.end, true);
                self.in_end = span.end;
                self.tier_end[tier] = self.tier_end[tier].max(span.end);
                self.change(span.start, storage, 1, span.iteration, span.step);
            }
            Step::Drop(storage) => {
                let seen = self.seen.entry(storage).or_default();
                if span.start < seen.used {
                    return Err(bad("memory is given back while it is in use"));
                }
                seen.resident = false;
                if self.graph.storages[storage].kind == StorageKind::Temporary {
                    seen.arrived = 0;
                }
                self.change(span.start, storage, -1, span.iteration, span.step);
            }
            Step::Fault(ns) => {
                if span.end < self.compute_end + ns {
                    return Err(bad("a fault is over before it can be"));
                }
                self.fault = self.fault.max(span.end);
            }
        }
        Ok(())
    }

    fn is_blocked(&self, span: &Span, tier: usize) -> bool {
        let half = self.machine.tiers[tier].profile.half_duplex;
        span.start < self.fault || half && span.start < self.tier_end[tier]
    }

    fn change(&mut self, at: Nanos, s: StorageId, sign: i64, iteration: usize, step: usize) {
        let (pool, units) = match &self.plan.pools {
            Some(pools) => (pools.class_of[s].into(), 1),
            None => (0, self.graph.storages[s].bytes as i64),
        };
        self.device.push((at, pool, sign * units, iteration, step));
    }

    /// Adds the changes up in time: at no instant more than there is.
    fn capacities(mut self) -> Result<(), Violation> {
        let capacity: Vec<i64> = match &self.plan.pools {
            Some(pools) => pools.counts.iter().map(|&n| n.into()).collect(),
            None => vec![self.machine.hbm.min(i64::MAX as u64) as i64],
        };
        let mut held = vec![0i64; capacity.len()];
        self.device.sort_by_key(|&(at, _, change, ..)| (at, change));
        for (at, pool, change, iteration, step) in self.device {
            held[pool] += change;
            if held[pool] > capacity[pool] {
                return Err(Violation::Time { iteration, step, at, what: "more device memory in use than there is" });
            }
        }
        Ok(())
    }
}
