//! Where the pages of each tensor are, and what is on its way.
//!
//! Pages of one tensor that are in the same place are alike, so only their numbers are kept.

use std::collections::{BTreeMap, VecDeque};

/// Where pages are. Those on their way somewhere still count where they come from, but apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Not allocated.
    Absent,
    Device,
    Host,
    Far,
}

/// A transfer waiting for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    LeaveFar,
    LeaveHost,
    FaultFar,
    FaultHost,
    FaultAlloc,
    FetchFar,
    FetchHost,
    Alloc,
}

const QUEUES: usize = 8;

#[derive(Clone, Debug, Default)]
struct Counts {
    /// Pages at rest, by place.
    idle: [u64; 4],
    /// Pages that wait for a transfer, by the place they are in.
    waiting: [u64; 4],
    /// Arrivals on the device with pages still idle there, oldest first.
    arrivals: VecDeque<u64>,
}

/// All pages.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    tensors: Vec<Counts>,
    queues: [VecDeque<(u32, u64)>; QUEUES],
    /// Idle device pages by arrival: the eviction order. G10 does not note accesses, so its least recently used page is
    /// the one that came first.
    arrivals: BTreeMap<u64, (u32, u64)>,
    next_arrival: u64,
    pub(super) free: u64,
    pub(super) host_free: u64,
}

impl Pages {
    pub(super) fn new(sizes: impl Iterator<Item = u64>, device: u64, host: u64) -> Self {
        let absent = |pages| Counts { idle: [pages, 0, 0, 0], ..Counts::default() };
        Pages {
            tensors: sizes.map(absent).collect(),
            queues: Default::default(),
            arrivals: BTreeMap::new(),
            next_arrival: 0,
            free: device,
            host_free: host,
        }
    }

    pub(super) fn idle(&self, t: u32, place: Place) -> u64 {
        self.tensors[t as usize].idle[place as usize]
    }

    /// True if every page is on the device and stays there.
    pub(super) fn resident(&self, t: u32) -> bool {
        let c = &self.tensors[t as usize];
        [Place::Absent, Place::Host, Place::Far].iter().all(|&p| c.idle[p as usize] == 0)
            && c.waiting.iter().all(|&n| n == 0)
    }

    /// Puts all idle pages of a tensor in `from` into a queue.
    pub(super) fn enqueue(&mut self, t: u32, from: Place, queue: Queue) {
        let n = std::mem::take(&mut self.tensors[t as usize].idle[from as usize]);
        if n > 0 {
            if from == Place::Device {
                self.forget_arrivals(t);
            }
            self.wait(t, from, queue, n);
        }
    }

    fn wait(&mut self, t: u32, from: Place, queue: Queue, n: u64) {
        self.tensors[t as usize].waiting[from as usize] += n;
        self.queues[queue as usize].push_back((t, n));
    }

    fn forget_arrivals(&mut self, t: u32) {
        for at in std::mem::take(&mut self.tensors[t as usize].arrivals) {
            self.arrivals.remove(&at);
        }
    }

    pub(super) fn all_quiet(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    /// The front of a queue: the tensor and how many of its pages wait there.
    pub(super) fn front(&self, queue: Queue) -> Option<(u32, u64)> {
        self.queues[queue as usize].front().copied()
    }

    /// Lets `n` pages of the front of a queue go from one place to another.
    pub(super) fn advance(&mut self, queue: Queue, from: Place, to: Place, n: u64) {
        let waiting = &mut self.queues[queue as usize];
        let Some(front) = waiting.front_mut() else { return };
        let t = front.0;
        front.1 -= n;
        if front.1 == 0 {
            waiting.pop_front();
        }
        self.tensors[t as usize].waiting[from as usize] -= n;
        self.occupy(from, to, n);
        self.rest(t, to, n);
    }

    /// Evicts up to `n` of the pages that came first. Returns the tensor and how many went.
    pub(super) fn evict_first(&mut self, to: Place, n: u64) -> Option<(u32, u64)> {
        let mut entry = self.arrivals.first_entry()?;
        let (t, held) = *entry.get();
        let n = n.min(held);
        if n == held {
            entry.remove();
            self.tensors[t as usize].arrivals.pop_front();
        } else {
            entry.get_mut().1 -= n;
        }
        self.tensors[t as usize].idle[Place::Device as usize] -= n;
        self.occupy(Place::Device, to, n);
        self.tensors[t as usize].idle[to as usize] += n;
        Some((t, n))
    }

    /// Frees every idle page of a tensor, wherever it is.
    pub(super) fn free_idle(&mut self, t: u32) {
        self.forget_arrivals(t);
        for place in [Place::Device, Place::Host, Place::Far] {
            let n = std::mem::take(&mut self.tensors[t as usize].idle[place as usize]);
            self.occupy(place, Place::Absent, n);
            self.tensors[t as usize].idle[Place::Absent as usize] += n;
        }
    }

    fn occupy(&mut self, from: Place, to: Place, n: u64) {
        match from {
            Place::Device => self.free += n,
            Place::Host => self.host_free += n,
            _ => {}
        }
        match to {
            Place::Device => self.free -= n,
            Place::Host => self.host_free -= n,
            _ => {}
        }
    }

    fn rest(&mut self, t: u32, place: Place, n: u64) {
        let counts = &mut self.tensors[t as usize];
        counts.idle[place as usize] += n;
        if place != Place::Device {
            return;
        }
        if let Some((last, held)) = self.arrivals.last_entry().map(|e| e.into_mut()).filter(|e| e.0 == t) {
            debug_assert_eq!(*last, t);
            *held += n;
            return;
        }
        self.arrivals.insert(self.next_arrival, (t, n));
        counts.arrivals.push_back(self.next_arrival);
        self.next_arrival += 1;
    }
}
