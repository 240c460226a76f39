//! One direction: its ring, what is under way in it, and what is measured.

use std::collections::BTreeMap;

use tensortier_model::{Bytes, Nanos};

use super::{
    device::{Copy, Direction, Done},
    tune::{Limits, MIN_CHUNK, Settings, Tuner, Tuning, Window},
};
use crate::pool::size::PAGE;

/// Chunks that make a window of measurement.
const WINDOW: u64 = 24;

/// What a node's copies have under way: settings are a node's, so that a slow one does not hold up another.
#[derive(Debug, Default)]
struct Node {
    threads: u32,
    chunks: u32,
    /// Time of threads, their number summed over time, until `worked`.
    work: Nanos,
    worked: Nanos,
}

impl Node {
    fn work_until(&mut self, now: Nanos) -> Nanos {
        self.work += u64::from(self.threads) * now.saturating_sub(self.worked);
        self.worked = self.worked.max(now);
        self.work
    }
}

#[derive(Debug)]
pub struct Lane {
    /// Operations at the engine.
    pub engine: usize,
    /// Copy threads at work, on all nodes.
    pub threads: u32,
    nodes: BTreeMap<u32, Node>,
    ring: Ring,
    tuner: Tuner,
    window: Window,
    /// Copies that are not over.
    copies: u64,
    /// When the engine last ended an operation of this busy period.
    engaged: Option<Nanos>,
}

impl Lane {
    pub fn new(limits: Limits, tuning: Tuning) -> Self {
        let (ring, tuner) = (Ring::new(limits.ring), Tuner::new(limits, tuning));
        let window = Window::default();
        Self { engine: 0, threads: 0, nodes: BTreeMap::new(), ring, tuner, window, copies: 0, engaged: None }
    }

    pub fn settings(&mut self, copy: &Copy) -> Settings {
        self.tuner.settings(copy.bytes, copy.node)
    }

    pub fn has_thread(&mut self, copy: &Copy) -> bool {
        let most = self.settings(copy).threads.max(1);
        self.node(copy.node).threads < most
    }

    /// Size of the next chunk of `copy`, of which `cut` bytes are cut, and its place in the ring.
    pub fn room(&mut self, copy: &Copy, cut: Bytes) -> Option<(Bytes, Bytes)> {
        let Settings { chunk, depth, .. } = self.settings(copy);
        let chunk = chunk.clamp(PAGE, self.ring.bytes);
        let left = copy.bytes - cut;
        let odd = left % chunk;
        let bytes = if copy.direction == Direction::H2d && odd > 0 { odd } else { chunk.min(left) };
        let place = if self.node(copy.node).chunks < depth.max(1) { self.ring.take(bytes) } else { None };
        self.window.blocked |= place.is_none();
        let place = place?;
        self.node(copy.node).chunks += 1;
        Some((bytes, place))
    }

    fn node(&mut self, node: u32) -> &mut Node {
        self.nodes.entry(node).or_default()
    }

    pub fn give_back(&mut self, node: u32, offset: Bytes, bytes: Bytes) {
        self.node(node).chunks -= 1;
        self.ring.give(offset, bytes);
    }

    /// A copy comes in.
    pub fn enter(&mut self) {
        if self.copies == 0 {
            self.engaged = None;
        }
        self.copies += 1;
        self.window.copies += 1;
        self.window.queued += self.copies;
    }

    /// A copy is over.
    pub fn leave(&mut self) {
        self.copies -= 1;
        if self.copies == 0 {
            self.close();
        }
    }

    /// A thread begins an operation; what this returns goes to [`Lane::threaded`] at its end.
    pub fn thread(&mut self, node: u32, now: Nanos) -> Nanos {
        self.threads += 1;
        let node = self.node(node);
        let before = node.work_until(now);
        node.threads += 1;
        before
    }

    /// A thread has ended an operation.
    pub fn threaded(&mut self, node: u32, before: Nanos, bytes: Bytes, done: Done) {
        let on = self.node(node);
        let work = on.work_until(done.ended) - before;
        on.threads -= 1;
        self.threads -= 1;
        let time = (done.ended - done.began).max(1);
        // Threads at work over the operation's time, on average.
        self.tuner.threaded(node, work as f64 / time as f64, bytes, time);
    }

    /// The engine has ended a staged operation whose chunk had waited for it.
    pub fn staged(&mut self, bytes: Bytes, done: Done, waited: Nanos) {
        self.tuner.staged(bytes, done.ended - done.began);
        self.window.chunks += 1;
        self.window.early += waited;
        self.direct(done);
        self.close();
    }

    /// The engine has ended an operation.
    pub fn direct(&mut self, done: Done) {
        if let Some(before) = self.engaged {
            self.window.starved += done.began.saturating_sub(before);
        }
        self.window.busy += done.ended - done.began;
        self.engaged = Some(done.ended);
        self.engine -= 1;
    }

    fn close(&mut self) {
        if self.window.chunks >= WINDOW {
            self.tuner.learn(&std::mem::take(&mut self.window));
        }
    }
}

/// The staging ring of one direction: pinned once, cut into chunks of any size, never given twice.
#[derive(Debug)]
struct Ring {
    bytes: Bytes,
    free: crate::pool::Blocks,
}

impl Ring {
    fn new(bytes: Bytes) -> Self {
        let bytes = (bytes / PAGE * PAGE).max(MIN_CHUNK);
        let mut free = crate::pool::Blocks::default();
        free.give(0, 0, bytes);
        Self { bytes, free }
    }

    fn take(&mut self, bytes: Bytes) -> Option<Bytes> {
        self.free.take(bytes.next_multiple_of(PAGE), PAGE).map(|(_, offset)| offset)
    }

    fn give(&mut self, offset: Bytes, bytes: Bytes) {
        self.free.give(0, offset, bytes.next_multiple_of(PAGE));
    }
}
