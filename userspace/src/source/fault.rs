//! Page faults of tracked processes: by region since the last drain, and by job in all.
//!
//! The kernel counts; a drain takes the counts away. After [`JobEvents::untrack`](super::job_events::JobEvents::untrack)
//! a process is still counted in the region of its last fault until the next drain. User and kernel faults are both counted: a program that `read()`s
//! into fresh memory, and every program's start, fault inside system calls. What is not counted: faults that the kernel
//! resolves without an exception (it populates memory for `mlock` or `MAP_POPULATE`, or reads another process's).

use std::{collections::BTreeMap, os::fd::AsFd, time::Instant};

use aya::{
    maps::{Array, HashMap, Map, MapData, PerCpuArray, PerCpuValues},
    util::nr_cpus,
};
use serde::Serialize;
use tensortier_abi::{FaultCounts, OpenRegion, REGION_SHIFT, RegionKey, maps};

use super::{
    Touch, TouchKind, bpf_sys,
    ebpf::{EbpfError, memory_of},
    job_events::JobId,
    lost::LossCount,
};
use crate::units::{Pid, Range};

/// Page faults, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCount {
    /// Taken by the job's own instructions.
    pub user: u64,
    /// Taken on its memory by the kernel, inside its system calls.
    pub kernel: u64,
}

impl FaultCount {
    /// Both kinds.
    pub fn total(&self) -> u64 {
        self.user + self.kernel
    }
}

/// Faults of one process in one region since the last drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionFaults {
    /// The process.
    pub pid: Pid,
    /// The region: one block.
    pub range: Range,
    /// How many.
    pub count: FaultCount,
}

impl RegionFaults {
    /// The faults as evidence, gathered at `at`.
    pub fn touch(&self, at: Instant) -> Touch {
        Touch { pid: self.pid, range: self.range, kind: TouchKind::Fault, weight: self.count.total() as f32, at }
    }
}

/// The fault maps.
pub struct Faults {
    regions: MapData,
    open: PerCpuArray<MapData, OpenRegion>,
    epoch: Array<MapData, u32>,
    totals: PerCpuArray<MapData, FaultCounts>,
    lost: LossCount,
    taken: BTreeMap<(Pid, u64), FaultCount>,
}

impl Faults {
    pub(super) fn new(regions: Map, open: Map, epoch: Map, totals: Map, lost: LossCount) -> Result<Self, EbpfError> {
        // The typed wrapper checks the map's kind and sizes, on which the raw batch rests.
        let checked = HashMap::<_, RegionKey, FaultCounts>::try_from(&regions);
        checked.map_err(|error| EbpfError::map(maps::FAULTS, error))?;
        let Map::HashMap(regions) = regions else { return Err(EbpfError::map(maps::FAULTS, "not a hash map")) };
        Ok(Self {
            regions,
            open: PerCpuArray::try_from(open).map_err(|error| EbpfError::map(maps::OPEN_REGIONS, error))?,
            epoch: Array::try_from(epoch).map_err(|error| EbpfError::map(maps::EPOCH, error))?,
            totals: PerCpuArray::try_from(totals).map_err(|error| EbpfError::map(maps::JOB_FAULTS, error))?,
            lost,
            taken: BTreeMap::new(),
        })
    }

    /// Takes the counts since the last drain, ordered by process and address. A fault that is counted at the very moment
    /// of the drain can be missing here; [`total`](Self::total) has it.
    ///
    /// # Errors
    /// The kernel refuses; what was taken until then is given the next time.
    pub fn drain(&mut self) -> Result<Vec<RegionFaults>, EbpfError> {
        self.take_open()?;
        let mut entries = Vec::new();
        let drained = bpf_sys::drain::<RegionKey, FaultCounts>(self.regions.fd().as_fd(), &mut entries);
        for (key, counts) in entries {
            self.take(key.tgid, key.region, &counts);
        }
        drained.map_err(|error| EbpfError::map(maps::FAULTS, error))?;
        let taken = std::mem::take(&mut self.taken);
        Ok(taken.into_iter().map(|((pid, start), count)| RegionFaults { pid, range: region(start), count }).collect())
    }

    /// Has the programs open new regions, and takes those that were open.
    fn take_open(&mut self) -> Result<(), EbpfError> {
        let failed = |error| EbpfError::map(maps::OPEN_REGIONS, error);
        let epoch = self.epoch.get(&0, 0).map_err(failed)?;
        self.epoch.set(0, epoch.wrapping_add(1), 0).map_err(failed)?;
        let old = epoch & 1;
        let open = self.open.get(&old, 0).map_err(failed)?;
        let none = vec![OpenRegion::default(); open.len()];
        let none = PerCpuValues::try_from(none).map_err(|error| EbpfError::map(maps::OPEN_REGIONS, error))?;
        self.open.set(old, none, 0).map_err(failed)?;
        for cpu in open.iter().filter(|cpu| cpu.tgid != 0) {
            self.take(cpu.tgid, cpu.region, &cpu.counts);
        }
        Ok(())
    }

    fn take(&mut self, tgid: u32, region: u64, counts: &FaultCounts) {
        let count = self.taken.entry((Pid(tgid), region)).or_default();
        count.user += counts.user;
        count.kernel += counts.kernel;
    }

    /// All faults of a job since [`clear`](Self::clear), right even where regions were lost.
    ///
    /// # Errors
    /// The job's number is not below [`MAX_JOBS`](tensortier_abi::MAX_JOBS).
    pub fn total(&self, job: JobId) -> Result<FaultCount, EbpfError> {
        let cpus = self.totals.get(&job.0, 0).map_err(|error| EbpfError::map(maps::JOB_FAULTS, error))?;
        Ok(cpus.iter().fold(FaultCount::default(), |sum, cpu| FaultCount {
            user: sum.user + cpu.user,
            kernel: sum.kernel + cpu.kernel,
        }))
    }

    /// Sets a job's total to 0, before its number is given to a new job.
    ///
    /// # Errors
    /// As [`total`](Self::total).
    pub fn clear(&mut self, job: JobId) -> Result<(), EbpfError> {
        let wrong = |reason: String| EbpfError::map(maps::JOB_FAULTS, reason);
        let cpus = nr_cpus().map_err(|(path, error)| wrong(format!("{path}: {error}")))?;
        let zeros = PerCpuValues::try_from(vec![FaultCounts::default(); cpus]);
        let zeros = zeros.map_err(|error| wrong(error.to_string()))?;
        self.totals.set(job.0, zeros, 0).map_err(|error| wrong(error.to_string()))
    }

    /// Faults since load whose region was not kept because the map was full between two drains.
    pub fn lost(&self) -> u64 {
        self.lost.total()
    }

    /// Kernel memory of the region map, in bytes.
    pub fn memory(&self) -> u64 {
        memory_of(&self.regions)
    }
}

fn region(number: u64) -> Range {
    Range::new(number << REGION_SHIFT, (number + 1) << REGION_SHIFT)
}
