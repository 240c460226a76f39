//! Which sizes share a class and how many slots each class gets, within a memory limit.

use tensortier_model::Bytes;

use super::Infeasible;
use crate::{
    graph::{Graph, Liveness},
    plan::Pools,
};

/// The distinct sizes of a graph's storages and how many of each are wanted at once.
pub struct Sizes {
    /// Distinct sizes, ascending.
    pub(super) sizes: Vec<Bytes>,
    /// Index into `sizes` of each storage.
    of: Vec<u16>,
    /// For each operator, how many storages of each size it touches: (size index, count), ascending.
    touched: Vec<Vec<(u16, u32)>>,
    /// For each size, how many are live at each position of the traced order.
    live: Vec<Vec<u32>>,
    capacity: Bytes,
}

/// The part of a chromosome that lays memory out: a class for each size, slots for each class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Class of each size, never falling.
    pub(super) class: Vec<u16>,
    /// Slots of each class; entries of classes without a size mean nothing.
    pub(super) count: Vec<u32>,
}

/// Bounds on the slots of one class.
struct Bounds {
    class: usize,
    size: Bytes,
    /// What one operator needs at once.
    least: u32,
    /// More are never taken in the traced order.
    most: u32,
}

impl Bounds {
    /// How far a count is from what would avoid every swap.
    fn shortage(&self, count: u32) -> f64 {
        f64::from(self.most.saturating_sub(count)) / f64::from(self.most.max(1))
    }
}

impl Sizes {
    /// The sizes of `graph` for memory of `capacity` bytes.
    pub fn new(graph: &Graph, capacity: Bytes) -> Self {
        let mut sizes: Vec<Bytes> = graph.storages.iter().map(|s| s.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let of: Vec<u16> = graph.storages.iter().map(|s| sizes.partition_point(|&b| b < s.bytes) as u16).collect();
        let touched = graph.ops.iter().map(|op| {
            let mut sizes: Vec<u16> = op.touches.iter().map(|&s| of[s]).collect();
            sizes.sort_unstable();
            sizes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u32)).collect()
        });
        let touched = touched.collect();
        let length = graph.ops.len();
        let liveness = Liveness::new(graph, &graph.traced_order());
        let mut change = vec![vec![0i32; length + 1]; sizes.len()];
        for s in 0..graph.storages.len() {
            if let Some((first, last)) = liveness.span(graph, s) {
                change[usize::from(of[s])][first] += 1;
                change[usize::from(of[s])][last + 1] -= 1;
            }
        }
        let live = change.iter().map(|change| {
            let sums = change[..length].iter().scan(0, |sum, &by| {
                *sum += by;
                Some(*sum as u32)
            });
            sums.collect()
        });
        let live = live.collect();
        Self { sizes, of, touched, live, capacity }
    }

    /// Most storages of sizes `from..=to` that one operator touches.
    fn need(&self, from: usize, to: usize) -> u32 {
        let within = |&&(size, _): &&(u16, u32)| (from..=to).contains(&usize::from(size));
        let count = |op: &Vec<(u16, u32)>| op.iter().filter(within).map(|&(_, n)| n).sum();
        self.touched.iter().map(count).max().unwrap_or(0)
    }

    fn bounds(&self, class: &[u16]) -> Vec<Bounds> {
        let mut bounds = Vec::new();
        let mut from = 0;
        for run in class.chunk_by(|a, b| a == b) {
            let to = from + run.len() - 1;
            let live = |at: usize| self.live[from..=to].iter().map(|curve| curve[at]).sum();
            let most = (0..self.live[from].len()).map(live).max().unwrap_or(0u32);
            let least = self.need(from, to).max(1);
            bounds.push(Bounds { class: run[0].into(), size: self.sizes[to], least, most: most.max(least) });
            from = to + 1;
        }
        bounds
    }

    /// Makes `shape` valid: classes that never fall, enough slots for every operator, all slots
    /// within the capacity, and what is left over given to the classes that are shortest.
    ///
    /// # Errors
    /// [`Infeasible::Pools`] where even the least slots of these classes do not fit.
    pub fn repair(&self, shape: &mut Shape) -> Result<(), Infeasible> {
        shape.class.sort_unstable();
        let mut bounds = self.bounds(&shape.class);
        let cost = |b: &Bounds, n: u32| b.size.saturating_mul(n.into());
        let least: Bytes = bounds.iter().map(|b| cost(b, b.least)).fold(0, u64::saturating_add);
        if least > self.capacity {
            return Err(Infeasible::Pools { need: least, capacity: self.capacity });
        }
        // A class that costs next to nothing never swaps.
        let mut spare = (self.capacity - least) / 4;
        for b in &mut bounds {
            let whole = cost(b, b.most) - cost(b, b.least);
            if cost(b, b.most) <= self.capacity / 100 && whole <= spare {
                b.least = b.most;
                spare -= whole;
            }
        }
        let mut total: Bytes = 0;
        for b in &bounds {
            let count = &mut shape.count[b.class];
            *count = (*count).clamp(b.least, b.most);
            total = total.saturating_add(cost(b, *count));
        }
        while total > self.capacity {
            let over = bounds.iter().filter(|b| shape.count[b.class] > b.least);
            let by_shortage = |b: &&Bounds| b.shortage(shape.count[b.class]);
            let Some(b) = over.min_by(|x, y| by_shortage(x).total_cmp(&by_shortage(y)).then(y.size.cmp(&x.size)))
            else {
                return Err(Infeasible::Pools { need: total, capacity: self.capacity });
            };
            let count = &mut shape.count[b.class];
            let step = (*count / 16).max(1).min(*count - b.least);
            *count -= step;
            total -= cost(b, step);
        }
        loop {
            let left = self.capacity - total;
            let fits = |b: &&Bounds| shape.count[b.class] < b.most && b.size <= left;
            let by_shortage = |b: &&Bounds| b.shortage(shape.count[b.class]);
            let short = bounds.iter().filter(fits);
            let Some(b) = short.max_by(|x, y| by_shortage(x).total_cmp(&by_shortage(y)).then(x.size.cmp(&y.size)))
            else {
                return Ok(());
            };
            shape.count[b.class] += 1;
            total += b.size;
        }
    }

    /// The slots of a repaired shape.
    pub fn pools(&self, shape: &Shape) -> Pools {
        let mut pools = Pools { sizes: Vec::new(), counts: Vec::new(), class_of: Vec::new() };
        let mut class_of_size = Vec::new();
        for (size, &class) in self.sizes.iter().zip(&shape.class) {
            if class_of_size.last().is_none_or(|&(last, _)| last != class) {
                class_of_size.push((class, pools.sizes.len() as u16));
                pools.sizes.push(*size);
                pools.counts.push(shape.count[usize::from(class)]);
            } else if let Some(largest) = pools.sizes.last_mut() {
                *largest = *size;
            }
        }
        let mut of_size = Vec::new();
        for &class in &shape.class {
            let at = class_of_size.partition_point(|&(c, _)| c < class);
            of_size.push(class_of_size[at].1);
        }
        pools.class_of = self.of.iter().map(|&size| of_size[usize::from(size)]).collect();
        pools
    }

    /// Shapes to start from: a class for each size; sizes within a factor of 1.25, of 2 and of 4
    /// together; and the division whose least slots take the fewest bytes.
    pub fn defaults(&self) -> Vec<Shape> {
        let mut shapes = vec![self.tightest()];
        for factor in [1.0, 1.25, 2.0, 4.0] {
            let mut class = vec![0u16; self.sizes.len()];
            let mut smallest = self.sizes[0];
            for at in 1..self.sizes.len() {
                let fresh = self.sizes[at] as f64 > smallest.max(1) as f64 * factor;
                class[at] = class[at - 1] + u16::from(fresh);
                if fresh {
                    smallest = self.sizes[at];
                }
            }
            shapes.push(self.even(class));
        }
        shapes.retain_mut(|shape| self.repair(shape).is_ok());
        shapes.dedup();
        shapes
    }

    /// Why there is no shape at all.
    pub(super) fn shortfall(&self) -> Infeasible {
        let bounds = self.bounds(&self.tightest().class);
        let need = bounds.iter().map(|b| b.size.saturating_mul(b.least.into())).fold(0, u64::saturating_add);
        Infeasible::Pools { need, capacity: self.capacity }
    }

    /// The same shortage in every class, as far as the repair finds it.
    fn even(&self, class: Vec<u16>) -> Shape {
        let mut count = vec![0; self.sizes.len()];
        self.bounds(&class).iter().for_each(|b| count[b.class] = b.least);
        Shape { class, count }
    }

    /// Fewest bytes for the least slots, by dynamic programming over where classes end.
    fn tightest(&self) -> Shape {
        let n = self.sizes.len();
        let mut best = vec![(0 as Bytes, 0usize); n + 1];
        for to in 1..=n {
            let through = |from: usize| {
                let own = self.sizes[to - 1].saturating_mul(self.need(from, to - 1).into());
                best[from].0.saturating_add(own)
            };
            best[to] = (0..to).map(|from| (through(from), from)).min().unwrap_or((0, 0));
        }
        let mut class = vec![0u16; n];
        let (mut to, mut id) = (n, n as u16);
        while to > 0 {
            let from = best[to].1;
            id -= 1;
            class[from..to].fill(id);
            to = from;
        }
        self.even(class)
    }
}
