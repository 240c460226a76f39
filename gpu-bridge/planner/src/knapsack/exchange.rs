//! Improving a cover by exchanges.

use super::{Cover, Item};

/// Passes over the items; each lowers the cost, so few are ever needed.
const MOST_PASSES: usize = 64;

/// Lowers the cost of a cover that frees at least `need` bytes.
pub(super) fn improve(items: &[Item], need: u64, cover: Cover) -> Cover {
    let mut given = vec![false; items.len()];
    cover.items.iter().for_each(|&i| given[i] = true);
    let mut freed = cover.bytes;
    for _ in 0..MOST_PASSES {
        let dropped = keep_needless(items, need, &mut given, &mut freed);
        if !(exchange(items, need, &mut given, &mut freed) || dropped) {
            break;
        }
    }
    Cover::of(items, (0..items.len()).filter(|&i| given[i]).collect())
}

/// Keeps what is not needed, dearest first.
fn keep_needless(items: &[Item], need: u64, given: &mut [bool], freed: &mut u64) -> bool {
    let mut chosen: Vec<usize> = (0..items.len()).filter(|&i| given[i]).collect();
    chosen.sort_by(|&a, &b| items[b].cost.total_cmp(&items[a].cost));
    let mut any = false;
    for i in chosen {
        if *freed - items[i].bytes >= need {
            given[i] = false;
            *freed -= items[i].bytes;
            any = true;
        }
    }
    any
}

/// Exchanges one or two items given up for a cheaper one, the first that helps.
fn exchange(items: &[Item], need: u64, given: &mut [bool], freed: &mut u64) -> bool {
    let chosen: Vec<usize> = (0..items.len()).filter(|&i| given[i]).collect();
    let mut others: Vec<usize> = (0..items.len()).filter(|&i| !given[i]).collect();
    others.sort_by(|&a, &b| items[a].cost.total_cmp(&items[b].cost));
    let singles = chosen.iter().map(|&a| (a, None));
    let pairs = chosen.iter().enumerate().flat_map(|(i, &a)| chosen[i + 1..].iter().map(move |&b| (a, Some(b))));
    for (a, b) in singles.chain(pairs) {
        let bytes = items[a].bytes + b.map_or(0, |b| items[b].bytes);
        let cost = items[a].cost + b.map_or(0.0, |b| items[b].cost);
        let cheaper = others.iter().take_while(|&&o| items[o].cost < cost);
        let fits = |o: &&usize| *freed - bytes + items[**o].bytes >= need;
        if let Some(&o) = cheaper.clone().find(fits) {
            given[a] = false;
            if let Some(b) = b {
                given[b] = false;
            }
            given[o] = true;
            *freed = *freed - bytes + items[o].bytes;
            return true;
        }
    }
    false
}
