//! Copy threads, and where operations of threads and engines report their end.
#![allow(unsafe_code)]

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use tensortier_model::{Bytes, Clock, Nanos, RealClock};

use crate::pipeline::Done;

/// Ended operations, in the order of their ends.
#[derive(Debug)]
pub struct Ends {
    clock: Arc<RealClock>,
    queue: Mutex<VecDeque<Done>>,
    more: Condvar,
}

impl Ends {
    pub fn new(clock: Arc<RealClock>) -> Self {
        Self { clock, queue: Mutex::default(), more: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Done>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, done: Done) {
        self.lock().push_back(done);
        self.more.notify_one();
    }

    /// The next one, waiting until `until` at most.
    pub fn next(&self, until: Option<Nanos>) -> Option<Done> {
        let mut queue = self.lock();
        loop {
            if let Some(done) = queue.pop_front() {
                return Some(done);
            }
            queue = match until {
                None => self.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.checked_sub(self.clock.now()).filter(|left| *left > 0)?;
                    let wait = Duration::from_nanos(left);
                    self.more.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// A copy between host memory and a ring.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    pub id: u64,
    pub from: u64,
    pub to: u64,
    pub bytes: Bytes,
    /// Node of the host memory.
    pub node: u32,
}

/// Nodes that are slower than this host's memory, bytes per second: a CXL card where none is at hand. Whoever reads or
/// writes them takes that long, one after the other.
pub type Slow = BTreeMap<u32, f64>;

/// Threads that copy.
#[derive(Debug)]
pub struct Threads {
    tasks: Option<Sender<Task>>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    pub fn start(count: u32, ends: &Arc<Ends>, slow: Slow) -> std::io::Result<Self> {
        let (tasks, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let slow = Arc::new(Mutex::new(slow.into_iter().map(|(node, rate)| (node, (rate, 0))).collect()));
        let thread = |i| {
            let (receiver, ends, slow) = (Arc::clone(&receiver), Arc::clone(ends), Arc::clone(&slow));
            std::thread::Builder::new().name(format!("bridge-copy-{i}")).spawn(move || work(&receiver, &ends, &slow))
        };
        let threads = (0..count).map(thread).collect::<std::io::Result<_>>()?;
        Ok(Self { tasks: Some(tasks), threads })
    }

    /// Hands a task to the next free thread.
    pub fn copy(&self, task: Task) {
        if let Some(tasks) = &self.tasks {
            // The threads hold the other end until this is dropped.
            let _ = tasks.send(task);
        }
    }
}

/// By node: its rate, and until when it is busy.
type Paces = Mutex<BTreeMap<u32, (f64, Nanos)>>;

fn work(tasks: &Mutex<Receiver<Task>>, ends: &Ends, slow: &Paces) {
    loop {
        let next = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Task { id, from, to, bytes, node }) = next else { return };
        let began = ends.clock.now();
        let until = slow.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&node).map(|(rate, busy)| {
            *busy = began.max(*busy) + (bytes as f64 * 1e9 / *rate) as Nanos;
            *busy
        });
        // SAFETY: `CudaDevice::new` has its caller promise that copies name live memory until they end, and the pipeline
        // gives each place of a ring to one operation at a time.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes as usize) };
        if let Some(until) = until {
            ends.clock.wait_until(until);
        }
        ends.push(Done { id, began, ended: ends.clock.now() });
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.tasks = None;
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_copy_arrives_and_is_reported() {
        let ends = Arc::new(Ends::new(Arc::new(RealClock::new())));
        let threads = Threads::start(2, &ends, Slow::from([(7, 1e6)])).expect("threads");
        let from: Vec<u8> = (0..100_u8).collect();
        let mut to = vec![0_u8; 100];
        for id in 0..10 {
            let at = id as usize * 10;
            let node = if id == 3 { 7 } else { 0 };
            threads.copy(Task {
                id,
                from: from[at..].as_ptr() as u64,
                to: to[at..].as_mut_ptr() as u64,
                bytes: 10,
                node,
            });
        }
        let mut done: Vec<_> = (0..10).filter_map(|_| ends.next(None)).collect();
        done.sort_by_key(|done| done.id);
        assert_eq!(done.iter().map(|done| done.id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        assert_eq!(from, to);
        assert!(done[3].ended - done[3].began >= 10_000, "10 bytes at 1 MB/s");
        assert_eq!(ends.next(Some(0)), None, "that time has come");
    }
}
