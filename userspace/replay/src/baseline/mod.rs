//! Rules of other systems, each modelled after its source.
//!
//! They see what their mechanism can see: accessed bits ([`Seen::heat`](crate::policy::Seen::heat)) where the source
//! reads page tables or DAMON, access counts ([`Seen::lines`](crate::policy::Seen::lines)) where it samples the PMU.
//! What the mechanisms themselves cost the job (hint faults, samples, scans) is left out, in their favour.

mod colloid;
mod damos;
mod first_touch;
mod interleave;
mod lru;
mod memtierd;
mod memtis;
mod tpp;

pub use colloid::Colloid;
pub use damos::Damos;
pub use first_touch::FirstTouch;
pub use interleave::Interleave;
pub use lru::Lru2q;
pub use memtierd::Memtierd;
pub use memtis::Memtis;
use tensortier_model::Bytes;
pub use tpp::Tpp;

use crate::{
    cost::Costs,
    policy::{Move, Policy, View},
};

/// All of them, new, for so many regions. Best fixed set and optimum are schedules: [`crate::optimum`].
pub fn all(costs: &Costs, regions: usize) -> Vec<Box<dyn Policy>> {
    vec![
        Box::new(FirstTouch),
        Box::new(Interleave::new(costs)),
        Box::new(Lru2q::new(regions)),
        Box::new(Tpp::numab(regions)),
        Box::new(Tpp::new(regions)),
        Box::new(Memtis::new(regions)),
        Box::new(Memtierd::new(regions)),
        Box::new(Damos::new(regions)),
        Box::new(Colloid::new(regions)),
    ]
}

/// Moves as they are decided on, with the room that they leave.
struct Plan<'a> {
    view: &'a View<'a>,
    /// Bytes of each region on the top tier, as the moves so far leave it.
    top: Vec<Bytes>,
    free: Bytes,
    moves: Vec<Move>,
}

impl<'a> Plan<'a> {
    fn new(view: &'a View<'a>) -> Self {
        let top = view.regions.iter().map(|region| region.top).collect();
        Self { view, top, free: view.free(), moves: Vec::new() }
    }

    /// Bytes of a region on the lower tier.
    fn below(&self, region: usize) -> Bytes {
        self.view.regions[region].bytes - self.top[region]
    }

    /// Demotes up to `most` bytes of a region; returns how many.
    fn demote(&mut self, region: usize, most: Bytes) -> Bytes {
        let bytes = self.top[region].min(most);
        self.free += bytes;
        self.put(region, self.top[region] - bytes);
        bytes
    }

    /// Promotes up to `most` bytes of a region into what is free; returns how many.
    fn promote(&mut self, region: usize, most: Bytes) -> Bytes {
        let bytes = self.below(region).min(most).min(self.free);
        self.free -= bytes;
        self.put(region, self.top[region] + bytes);
        bytes
    }

    /// Demotes `victims` in order until so many bytes are free.
    fn make_room(&mut self, wanted: Bytes, victims: &mut dyn Iterator<Item = usize>) {
        while self.free < wanted {
            let Some(victim) = victims.next() else { break };
            self.demote(victim, wanted - self.free);
        }
    }

    fn put(&mut self, region: usize, top: Bytes) {
        if self.top[region] != top {
            self.top[region] = top;
            self.moves.push(Move { region, top });
        }
    }
}

/// Regions by a key, greatest first; equals in the order of their indices.
fn by_greatest(regions: impl Iterator<Item = usize>, key: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut regions: Vec<usize> = regions.collect();
    regions.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
    regions
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
