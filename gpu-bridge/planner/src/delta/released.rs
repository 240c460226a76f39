//! DELTA as its published code behaves, reconstructed from reading it (PyTorch fork, branch `delta`).
//!
//! After every operator, while more is allocated than the budget: take the storage with the least
//! `1 / (bytes · staleness)` among those of at least a hundredth of the mean size, and compare twice its transfer time
//! with its compute time. Above one it is dropped, else copied to the host, and the device waits for the copy. The
//! transfer time is in microseconds and the compute time in nanoseconds, which the code does not notice: almost nothing
//! is ever dropped. A storage that was swapped before compares a field that is never set, and is swapped again. Swapped
//! storages return when they are read; the code that would prefetch them is commented out.
//!
//! The budget is thus not a limit: the results of one operator may lie above it, as the outcome's peak shows.

use crate::dtr::{OpId, OpLog, Place, Policy, State, Stop, StorageId};

/// The policy, with what it decided.
#[derive(Clone, Debug)]
pub struct AsReleased {
    bytes_per_us: f64,
    smallest: u64,
    swapped_before: Vec<bool>,
    /// Releases by copying out.
    pub swaps: u64,
    /// Releases by dropping.
    pub drops: u64,
    /// Time spent on transfers, ns: none of it is hidden.
    pub transfer_ns: u64,
}

impl AsReleased {
    /// The policy for one run of `log` over a link of `rate` bytes/s. The code has 35 % of 32 GiB/s.
    pub fn new(log: &OpLog, rate: f64) -> Self {
        let total: u64 = log.tensors.iter().map(|t| t.bytes).sum();
        AsReleased {
            bytes_per_us: rate / 1e6,
            smallest: total / log.tensors.len().max(1) as u64 / 100,
            swapped_before: vec![false; log.storages.len()],
            swaps: 0,
            drops: 0,
            transfer_ns: 0,
        }
    }

    fn transfer(&mut self, state: &mut State<'_>, s: StorageId) {
        let ns = (state.log.storages[s as usize].bytes as f64 / self.bytes_per_us * 1e3) as u64;
        state.clock += ns;
        self.transfer_ns += ns;
    }

    /// The largest and stalest; the first of equals.
    fn choose(&self, state: &State<'_>) -> Option<StorageId> {
        let score = |s: StorageId| {
            let staleness = state.clock - state.storages[s as usize].used_at;
            1.0 / (state.log.storages[s as usize].bytes as f64 * staleness as f64)
        };
        let large = state.pool.iter().filter(|&s| state.log.storages[s as usize].bytes >= self.smallest.max(1));
        let scored = large.map(|s| (s, score(s))).filter(|c| c.1.is_finite());
        scored.reduce(|a, b| if b.1 < a.1 { b } else { a }).map(|c| c.0)
    }
}

impl Policy for AsReleased {
    fn make_room(&mut self, _state: &mut State<'_>, _bytes: u64) -> Result<(), Stop> {
        Ok(())
    }

    fn stepped(&mut self, state: &mut State<'_>, _next: usize) -> Result<(), Stop> {
        while state.held > state.budget {
            let Some(s) = self.choose(state) else {
                return Err(Stop::OutOfMemory { wanted: 0, held: state.held });
            };
            state.evictions += 1;
            let swap_us = state.log.storages[s as usize].bytes as f64 / self.bytes_per_us;
            let decision = 2.0 * swap_us / state.storages[s as usize].compute_ns as f64;
            if decision > 1.0 && !self.swapped_before[s as usize] {
                self.drops += 1;
                state.drop_storage(s);
            } else {
                self.swaps += 1;
                self.swapped_before[s as usize] = true;
                self.transfer(state, s);
                state.move_to_host(s);
            }
        }
        Ok(())
    }

    fn restore(&mut self, state: &mut State<'_>, s: StorageId) -> Result<(), Stop> {
        debug_assert_eq!(state.storages[s as usize].place, Place::Host);
        self.transfer(state, s);
        state.move_to_device(s);
        Ok(())
    }

    fn run(&mut self, state: &mut State<'_>, op: OpId, _again: bool) {
        state.clock += state.log.ops[op as usize].time_ns;
    }
}
