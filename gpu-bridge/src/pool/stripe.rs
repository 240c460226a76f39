//! Weighted striping: which node each run of a striped extent lies on.

use tensortier_model::Bytes;

use super::{backing::Run, class::Placement, size};

/// Least bytes worth striping: below, one card serves the whole copy before a second one would help.
pub const MIN_BYTES: Bytes = 8 << 20;
/// Runs of one extent, at most about: each is a mapping of its own to the kernel, of which a process may have 65 530.
const MAX_RUNS: Bytes = 1024;

/// The runs of `bytes` over the nodes of `placement`, in proportion to their weights. `granule` is what a run is a
/// multiple of, but for the last.
///
/// Smooth weighted round robin (as in nginx): the share of every prefix is within one granule of its weight, so a copy
/// of any part draws on all nodes; over the whole extent the error is below `1 / MAX_RUNS`.
pub fn runs(placement: &Placement, bytes: Bytes, granule: Bytes) -> Vec<Run> {
    let shares = placement.shares();
    if let [(node, _)] = *shares {
        return vec![Run { node, bytes }];
    }
    let granule = (bytes / MAX_RUNS).next_multiple_of(granule).max(granule);
    let total: i64 = shares.iter().map(|&(_, weight)| i64::from(weight)).sum();
    let mut credit = vec![0_i64; shares.len()];
    let mut runs: Vec<Run> = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let mut best = 0;
        for (i, &(_, weight)) in shares.iter().enumerate() {
            credit[i] += i64::from(weight);
            if credit[i] > credit[best] {
                best = i;
            }
        }
        credit[best] -= total;
        let (node, take) = (shares[best].0, granule.min(left));
        match runs.last_mut() {
            Some(run) if run.node == node => run.bytes += take,
            _ => runs.push(Run { node, bytes: take }),
        }
        left -= take;
    }
    runs
}

/// The granule for nodes of which some are devices.
pub fn granule(any_device: bool) -> Bytes {
    if any_device { size::HUGE } else { size::PAGE }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_follow_the_weights(
            weights in prop::collection::vec(1_u32..30, 2..6),
            bytes in MIN_BYTES..(64 << 30),
        ) {
            let placement = Placement::striped(weights.iter().zip(0..).map(|(&w, node)| (node, w)).collect());
            let runs = runs(&placement, bytes, size::PAGE);
            prop_assert_eq!(runs.iter().map(|run| run.bytes).sum::<u64>(), bytes);
            prop_assert!(runs.len() as u64 <= MAX_RUNS + 1);
            prop_assert!(runs.windows(2).all(|pair| pair[0].node != pair[1].node));
            let total: u32 = weights.iter().sum();
            for (node, &weight) in weights.iter().enumerate() {
                let have: u64 = runs.iter().filter(|run| run.node == node as u32).map(|run| run.bytes).sum();
                let share = have as f64 / bytes as f64;
                prop_assert!((share - f64::from(weight) / f64::from(total)).abs() < 0.01, "{share}");
            }
        }
    }
}
