//! Two copy engines, a processor, and a thread for everything else; each works on the heads of the streams.
//!
//! **Order.** Operations of a stream run one after the other. One of the legacy default stream waits for everything
//! issued before it on streams that are not non-blocking, and everything issued later on those waits for it.
//!
//! **Time.** An operation begins when its engine is free and the one before it on its stream has ended, both by the model;
//! it ends after the latency and its bytes at the engine's rate. The thread moves the bytes and sleeps for the rest. A
//! thread that woke late has not lost time: the next operation counts from the modelled end. One whose bytes took longer
//! than modelled has. A kernel takes the time that its program says, and the processor's thread spins for the rest.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::memory::DeviceMemory;

/// What an operation does.
pub enum Work {
    /// Copies; `share` of the engine's rate.
    Copy { to: u64, from: u64, bytes: u64, engine: usize, share: f64 },
    /// Fills.
    Fill { to: u64, value: u32, width: usize, count: usize },
    /// Computes: `run` is given what a device address has to grow by to be where its byte is, `done` is called at the end.
    Kernel { run: Box<dyn FnOnce(u64) + Send>, time: Duration, done: Box<dyn FnOnce() + Send> },
    /// Calls back.
    Call(Box<dyn FnOnce() + Send>),
    /// An event's record of that number.
    Record { event: u64, number: u64 },
    /// Waits for that record.
    Wait { event: u64, number: u64 },
}

struct Op {
    number: u64,
    work: Work,
    issued: Instant,
    running: bool,
}

/// Streams with the default's rules, or without.
struct Stream {
    blocking: bool,
    ops: VecDeque<Op>,
    /// Modelled end of the last operation.
    ended: Instant,
}

#[derive(Clone, Copy)]
struct Event {
    /// Records asked for, and made.
    asked: u64,
    made: u64,
    at: Option<Instant>,
}

struct State {
    streams: BTreeMap<u64, Stream>,
    events: BTreeMap<u64, Event>,
    issued: u64,
    /// Bytes per second of each engine; the others' is memory's, far above.
    rates: [f64; 4],
    latency: Duration,
}

/// The engines and their queues.
pub struct Engines {
    state: Mutex<State>,
    changed: Condvar,
    memory: Arc<DeviceMemory>,
}

/// Engine of copies that do not cross the link, fills, callbacks and events.
const OTHER: usize = 2;
/// The processor.
const COMPUTE: usize = 3;

impl State {
    /// Whether the head of a stream may run, by what was issued before it elsewhere.
    fn may_run(&self, id: u64, op: &Op) -> bool {
        let earlier = |stream: &Stream| stream.ops.front().is_some_and(|head| head.number < op.number);
        let stream = &self.streams[&id];
        if id == 0 {
            return !self.streams.iter().any(|(other, stream)| *other != 0 && stream.blocking && earlier(stream));
        }
        !stream.blocking || !self.streams.get(&0).is_some_and(earlier)
    }

    fn engine(work: &Work) -> usize {
        match work {
            Work::Copy { engine, .. } => *engine,
            Work::Kernel { .. } => COMPUTE,
            _ => OTHER,
        }
    }

    /// The stream whose head an engine should take: the one issued first.
    fn next(&self, engine: usize) -> Option<u64> {
        let ready = |(id, stream): (&u64, &Stream)| {
            let op = stream.ops.front()?;
            let waits = match op.work {
                Work::Wait { event, number } => self.events.get(&event).is_some_and(|event| event.made < number),
                _ => false,
            };
            let runs = !op.running && !waits && Self::engine(&op.work) == engine && self.may_run(*id, op);
            runs.then_some((op.number, *id))
        };
        self.streams.iter().filter_map(ready).min().map(|(_, id)| id)
    }
}

impl Engines {
    /// Starts the threads; they run as long as the process.
    pub fn start(memory: Arc<DeviceMemory>, rates: [f64; 2], latency: Duration) -> Arc<Self> {
        let state = State {
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            issued: 0,
            rates: [rates[0], rates[1], 1e13, 1e13],
            latency,
        };
        let engines = Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), memory });
        for engine in 0..=COMPUTE {
            let engines = Arc::clone(&engines);
            let name = ["emulator-h2d", "emulator-d2h", "emulator-other", "emulator-compute"][engine].to_owned();
            // Without a thread its operations never end; so a program that cannot have one cannot go on.
            std::thread::Builder::new()
                .name(name)
                .spawn(move || engines.work(engine))
                .expect("a thread for the engine");
        }
        engines
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets both engines' rates, bytes per second, for what begins from now on.
    pub fn set_rates(&self, h2d: f64, d2h: f64) {
        let mut state = self.lock();
        (state.rates[0], state.rates[1]) = (h2d, d2h);
    }

    /// Puts an operation at a stream's end; its number.
    pub fn issue(&self, stream: u64, blocking: bool, work: Work) -> u64 {
        let mut state = self.lock();
        let issued = Instant::now();
        state.issued += 1;
        let number = state.issued;
        let queue = state.streams.entry(stream);
        let queue = queue.or_insert_with(|| Stream { blocking, ops: VecDeque::new(), ended: issued });
        queue.ops.push_back(Op { number, work, issued, running: false });
        self.changed.notify_all();
        number
    }

    /// Waits until all that was issued to a stream by now, or to every stream, is over.
    pub fn wait_for(&self, stream: Option<u64>) {
        let mut state = self.lock();
        let until = state.issued;
        while !idle(&state, stream, until) {
            state = self.wait(state);
        }
    }

    /// Whether a stream has nothing to do.
    pub fn is_idle(&self, stream: u64) -> bool {
        let state = self.lock();
        idle(&state, Some(stream), state.issued)
    }

    /// Takes a stream away once it is idle.
    pub fn forget(&self, stream: u64) {
        self.wait_for(Some(stream));
        self.lock().streams.remove(&stream);
    }

    /// Records an event at a stream's end.
    pub fn record(&self, event: u64, stream: u64, blocking: bool) {
        let number = {
            let mut state = self.lock();
            let event = state.events.entry(event).or_insert(Event { asked: 0, made: 0, at: None });
            event.asked += 1;
            event.asked
        };
        self.issue(stream, blocking, Work::Record { event, number });
    }

    /// Makes a stream wait for an event's last record; at once where it was never recorded.
    pub fn wait_event(&self, event: u64, stream: u64, blocking: bool) {
        let number = self.lock().events.get(&event).map_or(0, |event| event.asked);
        self.issue(stream, blocking, Work::Wait { event, number });
    }

    /// Whether an event's last record is made; one never recorded counts as made.
    pub fn is_made(&self, event: u64) -> bool {
        self.lock().events.get(&event).is_none_or(|event| event.made == event.asked)
    }

    /// Waits for an event's last record.
    pub fn wait_made(&self, event: u64) {
        let mut state = self.lock();
        let number = state.events.get(&event).map_or(0, |event| event.asked);
        while state.events.get(&event).is_some_and(|event| event.made < number) {
            state = self.wait(state);
        }
    }

    /// When an event was last recorded, by the model.
    pub fn made_at(&self, event: u64) -> Option<Instant> {
        self.lock().events.get(&event).and_then(|event| event.at)
    }

    /// Forgets an event; a record that is still to come is of no one's interest.
    pub fn forget_event(&self, event: u64) {
        self.wait_made(event);
        self.lock().events.remove(&event);
    }

    /// One engine's thread.
    fn work(&self, engine: usize) {
        let mut free = Instant::now();
        let mut state = self.lock();
        loop {
            let Some(id) = state.next(engine) else {
                state = self.wait(state);
                continue;
            };
            let (rate, latency) = (state.rates[engine], state.latency);
            let Some(stream) = state.streams.get_mut(&id) else { continue };
            let ended = stream.ended;
            let Some(op) = stream.ops.front_mut() else { continue };
            op.running = true;
            let ready = op.issued.max(ended);
            let work = std::mem::replace(&mut op.work, Work::Wait { event: 0, number: 0 });
            drop(state);
            let mut end = ready;
            let mut record = None;
            match work {
                Work::Copy { to, from, bytes, share, .. } => {
                    let time = Duration::from_secs_f64(bytes as f64 / (rate * share));
                    end = free.max(ready) + latency + time;
                    self.memory.copy(to, from, bytes as usize);
                    let moved = Instant::now();
                    // Time that the CPU did not have is the engine's loss.
                    end = end.max(moved);
                    sleep_until(end);
                    free = end;
                }
                Work::Kernel { run, time, done } => {
                    end = free.max(ready) + time;
                    run(self.memory.shift());
                    end = end.max(Instant::now());
                    // As a processor that computes would, and not as one that sleeps.
                    while Instant::now() < end {
                        std::hint::spin_loop();
                    }
                    free = end;
                    done();
                }
                Work::Fill { to, value, width, count } => self.memory.fill(to, value, width, count),
                Work::Call(call) => {
                    call();
                    end = Instant::now();
                }
                Work::Record { event, number } => record = Some((event, number)),
                Work::Wait { .. } => {}
            }
            state = self.lock();
            if let Some((event, number)) = record
                && let Some(event) = state.events.get_mut(&event)
            {
                (event.made, event.at) = (number, Some(end));
            }
            if let Some(stream) = state.streams.get_mut(&id) {
                stream.ops.pop_front();
                stream.ended = stream.ended.max(end);
            }
            self.changed.notify_all();
        }
    }
}

fn idle(state: &State, stream: Option<u64>, until: u64) -> bool {
    let over = |(id, queue): (&u64, &Stream)| {
        stream.is_some_and(|wanted| wanted != *id) || queue.ops.front().is_none_or(|op| op.number > until)
    };
    state.streams.iter().all(over)
}

fn sleep_until(at: Instant) {
    if let Some(left) = at.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
}
