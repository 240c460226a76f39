//! A host and a GPU in virtual time, at the speeds of tensortier-model's profiles.
//!
//! Each operation has a fixed part and then moves bytes at a rate that it shares: threads share cores and the tier they
//! touch, engines work one operation at a time. Rates change when an operation begins or ends. What is ours: the fixed
//! part of a thread's operation, and that threads of a tier share it equally. Staging memory is DRAM that is never the
//! bottleneck.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use tensortier_model::{Bytes, Clock, LinkProfile, Nanos, TierProfile, VirtualClock};

use super::{
    device::{Device, Direction, Done, Op, Work},
    kernel::{Kernel, Memory, Range},
};

/// The machine to model.
#[derive(Clone, Debug)]
pub struct VirtualHost {
    /// Link and engines.
    pub link: LinkProfile,
    /// Speed of each node's memory.
    pub tiers: BTreeMap<u32, TierProfile>,
    /// Bytes per second that one thread copies.
    pub thread: f64,
    /// Fixed cost of handing an operation to a thread.
    pub thread_ns: Nanos,
    /// Cores that threads run on.
    pub cores: u32,
    /// From a time on, the link's rate is this share of the profile's; in order of time.
    pub link_changes: Vec<(Nanos, f64)>,
}

/// Bytes of host, rings and device, where a test wants to see them; addresses are indices.
#[derive(Clone, Debug)]
pub struct Memories {
    /// Host memory.
    pub host: Vec<u8>,
    /// Device memory.
    pub device: Vec<u8>,
    rings: [Vec<u8>; 2],
}

#[derive(Clone, Copy, Debug)]
struct Running {
    op: Op,
    began: Nanos,
    /// Of the fixed part, nanoseconds.
    delay: f64,
    bytes: f64,
}

/// A kernel that runs or waits for its turn.
#[derive(Debug)]
struct Launched {
    id: u64,
    kernel: Kernel,
    began: Nanos,
    /// Nanoseconds to go.
    left: f64,
}

/// Copy threads, engines and processor of a [`VirtualHost`].
#[derive(Debug)]
pub struct VirtualDevice {
    host: VirtualHost,
    clock: Arc<VirtualClock>,
    /// Exact time; the clock has whole nanoseconds.
    now: f64,
    threads: Vec<Running>,
    /// By direction, first come first served.
    engines: [Vec<Running>; 2],
    /// First come first served.
    kernels: VecDeque<Launched>,
    sums: BTreeMap<u64, Vec<u64>>,
    memories: Option<Memories>,
    /// Time that both engines worked at once.
    pub both_busy: f64,
    /// Most thread operations at once.
    pub most_threads: usize,
}

impl VirtualDevice {
    /// A device that moves `clock`. With `memories` it moves bytes too; `ring` is the size of each ring then.
    pub fn new(host: VirtualHost, clock: Arc<VirtualClock>, memories: Option<(Memories, Bytes)>) -> Self {
        let memories = memories
            .map(|(memories, ring)| Memories { rings: [vec![0; ring as usize], vec![0; ring as usize]], ..memories });
        let (threads, kernels, sums) = Default::default();
        let (engines, now) = ([Vec::new(), Vec::new()], clock.now() as f64);
        Self { host, clock, now, threads, engines, kernels, sums, memories, both_busy: 0.0, most_threads: 0 }
    }

    /// The bytes, if it moves any.
    pub fn memories(&self) -> Option<&Memories> {
        self.memories.as_ref()
    }

    /// The link's rate now, as a share of the profile's.
    fn link_share(&self) -> f64 {
        let now = self.now;
        self.host.link_changes.iter().take_while(|change| change.0 as f64 <= now).last().map_or(1.0, |change| change.1)
    }

    /// Operations that move bytes on `node`: those that read it, those that write it.
    fn users(&self, node: u32) -> (usize, usize) {
        let heads = self.engines.iter().filter_map(|engine| engine.first());
        let mut users = (0, 0);
        for running in self.threads.iter().chain(heads).filter(|running| running.delay <= 0.0) {
            match running.op.work {
                Work::Fill { node: n, .. } if n == node => users.0 += 1,
                Work::Direct { node: n, direction: Direction::H2d, .. } if n == node => users.0 += 1,
                Work::Drain { node: n, .. } if n == node => users.1 += 1,
                Work::Direct { node: n, direction: Direction::D2h, .. } if n == node => users.1 += 1,
                _ => {}
            }
        }
        users
    }

    /// An operation's share of its node, bytes per second.
    fn tier_rate(&self, node: u32, reads: bool) -> f64 {
        let Some(tier) = self.host.tiers.get(&node) else { return f64::INFINITY };
        let (readers, writers) = self.users(node);
        let users = match (tier.half_duplex, reads) {
            (true, _) => readers + writers,
            (false, true) => readers,
            (false, false) => writers,
        };
        let rate = if reads { tier.read } else { tier.write };
        rate / users.max(1) as f64
    }

    /// Bytes per nanosecond.
    fn rate(&self, running: &Running) -> f64 {
        let thread = self.host.thread * (f64::from(self.host.cores) / self.threads.len().max(1) as f64).min(1.0);
        let link = |direction| {
            let link = &self.host.link;
            self.link_share() * if direction == Direction::H2d { link.h2d } else { link.d2h }
        };
        let per_second = match running.op.work {
            Work::Fill { node, .. } => thread.min(self.tier_rate(node, true)),
            Work::Drain { node, .. } => thread.min(self.tier_rate(node, false)),
            Work::Staged { direction, .. } => link(direction),
            Work::Direct { direction, node, .. } => {
                link(direction).min(self.tier_rate(node, direction == Direction::H2d))
            }
        };
        per_second / 1e9
    }

    /// What each running operation needs until it changes: the end of its fixed part, or of its bytes.
    fn needs(&self) -> Vec<f64> {
        let heads = self.engines.iter().filter_map(|engine| engine.first());
        let need = |r: &Running| if r.delay > 0.0 { r.delay } else { r.bytes / self.rate(r) };
        let kernel = self.kernels.front().map(|kernel| kernel.left);
        self.threads.iter().chain(heads).map(need).chain(kernel).collect()
    }

    /// Moves on by `by`, over which no rate changes.
    fn advance(&mut self, by: f64) {
        let rates: Vec<_> = {
            let heads = self.engines.iter().filter_map(|engine| engine.first());
            self.threads.iter().chain(heads).map(|running| self.rate(running)).collect()
        };
        if self.engines.iter().all(|engine| !engine.is_empty()) {
            self.both_busy += by;
        }
        let heads = self.engines.iter_mut().filter_map(|engine| engine.first_mut());
        for (running, rate) in self.threads.iter_mut().chain(heads).zip(rates) {
            if running.delay > 0.0 {
                running.delay -= by;
            } else {
                running.bytes -= by * rate;
            }
        }
        if let Some(kernel) = self.kernels.front_mut() {
            kernel.left -= by;
        }
        self.now += by;
        self.clock.wait_until(self.now as Nanos);
    }

    /// Takes out an operation that is over.
    fn ended(&mut self) -> Option<Running> {
        let over = |r: &Running| r.delay <= 1e-6 && r.bytes <= 1e-3;
        if let Some(at) = self.threads.iter().position(over) {
            return Some(self.threads.remove(at));
        }
        let engine = self.engines.iter_mut().find(|engine| engine.first().is_some_and(over))?;
        let running = engine.remove(0);
        if let Some(next) = engine.first_mut() {
            next.began = self.now as Nanos;
        }
        Some(running)
    }

    /// Takes out a kernel that is over; what it read and wrote is then read and written.
    fn ended_kernel(&mut self) -> Option<Done> {
        let over = |kernel: &mut Launched| kernel.left <= 1e-6;
        let Launched { id, kernel, began, .. } = self.kernels.pop_front_if(over)?;
        let ended = self.now as Nanos;
        if let Some(next) = self.kernels.front_mut() {
            next.began = ended;
        }
        if let Some(memories) = &mut self.memories {
            self.sums.insert(id, kernel.run(&mut Resident(&mut memories.device)));
        }
        Some(Done { id, began, ended })
    }

    /// Time until some rate changes, perhaps for ever.
    fn until_change(&mut self) -> f64 {
        let next = self.needs().into_iter().fold(f64::INFINITY, f64::min);
        if next.is_infinite() {
            return next;
        }
        let change = self.host.link_changes.iter().map(|change| change.0 as f64 - self.now).find(|left| *left > 0.0);
        next.min(change.unwrap_or(f64::INFINITY))
    }
}

impl Device for VirtualDevice {
    fn start(&mut self, op: Op) {
        let began = self.now as Nanos;
        let latency = |node| self.host.tiers.get(&node).map_or(0, |tier| tier.latency_ns);
        let (engine, delay) = match op.work {
            Work::Fill { node, .. } | Work::Drain { node, .. } => (None, self.host.thread_ns + latency(node)),
            Work::Staged { direction, .. } => (Some(direction), self.host.link.latency_ns),
            Work::Direct { direction, node, .. } => (Some(direction), self.host.link.latency_ns + latency(node)),
        };
        let running = Running { op, began, delay: delay as f64, bytes: op.bytes as f64 };
        match engine {
            None => self.threads.push(running),
            Some(direction) => self.engines[direction as usize].push(running),
        }
        self.most_threads = self.most_threads.max(self.threads.len());
    }

    fn launch(&mut self, id: u64, kernel: Kernel) {
        let (began, left) = (self.now as Nanos, kernel.time as f64);
        self.kernels.push_back(Launched { id, kernel, began, left });
    }

    fn sums(&mut self, id: u64) -> Option<Vec<u64>> {
        self.sums.remove(&id)
    }

    fn next(&mut self, until: Option<Nanos>) -> Option<Done> {
        loop {
            if let Some(done) = self.ended_kernel() {
                return Some(done);
            }
            if let Some(Running { op, began, .. }) = self.ended() {
                if let Some(memories) = &mut self.memories {
                    memories.carry(op);
                }
                return Some(Done { id: op.id, began, ended: self.now as Nanos });
            }
            let left = until.map_or(f64::INFINITY, |until| until as f64 - self.now);
            if left <= 0.0 {
                return None;
            }
            let by = self.until_change().min(left);
            if !by.is_finite() {
                return None;
            }
            self.advance(by);
        }
    }
}

/// Device memory as a kernel sees it.
struct Resident<'a>(&'a mut [u8]);

impl Memory for Resident<'_> {
    fn read(&self, (at, bytes): Range) -> &[u8] {
        &self.0[at as usize..(at + bytes) as usize]
    }

    fn write(&mut self, (at, bytes): Range) -> &mut [u8] {
        &mut self.0[at as usize..(at + bytes) as usize]
    }
}

impl Memories {
    /// Memory of these contents; the rings are the device's.
    pub fn new(host: Vec<u8>, device: Vec<u8>) -> Self {
        Self { host, device, rings: Default::default() }
    }

    /// Does what the operation says, at its end: a chunk's bytes that were overwritten before are then wrong.
    fn carry(&mut self, op: Op) {
        let Self { host, device, rings } = self;
        let range = |at: u64| at as usize..(at + op.bytes) as usize;
        match op.work {
            Work::Fill { host: from, ring, .. } => rings[0][range(ring)].copy_from_slice(&host[range(from)]),
            Work::Drain { ring, host: to, .. } => host[range(to)].copy_from_slice(&rings[1][range(ring)]),
            Work::Staged { direction: Direction::H2d, ring, device: to } => {
                device[range(to)].copy_from_slice(&rings[0][range(ring)]);
            }
            Work::Staged { direction: Direction::D2h, ring, device: from } => {
                rings[1][range(ring)].copy_from_slice(&device[range(from)]);
            }
            Work::Direct { direction: Direction::H2d, host: from, device: to, .. } => {
                device[range(to)].copy_from_slice(&host[range(from)]);
            }
            Work::Direct { direction: Direction::D2h, host: to, device: from, .. } => {
                host[range(to)].copy_from_slice(&device[range(from)]);
            }
        }
    }
}
