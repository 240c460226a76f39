//! What the links can still carry during each kernel.

use super::profile::{Profile, Rules};

/// One direction: bytes that cross between device and host during each kernel, of which some go on to the far tier.
///
/// Under [`Rules::Clean`] the far tier carries what its own rate and the rest of the link allow. Under [`Rules::G10`] the
/// books are kept as G10 keeps them: far traffic counts against the link, but only the far tier's own rate bounds
/// it; host traffic beyond what the far tier leaves of the link counts against the far tier too, and does so again at
/// each later booking in the same kernel. Fractions of a byte are dropped from what is left to carry.
#[derive(Clone, Debug)]
pub(super) struct Link {
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    rules: Rules,
    link: f64,
    far: f64,
    link_used: f64,
    far_used: f64,
}

/// Where a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Far,
    Host,
}

impl Slot {
    fn free(&self, route: Route) -> f64 {
        let (link, far) = (self.link - self.link_used, self.far - self.far_used);
        match (route, self.rules) {
            (Route::Host, _) => link.max(0.0),
            (Route::Far, Rules::G10) => far.max(0.0),
            (Route::Far, Rules::Clean) => far.min(link).max(0.0),
        }
    }

    /// Books up to `bytes` and returns how many. What fills the slot fills it exactly, whatever the rounding.
    fn book(&mut self, route: Route, bytes: i64) -> f64 {
        let free = self.free(route);
        let part = free.min(bytes as f64);
        let fills = part == free;
        match route {
            Route::Far => {
                self.link_used += part;
                self.far_used = if fills && self.rules == Rules::G10 { self.far } else { self.far_used + part };
            }
            Route::Host => {
                self.link_used = if fills { self.link } else { self.link_used + part };
                if self.rules == Rules::G10 {
                    let beyond = self.link_used - (self.link - self.far);
                    self.far_used = if fills { self.far } else { (self.far_used + beyond.max(0.0)).min(self.far) };
                }
            }
        }
        part
    }
}

impl Link {
    /// One direction of the machine's link, for kernels that begin at `starts_us`.
    pub(super) fn new(starts_us: &[f64], p: &Profile) -> Self {
        let slot = |w: &[f64]| {
            let us = w[1] - w[0];
            Slot { rules: p.rules, link: p.link * us, far: p.far * us, link_used: 0.0, far_used: 0.0 }
        };
        Link { slots: starts_us.windows(2).map(slot).collect() }
    }

    /// True if anything can be carried during these kernels.
    pub(super) fn open(&self, route: Route, kernels: std::ops::Range<usize>) -> bool {
        self.slots[kernels].iter().any(|s| s.free(route) > 0.0)
    }

    /// The kernel during which `bytes` sent from the start of `from` on have arrived; the last one if they never do.
    pub(super) fn done_at(&self, route: Route, mut bytes: i64, from: usize) -> usize {
        for (k, slot) in self.slots.iter().enumerate().skip(from) {
            bytes = rest(bytes, slot.free(route));
            if bytes <= 0 {
                return k;
            }
        }
        self.slots.len() - 1
    }

    /// The kernel at whose start `bytes` must be sent to be there when `needed` starts; 0 if that is too late already.
    pub(super) fn send_at(&self, route: Route, mut bytes: i64, needed: usize) -> usize {
        for k in (0..needed).rev() {
            bytes = rest(bytes, self.slots[k].free(route));
            if bytes <= 0 {
                return k;
            }
        }
        0
    }

    /// Books `bytes` from the start of `from` on.
    pub(super) fn book(&mut self, route: Route, mut bytes: i64, from: usize) {
        for slot in self.slots.iter_mut().skip(from) {
            bytes = rest(bytes, slot.book(route, bytes));
            if bytes <= 0 {
                return;
            }
        }
    }
}

fn rest(bytes: i64, carried: f64) -> i64 {
    (bytes as f64 - carried) as i64
}
