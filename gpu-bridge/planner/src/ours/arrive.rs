//! When what must come back is copied in.
//!
//! The in stream is a queue. Going backwards over it, a copy has to start by
//! `min(its deadline, the start of the copy behind it) - its own length`: the latest safe time.
//! From there it goes further back by a multiple of its length (a gene), run by run, as long as
//! memory has room: that hides stalls that the deadlines do not know of.

use tensortier_model::{Bytes, Nanos};

use crate::graph::StorageId;

/// A copy in that a run, or the next step, waits for.
pub(super) struct Arrival {
    pub(super) storage: StorageId,
    /// Run that needs it.
    pub(super) need: u32,
    /// Bucket in which the storage has left.
    pub(super) earliest: u32,
    /// Bucket in which the copy is issued.
    pub(super) bucket: u32,
    /// Time of the copy.
    pub(super) took: Nanos,
    /// Time at which it is needed if nothing stalls.
    pub(super) deadline: Nanos,
}

/// Places `arrivals`, which are in order of need. `occupied` has the changes of the resident bytes
/// at each run, and is turned into sums.
pub(super) fn place(
    bytes: &[Bytes],
    clock: &[Nanos],
    hbm: Bytes,
    lead: u32,
    occupied: &mut [i64],
    arrivals: &mut [Arrival],
) {
    let mut sum = 0;
    for at in occupied.iter_mut() {
        sum += *at;
        *at = sum;
    }
    let mut safe = vec![0i64; arrivals.len()];
    let mut next = i64::MAX;
    for (start, arrival) in safe.iter_mut().zip(arrivals.iter()).rev() {
        next = next.min(arrival.deadline as i64) - arrival.took as i64;
        *start = next;
    }
    for (arrival, safe) in arrivals.iter_mut().zip(safe) {
        let size = bytes[arrival.storage] as i64;
        let target = safe - i64::from(lead) * arrival.took as i64;
        let mut at = arrival.need as usize;
        while at > arrival.earliest as usize && clock[at] as i64 > target && occupied[at - 1] + size <= hbm as i64 {
            at -= 1;
            occupied[at] += size;
        }
        arrival.bucket = at as u32;
    }
}
