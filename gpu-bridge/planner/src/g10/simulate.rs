//! Running a plan whose excess is left to eviction at run time.
//!
//! Time passes in ticks of one page batch on the link. In each tick pages leave and arrive within the rates of the link
//! and the far tier, in this order: planned departures, faults from the far tier and the host, faults on fresh memory,
//! planned returns, planned allocations. Where the device is full, an arrival evicts the page that came first, to the
//! host while it has room. A kernel starts when all its pages are there; faults overlap its execution as in G10's model:
//! it ends when its time and that of its faults have passed, and not before they have all arrived.
//!
//! After G10's page simulator (tick, order of the queues, eviction by arrival, two iterations of which the second
//! counts), from reading its source. Pages of a tensor in one place are counted, not told apart (ours).

use super::intervals::{Lifetime, kernel_starts, lifetimes};
use super::load::Workload;
use super::pages::{Pages, Place, Queue};
use super::plan::{Backing, Plan, allocated};
use super::profile::Profile;

/// Why a plan could not be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    /// The tensors of one kernel alone are larger than the device.
    #[error("kernel {kernel} needs {need} B at once, the device has {device} B")]
    TooLarge {
        /// The kernel.
        kernel: usize,
        /// Bytes it uses.
        need: u64,
        /// Bytes there are.
        device: u64,
    },
    /// A kernel waited a thousand iterations' time for its data.
    #[error("kernel {kernel} never got its data: transfers undo each other")]
    Stuck {
        /// The kernel.
        kernel: usize,
    },
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Run {
    /// Time of the second iteration, µs.
    pub iteration_us: f64,
    /// Time with all data on the device, µs.
    pub ideal_us: f64,
    /// Kernels of that iteration that waited for data.
    pub stalled_kernels: usize,
    /// Bytes that left for the far tier and for the host in it, planned or evicted.
    pub out_bytes: (u64, u64),
    /// Of these, bytes evicted because the device was full.
    pub evicted_bytes: u64,
}

impl Run {
    /// Ideal over actual time.
    pub fn ratio(&self) -> f64 {
        self.ideal_us / self.iteration_us
    }
}

/// What happens at the start of a kernel, besides the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hint {
    Free(u32),
    LeaveFar(u32),
    LeaveHost(u32),
    Return(u32),
    Alloc(u32),
}

/// Runs two iterations of `w` under `plan` and reports the second.
pub fn simulate(w: &Workload, plan: &Plan, p: &Profile) -> Result<Run, SimulateError> {
    let mut machine = Machine::new(w, plan, p);
    machine.check()?;
    machine.iteration()?;
    let start_us = machine.now_us;
    machine.run = Run::default();
    machine.iteration()?;
    let out = machine.run.out_bytes;
    let bytes = |pages| pages * p.page_bytes;
    Ok(Run {
        iteration_us: machine.now_us - start_us,
        ideal_us: w.ideal_us(),
        out_bytes: (bytes(out.0), bytes(out.1)),
        evicted_bytes: bytes(machine.run.evicted_bytes),
        ..machine.run
    })
}

struct Machine<'a> {
    w: &'a Workload,
    p: &'a Profile,
    hints: Vec<Vec<Hint>>,
    pages: Pages,
    /// Pages of each tensor and of each kernel's workspace.
    sizes: Vec<u64>,
    now_us: f64,
    next_tick_us: f64,
    tick_us: f64,
    far_per_tick: u64,
    alloc_per_tick: u64,
    /// Tensors of the running kernel.
    needed: Vec<bool>,
    /// Counts pages, not bytes, until the end.
    run: Run,
}

/// What one tick can still carry.
struct Quota {
    into: u64,
    into_far: u64,
    out: u64,
    out_far: u64,
    alloc: u64,
}

impl<'a> Machine<'a> {
    fn new(w: &'a Workload, plan: &Plan, p: &'a Profile) -> Self {
        let workspaces = w.kernels.iter().map(|k| k.workspace_bytes);
        let sizes: Vec<u64> =
            w.tensors.iter().map(|t| t.bytes).chain(workspaces).map(|b| b.div_ceil(p.page_bytes)).collect();
        let tick_us = (p.fault_batch * p.page_bytes) as f64 / p.link;
        Machine {
            hints: hints(w, plan, p),
            pages: Pages::new(sizes.iter().copied(), p.device_bytes / p.page_bytes, p.host_bytes / p.page_bytes),
            now_us: 0.0,
            next_tick_us: 0.0,
            tick_us,
            far_per_tick: ((p.fault_batch as f64 * p.far / p.link) as u64).clamp(1, p.fault_batch),
            alloc_per_tick: ((tick_us / (p.alloc_us_per_byte * p.page_bytes as f64)) as u64).max(1),
            needed: vec![false; sizes.len()],
            sizes,
            run: Run::default(),
            w,
            p,
        }
    }

    /// Tensors of a kernel and its workspace.
    fn uses(&self, kernel: usize) -> Vec<u32> {
        let workspace = (self.w.tensors.len() + kernel) as u32;
        self.w.kernels[kernel].uses().chain([workspace]).filter(|&t| self.sizes[t as usize] > 0).collect()
    }

    fn check(&self) -> Result<(), SimulateError> {
        let device = self.p.device_bytes / self.p.page_bytes;
        for kernel in 0..self.w.kernels.len() {
            let need: u64 = self.uses(kernel).iter().map(|&t| self.sizes[t as usize]).sum();
            if need > device {
                let bytes = |pages| pages * self.p.page_bytes;
                return Err(SimulateError::TooLarge { kernel, need: bytes(need), device: bytes(device) });
            }
        }
        Ok(())
    }

    fn iteration(&mut self) -> Result<(), SimulateError> {
        let patience_us = 1000.0 * (self.w.ideal_us() + self.tick_us);
        for kernel in 0..self.w.kernels.len() {
            let uses = self.uses(kernel);
            uses.iter().for_each(|&t| self.needed[t as usize] = true);
            for h in 0..self.hints[kernel].len() {
                self.issue(self.hints[kernel][h]);
            }
            let began_us = self.now_us;
            let mut end_us = began_us + self.w.kernels[kernel].time_us;
            if !uses.iter().all(|&t| self.pages.resident(t)) {
                self.run.stalled_kernels += 1;
                self.next_tick_us = self.next_tick_us.max(self.now_us);
                end_us += self.fault_us(kernel);
                while !uses.iter().all(|&t| self.pages.resident(t)) {
                    uses.iter().for_each(|&t| self.fault(t));
                    self.tick();
                    self.now_us = self.next_tick_us;
                    if self.now_us - began_us > patience_us {
                        return Err(SimulateError::Stuck { kernel });
                    }
                }
            }
            uses.iter().for_each(|&t| self.needed[t as usize] = false);
            self.now_us = self.now_us.max(end_us);
            self.pass();
        }
        Ok(())
    }

    fn issue(&mut self, hint: Hint) {
        match hint {
            Hint::Free(t) => self.pages.free_idle(t),
            Hint::LeaveFar(t) => self.pages.enqueue(t, Place::Device, Queue::LeaveFar),
            Hint::LeaveHost(t) => self.pages.enqueue(t, Place::Device, Queue::LeaveHost),
            Hint::Return(t) => {
                self.pages.enqueue(t, Place::Far, Queue::FetchFar);
                self.pages.enqueue(t, Place::Host, Queue::FetchHost);
            }
            Hint::Alloc(t) => self.pages.enqueue(t, Place::Absent, Queue::Alloc),
        }
    }

    fn fault(&mut self, t: u32) {
        self.pages.enqueue(t, Place::Far, Queue::FaultFar);
        self.pages.enqueue(t, Place::Host, Queue::FaultHost);
        self.pages.enqueue(t, Place::Absent, Queue::FaultAlloc);
    }

    /// Time the faults of a kernel add to it, µs: the far tier's and the host's side by side, each at its rate.
    fn fault_us(&self, kernel: usize) -> f64 {
        let (mut far, mut near) = (0, 0);
        for t in self.uses(kernel) {
            far += self.pages.idle(t, Place::Far);
            near += self.pages.idle(t, Place::Host) + self.pages.idle(t, Place::Absent);
        }
        let us = |pages: u64, rate: f64| (pages * self.p.page_bytes) as f64 / rate;
        let link = if far > 0 { self.p.link - self.p.far.min(self.p.link / 2.0) } else { self.p.link };
        us(far, self.p.far).max(us(near, link))
    }

    /// Lets transfers go on until now.
    fn pass(&mut self) {
        while self.next_tick_us < self.now_us {
            if self.pages.all_quiet() {
                let ticks = ((self.now_us - self.next_tick_us) / self.tick_us).ceil();
                self.next_tick_us += ticks * self.tick_us;
                return;
            }
            self.tick();
        }
    }

    fn tick(&mut self) {
        self.next_tick_us += self.tick_us;
        let batch = self.p.fault_batch;
        let mut q = Quota {
            into: batch,
            into_far: self.far_per_tick,
            out: batch,
            out_far: self.far_per_tick,
            alloc: self.alloc_per_tick,
        };
        self.leave(Queue::LeaveFar, Place::Far, &mut q);
        self.leave(Queue::LeaveHost, Place::Host, &mut q);
        self.arrive(Queue::FaultFar, Place::Far, &mut q);
        self.arrive(Queue::FaultHost, Place::Host, &mut q);
        self.arrive(Queue::FaultAlloc, Place::Absent, &mut q);
        self.arrive(Queue::FetchFar, Place::Far, &mut q);
        self.arrive(Queue::FetchHost, Place::Host, &mut q);
        self.arrive(Queue::Alloc, Place::Absent, &mut q);
    }

    fn leave(&mut self, queue: Queue, to: Place, q: &mut Quota) {
        while let Some((t, waiting)) = self.pages.front(queue) {
            let (to, n) = self.way_out(to, waiting, q);
            if n == 0 {
                return;
            }
            self.pages.advance(queue, Place::Device, to, n);
            self.left(t, to, n, q);
        }
    }

    /// Where up to `n` pages can go in this tick, and how many: a full host passes them on to the far tier.
    fn way_out(&self, to: Place, n: u64, q: &Quota) -> (Place, u64) {
        if to == Place::Host && self.pages.host_free > 0 {
            return (Place::Host, n.min(q.out).min(self.pages.host_free));
        }
        (Place::Far, n.min(q.out).min(q.out_far))
    }

    fn left(&mut self, t: u32, to: Place, n: u64, q: &mut Quota) {
        q.out -= n;
        if to == Place::Far {
            q.out_far -= n;
            self.run.out_bytes.0 += n;
        } else {
            self.run.out_bytes.1 += n;
        }
        if self.needed[t as usize] {
            self.fault(t);
        }
    }

    fn arrive(&mut self, queue: Queue, from: Place, q: &mut Quota) {
        while let Some((_, waiting)) = self.pages.front(queue) {
            let limit = match from {
                Place::Far => q.into.min(q.into_far).min(q.alloc),
                Place::Host => q.into.min(q.alloc),
                _ => q.alloc,
            };
            let n = self.room(waiting.min(limit), q);
            if n == 0 {
                return;
            }
            self.pages.advance(queue, from, Place::Device, n);
            q.alloc -= n;
            if from != Place::Absent {
                q.into -= n;
            }
            if from == Place::Far {
                q.into_far -= n;
            }
        }
    }

    /// Free device pages up to `n`, by eviction if need be.
    fn room(&mut self, n: u64, q: &mut Quota) -> u64 {
        while self.pages.free < n {
            let (to, out) = self.way_out(Place::Host, n - self.pages.free, q);
            if out == 0 {
                break;
            }
            let Some((t, out)) = self.pages.evict_first(to, out) else { break };
            self.run.evicted_bytes += out;
            self.left(t, to, out, q);
        }
        n.min(self.pages.free)
    }
}

/// All hints by kernel: what dies is freed, what the plan moves leaves and returns, results are allocated ahead.
fn hints(w: &Workload, plan: &Plan, p: &Profile) -> Vec<Vec<Hint>> {
    let kernels = w.kernels.len();
    let starts_us = kernel_starts(w);
    let mut hints = vec![Vec::new(); kernels];
    let mut lives: Vec<(u32, u64, Lifetime)> = Vec::new();
    for (t, life) in w.tensors.iter().zip(lifetimes(w)) {
        lives.extend(life.map(|l| (t.id, t.bytes, l)));
    }
    for (k, kernel) in w.kernels.iter().enumerate() {
        lives.push(((w.tensors.len() + k) as u32, kernel.workspace_bytes, Lifetime { birth: k, death: k + 1 }));
    }
    for (t, bytes, life) in lives.into_iter().filter(|&(_, bytes, _)| bytes > 0) {
        let (from, to) = allocated(life, bytes, p, &starts_us);
        hints[from].push(Hint::Alloc(t));
        hints[to % kernels].push(Hint::Free(t));
    }
    for m in &plan.moves {
        hints[m.evict_at].push(if m.to == Backing::Far { Hint::LeaveFar(m.tensor) } else { Hint::LeaveHost(m.tensor) });
        hints[m.prefetch_at].push(Hint::Return(m.tensor));
    }
    hints.iter_mut().for_each(|h| h.sort());
    hints
}
