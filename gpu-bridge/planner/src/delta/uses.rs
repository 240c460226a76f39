//! When storages are used next, as the order of the step tells.
//!
//! DELTA trains the same step many times; this is what a first one teaches (ours: the abstract does not say where the
//! look-ahead comes from).

use crate::dtr::{OpLog, Step, StorageId};

/// A use to come: the index of the instruction, and its start when nothing is ever missing, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) step: usize,
    pub(super) at_ns: u64,
}

/// All uses of all storages, with the place in the step.
#[derive(Clone, Debug)]
pub(super) struct Uses {
    /// By storage, in order.
    uses: Vec<Vec<Use>>,
    /// By storage: those that are past.
    past: Vec<usize>,
    /// By instruction: base time before it, ns.
    base_ns: Vec<u64>,
    /// By instruction: bytes the program holds at it and needs for it.
    live: Vec<u64>,
    now: usize,
}

impl Uses {
    pub(super) fn new(log: &OpLog) -> Self {
        let mut uses = vec![Vec::new(); log.storages.len()];
        let mut base_ns = Vec::with_capacity(log.steps.len() + 1);
        let mut live = Vec::with_capacity(log.steps.len() + 1);
        let mut refs = vec![0u64; log.storages.len()];
        let (mut at_ns, mut held) = (0, 0u64);
        for (step, &s) in log.steps.iter().enumerate() {
            base_ns.push(at_ns);
            let mut note = |storage: StorageId| {
                let list: &mut Vec<Use> = &mut uses[storage as usize];
                if list.last().is_none_or(|u| u.step != step) {
                    list.push(Use { step, at_ns });
                }
            };
            match s {
                Step::Run(op) => {
                    let op = &log.ops[op as usize];
                    op.inputs.iter().for_each(|&t| note(log.storage_of(t)));
                    at_ns += op.time_ns;
                    held += op.bytes;
                    op.outputs.iter().for_each(|&t| refs[log.storage_of(t) as usize] += 1);
                }
                Step::Pin(t) => note(log.storage_of(t)),
                Step::Acquire(t) => refs[log.storage_of(t) as usize] += 1,
                Step::Release(t) => {
                    let s = log.storage_of(t) as usize;
                    refs[s] -= 1;
                    if refs[s] == 0 {
                        held -= log.storages[s].bytes;
                    }
                }
            }
            live.push(held);
        }
        base_ns.push(at_ns);
        live.push(held);
        Uses { past: vec![0; uses.len()], uses, base_ns, live, now: 0 }
    }

    /// Moves on to an instruction.
    pub(super) fn advance(&mut self, next: usize) {
        self.now = next;
    }

    /// The next use of a storage at or after the present instruction.
    pub(super) fn next(&mut self, s: StorageId) -> Option<Use> {
        let (uses, past) = (&self.uses[s as usize], &mut self.past[s as usize]);
        while uses.get(*past).is_some_and(|u| u.step < self.now) {
            *past += 1;
        }
        uses.get(*past).copied()
    }

    /// Base time until a use, ns.
    pub(super) fn until(&self, u: Use) -> u64 {
        u.at_ns.saturating_sub(self.base_ns[self.now.min(self.base_ns.len() - 1)])
    }

    /// Time of the next operator to run, ns.
    pub(super) fn next_run_ns(&self, log: &OpLog) -> u64 {
        let run = log.steps[self.now.min(log.steps.len())..].iter().find_map(|s| match s {
            Step::Run(op) => Some(log.ops[*op as usize].time_ns),
            _ => None,
        });
        run.unwrap_or(0)
    }

    /// The instruction after the next `window` operators.
    pub(super) fn after(&self, log: &OpLog, window: usize) -> usize {
        let runs = (self.now..log.steps.len()).filter(|&i| matches!(log.steps[i], Step::Run(_)));
        runs.take(window).last().map_or(self.now, |i| i + 1)
    }

    /// By how much what the program holds will grow at most before an instruction, bytes.
    pub(super) fn growth(&self, before: usize) -> u64 {
        let now = self.now.saturating_sub(1);
        let most = self.live[now..before.max(now + 1).min(self.live.len())].iter().max().copied().unwrap_or(0);
        most.saturating_sub(self.live[now])
    }

    /// True if the program will hold more than `bytes` at some later instruction.
    pub(super) fn will_exceed(&self, bytes: u64) -> bool {
        self.live[self.now.min(self.live.len())..].iter().any(|&b| b > bytes)
    }

    /// Storages used from the present instruction on, through `window` instructions that run, in order of use.
    pub(super) fn window(&self, log: &OpLog, window: usize) -> Vec<(StorageId, Use)> {
        let mut found: Vec<(StorageId, Use)> = Vec::new();
        let mut runs = 0;
        for (step, s) in log.steps.iter().enumerate().skip(self.now) {
            let inputs: &[_] = match s {
                Step::Run(op) => &log.ops[*op as usize].inputs,
                Step::Pin(t) => std::slice::from_ref(t),
                _ => continue,
            };
            for &t in inputs {
                let storage = log.storage_of(t);
                if !found.iter().any(|f| f.0 == storage) {
                    found.push((storage, Use { step, at_ns: self.base_ns[step] }));
                }
            }
            runs += 1;
            if runs == window {
                break;
            }
        }
        found
    }
}
