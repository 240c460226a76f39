//! Keeps DAMON on the jobs' memory.

use std::time::{Duration, Instant};

use super::{Agent, aim};
use crate::{
    hotness::Region,
    source::damon::{DamonError, Generation, sysfs::Ops},
    units::Pid,
};

/// Heat that would be another with twice the time between samples: below is next to nothing, above is full use.
const BLURRED: std::ops::Range<f32> = 0.05..0.9;
/// The part of the memory that has it, at least.
const BLUR: f64 = 0.02;

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
        let jobs = &self.jobs;
        let blurs = || is_blurred(jobs.iter().flat_map(|job| &job.view.regions));
        self.cadence.step(self.moving, share, blurs, now);
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

/// Whether so much is used neither little nor throughout that half of the samples would tell less of it.
fn is_blurred<'a>(regions: impl Iterator<Item = &'a Region>) -> bool {
    let (mut blurred, mut all) = (0, 0);
    for region in regions {
        let bytes = region.resident();
        all += bytes;
        blurred += if BLURRED.contains(&region.heat) { bytes } else { 0 };
    }
    blurred as f64 > all as f64 * BLUR
}
