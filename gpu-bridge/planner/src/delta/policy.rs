//! The policy: filter, knapsack, director, and the two links.

use std::collections::VecDeque;

use super::config::Config;
use super::price::{Action, Candidate, Host, HostUse};
use super::uses::Uses;
use crate::dtr::{Classes, OpId, OpLog, Place, Policy, State, Stop, StorageId, TensorId};
use crate::knapsack::{Item, cover};

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Storages released to be recomputed.
    pub drops: u64,
    /// Storages released by a transfer begun when memory was needed.
    pub swaps: u64,
    /// Storages released for nothing, since a copy was there.
    pub frees: u64,
    /// Copies made ahead of need.
    pub offloads_ahead: u64,
    /// Returns begun ahead of use.
    pub reloads_ahead: u64,
    /// Results computed ahead of use.
    pub recomputes_ahead: u64,
    /// Bytes copied out, to DRAM and to CXL.
    pub out_bytes: (u64, u64),
    /// Bytes copied back.
    pub in_bytes: u64,
    /// Time the device waited for memory, ns.
    pub wait_out_ns: u64,
    /// Time it waited for data, ns.
    pub wait_in_ns: u64,
}

/// DELTA as intended.
#[derive(Clone, Debug)]
pub struct Delta {
    pub(super) config: Config,
    pub(super) uses: Uses,
    classes: Classes,
    /// Bytes below which a storage is no candidate while others suffice.
    pub(super) smallest: u64,
    /// When each link has carried all that was given to it, ns.
    pub(super) out_free_at: u64,
    pub(super) in_free_at: u64,
    /// Storages on their way out whose memory is freed at the end, in order.
    leaving: VecDeque<(StorageId, u64)>,
    pub(super) storages: Vec<Copied>,
    pub(super) used: HostUse,
    most_used: HostUse,
    pub(super) counts: Counts,
}

/// What is known of a storage's copy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    /// Where it is, or will be at `copied_at`.
    pub(super) host: Option<Host>,
    /// When the copy is complete, ns.
    pub(super) copied_at: u64,
    /// When the storage is back on the device, ns.
    pub(super) ready_at: u64,
    /// On its way out for its memory.
    leaving: bool,
}

impl Delta {
    /// The policy for one run of `log`.
    pub fn new(log: &OpLog, config: Config) -> Self {
        let total: u64 = log.storages.iter().map(|s| s.bytes).sum();
        Delta {
            config,
            uses: Uses::new(log),
            classes: Classes::new(log.storages.len()),
            smallest: total / log.storages.len().max(1) as u64 / 100,
            out_free_at: 0,
            in_free_at: 0,
            leaving: VecDeque::new(),
            storages: vec![Copied::default(); log.storages.len()],
            used: HostUse::default(),
            most_used: HostUse::default(),
            counts: Counts::default(),
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Most bytes that were in DRAM and in CXL memory.
    pub fn most_in_host(&self) -> (u64, u64) {
        (self.most_used.dram, self.most_used.cxl)
    }

    /// True if the storage's bytes are on the device and stay unless released.
    pub(super) fn settled_here(&self, state: &State<'_>, s: StorageId) -> bool {
        let copied = &self.storages[s as usize];
        !copied.leaving && copied.ready_at <= state.clock
    }

    /// Frees the memory of what has left by now.
    fn collect(&mut self, state: &mut State<'_>) {
        while let Some(&(s, at)) = self.leaving.front().filter(|l| l.1 <= state.clock) {
            self.leaving.pop_front();
            let copied = &mut self.storages[s as usize];
            // One that is needed just now stays, and an entry from before it was forgotten and copied anew is void.
            if copied.copied_at == at && std::mem::take(&mut copied.leaving) && state.pool.contains(s) {
                state.move_to_host(s);
            }
        }
    }

    /// Bytes that will be free once all that leaves has left.
    fn leaving_bytes(&self, state: &State<'_>) -> u64 {
        let gone = |&&(s, at): &&(StorageId, u64)| {
            let copied = &self.storages[s as usize];
            copied.leaving && copied.copied_at == at && state.pool.contains(s)
        };
        self.leaving.iter().filter(gone).map(|&(s, _)| state.log.storages[s as usize].bytes).sum()
    }

    /// Time the in link needs for everything in the host that is used before `at_ns`, with what it carries now, ns.
    pub(super) fn in_queue_ns(&self, state: &State<'_>, waiting: &[(u64, u64)], at_ns: u64) -> u64 {
        let before = waiting.partition_point(|w| w.0 < at_ns);
        let queue = if before == 0 { 0 } else { waiting[before - 1].1 };
        self.in_free_at.saturating_sub(state.clock) + queue
    }

    /// Next uses of what is in the host, with the sum of transfer times up to each, ns.
    pub(super) fn waiting(&mut self, state: &State<'_>) -> Vec<(u64, u64)> {
        let mut waiting = Vec::new();
        for s in 0..state.storages.len() as StorageId {
            if state.storages[s as usize].place != Place::Host {
                continue;
            }
            if let (Some(next), Some(ns)) = (self.uses.next(s), self.in_ns(state, s)) {
                waiting.push((next.at_ns, ns));
            }
        }
        waiting.sort_unstable();
        let mut sum = 0;
        waiting.iter_mut().for_each(|w| {
            sum += w.1;
            w.1 = sum;
        });
        waiting
    }

    pub(super) fn in_ns(&self, state: &State<'_>, s: StorageId) -> Option<u64> {
        let backing = self.config.backing(self.storages[s as usize].host?)?;
        Some(backing.in_ns(state.log.storages[s as usize].bytes))
    }

    /// Time to compute a storage again, with the evicted ones around it, ns.
    pub(super) fn recompute_ns(&mut self, state: &State<'_>, s: StorageId) -> u64 {
        let around = self.classes.cost(state, s).max(0) as u64;
        state.storages[s as usize].compute_ns + around
    }

    pub(super) fn candidate(&mut self, state: &State<'_>, s: StorageId, waiting: &[(u64, u64)]) -> Candidate {
        let next = self.uses.next(s);
        let copied = self.storages[s as usize];
        Candidate {
            bytes: state.log.storages[s as usize].bytes,
            recompute_ns: self.recompute_ns(state, s),
            copy: copied.host.filter(|_| copied.copied_at <= state.clock),
            out_queue_ns: self.out_free_at.saturating_sub(state.clock),
            in_queue_ns: next.map_or(0, |u| self.in_queue_ns(state, waiting, u.at_ns)),
            idle_ns: next.map(|u| self.uses.until(u)),
        }
    }

    /// Releases storages of at least `need` bytes. False if nothing can be released.
    fn release(&mut self, state: &mut State<'_>, need: u64) -> bool {
        let waiting = self.waiting(state);
        let pool: Vec<StorageId> = state.pool.iter().filter(|&s| self.settled_here(state, s)).collect();
        let mut choices: Vec<(StorageId, Action, Item)> = Vec::with_capacity(pool.len());
        for s in pool {
            let c = self.candidate(state, s, &waiting);
            if let Some((action, cost)) = self.config.cheapest(&c, self.used).filter(|_| c.bytes > 0) {
                choices.push((s, action, Item { bytes: c.bytes, cost }));
            }
        }
        let large = choices.iter().filter(|c| c.2.bytes >= self.smallest);
        if large.clone().map(|c| c.2.bytes).sum::<u64>() >= need {
            choices.retain(|c| c.2.bytes >= self.smallest);
        }
        let items: Vec<Item> = choices.iter().map(|c| c.2).collect();
        let mut chosen = self.choose(state, &items, need);
        chosen.sort_by(|&a, &b| density(&items[a]).total_cmp(&density(&items[b])));
        let mut freed = 0;
        let before = state.evictions;
        for &i in chosen.iter().take_while(|&&i| {
            let more = freed < need;
            freed += items[i].bytes;
            more
        }) {
            self.act(state, choices[i].0, choices[i].1);
        }
        state.evictions > before
    }

    /// The items to give up so that `need` bytes are free now and what the program will need within the window is free
    /// then. Those cheapest per byte go first, and the rest only when it comes to that.
    ///
    /// A cover of the present need alone would be exact in bytes and poor in the long run: it gives up many small items
    /// that happen to fit (ours; the paper's choice of the moment is not known).
    fn choose(&self, state: &State<'_>, items: &[Item], need: u64) -> Vec<usize> {
        if !self.config.switches.knapsack {
            let cheapest = |a: &usize, b: &usize| density(&items[*a]).total_cmp(&density(&items[*b]));
            return (0..items.len()).min_by(cheapest).into_iter().collect();
        }
        let k = self.config.knapsack_k;
        let soon = need + self.uses.growth(self.uses.after(state.log, self.config.window));
        // Where all together are too small they all go, and the caller sees whether that and what leaves suffices.
        let cover = cover(items, soon, k).or_else(|| cover(items, need, k));
        cover.map_or_else(|| (0..items.len()).collect(), |c| c.items)
    }

    /// Where a tensor can still be swapped to: others chosen with it may have taken the room.
    fn room_for(&self, wanted: Host, bytes: u64) -> Option<Host> {
        [wanted, Host::Dram, Host::Cxl].into_iter().find(|&h| self.fits(h, bytes))
    }

    fn act(&mut self, state: &mut State<'_>, s: StorageId, action: Action) {
        let bytes = state.log.storages[s as usize].bytes;
        let action = match action {
            Action::Swap(host) => match self.room_for(host, bytes) {
                Some(host) => Action::Swap(host),
                None if self.config.switches.recompute => Action::Drop,
                None => return,
            },
            action => action,
        };
        state.evictions += 1;
        match action {
            Action::Drop => {
                self.counts.drops += 1;
                state.drop_storage(s);
                self.forget_copy(state, s);
                self.classes.evicted(state, s);
            }
            Action::Free => {
                self.counts.frees += 1;
                state.move_to_host(s);
            }
            Action::Swap(host) => {
                self.counts.swaps += 1;
                let done = self.copy_out(state, s, host);
                self.storages[s as usize].leaving = true;
                let place = self.leaving.partition_point(|l| l.1 <= done);
                self.leaving.insert(place, (s, done));
            }
        }
    }

    /// Gives a storage to the out link; returns when it has left, ns.
    pub(super) fn copy_out(&mut self, state: &State<'_>, s: StorageId, host: Host) -> u64 {
        let bytes = state.log.storages[s as usize].bytes;
        let copied = &mut self.storages[s as usize];
        if copied.host.is_some() && copied.copied_at > state.clock {
            return copied.copied_at;
        }
        let ns = self.config.backing(host).map_or(0, |b| b.out_ns(bytes));
        self.out_free_at = self.out_free_at.max(state.clock) + ns;
        copied.host = Some(host);
        copied.copied_at = self.out_free_at;
        let (used, out) = match host {
            Host::Dram => (&mut self.used.dram, &mut self.counts.out_bytes.0),
            Host::Cxl => (&mut self.used.cxl, &mut self.counts.out_bytes.1),
        };
        *used += bytes;
        *out += bytes;
        self.most_used.dram = self.most_used.dram.max(self.used.dram);
        self.most_used.cxl = self.most_used.cxl.max(self.used.cxl);
        self.out_free_at
    }

    fn forget_copy(&mut self, state: &State<'_>, s: StorageId) {
        let bytes = state.log.storages[s as usize].bytes;
        let copied = &mut self.storages[s as usize];
        match copied.host.take() {
            Some(Host::Dram) => self.used.dram -= bytes,
            Some(Host::Cxl) => self.used.cxl -= bytes,
            None => {}
        }
        copied.leaving = false;
        copied.ready_at = 0;
    }

    /// Gives a storage to the in link; it takes its memory at once and can be read from `ready_at` on.
    pub(super) fn copy_in(&mut self, state: &mut State<'_>, s: StorageId) {
        let ns = self.in_ns(state, s).unwrap_or(0);
        self.in_free_at = self.in_free_at.max(state.clock) + ns;
        self.storages[s as usize].ready_at = self.in_free_at;
        self.counts.in_bytes += state.log.storages[s as usize].bytes;
        state.move_to_device(s);
    }
}

/// Cost per byte.
fn density(item: &Item) -> f64 {
    item.cost / item.bytes as f64
}

impl Policy for Delta {
    fn created(&mut self, state: &State<'_>, op: OpId) {
        self.classes.created_by(state, op);
    }

    fn make_room(&mut self, state: &mut State<'_>, bytes: u64) -> Result<(), Stop> {
        self.collect(state);
        while state.held + bytes > state.budget {
            let over = state.held + bytes - state.budget;
            let leaving = self.leaving_bytes(state);
            if over > leaving && self.release(state, over - leaving) {
                continue;
            }
            // Wait for the first that leaves, or for one that arrives and may then be released.
            let arriving = state.pool.iter().map(|s| self.storages[s as usize].ready_at).filter(|&at| at > state.clock);
            let next = self.leaving.front().map(|l| l.1).into_iter().chain(arriving).min();
            let Some(at) = next else { return Err(Stop::OutOfMemory { wanted: bytes, held: state.held }) };
            self.counts.wait_out_ns += at.saturating_sub(state.clock);
            state.clock = state.clock.max(at);
            self.collect(state);
        }
        Ok(())
    }

    fn released(&mut self, state: &mut State<'_>, s: StorageId) {
        self.forget_copy(state, s);
        self.classes.evicted(state, s);
    }

    fn restore(&mut self, state: &mut State<'_>, s: StorageId) -> Result<(), Stop> {
        let bytes = state.log.storages[s as usize].bytes;
        self.make_room(state, bytes)?;
        self.copy_in(state, s);
        Ok(())
    }

    fn compute_ahead(&mut self, state: &State<'_>, op: OpId) -> Option<TensorId> {
        self.next_to_recompute(state, op)
    }

    fn run(&mut self, state: &mut State<'_>, op: OpId, _again: bool) {
        let inputs = &state.log.ops[op as usize].inputs;
        let ready = self.ready_at(state, inputs);
        self.counts.wait_in_ns += ready.saturating_sub(state.clock);
        state.clock = state.clock.max(ready) + state.log.ops[op as usize].time_ns;
    }

    fn computed(&mut self, state: &mut State<'_>, fresh: &[StorageId]) {
        self.classes.came_back(state, fresh);
    }

    fn stepped(&mut self, state: &mut State<'_>, next: usize) -> Result<(), Stop> {
        self.uses.advance(next);
        self.collect(state);
        self.reload_ahead(state);
        self.offload_ahead(state);
        Ok(())
    }
}
