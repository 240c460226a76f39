//! Chromosomes and what a search does to them.
//!
//! Schedule: the crossover takes a prefix of one parent and the rest in the other's order, which
//! keeps both parents' precedence (an operator of the rest has its predecessors in the prefix or
//! before it in the other parent); mutations rebuild part of the order by list scheduling or move
//! single operators between their neighbours in the graph. Classes and counts: one cut, small
//! Gaussian steps, then a repair. Forms from the papers on genetic scheduling that SwapAdvisor
//! cites, rates ours.

use rand::{Rng, RngExt};

use super::pools::{Shape, Sizes};
use crate::graph::{Graph, OpId};

/// A candidate: an order and, in class mode, a memory layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Genes {
    /// The schedule.
    pub order: Vec<OpId>,
    /// Classes and counts; none in global mode.
    pub shape: Option<Shape>,
}

/// Prefix of `a` up to `cut`, then what is left in the order of `b`.
pub fn cross_orders(a: &[OpId], b: &[OpId], cut: usize) -> Vec<OpId> {
    let mut taken = vec![false; a.len()];
    a[..cut].iter().for_each(|&op| taken[op] = true);
    a[..cut].iter().chain(b.iter().filter(|&&op| !taken[op])).copied().collect()
}

/// Successors of each operator.
pub fn successors(graph: &Graph) -> Vec<Vec<OpId>> {
    let mut successors = vec![Vec::new(); graph.ops.len()];
    for (id, op) in graph.ops.iter().enumerate() {
        op.preds.iter().for_each(|&p| successors[p].push(id));
    }
    successors
}

/// Moves one operator to a random place between its last predecessor and its first successor.
pub fn move_one(graph: &Graph, successors: &[Vec<OpId>], order: &mut [OpId], rng: &mut impl Rng) {
    let from = rng.random_range(0..order.len());
    let op = order[from];
    // Bounded: far moves of single operators rarely help and a scan of the whole order is slow.
    let reach = 512;
    let low = order[from.saturating_sub(reach)..from]
        .iter()
        .rposition(|other| graph.ops[op].preds.binary_search(other).is_ok())
        .map_or(from.saturating_sub(reach), |at| from.saturating_sub(reach) + at + 1);
    let end = (from + 1 + reach).min(order.len());
    let high = order[from + 1..end]
        .iter()
        .position(|other| successors[op].binary_search(other).is_ok())
        .map_or(end - 1, |at| from + at);
    let to = rng.random_range(low..=high);
    if to < from {
        order[to..=from].rotate_right(1);
    } else {
        order[from..=to].rotate_left(1);
    }
}

/// List scheduling of the stretch `from..to`: the ready operator that comes first in the parent,
/// or with probability `p` any ready one.
pub fn reschedule(
    graph: &Graph,
    successors: &[Vec<OpId>],
    order: &mut [OpId],
    from: usize,
    to: usize,
    p: f64,
    rng: &mut impl Rng,
) {
    let mut rank = vec![usize::MAX; graph.ops.len()];
    for (at, &op) in order[from..to].iter().enumerate() {
        rank[op] = at;
    }
    let within = |op: OpId| rank[op] != usize::MAX;
    let mut waiting = vec![0usize; graph.ops.len()];
    // Ascending by rank, so that the first is the parent's choice.
    let mut ready: Vec<OpId> = Vec::new();
    for &op in &order[from..to] {
        waiting[op] = graph.ops[op].preds.iter().filter(|&&q| within(q)).count();
        if waiting[op] == 0 {
            ready.push(op);
        }
    }
    for slot in &mut order[from..to] {
        let pick = if rng.random_bool(p) { rng.random_range(0..ready.len()) } else { 0 };
        let op = ready.remove(pick);
        *slot = op;
        for &next in successors[op].iter().filter(|&&next| within(next)) {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                let at = ready.partition_point(|&other| rank[other] < rank[next]);
                ready.insert(at, next);
            }
        }
    }
}

/// Whether `order` runs each operator once and after its predecessors.
pub fn is_valid_order(graph: &Graph, order: &[OpId]) -> bool {
    let mut done = vec![false; graph.ops.len()];
    order.len() == done.len()
        && order.iter().all(|&op| {
            op < done.len() && !std::mem::replace(&mut done[op], true) && graph.ops[op].preds.iter().all(|&p| done[p])
        })
}

/// A child of two parents, mutated and repaired. Where the repair fails the layout of the first
/// parent, which is valid, is kept.
pub fn child(
    graph: &Graph,
    successors: &[Vec<OpId>],
    sizes: &Sizes,
    a: &Genes,
    b: &Genes,
    rng: &mut impl Rng,
) -> Genes {
    let length = graph.ops.len();
    let mut order = match rng.random_range(0..4) {
        0 => cross_orders(&a.order, &b.order, rng.random_range(0..=length)),
        1 => cross_orders(&b.order, &a.order, rng.random_range(0..=length)),
        _ => a.order.clone(),
    };
    match rng.random_range(0..5) {
        0 => {
            let stretch = rng.random_range(1..=length.min(256));
            let from = rng.random_range(0..=length - stretch);
            reschedule(graph, successors, &mut order, from, from + stretch, 0.1, rng);
        }
        1..=3 => {
            for _ in 0..1usize << rng.random_range(0..=6) {
                move_one(graph, successors, &mut order, rng);
            }
        }
        _ => {}
    }
    let shape = a.shape.as_ref().zip(b.shape.as_ref()).map(|(a, b)| {
        let mut shape = cross_shapes(a, b, rng);
        mutate_shape(&mut shape, rng);
        if sizes.repair(&mut shape).is_ok() { shape } else { a.clone() }
    });
    Genes { order, shape }
}

fn cross_shapes(a: &Shape, b: &Shape, rng: &mut impl Rng) -> Shape {
    let n = a.class.len();
    let mix = |a: &[u16], b: &[u16], cut: usize| a[..cut].iter().chain(&b[cut..]).copied().collect();
    let class = if rng.random_bool(0.3) { mix(&a.class, &b.class, rng.random_range(0..=n)) } else { a.class.clone() };
    let cut = if rng.random_bool(0.5) { rng.random_range(0..=n) } else { n };
    let count = a.count[..cut].iter().chain(&b.count[cut..]).copied().collect();
    Shape { class, count }
}

fn mutate_shape(shape: &mut Shape, rng: &mut impl Rng) {
    let n = shape.class.len();
    if rng.random_bool(0.3) {
        for class in &mut shape.class {
            if rng.random_bool((2.0 / n as f64).min(0.5)) {
                let step = (gaussian(rng) * 1.5).round() as i32;
                *class = (i32::from(*class) + step).clamp(0, n as i32 - 1) as u16;
            }
        }
        shape.class.sort_unstable();
    }
    for count in &mut shape.count {
        if rng.random_bool(0.2) {
            let spread = f64::from(*count).max(4.0) * 0.25;
            *count = (f64::from(*count) + gaussian(rng) * spread).round().clamp(0.0, 1e6) as u32;
        }
    }
}

/// A standard normal value (Box and Muller's method).
fn gaussian(rng: &mut impl Rng) -> f64 {
    let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}
