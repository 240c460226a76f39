//! Unrolls a plan: the state of device and host memory in issue order, and the task that each step becomes.

use tensortier_model::{Bytes, Machine, Nanos};
use tensortier_planner::{
    graph::{Graph, OpId, StorageId, StorageKind},
    plan::{Plan, Step},
    sim::{SimError, Span},
};

use super::{
    arena::{Arena, Upto},
    program::{Place, Program, Stream, Task, Work, parts},
};
use crate::pipeline::kernel::Ranges;

/// A copy on the device.
#[derive(Clone, Debug)]
struct OnDevice {
    at: Ranges,
    /// What it takes: of a pool, a slot.
    block: Ranges,
    ready: Upto,
    used: Upto,
    copied: Upto,
    /// Who wrote it last in this step.
    writer: Option<OpId>,
}

/// A copy on the host.
#[derive(Clone, Debug)]
struct OnHost {
    tier: usize,
    at: Ranges,
    ready: Upto,
    busy: Upto,
    busy_time: Nanos,
    writer: Option<OpId>,
}

/// State of the memory while the plan is unrolled.
pub(super) struct Maker<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    plan: &'a Plan,
    spans: Vec<Span>,
    period: Nanos,
    arenas: Vec<Arena>,
    rooms: Vec<Arena>,
    device: Vec<Option<OnDevice>>,
    host: Vec<Option<OnHost>>,
    last_named: Vec<usize>,
    last_writer: Vec<Option<OpId>>,
    /// Kernels before the last fault, and its cost.
    fault: (u32, Nanos),
    half_duplex: Vec<Upto>,
    program: Program,
}

impl<'a> Maker<'a> {
    pub(super) fn new(graph: &'a Graph, machine: &'a Machine, plan: &'a Plan, spans: Vec<Span>, period: Nanos) -> Self {
        let arenas = match &plan.pools {
            None => vec![Arena::new(0, machine.hbm)],
            Some(pools) => {
                let mut base = 0;
                let class = |(&size, &count): (&Bytes, &u32)| {
                    let bytes = size * Bytes::from(count);
                    base += bytes;
                    Arena::new(base - bytes, bytes)
                };
                pools.sizes.iter().zip(&pools.counts).map(class).collect()
            }
        };
        let mut last_writer = vec![None; graph.storages.len()];
        for (id, op) in graph.ops.iter().enumerate() {
            op.writes.iter().for_each(|&s| last_writer[s] = Some(id));
        }
        let mut last_named = vec![0; graph.storages.len()];
        for (at, step) in plan.steps.iter().enumerate() {
            match *step {
                Step::Run(op) => graph.ops[op].touches.iter().for_each(|&s| last_named[s] = at),
                Step::CopyOut { storage: s, .. } | Step::CopyIn(s) | Step::Drop(s) => last_named[s] = at,
                Step::Fault(_) => {}
            }
        }
        let tiers = &machine.tiers;
        Self {
            graph,
            machine,
            plan,
            spans,
            period,
            arenas,
            rooms: tiers.iter().map(|tier| Arena::new(0, tier.capacity)).collect(),
            device: vec![None; graph.storages.len()],
            host: vec![None; graph.storages.len()],
            last_named,
            last_writer,
            fault: Default::default(),
            half_duplex: vec![Upto::default(); tiers.len()],
            program: Program::default(),
        }
    }

    /// When the simulation expects a step of the plan to start and to end; beyond what it ran, as in its last period.
    fn span(&self, step: usize, at: usize) -> (Nanos, Nanos) {
        let count = self.plan.steps.len();
        let simulated = self.spans.len() / count;
        let beyond = (step + 1).saturating_sub(simulated);
        let Span { start, end, .. } = self.spans[(step - beyond) * count + at];
        let later = beyond as Nanos * self.period;
        (start + later, end + later)
    }

    pub(super) fn begin(&mut self) -> Result<(), SimError> {
        for &(s, tier) in &self.plan.home {
            if self.host[s].is_some() {
                continue;
            }
            let (at, ready) = self.room(0, s, tier, 0)?;
            self.program.first.push(Place { storage: s, tier: Some(tier), at: at.clone() });
            self.host[s] = Some(OnHost { tier, at, ready, busy: ready, busy_time: 0, writer: None });
        }
        for &s in &self.plan.initial {
            let (on, _) = self.take(0, s, 0)?;
            self.program.first.push(Place { storage: s, tier: None, at: on.at.clone() });
            self.device[s] = Some(on);
        }
        Ok(())
    }

    pub(super) fn step(&mut self, step: usize, at: usize) -> Result<(), SimError> {
        let (start, end) = self.span(step, at);
        match self.plan.steps[at] {
            Step::Run(op) => self.run(step, at, op, start),
            Step::CopyOut { storage, tier } => self.copy_out(at, storage, tier, (start, end)),
            Step::CopyIn(storage) => self.copy_in(at, storage, (start, end)),
            Step::Drop(storage) => self.drop(step, at, storage, end),
            Step::Fault(ns) => {
                self.fault = (self.upto(Stream::Compute).0[Stream::Compute as usize], ns);
                Ok(())
            }
        }
    }

    fn run(&mut self, step: usize, at: usize, op: OpId, start: Nanos) -> Result<(), SimError> {
        let of = &self.graph.ops[op];
        if of.touches.is_empty() && of.time == 0 {
            return Ok(());
        }
        let mut after = Upto::default();
        for &s in &of.reads {
            let on = self.device[s].as_ref().ok_or(SimError::Absent { step: at, storage: s })?;
            after = after.and(on.ready);
        }
        for &s in &of.writes {
            if let Some(on) = &self.device[s] {
                after = after.and(on.ready).and(on.copied);
                continue;
            }
            let (on, free) = self.take(at, s, start)?;
            after = after.and(free);
            self.device[s] = Some(on);
        }
        let ranges = |s: &StorageId| self.device[*s].as_ref().map(|on| on.at.clone()).unwrap_or_default();
        let (reads, writes) = (of.reads.iter().map(ranges).collect(), of.writes.iter().map(ranges).collect());
        self.push(Stream::Compute, after, (0, 0), Work::Run { step, op, reads, writes });
        let now = self.upto(Stream::Compute);
        for &s in &of.touches {
            if let Some(on) = &mut self.device[s] {
                on.used = on.used.and(now);
            }
        }
        for &s in &of.writes {
            if let Some(on) = &mut self.device[s] {
                (on.ready, on.writer) = (on.ready.and(now), Some(op));
            }
        }
        Ok(())
    }

    fn copy_out(&mut self, at: usize, s: StorageId, tier: usize, span: (Nanos, Nanos)) -> Result<(), SimError> {
        let on = self.device[s].clone().ok_or(SimError::Absent { step: at, storage: s })?;
        if self.host[s].as_ref().is_some_and(|host| host.tier != tier) {
            self.forget(s, 0);
        }
        let (ranges, free, busy_before) = match self.host[s].take() {
            Some(host) => (host.at, host.busy, host.busy_time),
            None => {
                let (ranges, free) = self.room(at, s, tier, span.0)?;
                (ranges, free, 0)
            }
        };
        let now = self.copy(Stream::Out, tier, free.and(on.ready), &ranges, &on.at);
        if let Some(on) = &mut self.device[s] {
            (on.copied, on.used) = (on.copied.and(now), on.used.and(now));
        }
        let busy_time = busy_before.max(span.1);
        let busy = free.and(now);
        self.host[s] = Some(OnHost { tier, at: ranges, ready: now, busy, busy_time, writer: on.writer });
        Ok(())
    }

    fn copy_in(&mut self, at: usize, s: StorageId, span: (Nanos, Nanos)) -> Result<(), SimError> {
        if self.device[s].is_some() {
            return Err(SimError::Present { step: at, storage: s });
        }
        let host = self.host[s].clone().ok_or(SimError::NoHostCopy { step: at, storage: s })?;
        let (on, free) = self.take(at, s, span.0)?;
        let now = self.copy(Stream::In, host.tier, free.and(host.ready), &host.at, &on.at);
        if let Some(host) = &mut self.host[s] {
            (host.busy, host.busy_time) = (host.busy.and(now), host.busy_time.max(span.1));
        }
        self.device[s] = Some(OnDevice { ready: now, used: now, writer: host.writer, ..on });
        Ok(())
    }

    fn drop(&mut self, step: usize, at: usize, s: StorageId, end: Nanos) -> Result<(), SimError> {
        let mut on = self.device[s].take().ok_or(SimError::Absent { step: at, storage: s })?;
        let kind = self.graph.storages[s].kind;
        let saved = self.host[s].as_ref().is_some_and(|host| host.writer == on.writer);
        if kind == StorageKind::Output && on.writer == self.last_writer[s] && !saved {
            self.push(Stream::Compute, on.ready, (0, 0), Work::Look { step, storage: s, at: on.at.clone() });
            on.used = on.used.and(self.upto(Stream::Compute));
        }
        let pool = self.pool(s);
        self.arenas[pool].give(&on.block, end, on.used);
        if self.last_named[s] == at && kind == StorageKind::Temporary {
            self.forget(s, end);
        }
        Ok(())
    }

    /// The end of a step: what it made is given up, but for the last step, after which it is looked at.
    pub(super) fn end(&mut self, step: usize, is_last: bool) {
        let ran = |at: &usize| matches!(self.plan.steps[*at], Step::Run(_));
        let clock = (0..self.plan.steps.len()).rfind(ran).map_or(0, |at| self.span(step, at).1);
        for s in 0..self.host.len() {
            let persistent = self.graph.storages[s].kind.is_persistent();
            if is_last {
                self.leave(s, persistent);
            } else if !persistent {
                self.forget(s, clock);
            }
        }
    }

    /// Where a storage is after the last step.
    fn leave(&mut self, s: StorageId, persistent: bool) {
        let place = match (&self.device[s], &self.host[s]) {
            (Some(on), _) if persistent => Place { storage: s, tier: None, at: on.at.clone() },
            (_, Some(host)) if persistent || host.writer == self.last_writer[s] => {
                Place { storage: s, tier: Some(host.tier), at: host.at.clone() }
            }
            _ => return,
        };
        if persistent || self.graph.storages[s].kind == StorageKind::Output {
            self.program.last.push(place);
        }
    }

    pub(super) fn finish(mut self, steps: usize) -> Program {
        self.program.steps = steps;
        // What is on the host before and after passes through the device once.
        let bytes = |place: &Place| place.at.iter().map(|range| range.1).sum::<Bytes>();
        let largest = self.program.first.iter().chain(&self.program.last).map(bytes).max().unwrap_or(0);
        let used = self.arenas.iter().map(Arena::high).max().unwrap_or(0);
        self.program.device = used.max(largest.min(self.machine.hbm));
        self.program.tiers = self.rooms.iter().map(Arena::high).collect();
        self.program
    }

    fn pool(&self, s: StorageId) -> usize {
        self.plan.pools.as_ref().map_or(0, |pools| pools.class_of[s].into())
    }

    /// Device memory for a storage; of a pool, one slot, of which it uses the first bytes.
    fn take(&mut self, at: usize, s: StorageId, start: Nanos) -> Result<(OnDevice, Upto), SimError> {
        let (pool, bytes) = (self.pool(s), self.graph.storages[s].bytes);
        let slot = self.plan.pools.as_ref().map_or(bytes, |pools| pools.sizes[pool]);
        let full = SimError::HbmFull { step: at, need: slot, capacity: self.machine.hbm };
        if bytes > slot {
            return Err(full);
        }
        let (block, free) = self.arenas[pool].take(slot, start).ok_or(full)?;
        let mut left = bytes;
        let used = block.iter().map(|&(at, length)| {
            let part = length.min(left);
            left -= part;
            (at, part)
        });
        let at = used.filter(|(_, part)| *part > 0).collect();
        let none = Upto::default();
        Ok((OnDevice { at, block, ready: none, used: none, copied: none, writer: None }, free))
    }

    fn room(&mut self, at: usize, s: StorageId, tier: usize, start: Nanos) -> Result<(Ranges, Upto), SimError> {
        let taken = self.rooms[tier].take(self.graph.storages[s].bytes, start);
        taken.ok_or(SimError::TierFull { step: at, tier })
    }

    fn forget(&mut self, s: StorageId, time: Nanos) {
        if let Some(host) = self.host[s].take() {
            self.rooms[host.tier].give(&host.at, time.max(host.busy_time), host.busy);
        }
    }

    /// All tasks of a stream so far.
    fn upto(&self, stream: Stream) -> Upto {
        let mut upto = Upto::default();
        upto.0[stream as usize] = self.program.tasks[stream as usize].len() as u32;
        upto
    }

    fn copy(&mut self, stream: Stream, tier: usize, mut after: Upto, host: &Ranges, device: &Ranges) -> Upto {
        after.0[Stream::Compute as usize] = after.0[Stream::Compute as usize].max(self.fault.0);
        if self.machine.tiers[tier].profile.half_duplex {
            after = after.and(self.half_duplex[tier]);
        }
        let parts = parts(host, device);
        self.program.parts[0] += 1;
        self.program.parts[1] += parts.len();
        self.push(stream, after, self.fault, Work::Copy { tier, parts });
        let now = self.upto(stream);
        self.half_duplex[tier] = now;
        now
    }

    fn push(&mut self, stream: Stream, mut after: Upto, fault: (u32, Nanos), work: Work) {
        // Its stream keeps the order by itself.
        after.0[stream as usize] = 0;
        self.program.tasks[stream as usize].push(Task { after, fault, work });
    }
}
