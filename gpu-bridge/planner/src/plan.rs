//! What a planner emits: the program of one training step.
//!
//! A plan is a list of [`Step`]s in issue order. Three FIFO streams carry them out: compute
//! (runs), device to host (copies out) and host to device (copies in). A step starts as soon
//! as its stream is free, its data is there and its memory is granted. Memory is granted in
//! issue order, from what earlier steps gave back; so a plan whose steps fit one after the
//! other can neither deadlock nor exceed a capacity however the streams overlap, and a copy in
//! that is issued earlier also starts earlier.

use serde::{Deserialize, Serialize};
use tensortier_model::{Bytes, Machine, Nanos};

use crate::graph::{Graph, Liveness, OpId, StorageId, StorageKind};

/// Version of the JSON form of a [`Plan`].
pub const VERSION: u32 = 1;

/// One step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Runs an operator. What it writes and is absent is allocated. Running one a second time
    /// makes its outputs again.
    Run(OpId),
    /// Copies a resident storage to a tier; the device keeps its bytes until a drop. The host copy
    /// holds what the storage held then; its room is taken until the storage's last step (or the
    /// end, for persistent storages and results).
    CopyOut {
        /// What is copied.
        storage: StorageId,
        /// Index into the machine's tiers.
        tier: usize,
    },
    /// Copies an absent storage back from where its host copy is.
    CopyIn(StorageId),
    /// Gives the device memory of a storage back once everything issued before has used it.
    Drop(StorageId),
    /// Copies issued after this wait for all runs issued before it, plus so many nanoseconds:
    /// the compute stream has run into absent data and asks for it now.
    Fault(Nanos),
}

/// Fixed-size slots in place of one byte-granular pool: slot `c` has `sizes[c]` bytes, there are
/// `counts[c]` of them, and storage `s` takes one of `class_of[s]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pools {
    /// Bytes of a slot, ascending.
    pub sizes: Vec<Bytes>,
    /// Slots of each class.
    pub counts: Vec<u32>,
    /// Class of each storage.
    pub class_of: Vec<u16>,
}

impl Pools {
    /// Bytes of all slots.
    pub fn bytes(&self) -> Bytes {
        self.sizes.iter().zip(&self.counts).map(|(&s, &n)| s.saturating_mul(n.into())).fold(0, u64::saturating_add)
    }
}

/// The program of one training step, repeated for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`VERSION`].
    pub version: u32,
    /// Who made it.
    pub planner: String,
    /// Name of the graph it is for.
    pub graph: String,
    /// Storages resident at the start of every step, and therefore also at its end.
    pub initial: Vec<StorageId>,
    /// Persistent storages that have a valid copy on the host when the step begins, and its tier.
    pub home: Vec<(StorageId, usize)>,
    /// Slots, where the plan needs them.
    #[serde(default)]
    pub pools: Option<Pools>,
    /// The steps, in issue order.
    pub steps: Vec<Step>,
}

/// What can be wrong with the file of a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Not JSON of this form.
    #[error("plan: {0}")]
    Parse(#[from] serde_json::Error),
    /// Written by another version.
    #[error("plan: format version {0}; this program reads version {VERSION}")]
    Version(u32),
}

impl Plan {
    /// An empty plan with no residents.
    pub fn new(planner: impl Into<String>, graph: &Graph) -> Self {
        Self {
            version: VERSION,
            planner: planner.into(),
            graph: graph.name.clone(),
            initial: Vec::new(),
            home: Vec::new(),
            pools: None,
            steps: Vec::new(),
        }
    }

    /// The plan that never moves anything: what unlimited memory would do.
    pub fn unlimited(graph: &Graph, order: &[OpId]) -> Self {
        let mut plan = Self::new("unlimited", graph);
        plan.initial = (0..graph.storages.len()).filter(|&s| graph.storages[s].kind.is_persistent()).collect();
        let dies = deaths(graph, &Liveness::new(graph, order), order.len());
        for (at, &op) in order.iter().enumerate() {
            plan.steps.push(Step::Run(op));
            plan.steps.extend(dies[at].iter().map(|&s| Step::Drop(s)));
        }
        plan
    }

    /// The operators in issue order.
    pub fn order(&self) -> impl Iterator<Item = OpId> + '_ {
        self.steps.iter().filter_map(|step| match *step {
            Step::Run(op) => Some(op),
            _ => None,
        })
    }

    /// Issues copies in earlier: at the latest safe time of a stream that is a queue, and some way further, as far as
    /// the device has room in issue order and not before the storage left. Only for plans without pools.
    pub fn advance(&mut self, graph: &Graph, machine: &Machine) {
        let steps = std::mem::take(&mut self.steps);
        let Schedule { mut held, clock, returns } = Schedule::new(self, &steps, graph, machine);
        let mut safe = vec![0i64; returns.len()];
        let mut next = clock[steps.len()] as i64;
        for (start, back) in safe.iter_mut().zip(&returns).rev() {
            next = next.min(clock[back.at] as i64) - back.took as i64;
            *start = next;
        }
        let mut early = Vec::new();
        for (back, safe) in returns.iter().zip(safe) {
            let size = graph.storages[back.storage].bytes;
            let target = safe - LEAD * back.took as i64;
            let mut at = back.at;
            while at > back.earliest && clock[at] as i64 > target && held[at - 1] + size <= machine.hbm {
                at -= 1;
                held[at] += size;
            }
            early.push((at, back.storage));
        }
        early.sort_by_key(|&(at, _)| at);
        let mut early = early.into_iter().peekable();
        for (at, step) in steps.into_iter().enumerate() {
            while let Some((_, s)) = early.next_if(|&(to, _)| to == at) {
                self.steps.push(Step::CopyIn(s));
            }
            if !matches!(step, Step::CopyIn(_)) {
                self.steps.push(step);
            }
        }
    }

    /// Reads the JSON form. Whether the plan fits a graph is for [`crate::check`] to say.
    ///
    /// # Errors
    /// Text that does not parse, another version.
    pub fn from_json(text: &[u8]) -> Result<Self, PlanError> {
        let plan: Self = serde_json::from_slice(text)?;
        if plan.version == VERSION { Ok(plan) } else { Err(PlanError::Version(plan.version)) }
    }

    /// The JSON form.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| unreachable!("a plan has only string keys: {error}"))
    }
}

/// How many times its own length a copy in may be issued before its latest safe time.
const LEAD: i64 = 8;

/// A copy in as a plan has it.
struct Return {
    storage: StorageId,
    at: usize,
    /// The step after the last one before that names the storage.
    earliest: usize,
    took: Nanos,
}

/// What [`Plan::advance`] looks at.
struct Schedule {
    /// Bytes on the device before each step, in issue order.
    held: Vec<Bytes>,
    /// Compute time before each step, and of all.
    clock: Vec<Nanos>,
    returns: Vec<Return>,
}

impl Schedule {
    fn new(plan: &Plan, steps: &[Step], graph: &Graph, machine: &Machine) -> Self {
        let mut on = vec![false; graph.storages.len()];
        let mut tier = vec![0; graph.storages.len()];
        let mut named = vec![0; graph.storages.len()];
        plan.home.iter().for_each(|&(s, at)| tier[s] = at);
        plan.initial.iter().for_each(|&s| on[s] = true);
        let mut schedule = Self { held: Vec::new(), clock: vec![0], returns: Vec::new() };
        let (mut now, mut bytes) = (0, graph.bytes_of(&plan.initial));
        for (at, &step) in steps.iter().enumerate() {
            schedule.held.push(bytes);
            match step {
                Step::Run(op) => {
                    for &s in &graph.ops[op].touches {
                        bytes += if std::mem::replace(&mut on[s], true) { 0 } else { graph.storages[s].bytes };
                        named[s] = at + 1;
                    }
                    now += graph.ops[op].time;
                }
                Step::CopyIn(s) => {
                    let took = machine.h2d(graph.storages[s].bytes, tier[s]);
                    schedule.returns.push(Return { storage: s, at, earliest: named[s], took });
                    on[s] = true;
                    bytes += graph.storages[s].bytes;
                }
                Step::CopyOut { storage: s, tier: to } => (tier[s], named[s]) = (to, at + 1),
                Step::Drop(s) => {
                    named[s] = at + 1;
                    bytes -= if std::mem::replace(&mut on[s], false) { graph.storages[s].bytes } else { 0 };
                }
                Step::Fault(_) => {}
            }
            schedule.clock.push(now);
        }
        schedule
    }
}

/// For each position of an order, the temporaries and outputs that die there: temporaries after
/// their last use, outputs at the end of the step.
pub fn deaths(graph: &Graph, live: &Liveness, length: usize) -> Vec<Vec<StorageId>> {
    let mut dies = vec![Vec::new(); length];
    for (s, storage) in graph.storages.iter().enumerate() {
        let at = match storage.kind {
            StorageKind::Temporary => live.uses[s].last().copied(),
            StorageKind::Output => live.uses[s].last().map(|_| length - 1),
            _ => None,
        };
        if let Some(at) = at {
            dies[at].push(s);
        }
    }
    dies
}
