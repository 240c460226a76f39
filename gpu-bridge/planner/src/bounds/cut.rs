//! Bounds from one moment of the step: what cannot be resident while an operator runs has gone
//! out before it and comes back after it.

use tensortier_model::{Bytes, Nanos};

use super::Rates;
use crate::graph::{Graph, Liveness, OpId, StorageKind};

/// Above this the sets of ancestors take too much memory (200 MB).
const MOST_OPS: usize = 40_000;

/// An operator, the compute that lies before and after it, what has to leave before it starts and
/// what comes back once it has ended.
fn around(before: Nanos, own: Nanos, after: Nanos, out: Bytes, back: Bytes, rates: Rates) -> Nanos {
    before.max(Rates::time(out, rates.out)) + own + after.max(Rates::time(back, rates.into))
}

/// The largest cut over the positions of `order`.
pub(super) fn in_order(graph: &Graph, hbm: Bytes, rates: Rates, order: &[OpId]) -> Nanos {
    let live = Liveness::new(graph, order);
    // Changes of (bytes made in the step and live, of those without a later use) at each position.
    let mut change = vec![(0i64, 0i64); order.len() + 2];
    for (s, storage) in graph.storages.iter().enumerate() {
        let (Some(&first), Some(&last)) = (live.uses[s].first(), live.uses[s].last()) else { continue };
        let bytes = storage.bytes as i64;
        match storage.kind {
            StorageKind::Temporary => {
                change[first].0 += bytes;
                change[last + 1].0 -= bytes;
            }
            StorageKind::Output => {
                change[first].0 += bytes;
                change[last + 1].1 += bytes;
            }
            _ => {}
        }
    }
    let whole = graph.ideal_time();
    let (mut made, mut results, mut before, mut best) = (0i64, 0i64, 0, 0);
    for (at, &op) in order.iter().enumerate() {
        made += change[at].0;
        results += change[at].1;
        let of = &graph.ops[op];
        let weights = of.touches.iter().filter(|&&s| graph.storages[s].kind.is_persistent());
        let weights: Bytes = weights.map(|&s| graph.storages[s].bytes).sum();
        let out = (made as Bytes + weights).saturating_sub(hbm);
        let back = out.saturating_sub(results as Bytes);
        best = best.max(around(before, of.time, whole - before - of.time, out, back, rates));
        before += of.time;
    }
    best
}

/// The largest cut over the operators, whatever the order: before an operator come at least its
/// ancestors, after it its descendants, and live across it is what the former make for the latter.
pub(super) fn over_orders(graph: &Graph, hbm: Bytes, rates: Rates) -> Nanos {
    if graph.ops.len() > MOST_OPS {
        return 0;
    }
    let ancestors = Ancestors::new(graph);
    let count = graph.ops.len();
    let mut maker: Vec<Option<OpId>> = vec![None; graph.storages.len()];
    let mut readers: Vec<Vec<OpId>> = vec![Vec::new(); graph.storages.len()];
    for (id, op) in graph.ops.iter().enumerate() {
        for &s in &op.writes {
            maker[s].get_or_insert(id);
        }
        op.reads.iter().for_each(|&s| readers[s].push(id));
    }
    let mut across: Vec<Bytes> = graph.ops.iter().map(|op| graph.bytes_of(&op.touches)).collect();
    for (s, storage) in graph.storages.iter().enumerate() {
        let (StorageKind::Temporary | StorageKind::Output, Some(maker)) = (storage.kind, maker[s]) else { continue };
        // It lives across every operator between its maker and one of its readers.
        let mut between = vec![0u64; ancestors.words];
        for &reader in &readers[s] {
            between.iter_mut().zip(ancestors.of(reader)).for_each(|(b, a)| *b |= a);
        }
        for (word, &bits) in between.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let op = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if op > maker && ancestors.has(op, maker) && graph.ops[op].touches.binary_search(&s).is_err() {
                    across[op] += storage.bytes;
                }
            }
        }
    }
    let mut after = vec![0; count];
    let mut best = 0;
    let mut before = vec![0; count];
    for (id, op) in graph.ops.iter().enumerate() {
        for ancestor in ancestors.list(id) {
            before[id] += graph.ops[ancestor].time;
            after[ancestor] += op.time;
        }
    }
    for (id, op) in graph.ops.iter().enumerate() {
        // All of it has a reader to come.
        let out = across[id].saturating_sub(hbm);
        best = best.max(around(before[id], op.time, after[id], out, out, rates));
    }
    best
}

/// For each operator the set of those that precede it in every order.
struct Ancestors {
    words: usize,
    bits: Vec<u64>,
}

impl Ancestors {
    fn new(graph: &Graph) -> Self {
        let count = graph.ops.len();
        let words = count.div_ceil(64);
        let mut bits = vec![0u64; count * words];
        for (id, op) in graph.ops.iter().enumerate() {
            let (done, own) = bits.split_at_mut(id * words);
            for &p in &op.preds {
                own[..words].iter_mut().zip(&done[p * words..][..words]).for_each(|(o, d)| *o |= d);
                own[p / 64] |= 1 << (p % 64);
            }
        }
        Self { words, bits }
    }

    fn of(&self, op: OpId) -> &[u64] {
        &self.bits[op * self.words..][..self.words]
    }

    fn has(&self, op: OpId, ancestor: OpId) -> bool {
        self.of(op)[ancestor / 64] >> (ancestor % 64) & 1 == 1
    }

    fn list(&self, op: OpId) -> impl Iterator<Item = OpId> + '_ {
        self.of(op)
            .iter()
            .enumerate()
            .flat_map(|(word, &bits)| (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit))
    }
}
