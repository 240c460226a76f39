//! What the agent adds up beside the ledger: faults by node, what monitoring cost, sources that fell silent.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use crate::{
    job::Resident,
    source::fault::{FaultCount, RegionFaults},
    units::{BLOCK, NodeId, Pid},
};

/// Page faults by the node that the faulting memory lies on. A page has its node only once the fault is done, so counts
/// wait until the process's memory is next read.
#[derive(Debug, Default)]
pub struct FaultsByNode {
    waiting: BTreeMap<(Pid, u64), FaultCount>,
    placed: BTreeMap<NodeId, FaultCount>,
    unplaced: FaultCount,
}

impl FaultsByNode {
    /// Takes counts in.
    pub fn add(&mut self, region: &RegionFaults) {
        add(self.waiting.entry((region.pid, region.range.start / BLOCK)).or_default(), region.count);
    }

    /// The process's memory was read: its waiting counts go to where most of each block is. Code, files and memory that
    /// is gone again are on no node that we know of.
    pub fn place(&mut self, pid: Pid, residents: &[Resident]) {
        let mut kept = self.waiting.split_off(&(pid, 0));
        let mut after = kept.split_off(&(Pid(pid.0 + 1), 0));
        self.waiting.append(&mut after);
        for ((_, block), count) in kept {
            let on = residents
                .binary_search_by_key(&block, |resident| resident.range.start / BLOCK)
                .ok()
                .and_then(|at| residents[at].on.iter().max_by_key(|(_, bytes)| **bytes));
            match on {
                Some((node, _)) => add(self.placed.entry(*node).or_default(), count),
                None => add(&mut self.unplaced, count),
            }
        }
    }

    /// Counts by node; those of no known node, and those still waiting, apart.
    pub fn counts(&self) -> (&BTreeMap<NodeId, FaultCount>, FaultCount) {
        let mut rest = self.unplaced;
        self.waiting.values().for_each(|count| add(&mut rest, *count));
        (&self.placed, rest)
    }
}

fn add(sum: &mut FaultCount, count: FaultCount) {
    sum.user += count.user;
    sum.kernel += count.kernel;
}

/// CPU time of the kernel threads that monitor for us, one after another.
#[derive(Debug, Default)]
pub struct KdamondCost {
    pid: Option<u32>,
    seen: Duration,
    total: Duration,
    share: Option<(Instant, Duration, f64)>,
}

impl KdamondCost {
    /// Another thread monitors from now on.
    pub fn begin(&mut self, pid: u32) {
        (self.pid, self.seen, self.share) = (Some(pid), Duration::ZERO, None);
    }

    /// Reads the thread's time. Gives its share of a CPU since some seconds ago, and whether it still runs.
    pub fn read(&mut self, now: Instant) -> (f64, bool) {
        let Some(used) = self.pid.and_then(cpu_time) else { return (0.0, false) };
        self.total += used.saturating_sub(self.seen);
        self.seen = used;
        let (since, before, share) = self.share.unwrap_or((now, used, 0.0));
        let elapsed = now.duration_since(since).as_secs_f64();
        // Its time is counted in ticks of 10 ms: a share over less than some seconds is mostly rounding.
        if elapsed >= 3.0 {
            let share = used.saturating_sub(before).as_secs_f64() / elapsed;
            self.share = Some((now, used, share));
            return (share, true);
        }
        self.share = Some((since, before, share));
        (share, true)
    }

    /// All of it so far.
    pub fn total(&self) -> Duration {
        self.total
    }
}

/// User and system time of a process or kernel thread; `None` where there is none.
fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
    Some(Duration::from_secs_f64((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64))
}

/// A field of `/proc/vmstat` by name; a missing one is absent, never 0.
pub fn vmstat(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Kernel memory of all the eBPF maps that this process holds, as their descriptors tell it.
pub fn bpf_map_bytes() -> u64 {
    let Ok(descriptors) = fs::read_dir("/proc/self/fdinfo") else { return 0 };
    let texts = descriptors.flatten().filter_map(|descriptor| fs::read_to_string(descriptor.path()).ok());
    texts
        .filter(|text| text.contains("map_type:"))
        .filter_map(|text| text.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse::<u64>().ok()))
        .sum()
}

/// Says once, in words, that something which should act does nothing: a monitor without a report, moves without a page.
#[derive(Debug, Default)]
pub struct Idle {
    since: Option<Instant>,
    said: bool,
}

impl Idle {
    /// `acted`: it did what it is for. True once, when it did nothing for `limit`.
    pub fn silent(&mut self, acted: bool, limit: Duration, now: Instant) -> bool {
        if acted {
            *self = Self { since: Some(now), said: false };
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let silent = !self.said && now.duration_since(since) >= limit;
        self.said |= silent;
        silent
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::units::Range;

    fn region(pid: u32, block: u64, user: u64) -> RegionFaults {
        let range = Range::new(block * BLOCK, (block + 1) * BLOCK);
        RegionFaults { pid: Pid(pid), range, count: FaultCount { user, kernel: 1 } }
    }

    #[test]
    fn faults_go_to_the_node_that_has_most_of_the_block_once_it_is_known() {
        let mut faults = FaultsByNode::default();
        [region(1, 5, 10), region(1, 6, 20), region(2, 5, 40)].iter().for_each(|region| faults.add(region));
        assert_eq!(faults.counts().1.total(), 73, "all wait");
        let range = Range::new(5 * BLOCK, 6 * BLOCK);
        let on = [(NodeId(0), 4096), (NodeId(2), 8192)].into();
        faults.place(Pid(1), &[Resident { pid: Pid(1), range, on }]);
        let (placed, rest) = faults.counts();
        assert_eq!(placed[&NodeId(2)], FaultCount { user: 10, kernel: 1 });
        assert_eq!((placed.len(), rest.user), (1, 60), "block 6 is nowhere, process 2 waits");
    }

    #[test]
    fn silence_is_said_once_and_again_after_an_act() {
        let (mut idle, start) = (Idle::default(), Instant::now());
        let limit = Duration::from_secs(10);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!idle.silent(false, limit, at(0)) && !idle.silent(false, limit, at(9)));
        assert!(idle.silent(false, limit, at(10)) && !idle.silent(false, limit, at(30)));
        assert!(!idle.silent(true, limit, at(31)) && idle.silent(false, limit, at(41)));
    }

    #[test]
    fn vmstat_reads_by_whole_name() {
        assert!(vmstat("pgfault").unwrap() > 0);
        assert_eq!(vmstat("pgfaul"), None);
    }
}
