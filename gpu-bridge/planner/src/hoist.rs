//! Issues copies in early where all memory is one pool: latest safe, then as early as room allows.

use tensortier_model::{Bytes, Nanos};

use crate::graph::StorageId;

/// A copy in that an operator, or the next step, waits for.
pub(crate) struct Arrival {
    pub(crate) storage: StorageId,
    /// Position that needs it.
    pub(crate) need: u32,
    /// Bucket in which the storage has left.
    pub(crate) earliest: u32,
    /// Bucket in which the copy is issued.
    pub(crate) bucket: u32,
    /// Time of the copy.
    pub(crate) took: Nanos,
    /// Time at which it is needed if nothing stalls.
    pub(crate) deadline: Nanos,
}

/// Moves `arrivals`, which are in order of need, to earlier buckets. Going backwards over the
/// stream, the latest safe start of each copy leaves time for those behind it. Each copy then
/// goes back to that time and up to `lead` times its own length further, as long as `occupied`
/// (changes of the resident bytes at each position; turned into sums here) leaves room for it.
pub(crate) fn place(
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
    let mut starts = vec![0i64; arrivals.len()];
    let mut next = i64::MAX;
    for (start, arrival) in starts.iter_mut().zip(arrivals.iter()).rev() {
        next = next.min(arrival.deadline as i64) - arrival.took as i64;
        *start = next;
    }
    for (arrival, safe) in arrivals.iter_mut().zip(starts) {
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
