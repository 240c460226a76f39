//! Memory that is granted in issue order.

use std::{cmp::Reverse, collections::BinaryHeap};

use tensortier_model::{Bytes, Nanos};

/// Memory of which an allocation takes units: bytes of a pool, or slots of a class.
pub(super) struct Pool {
    pub(super) capacity: u64,
    /// Bytes of a unit.
    pub(super) unit: Bytes,
    /// Granted and not yet reclaimed for a later grant.
    used: u64,
    /// Everything granted so far is free by then. Never runs back: grants are FIFO.
    granted: Nanos,
    /// Given back and not yet reclaimed, earliest first.
    freed: BinaryHeap<Reverse<(Nanos, u64)>>,
    freed_units: u64,
}

impl Pool {
    pub(super) fn new(capacity: u64, unit: Bytes) -> Self {
        Self { capacity, unit, used: 0, granted: 0, freed: BinaryHeap::new(), freed_units: 0 }
    }

    /// When `units` are there: after the earliest frees that make enough room. `Err` is what is
    /// missing once everything has been freed.
    pub(super) fn grant(&mut self, units: u64) -> Result<Nanos, u64> {
        let missing = (self.used + units).saturating_sub(self.capacity);
        if missing > self.freed_units {
            return Err(missing - self.freed_units);
        }
        self.used += units;
        while self.used > self.capacity
            && let Some(Reverse((time, units))) = self.freed.pop()
        {
            self.used -= units;
            self.freed_units -= units;
            self.granted = self.granted.max(time);
        }
        Ok(self.granted)
    }

    /// Gives `units` back at `time`.
    pub(super) fn free(&mut self, time: Nanos, units: u64) {
        self.freed.push(Reverse((time, units)));
        self.freed_units += units;
    }

    /// Units granted and not given back.
    pub(super) fn taken(&self) -> u64 {
        self.used - self.freed_units
    }
}
