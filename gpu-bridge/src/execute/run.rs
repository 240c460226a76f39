//! Runs a program: keeps the three streams of a device at work, and holds each checksum against the in-core run.
//!
//! A task is handed to the device as soon as what it waits for in other streams has ended; those before it in its own
//! stream may still run. A copy of unregistered memory is staged, which the pipeline overlaps with the next one; the
//! plan's streams carry one copy at a time, so such a copy and the one after it wait for each other.

use std::collections::{BTreeMap, VecDeque};

use tensortier_model::{Bytes, Clock, Nanos};
use tensortier_planner::graph::{Graph, OpId, StorageId};

use super::{
    ExecuteError,
    arena::Upto,
    in_core::{self, InCore},
    program::{Place, Program, Stream, Task, Work, parts},
};
use crate::pipeline::{
    Copy, CopyId, Device, Direction, Pipeline,
    kernel::{Kernel, Ranges},
};

/// Host memory of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierRoom {
    /// Where it begins; it has [`Program::tier_bytes`] at least.
    pub address: u64,
    /// Its node.
    pub node: u32,
    /// Whether the driver knows it; other memory is staged.
    pub registered: bool,
}

/// The memory that a program runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Address of device memory of [`Program::device_bytes`] at least.
    pub device: u64,
    /// Of each tier of the machine.
    pub tiers: Vec<TierRoom>,
}

/// A storage that did not hold what it does in core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Training step.
    pub step: usize,
    /// Who read it; `None` at the step's end.
    pub op: Option<OpId>,
    /// What.
    pub storage: StorageId,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// When the last operator of each step ended, since the first task could start.
    pub ends: Vec<Nanos>,
    /// Checksums compared.
    pub checked: usize,
    /// Those that differ, all of them.
    pub wrong: Vec<Wrong>,
    /// Copies made, in any number of parts.
    pub copies: usize,
    /// Bytes copied in and out.
    pub moved: [Bytes; 2],
}

impl Outcome {
    /// Time from the end of each step to that of the next.
    pub fn periods(&self) -> Vec<Nanos> {
        self.ends.windows(2).map(|ends| ends[1] - ends[0]).collect()
    }
}

/// Runs `program`, made of `graph`, in `room`; `expected` has as many steps at least. Nothing else may use the pipeline.
///
/// # Errors
/// The device runs no kernels, or stops before the end.
///
/// # Panics
/// If `room` has fewer tiers, or `expected` fewer steps or other operators, than the program.
pub fn run<C: Clock, D: Device>(
    pipeline: &mut Pipeline<C, D>,
    graph: &Graph,
    program: &Program,
    room: &Room,
    expected: &InCore,
) -> Result<Outcome, ExecuteError> {
    let mut runner = Runner {
        pipeline,
        graph,
        program,
        room,
        expected,
        started: [0; 3],
        done: Upto::default(),
        flying: Default::default(),
        owners: BTreeMap::new(),
        kernels: Vec::new(),
        outcome: Outcome { ends: vec![0; program.steps], ..Outcome::default() },
    };
    runner.fill()?;
    runner.all()?;
    runner.look()?;
    Ok(runner.outcome)
}

struct Runner<'a, C, D> {
    pipeline: &'a mut Pipeline<C, D>,
    graph: &'a Graph,
    program: &'a Program,
    room: &'a Room,
    expected: &'a InCore,
    /// Tasks of each stream handed to the device.
    started: [usize; 3],
    done: Upto,
    /// Of each task handed out and not over, the parts that are not.
    flying: [VecDeque<usize>; 3],
    /// Whose part an operation of the pipeline is.
    owners: BTreeMap<CopyId, Stream>,
    /// When each kernel ended.
    kernels: Vec<Nanos>,
    outcome: Outcome,
}

const STREAMS: [Stream; 3] = [Stream::Compute, Stream::In, Stream::Out];

impl<'a, C: Clock, D: Device> Runner<'a, C, D> {
    /// Puts what the plan begins with into its places; what is on the host is made on the device, too.
    fn fill(&mut self) -> Result<(), ExecuteError> {
        let (on_host, on_device): (Vec<&Place>, Vec<_>) =
            self.program.first.iter().partition(|place| place.tier.is_some());
        for place in on_host {
            let scratch = self.scratch(place)?;
            let whole = vec![self.absolute(&scratch)];
            self.kernel(Kernel { writes: whole, ..in_core::first(place.storage) })?;
            self.copy_place(place, &scratch, Stream::Out);
        }
        for place in on_device {
            self.kernel(Kernel { writes: vec![self.absolute(&place.at)], ..in_core::first(place.storage) })?;
        }
        Ok(())
    }

    /// Runs all tasks.
    fn all(&mut self) -> Result<(), ExecuteError> {
        let began = self.pipeline.now();
        loop {
            let wake = self.start();
            if STREAMS.iter().all(|&s| self.done.0[s as usize] as usize == self.program.tasks[s as usize].len()) {
                break;
            }
            if !self.pipeline.step(wake) && wake.is_none() {
                let step = self.outcome.ends.iter().take_while(|end| **end > 0).count();
                return Err(ExecuteError::Device { what: "the next task", step, why: "nothing is under way" });
            }
            while let Some(completion) = self.pipeline.completed() {
                if let Some(stream) = self.owners.remove(&completion.id) {
                    self.finish(stream, completion.id, completion.ended)?;
                }
            }
        }
        self.outcome.ends.iter_mut().for_each(|end| *end = end.saturating_sub(began));
        Ok(())
    }

    /// Takes the checksums of what is there after the last step.
    fn look(&mut self) -> Result<(), ExecuteError> {
        let step = self.program.steps.saturating_sub(1);
        let (on_host, on_device): (Vec<&Place>, Vec<_>) =
            self.program.last.iter().partition(|place| place.tier.is_some());
        for place in on_device {
            let sums = self.kernel(Kernel { reads: vec![self.absolute(&place.at)], ..Kernel::default() })?;
            self.compare(step, None, &[place.storage], &sums);
        }
        for place in on_host {
            let scratch = self.scratch(place)?;
            self.copy_place(place, &scratch, Stream::In);
            let sums = self.kernel(Kernel { reads: vec![self.absolute(&scratch)], ..Kernel::default() })?;
            self.compare(step, None, &[place.storage], &sums);
        }
        Ok(())
    }

    /// Hands out what may start. When something else may, where that is a matter of time.
    fn start(&mut self) -> Option<Nanos> {
        let program = self.program;
        loop {
            let (mut any, mut wake) = (false, None::<Nanos>);
            for stream in STREAMS {
                while let Some(task) = program.tasks[stream as usize].get(self.started[stream as usize]) {
                    if !task.after.is_in(self.done) || self.must_wait(stream, task) {
                        break;
                    }
                    let (kernels, delay) = task.fault;
                    let ended = kernels.checked_sub(1).map_or(0, |last| self.kernels[last as usize] + delay);
                    if delay > 0 && ended > self.pipeline.now() {
                        wake = Some(wake.map_or(ended, |wake| wake.min(ended)));
                        break;
                    }
                    self.hand_out(stream, task);
                    any = true;
                }
            }
            if !any {
                return wake;
            }
        }
    }

    /// Whether a copy or the one before it is staged.
    fn must_wait(&self, stream: Stream, task: &Task) -> bool {
        let staged = |task: &Task| match task.work {
            Work::Copy { tier, .. } => !self.room.tiers[tier].registered,
            _ => false,
        };
        let started = self.started[stream as usize];
        let before = started.checked_sub(1).map(|before| &self.program.tasks[stream as usize][before]);
        !self.flying[stream as usize].is_empty() && (staged(task) || before.is_some_and(staged))
    }

    fn hand_out(&mut self, stream: Stream, task: &'a Task) {
        self.started[stream as usize] += 1;
        let count = match &task.work {
            Work::Run { op, reads, writes, .. } => {
                let absolute = |all: &Vec<Ranges>| all.iter().map(|ranges| self.absolute(ranges)).collect();
                let (reads, writes) = (absolute(reads), absolute(writes));
                let id =
                    self.pipeline.launch(Kernel { seed: *op as u64, time: self.graph.ops[*op].time, reads, writes });
                self.owners.insert(id, stream);
                1
            }
            Work::Look { at, .. } => {
                let reads = vec![self.absolute(at)];
                let id = self.pipeline.launch(Kernel { reads, ..Kernel::default() });
                self.owners.insert(id, stream);
                1
            }
            Work::Copy { tier, parts } => {
                self.outcome.copies += 1;
                let way = usize::from(stream == Stream::Out);
                self.outcome.moved[way] += parts.iter().map(|part| part.2).sum::<Bytes>();
                for id in self.submit(*tier, parts, stream) {
                    self.owners.insert(id, stream);
                }
                parts.len()
            }
        };
        self.flying[stream as usize].push_back(count);
        self.over(stream);
    }

    /// A part of a stream's oldest task is over.
    fn finish(&mut self, stream: Stream, id: CopyId, ended: Nanos) -> Result<(), ExecuteError> {
        let program = self.program;
        if stream == Stream::Compute {
            self.kernels.push(ended);
            match &program.tasks[0][self.done.0[0] as usize].work {
                Work::Run { step, op, .. } => {
                    let sums = self.sums(id, *step)?;
                    self.outcome.ends[*step] = ended;
                    self.compare(*step, Some(*op), &self.graph.ops[*op].reads, &sums);
                }
                Work::Look { step, storage, .. } => {
                    let sums = self.sums(id, *step)?;
                    self.compare(*step, None, &[*storage], &sums);
                }
                Work::Copy { .. } => {}
            }
        }
        if let Some(left) = self.flying[stream as usize].front_mut() {
            *left -= 1;
        }
        self.over(stream);
        Ok(())
    }

    /// Counts the tasks that are over. Parts of a stream end in order.
    fn over(&mut self, stream: Stream) {
        let flying = &mut self.flying[stream as usize];
        while flying.pop_front_if(|left| *left == 0).is_some() {
            self.done.0[stream as usize] += 1;
        }
    }

    fn compare(&mut self, step: usize, op: Option<OpId>, storages: &[StorageId], sums: &[u64]) {
        for (k, (&storage, &sum)) in storages.iter().zip(sums).enumerate() {
            let expected = match op {
                Some(op) => Some(self.expected.reads(step, op)[k]),
                None => self.expected.end(step, storage),
            };
            self.outcome.checked += 1;
            if expected != Some(sum) {
                self.outcome.wrong.push(Wrong { step, op, storage });
            }
        }
    }

    fn sums(&mut self, id: CopyId, step: usize) -> Result<Vec<u64>, ExecuteError> {
        let why = "the device has no kernels or refused this one";
        self.pipeline.device().sums(id).ok_or(ExecuteError::Device { what: "a kernel", step, why })
    }

    /// Runs a kernel by itself.
    fn kernel(&mut self, kernel: Kernel) -> Result<Vec<u64>, ExecuteError> {
        let id = self.pipeline.launch(kernel);
        self.pipeline.wait_all();
        while self.pipeline.completed().is_some() {}
        self.sums(id, 0)
    }

    /// Copies a place on the host from or to the scratch by itself.
    fn copy_place(&mut self, place: &Place, scratch: &Ranges, stream: Stream) {
        if let Some(tier) = place.tier {
            self.submit(tier, &parts(&place.at, scratch), stream);
            self.pipeline.wait_all();
            while self.pipeline.completed().is_some() {}
        }
    }

    fn submit(&mut self, tier: usize, parts: &[(Bytes, Bytes, Bytes)], stream: Stream) -> Vec<CopyId> {
        let TierRoom { address, node, registered } = self.room.tiers[tier];
        let direction = if stream == Stream::In { Direction::H2d } else { Direction::D2h };
        let copy = |&(host, device, bytes): &(Bytes, Bytes, Bytes)| Copy {
            stream: stream as u64,
            direction,
            host: address + host,
            device: self.room.device + device,
            bytes,
            node,
            registered,
        };
        parts.iter().map(copy).map(|copy| self.pipeline.submit(copy)).collect()
    }

    /// The beginning of the device's memory, while nothing else is there.
    fn scratch(&self, place: &Place) -> Result<Ranges, ExecuteError> {
        let bytes = place.at.iter().map(|range| range.1).sum();
        let (storage, device) = (place.storage, self.program.device_bytes());
        if bytes > device { Err(ExecuteError::TooLarge { storage, bytes, device }) } else { Ok(vec![(0, bytes)]) }
    }

    fn absolute(&self, ranges: &Ranges) -> Ranges {
        ranges.iter().map(|&(at, bytes)| (self.room.device + at, bytes)).collect()
    }
}
