//! What a decoder asks of the next use of storages (Belady, IBM Systems Journal 5(2), 1966).

use std::collections::BinaryHeap;

use tensortier_model::Nanos;

use crate::graph::StorageId;

/// A next use of what is not used again.
pub(crate) const NEVER: u32 = u32::MAX;

/// Takes the storage that is used again last, if that is after position `at`, off a heap of next uses and storages.
/// `next` has the next use of a storage that is resident; entries that differ from it are out of date and passed over.
pub(crate) fn pop_last(
    heap: &mut BinaryHeap<(u32, u32)>,
    at: u32,
    next: impl Fn(StorageId) -> Option<u32>,
) -> Option<StorageId> {
    while let Some(&(used, s)) = heap.peek() {
        let holds = next(s as usize) == Some(used);
        if holds && used <= at {
            return None;
        }
        heap.pop();
        if holds {
            return Some(s as usize);
        }
    }
    None
}

/// Compute time between a bucket and a position, which may be one of the next step. `clock` has the time at which each
/// position of a step begins, and at last the step's length.
pub(crate) fn idle(clock: &[Nanos], next: u32, bucket: u32) -> Nanos {
    let length = clock.len() - 1;
    let whole = clock[length];
    let at = match next as usize {
        _ if next == NEVER => return whole,
        n if n >= 2 * length => return whole,
        n if n >= length => whole + clock[n - length],
        n => clock[n],
    };
    at.saturating_sub(clock[bucket as usize])
}
