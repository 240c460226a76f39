//! The cheapest placement of all, in hindsight: what no policy can beat.
//!
//! **The problem.** Choose for each region and interval how many of its bytes are on the top tier, at most its size and
//! together at most the capacity, so that the additive cost of [`crate::cost`] is least: accesses where the bytes are,
//! and each byte that moves up or down between intervals. New regions are placed free of charge, and so is all that
//! lives in the first interval.
//!
//! **As a flow** (ours, after the caching and k-server flows of Chrobak, Karloff, Payne and Vishwanathan, SIAM J.
//! Discrete Math. 4(2), 1991). Each byte of the top tier is a unit of flow through time. A *hub* per interval holds
//! what is unused; a node per touch of a region is where its bytes are on the top tier for that interval:
//!
//! ```text
//! hub(t) ──────────────────────── 0 ───────────────────────▶ hub(t+1)        unused, no bound
//! hub(t) ── promote, 0 if born at t ──▶ in(r,t)                              up to the region's size
//! in(r,t) ── (cost on top - cost below) / size ──▶ out(r,t)                  the gain of the touch
//! out(r,t) ── 0 ──▶ in(r, next touch of r)                                   stays meanwhile
//! out(r,t) ── demote, 0 if r is gone ──▶ hub(t+1)
//! out(r, last touch) ── 0 ──▶ hub(end of r)      hub(birth of r) ── 0 ──▶ in(r, first touch)
//! ```
//!
//! An arc that spans intervals keeps its bytes from the hubs between, so the capacity holds at every moment. Between
//! two touches of a region nothing is gained by moving it anywhere but right before and right after, so the network has
//! all solutions worth having, and its size is that of the trace.
//!
//! **What it gives.** The flow is an optimum among all divisions of regions, exact up to the rounding of prices to
//! picoseconds a unit. The capacities of a flow being whole, it is also whole in units of the greatest common divisor
//! of the regions' sizes and the capacity: with regions of one size, and a capacity that is a multiple of it, whole
//! regions move. With regions of several sizes it is the linear relaxation of moving whole regions, and the exact
//! optimum where they can be split, as page by page they can.

mod fixed;
mod flow;

pub use fixed::best_fixed;
use flow::{ArcId, Network};
use tensortier_model::Bytes;

use crate::{
    cost::{Costs, Level},
    policy::{Move, Policy, Seen, View},
    workload::{Touch, Workload},
};

/// The bytes of each region on the top tier over time; a policy that follows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    name: &'static str,
    /// Changes by interval: the region, and its bytes from then on.
    changes: Vec<Vec<(usize, Bytes)>>,
    next: usize,
}

impl Schedule {
    /// `top[region]` lists (interval, bytes from then on) in order.
    fn new(name: &'static str, intervals: usize, top: Vec<Vec<(usize, Bytes)>>) -> Self {
        let mut changes = vec![Vec::new(); intervals];
        for (region, steps) in top.into_iter().enumerate() {
            let mut has = 0;
            for (at, bytes) in steps {
                // At birth an entry of 0 counts too: without it first touch would decide.
                if (has != bytes || bytes == 0) && at < intervals {
                    changes[at].push((region, bytes));
                }
                has = bytes;
            }
        }
        Self { name, changes, next: 0 }
    }
}

impl Policy for Schedule {
    fn name(&self) -> String {
        self.name.into()
    }

    fn place(&mut self, region: usize, _: &Seen, _: Bytes) -> Bytes {
        let now = self.changes.get(self.next).into_iter().flatten();
        now.filter(|(of, _)| *of == region).map(|(_, bytes)| *bytes).next().unwrap_or(0)
    }

    fn decide(&mut self, view: &View) -> Vec<Move> {
        self.next += 1;
        let changes = self.changes.get(self.next).into_iter().flatten();
        let mut moves: Vec<Move> = changes.map(|&(region, top)| Move { region, top }).collect();
        moves.retain(|step| view.regions.get(step.region).is_some_and(|seen| seen.alive && seen.top != step.top));
        moves.sort_by_key(|step| step.top > view.regions[step.region].top);
        moves
    }
}

/// The cheapest schedule with `capacity` bytes of the top tier.
pub fn optimum(workload: &Workload, costs: &Costs, capacity: Bytes) -> Schedule {
    let unit = unit(workload, capacity);
    let mut plan = Plan::new(workload, costs, unit);
    plan.build();
    plan.network.send(units(capacity, unit));
    Schedule::new("optimum", workload.intervals(), plan.residency())
}

/// The greatest common divisor of all sizes, so that whole units make whole regions.
fn unit(workload: &Workload, capacity: Bytes) -> Bytes {
    workload.regions.iter().map(|region| region.bytes).fold(capacity, gcd).max(1)
}

fn gcd(a: Bytes, b: Bytes) -> Bytes {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn units(bytes: Bytes, unit: Bytes) -> i64 {
    i64::try_from(bytes / unit).unwrap_or(i64::MAX)
}

fn picos(ns: f64) -> i64 {
    (ns * 1000.0).round() as i64
}

/// What a touch saves for each unit that is on the top tier, in picoseconds.
fn gain(workload: &Workload, costs: &Costs, touch: &Touch, unit: Bytes) -> i64 {
    let region = &workload.regions[touch.region];
    let ns = |level| costs.access_ns(level, region.pattern, touch.read as f64, touch.written as f64);
    picos((ns(Level::Lower) - ns(Level::Top)) * unit as f64 / region.bytes.max(1) as f64)
}

struct Plan<'a> {
    workload: &'a Workload,
    costs: &'a Costs,
    unit: Bytes,
    network: Network,
    /// The node of each hub, and that of the first touch of each interval.
    hubs: Vec<usize>,
    /// By region: arcs, and from and to which interval their bytes are on the top tier.
    stays: Vec<Vec<(ArcId, usize, usize)>>,
}

impl<'a> Plan<'a> {
    fn new(workload: &'a Workload, costs: &'a Costs, unit: Bytes) -> Self {
        let mut hubs = Vec::with_capacity(workload.intervals() + 1);
        let mut node = 0;
        for touches in &workload.touches {
            hubs.push(node);
            node += 1 + 2 * touches.len();
        }
        hubs.push(node);
        let stays = vec![Vec::new(); workload.regions.len()];
        Self { workload, costs, unit, network: Network::new(node + 1), hubs, stays }
    }

    fn build(&mut self) {
        for at in 0..self.workload.intervals() {
            self.network.add(self.hubs[at], self.hubs[at + 1], i64::MAX / 4, 0);
        }
        let mut touches: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.workload.regions.len()];
        for (at, of) in self.workload.touches.iter().enumerate() {
            for (index, touch) in of.iter().enumerate() {
                let lives = self.workload.regions.get(touch.region).is_some_and(|r| (r.born..r.dies).contains(&at));
                if lives {
                    touches[touch.region].push((at, index));
                }
            }
        }
        for (region, touches) in touches.iter().enumerate() {
            self.add_region(region, touches);
        }
    }

    fn add_region(&mut self, index: usize, touches: &[(usize, usize)]) {
        let (Some(first), Some(last)) = (touches.first(), touches.last()) else { return };
        let (workload, unit) = (self.workload, self.unit);
        let region = &workload.regions[index];
        let dies = region.dies.min(workload.intervals());
        let size = units(region.bytes, unit);
        let (up, down) = (picos(self.costs.move_ns(unit, Level::Top)), picos(self.costs.move_ns(unit, Level::Lower)));
        let node = |plan: &Self, (at, touch): (usize, usize)| plan.hubs[at] + 1 + 2 * touch;
        let entry = node(self, *first);
        let born = self.network.add(self.hubs[region.born], entry, size, 0);
        self.stays[index].push((born, region.born, first.0));
        for (i, &(at, touch)) in touches.iter().enumerate() {
            let inside = node(self, (at, touch));
            if at > region.born {
                self.network.add(self.hubs[at], inside, size, up);
            }
            let saved = gain(workload, self.costs, &workload.touches[at][touch], unit);
            let used = self.network.add(inside, inside + 1, size, -saved);
            self.stays[index].push((used, at, at + 1));
            if at + 1 < dies {
                self.network.add(inside + 1, self.hubs[at + 1], size, down);
            }
            if let Some(&next) = touches.get(i + 1) {
                let stay = self.network.add(inside + 1, node(self, next), size, 0);
                self.stays[index].push((stay, at + 1, next.0));
            }
        }
        let exit = node(self, *last) + 1;
        let end = self.network.add(exit, self.hubs[dies], size, 0);
        self.stays[index].push((end, last.0 + 1, dies));
    }

    /// For each region (interval, bytes from then on).
    fn residency(&self) -> Vec<Vec<(usize, Bytes)>> {
        let of = |stays: &Vec<(ArcId, usize, usize)>| {
            let spans = stays.iter().filter(|(_, from, to)| from < to);
            spans.map(|&(arc, from, _)| (from, self.network.flow(arc) as Bytes * self.unit)).collect()
        };
        self.stays.iter().map(of).collect()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
