//! DAMON's schemes that migrate: regions of a node that are accessed so often, and in them the pages of one control
//! group, go to another node.
//!
//! # Minimum kernel version
//! 6.11 for `migrate_hot`, `migrate_cold` and `target_nid` (filters are older: `anon` and `memcg` 6.3, `young` 6.10).

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    kdamond::{Kdamond, read, write},
    sysfs::DamonError,
};
use crate::units::NodeId;

/// What a scheme does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Migrates what fits, the most accessed first.
    MigrateHot,
    /// Migrates what fits, the least accessed first.
    MigrateCold,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MigrateHot => "migrate_hot",
            Self::MigrateCold => "migrate_cold",
        })
    }
}

/// One scheme on the regions of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// The job that it is for.
    pub job: u64,
    /// The path of the job's memory control group below its mount: other pages stay.
    pub group: String,
    /// Whether pages of files migrate too. Shared memory counts as files here: the kernel's filter knows `anon` alone.
    pub file_pages: bool,
    /// What it does.
    pub action: Action,
    /// Where to.
    pub target: NodeId,
    /// Samples of an aggregation that found a region accessed: the least and the most.
    pub accesses: (u32, u32),
    /// Aggregations for which a region has been so, at least.
    pub age: u32,
    /// The most bytes of regions that are tried in each [`Scheme::INTERVAL`]; 0 rests.
    pub bytes: u64,
    /// The most time for it in each interval.
    pub time: Duration,
}

/// What a scheme has done since its kdamond was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of the regions that fitted and were tried, whosever pages are in them.
    pub tried: u64,
    /// Bytes that migrated.
    pub applied: u64,
    /// Times that the quota ended it.
    pub quota_exceeded: u64,
}

impl Stats {
    /// What was done since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            tried: self.tried.saturating_sub(before.tried),
            applied: self.applied.saturating_sub(before.applied),
            quota_exceeded: self.quota_exceeded.saturating_sub(before.quota_exceeded),
        }
    }

    /// Takes in what was done since.
    pub fn add(&mut self, more: &Self) {
        self.tried += more.tried;
        self.applied += more.applied;
        self.quota_exceeded += more.quota_exceeded;
    }
}

impl Scheme {
    /// The time after which a quota is new.
    pub const INTERVAL: Duration = Duration::from_secs(1);

    /// Whether `other` differs from it in how much it may do alone.
    pub fn is_like(&self, other: &Self) -> bool {
        let Self { bytes, time, .. } = other;
        *other == Self { bytes: *bytes, time: *time, ..self.clone() }
    }

    /// Writes all of it.
    pub(super) fn write(&self, folder: &Path) -> Result<(), DamonError> {
        write(&folder.join("action"), self.action)?;
        write(&folder.join("target_nid"), self.target)?;
        let pattern = folder.join("access_pattern");
        let (least, most) = self.accesses;
        for (what, least, most) in [("nr_accesses", least, most), ("age", self.age, u32::MAX)] {
            write(&pattern.join(what).join("min"), least)?;
            write(&pattern.join(what).join("max"), most)?;
        }
        // Among regions that fit, accesses and age decide who is first; for migrate_cold the fewer and the older.
        for (what, permil) in [("sz", 0), ("nr_accesses", 900), ("age", 100)] {
            write(&folder.join(format!("quotas/weights/{what}_permil")), permil)?;
        }
        // A filter keeps back what matches it, or with N what does not.
        let mut filters = vec![("memcg", "N")];
        filters.extend((!self.file_pages).then_some(("anon", "N")));
        // A page that is in use although its region is not.
        filters.extend((self.action == Action::MigrateCold).then_some(("young", "Y")));
        write(&folder.join("filters/nr_filters"), filters.len())?;
        for (number, (kind, matching)) in filters.into_iter().enumerate() {
            let filter = folder.join(format!("filters/{number}"));
            write(&filter.join("type"), kind)?;
            write(&filter.join("matching"), matching)?;
            if kind == "memcg" {
                write(&filter.join("memcg_path"), &self.group)?;
            }
        }
        self.write_amount(folder)
    }

    /// Writes how much it may do.
    pub(super) fn write_amount(&self, folder: &Path) -> Result<(), DamonError> {
        // No quota at all would be no limit, so a scheme at rest fits no region instead.
        let (least, bytes) = if self.bytes == 0 { (u64::MAX, 1) } else { (0, self.bytes) };
        write(&folder.join("access_pattern/sz/min"), least)?;
        write(&folder.join("access_pattern/sz/max"), u64::MAX)?;
        let quotas = folder.join("quotas");
        write(&quotas.join("bytes"), bytes)?;
        write(&quotas.join("ms"), self.time.as_millis().max(1))?;
        write(&quotas.join("reset_interval_ms"), Self::INTERVAL.as_millis())
    }
}

/// The folder of a kdamond's scheme.
pub(super) fn folder(kdamond: &Kdamond, number: usize) -> PathBuf {
    kdamond.context("schemes").join(number.to_string())
}

/// What a scheme has done, as last updated.
pub(super) fn stats(folder: &Path) -> Result<Stats, DamonError> {
    let number = |file: &str| -> Result<u64, DamonError> {
        let path = folder.join("stats").join(file);
        let bad = |_| DamonError::Read { path: path.clone(), source: std::io::ErrorKind::InvalidData.into() };
        read(&path)?.trim().parse().map_err(bad)
    };
    Ok(Stats { tried: number("sz_tried")?, applied: number("sz_applied")?, quota_exceeded: number("qt_exceeds")? })
}

/// Tries on a context that is not in use yet whether this kernel's schemes migrate. The error is what is missing.
pub(super) fn probe(kdamond: &Kdamond) -> Result<(), String> {
    let said = |error: DamonError| error.to_string();
    let count = kdamond.context("schemes/nr_schemes");
    write(&count, 1).map_err(said)?;
    let folder = folder(kdamond, 0);
    let knows = |action: Action| {
        let written = write(&folder.join("action"), action).is_ok();
        written && fs::read_to_string(folder.join("action")).is_ok_and(|text| text.trim() == action.to_string())
    };
    let missing = [Action::MigrateHot, Action::MigrateCold].into_iter().find(|action| !knows(*action));
    let found = match missing {
        _ if !folder.join("target_nid").exists() => Err("its schemes have no target_nid".to_owned()),
        Some(action) => Err(format!("its schemes have no {action}")),
        None => Ok(()),
    };
    write(&count, 0).map_err(said)?;
    found
}
