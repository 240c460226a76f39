//! Bidirectional prefetching: out before memory is needed, in and again before data is.
//!
//! The abstract names it and no more; this reading of it is ours. Every return must leave room for what the program will
//! hold until the tensor is used, or displace only what has a copy and is used later.

use super::policy::Delta;
use super::price::Host;
use crate::dtr::{OpId, Place, State, StorageId, TensorId};

impl Delta {
    /// When all these tensors can be read, ns.
    pub(super) fn ready_at(&self, state: &State<'_>, tensors: &[TensorId]) -> u64 {
        let ready = |&t: &TensorId| self.storages[state.log.storage_of(t) as usize].ready_at;
        tensors.iter().map(ready).max().unwrap_or(0)
    }

    /// Keeps the out link busy through the next operator while memory will run short.
    pub(super) fn offload_ahead(&mut self, state: &mut State<'_>) {
        let on = self.config.switches.offload_ahead && self.config.switches.swap;
        if !on || !self.uses.will_exceed(state.budget) {
            return;
        }
        let until = state.clock + self.uses.next_run_ns(state.log);
        if self.out_free_at > until {
            return;
        }
        let waiting = self.waiting(state);
        while self.out_free_at <= until && self.offload_one(state, &waiting) {}
    }

    /// Copies the tensor that is dearest to recompute per byte among those that can go out and come back before their
    /// next use. False if there is none.
    fn offload_one(&mut self, state: &State<'_>, waiting: &[(u64, u64)]) -> bool {
        let mut best: Option<(f64, StorageId, Host)> = None;
        let pool: Vec<StorageId> = state.pool.iter().collect();
        for s in pool {
            let small = state.log.storages[s as usize].bytes < self.smallest;
            if small || self.storages[s as usize].host.is_some() || !self.settled_here(state, s) {
                continue;
            }
            let c = self.candidate(state, s, waiting);
            let Some(idle) = c.idle_ns.filter(|_| c.bytes > 0) else { continue };
            let host = [Host::Dram, Host::Cxl].into_iter().find(|&h| self.fits(h, c.bytes));
            let Some((host, backing)) = host.and_then(|h| Some((h, self.config.backing(h)?))) else { continue };
            if idle < c.out_queue_ns + backing.out_ns(c.bytes) + c.in_queue_ns + backing.in_ns(c.bytes) {
                continue;
            }
            let worth = c.recompute_ns as f64 / c.bytes as f64;
            if best.is_none_or(|b| worth > b.0) {
                best = Some((worth, s, host));
            }
        }
        let Some((_, s, host)) = best else { return false };
        self.counts.offloads_ahead += 1;
        self.copy_out(state, s, host);
        true
    }

    pub(super) fn fits(&self, host: Host, bytes: u64) -> bool {
        let used = if host == Host::Dram { self.used.dram } else { self.used.cxl };
        self.config.backing(host).is_some_and(|b| used.saturating_add(bytes) <= b.bytes)
    }

    /// Brings back what will be used within the window, in order of use, as far as the in link gets during the next operator.
    pub(super) fn reload_ahead(&mut self, state: &mut State<'_>) {
        let log = state.log;
        let until = state.clock + self.uses.next_run_ns(log);
        if !self.config.switches.reload_ahead || self.in_free_at > until {
            return;
        }
        for (s, next) in self.uses.window(log, self.config.window) {
            if state.storages[s as usize].place != Place::Host {
                continue;
            }
            if self.in_free_at > until {
                return;
            }
            let bytes = log.storages[s as usize].bytes;
            let needed = bytes + self.uses.growth(next.step);
            if state.held + needed > state.budget
                && !self.displace(state, state.held + needed - state.budget, next.at_ns)
            {
                return;
            }
            self.counts.reloads_ahead += 1;
            self.copy_in(state, s);
        }
    }

    /// Lets go of copied tensors that are used after `after_ns`, latest first, if they free enough.
    fn displace(&mut self, state: &mut State<'_>, need: u64, after_ns: u64) -> bool {
        let pool: Vec<StorageId> = state.pool.iter().collect();
        let mut later = Vec::new();
        for s in pool {
            let copied = self.storages[s as usize];
            let there = copied.host.is_some() && copied.copied_at <= state.clock && self.settled_here(state, s);
            let next = self.uses.next(s).map_or(u64::MAX, |u| u.at_ns);
            if there && next > after_ns {
                later.push((next, s));
            }
        }
        later.sort_unstable_by(|a, b| b.cmp(a));
        let mut chosen = Vec::new();
        let mut freed = 0;
        for (_, s) in later {
            if freed >= need {
                break;
            }
            freed += state.log.storages[s as usize].bytes;
            chosen.push(s);
        }
        if freed < need {
            return false;
        }
        for s in chosen {
            self.counts.frees += 1;
            state.evictions += 1;
            state.move_to_host(s);
        }
        true
    }

    /// A tensor that will be missed within the window and can be computed while `op` waits for its inputs.
    pub(super) fn next_to_recompute(&mut self, state: &State<'_>, op: OpId) -> Option<TensorId> {
        let call = &state.log.ops[op as usize];
        let gap = self.ready_at(state, &call.inputs).saturating_sub(state.clock);
        if !self.config.switches.recompute_ahead || gap == 0 {
            return None;
        }
        for (s, next) in self.uses.window(state.log, self.config.window) {
            let root = state.log.storages[s as usize].root;
            let storage = &state.storages[s as usize];
            if storage.place != Place::Gone || storage.refs == 0 {
                continue;
            }
            let made = &state.log.ops[state.log.tensors[root as usize].op as usize];
            let near =
                made.inputs.iter().all(|&t| state.readable(t)) && self.ready_at(state, &made.inputs) <= state.clock;
            let room = state.held + made.bytes + call.bytes + self.uses.growth(next.step) <= state.budget;
            if near && room && made.time_ns <= gap {
                self.counts.recomputes_ahead += 1;
                return Some(root);
            }
        }
        None
    }
}
