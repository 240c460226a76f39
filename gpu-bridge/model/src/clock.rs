//! Time that is real in a running bridge and virtual in a simulation.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::Nanos;

/// A source of monotonic time. The same scheduler code runs on either kind.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the clock was made.
    fn now(&self) -> Nanos;
    /// Returns once `now() >= at`. A virtual clock gets there at once.
    fn wait_until(&self, at: Nanos);
}

impl<C: Clock> Clock for Arc<C> {
    fn now(&self) -> Nanos {
        C::now(self)
    }

    fn wait_until(&self, at: Nanos) {
        C::wait_until(self, at);
    }
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub struct RealClock(Instant);

impl RealClock {
    /// A clock that reads 0 now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Nanos {
        Nanos::try_from(self.0.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    fn wait_until(&self, at: Nanos) {
        if let Some(left) = at.checked_sub(self.now()) {
            std::thread::sleep(Duration::from_nanos(left));
        }
    }
}

/// A clock that only moves when it is told to.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// Moves the clock on by `by`.
    pub fn advance(&self, by: Nanos) {
        self.0.fetch_add(by, Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        self.0.load(Ordering::SeqCst)
    }

    fn wait_until(&self, at: Nanos) {
        self.0.fetch_max(at, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_clock_never_runs_back() {
        let clock = VirtualClock::default();
        clock.wait_until(50);
        clock.wait_until(20);
        clock.advance(5);
        assert_eq!(clock.now(), 55);
    }

    #[test]
    fn a_real_clock_waits() {
        let clock = RealClock::new();
        clock.wait_until(2_000_000);
        assert!(clock.now() >= 2_000_000);
    }
}
