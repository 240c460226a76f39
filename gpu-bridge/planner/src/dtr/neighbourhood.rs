//! Exact evicted neighbourhoods, kept up to date as storages go and come.
//!
//! For each storage and each direction (toward what was computed from it, toward what it was computed from) we keep
//! the evicted storages reachable through evicted ones only (the interior), their total cost, and the storages in
//! memory at which the walk stops (the frontier).

use super::log::StorageId;
use super::state::{Place, State};

/// A set of storages as bits.
#[derive(Clone, Debug, Default)]
struct Set(Vec<u64>);

impl Set {
    fn insert(&mut self, s: StorageId) -> bool {
        let (word, bit) = (s as usize / 64, 1u64 << (s % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    fn remove(&mut self, s: StorageId) {
        if let Some(word) = self.0.get_mut(s as usize / 64) {
            *word &= !(1u64 << (s % 64));
        }
    }

    fn extend(&mut self, other: &Set) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }

    fn iter(&self) -> impl Iterator<Item = StorageId> + '_ {
        self.0.iter().enumerate().flat_map(|(i, &word)| {
            std::iter::successors((word != 0).then_some(word), |w| Some(w & (w - 1)).filter(|&w| w != 0))
                .map(move |w| i as StorageId * 64 + w.trailing_zeros())
        })
    }
}

/// One direction of one storage's neighbourhood.
#[derive(Clone, Debug, Default)]
struct Region {
    interior: Set,
    frontier: Set,
    compute_ns: u64,
}

/// Which way a walk goes.
#[derive(Clone, Copy, Debug)]
enum Toward {
    Readers,
    Sources,
}

/// Both directions for every storage.
#[derive(Clone, Debug)]
pub(super) struct Neighbourhoods {
    readers: Vec<Region>,
    sources: Vec<Region>,
}

impl Neighbourhoods {
    pub(super) fn new(storages: usize) -> Self {
        Neighbourhoods { readers: vec![Region::default(); storages], sources: vec![Region::default(); storages] }
    }

    /// Cost of the evicted neighbourhood of a storage, ns.
    pub(super) fn cost(&self, s: StorageId) -> u64 {
        self.readers[s as usize].compute_ns + self.sources[s as usize].compute_ns
    }

    /// A storage was evicted: those that could see it now see past it.
    pub(super) fn evicted(&mut self, state: &State<'_>, s: StorageId) {
        let to_readers = std::mem::take(&mut self.readers[s as usize]);
        let to_sources = std::mem::take(&mut self.sources[s as usize]);
        for u in to_sources.frontier.iter() {
            absorb(&mut self.readers[u as usize], &to_readers, state, s);
        }
        for u in to_readers.frontier.iter() {
            absorb(&mut self.sources[u as usize], &to_sources, state, s);
        }
    }

    /// Storages came back: their own regions and those that saw through them are walked anew.
    pub(super) fn came_back(&mut self, state: &State<'_>, fresh: &[StorageId]) {
        let (mut before, mut after) = (Set::default(), Set::default());
        for &s in fresh {
            self.readers[s as usize] = walk(state, s, Toward::Readers);
            self.sources[s as usize] = walk(state, s, Toward::Sources);
            before.extend(&self.sources[s as usize].frontier);
            after.extend(&self.readers[s as usize].frontier);
        }
        for u in before.iter() {
            self.readers[u as usize] = walk(state, u, Toward::Readers);
        }
        for u in after.iter() {
            self.sources[u as usize] = walk(state, u, Toward::Sources);
        }
    }
}

/// Takes an evicted storage and its region into the region of one that had it at its frontier.
fn absorb(into: &mut Region, gone: &Region, state: &State<'_>, s: StorageId) {
    into.frontier.remove(s);
    into.frontier.extend(&gone.frontier);
    for u in gone.interior.iter().chain([s]) {
        if into.interior.insert(u) {
            into.compute_ns += state.storages[u as usize].compute_ns;
        }
    }
}

fn walk(state: &State<'_>, base: StorageId, toward: Toward) -> Region {
    let mut region = Region::default();
    let mut stack = vec![base];
    while let Some(s) = stack.pop() {
        for &t in &state.storages[s as usize].tensors {
            let next = match toward {
                Toward::Readers => &state.readers[t as usize][..],
                Toward::Sources => state.parents(t),
            };
            for &u in next {
                let us = state.log.storage_of(u);
                if state.storages[us as usize].place == Place::Gone {
                    if region.interior.insert(us) {
                        region.compute_ns += state.storages[us as usize].compute_ns;
                        stack.push(us);
                    }
                } else if us != base {
                    region.frontier.insert(us);
                }
            }
        }
    }
    region
}
