//! Running a step under a memory budget.

use super::log::{OpId, OpLog, Step, StorageId, TensorId};
use super::state::{Place, State};

/// Why a run ended before the step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Nothing more may be evicted, and the results still do not fit.
    #[error("out of memory: {wanted} B more do not fit beside {held} B that cannot be evicted")]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes held when nothing was left to evict.
        held: u64,
    },
    /// Recomputation took more than the caller's limit.
    #[error("recomputation passed its limit")]
    RematLimit,
}

/// How a run makes room, and how it brings back what it moved away.
pub trait Policy {
    /// The results of a call exist from now on, though they are not computed yet.
    fn created(&mut self, _state: &State<'_>, _op: OpId) {}

    /// Frees device memory until `bytes` more fit into the budget.
    fn make_room(&mut self, state: &mut State<'_>, bytes: u64) -> Result<(), Stop>;

    /// A storage was dropped because the program let go of it.
    fn released(&mut self, _state: &mut State<'_>, _s: StorageId) {}

    /// Brings a storage from the host back; called only for [`Place::Host`].
    fn restore(&mut self, state: &mut State<'_>, s: StorageId) -> Result<(), Stop>;

    /// Lets the time of a call pass on the clock. `again` says that it is a recomputation.
    fn run(&mut self, state: &mut State<'_>, op: OpId, _again: bool) {
        state.clock += state.log.ops[op as usize].time_ns;
    }

    /// A call ended and these storages came into being by it.
    fn computed(&mut self, _state: &mut State<'_>, _fresh: &[StorageId]) {}

    /// A call is about to run. While it waits for data the device is idle: a tensor that will be missed soon may be
    /// computed in that time. Asked again until there is none.
    fn compute_ahead(&mut self, _state: &State<'_>, _op: OpId) -> Option<TensorId> {
        None
    }

    /// A program instruction is done; `next` is the index of the one that follows.
    fn stepped(&mut self, _state: &mut State<'_>, _next: usize) -> Result<(), Stop> {
        Ok(())
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Why it ended early, if it did.
    pub stop: Option<Stop>,
    /// Time of the step, ns: all it took until it ended.
    pub time_ns: u64,
    /// Time of the step without a memory limit, ns.
    pub base_ns: u64,
    /// Time spent on recomputation, ns.
    pub remat_ns: u64,
    /// Most device bytes held.
    pub peak_bytes: u64,
    /// Storages evicted under pressure.
    pub evictions: u64,
}

impl Outcome {
    /// Time over base time; `None` if the step did not end.
    pub fn overhead(&self) -> Option<f64> {
        self.stop.is_none().then(|| self.time_ns as f64 / self.base_ns.max(1) as f64)
    }
}

/// A step, a budget and a policy.
#[derive(Debug)]
pub struct Runtime<'a, P> {
    state: State<'a>,
    policy: P,
    remat_limit_ns: u64,
    /// Computing ahead of time; what that needs is not itself ahead of anything.
    ahead: bool,
}

/// A result being computed again, whose inputs come first. The chain of these replaces the call stack: a log may make
/// it as long as itself.
struct Frame {
    target: TensorId,
    missing: std::vec::IntoIter<TensorId>,
    /// The input that the frame above is bringing back.
    awaited: Option<TensorId>,
    again: bool,
}

impl<'a, P: Policy> Runtime<'a, P> {
    /// A run of `log` in which at most `budget` bytes are held.
    pub fn new(log: &'a OpLog, budget: u64, policy: P) -> Self {
        Runtime { state: State::new(log, budget), policy, remat_limit_ns: u64::MAX, ahead: false }
    }

    /// Ends the run once recomputation has taken longer than this, ns.
    pub fn remat_limit(mut self, ns: u64) -> Self {
        self.remat_limit_ns = ns;
        self
    }

    /// Runs the step.
    pub fn run(self) -> Outcome {
        self.run_with_policy().0
    }

    /// Runs the step and gives the policy back, for what it counted.
    pub fn run_with_policy(mut self) -> (Outcome, P) {
        let stop = self.steps().err();
        let s = &self.state;
        let outcome = Outcome {
            stop,
            time_ns: s.clock,
            base_ns: s.log.base_ns,
            remat_ns: s.remat_ns,
            peak_bytes: s.peak,
            evictions: s.evictions,
        };
        (outcome, self.policy)
    }

    fn steps(&mut self) -> Result<(), Stop> {
        let log = self.state.log;
        for (i, &step) in log.steps.iter().enumerate() {
            match step {
                Step::Run(op) => {
                    self.state.create(op);
                    self.policy.created(&self.state, op);
                    self.materialise(log.ops[op as usize].outputs[0], false)?;
                    for &t in &log.ops[op as usize].outputs {
                        self.touch(t);
                    }
                }
                Step::Acquire(t) => self.state.storages[log.storage_of(t) as usize].refs += 1,
                Step::Pin(t) => {
                    self.bring_back(t)?;
                    let s = log.storage_of(t) as usize;
                    if !self.state.storages[s].pinned {
                        self.state.lock(t);
                        self.state.storages[s].pinned = true;
                    }
                }
                Step::Release(t) => self.release(log.storage_of(t)),
            }
            self.policy.stepped(&mut self.state, i + 1)?;
        }
        Ok(())
    }

    fn release(&mut self, s: StorageId) {
        let storage = &mut self.state.storages[s as usize];
        storage.refs -= 1;
        if storage.refs == 0 && storage.place != Place::Gone && !storage.pinned {
            self.state.drop_storage(s);
            self.policy.released(&mut self.state, s);
        }
    }

    fn touch(&mut self, t: TensorId) {
        let s = self.state.log.storage_of(t) as usize;
        self.state.storages[s].used_at = self.state.clock;
    }

    /// Makes a tensor readable, by a transfer or by computing it again.
    fn bring_back(&mut self, t: TensorId) -> Result<(), Stop> {
        if self.state.readable(t) {
            return Ok(());
        }
        if self.state.defined[t as usize] {
            let s = self.state.log.storage_of(t);
            return self.policy.restore(&mut self.state, s);
        }
        self.materialise(t, true)
    }

    /// Computes a tensor from its inputs, and these from theirs where they are gone.
    fn materialise(&mut self, target: TensorId, again: bool) -> Result<(), Stop> {
        let mut stack = vec![self.enter(target, again)];
        while let Some(frame) = stack.last_mut() {
            if let Some(t) = frame.awaited.take() {
                self.state.lock(t);
            }
            let Some(t) = frame.missing.next() else {
                let (target, again) = (frame.target, frame.again);
                stack.pop();
                self.compute(target, again)?;
                continue;
            };
            frame.awaited = Some(t);
            if self.state.readable(t) {
                // It came back beside one of its siblings.
            } else if self.state.defined[t as usize] {
                let s = self.state.log.storage_of(t);
                self.policy.restore(&mut self.state, s)?;
            } else {
                stack.push(self.enter(t, true));
            }
        }
        Ok(())
    }

    /// Locks the inputs that are there and lists those that are not.
    fn enter(&mut self, target: TensorId, again: bool) -> Frame {
        let parents = self.state.parents(target);
        for &p in parents {
            self.touch(p);
        }
        let (there, missing): (Vec<_>, Vec<_>) = parents.iter().partition(|&&p| self.state.readable(p));
        for p in there {
            self.state.lock(p);
        }
        Frame { target, missing: missing.into_iter(), awaited: None, again }
    }

    fn compute(&mut self, target: TensorId, again: bool) -> Result<(), Stop> {
        let op = self.state.log.tensors[target as usize].op;
        let bytes = self.state.log.ops[op as usize].bytes;
        while !self.ahead
            && let Some(t) = self.policy.compute_ahead(&self.state, op)
        {
            self.ahead = true;
            let done = self.bring_back(t);
            self.ahead = false;
            done?;
        }
        if self.state.held + bytes > self.state.budget {
            self.policy.make_room(&mut self.state, bytes)?;
        }
        self.policy.run(&mut self.state, op, again);
        if again {
            self.state.remat_ns += self.state.log.ops[op as usize].time_ns;
        }
        let fresh = self.state.define(target);
        self.policy.computed(&mut self.state, &fresh);
        for &p in self.state.parents(target) {
            self.state.unlock(p);
        }
        if self.state.remat_ns > self.remat_limit_ns { Err(Stop::RematLimit) } else { Ok(()) }
    }
}
