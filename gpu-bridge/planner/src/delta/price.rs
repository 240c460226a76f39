//! What releasing a tensor costs.
//!
//! Recomputation costs the time of its calls and of the evicted storages around it (DTR's classes). Swapping costs what
//! of the two transfers is not hidden: the departure, where memory is needed before it is done, and the return, where
//! the link is not free for it before the tensor is used. A tensor that was copied out before costs no departure.
//!
//! The two are divided by the time until the next use (ours, from DTR's staleness: memory freed for longer is worth
//! more), and DRAM has a price (ours): as it fills, using a byte of it costs up to what the slower CXL would.

use super::config::{Backing, Config};

/// Where a copy is or would go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Dram,
    Cxl,
}

/// How a tensor is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Forget it; compute it again.
    Drop,
    /// Let it go; a copy exists.
    Free,
    /// Copy it out.
    Swap(Host),
}

/// What is known of a candidate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) bytes: u64,
    /// Time to compute it again, ns.
    pub(super) recompute_ns: u64,
    /// Where a copy is already.
    pub(super) copy: Option<Host>,
    /// Time until the out link is free, ns.
    pub(super) out_queue_ns: u64,
    /// Time the in link needs for all that returns before it, ns.
    pub(super) in_queue_ns: u64,
    /// Time until its next use, ns; `None` if there is none.
    pub(super) idle_ns: Option<u64>,
}

/// Host memory in use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostUse {
    pub(super) dram: u64,
    pub(super) cxl: u64,
}

impl Config {
    pub(super) fn backing(&self, host: Host) -> Option<&Backing> {
        match host {
            Host::Dram => Some(&self.dram),
            Host::Cxl => self.cxl.as_ref(),
        }
    }

    /// Shadow price of a byte of DRAM, ns: nothing until it is half full, then up to what CXL costs more each way.
    fn dram_price(&self, used: HostUse) -> f64 {
        let Some(cxl) = &self.cxl else { return 0.0 };
        let slower = |a: f64, b: f64| (1e9 / a - 1e9 / b).max(0.0);
        let more = slower(cxl.write, self.dram.write) + slower(cxl.read, self.dram.read);
        let full = used.dram as f64 / self.dram.bytes.max(1) as f64;
        more * (2.0 * full - 1.0).clamp(0.0, 1.0)
    }

    /// Host memory that still has room for a tensor, with the transfer's cost there, ns.
    fn swap_cost(&self, c: &Candidate, host: Host, used: HostUse) -> Option<f64> {
        let backing = self.backing(host)?;
        let held = if host == Host::Dram { used.dram } else { used.cxl };
        if c.copy.is_none() && held.saturating_add(c.bytes) > backing.bytes {
            return None;
        }
        let out = if c.copy.is_some() { 0 } else { c.out_queue_ns + backing.out_ns(c.bytes) };
        let idle = c.idle_ns.unwrap_or(u64::MAX);
        let hidden = if self.switches.reload_ahead { idle.saturating_sub(out) } else { 0 };
        let back = if c.idle_ns.is_none() { 0 } else { c.in_queue_ns + backing.in_ns(c.bytes) };
        let rent = if host == Host::Dram { self.dram_price(used) * c.bytes as f64 } else { 0.0 };
        Some(out as f64 + back.saturating_sub(hidden) as f64 + rent)
    }

    /// The cheapest way to release a tensor, and its cost per ns of memory freed; `None` if there is no way.
    pub(super) fn cheapest(&self, c: &Candidate, used: HostUse) -> Option<(Action, f64)> {
        let recompute = if c.idle_ns.is_none() { 0.0 } else { c.recompute_ns as f64 };
        let drop = self.switches.recompute.then_some((Action::Drop, recompute));
        let hosts = match c.copy {
            Some(host) => [Some(host), None],
            None => [Some(Host::Dram), Some(Host::Cxl)],
        };
        let swap = hosts.into_iter().flatten().filter(|_| self.switches.swap).filter_map(|host| {
            let action = if c.copy.is_some() { Action::Free } else { Action::Swap(host) };
            Some((action, self.swap_cost(c, host, used)?))
        });
        let best = drop.into_iter().chain(swap).min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some((best.0, best.1 / c.idle_ns.unwrap_or(u64::MAX).max(1) as f64))
    }
}
