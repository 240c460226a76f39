//! The mean length of steps that differ, near a lag that is known.

use super::{Found, NEAR, Sketch, product};

/// It in slots, and how well the last two steps fit; none where it is not near to `near` after all.
pub(super) fn length(slots: &[Sketch], near: f64) -> Option<Found> {
    // The second time around what the first one found: a range to one side of it would pull the mean there.
    let first = near_to(slots, near)?;
    near_to(slots, first.period).filter(|found| (found.period - near).abs() <= NEAR * near)
}

fn near_to(slots: &[Sketch], near: f64) -> Option<Found> {
    let bound = |ratio: f64| (ratio * near).round() as usize;
    let (least, most, half) = (bound(1.0 - NEAR).max(2), bound(1.0 + NEAR), bound(0.25).max(1));
    // Sums of all up to each slot, so that those around one are a difference.
    let sums = |lag: usize| {
        let mut sum = 0.0;
        let before = slots.len().min(lag);
        let products = slots[before..].iter().zip(slots).map(|(now, then)| f64::from(product(now, then)));
        let sums = std::iter::repeat_n(0.0, before).chain(products).map(|product| {
            sum += product;
            sum
        });
        std::iter::once(0.0).chain(sums).collect::<Vec<f64>>()
    };
    let around = |sums: &[f64], slot: usize| sums[(slot + half).min(slots.len())] - sums[slot.saturating_sub(half)];
    let (energy, by_lag) = (sums(0), (least..=most).map(sums).collect::<Vec<_>>());
    let (mut sum, mut weights, mut fits) = (0.0, 0.0, Vec::new());
    for slot in most..slots.len() {
        let fit = |(sums, lag): (&Vec<f64>, usize)| {
            let scale = (around(&energy, slot) * around(&energy, slot - lag)).max(0.0).sqrt();
            around(sums, slot) / scale.max(1e-9)
        };
        let all: Vec<f64> = by_lag.iter().zip(least..).map(fit).collect();
        let (at, best) = all.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let best = best.clamp(0.0, 1.0);
        // Where all lags fit alike, none says much.
        let weight = (best - all.iter().sum::<f64>() / all.len() as f64).max(0.0);
        sum += weight * (least + at) as f64;
        weights += weight;
        fits.push(best);
    }
    let last = &fits[fits.len().saturating_sub(bound(2.0))..];
    let confidence = last.iter().sum::<f64>() / last.len().max(1) as f64;
    (weights > 0.0).then(|| Found { period: sum / weights, confidence })
}
