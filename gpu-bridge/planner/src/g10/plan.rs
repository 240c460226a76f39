//! The planner: which tensors leave during which idle intervals, and when they return.
//!
//! 1. Device memory by kernel is estimated from liveness; a result counts from its allocation, a little before the
//!    kernel that writes it.
//! 2. An interval's benefit is its tensor's size times the time within it during which memory is above the device's
//!    capacity, where half a transfer under the present load of the far tier's links is cut off at each end. Ties go to
//!    the larger size times idle time.
//! 3. The best interval is taken. If a round trip to the far tier fits into it with slack, it goes there, unless that
//!    tier's link is full until the transfer should be done and the host has room: then to the host. If only a round
//!    trip to the host fits, it goes to the host. In any case the return must start after the departure has ended.
//!    Intervals that wrap around the iteration are planned by plain time, without booking the links, as G10 does.
//! 4. This repeats until every kernel is below the line or no interval helps.
//! 5. Each return is moved earlier, one kernel at a time, while memory is below the line there.
//!
//! [`Rules`] says whether three accidents of G10's source are kept: how it books the links, a slip of one kernel in the
//! benefit of intervals that wrap, and that it goes on with arbitrary intervals when none has a benefit any more.

use std::collections::BinaryHeap;

use serde::Deserialize;

use super::candidate::{Candidate, Ranked};
use super::intervals::{Interval, Lifetime, idle_intervals, kernel_starts, lifetimes};
use super::links::{Link, Route};
use super::load::Workload;
use super::order::sort_like_gcc;
use super::profile::{Profile, Rules};

/// Memory that holds a tensor while it is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backing {
    /// The far tier: an SSD in G10, CXL memory in ours.
    #[serde(alias = "ssd", alias = "cxl")]
    Far,
    /// Host memory.
    #[serde(alias = "dram")]
    Host,
}

/// One tensor leaving and coming back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Move {
    /// The tensor.
    pub tensor: u32,
    /// Its size.
    pub bytes: u64,
    /// Kernel at whose start it begins to leave.
    pub evict_at: usize,
    /// Where it goes.
    pub to: Backing,
    /// Kernel at whose start it begins to return; below `evict_at` if that is in the next iteration.
    pub prefetch_at: usize,
}

/// The moves of one iteration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Plan {
    /// In order of departure.
    pub moves: Vec<Move>,
    /// Estimated device bytes by kernel before any move.
    #[serde(default)]
    pub gpu_bytes_before_moves: Vec<u64>,
    /// After the moves, before their returns were advanced.
    #[serde(default)]
    pub gpu_bytes_after_moves: Vec<u64>,
    /// In the end.
    #[serde(default)]
    pub gpu_bytes_after_prefetch_advance: Vec<u64>,
}

impl Plan {
    /// Bytes that go to a tier, each way.
    pub fn bytes_to(&self, backing: Backing) -> u64 {
        self.moves.iter().filter(|m| m.to == backing).map(|m| m.bytes).sum()
    }
}

/// An interval the planner used, with what the links made of it.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// The move.
    pub plan: Move,
    /// Kernel during which it has left.
    pub gone_at: usize,
    /// Kernel of the next use, counted on through the next iteration.
    pub needed_at: usize,
}

/// Plans one iteration of `w` on the machine `p`.
pub fn plan(w: &Workload, p: &Profile) -> Plan {
    let starts_us = kernel_starts(w);
    let candidate = |interval: Interval| {
        let bytes = w.tensors[interval.tensor as usize].bytes;
        Candidate { interval, bytes, open: true, benefit: 0.0 }
    };
    let mut planner = Planner {
        memory: memory_by_kernel(w, p, &starts_us),
        host: vec![0; w.kernels.len()],
        out: Link::new(&starts_us, p),
        back: Link::new(&starts_us, p),
        candidates: idle_intervals(w, &starts_us).into_iter().map(candidate).collect(),
        starts_us,
        p,
    };
    let before = planner.memory.clone();
    let moves = planner.choose();
    let after = planner.memory.clone();
    let (mut booked, wrapped): (Vec<_>, Vec<_>) = moves.into_iter().partition(|m| m.needed_at < w.kernels.len());
    planner.advance(&mut booked);
    let mut moves: Vec<Move> = booked.into_iter().chain(wrapped).map(|m| m.plan).collect();
    moves.sort_by_key(|m| (m.evict_at, m.tensor));
    let bytes = |curve: &[i64]| curve.iter().map(|&b| b.max(0) as u64).collect();
    Plan {
        moves,
        gpu_bytes_before_moves: bytes(&before),
        gpu_bytes_after_moves: bytes(&after),
        gpu_bytes_after_prefetch_advance: bytes(&planner.memory),
    }
}

/// Device bytes by kernel with nothing moved. Like G10, it counts tensor 0, the input of the next iteration, throughout
/// and once more for the copy being loaded.
fn memory_by_kernel(w: &Workload, p: &Profile, starts_us: &[f64]) -> Vec<i64> {
    let kernels = w.kernels.len();
    let mut change = vec![0i64; kernels + 1];
    for (t, life) in w.tensors.iter().zip(lifetimes(w)) {
        let bytes = t.bytes as i64;
        let (from, to) = match life {
            _ if t.id == 0 => (0, kernels),
            Some(life) => allocated(life, t.bytes, p, starts_us),
            None => (0, kernels),
        };
        let copies = if t.id == 0 { 2 } else { 1 };
        change[from] += copies * bytes;
        change[to] -= copies * bytes;
    }
    for (k, kernel) in w.kernels.iter().enumerate() {
        let life = Lifetime { birth: k, death: k + 1 };
        let (from, to) = allocated(life, kernel.workspace_bytes, p, starts_us);
        change[from] += kernel.workspace_bytes as i64;
        change[to] -= kernel.workspace_bytes as i64;
    }
    let mut held = 0;
    change[..kernels]
        .iter()
        .map(|c| {
            held += c;
            held
        })
        .collect()
}

/// The lifetime, from the kernel during which the memory is taken.
pub(super) fn allocated(life: Lifetime, bytes: u64, p: &Profile, starts_us: &[f64]) -> (usize, usize) {
    let at = starts_us[life.birth] - bytes as f64 * p.alloc_us_per_byte;
    let from = starts_us[..life.birth].partition_point(|&s| s <= at).saturating_sub(1);
    (from, life.death)
}

/// A kernel above the device's capacity.
struct Above {
    /// Counted on through the next iteration.
    kernel: usize,
    us: f64,
    /// Time of those before it.
    before_us: f64,
}

struct Planner<'a> {
    p: &'a Profile,
    starts_us: Vec<f64>,
    /// Device bytes by kernel. Signed: what wraps may be taken out of an estimate that did not count it.
    memory: Vec<i64>,
    /// Host bytes by kernel.
    host: Vec<u64>,
    out: Link,
    back: Link,
    candidates: Vec<Candidate>,
}

impl Planner<'_> {
    fn choose(&mut self) -> Vec<Planned> {
        let line = self.p.line_bytes() as i64;
        let kernels = self.memory.len();
        let mut moves = Vec::new();
        let mut queue = self.queue();
        while self.memory.iter().any(|&b| b > line) {
            let best = match self.p.rules {
                Rules::G10 => {
                    self.rate();
                    sort_like_gcc(&mut self.candidates, &Candidate::better_than);
                    Some(0).filter(|_| self.candidates.first().is_some_and(|c| c.open))
                }
                Rules::Clean => self.best(&mut queue),
            };
            let Some(best) = best else { break };
            self.candidates[best].open = false;
            let Candidate { interval, bytes, .. } = self.candidates[best];
            let span = interval.start..interval.unwrapped_end(kernels);
            if span.len() > 1 && span.clone().any(|k| self.memory[k % kernels] > line) {
                moves.extend(self.place(&interval, bytes));
            }
        }
        moves
    }

    /// All candidates, the best first, for [`Planner::best`].
    fn queue(&mut self) -> BinaryHeap<Ranked> {
        if self.p.rules == Rules::G10 {
            return BinaryHeap::new();
        }
        self.rate();
        self.candidates.iter().enumerate().map(|(at, &c)| Ranked { c, at }).collect()
    }

    /// The open interval of the greatest benefit; none if none has any. Memory only falls and links only fill, so a
    /// benefit never grows: one that is still the greatest after a new look is the greatest of all.
    fn best(&self, queue: &mut BinaryHeap<Ranked>) -> Option<usize> {
        let above = self.above();
        loop {
            let mut first = queue.pop()?;
            first.c.benefit = self.benefit(&first.c, &above);
            if first.c.benefit <= 0.0 {
                continue;
            }
            if queue.peek().is_none_or(|next| *next <= first) {
                return Some(first.at);
            }
            queue.push(first);
        }
    }

    /// Works out every candidate's benefit under the present load.
    fn rate(&mut self) {
        let above = self.above();
        for i in 0..self.candidates.len() {
            let c = self.candidates[i];
            self.candidates[i].benefit = if c.open { self.benefit(&c, &above) } else { 0.0 };
        }
    }

    /// The kernels above the device's capacity, counted on through the next iteration.
    fn above(&self) -> Vec<Above> {
        let kernels = self.memory.len();
        let full = (0..2 * kernels).filter(|j| self.memory[j % kernels] > self.p.device_bytes as i64);
        let above = full.map(|j| {
            // G10 indexes memory by the kernel and time by the boundary: beyond the wrap they are out of step.
            let lap = if self.p.rules == Rules::G10 { kernels + 1 } else { kernels };
            let from = if j < kernels { j } else { j % lap };
            let to = if j < kernels { j + 1 } else { (j + 1) % lap };
            let to = if lap == kernels && to == 0 { kernels } else { to };
            (j, self.starts_us[to] - self.starts_us[from])
        });
        let mut before_us = 0.0;
        above
            .map(|(kernel, us)| {
                before_us += us;
                Above { kernel, us, before_us: before_us - us }
            })
            .collect()
    }

    fn benefit(&self, c: &Candidate, above: &[Above]) -> f64 {
        let i = &c.interval;
        let (from, to) = if i.wraps() {
            (i.start, i.unwrapped_end(self.memory.len()))
        } else {
            let half = (c.bytes / 2) as i64;
            (self.out.done_at(Route::Far, half, i.start), self.back.send_at(Route::Far, half, i.end))
        };
        let first = above.partition_point(|a| a.kernel < from);
        let within = &above[first..above.partition_point(|a| a.kernel < to).max(first)];
        match (self.p.rules, within) {
            // The same rounding as G10's.
            (Rules::G10, _) => within.iter().map(|a| c.bytes as f64 * a.us).sum(),
            (Rules::Clean, [first, .., last]) => c.bytes as f64 * (last.before_us + last.us - first.before_us),
            (Rules::Clean, _) => within.iter().map(|a| c.bytes as f64 * a.us).sum(),
        }
    }

    fn place(&mut self, i: &Interval, bytes: u64) -> Option<Planned> {
        let (far_us, host_us) = (self.p.far_us(bytes), self.p.host_us(bytes));
        let fits_far = i.idle_us > self.p.round_trip_us(far_us);
        let fits_host = i.idle_us > self.p.round_trip_us(host_us);
        let host_has_room = self.host.iter().all(|&b| b + bytes <= self.p.host_bytes);
        let route = if fits_far {
            let done = self.kernel_at(self.starts_us[i.start] + far_us);
            let crowded = !i.wraps() && !self.out.open(Route::Far, i.start..done.max(i.start));
            if crowded && host_has_room { Route::Host } else { Route::Far }
        } else if fits_host && host_has_room {
            Route::Host
        } else {
            return None;
        };
        let planned = if i.wraps() {
            self.by_time(i, bytes, route, if route == Route::Far { far_us } else { host_us })
        } else {
            self.by_links(i, bytes, route)
        }?;
        if route == Route::Host {
            let kernels = self.host.len();
            (i.start..i.unwrapped_end(kernels)).for_each(|k| self.host[k % kernels] += bytes);
        }
        let kernels = self.memory.len();
        let back = planned.returns_at(kernels);
        (planned.gone_at + 1..back).for_each(|k| self.memory[k % kernels] -= bytes as i64);
        Some(planned)
    }

    /// Departure and return by what the links have left, which they then have no more.
    fn by_links(&mut self, i: &Interval, bytes: u64, route: Route) -> Option<Planned> {
        let prefetch_at = self.back.send_at(route, bytes as i64, i.end);
        let gone_at = self.out.done_at(route, bytes as i64, i.start);
        if prefetch_at <= gone_at {
            return None;
        }
        self.back.book(route, bytes as i64, prefetch_at);
        self.out.book(route, bytes as i64, i.start);
        Some(Planned { plan: i.to_move(bytes, route, prefetch_at), gone_at, needed_at: i.end })
    }

    /// Departure and return by the time of an idle link.
    fn by_time(&self, i: &Interval, bytes: u64, route: Route, one_way_us: f64) -> Option<Planned> {
        let kernels = self.memory.len();
        let end = i.unwrapped_end(kernels);
        let end_us = self.starts_us[kernels] + self.starts_us[i.end];
        let gone_at = self.kernel_at(self.starts_us[i.start] + one_way_us);
        let prefetch_at = self.kernel_at(end_us - one_way_us * (1.0 + self.p.slack));
        (prefetch_at > i.start).then(|| Planned {
            plan: i.to_move(bytes, route, prefetch_at % kernels),
            gone_at,
            needed_at: end,
        })
    }

    /// The kernel running at a time, counted on through the next iteration.
    fn kernel_at(&self, us: f64) -> usize {
        let kernels = self.memory.len();
        let (laps, rest) = if us >= self.starts_us[kernels] { (1, us - self.starts_us[kernels]) } else { (0, us) };
        laps * kernels + self.starts_us[..kernels].partition_point(|&s| s <= rest).saturating_sub(1)
    }

    /// Moves each return earlier while there is room, those that return first first. Those in the next iteration stay.
    fn advance(&mut self, moves: &mut [Planned]) {
        let line = self.p.line_bytes() as i64;
        match self.p.rules {
            Rules::G10 => sort_like_gcc(moves, &|a, b| a.plan.prefetch_at < b.plan.prefetch_at),
            Rules::Clean => moves.sort_by_key(|m| m.plan.prefetch_at),
        }
        for m in moves {
            let at = &mut m.plan.prefetch_at;
            while *at > m.gone_at + 1 && self.memory[*at - 1] < line {
                *at -= 1;
                self.memory[*at] += m.plan.bytes as i64;
            }
        }
    }
}

impl Interval {
    fn to_move(self, bytes: u64, route: Route, prefetch_at: usize) -> Move {
        let to = if route == Route::Far { Backing::Far } else { Backing::Host };
        Move { tensor: self.tensor, bytes, evict_at: self.start, to, prefetch_at }
    }
}

impl Planned {
    /// Kernel at whose start the return begins, counted on through the next iteration.
    fn returns_at(&self, kernels: usize) -> usize {
        let at = self.plan.prefetch_at;
        if at < self.plan.evict_at { at + kernels } else { at }
    }
}
