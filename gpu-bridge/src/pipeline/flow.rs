//! The scheduler: cuts copies into chunks and keeps threads, rings and engines at work.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tensortier_model::{Bytes, Clock, Nanos};

use super::{
    device::{Copy, Device, Direction, Done, Op, Work},
    kernel::Kernel,
    lane::Lane,
    tune::{Limits, Settings, Tuning},
};

/// Operations that wait at an engine: one runs, one follows it without a gap.
const ENGINE_QUEUE: usize = 2;
/// Bytes of one direct operation: the fixed cost is then a small share, and other streams wait for little.
const DIRECT_CHUNK: Bytes = 32 << 20;
/// Copies of one stream that are in the pipeline at once.
const AHEAD: usize = 8;

/// Stream of kernels in [`Completion`]; none of a copy's.
pub const KERNELS: u64 = u64::MAX;

/// Names a copy or a kernel; they count up.
pub type CopyId = u64;

/// A copy or a kernel that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which.
    pub id: CopyId,
    /// Its stream.
    pub stream: u64,
    /// When it was submitted.
    pub submitted: Nanos,
    /// When it was over.
    pub ended: Nanos,
}

#[derive(Debug)]
struct Progress {
    copy: Copy,
    submitted: Nanos,
    /// Bytes that chunks have been cut of.
    cut: Bytes,
    /// Bytes that have been given to the engine.
    issued: Bytes,
    /// Bytes that have arrived.
    arrived: Bytes,
}

impl Progress {
    fn is_over(&self) -> bool {
        self.arrived == self.copy.bytes
    }
}

/// A part of a copy on its way.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    copy: CopyId,
    offset: Bytes,
    bytes: Bytes,
    ring: Option<Bytes>,
    /// When it was filled (H2D) or had landed in the ring (D2H).
    ready: Nanos,
}

/// The pipeline of one GPU. Not to be shared between threads: one thread drives it.
#[derive(Debug)]
pub struct Pipeline<C, D> {
    clock: C,
    device: D,
    limits: Limits,
    lanes: [Lane; 2],
    streams: BTreeMap<u64, VecDeque<CopyId>>,
    copies: BTreeMap<CopyId, Progress>,
    /// Operations under way; of those by threads, with what [`Lane::thread`] said.
    flying: BTreeMap<u64, (Work, Chunk, Nanos)>,
    /// Chunks between their two operations, by (copy, offset).
    halfway: [BTreeMap<(CopyId, Bytes), Chunk>; 2],
    completions: VecDeque<Completion>,
    /// Kernels that run, and when they were submitted.
    kernels: BTreeMap<u64, Nanos>,
    next: u64,
}

impl<C: Clock, D: Device> Pipeline<C, D> {
    /// A pipeline whose two rings have `limits.ring` bytes each.
    pub fn new(clock: C, device: D, limits: Limits, tuning: Tuning) -> Self {
        let lanes = [Lane::new(limits, tuning), Lane::new(limits, tuning)];
        let (streams, copies, flying, halfway, completions, kernels) = Default::default();
        Self { clock, device, limits, lanes, streams, copies, flying, halfway, completions, kernels, next: 0 }
    }

    /// Takes a copy in. It runs while the caller waits for this copy or another.
    pub fn submit(&mut self, copy: Copy) -> CopyId {
        let id = self.fresh();
        let submitted = self.clock.now();
        self.copies.insert(id, Progress { copy, submitted, cut: 0, issued: 0, arrived: 0 });
        self.streams.entry(copy.stream).or_default().push_back(id);
        self.lanes[copy.direction as usize].enter();
        self.retire(copy.stream);
        self.pump();
        id
    }

    /// Runs a kernel after those launched before. Copies that it needs must have ended, and those that need it must not
    /// have been submitted.
    pub fn launch(&mut self, kernel: Kernel) -> CopyId {
        let id = self.fresh();
        self.kernels.insert(id, self.clock.now());
        self.device.launch(id, kernel);
        id
    }

    /// Drives the pipeline until the copy is over; at once where it is already.
    pub fn wait(&mut self, id: CopyId) {
        while self.copies.contains_key(&id) && self.step(None) {}
    }

    /// Drives the pipeline until every copy is over.
    pub fn wait_all(&mut self) {
        while self.step(None) {}
    }

    /// Drives the pipeline until `at`, as while the job computes.
    pub fn run_until(&mut self, at: Nanos) {
        while self.step(Some(at)) {}
    }

    /// Waits for one operation, until `until` at most, and starts what it makes possible; false where that time has
    /// come, or without it, where none is under way.
    pub fn step(&mut self, until: Option<Nanos>) -> bool {
        let Some(done) = self.device.next(until) else { return false };
        self.finish(done);
        self.pump();
        true
    }

    /// The next copy or kernel that has ended.
    pub fn completed(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// What a copy like this one would run with now.
    pub fn settings(&mut self, copy: &Copy) -> Settings {
        self.lanes[copy.direction as usize].settings(copy)
    }

    /// The time of its clock.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// The device.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Starts all that can start.
    fn pump(&mut self) {
        loop {
            let open = self.open();
            let mut started = false;
            for direction in [Direction::H2d, Direction::D2h] {
                started |= self.engine(direction, &open);
                started |= self.threads(direction, &open);
            }
            if !started {
                return;
            }
        }
    }

    /// The copies that may be worked on, in order of submission.
    fn open(&self) -> BTreeSet<CopyId> {
        let mut open = BTreeSet::new();
        for stream in self.streams.values() {
            let mut before: Vec<&Copy> = Vec::new();
            for id in stream.iter().take(AHEAD) {
                let copy = &self.copies[id].copy;
                if before.iter().any(|earlier| conflict(earlier, copy)) {
                    break;
                }
                open.insert(*id);
                before.push(copy);
            }
        }
        open
    }

    /// Of each stream, its first open copy of `direction` that is not through, as `left` has it.
    fn heads(&self, direction: Direction, open: &BTreeSet<CopyId>, left: impl Fn(&Progress) -> bool) -> Vec<CopyId> {
        let mut streams = BTreeSet::new();
        let head = |id: &&CopyId| {
            let progress = &self.copies[id];
            progress.copy.direction == direction && left(progress) && streams.insert(progress.copy.stream)
        };
        open.iter().filter(head).copied().collect()
    }

    /// Of some copies the one with the least under way: streams share the pipeline.
    fn fairest(&self, ids: impl Iterator<Item = CopyId>) -> Option<CopyId> {
        ids.min_by_key(|id| (self.copies[id].cut - self.copies[id].arrived, *id))
    }

    /// Gives the engine its next operation.
    fn engine(&mut self, direction: Direction, open: &BTreeSet<CopyId>) -> bool {
        let lane = direction as usize;
        if self.lanes[lane].engine >= ENGINE_QUEUE {
            return false;
        }
        let turns = self.heads(direction, open, |p| p.issued < p.copy.bytes);
        let Some(chunk) = self.filled(&turns).or_else(|| self.unfilled(direction, &turns)) else { return false };
        let Some(progress) = self.copies.get_mut(&chunk.copy) else { return false };
        progress.issued += chunk.bytes;
        let Copy { host, device, node, .. } = progress.copy;
        let (host, device) = (host + chunk.offset, device + chunk.offset);
        let work = match chunk.ring {
            Some(ring) => Work::Staged { direction, ring, device },
            None => Work::Direct { direction, host, device, node },
        };
        self.lanes[lane].engine += 1;
        self.start(work, chunk, 0);
        true
    }

    /// The first filled chunk of a copy whose turn at the engine it is.
    fn filled(&mut self, turns: &[CopyId]) -> Option<Chunk> {
        let ready = self.halfway[0].values().filter(|chunk| turns.contains(&chunk.copy));
        let first = ready.min_by_key(|chunk| (chunk.ready, chunk.copy, chunk.offset)).copied()?;
        self.halfway[0].remove(&(first.copy, first.offset))
    }

    /// A chunk that needs no filling: of registered memory, or from the device.
    fn unfilled(&mut self, direction: Direction, turns: &[CopyId]) -> Option<Chunk> {
        let ready = |id: &CopyId| direction == Direction::D2h || self.copies[id].copy.registered;
        let mut turns: Vec<_> = turns.iter().copied().filter(ready).collect();
        while let Some(id) = self.fairest(turns.iter().copied()) {
            if self.copies[&id].copy.registered {
                return Some(self.cut(id, DIRECT_CHUNK, None));
            }
            if let Some(chunk) = self.cut_staged(id) {
                return Some(chunk);
            }
            turns.retain(|turn| *turn != id);
        }
        None
    }

    /// Gives a copy thread its next operation.
    fn threads(&mut self, direction: Direction, open: &BTreeSet<CopyId>) -> bool {
        let lane = direction as usize;
        let busy: u32 = self.lanes.iter().map(|lane| lane.threads).sum();
        if busy >= self.limits.threads.max(1) {
            return false;
        }
        let next = match direction {
            Direction::H2d => self.unread(open),
            Direction::D2h => self.landed(),
        };
        let Some(chunk) = next else { return false };
        let Copy { host, node, .. } = self.copies[&chunk.copy].copy;
        let (host, ring) = (host + chunk.offset, chunk.ring.unwrap_or(0));
        let work = match direction {
            Direction::H2d => Work::Fill { host, ring, node },
            Direction::D2h => Work::Drain { ring, host, node },
        };
        let before = self.lanes[lane].thread(node, self.clock.now());
        self.start(work, chunk, before);
        true
    }

    /// The next chunk to fill, of the copy with the least under way whose node may have another thread.
    fn unread(&mut self, open: &BTreeSet<CopyId>) -> Option<Chunk> {
        let mut heads = self.heads(Direction::H2d, open, |p| p.cut < p.copy.bytes && !p.copy.registered);
        while let Some(id) = self.fairest(heads.iter().copied()) {
            let copy = self.copies[&id].copy;
            if self.lanes[0].has_thread(&copy)
                && let Some(chunk) = self.cut_staged(id)
            {
                return Some(chunk);
            }
            heads.retain(|head| *head != id);
        }
        None
    }

    /// The next chunk to drain, of those whose node may have another thread.
    fn landed(&mut self) -> Option<Chunk> {
        let (copies, lane) = (&self.copies, &mut self.lanes[1]);
        let (&first, _) = self.halfway[1].iter().find(|(_, chunk)| lane.has_thread(&copies[&chunk.copy].copy))?;
        self.halfway[1].remove(&first)
    }

    /// The next chunk of a staged copy, with room for it in the ring; `None` where the ring has none.
    fn cut_staged(&mut self, id: CopyId) -> Option<Chunk> {
        let Progress { copy, cut, .. } = self.copies[&id];
        let (bytes, ring) = self.lanes[copy.direction as usize].room(&copy, cut)?;
        Some(self.cut(id, bytes, Some(ring)))
    }

    fn cut(&mut self, id: CopyId, bytes: Bytes, ring: Option<Bytes>) -> Chunk {
        let mut chunk = Chunk { copy: id, offset: 0, bytes, ring, ready: 0 };
        if let Some(progress) = self.copies.get_mut(&id) {
            chunk.offset = progress.cut;
            chunk.bytes = bytes.min(progress.copy.bytes - progress.cut);
            progress.cut += chunk.bytes;
        }
        chunk
    }

    fn start(&mut self, work: Work, chunk: Chunk, before: Nanos) {
        let id = self.fresh();
        self.flying.insert(id, (work, chunk, before));
        self.device.start(Op { id, work, bytes: chunk.bytes });
    }

    fn finish(&mut self, done: Done) {
        if let Some(submitted) = self.kernels.remove(&done.id) {
            self.completions.push_back(Completion { id: done.id, stream: KERNELS, submitted, ended: done.ended });
        }
        let Some((work, mut chunk, before)) = self.flying.remove(&done.id) else { return };
        match work {
            Work::Fill { node, .. } => {
                self.lanes[0].threaded(node, before, chunk.bytes, done);
                chunk.ready = done.ended;
                self.halfway[0].insert((chunk.copy, chunk.offset), chunk);
            }
            Work::Drain { node, .. } => {
                self.lanes[1].threaded(node, before, chunk.bytes, done);
                self.arrive(1, chunk);
            }
            Work::Staged { direction, .. } => {
                let waited = done.began.saturating_sub(chunk.ready);
                let lane = direction as usize;
                self.lanes[lane].staged(chunk.bytes, done, waited);
                if direction == Direction::H2d {
                    self.arrive(lane, chunk);
                } else {
                    chunk.ready = done.ended;
                    self.halfway[1].insert((chunk.copy, chunk.offset), chunk);
                }
            }
            Work::Direct { direction, .. } => {
                self.lanes[direction as usize].direct(done);
                self.arrive(direction as usize, chunk);
            }
        }
    }

    fn arrive(&mut self, lane: usize, chunk: Chunk) {
        let Some(progress) = self.copies.get_mut(&chunk.copy) else { return };
        if let Some(ring) = chunk.ring {
            self.lanes[lane].give_back(progress.copy.node, ring, chunk.bytes);
        }
        progress.arrived += chunk.bytes;
        let stream = progress.copy.stream;
        if progress.is_over() {
            self.retire(stream);
        }
    }

    /// Reports the copies at a stream's head that are over.
    fn retire(&mut self, stream: u64) {
        let now = self.clock.now();
        while let Some(queue) = self.streams.get_mut(&stream) {
            let Some(id) = queue.front().copied() else {
                self.streams.remove(&stream);
                return;
            };
            if !self.copies[&id].is_over() {
                return;
            }
            queue.pop_front();
            if let Some(Progress { copy, submitted, .. }) = self.copies.remove(&id) {
                self.lanes[copy.direction as usize].leave();
                self.completions.push_back(Completion { id, stream, submitted, ended: now });
            }
        }
    }
}

/// Whether `later` has to wait for `earlier` of the same stream: it turns the direction, or writes what is still being
/// written.
fn conflict(earlier: &Copy, later: &Copy) -> bool {
    let meet = earlier.host < later.host + later.bytes && later.host < earlier.host + earlier.bytes;
    earlier.direction != later.direction || later.direction == Direction::D2h && meet
}
