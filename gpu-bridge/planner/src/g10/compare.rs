//! Two plans for one workload, move by move.

use std::collections::HashMap;

use super::plan::{Backing, Move, Plan};

/// One departure that is not the same in both plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Only in the first plan.
    OnlyOurs(Move),
    /// Only in the second.
    OnlyTheirs(Move),
    /// The same departure to another tier.
    Tier(Move, Move),
    /// The same departure and tier, another return.
    Return(Move, Move),
}

/// How two plans agree.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Departures in both plans, to the same tier.
    pub same: usize,
    /// Of these, those that return at the same kernel.
    pub same_return: usize,
    /// Bytes to the far tier: ours, theirs.
    pub far_bytes: (u64, u64),
    /// Bytes to the host: ours, theirs.
    pub host_bytes: (u64, u64),
    /// Everything else, in order of departure.
    pub differences: Vec<Difference>,
}

/// Compares our plan with another. A departure is known by its tensor and kernel.
pub fn compare(ours: &Plan, theirs: &Plan) -> Comparison {
    let key = |m: &Move| (m.tensor, m.evict_at);
    let mut other: HashMap<_, Move> = theirs.moves.iter().map(|m| (key(m), *m)).collect();
    let (mut same, mut same_return, mut differences) = (0, 0, Vec::new());
    for m in &ours.moves {
        match other.remove(&key(m)) {
            None => differences.push(Difference::OnlyOurs(*m)),
            Some(t) if t.to != m.to => differences.push(Difference::Tier(*m, t)),
            Some(t) => {
                same += 1;
                if t.prefetch_at == m.prefetch_at {
                    same_return += 1;
                } else {
                    differences.push(Difference::Return(*m, t));
                }
            }
        }
    }
    differences.extend(other.into_values().map(Difference::OnlyTheirs));
    differences.sort_by_key(|d| {
        let (Difference::OnlyOurs(m) | Difference::OnlyTheirs(m) | Difference::Tier(m, _) | Difference::Return(m, _)) =
            d;
        (m.evict_at, m.tensor)
    });
    let bytes = |b: Backing| (ours.bytes_to(b), theirs.bytes_to(b));
    Comparison { same, same_return, far_bytes: bytes(Backing::Far), host_bytes: bytes(Backing::Host), differences }
}
