//! What a policy comes to on a workload, beside the best that could be.
//!
//! A policy sees the workload from its beginning and is judged from some interval on, when it had time to learn. What it
//! is held against is given all that it can want: the offline optimum and the best fixed set know what remains, and
//! begin it with any placement, free of charge.

use std::collections::BTreeMap;

use tensortier_model::{Bytes, Nanos};

use crate::{
    cost::Costs,
    optimum::{best_fixed, optimum},
    policy::Policy,
    sim::{Run, Totals, run},
    step::{Learner, Step},
    workload::{LINE, Workload},
};

/// A workload, the top tier that it has, and from when on it is judged.
pub struct Case<'a> {
    workload: &'a Workload,
    costs: &'a Costs,
    capacity: Bytes,
    from: usize,
    rest: Workload,
}

impl<'a> Case<'a> {
    /// Judges from the interval `from` on.
    pub fn new(workload: &'a Workload, costs: &'a Costs, capacity: Bytes, from: usize) -> Self {
        let rest = workload.window(from..workload.intervals());
        Self { workload, costs, capacity, from, rest }
    }

    /// What the policy does, from the beginning.
    pub fn run(&self, policy: &mut dyn Policy) -> Run {
        run(self.workload, self.costs, self.capacity, policy)
    }

    /// What it comes to where it is judged.
    pub fn totals(&self, policy: &mut dyn Policy) -> Totals {
        self.run(policy).totals(self.from)
    }

    /// The least cost there is.
    pub fn optimum(&self) -> Totals {
        self.schedule(&mut optimum(&self.rest, self.costs, self.capacity))
    }

    /// The least cost without moves.
    pub fn best_fixed(&self) -> Totals {
        self.schedule(&mut best_fixed(&self.rest, self.costs, self.capacity))
    }

    fn schedule(&self, schedule: &mut dyn Policy) -> Totals {
        run(&self.rest, self.costs, self.capacity, schedule).totals(0)
    }

    /// Bytes accessed where it is judged.
    pub fn accessed(&self) -> Bytes {
        self.rest.touches.iter().flatten().map(|touch| touch.lines() * LINE).sum()
    }

    /// How long the judged part was when it was recorded.
    pub fn recorded(&self) -> Nanos {
        self.rest.intervals() as Nanos * self.rest.interval
    }

    /// The judged part.
    pub fn rest(&self) -> &Workload {
        &self.rest
    }
}

/// The step of each job at the end of a workload, where one was learned from its touches.
pub fn steps(workload: &Workload) -> Vec<(u32, Step)> {
    let mut learners: BTreeMap<u32, Learner> = BTreeMap::new();
    for region in &workload.regions {
        learners.entry(region.job).or_default();
    }
    for (at, touches) in workload.touches.iter().enumerate() {
        let mut touched: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for region in touches.iter().filter(|touch| touch.heat > 0.0).map(|touch| &workload.regions[touch.region]) {
            touched.entry(region.job).or_default().push(region.start);
        }
        let now = (at as Nanos + 1) * workload.interval;
        for (job, learner) in &mut learners {
            learner.observe(now, workload.interval, touched.remove(job).into_iter().flatten());
        }
    }
    learners.into_iter().filter_map(|(job, learner)| Some((job, learner.step()?))).collect()
}
