//! When each storage is needed, for a given order of the operators.

use tensortier_model::Bytes;

use super::{Graph, OpId, StorageId, StorageKind};

/// Positions in an order at which each storage is touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Liveness {
    /// For each storage the ascending positions of the operators that touch it.
    pub uses: Vec<Vec<usize>>,
    length: usize,
}

impl Liveness {
    /// Liveness of `graph` run in `order`.
    pub fn new(graph: &Graph, order: &[OpId]) -> Self {
        let mut uses = vec![Vec::new(); graph.storages.len()];
        for (at, &op) in order.iter().enumerate() {
            for &s in &graph.ops[op].touches {
                uses[s].push(at);
            }
        }
        Self { uses, length: order.len() }
    }

    /// First and last position at which the storage has to exist somewhere, both inclusive.
    /// Persistent storages and ones never touched: see [`StorageKind`].
    pub fn span(&self, graph: &Graph, s: StorageId) -> Option<(usize, usize)> {
        let end = self.length.saturating_sub(1);
        match graph.storages[s].kind {
            kind if kind.is_persistent() => Some((0, end)),
            StorageKind::Output => Some((*self.uses[s].first()?, end)),
            _ => Some((*self.uses[s].first()?, *self.uses[s].last()?)),
        }
    }

    /// Live bytes at each position.
    pub fn curve(&self, graph: &Graph) -> Vec<Bytes> {
        let mut change = vec![0i64; self.length + 1];
        for (s, storage) in graph.storages.iter().enumerate() {
            if let Some((first, last)) = self.span(graph, s) {
                change[first] += storage.bytes as i64;
                change[last + 1] -= storage.bytes as i64;
            }
        }
        let mut live = 0;
        change[..self.length]
            .iter()
            .map(|&c| {
                live += c;
                live as Bytes
            })
            .collect()
    }

    /// Highest value of [`Liveness::curve`].
    pub fn peak(&self, graph: &Graph) -> Bytes {
        self.curve(graph).into_iter().max().unwrap_or(0)
    }
}
