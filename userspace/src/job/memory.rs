//! The memory of every process of a job as it was last read, and when it is worth reading again.
//!
//! A scan costs page table walks in the kernel, so its cost decides its rate: where faults say that the memory changes,
//! all of it is due again after a hundred times what that took, within [`SOONEST`] and [`LATEST`]; where they do not, at
//! the latest. A process that has grown or shrunk by an eighth is worth more, ten times what it took: growth is geometric,
//! so those scans stay few. In between the blocks that faulted or were moved are read alone. Mappings and their policies
//! are read again only where the mappings changed. Of many processes that are due at once each refresh reads as many as
//! [`PATIENCE`] allows, in turn: whoever asks the agent for its state waits for no more.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{
    Resident,
    mappings::Mappings,
    numa_maps::{self, Movable},
    populated,
    residency::{Residency, Sampling},
    vma::Vma,
};
use crate::{
    sys::{Process, SysError},
    units::{BLOCK, NodeId, NodeSet, Pid, Range, join, read_text},
};

/// Changing memory is read again after this at the soonest.
const SOONEST: Duration = Duration::from_secs(1);
/// Memory is read again after this in any case; twice this where two reads in a row gave the same.
const LATEST: Duration = Duration::from_secs(30);
/// A scan may take a hundredth of the time.
const SHARE: u32 = 100;
/// And a tenth where the size has changed by [`GROWTH`].
const SHARE_GROWN: u32 = 10;
/// A look at single blocks may take a twentieth.
const SHARE_BLOCKS: u32 = 20;
/// So large a part of the resident size counts as growth: an eighth.
const GROWTH: u64 = 8;
/// Known processes are read again for so long at a time.
const PATIENCE: Duration = Duration::from_millis(10);
/// Of small pages one in so many is asked about.
const SAMPLING: Sampling = Sampling::Every(8);

/// One process.
#[derive(Debug)]
struct Known {
    process: Process,
    vmas: Vec<Vma>,
    movable: Movable,
    residents: Vec<Resident>,
    read: Option<Instant>,
    took: Duration,
    changing: bool,
    /// Whether the last read gave what the one before it had given.
    same: bool,
    /// Blocks that faulted or were moved since they were last read.
    stale: BTreeSet<u64>,
    /// When single blocks are next read.
    blocks_due: Option<Instant>,
    /// Resident pages when it was read, as the kernel counts them.
    size: u64,
}

/// All processes of all jobs.
#[derive(Debug, Default)]
pub struct Memory {
    processes: BTreeMap<Pid, Known>,
    /// Nodes between which pages may move.
    tiers: NodeSet,
    file_pages: bool,
    mappings: Mappings,
    /// How long known processes are read at a time.
    patience: Duration,
    /// The process whose turn is next.
    turn: Option<Pid>,
    /// Time spent in scans.
    pub spent: Duration,
}

impl Memory {
    /// Nothing known yet. `tiers` are the nodes between which pages may move.
    pub fn new(tiers: NodeSet, file_pages: bool) -> Self {
        Self { tiers, file_pages, mappings: Mappings::new(), patience: PATIENCE, ..Self::default() }
    }

    /// Pages may move between other nodes from now on: everything is read again.
    pub fn set_tiers(&mut self, tiers: NodeSet) {
        self.tiers = tiers;
        self.forget_all();
    }

    /// Whether pages of files may move from now on.
    pub fn set_file_pages(&mut self, file_pages: bool) {
        if file_pages != self.file_pages {
            self.file_pages = file_pages;
            self.forget_all();
        }
    }

    fn forget_all(&mut self) {
        for known in self.processes.values_mut() {
            (known.read, known.changing) = (None, true);
            known.vmas.clear();
        }
    }

    /// Takes a process in; it is read at the next [`Memory::refresh`].
    ///
    /// # Errors
    /// It has ended, or may not be looked at.
    pub fn add(&mut self, pid: Pid) -> Result<(), SysError> {
        let known = Known {
            process: Process::open(pid)?,
            vmas: Vec::new(),
            movable: Movable::default(),
            residents: Vec::new(),
            read: None,
            took: Duration::ZERO,
            changing: true,
            same: false,
            stale: BTreeSet::new(),
            blocks_due: None,
            size: 0,
        };
        self.processes.insert(pid, known);
        Ok(())
    }

    /// Drops a process.
    pub fn remove(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// The processes, ascending.
    pub fn pids(&self) -> impl Iterator<Item = Pid> + '_ {
        self.processes.keys().copied()
    }

    /// The process faulted there: what is known of it grows old sooner.
    pub fn changing(&mut self, pid: Pid, range: Range) {
        if let Some(known) = self.processes.get_mut(&pid) {
            known.changing = true;
            known.stale.extend(range.blocks());
        }
    }

    /// Pages of the range were moved: the next [`Memory::refresh`] asks where they are now.
    pub fn moved(&mut self, pid: Pid, range: Range) {
        if let Some(known) = self.processes.get_mut(&pid) {
            known.stale.extend(range.blocks());
            known.blocks_due = None;
        }
    }

    /// The process runs another program: nothing known of it is true any more.
    pub fn forget(&mut self, pid: Pid) {
        if let Some(known) = self.processes.get_mut(&pid) {
            (known.read, known.changing) = (None, true);
            known.vmas.clear();
            known.residents.clear();
            known.stale.clear();
        }
    }

    /// Reads the processes, and the single blocks, that are due; gives the processes of which something was read, and
    /// those that are gone and were dropped.
    pub fn refresh(&mut self, now: Instant) -> (Vec<Pid>, Vec<Pid>) {
        let (mut read, mut gone) = (Vec::new(), Vec::new());
        let began = Instant::now();
        let first = self.turn.take().unwrap_or(Pid(0));
        let (after, before) = (self.processes.range(first..), self.processes.range(..first));
        let turns: Vec<Pid> = after.chain(before).map(|(pid, _)| *pid).collect();
        for pid in turns {
            let Some(known) = self.processes.get_mut(&pid) else { continue };
            if !read.is_empty() && known.read.is_some() && began.elapsed() > self.patience {
                self.turn.get_or_insert(pid);
                continue;
            }
            let start = Instant::now();
            let result = if known.due(now) {
                known.read(&mut self.mappings, &self.tiers, self.file_pages, now)
            } else if known.blocks_due(now) {
                known.read_blocks(now)
            } else {
                continue;
            };
            match result {
                Ok(()) => {
                    self.spent += start.elapsed();
                    read.push(pid);
                }
                Err(error) if known.process.alive() => {
                    tracing::warn!(%pid, error = format!("{error}"), "cannot read the memory of the process; trying again later");
                    (known.read, known.changing) = (Some(now), false);
                    known.stale.clear();
                }
                Err(_) => gone.push(pid),
            }
        }
        gone.iter().for_each(|pid| self.remove(*pid));
        (read, gone)
    }

    /// Where everything that may be moved is, by process and address.
    pub fn residents(&self) -> impl Iterator<Item = &Resident> + '_ {
        self.processes.values().flat_map(|known| &known.residents)
    }

    /// What is resident of one process and may be moved.
    pub fn residents_of(&self, pid: Pid) -> &[Resident] {
        self.processes.get(&pid).map_or(&[], |known| &known.residents)
    }

    /// Takes the accessed bits of a process's pages away ([`Process::cool`]).
    ///
    /// # Errors
    /// It has ended, or the kernel refuses.
    pub fn cool(&self, pid: Pid, range: Range) -> Result<(), SysError> {
        self.processes.get(&pid).ok_or(SysError::Gone { pid })?.process.cool(range)
    }

    /// Bytes on each node that a process bound to nodes of its own choice, left out of everything else here.
    pub fn bound(&self, pid: Pid) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        let bound = self.processes.get(&pid).into_iter().flat_map(|known| &known.movable.bound);
        bound.map(|(node, bytes)| (*node, *bytes))
    }

    /// The memory policies that a process set for itself, with the bytes under each.
    pub fn policies(&self, pid: Pid) -> impl Iterator<Item = (&str, u64)> + '_ {
        let policies = self.processes.get(&pid).into_iter().flat_map(|known| &known.movable.by_policy);
        policies.map(|(policy, on)| (policy.as_str(), on.values().sum()))
    }
}

impl Known {
    fn due(&self, now: Instant) -> bool {
        let Some(read) = self.read else { return true };
        let (age, after) = (now.duration_since(read), |share| (self.took * share).clamp(SOONEST, LATEST));
        age >= if self.same { 2 * LATEST } else { LATEST }
            || self.changing
                && (age >= after(SHARE) || age >= after(SHARE_GROWN) && self.grown(resident_pages(&self.process)))
    }

    fn grown(&self, pages: u64) -> bool {
        pages.abs_diff(self.size) * GROWTH > self.size
    }

    fn read(&mut self, mappings: &mut Mappings, tiers: &NodeSet, file_pages: bool, now: Instant) -> anyhow::Result<()> {
        let start = Instant::now();
        let pid = self.process.pid();
        // Before the scan: what comes during it counts as growth after it.
        let size = std::mem::replace(&mut self.size, resident_pages(&self.process));
        let vmas = mappings.of(pid)?;
        // Under a policy of the job's own, memory fills up without a change of the mappings. The kernel walks every page
        // for numa_maps: a job at rest is not asked again.
        if vmas != self.vmas || self.size != size && !self.movable.by_policy.is_empty() {
            self.movable = numa_maps::movable(&vmas, &numa_maps::of_process(pid)?, tiers, file_pages);
            self.vmas = vmas;
        }
        let mapped = start.elapsed();
        let mut residents = Vec::new();
        for &range in &self.movable.ranges {
            residents.extend(self.scan(range)?);
        }
        self.same = residents == self.residents;
        self.residents = residents;
        (self.read, self.changing, self.took) = (Some(now), false, start.elapsed());
        self.stale.clear();
        let (pages, took) = (self.size, self.took);
        tracing::debug!(%pid, pages, ?mapped, ?took, "memory read");
        Ok(())
    }

    fn blocks_due(&self, now: Instant) -> bool {
        !self.stale.is_empty() && self.blocks_due.is_none_or(|due| now >= due)
    }

    fn read_blocks(&mut self, now: Instant) -> anyhow::Result<()> {
        let start = Instant::now();
        let stale = std::mem::take(&mut self.stale);
        let ranges = join(stale.iter().map(|block| Range::new(block * BLOCK, (block + 1) * BLOCK)), 0);
        let mut fresh = Vec::new();
        for range in ranges {
            let from = self.movable.ranges.partition_point(|movable| movable.end <= range.start);
            for part in self.movable.ranges[from..].iter().map_while(|movable| movable.intersect(&range)) {
                fresh.extend(self.scan(part)?);
            }
        }
        self.residents.retain(|resident| !stale.contains(&(resident.range.start / BLOCK)));
        self.residents.extend(fresh);
        self.residents.sort_by_key(|resident| resident.range);
        self.blocks_due = Some(now + (start.elapsed() * SHARE_BLOCKS).max(SOONEST));
        Ok(())
    }

    fn scan(&self, range: Range) -> Result<Vec<Resident>, SysError> {
        let extents = populated::extents(&self.process, range)?;
        Ok(Residency::scan(&self.process, &extents, SAMPLING)?.blocks)
    }
}

/// Resident pages as the kernel counts them, which costs no walk; 0 once the process has ended.
fn resident_pages(process: &Process) -> u64 {
    let statm = read_text(format!("/proc/{}/statm", process.pid())).unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
