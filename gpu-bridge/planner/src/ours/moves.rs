//! Small changes of the genes, for the search to try.

use rand::{Rng, RngExt};

use super::genes::{FIRST, Facts, Genes, LAST, NORMAL, Order};
use crate::{graph::StorageId, swapadvisor::genes::move_one};

/// What [`small`] changes, for [`small`] to choose among by how often each has helped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    One,
    Run,
    Exchange,
    Extend,
    Rank,
    RankRun,
    Lead,
    Tier,
    Order,
}

/// All of them.
pub(super) const KINDS: [Kind; 9] = [
    Kind::One,
    Kind::Run,
    Kind::Exchange,
    Kind::Extend,
    Kind::Rank,
    Kind::RankRun,
    Kind::Lead,
    Kind::Tier,
    Kind::Order,
];

/// Changes `genes` a little; false where there was nothing to change.
pub(super) fn small(facts: &Facts<'_>, genes: &mut Genes, kind: Kind, rng: &mut impl Rng) -> bool {
    match kind {
        Kind::One => one(facts, genes, rng),
        Kind::Run => run(facts, genes, rng),
        Kind::Exchange => exchange(facts, genes, rng),
        Kind::Extend => {
            let Some(&s) = pick(&facts.sources, rng) else { return false };
            genes.extend[s] = !genes.extend[s];
            true
        }
        Kind::Rank => {
            let Some(&s) = pick(&facts.movable, rng) else { return false };
            let rank = [FIRST, NORMAL, LAST][rng.random_range(0..3)];
            std::mem::replace(&mut genes.rank[s], rank) != rank
        }
        Kind::RankRun => {
            let rank = [FIRST, NORMAL, LAST][rng.random_range(0..3)];
            stretch(&facts.movable, &mut genes.rank, rank, rng)
        }
        Kind::Lead => {
            let lead = [0, 1, 2, 4, 8, 16, 32, 128, 1024][rng.random_range(0..9)];
            std::mem::replace(&mut genes.lead, lead) != lead
        }
        Kind::Tier => {
            let tiers = facts.machine.tiers.len();
            if tiers < 2 {
                return false;
            }
            let tier = rng.random_range(0..=tiers) as u8;
            stretch(&facts.movable, &mut genes.tier, tier, rng)
        }
        Kind::Order => {
            let mut ops = genes.order.ops.clone();
            for _ in 0..1 + length(8, rng) {
                move_one(facts.graph, &facts.successors, &mut ops, rng);
            }
            if ops == genes.order.ops {
                return false;
            }
            genes.order = Order::new(facts.graph, ops);
            true
        }
    }
}

/// A stretch of `of` is given the same value.
fn stretch(of: &[StorageId], values: &mut [u8], value: u8, rng: &mut impl Rng) -> bool {
    let Some(from) = at(of.len(), rng) else { return false };
    let count = 1 + length(of.len() - from, rng);
    let mut changed = false;
    for &s in of[from..].iter().take(count) {
        changed |= std::mem::replace(&mut values[s], value) != value;
    }
    changed
}

/// One storage of some group.
fn one(facts: &Facts<'_>, genes: &mut Genes, rng: &mut impl Rng) -> bool {
    let Some(group) = pick(&facts.groups, rng) else { return false };
    let Some(&s) = pick(&group.storages, rng) else { return false };
    genes.forget[s] = !genes.forget[s];
    true
}

/// Neighbours in a group are all forgotten or all not, in steps of one to four.
fn run(facts: &Facts<'_>, genes: &mut Genes, rng: &mut impl Rng) -> bool {
    let Some(group) = pick(&facts.groups, rng) else { return false };
    let Some(from) = at(group.storages.len(), rng) else { return false };
    let count = 1 + length(group.storages.len() - from, rng);
    let value = rng.random_bool(0.5);
    let step = rng.random_range(1..=4);
    let mut changed = false;
    for &s in group.storages[from..].iter().step_by(step).take(count) {
        changed |= std::mem::replace(&mut genes.forget[s], value) != value;
    }
    changed
}

/// One is forgotten in place of another of its group.
fn exchange(facts: &Facts<'_>, genes: &mut Genes, rng: &mut impl Rng) -> bool {
    let Some(group) = pick(&facts.groups, rng) else { return false };
    let (Some(&a), Some(&b)) = (pick(&group.storages, rng), pick(&group.storages, rng)) else { return false };
    genes.forget.swap(a, b);
    genes.forget[a] != genes.forget[b]
}

fn at(count: usize, rng: &mut impl Rng) -> Option<usize> {
    (count > 0).then(|| rng.random_range(0..count))
}

fn pick<'a, T>(of: &'a [T], rng: &mut impl Rng) -> Option<&'a T> {
    at(of.len(), rng).map(|at| &of[at])
}

/// Up to `most`, small ones more often: even on a logarithmic scale.
fn length(most: usize, rng: &mut impl Rng) -> usize {
    let most = most.max(1) as f64;
    (most.powf(rng.random::<f64>()) as usize).max(1) - 1
}
