//! How long a plan takes: exact, for three FIFO streams and their tiers.
//!
//! A copy holds the GPU link of its direction and its tier. Both directions run at once, except
//! on a half-duplex tier. The step is repeated until its period is the same twice, so that what
//! overlaps from one step into the next counts. `O(steps)` an iteration, with a heap over the
//! frees that no allocation has used yet.

pub mod demand;
mod pool;
#[cfg(test)]
mod reference;
mod state;
#[cfg(test)]
mod tests;

use serde::Serialize;
use tensortier_model::{Bytes, Machine, Nanos};

use crate::{
    graph::{Graph, OpId, StorageId},
    plan::{Plan, Step},
};
use state::State;

/// Iterations after which a period that still changes is taken as it is.
pub const MAX_ITERATIONS: usize = 12;

/// When one step of the plan ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Which repetition.
    pub iteration: usize,
    /// Index into [`Plan::steps`].
    pub step: usize,
    /// Start.
    pub start: Nanos,
    /// End; a drop and a fault end when they start.
    pub end: Nanos,
}

/// What a simulation found, for one step in the steady state.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Time from one step to the next.
    pub step_ns: Nanos,
    /// Time of the first step, which starts with the initial residents in place.
    pub first_ns: Nanos,
    /// Whether the period was the same twice in a row.
    pub steady: bool,
    /// Time in operators, recomputation included.
    pub compute_ns: Nanos,
    /// Bytes copied in from each tier.
    pub bytes_in: Vec<Bytes>,
    /// Bytes copied out to each tier.
    pub bytes_out: Vec<Bytes>,
    /// Copies in and out.
    pub copies: usize,
    /// Most bytes (slots count whole) allocated at once in issue order: the least device memory
    /// with which the plan still runs.
    pub hbm_peak: Bytes,
    /// Most bytes in each tier, in issue order.
    pub tier_peak: Vec<Bytes>,
}

impl Report {
    /// Bytes copied in either direction.
    pub fn moved(&self) -> Bytes {
        self.bytes_in.iter().chain(&self.bytes_out).sum()
    }
}

/// Why a plan cannot be simulated. Each names the index of the step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// A run or a copy out of something that is not on the device.
    #[error("step {step}: storage {storage} is not on the device")]
    Absent {
        /// Index into [`Plan::steps`].
        step: usize,
        /// The storage.
        storage: StorageId,
    },
    /// A copy in of something already there.
    #[error("step {step}: storage {storage} is already on the device")]
    Present {
        /// Index into [`Plan::steps`].
        step: usize,
        /// The storage.
        storage: StorageId,
    },
    /// A copy in of something without a host copy.
    #[error("step {step}: storage {storage} has no copy on the host")]
    NoHostCopy {
        /// Index into [`Plan::steps`].
        step: usize,
        /// The storage.
        storage: StorageId,
    },
    /// Not enough memory even after every earlier step has ended.
    #[error("step {step}: needs {need} bytes of device memory more than {capacity} allow")]
    HbmFull {
        /// Index into [`Plan::steps`].
        step: usize,
        /// Bytes (or slots) missing.
        need: u64,
        /// The pool's capacity.
        capacity: u64,
    },
    /// A tier is full.
    #[error("step {step}: tier {tier} is full")]
    TierFull {
        /// Index into [`Plan::steps`].
        step: usize,
        /// The tier.
        tier: usize,
    },
    /// The step does not end with the residents it began with.
    #[error("the step ends with other residents than it began with: storage {storage}")]
    NotCyclic {
        /// A storage that differs.
        storage: StorageId,
    },
    /// An operator, storage, tier or class that does not exist.
    #[error("{what} {index} does not exist")]
    Unknown {
        /// What kind.
        what: &'static str,
        /// Its number.
        index: usize,
    },
    /// A fault that costs more than a second.
    #[error("step {step}: a fault of {ns} ns")]
    Fault {
        /// Index into [`Plan::steps`].
        step: usize,
        /// Its cost.
        ns: Nanos,
    },
}

/// Simulates `plan` in its steady state.
///
/// # Errors
/// The first thing that makes the plan impossible to carry out.
pub fn simulate(graph: &Graph, machine: &Machine, plan: &Plan) -> Result<Report, SimError> {
    run(graph, machine, plan, MAX_ITERATIONS, None)
}

/// As [`simulate`], and adds when every step of every simulated iteration ran.
///
/// # Errors
/// As [`simulate`].
pub fn timeline(graph: &Graph, machine: &Machine, plan: &Plan) -> Result<(Report, Vec<Span>), SimError> {
    let mut spans = Vec::new();
    let report = run(graph, machine, plan, MAX_ITERATIONS, Some(&mut spans))?;
    Ok((report, spans))
}

/// Simulates at most `iterations` (two at least) of them: what a search uses.
///
/// # Errors
/// As [`simulate`].
pub fn run(
    graph: &Graph,
    machine: &Machine,
    plan: &Plan,
    iterations: usize,
    mut spans: Option<&mut Vec<Span>>,
) -> Result<Report, SimError> {
    check_indices(graph, machine, plan)?;
    let mut state = State::new(graph, machine, plan)?;
    let (mut before, mut period, mut first, mut steady) = (0, None, 0, false);
    for iteration in 0..iterations.max(2) {
        state.begin_iteration();
        for (at, step) in plan.steps.iter().enumerate() {
            let (start, end) = state.step(at, *step)?;
            if let Some(spans) = spans.as_deref_mut() {
                spans.push(Span { iteration, step: at, start, end });
            }
        }
        state.end_iteration(plan)?;
        let took = state.compute_clock() - before;
        before = state.compute_clock();
        if iteration == 0 {
            first = took;
        }
        steady = period == Some(took);
        period = Some(took);
        if steady {
            break;
        }
    }
    Ok(state.report(period.unwrap_or(0), first, steady))
}

fn check_indices(graph: &Graph, machine: &Machine, plan: &Plan) -> Result<(), SimError> {
    let within = |what, index: usize, count: usize| {
        if index < count { Ok(()) } else { Err(SimError::Unknown { what, index }) }
    };
    let storages = graph.storages.len();
    plan.initial.iter().try_for_each(|&s| within("storage", s, storages))?;
    for &(s, tier) in &plan.home {
        within("storage", s, storages)?;
        within("tier", tier, machine.tiers.len())?;
    }
    if let Some(pools) = &plan.pools {
        within("pool of class", pools.sizes.len(), pools.counts.len() + 1)?;
        within("class of storage", storages, pools.class_of.len() + 1)?;
        for &class in &pools.class_of {
            within("class", class.into(), pools.sizes.len().min(pools.counts.len()))?;
        }
    }
    for (step, &of) in plan.steps.iter().enumerate() {
        match of {
            Step::Run(op) => within("operator", op as OpId, graph.ops.len())?,
            Step::CopyOut { storage, tier } => {
                within("storage", storage, storages)?;
                within("tier", tier, machine.tiers.len())?;
            }
            Step::CopyIn(s) | Step::Drop(s) => within("storage", s, storages)?,
            Step::Fault(ns) if ns > 1_000_000_000 => return Err(SimError::Fault { step, ns }),
            Step::Fault(_) => {}
        }
    }
    Ok(())
}
