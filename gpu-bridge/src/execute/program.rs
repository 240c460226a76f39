//! From a plan to tasks with addresses, before anything runs.
//!
//! A plan is unrolled over the steps wanted. Each run and each copy becomes a task of one of three streams; a task says
//! how many tasks of the *other* streams must have ended before it may start ([`Upto`]), which follows from the data that
//! it reads, the copies that must not see its writes, and the bytes it gets from others ([`Arena`]). Tasks of a stream
//! run in the plan's order. The rules are those of [`tensortier_planner::sim`], whose times say which bytes are free
//! first. Nothing here follows contents: a plan that reads stale data makes a program that computes something else.

use tensortier_model::{Bytes, Machine, Nanos};
use tensortier_planner::{
    graph::{Graph, OpId, StorageId},
    plan::Plan,
    sim::{self, SimError},
};

use super::{arena::Upto, unroll::Maker};
use crate::pipeline::kernel::Ranges;

/// Streams, as [`Upto`] counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Kernels.
    Compute,
    /// Host to device.
    In,
    /// Device to host.
    Out,
}

/// What a task does. Addresses count from the beginning of the device's memory and of each tier's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Runs an operator of the graph.
    Run { step: usize, op: OpId, reads: Vec<Ranges>, writes: Vec<Ranges> },
    /// Takes the checksum of a result whose only copy is about to be dropped.
    Look { step: usize, storage: StorageId, at: Ranges },
    /// Copies between a tier and the device: host address, device address, bytes.
    Copy { tier: usize, parts: Vec<(Bytes, Bytes, Bytes)> },
}

/// A task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// What has to come to pass before it starts, beside the tasks of its stream before it.
    pub after: Upto,
    /// It may start so long after so many kernels have ended: a copy that answers a fault.
    pub fault: (u32, Nanos),
    /// What it does.
    pub work: Work,
}

/// Where something is when all steps have run, or before the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What.
    pub storage: StorageId,
    /// `None` is the device.
    pub tier: Option<usize>,
    /// Its bytes.
    pub at: Ranges,
}

/// A plan, ready to run.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// By [`Stream`].
    pub(super) tasks: [Vec<Task>; 3],
    pub(super) steps: usize,
    pub(super) first: Vec<Place>,
    pub(super) last: Vec<Place>,
    pub(super) device: Bytes,
    pub(super) tiers: Vec<Bytes>,
    pub(super) parts: [usize; 2],
}

impl Program {
    /// Unrolls `plan` over `steps` training steps. That the plan is correct is for [`tensortier_planner::check`] to say.
    ///
    /// # Errors
    /// [`SimError`]: what is not there, or does not fit.
    pub fn new(graph: &Graph, machine: &Machine, plan: &Plan, steps: usize) -> Result<Self, SimError> {
        let (report, spans) = sim::timeline(graph, machine, plan)?;
        let mut maker = Maker::new(graph, machine, plan, spans, report.step_ns);
        maker.begin()?;
        for step in 0..steps {
            for at in 0..plan.steps.len() {
                maker.step(step, at)?;
            }
            maker.end(step, step + 1 == steps);
        }
        Ok(maker.finish(steps))
    }

    /// Training steps.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Bytes of device memory that it uses.
    pub fn device_bytes(&self) -> Bytes {
        self.device
    }

    /// Bytes of each tier that it uses.
    pub fn tier_bytes(&self) -> &[Bytes] {
        &self.tiers
    }

    /// Copies in and out, and the parts that they are made of.
    pub fn copies_and_parts(&self) -> (usize, usize) {
        (self.parts[0], self.parts[1])
    }
}

/// The pieces that lie together on both sides: host address, device address, bytes.
pub(super) fn parts(host: &Ranges, device: &Ranges) -> Vec<(Bytes, Bytes, Bytes)> {
    let mut parts = Vec::new();
    let (mut from, mut to) = (host.iter().copied(), device.iter().copied());
    let (mut a, mut b) = (from.next(), to.next());
    while let (Some((host, left)), Some((device, room))) = (a, b) {
        let bytes = left.min(room);
        if bytes > 0 {
            parts.push((host, device, bytes));
        }
        a = if bytes == left { from.next() } else { Some((host + bytes, left - bytes)) };
        b = if bytes == room { to.next() } else { Some((device + bytes, room - bytes)) };
    }
    parts
}
