//! Which regions DAMON is asked to look at.
//!
//! DAMON's own start is three huge regions split by chance: on a host with 160 GB a hot block of 200 MB stays unseen in
//! it for minutes. We hand it the populated ranges instead, cut into pieces of one size (the *grain*): the smallest
//! multiple of a huge page with which all targets fit into half the allowed number of regions. The minimum number of
//! regions, which bounds how far the kernel merges, is set to that number, so no region ever grows past the grain; the
//! other half is left to the kernel for splitting, where the grain is larger than a huge page and splitting can help.

use crate::units::{BLOCK, Pid, Range};

/// What to monitor of one process; without a process, physical addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process; `None` for physical address monitoring.
    pub pid: Option<Pid>,
    /// Populated ranges, ascending, not overlapping.
    pub ranges: Vec<Range>,
}

impl Target {
    /// Bytes to monitor.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(Range::bytes).sum()
    }
}

/// The regions to start with, and the bounds between which the kernel may split and merge them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The targets with their regions, each at most a grain long.
    pub targets: Vec<Target>,
    /// Bytes of the largest region.
    pub grain: u64,
    /// `nr_regions/min`.
    pub min: u32,
    /// `nr_regions/max`.
    pub max: u32,
}

impl Grid {
    /// The finest grid of `targets` with at most `max_regions / 2` regions (more only where there are more separate
    /// ranges than that). At least 20 regions are always allowed: DAMON refuses fewer than 3.
    pub fn plan(targets: &[Target], max_regions: u32) -> Self {
        let max_regions = max_regions.max(20);
        let wanted = u64::from(max_regions / 2);
        let total: u64 = targets.iter().map(Target::bytes).sum();
        let mut grain = total.div_ceil(wanted).max(1).next_multiple_of(BLOCK);
        let mut cut = cut_all(targets, grain);
        while count(&cut) > wanted
            && targets.iter().flat_map(|target| &target.ranges).any(|range| range.bytes() > grain)
        {
            // Many ranges leave many short ends; a coarser grain leaves fewer.
            grain = (grain + grain / 4).next_multiple_of(BLOCK);
            cut = cut_all(targets, grain);
        }
        let regions = u32::try_from(count(&cut)).unwrap_or(u32::MAX).max(3);
        // With blocks as regions there is nothing to split: a maximum under twice the count stops the kernel's splitting.
        let max = if grain == BLOCK { regions.saturating_add(10) } else { max_regions.max(regions.saturating_mul(2)) };
        Self { targets: cut, grain, min: regions, max }
    }

    /// Regions over all targets.
    pub fn regions(&self) -> u32 {
        u32::try_from(count(&self.targets)).unwrap_or(u32::MAX)
    }
}

fn count(targets: &[Target]) -> u64 {
    targets.iter().map(|target| target.ranges.len() as u64).sum()
}

fn cut_all(targets: &[Target], grain: u64) -> Vec<Target> {
    targets
        .iter()
        .map(|target| Target {
            pid: target.pid,
            ranges: target.ranges.iter().flat_map(|range| cut(*range, grain)).collect(),
        })
        .collect()
}

/// `range` in pieces that end at multiples of `grain`, so that huge pages are not shared by two regions.
fn cut(range: Range, grain: u64) -> impl Iterator<Item = Range> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let end = ((start / grain + 1) * grain).min(range.end);
        let piece = (start < range.end).then(|| Range::new(start, end));
        start = end;
        piece
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn target(ranges: &[(u64, u64)]) -> Target {
        let ranges = ranges.iter().map(|&(start, end)| Range::new(start << 20, end << 20)).collect();
        Target { pid: Some(Pid(1)), ranges }
    }

    #[test]
    fn a_small_job_gets_one_region_a_block_and_no_splitting() {
        let grid = Grid::plan(&[target(&[(0, 1024)])], 2000);
        assert_eq!((grid.grain, grid.regions(), grid.min), (BLOCK, 512, 512));
        assert!(grid.max < 2 * grid.min);
    }

    #[test]
    fn a_hot_block_of_200_mib_in_160_gib_has_regions_of_its_own() {
        let grid = Grid::plan(&[target(&[(0, 160 << 10)])], 2000);
        assert!(grid.grain <= 200 << 20, "{}", grid.grain);
        assert!(grid.regions() <= 1000 && grid.max >= 2000);
    }

    #[test]
    fn pieces_cover_each_range_exactly_and_end_at_the_grain() {
        let ranges = [(1, 7), (9, 9), (100, 165)];
        let grid = Grid::plan(&[target(&ranges)], 2000);
        let pieces = &grid.targets[0].ranges;
        assert_eq!(pieces.iter().map(Range::bytes).sum::<u64>(), (6 + 65) << 20);
        assert!(pieces.iter().all(|piece| piece.bytes() <= grid.grain && piece.bytes() > 0));
        assert!(pieces.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }

    #[test]
    fn many_small_ranges_do_not_loop_for_ever() {
        let ranges: Vec<_> = (0..5000).map(|i| (4 * i, 4 * i + 1)).collect();
        let grid = Grid::plan(&[target(&ranges)], 100);
        assert_eq!(grid.regions(), 5000);
        assert!(grid.max >= 5000);
    }
}
