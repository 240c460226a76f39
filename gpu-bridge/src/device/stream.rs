//! Copies on a stream of the program's own, in the program's context, for a library under an unmodified program.
//!
//! Chunks go between a registered ring and the device by the driver's own asynchronous copies on the stream that the
//! program named, so the order of that stream is the driver's as before, and no other stream is part of it. Events after
//! each chunk tell its end; they are asked, not waited for with callbacks: after an error of the context no callback
//! comes, and a query says so. Ours.
#![allow(unsafe_code)]

use std::{collections::VecDeque, ffi::c_void, sync::Arc};

use tensortier_model::{Clock, Nanos, RealClock};

use super::threads::{Ends, Slow, Task, Threads};
use crate::pipeline::{Device, Direction, Done, Limits, Op, Work, kernel::Kernel};

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;
/// How long threads are waited for before the engine is asked again: below the time of the smallest chunk on any link.
const LOOK: Nanos = 30_000;

/// The driver's functions that it calls, as the program's own driver has them.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Calls {
    pub copy_to_device: unsafe extern "C" fn(u64, *const c_void, usize, u64) -> i32,
    pub copy_from_device: unsafe extern "C" fn(*mut c_void, u64, usize, u64) -> i32,
    pub event_record: unsafe extern "C" fn(u64, u64) -> i32,
    pub event_query: unsafe extern "C" fn(u64) -> i32,
    pub event_synchronize: unsafe extern "C" fn(u64) -> i32,
    pub stream_synchronize: unsafe extern "C" fn(u64) -> i32,
}

/// A chunk at the engine.
#[derive(Debug)]
struct Chunk {
    id: u64,
    event: u64,
    started: Nanos,
}

/// Copy threads and the stream of the copy under way.
#[derive(Debug)]
pub struct StreamDevice {
    calls: Calls,
    stream: u64,
    /// First address of each direction's ring.
    rings: [u64; 2],
    /// Events that no chunk has.
    events: Vec<u64>,
    clock: Arc<RealClock>,
    ends: Arc<Ends>,
    threads: Threads,
    engine: VecDeque<Chunk>,
    /// Operations whose end comes through `ends`.
    flying: u64,
    /// When the engine last ended a chunk.
    ended: Nanos,
    /// Chunks that the driver has taken since [`StreamDevice::begin`].
    taken: u64,
    failure: Option<i32>,
}

impl StreamDevice {
    /// A device on rings of `limits.ring` bytes each, with some events.
    ///
    /// # Errors
    /// No threads.
    ///
    /// # Safety
    /// `calls` are the driver's. Rings stay mapped and are used by nobody else, events are live whenever a copy is under
    /// way, and so are host and device ranges of every copy that a pipeline on this device is given.
    pub unsafe fn new(
        calls: Calls,
        clock: Arc<RealClock>,
        limits: Limits,
        rings: [u64; 2],
        events: Vec<u64>,
    ) -> std::io::Result<Self> {
        let ends = Arc::new(Ends::new(Arc::clone(&clock)));
        let threads = Threads::start(limits.threads.max(1), &ends, Slow::new())?;
        let (engine, failure) = Default::default();
        let (stream, flying, ended, taken) = (0, 0, 0, 0);
        Ok(Self { calls, stream, rings, events, clock, ends, threads, engine, flying, ended, taken, failure })
    }

    /// The copy that is submitted next runs on `stream`, as the driver numbers it (0 is the default stream).
    pub fn begin(&mut self, stream: u64) {
        (self.stream, self.taken, self.failure) = (stream, 0, None);
    }

    /// Since [`StreamDevice::begin`]: how many chunks the driver took, and the first code other than 0 that it gave.
    pub fn outcome(&self) -> (u64, Option<i32>) {
        (self.taken, self.failure)
    }

    /// Gives the engine a chunk; a code other than 0 says that the driver did not take it.
    fn issue(&mut self, direction: Direction, id: u64, ring: u64, device: u64, bytes: u64) -> Result<(), i32> {
        let (at, bytes) = (self.rings[direction as usize] + ring, bytes as usize);
        // SAFETY: by `new`'s contract; the pipeline gives each place of a ring to one operation at a time.
        check(unsafe {
            match direction {
                Direction::H2d => (self.calls.copy_to_device)(device, at as *const c_void, bytes, self.stream),
                Direction::D2h => (self.calls.copy_from_device)(at as *mut c_void, device, bytes, self.stream),
            }
        })?;
        self.taken += 1;
        let event = self.events.pop();
        let recorded = event.is_some_and(|event| {
            // SAFETY: an event of the same context; so is the stream, which has just taken a copy.
            unsafe { (self.calls.event_record)(event, self.stream) == 0 }
        });
        match event {
            Some(event) if recorded => {
                self.engine.push_back(Chunk { id, event, started: self.clock.now() });
                return Ok(());
            }
            Some(event) => self.events.push(event),
            None => {}
        }
        // SAFETY: as above.
        let ended = check(unsafe { (self.calls.stream_synchronize)(self.stream) });
        self.over(id);
        ended
    }

    /// Reports an operation that has ended at once.
    fn over(&mut self, id: u64) {
        let now = self.clock.now();
        self.flying += 1;
        self.ends.push(Done { id, began: now, ended: now });
    }

    /// The engine's first chunk, where it has ended; `wait` for it where nothing else is under way.
    fn engine_end(&mut self, wait: bool) -> Option<Done> {
        let event = self.engine.front()?.event;
        let ask = if wait { self.calls.event_synchronize } else { self.calls.event_query };
        // SAFETY: an event that `issue` has recorded.
        let code = unsafe { ask(event) };
        if code == NOT_READY {
            return None;
        }
        if let Err(code) = check(code) {
            self.failure.get_or_insert(code);
        }
        let Chunk { id, event, started } = self.engine.pop_front()?;
        self.events.push(event);
        let ended = self.clock.now();
        // The engine turned to it when the one before was over.
        let began = started.max(self.ended).min(ended);
        self.ended = ended;
        Some(Done { id, began, ended })
    }
}

fn check(code: i32) -> Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

impl Device for StreamDevice {
    fn start(&mut self, Op { id, work, bytes }: Op) {
        if self.failure.is_some() {
            // What is left of the copy is given up.
            return self.over(id);
        }
        let (from, to, node) = match work {
            Work::Fill { host, ring, node } => (host, self.rings[0] + ring, node),
            Work::Drain { ring, host, node } => (self.rings[1] + ring, host, node),
            Work::Staged { direction, ring, device } => {
                let before = self.flying;
                if let Err(code) = self.issue(direction, id, ring, device, bytes) {
                    self.failure.get_or_insert(code);
                    if self.flying == before {
                        self.over(id);
                    }
                }
                return;
            }
            // No copy here is of registered memory: the driver does those well without help.
            Work::Direct { .. } => return self.over(id),
        };
        self.flying += 1;
        self.threads.copy(Task { id, from, to, bytes, node });
    }

    /// None runs here: kernels are the program's own.
    fn launch(&mut self, id: u64, _: Kernel) {
        self.over(id);
    }

    fn sums(&mut self, _: u64) -> Option<Vec<u64>> {
        None
    }

    fn next(&mut self, until: Option<Nanos>) -> Option<Done> {
        loop {
            if self.flying > 0
                && let Some(done) = self.ends.next(Some(0))
            {
                self.flying -= 1;
                return Some(done);
            }
            if let Some(done) = self.engine_end(self.flying == 0 && until.is_none()) {
                return Some(done);
            }
            let (now, idle) = (self.clock.now(), self.flying == 0 && self.engine.is_empty());
            if idle && until.is_none() || until.is_some_and(|until| until <= now) {
                return None;
            }
            // The engine has to be asked again; threads tell by themselves.
            let look = match until {
                until if self.engine.is_empty() => until,
                until => Some(until.map_or(now + LOOK, |until| until.min(now + LOOK))),
            };
            if let Some(done) = self.ends.next(look) {
                self.flying -= 1;
                return Some(done);
            }
        }
    }
}
