//! What it costs to let a storage go.
//!
//! Recomputation costs the time of the operators to run again: of the storage's own, and of what has been forgotten
//! around it (DTR's evicted neighbourhood). A swap costs what of its two copies is not hidden: the departure as far as
//! memory is needed before it can be done, the return as far as the in stream is not free for it before the use. Both are
//! divided by the time until that use (ours: memory that is free for longer is worth more), and DRAM has a price (ours):
//! as it fills, a byte of it costs up to what the slower tier would.

use std::collections::{HashSet, VecDeque};

use tensortier_model::Nanos;

use super::Planner;
use crate::graph::{StorageId, StorageKind};

/// Forgotten storages around one beyond which recomputing it is not considered.
const MOST_AROUND: usize = 256;

/// How a storage goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Action {
    /// Computed again when it is needed.
    Forget,
    /// A copy exists.
    Leave,
    /// Copied to a tier.
    Swap(usize),
}

/// Copies in that are to come, by the position that needs them.
pub(super) struct Queue {
    /// (position, time of all copies up to it)
    sums: Vec<(usize, Nanos)>,
}

impl Queue {
    pub(super) fn new(planner: &mut Planner<'_>) -> Self {
        let mut waiting = Vec::new();
        for s in 0..planner.slots.len() {
            let slot = planner.slots[s];
            if !slot.resident
                && slot.saved
                && let (Some(tier), Some(next)) = (slot.tier, planner.next_use(s))
            {
                waiting.push((next, planner.machine.h2d(planner.graph.storages[s].bytes, tier)));
            }
        }
        waiting.sort_unstable();
        let mut sum = 0;
        for entry in &mut waiting {
            sum += entry.1;
            entry.1 = sum;
        }
        Self { sums: waiting }
    }

    fn before(&self, position: usize) -> Nanos {
        let at = self.sums.partition_point(|&(next, _)| next < position);
        if at == 0 { 0 } else { self.sums[at - 1].1 }
    }
}

impl Planner<'_> {
    /// The cheapest way to let `s` go, and its cost for each nanosecond until it is needed.
    pub(super) fn cheapest(&mut self, s: StorageId, queue: &Queue) -> Option<(Action, f64)> {
        let next = self.next_use(s);
        let idle = next.map(|next| self.until(next));
        let ahead = if self.switches.reload_ahead { idle.unwrap_or(0) } else { 0 };
        let back = |tier: usize, out: Nanos| match next {
            Some(next) => {
                let took = self.machine.h2d(self.graph.storages[s].bytes, tier);
                (queue.before(next) + took).saturating_sub(ahead.saturating_sub(out))
            }
            None => 0,
        };
        let slot = self.slots[s];
        let unused = self.initial[s] && !slot.used;
        let mut best: Option<(Action, f64)> = None;
        let mut offer = |action: Action, cost: f64| {
            if best.is_none_or(|(_, least)| cost < least) {
                best = Some((action, cost));
            }
        };
        let bytes = self.graph.storages[s].bytes;
        let returns = |tier: usize| if next.is_some() { self.machine.h2d(bytes, tier) as f64 } else { 0.0 };
        if slot.saved || unused {
            let tier = slot.tier.unwrap_or(0);
            offer(Action::Leave, back(tier, 0) as f64 + self.toll * returns(tier));
        } else if self.switches.swap {
            for tier in 0..self.tier_left.len() {
                let room = slot.tier.map_or(self.tier_left[tier] >= bytes, |own| own == tier);
                if room {
                    let leaves = self.machine.d2h(bytes, tier);
                    let out = (self.out_free.max(slot.since) + leaves).saturating_sub(self.clock);
                    let rent = self.rent(tier) * bytes as f64 + self.toll * (leaves as f64 + returns(tier));
                    offer(Action::Swap(tier), (out + back(tier, out)) as f64 + rent);
                }
            }
        }
        let recompute = self.switches.recompute && self.makers.lasting[s] && next.is_some() && !slot.saved;
        if recompute && let Some(cost) = self.around(s) {
            offer(Action::Forget, cost as f64);
        }
        best.map(|(action, cost)| (action, cost / idle.unwrap_or(self.base[self.graph.ops.len()]).max(1) as f64))
    }

    /// Shadow price of a byte of the first tier: nothing until it is half full, then up to what the next costs more.
    fn rent(&self, tier: usize) -> f64 {
        let tiers = &self.machine.tiers;
        let (0, [first, second, ..]) = (tier, &tiers[..]) else { return 0.0 };
        let slower = |a: f64, b: f64| (1e9 / a - 1e9 / b).max(0.0);
        let more = slower(second.profile.write, first.profile.write) + slower(second.profile.read, first.profile.read);
        let full = 1.0 - self.tier_left[0] as f64 / first.capacity.max(1) as f64;
        more * (2.0 * full - 1.0).clamp(0.0, 1.0)
    }

    /// Time of the operators to run again for `s` and what has been forgotten around it; none where that is too much.
    fn around(&self, s: StorageId) -> Option<Nanos> {
        let forgotten = |s: StorageId| !self.slots[s].resident && !self.slots[s].saved;
        let mut seen = HashSet::from([s]);
        let mut ops = HashSet::new();
        // (storage, whether to look at what it is made of, whether at what is made of it)
        let mut open = VecDeque::from([(s, true, true)]);
        while let Some((s, up, down)) = open.pop_front() {
            let maker = self.makers.of[s]?;
            ops.insert(maker);
            if up {
                for &of in &self.graph.ops[maker].reads {
                    if !self.graph.storages[of].kind.is_persistent() && forgotten(of) && seen.insert(of) {
                        open.push_back((of, true, false));
                    }
                }
            }
            if down {
                for &user in &self.live.uses[s] {
                    for &made in &self.graph.ops[user].writes {
                        let needed = self.live.uses[made].last().is_some_and(|&last| last >= self.at);
                        let past = user < self.at && self.makers.of[made] == Some(user);
                        let temporary = self.graph.storages[made].kind == StorageKind::Temporary;
                        if past && needed && temporary && forgotten(made) && seen.insert(made) {
                            open.push_back((made, false, true));
                        }
                    }
                }
            }
            if seen.len() > MOST_AROUND {
                return None;
            }
        }
        Some(ops.into_iter().map(|op| self.graph.ops[op].time).sum())
    }
}
