//! What jobs copy to and from GPUs, as evidence of use and as figures.
//!
//! A copy is cut to what its process has resident, as last read: addresses are the job's own word, and memory elsewhere is
//! nobody's business. Each block that is left counts as transferred by its device ([`TouchKind::Transfer`]). Its bytes
//! are those of the nodes that the block lies on, in their proportion.
//!
//! Two sources tell of copies: probes on the CUDA libraries, and the GPU bridge's hints. What the bridge copies through
//! its staging ring is told by both, as `bridge` of its true source and as `registered` of the ring.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::{Duration, Instant},
};

use tensortier_link::hints::{Hint, Kind};

use super::Agent;
use crate::{
    job::{Resident, memory::Memory},
    observe::{status::Copied, usdt},
    publish::{Descriptors, Said},
    source::{
        Touch, TouchKind,
        gpu::{Direction, GpuCallKind, GpuCalls},
        lost::Clock,
    },
    units::{BLOCK, NodeId, NodeSet, Pid, Range, show_bytes},
};

/// Looks at a process's blocks that its hints may cost in a tick: so often all of them, and some. Beyond, they are dropped.
const LOOKS: (usize, usize) = (4, 4096);
/// Pinned ranges that are kept of one process.
const MAX_PINS: usize = 1 << 16;
/// A copy that is announced is waited for no longer, and so long after its time.
const EXPECTED: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(1));
/// With this part of the ring buffer full in a tick, the agent does not rest.
const FAST: usize = 16;

/// What is known of the memory that was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(super) enum Path {
    /// No registration of it was seen: pageable, or pinned before the job was watched.
    Unregistered = 1,
    /// It was seen to be pinned.
    Registered = 2,
    /// The bridge said that it copied it.
    Bridge = 3,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(usdt::PATHS[*self as usize - 1])
    }
}

/// Copies that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Copy {
    pid: Pid,
    direction: Direction,
    host: Range,
    path: Path,
}

/// What is known of jobs' dealings with GPUs.
#[derive(Debug, Default)]
pub(super) struct Gpu {
    /// Bytes copied; those of no known node apart.
    copied: BTreeMap<(Direction, Option<NodeId>, Path), u64>,
    /// Pinned memory: first address and end.
    pins: BTreeMap<Pid, BTreeMap<u64, u64>>,
    /// Until when which blocks are not demoted.
    expected: BTreeMap<Pid, BTreeMap<u64, Instant>>,
    /// Pins that there was no room for.
    dropped: u64,
    /// Hints of processes that are in no job, or that said too much at once.
    unheard: u64,
    /// So many calls came that the next tick must not wait.
    pub fast: bool,
}

impl Gpu {
    /// Forgets a process.
    pub fn forget(&mut self, pid: Pid) {
        self.pins.remove(&pid);
        self.expected.remove(&pid);
    }

    /// Whether a copy of the block was announced that is still to come.
    pub fn expects(&self, pid: Pid, range: Range, now: Instant) -> bool {
        let blocks = self.expected.get(&pid);
        blocks.and_then(|blocks| blocks.get(&(range.start / BLOCK))).is_some_and(|until| now < *until)
    }

    fn expect(&mut self, pid: Pid, range: Range, until: Instant, residents: &[Resident]) {
        for (_, resident) in parts(residents, range) {
            let block = self.expected.entry(pid).or_default().entry(resident.range.start / BLOCK).or_insert(until);
            *block = until.max(*block);
        }
    }

    /// Pins that were not kept, so that their memory may be tried in vain.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Hints that were not taken in.
    pub fn unheard(&self) -> u64 {
        self.unheard
    }

    /// Bytes of a range that are known to be pinned.
    pub fn pinned(&self, pid: Pid, range: Range) -> u64 {
        let Some(pins) = self.pins.get(&pid) else { return 0 };
        let before = pins.range(..range.start).next_back();
        let overlap =
            |(start, end): (&u64, &u64)| Range::new(*start, *end).intersect(&range).map_or(0, |on| on.bytes());
        before.into_iter().chain(pins.range(range.start..range.end)).map(overlap).sum::<u64>().min(range.bytes())
    }

    /// Pinned bytes of a process on each node.
    pub fn pinned_on(&self, pid: Pid, residents: &[Resident]) -> BTreeMap<NodeId, u64> {
        let mut on = BTreeMap::new();
        for pin in self.pins.get(&pid).into_iter().flatten().map(|(start, end)| Range::new(*start, *end)) {
            for (part, resident) in parts(residents, pin) {
                for (node, bytes) in by_node(resident, part) {
                    *on.entry(node).or_default() += bytes;
                }
            }
        }
        on
    }

    fn pin(&mut self, pid: Pid, range: Range) {
        let pins = self.pins.entry(pid).or_default();
        if pins.len() >= MAX_PINS && !pins.contains_key(&range.start) {
            self.dropped += 1;
            return;
        }
        pins.insert(range.start, range.end);
    }

    fn unpin(&mut self, pid: Pid, start: u64) {
        // One from before the job was watched is not known.
        self.pins.get_mut(&pid).and_then(|pins| pins.remove(&start));
    }

    fn path(&self, pid: Pid, host: Range) -> Path {
        if self.pinned(pid, host) == host.bytes() { Path::Registered } else { Path::Unregistered }
    }

    /// Takes in copies that are alike, as evidence and as figures.
    fn copied(&mut self, copy: Copy, times: u64, at: Instant, residents: &[Resident], touches: &mut Vec<Touch>) {
        let Copy { pid, direction, host, path } = copy;
        let mut on: BTreeMap<NodeId, u64> = BTreeMap::new();
        for (range, resident) in parts(residents, host) {
            by_node(resident, range).for_each(|(node, bytes)| *on.entry(node).or_default() += bytes);
            match touches.last_mut() {
                Some(last) if last.pid == pid && last.kind == TouchKind::Transfer && last.range.end == range.start => {
                    last.range.end = range.end;
                }
                _ => touches.push(Touch { pid, range, kind: TouchKind::Transfer, weight: times as f32, at }),
            }
        }
        let most = on.iter().max_by_key(|(_, bytes)| **bytes).map(|(node, _)| *node);
        let elsewhere = host.bytes().saturating_sub(on.values().sum());
        for (node, bytes) in on.into_iter().map(|(node, bytes)| (Some(node), bytes)).chain([(None, elsewhere)]) {
            if bytes > 0 {
                let sum = self.copied.entry((direction, node, path)).or_default();
                *sum = sum.saturating_add(bytes.saturating_mul(times));
            }
        }
        let fires = if path == Path::Bridge { 1 } else { times };
        (0..fires).for_each(|_| usdt::gpu_transfer(pid, host.bytes(), most, direction as u32, path as u32));
    }

    /// Takes in what a process said of its own memory.
    fn heed(&mut self, said: &Said, clock: &Clock, now: Instant, residents: &[Resident], touches: &mut Vec<Touch>) {
        let Said { pid, hint: Hint { start, bytes, kind, times, at_ns } } = *said;
        let host = Range::new(start, start.saturating_add(bytes));
        let direction = match kind {
            Kind::HostToDevice => Direction::ToDevice,
            Kind::DeviceToHost => Direction::ToHost,
            Kind::Expected => {
                let ahead = Duration::from_nanos(at_ns.saturating_sub(clock.now_ns())).min(EXPECTED.0);
                return self.expect(pid, host, now + ahead + EXPECTED.1, residents);
            }
            Kind::Registered => return self.pin(pid, host),
            Kind::Unregistered => return self.unpin(pid, start),
        };
        let copy = Copy { pid, direction, host, path: Path::Bridge };
        self.copied(copy, times.into(), clock.instant(at_ns), residents, touches);
    }
}

impl Agent {
    /// Links a process of a job with this agent.
    pub(super) fn link(&mut self, pid: Pid, user: u32) -> std::io::Result<Descriptors> {
        let given = self.links.open(pid, user)?;
        self.publish(pid);
        Ok(given)
    }

    /// Tells a linked process where its memory is.
    pub(super) fn publish(&mut self, pid: Pid) {
        self.links.publish(pid, self.memory.residents_of(pid), &self.host, Clock::read().now_ns());
    }

    /// Takes in what linked processes said of their own memory.
    pub(super) fn hear_hints(&mut self, now: Instant, touches: &mut Vec<Touch>) {
        let clock = Clock::read();
        let mut looks: BTreeMap<Pid, usize> = BTreeMap::new();
        let more = self.links.hear(|said| {
            let residents = self.memory.residents_of(said.pid);
            let looks = looks.entry(said.pid).or_default();
            let blocks = usize::try_from(said.hint.bytes / BLOCK).unwrap_or(usize::MAX);
            *looks += 1 + blocks.min(residents.len());
            if self.jobs.of(said.pid).is_none() || *looks > LOOKS.0 * residents.len() + LOOKS.1 {
                self.gpu.unheard += 1;
                return;
            }
            self.gpu.heed(&said, &clock, now, residents, touches);
        });
        // A socket that fills makes its process drop hints.
        self.gpu.fast |= more;
        self.gpu.expected.values_mut().for_each(|blocks| blocks.retain(|_, until| now < *until));
    }

    /// Takes in what jobs asked of their CUDA libraries, as evidence.
    pub(super) fn hear_gpus(&mut self, now: Instant, touches: &mut Vec<Touch>) {
        self.programs.look_for_gpus(now);
        let calls = self.programs.gpu.drain().unwrap_or_else(|error| {
            tracing::warn!(%error, "copies of this tick are not seen");
            Vec::new()
        });
        self.gpu.fast = calls.len() * FAST > GpuCalls::capacity();
        // A job copies the same over and over.
        let mut copies: BTreeMap<Copy, (u64, Instant)> = BTreeMap::new();
        for call in calls.into_iter().filter(|call| self.jobs.of(call.pid).is_some()) {
            let pid = call.pid;
            let found = match call.kind {
                GpuCallKind::Copy { direction, host } => Some((direction, host)),
                GpuCallKind::Either { from, to } => which(&self.memory, pid, from, to),
                GpuCallKind::Pinned(range) => {
                    self.gpu.pin(pid, range);
                    None
                }
                GpuCallKind::Released(start) => {
                    self.gpu.unpin(pid, start);
                    None
                }
            };
            let Some((direction, host)) = found else { continue };
            let path = self.gpu.path(pid, host);
            let seen = copies.entry(Copy { pid, direction, host, path }).or_insert((0, call.at));
            *seen = (seen.0 + 1, seen.1.max(call.at));
        }
        for (copy, (times, at)) in copies {
            self.gpu.copied(copy, times, at, self.memory.residents_of(copy.pid), touches);
        }
    }

    /// Bytes copied so far, by direction, node and path.
    pub(super) fn copied(&self) -> Vec<Copied> {
        let rows = self.gpu.copied.iter();
        let row = |(&(direction, node, path), &bytes): (&(Direction, Option<NodeId>, Path), &u64)| Copied {
            to_device: direction == Direction::ToDevice,
            node,
            path: path.to_string(),
            bytes,
        };
        rows.map(row).collect()
    }

    /// Pinned bytes of processes on each node.
    pub(super) fn pinned_on<'a>(&self, pids: impl IntoIterator<Item = &'a Pid>) -> BTreeMap<NodeId, u64> {
        let mut all = BTreeMap::new();
        for pid in pids {
            for (node, bytes) in self.gpu.pinned_on(*pid, self.memory.residents_of(*pid)) {
                *all.entry(node).or_default() += bytes;
            }
        }
        all
    }
}

/// What is on the host of a copy that does not say it: the end that is resident memory. Where both are, or neither, no GPU
/// has part in it as far as anybody knows.
fn which(memory: &Memory, pid: Pid, from: Range, to: Range) -> Option<(Direction, Range)> {
    let resident = |range| parts(memory.residents_of(pid), range).next().is_some();
    match (resident(from), resident(to)) {
        (true, false) => Some((Direction::ToDevice, from)),
        (false, true) => Some((Direction::ToHost, to)),
        _ => None,
    }
}

/// What of a range is resident. `residents` ascend.
fn parts(residents: &[Resident], range: Range) -> impl Iterator<Item = (Range, &Resident)> {
    let first = residents.partition_point(|resident| resident.range.end <= range.start);
    let meeting = residents[first..].iter().take_while(move |resident| resident.range.start < range.end);
    meeting.filter_map(move |resident| Some((resident.range.intersect(&range)?, resident)))
}

/// The nodes of a part of a block, which is taken to lie as the whole of it does.
fn by_node(resident: &Resident, part: Range) -> impl Iterator<Item = (NodeId, u64)> {
    let all: u64 = resident.on.values().sum();
    let share = move |bytes: u64| (u128::from(part.bytes()) * u128::from(bytes) / u128::from(all.max(1))) as u64;
    resident.on.iter().map(move |(node, bytes)| (*node, share(*bytes)))
}

/// What to say of pinned memory that is not where the GPUs are; `gpus` are the nodes that they are known to be at.
pub(super) fn notes(pinned: &BTreeMap<NodeId, u64>, gpus: &NodeSet) -> Vec<String> {
    let Some(near) = gpus.0.first() else { return Vec::new() };
    let far = pinned.iter().filter(|(node, bytes)| **bytes > 0 && !gpus.contains(**node));
    far.map(|(node, bytes)| {
        format!(
            "{} of pinned memory lie on node {node} and the GPUs are at node {gpus}: what is pinned cannot move, so it \
             is placed at the start: `run --place prefer={near}`",
            show_bytes(*bytes)
        )
    })
    .collect()
}

/// What to say of a job that uses GPUs and may run on none of the CPUs `near` them, which are those of the nodes `gpus`.
pub(super) fn far_cpus(allowed: &[u32], near: &BTreeSet<u32>, gpus: &NodeSet) -> Option<String> {
    let far = !near.is_empty() && !allowed.is_empty() && !allowed.iter().any(|cpu| near.contains(cpu));
    far.then(|| {
        format!(
            "the job may run on no CPU of node {gpus}, where the GPUs are: its copies cross the link between sockets (4 to \
             12 GB/s instead of 24 on one host, DeepSpeed issue 1576); start it under `numactl --cpunodebind={gpus}`"
        )
    })
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
