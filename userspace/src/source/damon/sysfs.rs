//! DAMON's sysfs tree: the kdamonds that we make in it, and what its errors mean.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    kdamond::{Kdamond, read, write},
    schemes,
};
use crate::units::{NodeId, Pid};

/// Where the kernel has DAMON's user interface.
pub const ADMIN: &str = "/sys/kernel/mm/damon/admin";

/// DAMON's operations set: whose accesses are monitored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ops {
    /// Virtual addresses of processes, in ranges that we give (5.19).
    Fvaddr,
    /// Virtual addresses of processes, in ranges that the kernel follows (5.15); used where `fvaddr` is missing.
    Vaddr,
    /// Physical addresses (5.16): says how much of a node is hot, not whose memory it is.
    Paddr,
}

impl fmt::Display for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fvaddr => "fvaddr",
            Self::Vaddr => "vaddr",
            Self::Paddr => "paddr",
        })
    }
}

/// What can go wrong with DAMON. None of it stops the agent: the other sources go on.
#[derive(Debug, thiserror::Error)]
pub enum DamonError {
    /// The config says not to use it.
    #[error("off in the config (damon.ops)")]
    Off,
    /// The kernel has no DAMON sysfs interface.
    #[error("{path}: no DAMON here; it needs Linux 5.18 with CONFIG_DAMON_SYSFS")]
    Missing {
        /// The folder that is not there.
        path: PathBuf,
    },
    /// Somebody else set DAMON up.
    #[error("DAMON is in use ({what}); it has one owner at a time and is left alone: {way_out}")]
    Occupied {
        /// Whose, as far as can be seen.
        what: String,
        /// What the operator can do.
        way_out: String,
    },
    /// No wanted operations set is available.
    #[error("DAMON offers {available:?} but not {wanted}: {way_out}")]
    NoOps {
        /// What was asked for.
        wanted: String,
        /// What the kernel has.
        available: String,
        /// The missing kernel option.
        way_out: &'static str,
    },
    /// No schemes that migrate.
    #[error("DAMON cannot migrate here ({what}); it needs Linux 6.11 with CONFIG_DAMON_PADDR")]
    NoMigration {
        /// What is missing.
        what: String,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {value:?} to {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What was to be written.
        value: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// kdamond was started and ended at once.
    #[error("kdamond ended at once: the monitored processes {pids:?} have probably ended")]
    EndedAtOnce {
        /// The processes it was given.
        pids: Vec<Pid>,
    },
    /// kdamond did not end in time.
    #[error("kdamond {pid} did not stop within {waited:?}")]
    WillNotStop {
        /// The kernel thread.
        pid: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The control thread could not be started.
    #[error("cannot start the DAMON thread: {source}")]
    Thread {
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What is ours in the tree: a kdamond that monitors and, where schemes are to migrate, one for each node.
#[derive(Debug)]
pub struct Sysfs {
    admin: PathBuf,
    /// The operations set that monitors.
    pub ops: Ops,
    /// Monitors the jobs.
    pub monitor: Kdamond,
    /// Migrate off a node each.
    pub movers: BTreeMap<NodeId, Kdamond>,
    /// Why there are no movers, where some were wanted.
    pub no_movers: Option<DamonError>,
}

impl Sysfs {
    /// Makes a kdamond that monitors and chooses its operations set, `wanted` or the best there is; and a kdamond for
    /// each of `nodes`, where this kernel's schemes can migrate.
    ///
    /// # Errors
    /// DAMON is missing or has none of the operations sets.
    pub fn open(admin: &Path, wanted: Option<Ops>, nodes: &[NodeId]) -> Result<Self, DamonError> {
        write(&admin.join("kdamonds/nr_kdamonds"), 1)?;
        let monitor = Kdamond::new(admin, 0);
        write(&monitor.file("contexts/nr_contexts"), 1)?;
        let available = read(&monitor.context("avail_operations"))?;
        let has = |ops: &Ops| available.split_whitespace().any(|name| name == ops.to_string());
        let choice = match wanted {
            Some(ops) => has(&ops).then_some(ops),
            None => [Ops::Fvaddr, Ops::Vaddr, Ops::Paddr].into_iter().find(has),
        };
        let ops = choice.ok_or_else(|| DamonError::NoOps {
            wanted: wanted.map_or("vaddr, fvaddr or paddr".into(), |ops| ops.to_string()),
            available: available.trim().into(),
            way_out: "the kernel needs CONFIG_DAMON_VADDR (5.15) for jobs, CONFIG_DAMON_PADDR (5.16) for nodes",
        })?;
        let mut sysfs = Self { admin: admin.to_owned(), ops, monitor, movers: BTreeMap::new(), no_movers: None };
        if !nodes.is_empty() {
            let paddr = if has(&Ops::Paddr) { Ok(()) } else { Err("it has no paddr".into()) };
            match paddr.and_then(|()| schemes::probe(&sysfs.monitor)) {
                Ok(()) => {
                    // The tree is made anew, and what was in it is gone.
                    write(&sysfs.admin.join("kdamonds/nr_kdamonds"), 1 + nodes.len())?;
                    let movers = nodes.iter().enumerate().map(|(at, node)| (*node, Kdamond::new(admin, 1 + at)));
                    sysfs.movers = movers.collect();
                }
                Err(what) => sysfs.no_movers = Some(DamonError::NoMigration { what }),
            }
        }
        sysfs.monitor.prepare(ops)?;
        sysfs.movers.values_mut().try_for_each(|mover| mover.prepare(Ops::Paddr))?;
        Ok(sysfs)
    }

    /// The tree as a killed agent left it, to be stopped and removed: nothing is written before that.
    pub fn left_behind(admin: &Path, kdamonds: usize) -> Self {
        // Which node each was for does not matter any more.
        let movers = (1..kdamonds).map(|number| (NodeId(number as u32), Kdamond::new(admin, number))).collect();
        let monitor = Kdamond::new(admin, 0);
        Self { admin: admin.to_owned(), ops: Ops::Fvaddr, monitor, movers, no_movers: None }
    }

    /// Stops every kdamond of ours.
    ///
    /// # Errors
    /// One runs on.
    pub fn stop(&mut self) -> Result<(), DamonError> {
        self.movers.values_mut().chain([&mut self.monitor]).try_for_each(Kdamond::stop)
    }

    /// Removes our kdamonds from the tree, as it was before [`Sysfs::open`].
    ///
    /// # Errors
    /// The kernel refused.
    pub fn remove(&mut self) -> Result<(), DamonError> {
        write(&self.admin.join("kdamonds/nr_kdamonds"), 0)
    }
}
