//! On which node the bytes of a process are, block by block, by asking `move_pages` where pages are.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::Resident;
use crate::{
    sys::{Extent, Process, SysError, UNWRITTEN},
    units::{BLOCK, NodeId, PAGE, Range},
};

/// Pages asked for in one call: enough to make the call's own cost small, few enough to keep the arrays in cache.
const CHUNK: usize = 8192;

/// How many of the small pages are asked about; of a huge page it is always one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// Every page.
    Exact,
    /// One of every k resident pages of a stretch, at least one; it stands for those k.
    Every(u32),
}

/// What a scan found, and what it cost.
#[derive(Clone, Debug, Default)]
pub struct Residency {
    /// The blocks with resident pages, by address.
    pub blocks: Vec<Resident>,
    /// Pages asked about.
    pub asked: u64,
    /// Resident bytes covered.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
}

impl Residency {
    /// Finds where the pages of `extents` ([`super::populated::extents`]) are. Kernel 2.6.18 or newer.
    ///
    /// # Errors
    /// The process has ended or may not be looked at.
    pub fn scan(process: &Process, extents: &[Extent], sampling: Sampling) -> Result<Self, SysError> {
        let started = Instant::now();
        let mut scan = Scan { process, found: Self::default(), probes: Vec::new() };
        let step = match sampling {
            Sampling::Exact => 1,
            Sampling::Every(k) => u64::from(k.max(1)),
        };
        for extent in extents {
            for block in extent.range.blocks() {
                let whole = Range::new(block * BLOCK, (block + 1) * BLOCK);
                let Some(range) = extent.range.intersect(&whole) else { continue };
                scan.add(range, if extent.huge { BLOCK / PAGE } else { step })?;
            }
        }
        scan.ask()?;
        let mut found = scan.found;
        found.blocks.retain(|block| !block.on.is_empty());
        found.took = started.elapsed();
        Ok(found)
    }

    /// Time a GiB of resident memory took.
    pub fn cost_per_gib(&self) -> Duration {
        Duration::from_secs_f64(self.took.as_secs_f64() * (1u64 << 30) as f64 / self.bytes.max(1) as f64)
    }
}

/// One page asked about, the block it counts for, and the bytes it stands for.
struct Probe {
    address: u64,
    block: usize,
    bytes: u64,
}

struct Scan<'a> {
    process: &'a Process,
    found: Residency,
    probes: Vec<Probe>,
}

impl Scan<'_> {
    /// Adds one stretch of one block, of which every `step`-th page is asked about.
    fn add(&mut self, range: Range, step: u64) -> Result<(), SysError> {
        let block = self.block(range);
        let mut at = range.start;
        while at < range.end {
            let bytes = (step * PAGE).min(range.end - at);
            // The middle of what it stands for.
            self.probes.push(Probe { address: at + bytes / PAGE / 2 * PAGE, block, bytes });
            at += bytes;
        }
        self.found.bytes += range.bytes();
        if self.probes.len() >= CHUNK { self.ask() } else { Ok(()) }
    }

    fn block(&mut self, range: Range) -> usize {
        let blocks = &mut self.found.blocks;
        match blocks.last_mut() {
            Some(last) if last.range.start / BLOCK == range.start / BLOCK => last.range.end = range.end,
            _ => blocks.push(Resident { pid: self.process.pid(), range, on: BTreeMap::new() }),
        }
        blocks.len() - 1
    }

    fn ask(&mut self) -> Result<(), SysError> {
        let addresses: Vec<u64> = self.probes.iter().map(|probe| probe.address).collect();
        let mut status = vec![UNWRITTEN; addresses.len()];
        if !addresses.is_empty() {
            self.process.nodes(&addresses, &mut status)?;
        }
        self.found.asked += addresses.len() as u64;
        for (probe, status) in self.probes.drain(..).zip(status) {
            // A negative one was freed since the extents were read.
            if let Ok(node) = u32::try_from(status) {
                *self.found.blocks[probe.block].on.entry(NodeId(node)).or_default() += probe.bytes;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{job::populated, units::Pid};

    #[test]
    fn exact_and_sampled_agree_on_one_node_and_empty_pages_cost_nothing() {
        let mut arena = vec![0u8; 64 << 20];
        // The first 8 MiB, then one page in the middle of nothing.
        arena[..8 << 20].fill(1);
        arena[40 << 20] = 1;
        let start = (arena.as_ptr() as u64).next_multiple_of(PAGE);
        let process = Process::open(Pid(std::process::id())).unwrap();
        let extents = populated::extents(&process, Range::new(start, start + (63 << 20))).unwrap();
        let resident: u64 = extents.iter().map(|extent| extent.range.bytes()).sum();
        assert!(((8 << 20) - PAGE..32 << 20).contains(&resident), "{resident}");
        let exact = Residency::scan(&process, &extents, Sampling::Exact).unwrap();
        let total = |scan: &Residency| -> u64 { scan.blocks.iter().flat_map(|block| block.on.values()).sum() };
        assert_eq!((total(&exact), exact.bytes), (resident, resident));
        assert!(exact.blocks.iter().all(|block| block.range.blocks().count() == 1));
        for k in [2, 16, 512, u32::MAX] {
            let sampled = Residency::scan(&process, &extents, Sampling::Every(k)).unwrap();
            assert_eq!(total(&sampled), resident, "every {k}");
            assert!(sampled.asked <= exact.asked);
            assert_eq!(sampled.blocks.len(), exact.blocks.len());
        }
        assert!(exact.cost_per_gib() > Duration::ZERO);
        assert_eq!(arena[40 << 20], 1);
    }
}
