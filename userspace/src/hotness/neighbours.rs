//! What neighbours say of a block.
//!
//! A tensor is used as a whole, and it is many blocks. Each is sampled for itself, so that some look used more than others
//! by chance; together they are known much better.
//!
//! **Rule** (the variance component of Hedges and Olkin, Statistical Methods for Meta-Analysis, 1985, chapter 9; the
//! shrinkage of Efron and Morris, JASA 70, 1975). Of up to [`GROUP`] blocks side by side with the uses `x` and noise of the
//! variance `d`, each one of `a` that a sample stands for, with `k = Σ 1/a` and means weighted by `1/a`:
//!
//! ```text
//! τ² = max(0, Σ (x - mean of x)²/a / (k - 1) - mean of d)
//! w  = 1 / (τ² + d)                   m = Σ w x/a / Σ w/a
//! b  = τ² / (τ² + d)                  use = b x + (1 - b) m       noise = b d + (1 - b)² / (Σ w/a)
//! ```
//!
//! `τ²` is how much they differ beyond their noise. Where they do, each goes by its own samples, as without neighbours.
//! What is in doubt beside noise (use that changes from window to window) may be the same for all, and stays.
//!
//! A block that was looked at once or never, side by side with up to [`GROUP`] known ones at either end, has the use `m`, in
//! doubt by `τ² + 1 / (Σ w/a)` and what else they are, and their stay: a buffer that grows is used as what there is of it.

use super::{Outlook, Region};

/// Neighbours that are taken together: 32 MiB.
const GROUP: usize = 16;
/// Fewer say little of how much they differ.
const LEAST: f32 = 4.0;

/// Has neighbours agree on what only noise makes different, and stand for those that nobody has looked at yet. Regions
/// are ordered by process and address.
pub(super) fn agree(regions: &mut [Region]) {
    // By their own samples alone: what is lent is no evidence.
    let lent = lent(regions);
    let alike = |a: &Region, b: &Region| side_by_side(a, b) && known(a) == known(b);
    for run in regions.chunk_by_mut(alike).filter(|run| known(&run[0])) {
        run.chunks_mut(GROUP).for_each(together);
    }
    for (n, outlook) in lent {
        regions[n].outlook = outlook;
    }
}

fn side_by_side(a: &Region, b: &Region) -> bool {
    a.pid == b.pid && a.range.end == b.range.start
}

fn known(region: &Region) -> bool {
    region.outlook.is_known() && region.outlook.soon.is_none()
}

/// Whether nobody has looked at it yet, or once: what is looked at and not used is known late, and is no news.
fn is_new(region: &Region) -> bool {
    region.seen < 2 && !region.outlook.is_known()
}

/// What blocks have in common.
struct Group {
    /// `τ²`.
    differ: f32,
    /// `m`.
    mean: f32,
    /// `Σ w/a`.
    weights: f32,
}

/// Sums over blocks, each of which counts as a part of the sample that it shares.
fn sum<'a>(blocks: impl Iterator<Item = &'a Outlook>, of: impl Fn(&Outlook) -> f32) -> f32 {
    blocks.map(|block| of(block) / block.alike.max(1.0)).sum()
}

impl Group {
    /// `None` of too few.
    fn of<'a>(blocks: impl Iterator<Item = &'a Outlook> + Clone) -> Option<Self> {
        let sum = |of: &dyn Fn(&Outlook) -> f32| sum(blocks.clone(), of);
        let k = sum(&|_| 1.0);
        if k < LEAST {
            return None;
        }
        let plain = sum(&|block| block.used) / k;
        let spread = sum(&|block| (block.used - plain) * (block.used - plain)) / (k - 1.0);
        let differ = (spread - sum(&|block| block.noise) / k).max(0.0);
        let weight = |block: &Outlook| 1.0 / (differ + block.noise).max(1e-9);
        let weights = sum(&weight);
        Some(Self { differ, mean: sum(&|block| block.used * weight(block)) / weights, weights })
    }
}

fn together(group: &mut [Region]) {
    let Some(Group { differ, mean, weights }) = Group::of(group.iter().map(|region| &region.outlook)) else { return };
    for block in group.iter_mut().map(|region| &mut region.outlook).filter(|block| block.noise > 0.0) {
        let own = differ / (differ + block.noise);
        let other = block.doubt - block.noise;
        block.used = own * block.used + (1.0 - own) * mean;
        block.noise = own * block.noise + (1.0 - own) * (1.0 - own) / weights;
        block.doubt = other + block.noise;
    }
}

/// New memory beside memory that is known is taken to be used as that is, until it is looked at itself: which regions, and
/// what is expected of them.
fn lent(regions: &[Region]) -> Vec<(usize, Outlook)> {
    let (mut at, mut all) = (0, Vec::new());
    while at < regions.len() {
        let beside = |n: usize| side_by_side(&regions[n - 1], &regions[n]);
        if !is_new(&regions[at]) {
            at += 1;
            continue;
        }
        let end = (at + 1..regions.len()).find(|n| !(is_new(&regions[*n]) && beside(*n))).unwrap_or(regions.len());
        let before = (at.saturating_sub(GROUP)..at).rev().take_while(|n| known(&regions[*n]) && beside(n + 1));
        let after = (end..regions.len().min(end + GROUP)).take_while(|n| known(&regions[*n]) && beside(*n));
        let (before, after): (Vec<usize>, Vec<usize>) = (before.collect(), after.collect());
        if let Some(outlook) = stand_in(before.iter().chain(&after).map(|n| &regions[*n].outlook)) {
            let near = |n: usize| !before.is_empty() && n < at + GROUP || !after.is_empty() && n + GROUP >= end;
            all.extend((at..end).filter(|n| near(*n)).map(|n| (n, outlook)));
        }
        at = end;
    }
    all
}

/// What is expected of a block by its neighbours alone.
fn stand_in<'a>(blocks: impl Iterator<Item = &'a Outlook> + Clone) -> Option<Outlook> {
    let Group { differ, mean, weights } = Group::of(blocks.clone())?;
    let average = |of: &dyn Fn(&Outlook) -> f32| sum(blocks.clone(), of) / sum(blocks.clone(), |_| 1.0);
    let doubt = differ + 1.0 / weights + average(&|block| block.doubt - block.noise);
    let stay_s = average(&|block| block.stay_s);
    Some(Outlook { used: mean, doubt, stay_s, ..Outlook::default() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::units::{BLOCK, Pid, Range};

    /// Blocks side by side with these uses, each in doubt by `noise` and something else.
    fn blocks(uses: &[f32], noise: f32, alike: f32) -> Vec<Region> {
        let region = |(&used, block): (&f32, u64)| Region {
            pid: Pid(7),
            range: Range::new(block * BLOCK, (block + 1) * BLOCK),
            heat: 0.0,
            seen: 9,
            idle_s: 0.0,
            on: BTreeMap::new(),
            unmovable: 0,
            outlook: Outlook { used, doubt: noise + 0.01, noise, alike, stay_s: 5.0, soon: None },
            expected: false,
            pages: None,
        };
        uses.iter().zip(0..).map(region).collect()
    }

    #[test]
    fn blocks_that_only_noise_makes_different_are_known_better_together() {
        let uses: Vec<f32> = (0..16).map(|block| if block % 2 == 0 { 0.35 } else { 0.45 }).collect();
        let mut regions = blocks(&uses, 0.004, 1.0);
        agree(&mut regions);
        for block in regions.iter().map(|region| &region.outlook) {
            assert!((block.used - 0.4).abs() < 1e-6 && (block.noise - 0.004 / 16.0).abs() < 1e-7, "{block:?}");
            assert!((block.doubt - block.noise - 0.01).abs() < 1e-6, "what else is in doubt stays: {block:?}");
        }
    }

    #[test]
    fn blocks_that_differ_go_by_their_own_samples() {
        let uses: Vec<f32> = (0..16).map(|block| if block < 8 { 0.0 } else { 0.9 }).collect();
        let mut regions = blocks(&uses, 0.004, 1.0);
        agree(&mut regions);
        for (region, used) in regions.iter().zip(uses) {
            let block = &region.outlook;
            assert!((block.used - used).abs() < 0.01 && block.noise > 0.0038, "{block:?}, {used}");
        }
    }

    #[test]
    fn new_memory_is_taken_for_what_it_is_beside() {
        let mut regions = blocks(&[0.6; 64], 0.004, 1.0);
        let unknown = |regions: &mut [Region], of: std::ops::Range<usize>| {
            regions[of].iter_mut().for_each(|region| (region.outlook, region.seen) = (Outlook::default(), 1));
        };
        unknown(&mut regions, 20..60);
        agree(&mut regions);
        let known: Vec<bool> = regions.iter().map(|region| region.outlook.is_known()).collect();
        assert!(known[..36].iter().all(|known| *known) && known[44..].iter().all(|known| *known));
        assert!(known[36..44].iter().all(|known| !known), "too far from both");
        let Outlook { used, doubt, stay_s, .. } = regions[30].outlook;
        assert!((used - 0.6).abs() < 1e-6 && doubt > 0.01 && doubt < 0.011 && stay_s == 5.0, "{used} {doubt} {stay_s}");
        // They are no evidence for others, nor for those that they stand beside.
        let mut regions = blocks(&[0.6; 32], 0.004, 1.0);
        unknown(&mut regions, 4..32);
        agree(&mut regions);
        assert!((regions[0].outlook.noise - 0.001).abs() < 1e-6, "of four: {:?}", regions[0].outlook);
        assert!(regions[19].outlook.is_known() && !regions[20].outlook.is_known());
        // What lies between a hot buffer and a cold one may be either.
        let mut regions = blocks(&[0.9; 48], 0.004, 1.0);
        regions[32..].iter_mut().for_each(|region| region.outlook.used = 0.0);
        unknown(&mut regions, 16..32);
        agree(&mut regions);
        assert!(regions[20].outlook.doubt > 0.2, "{:?}", regions[20].outlook);
        // A hole between them, another process, too few, or looked at: nothing.
        for kind in 0..4 {
            let mut regions = blocks(&[0.6; 20], 0.004, 1.0);
            unknown(&mut regions, if kind == 2 { 3..20 } else { 16..20 });
            match kind {
                0 => regions[15].range.end -= 4096,
                1 => regions[16..].iter_mut().for_each(|region| region.pid = Pid(8)),
                3 => regions[16..].iter_mut().for_each(|region| region.seen = 2),
                _ => {}
            }
            agree(&mut regions);
            assert!(!regions[16].outlook.is_known(), "{kind}");
        }
    }

    #[test]
    fn one_sample_of_many_blocks_is_one_and_strangers_are_not_asked() {
        let mut regions = blocks(&[0.4; 16], 0.004, 16.0);
        let before = regions.clone();
        agree(&mut regions);
        assert_eq!(regions, before, "one region of the monitor");
        let mut regions = blocks(&[0.35, 0.45, 0.35, 0.45], 0.004, 1.0);
        regions[2].pid = Pid(8);
        let before = regions.clone();
        agree(&mut regions);
        assert_eq!(regions, before, "two and two");
    }
}
