//! The best fixed set in hindsight: each region keeps, all its life, the bytes of the top tier that it got at birth.
//!
//! **Rule.** With the gain of a region being the sum over its touches of what they save on the top tier, choose the
//! bytes of greatest gain that fit at every moment. With regions that all live to the end these are the regions of
//! greatest gain a byte, and the last of them in part. With births and deaths it is the scheduling of weighted
//! intervals on machines of which there is one a unit (Carlisle and Lloyd, Discrete Applied Math. 59(3), 1995), again a
//! flow:
//!
//! ```text
//! hub(t) ── 0 ──▶ hub(t+1)          hub(birth of r) ── -gain a unit, up to the size ──▶ hub(end of r)
//! ```
//!
//! It moves nothing, so no placement without moves costs less.

use tensortier_model::Bytes;

use super::{Schedule, flow::Network, gain, unit, units};
use crate::{cost::Costs, workload::Workload};

/// The best fixed set with `capacity` bytes of the top tier.
pub fn best_fixed(workload: &Workload, costs: &Costs, capacity: Bytes) -> Schedule {
    let (unit, intervals) = (unit(workload, capacity), workload.intervals());
    let mut gains = vec![0; workload.regions.len()];
    for (at, touches) in workload.touches.iter().enumerate() {
        for touch in touches {
            let lives = workload.regions.get(touch.region).is_some_and(|r| (r.born..r.dies).contains(&at));
            if lives {
                gains[touch.region] += gain(workload, costs, touch, unit);
            }
        }
    }
    let mut network = Network::new(intervals + 1);
    for at in 0..intervals {
        network.add(at, at + 1, i64::MAX / 4, 0);
    }
    let lives: Vec<_> = (workload.regions.iter().zip(gains))
        .map(|(region, gain)| {
            let dies = region.dies.min(intervals);
            let arc = || network.add(region.born, dies, units(region.bytes, unit), -gain);
            (region.born < dies && gain > 0).then(arc)
        })
        .collect();
    network.send(units(capacity, unit));
    let kept = |arc: &Option<_>| arc.map_or(0, |arc| network.flow(arc) as Bytes * unit);
    let top = lives.iter().zip(&workload.regions).map(|(arc, region)| vec![(region.born, kept(arc))]).collect();
    Schedule::new("best fixed", intervals, top)
}
