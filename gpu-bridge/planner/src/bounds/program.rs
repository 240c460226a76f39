//! The bound for one order as a linear program over windows of the step.
//!
//! The order is cut into windows of about equal compute time; each has a *checkpoint*, its
//! position of most live bytes. Storages idle over the same windows form a group. For each group
//! the program chooses how many bytes leave and return in each window: what is absent at a
//! checkpoint has left by the end of its window and returns in it or later, what is present
//! everywhere fits, and a window lasts at least as long as its operators and its transfers.
//! Every plan gives a solution that takes no longer, so the optimum is a bound.

use std::collections::BTreeMap;

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, clarabel, constraint, variable};
use tensortier_model::{Bytes, Nanos};

use super::Rates;
use crate::graph::{Graph, Liveness, OpId, StorageId, StorageKind};

/// Windows of a step.
const WINDOWS: usize = 20;
/// The solver stops within about this of the optimum; the bound gives it back.
const TOLERANCE: f64 = 1e-5;

/// Where a storage is idle. Window numbers past the end are those of the next step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Idle {
    /// Window of its last write, from which on it can be copied out; none if a copy is on the host.
    written: Option<usize>,
    /// First and last checkpoint at which it is not in use, as window numbers.
    checkpoints: (usize, usize),
    /// Window by whose end it is back; none if it never returns.
    back: Option<usize>,
}

struct Windows {
    of: Vec<usize>,
    time: Vec<Nanos>,
    checkpoint: Vec<usize>,
    live: Vec<Bytes>,
}

impl Windows {
    fn new(graph: &Graph, live: &Liveness, order: &[OpId]) -> Self {
        let share = (graph.ideal_time() / WINDOWS as u64).max(1);
        let curve = live.curve(graph);
        let mut windows = Self { of: Vec::new(), time: Vec::new(), checkpoint: Vec::new(), live: Vec::new() };
        let mut now = 0;
        for (at, &op) in order.iter().enumerate() {
            if windows.time.is_empty() || now >= share * windows.time.len() as u64 && windows.time.len() < WINDOWS {
                windows.time.push(0);
                windows.checkpoint.push(at);
                windows.live.push(curve[at]);
            }
            let window = windows.time.len() - 1;
            windows.of.push(window);
            windows.time[window] += graph.ops[op].time;
            if curve[at] > windows.live[window] {
                (windows.checkpoint[window], windows.live[window]) = (at, curve[at]);
            }
            now += graph.ops[op].time;
        }
        windows
    }

    fn count(&self) -> usize {
        self.time.len()
    }

    /// Checkpoints strictly between two positions; positions past the end are in the next step.
    fn within(&self, after: usize, before: usize) -> Option<(usize, usize)> {
        let (count, length) = (self.count(), self.of.len());
        let position = |w: usize| self.checkpoint[w % count] + w / count * length;
        let inside = |w: &usize| position(*w) > after && position(*w) < before;
        Some(((0..2 * count).find(inside)?, (0..2 * count).rev().find(inside)?))
    }

    fn window(&self, position: usize) -> usize {
        self.of[position % self.of.len()] + position / self.of.len() * self.count()
    }
}

/// The bound, or none where the solver finds no optimum.
pub(super) fn solve(graph: &Graph, hbm: Bytes, rates: Rates, order: &[OpId]) -> Option<Nanos> {
    if rates.into <= 0.0 || rates.out <= 0.0 || order.is_empty() {
        return None;
    }
    let live = Liveness::new(graph, order);
    let windows = Windows::new(graph, &live, order);
    let count = windows.count();
    let (groups, gone) = groups(graph, &live, &windows, order);

    // Units: the device's memory, and the step's ideal time.
    let unit = hbm.max(1) as f64;
    let whole = graph.ideal_time().max(1) as f64;
    let mut variables = ProblemVariables::new();
    let last: Vec<Variable> =
        windows.time.iter().map(|&time| variables.add(variable().min(time as f64 / whole))).collect();
    let mut sent = vec![Expression::default(); count];
    let mut fetched = vec![Expression::default(); count];
    let mut absent = vec![Expression::default(); count];
    let mut limits = Vec::new();
    for (idle, bytes) in groups {
        let most = bytes as f64 / unit;
        let (first, end) = idle.checkpoints;
        let mut add = |windows: std::ops::RangeInclusive<usize>, sums: &mut [Expression]| -> Vec<(usize, Variable)> {
            windows
                .map(|w| {
                    let v = variables.add(variable().min(0.0).max(most));
                    sums[w % count] += v;
                    (w, v)
                })
                .collect()
        };
        let out = idle.written.map(|written| add(written..=end, &mut sent));
        let back = idle.back.map(|back| add(first..=back, &mut fetched));
        for (w, away) in add(first..=end, &mut absent) {
            if let Some(out) = &out {
                let left: Expression = out.iter().filter(|(at, _)| *at <= w).map(|&(_, v)| v).sum();
                limits.push(constraint!(away <= left));
            }
            if let Some(back) = &back {
                let returns: Expression = back.iter().filter(|(at, _)| *at >= w).map(|&(_, v)| v).sum();
                limits.push(constraint!(away <= returns));
            }
        }
    }
    let objective: Expression = last.iter().copied().sum();
    let mut problem = variables.minimise(objective.clone()).using(clarabel);
    problem.settings().verbose(false);
    let per_time = |rate: f64| rate * whole / unit;
    for w in 0..count {
        let excess = (windows.live[w] as f64 - gone as f64) / unit - 1.0;
        if excess > 0.0 {
            problem.add_constraint(constraint!(absent[w].clone() >= excess));
        }
        problem.add_constraint(constraint!(sent[w].clone() <= per_time(rates.out) * last[w]));
        problem.add_constraint(constraint!(fetched[w].clone() <= per_time(rates.into) * last[w]));
    }
    for limit in limits {
        problem.add_constraint(limit);
    }
    let solution = problem.solve().ok()?;
    Some((solution.eval(objective) * whole * (1.0 - TOLERANCE)) as Nanos)
}

/// Bytes by where they are idle, and the bytes that are never used and can always be away.
fn groups(graph: &Graph, live: &Liveness, windows: &Windows, order: &[OpId]) -> (BTreeMap<Idle, Bytes>, Bytes) {
    let mut groups = BTreeMap::new();
    let mut gone = 0;
    for (s, storage) in graph.storages.iter().enumerate() {
        let uses = &live.uses[s];
        let (Some(&first), Some(&last)) = (uses.first(), uses.last()) else {
            gone += if storage.kind.is_persistent() { storage.bytes } else { 0 };
            continue;
        };
        let ends = match storage.kind {
            StorageKind::Temporary => None,
            StorageKind::Output => Some((last, order.len(), false)),
            _ => Some((last, first + order.len(), true)),
        };
        // Between two writes only the first idle stretch pays for the copy out.
        let mut copied = storage.kind.is_persistent();
        let inner = uses.windows(2).map(|pair| (pair[0], pair[1], true));
        for (from, to, returns) in inner.chain(ends) {
            copied &= !writes(graph, order[from], s) || storage.kind.is_persistent();
            let Some(checkpoints) = windows.within(from, to) else { continue };
            let written = uses.iter().rev().find(|&&at| at <= from && writes(graph, order[at], s));
            let idle = Idle {
                written: written.filter(|_| !copied).map(|&at| windows.window(at)),
                checkpoints,
                back: returns.then(|| windows.window(to)),
            };
            *groups.entry(idle).or_insert(0) += storage.bytes;
            copied = true;
        }
    }
    (groups, gone)
}

fn writes(graph: &Graph, op: OpId, s: StorageId) -> bool {
    graph.ops[op].writes.binary_search(&s).is_ok()
}
