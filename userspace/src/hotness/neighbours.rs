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

use super::{Outlook, Region};

/// Neighbours that are taken together: 32 MiB.
const GROUP: usize = 16;
/// Fewer say little of how much they differ.
const LEAST: f32 = 4.0;

/// Has neighbours agree on what only noise makes different. Regions are ordered by process and address.
pub(super) fn agree(regions: &mut [Region]) {
    let side_by_side = |a: &Region, b: &Region| a.pid == b.pid && a.range.end == b.range.start && known(a) == known(b);
    for run in regions.chunk_by_mut(side_by_side).filter(|run| known(&run[0])) {
        run.chunks_mut(GROUP).for_each(together);
    }
}

fn known(region: &Region) -> bool {
    region.outlook.is_known() && region.outlook.soon.is_none()
}

fn together(group: &mut [Region]) {
    let sum = |of: &dyn Fn(&Outlook) -> f32| -> f32 {
        group.iter().map(|region| of(&region.outlook) / region.outlook.alike.max(1.0)).sum()
    };
    let k = sum(&|_| 1.0);
    if k < LEAST {
        return;
    }
    let plain = sum(&|block| block.used) / k;
    let spread = sum(&|block| (block.used - plain) * (block.used - plain)) / (k - 1.0);
    let differ = (spread - sum(&|block| block.noise) / k).max(0.0);
    let weight = |block: &Outlook| 1.0 / (differ + block.noise).max(1e-9);
    let weights = sum(&weight);
    let mean = sum(&|block| block.used * weight(block)) / weights;
    for block in group.iter_mut().map(|region| &mut region.outlook).filter(|block| block.noise > 0.0) {
        let own = differ / (differ + block.noise);
        let other = block.doubt - block.noise;
        block.used = own * block.used + (1.0 - own) * mean;
        block.noise = own * block.noise + (1.0 - own) * (1.0 - own) / weights;
        block.doubt = other + block.noise;
    }
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
