//! Keeps DAMON on the jobs' memory.

use std::time::{Duration, Instant};

use super::{Agent, aim};
use crate::{
    source::damon::{DamonError, Generation, sysfs::Ops},
    units::Pid,
};

impl Agent {
    /// Aims DAMON at what the jobs have now, at the rate that is worth its cost.
    pub(super) fn watch_monitor(&mut self, now: Instant) {
        let Ok(damon) = &mut self.damon else { return };
        match damon.poll() {
            Some(Err(error @ DamonError::Occupied { .. })) => {
                tracing::warn!(%error, "hotness comes from page faults alone");
                self.damon = Err(error);
                return;
            }
            Some(Ok(generation)) => {
                let Generation { kdamond, regions, intervals, .. } = &generation;
                tracing::debug!(kdamond, regions, ?intervals, "DAMON is aimed");
                self.kdamond.begin(generation.kdamond);
                if let Err(error) = self.programs.damon.watch(Pid(generation.kdamond)) {
                    tracing::warn!(%error, "DAMON runs and its reports cannot be read");
                }
                if let Some(before) = self.snapshots.generation() {
                    self.programs.damon.unwatch(Pid(before.kdamond));
                }
                self.snapshots.begin(generation);
            }
            // Its targets may just have ended; the next aim leaves them out.
            Some(Err(error)) => {
                tracing::debug!(%error, "DAMON is not aimed");
                self.aim.lost();
            }
            None => {}
        }
        let (share, runs) = self.kdamond.read(now);
        self.cadence.step(self.moving, share, now);
        if damon.busy {
            return;
        }
        if !runs {
            self.aim.lost();
        }
        let intervals = self.cadence.now();
        let wanted = match damon.ops {
            Ops::Paddr => aim::physical(&self.host),
            Ops::Vaddr | Ops::Fvaddr => aim::targets(&self.memory),
        };
        if runs && self.jobs.iter().next().is_none() {
            damon.rest();
            return self.aim.lost();
        }
        if let Some(targets) = self.aim.next(wanted, intervals, now) {
            damon.watch(targets, intervals);
        }
        let limit = intervals.aggregation * 3 + Duration::from_secs(10);
        if runs && self.quiet_monitor.silent(self.snapshots.take_fresh(), limit, now) {
            tracing::warn!(?limit, "DAMON runs and has reported nothing; is the damon_aggregated tracepoint attached?");
        }
    }
}
