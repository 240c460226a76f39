//! Which value the capacity ends at, and who is furthest from it: what a decision needs of an order of all regions,
//! without sorting them.

use tensortier_model::Bytes;

/// Regions that one decision moves up, and down, at the most.
pub const MOST: usize = 1 << 14;
/// Bins of the histogram: exponent and four bits of the value's mantissa.
pub const BINS: usize = 1 << 12;

/// The bin of a value that is not negative.
pub fn bin_of(value: f32) -> usize {
    (value.to_bits() >> 19) as usize & (BINS - 1)
}

/// The bin in which the capacity ends, filled from the greatest value on.
pub fn waterline(bytes: &[Bytes], capacity: Bytes) -> usize {
    let mut sum = 0;
    let over = |bin: &usize| {
        sum += bytes[*bin];
        sum > capacity
    };
    (0..bytes.len()).rev().find(over).unwrap_or(0)
}

/// Regions by key, least first, at most [`MOST`].
pub fn least_first(mut of: Vec<(f32, u32)>) -> Vec<usize> {
    let order = |a: &(f32, u32), b: &(f32, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    if of.len() > MOST {
        of.select_nth_unstable_by(MOST, order);
        of.truncate(MOST);
    }
    of.sort_unstable_by(order);
    of.into_iter().map(|(_, region)| region as usize).collect()
}
