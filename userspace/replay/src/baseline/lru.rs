//! Modelled after the kernel's two lists (`mm/vmscan.c`, `mm/swap.c`), with promotion on the second touch as in 2Q
//! (Johnson and Shasha, VLDB '94, section 2).
//!
//! **Rule.** A region enters the inactive list; touched again while it is there, it becomes active. A region of the
//! lower tier that becomes active is promoted, and the tail of the inactive list makes room: what was touched longest
//! ago. The active list gives its own tail to the inactive one while the inactive list is the shorter
//! (`inactive_is_low`, with the ratio 1 of small memories).

use super::{Plan, by_greatest};
use crate::policy::{Move, Policy, View};

/// Two lists over all regions.
#[derive(Clone, Debug)]
pub struct Lru2q {
    entries: Vec<Entry>,
    interval: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    touched: u64,
    referenced: bool,
    active: bool,
}

impl Lru2q {
    /// Empty lists.
    pub fn new(regions: usize) -> Self {
        Self { entries: vec![Entry::default(); regions], interval: 0 }
    }

    fn look(&mut self, view: &View) {
        self.interval += 1;
        for (entry, seen) in self.entries.iter_mut().zip(view.regions) {
            if !seen.alive {
                *entry = Entry::default();
            } else if seen.heat > 0.0 {
                entry.active |= entry.referenced;
                (entry.referenced, entry.touched) = (true, self.interval);
            }
        }
        self.balance(view);
    }

    /// Moves the tail of the active list to the inactive one until the inactive list is not the shorter.
    fn balance(&mut self, view: &View) {
        let bytes = |active: bool, entries: &[Entry]| -> u64 {
            view.alive()
                .filter(|&region| entries[region].active == active)
                .map(|region| view.regions[region].bytes)
                .sum()
        };
        let oldest = |&region: &usize| (self.entries[region].touched, region);
        let mut tail: Vec<usize> = view.alive().filter(|&region| self.entries[region].active).collect();
        tail.sort_by_key(oldest);
        let (mut active, mut inactive) = (bytes(true, &self.entries), bytes(false, &self.entries));
        for region in tail {
            if inactive >= active {
                break;
            }
            active -= view.regions[region].bytes;
            inactive += view.regions[region].bytes;
            (self.entries[region].active, self.entries[region].referenced) = (false, false);
        }
    }
}

impl Policy for Lru2q {
    fn name(&self) -> String {
        "LRU-2Q".into()
    }

    fn decide(&mut self, view: &View) -> Vec<Move> {
        self.look(view);
        let entries = &self.entries;
        let age = |region: usize| (self.interval - entries[region].touched) as f64;
        let mut plan = Plan::new(view);
        let wanted: Vec<usize> = (view.alive())
            .filter(|&region| entries[region].active && entries[region].touched == self.interval)
            .filter(|&region| plan.below(region) > 0)
            .collect();
        let mut victims = by_greatest(view.alive().filter(|&region| !entries[region].active), age).into_iter();
        for region in wanted {
            plan.make_room(plan.below(region), &mut victims);
            plan.promote(region, u64::MAX);
        }
        plan.moves
    }
}
