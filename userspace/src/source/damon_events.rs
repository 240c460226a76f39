//! DAMON's aggregations as the kernel makes them: one record for each region of each target, in order.
//!
//! Minimum kernel: 5.15 (`damon:damon_aggregated`). `nr_regions` and `age` are 0 on kernels that do not tell them.

use std::time::Instant;

use aya::maps::{HashMap, Map, MapData, RingBuf};
use tensortier_abi::{DamonEvent, maps};

use super::{
    bpf_sys,
    ebpf::EbpfError,
    lost::{Clock, LossCount},
};
use crate::units::{Pid, Range};

/// One region of one aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamonRegion {
    /// The kdamond that monitors it: contexts are told apart by this alone.
    pub kdamond: Pid,
    /// The target's index within the context, not a pid.
    pub target: u64,
    /// The addresses: virtual for `vaddr` and `fvaddr`, physical for `paddr`.
    pub range: Range,
    /// Samples of the aggregation that found it accessed; at most aggregation over sampling interval.
    pub nr_accesses: u32,
    /// Aggregations for which it has kept its access frequency.
    pub age: u32,
    /// Regions of the target in this aggregation.
    pub nr_regions: u32,
    /// When it was aggregated.
    pub at: Instant,
}

/// The aggregations of the kdamonds asked for.
pub struct DamonEvents {
    kdamonds: HashMap<MapData, u32, u32>,
    events: RingBuf<MapData>,
    lost: LossCount,
}

impl DamonEvents {
    pub(super) fn new(kdamonds: Map, events: Map, lost: LossCount) -> Result<Self, EbpfError> {
        Ok(Self {
            kdamonds: HashMap::try_from(kdamonds).map_err(|error| EbpfError::map(maps::KDAMONDS, error))?,
            events: RingBuf::try_from(events).map_err(|error| EbpfError::map(maps::DAMON_EVENTS, error))?,
            lost,
        })
    }

    /// Asks for the aggregations of a kdamond, named by the pid that sysfs shows.
    ///
    /// # Errors
    /// More than [`MAX_KDAMONDS`](tensortier_abi::MAX_KDAMONDS) are watched.
    pub fn watch(&mut self, kdamond: Pid) -> Result<(), EbpfError> {
        let inserted = self.kdamonds.insert(kdamond.0, 1, 0);
        inserted.map_err(|error| EbpfError::map(maps::KDAMONDS, format!("cannot watch kdamond {kdamond}: {error}")))
    }

    /// Ends [`watch`](Self::watch); a kdamond that is not watched stays so.
    pub fn unwatch(&mut self, kdamond: Pid) {
        if let Err(error) = self.kdamonds.remove(&kdamond.0) {
            tracing::debug!(%kdamond, %error, "kdamond was not watched");
        }
    }

    /// Takes the records since the last drain, in the order the kernel made them. At most what the ring buffer held at
    /// the start, so that a fast kdamond cannot keep the caller here.
    ///
    /// # Errors
    /// None at present; a record that is too short is refused.
    pub fn drain(&mut self) -> Result<Vec<DamonRegion>, EbpfError> {
        let clock = Clock::read();
        let most = tensortier_abi::DAMON_EVENTS_BYTES as usize / size_of::<DamonEvent>();
        let mut regions = Vec::new();
        while regions.len() < most
            && let Some(item) = self.events.next()
        {
            let event: DamonEvent =
                bpf_sys::read_record(&item).ok_or_else(|| EbpfError::map(maps::DAMON_EVENTS, "a short record"))?;
            regions.push(DamonRegion {
                kdamond: Pid(event.kdamond),
                target: event.target,
                range: Range::new(event.start, event.end),
                nr_accesses: event.nr_accesses,
                age: event.age,
                nr_regions: event.nr_regions,
                at: clock.instant(event.at_ns),
            });
        }
        Ok(regions)
    }

    /// Regions lost since load because the ring buffer was full.
    pub fn lost(&self) -> u64 {
        self.lost.total()
    }
}
