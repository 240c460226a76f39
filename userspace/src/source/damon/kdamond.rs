//! One kdamond of ours with its one context: what is written to it, and in which order.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{
    cadence::Intervals,
    grid::{Grid, Target},
    layout::{SPARES, lay},
    sysfs::{DamonError, Ops},
};
use crate::{host::tree::patiently, units::Pid};

/// A kdamond's folder in sysfs.
#[derive(Debug)]
pub struct Kdamond {
    folder: PathBuf,
    sampling: Duration,
    /// Targets and regions as its files have them.
    written: Vec<Target>,
    /// Empty targets that it may have: only `fvaddr` leaves them empty.
    spares: usize,
    /// Its number in sysfs.
    pub number: usize,
}

impl Kdamond {
    /// The kdamond with this number. Its sampling interval is not known yet; the longest that the cadence sets bounds
    /// it.
    pub(super) fn new(admin: &Path, number: usize) -> Self {
        let folder = admin.join("kdamonds").join(number.to_string());
        Self { folder, sampling: Duration::from_secs(2), written: Vec::new(), spares: 0, number }
    }

    /// Gives it its context, with an operations set.
    pub(super) fn prepare(&mut self, ops: Ops) -> Result<(), DamonError> {
        self.spares = if ops == Ops::Fvaddr { SPARES } else { 0 };
        write(&self.file("contexts/nr_contexts"), 1)?;
        write(&self.context("operations"), ops)
    }

    /// Writes targets, regions and intervals; it must be stopped. Of the regions, two files each, those that are there
    /// already are not written again. Gives the targets as the kernel numbers them.
    ///
    /// # Errors
    /// The file and value that the kernel refused.
    pub fn configure(&mut self, grid: &Grid, intervals: &Intervals) -> Result<Vec<Target>, DamonError> {
        self.sampling = intervals.sampling;
        let attrs = self.context("monitoring_attrs");
        write(&attrs.join("intervals/sample_us"), intervals.sampling.as_micros())?;
        write(&attrs.join("intervals/aggr_us"), intervals.aggregation.as_micros())?;
        // Our regions are not to be replaced by the kernel's own idea of them.
        write(&attrs.join("intervals/update_us"), u32::MAX)?;
        // Each bound is checked against the other as it is written.
        write(&attrs.join("nr_regions/max"), u32::MAX)?;
        write(&attrs.join("nr_regions/min"), grid.min)?;
        write(&attrs.join("nr_regions/max"), grid.max)?;
        let targets = self.context("targets");
        // Unknown, should a write fail.
        let mut before = std::mem::take(&mut self.written);
        let laid = lay(&before, &grid.targets, self.spares);
        if before.len() != laid.len() {
            // Which makes all of them anew.
            write(&targets.join("nr_targets"), laid.len())?;
            before = laid.iter().map(|_| Target { pid: None, ranges: Vec::new() }).collect();
        }
        for (number, (target, before)) in laid.iter().zip(&before).enumerate() {
            let folder = targets.join(number.to_string());
            if let Some(pid) = target.pid.filter(|pid| before.pid != Some(*pid)) {
                write(&folder.join("pid_target"), pid)?;
            }
            let as_many = before.ranges.len() == target.ranges.len();
            if !as_many {
                write(&folder.join("regions/nr_regions"), target.ranges.len())?;
            }
            for (number, range) in target.ranges.iter().enumerate() {
                if as_many && before.ranges[number] == *range {
                    continue;
                }
                let region = folder.join(format!("regions/{number}"));
                write(&region.join("start"), range.start)?;
                write(&region.join("end"), range.end)?;
            }
        }
        self.written.clone_from(&laid);
        Ok(laid)
    }

    /// Starts it and gives its thread's pid.
    ///
    /// # Errors
    /// The kernel refused, or it ended at once.
    pub fn start(&mut self) -> Result<u32, DamonError> {
        self.command("on").map_err(|error| match error {
            DamonError::Write { source, .. } if source.raw_os_error() == Some(libc::EBUSY) => DamonError::Occupied {
                what: "another exclusive user, such as DAMON_STAT, is running".into(),
                way_out: "echo N > /sys/module/damon_stat/parameters/enabled, or boot with damon_stat.enabled=0".into(),
            },
            other => other,
        })?;
        match read(&self.file("pid"))?.trim().parse::<u32>() {
            Ok(pid) => Ok(pid),
            // Reads -1 where the thread is gone.
            Err(_) => Err(DamonError::EndedAtOnce { pids: self.pids() }),
        }
    }

    /// Stops it; one that ended by itself, because its targets did, is stopped too.
    ///
    /// # Errors
    /// It runs on.
    pub fn stop(&mut self) -> Result<(), DamonError> {
        let limit = self.sampling * 2 + Duration::from_secs(2);
        match until_off(limit, || self.is_on(), || self.command("off"))? {
            None => Ok(()),
            Some(waited) => Err(DamonError::WillNotStop { pid: read(&self.file("pid"))?.trim().into(), waited }),
        }
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn is_on(&self) -> Result<bool, DamonError> {
        Ok(read(&self.file("state"))?.trim() == "on")
    }

    /// Has the kernel do something with it. Before 6.14 most commands wait for the end of the aggregation.
    pub(super) fn command(&self, command: &str) -> Result<(), DamonError> {
        write(&self.file("state"), command)
    }

    pub(super) fn file(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    pub(super) fn context(&self, file: &str) -> PathBuf {
        self.file("contexts/0").join(file)
    }

    fn pids(&self) -> Vec<Pid> {
        // A process may be several targets.
        let pids: BTreeSet<Pid> = (0..)
            .map_while(|number| read(&self.context(&format!("targets/{number}/pid_target"))).ok())
            .filter_map(|pid| pid.trim().parse().ok().map(Pid))
            .collect();
        pids.into_iter().collect()
    }
}

pub(super) fn read(path: &Path) -> Result<String, DamonError> {
    patiently(|| fs::read_to_string(path)).map_err(|source| DamonError::Read { path: path.into(), source })
}

pub(super) fn write(path: &Path, value: impl fmt::Display) -> Result<(), DamonError> {
    let value = value.to_string();
    patiently(|| fs::write(path, &value)).map_err(|source| DamonError::Write { path: path.into(), value, source })
}

/// Writes `off` until it is; the time waited where it is not within `limit`.
fn until_off(
    limit: Duration,
    mut is_on: impl FnMut() -> Result<bool, DamonError>,
    mut off: impl FnMut() -> Result<(), DamonError>,
) -> Result<Option<Duration>, DamonError> {
    let start = Instant::now();
    while is_on()? {
        // Between our look and our write it may end by itself, which makes the write fail (EPERM): look again.
        let written = off();
        if start.elapsed() > limit {
            return written.map(|()| Some(start.elapsed()));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refused() -> Result<(), DamonError> {
        Err(DamonError::Write {
            path: "state".into(),
            value: "off".into(),
            source: std::io::ErrorKind::PermissionDenied.into(),
        })
    }

    #[test]
    fn one_that_ended_by_itself_before_the_write_is_stopped() {
        let mut looks = 0;
        let look = || {
            looks += 1;
            Ok(looks == 1)
        };
        assert_eq!(until_off(Duration::from_secs(60), look, refused).unwrap(), None);
    }

    #[test]
    fn one_that_runs_on_is_an_error_with_its_reason() {
        assert!(until_off(Duration::ZERO, || Ok(true), refused).is_err());
        assert!(until_off(Duration::ZERO, || Ok(true), || Ok(())).unwrap().is_some());
    }
}
