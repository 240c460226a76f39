//! What can be computed again.

use super::{Graph, Liveness, OpId, OpKind, StorageId, StorageKind};

/// Which operator makes a storage again, and whether it can do so for as long as the storage is needed.
pub(crate) struct Makers {
    pub(crate) of: Vec<Option<OpId>>,
    pub(crate) lasting: Vec<bool>,
}

impl Makers {
    /// Only a sole writer makes a storage again. What it reads has to be there in the same state: weights that nothing
    /// changes always are, what can itself be made again is as long as that, anything else until its last use.
    pub(crate) fn new(graph: &Graph, live: &Liveness) -> Self {
        let count = graph.storages.len();
        let (mut writers, mut last_write) = (vec![0u32; count], vec![0; count]);
        for (id, op) in graph.ops.iter().enumerate() {
            for &s in &op.writes {
                writers[s] += 1;
                last_write[s] = id;
            }
        }
        let kind = |s: StorageId| graph.storages[s].kind;
        let last_use = |s: StorageId| match kind(s) {
            StorageKind::Output => OpId::MAX,
            _ => live.uses[s].last().copied().unwrap_or(0),
        };
        let mut of = vec![None; count];
        let mut until = vec![0; count];
        for (id, op) in graph.ops.iter().enumerate() {
            let alone = |&s: &StorageId| writers[s] == 1 && !kind(s).is_persistent();
            if op.kind != OpKind::Compute || !op.writes.iter().all(alone) {
                continue;
            }
            let there_until = |&s: &StorageId| match kind(s).is_persistent() {
                true if writers[s] == 0 => OpId::MAX,
                true => 0,
                false if of[s].is_some() => last_use(s).max(until[s]),
                false if last_write[s] < id => last_use(s),
                false => 0,
            };
            let shortest = op.reads.iter().map(there_until).min().unwrap_or(OpId::MAX);
            for &s in &op.writes {
                (of[s], until[s]) = (Some(id), shortest);
            }
        }
        let lasting = (0..count).map(|s| of[s].is_some() && until[s] >= last_use(s)).collect();
        Self { of, lasting }
    }
}
