//! DAMON has one owner. The kernel does not say who set a kdamond up, so we keep a journal of our own: written before
//! the first change, naming the boot and the kernel thread, removed after the last. A journal that fits what runs now
//! was left by a killed agent, and what it began is ended; anything else is somebody else's and is left alone.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    kdamond::{self, Kdamond},
    sysfs::{DamonError, Sysfs},
};

/// Where the journal lies; `/run` is empty after a boot, as DAMON is.
pub const JOURNAL: &str = "/run/tensortier/damon.json";

/// What the journal holds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// The agent that wrote it, with its start time in clock ticks, so that a reused pid is told apart.
    pub agent: (u32, u64),
    /// How many kdamonds it makes at the most.
    most: usize,
    /// The kernel threads that run for it, by their kdamonds' numbers.
    pub kdamonds: BTreeMap<usize, u32>,
    /// The kdamond that it was about to start: its thread is not noted yet.
    starting: Option<usize>,
}

impl Entry {
    /// What a journal's text says; one that cannot be read says nothing.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// Proof that DAMON is ours.
#[derive(Debug)]
pub struct Owner {
    journal: PathBuf,
    entry: Entry,
}

impl Owner {
    /// Takes DAMON if it is free, or was left behind by an agent that is gone; at most so many kdamonds will be made.
    ///
    /// # Errors
    /// [`DamonError::Missing`], or [`DamonError::Occupied`] with what could be seen of the owner.
    pub fn take(admin: &Path, journal: &Path, most: usize) -> Result<Self, DamonError> {
        let count_file = admin.join("kdamonds/nr_kdamonds");
        if !count_file.exists() {
            return Err(DamonError::Missing { path: admin.into() });
        }
        let count = kdamond::read(&count_file)?;
        let boot = boot_id();
        if count.trim() != "0" {
            let left = read_journal(journal).filter(|entry| entry.boot == boot);
            match left {
                Some(entry) if start_time(entry.agent.0) == Some(entry.agent.1) => {
                    return Err(DamonError::Occupied {
                        what: format!("the tensortier agent with pid {}", entry.agent.0),
                        way_out: "one agent a machine: end that one first".into(),
                    });
                }
                Some(entry) if fits(admin, count.trim(), &entry) => {
                    tracing::info!(agent = entry.agent.0, "ending the DAMON monitoring that a killed agent left");
                    let mut left = Sysfs::left_behind(admin, count.trim().parse().unwrap_or(0));
                    left.stop()?;
                    left.remove()?;
                }
                _ => return Err(occupied(admin, count.trim())),
            }
        }
        let me = std::process::id();
        let agent = (me, start_time(me).unwrap_or(0));
        let entry = Entry { boot, agent, most, kdamonds: BTreeMap::new(), starting: None };
        let owner = Self { journal: journal.into(), entry };
        owner.write()?;
        Ok(owner)
    }

    /// Starts a kdamond and notes its thread, so that a kill at any moment leaves a journal that fits.
    ///
    /// # Errors
    /// The journal cannot be written, or the kernel refused.
    pub fn start(&mut self, kdamond: &mut Kdamond) -> Result<u32, DamonError> {
        self.entry.starting = Some(kdamond.number);
        self.write()?;
        let started = kdamond.start();
        if let Ok(pid) = &started {
            self.entry.kdamonds.insert(kdamond.number, *pid);
        }
        self.entry.starting = None;
        self.write()?;
        started
    }

    /// Gives DAMON back: removes our kdamond, then the journal.
    ///
    /// # Errors
    /// The kernel refused, or the journal cannot be removed.
    pub fn release(&mut self, sysfs: &mut Sysfs) -> Result<(), DamonError> {
        sysfs.remove()?;
        match fs::remove_file(&self.journal) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(DamonError::Write { path: self.journal.clone(), value: String::new(), source })
            }
            _ => Ok(()),
        }
    }

    fn write(&self) -> Result<(), DamonError> {
        let value = serde_json::json!(self.entry).to_string();
        let failed = |source| DamonError::Write { path: self.journal.clone(), value: value.clone(), source };
        if let Some(folder) = self.journal.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        // Renamed into place: a kill in between leaves the old journal or the new one, never half of one.
        let fresh = self.journal.with_extension("new");
        fs::write(&fresh, &value).and_then(|()| fs::rename(&fresh, &self.journal)).map_err(failed)
    }
}

/// A journal that cannot be read says nothing, and what runs is then somebody else's.
fn read_journal(journal: &Path) -> Option<Entry> {
    Entry::parse(&fs::read_to_string(journal).ok()?)
}

/// Whether what is there can be what the noted agent left: no more kdamonds than it made, and of those that run each
/// the one that was noted.
fn fits(admin: &Path, count: &str, entry: &Entry) -> bool {
    let Ok(count) = count.parse::<usize>() else { return false };
    let running = |number: usize| {
        let pid = kdamond::read(&admin.join(format!("kdamonds/{number}/pid"))).ok()?;
        pid.trim().parse::<u32>().ok()
    };
    let ours = |number: usize, pid| entry.kdamonds.get(&number) == Some(&pid) || entry.starting == Some(number);
    count <= entry.most && (0..count).all(|number| running(number).is_none_or(|pid| ours(number, pid)))
}

fn occupied(admin: &Path, count: &str) -> DamonError {
    let running: Vec<String> = (0..count.parse().unwrap_or(0))
        .filter_map(|number: u32| kdamond::read(&admin.join(format!("kdamonds/{number}/pid"))).ok())
        .map(|pid| pid.trim().to_owned())
        .filter(|pid| pid != "-1")
        .collect();
    let what = match running.as_slice() {
        [] => format!("{count} kdamond set up in {}, not running", admin.display()),
        pids => format!("kdamond with pid {}", pids.join(", ")),
    };
    DamonError::Occupied { what, way_out: format!("stop its user first (damo stop, or read {})", admin.display()) }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Field 22 of `/proc/PID/stat`, in clock ticks since boot; `None` where the process is gone.
fn start_time(pid: u32) -> Option<u64> {
    let pid = i32::try_from(pid).ok()?;
    Some(procfs::process::Process::new(pid).ok()?.stat().ok()?.starttime)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A tree with `kdamonds` kdamonds, of which the first runs as `pid`.
    fn tree(kdamonds: u32, pid: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("kdamonds/0/contexts/0")).unwrap();
        fs::write(root.path().join("kdamonds/nr_kdamonds"), kdamonds.to_string()).unwrap();
        fs::write(root.path().join("kdamonds/0/pid"), pid).unwrap();
        fs::write(root.path().join("kdamonds/0/state"), "off").unwrap();
        fs::write(root.path().join("kdamonds/0/contexts/0/avail_operations"), "vaddr\nfvaddr\npaddr\n").unwrap();
        root
    }

    fn journal_of_the_dead(root: &tempfile::TempDir, boot: String, kdamonds: &[u32]) -> PathBuf {
        let journal = root.path().join("journal");
        // No process has started at tick 1 with this pid: pid 1 has started at tick 0 or later than 1.
        let kdamonds = kdamonds.iter().copied().enumerate().collect();
        let entry = Entry { boot, agent: (u32::MAX >> 1, 1), most: 3, kdamonds, starting: None };
        fs::write(&journal, serde_json::json!(entry).to_string()).unwrap();
        journal
    }

    #[test]
    fn a_free_damon_is_taken_and_noted() {
        let root = tree(0, "-1");
        let journal = root.path().join("run/journal");
        Owner::take(root.path(), &journal, 1).unwrap();
        assert_eq!(read_journal(&journal).unwrap().agent.0, std::process::id());
    }

    #[test]
    fn a_kdamond_without_our_journal_is_left_alone() {
        let root = tree(1, "77");
        let error = Owner::take(root.path(), &root.path().join("journal"), 1).unwrap_err();
        assert!(matches!(&error, DamonError::Occupied { what, .. } if what.contains("77")), "{error}");
        assert_eq!(fs::read_to_string(root.path().join("kdamonds/nr_kdamonds")).unwrap(), "1");
    }

    #[test]
    fn what_a_killed_agent_left_is_cleaned() {
        let root = tree(1, "77");
        let journal = journal_of_the_dead(&root, boot_id(), &[77]);
        Owner::take(root.path(), &journal, 1).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("kdamonds/nr_kdamonds")).unwrap(), "0");
    }

    #[test]
    fn a_killed_agent_with_movers_is_cleaned_and_one_that_does_not_fit_is_not() {
        let root = tree(2, "77");
        let mover = root.path().join("kdamonds/1");
        fs::create_dir_all(&mover).unwrap();
        fs::write(mover.join("state"), "off").unwrap();
        fs::write(mover.join("pid"), "78").unwrap();
        for noted in [&[77][..], &[77, 79], &[78, 77]] {
            let journal = journal_of_the_dead(&root, boot_id(), noted);
            assert!(Owner::take(root.path(), &journal, 1).is_err(), "{noted:?}");
        }
        // It was killed between the start of a kdamond and the note of its thread.
        let agent = (u32::MAX >> 1, 1);
        let entry = Entry { boot: boot_id(), agent, most: 3, kdamonds: [(0, 77)].into(), starting: Some(1) };
        let journal = root.path().join("journal");
        fs::write(&journal, serde_json::json!(entry).to_string()).unwrap();
        Owner::take(root.path(), &journal, 1).unwrap();
        let journal = journal_of_the_dead(&root, boot_id(), &[77, 78]);
        fs::write(root.path().join("kdamonds/nr_kdamonds"), "2").unwrap();
        Owner::take(root.path(), &journal, 1).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("kdamonds/nr_kdamonds")).unwrap(), "0");
        // More kdamonds than it ever made.
        fs::write(root.path().join("kdamonds/nr_kdamonds"), "4").unwrap();
        let journal = journal_of_the_dead(&root, boot_id(), &[77, 78]);
        assert!(Owner::take(root.path(), &journal, 1).is_err());
    }

    #[test]
    fn a_journal_of_another_boot_or_thread_or_a_torn_one_proves_nothing() {
        let root = tree(1, "77");
        let other_boot = journal_of_the_dead(&root, "another boot".into(), &[77]);
        assert!(Owner::take(root.path(), &other_boot, 1).is_err());
        let other_thread = journal_of_the_dead(&root, boot_id(), &[78]);
        assert!(Owner::take(root.path(), &other_thread, 1).is_err());
        fs::write(&other_thread, "{\"boot\":").unwrap();
        assert!(Owner::take(root.path(), &other_thread, 1).is_err());
    }

    #[test]
    fn a_living_agent_is_named() {
        let root = tree(1, "77");
        let journal = root.path().join("journal");
        let me = std::process::id();
        let agent = (me, start_time(me).unwrap());
        let entry = Entry { boot: boot_id(), agent, most: 1, kdamonds: [(0, 77)].into(), starting: None };
        fs::write(&journal, serde_json::json!(entry).to_string()).unwrap();
        let error = Owner::take(root.path(), &journal, 1).unwrap_err().to_string();
        assert!(error.contains(&me.to_string()), "{error}");
    }
}
