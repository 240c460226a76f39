//! DTR's cost functions and its policy.
//!
//! A storage's cost is `(c + n) / (m · staleness)`: the time to compute it again, the time of the evicted storages
//! around it that would have to be computed with it, over its bytes and the time since it was last used. The cheapest
//! goes first. The three forms differ in `n` (DTR paper, section 3 and appendix).

use super::classes::Classes;
use super::log::{OpId, OpLog, StorageId};
use super::neighbourhood::Neighbourhoods;
use super::runtime::{Policy, Stop};
use super::state::State;

/// What makes a storage cheap to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heuristic {
    /// `n` is the exact evicted neighbourhood (`DTR`).
    Exact,
    /// `n` is the sum of the union-find classes beside the storage (`DTREqClass`).
    Classes,
    /// `n` is zero (`DTRLocal`).
    Local,
    /// The least recently used goes first.
    Lru,
    /// The largest goes first.
    Largest,
}

impl Heuristic {
    /// Name in tables, as the DTR authors print it.
    pub fn name(self) -> &'static str {
        match self {
            Heuristic::Exact => "DTR",
            Heuristic::Classes => "DTREqClass",
            Heuristic::Local => "DTRLocal",
            Heuristic::Lru => "LRU",
            Heuristic::Largest => "Largest",
        }
    }
}

/// What the heuristic knows of evicted storages.
#[derive(Clone, Debug)]
enum Evicted {
    Exact(Neighbourhoods),
    Classes(Classes),
    Untracked,
}

/// The DTR policy: everything evicted is computed again.
#[derive(Clone, Debug)]
pub struct Dtr {
    heuristic: Heuristic,
    evicted: Evicted,
}

impl Dtr {
    /// The policy for one run of `log`.
    pub fn new(log: &OpLog, heuristic: Heuristic) -> Self {
        let n = log.storages.len();
        let evicted = match heuristic {
            Heuristic::Exact => Evicted::Exact(Neighbourhoods::new(n)),
            Heuristic::Classes => Evicted::Classes(Classes::new(n)),
            _ => Evicted::Untracked,
        };
        Dtr { heuristic, evicted }
    }

    /// The last of the cheapest storages; the first that costs nothing ends the scan.
    fn choose(&mut self, state: &State<'_>) -> Option<StorageId> {
        let (mut best, mut lowest) = (None, f64::INFINITY);
        for s in state.pool.iter() {
            let cost = self.cost(state, s);
            if cost <= lowest {
                (best, lowest) = (Some(s), cost);
            }
            if cost == 0.0 {
                break;
            }
        }
        best
    }

    fn cost(&mut self, state: &State<'_>, s: StorageId) -> f64 {
        let bytes = state.log.storages[s as usize].bytes;
        let storage = &state.storages[s as usize];
        let around = match &mut self.evicted {
            Evicted::Exact(n) => n.cost(s) as i64,
            Evicted::Classes(c) => c.cost(state, s),
            Evicted::Untracked => 0,
        };
        match self.heuristic {
            Heuristic::Lru => storage.used_at as f64,
            Heuristic::Largest => 1.0 / bytes as f64,
            _ => {
                let staleness = u128::from(bytes) * u128::from(state.clock - storage.used_at);
                if staleness == 0 {
                    return f64::INFINITY;
                }
                (storage.compute_ns as i64 + around) as f64 / staleness as f64
            }
        }
    }

    fn note_evicted(&mut self, state: &State<'_>, s: StorageId) {
        match &mut self.evicted {
            Evicted::Exact(n) => n.evicted(state, s),
            Evicted::Classes(c) => c.evicted(state, s),
            Evicted::Untracked => {}
        }
    }
}

impl Policy for Dtr {
    fn created(&mut self, state: &State<'_>, op: OpId) {
        if let Evicted::Classes(classes) = &mut self.evicted {
            classes.created_by(state, op);
        }
    }

    fn make_room(&mut self, state: &mut State<'_>, bytes: u64) -> Result<(), Stop> {
        while state.held + bytes > state.budget {
            let Some(s) = self.choose(state) else {
                return Err(Stop::OutOfMemory { wanted: bytes, held: state.held });
            };
            state.drop_storage(s);
            state.evictions += 1;
            self.note_evicted(state, s);
        }
        Ok(())
    }

    fn released(&mut self, state: &mut State<'_>, s: StorageId) {
        self.note_evicted(state, s);
    }

    fn restore(&mut self, state: &mut State<'_>, _s: StorageId) -> Result<(), Stop> {
        unreachable!("DTR moves nothing to the host, and {} B are held", state.held)
    }

    fn computed(&mut self, state: &mut State<'_>, fresh: &[StorageId]) {
        match &mut self.evicted {
            Evicted::Exact(n) => n.came_back(state, fresh),
            Evicted::Classes(c) => c.came_back(state, fresh),
            Evicted::Untracked => {}
        }
    }
}
