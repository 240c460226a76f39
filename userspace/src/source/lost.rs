//! What the eBPF programs lost, counted by them: a full map or ring buffer costs events and never the run.

use std::{sync::Arc, time::Instant};

use aya::maps::{Map, MapData, PerCpuArray};
use nix::time::{ClockId, clock_gettime};
use tensortier_abi::{Loss, maps};

use super::ebpf::EbpfError;

/// The counters of every source.
pub(super) struct Lost(Arc<PerCpuArray<MapData, u64>>);

impl Lost {
    pub fn new(map: Map) -> Result<Self, EbpfError> {
        PerCpuArray::try_from(map).map(|map| Self(Arc::new(map))).map_err(|error| EbpfError::map(maps::LOST, error))
    }

    /// The counters of one source.
    pub fn of(&self, losses: &'static [Loss]) -> LossCount {
        LossCount { map: Arc::clone(&self.0), losses }
    }
}

/// What one source lost since load.
pub(super) struct LossCount {
    map: Arc<PerCpuArray<MapData, u64>>,
    losses: &'static [Loss],
}

impl LossCount {
    /// The sum over CPUs and kinds; a slot that cannot be read counts as 0.
    pub fn total(&self) -> u64 {
        let slots = self.losses.iter().filter_map(|loss| self.map.get(&(*loss as u32), 0).ok());
        slots.map(|cpus| cpus.iter().sum::<u64>()).sum()
    }
}

/// Turns the programs' clock (CLOCK_MONOTONIC, nanoseconds) into [`Instant`]s.
pub(crate) struct Clock {
    now: Instant,
    now_ns: u64,
}

impl Clock {
    /// A reading of both clocks at once.
    pub fn read() -> Self {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(std::time::Duration::from);
        // The clock exists on every Linux; without it every event would be called as old as this reading.
        Self { now: Instant::now(), now_ns: time.map_or(u64::MAX, |time| time.as_nanos() as u64) }
    }

    /// The programs' time at the reading.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The instant of `at_ns`; now for what claims to lie ahead.
    pub fn instant(&self, at_ns: u64) -> Instant {
        let age = std::time::Duration::from_nanos(self.now_ns.saturating_sub(at_ns));
        self.now.checked_sub(age).unwrap_or(self.now)
    }
}
