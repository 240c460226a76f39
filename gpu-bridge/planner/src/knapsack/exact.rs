//! The covering knapsack by dynamic programming.

use super::{Cover, Item};

/// Table cells above which a case is refused; the table takes a bit for each.
const MOST_CELLS: usize = 1 << 31;

/// The cheapest items of at least `need` bytes, with sizes counted in whole `unit`s.
///
/// An item's size is rounded down and the need up, so the result always suffices; it is the best of all where `unit`
/// divides every size and the need. `None` if all items together are too small in these units, if `unit` is 0, or if
/// the table would have more than 2^31 cells.
pub fn cover_exact(items: &[Item], need: u64, unit: u64) -> Option<Cover> {
    if unit == 0 {
        return None;
    }
    let width = usize::try_from(need.div_ceil(unit)).ok()?.checked_add(1)?;
    width.checked_mul(items.len()).filter(|&cells| cells <= MOST_CELLS)?;
    // cost[w]: least cost of freeing at least w units with the items so far; took: whether the last item did it.
    let mut cost = vec![f64::INFINITY; width];
    cost[0] = 0.0;
    let mut took = vec![0u64; (width * items.len()).div_ceil(64)];
    for (i, item) in items.iter().enumerate() {
        let size = usize::try_from(item.bytes / unit).unwrap_or(usize::MAX);
        for w in (1..width).rev() {
            let with = cost[w.saturating_sub(size)] + item.cost;
            if size > 0 && with < cost[w] {
                cost[w] = with;
                let bit = i * width + w;
                took[bit / 64] |= 1 << (bit % 64);
            }
        }
    }
    if cost[width - 1].is_infinite() {
        return None;
    }
    let mut chosen = Vec::new();
    let mut w = width - 1;
    for (i, item) in items.iter().enumerate().rev() {
        let bit = i * width + w;
        if w > 0 && took[bit / 64] >> (bit % 64) & 1 == 1 {
            chosen.push(i);
            w = w.saturating_sub(usize::try_from(item.bytes / unit).unwrap_or(usize::MAX));
        }
    }
    Some(Cover::of(items, chosen))
}
