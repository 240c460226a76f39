//! The covering knapsack: free at least so many bytes at the least cost.
//!
//! Items have bytes and a cost of giving them up. [`cover`] chooses items of at least `need` bytes; what it keeps is an
//! ordinary 0/1 knapsack of the rest of the memory, filled with the items that are dearest to give up. That is the form
//! in which DELTA's abstract names the problem; the paper's own heuristic is not known to us, so the one here is built
//! after the abstract and the sources it cites:
//!
//! - Sahni's scheme S(k) (JACM 1975) on what is kept: each subset of at most `k` items goes in first, the rest by cost
//!   per byte. What is kept is worth at least `k/(k+1)` of the best.
//! - Greedy covers from the other side (ours), since a good bound on what is kept says little about what is given up
//!   when that is a small part of the whole.
//! - Exchanges (ours, for the abstract's "improving"): items not needed are kept, and one or two given up are exchanged
//!   for a cheaper one, until nothing improves.
//!
//! [`cover_exact`] solves it by dynamic programming, for comparison and for small cases.

mod exact;
mod exchange;

pub use exact::cover_exact;

/// Something that can be given up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// Bytes it frees.
    pub bytes: u64,
    /// What giving it up costs; finite and not negative.
    pub cost: f64,
}

/// Items given up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cover {
    /// Their indices, ascending.
    pub items: Vec<usize>,
    /// Bytes they free.
    pub bytes: u64,
    /// What they cost.
    pub cost: f64,
}

impl Cover {
    fn of(items: &[Item], mut chosen: Vec<usize>) -> Self {
        chosen.sort_unstable();
        let bytes = chosen.iter().map(|&i| items[i].bytes).sum();
        let cost = chosen.iter().map(|&i| items[i].cost).sum();
        Cover { items: chosen, bytes, cost }
    }
}

/// Above this many items only those that are cheapest per byte are considered.
pub const MOST_ITEMS: usize = 512;

/// Items of at least `need` bytes at low cost, or `None` if all together are too small.
///
/// `k` is the size of the subsets S(k) tries first; time grows as n^(k+1). Items below a hundredth of the mean size are
/// considered only where the others do not suffice, as are those beyond [`MOST_ITEMS`].
pub fn cover(items: &[Item], need: u64, k: usize) -> Option<Cover> {
    let worthwhile = prefilter(items, need);
    let subset: Vec<Item> = worthwhile.iter().map(|&i| items[i]).collect();
    let cover = cover_all(&subset, need, k)?;
    Some(Cover::of(items, cover.items.into_iter().map(|i| worthwhile[i]).collect()))
}

/// Indices of the items to consider.
fn prefilter(items: &[Item], need: u64) -> Vec<usize> {
    let total: u128 = items.iter().map(|i| u128::from(i.bytes)).sum();
    let enough = |chosen: &[usize]| chosen.iter().map(|&i| u128::from(items[i].bytes)).sum::<u128>() >= need.into();
    let all: Vec<usize> = (0..items.len()).collect();
    let large = |i: &usize| u128::from(items[*i].bytes) * 100 * items.len() as u128 >= total;
    let mut chosen: Vec<usize> = all.iter().copied().filter(large).collect();
    if !enough(&chosen) {
        return all;
    }
    if chosen.len() > MOST_ITEMS {
        let by_density = |a: &usize, b: &usize| density(&items[*a]).total_cmp(&density(&items[*b]));
        chosen.sort_by(by_density);
        let cheapest = chosen[..MOST_ITEMS].to_vec();
        if enough(&cheapest) {
            chosen = cheapest;
        }
    }
    chosen
}

/// Cost per byte; items without bytes are worthless to give up.
fn density(item: &Item) -> f64 {
    if item.bytes == 0 { f64::INFINITY } else { item.cost / item.bytes as f64 }
}

fn cover_all(items: &[Item], need: u64, k: usize) -> Option<Cover> {
    let total: u64 = items.iter().map(|i| i.bytes).try_fold(0u64, |a, b| a.checked_add(b)).unwrap_or(u64::MAX);
    if total < need {
        return None;
    }
    if need == 0 {
        return Some(Cover::default());
    }
    let mut by_density: Vec<usize> = (0..items.len()).collect();
    by_density.sort_by(|&a, &b| density(&items[a]).total_cmp(&density(&items[b])));
    let mut best: Option<Cover> = None;
    let mut consider = |chosen: Vec<usize>| {
        let cover = exchange::improve(items, need, Cover::of(items, chosen));
        if best.as_ref().is_none_or(|b| cover.cost < b.cost) {
            best = Some(cover);
        }
    };
    consider(sahni(items, &by_density, total - need, k));
    consider(greedy(items, &by_density, need));
    let mut by_cost: Vec<usize> = (0..items.len()).collect();
    by_cost.sort_by(|&a, &b| items[a].cost.total_cmp(&items[b].cost));
    if let Some(&single) = by_cost.iter().find(|&&i| items[i].bytes >= need) {
        consider(vec![single]);
    }
    best
}

/// Cheapest per byte first, until it suffices.
fn greedy(items: &[Item], by_density: &[usize], need: u64) -> Vec<usize> {
    let mut freed = 0u64;
    let take = |&&i: &&usize| {
        let more = freed < need;
        freed = freed.saturating_add(items[i].bytes);
        more
    };
    by_density.iter().take_while(take).copied().collect()
}

/// S(k) on what is kept within `room` bytes; returns what is not kept.
fn sahni(items: &[Item], by_density: &[usize], room: u64, k: usize) -> Vec<usize> {
    let mut best = (f64::NEG_INFINITY, Vec::new());
    let mut seed = Vec::with_capacity(k);
    subsets(items.len(), k, &mut seed, &mut |seed| {
        let mut kept = vec![false; items.len()];
        let (mut left, mut value) = (room, 0.0);
        for &i in seed {
            if items[i].bytes > left {
                return;
            }
            left -= items[i].bytes;
            value += items[i].cost;
            kept[i] = true;
        }
        for &i in by_density.iter().rev() {
            if !kept[i] && items[i].bytes <= left {
                left -= items[i].bytes;
                value += items[i].cost;
                kept[i] = true;
            }
        }
        if value > best.0 {
            best = (value, (0..items.len()).filter(|&i| !kept[i]).collect());
        }
    });
    best.1
}

/// Calls `visit` with every subset of at most `k` of `n` items.
fn subsets(n: usize, k: usize, seed: &mut Vec<usize>, visit: &mut impl FnMut(&[usize])) {
    visit(seed);
    if seed.len() == k {
        return;
    }
    for i in seed.last().map_or(0, |&l| l + 1)..n {
        seed.push(i);
        subsets(n, k, seed, visit);
        seed.pop();
    }
}

#[cfg(test)]
mod tests;
