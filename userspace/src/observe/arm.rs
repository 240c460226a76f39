//! Arms our USDT probes for perf, and takes away exactly what was armed.
//!
//! A probe that is armed is an event of tracefs that stays until it is removed or the host restarts. So every change is
//! noted before it is made, in a journal that the next [`disarm`](Arms::disarm) follows, after a crash too. An event that
//! the journal does not name is somebody else's.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

use serde::{Deserialize, Serialize};

use super::{
    notes::{self, Note, NotesError},
    usdt::{PROBES, PROVIDER},
};

/// Where the journal lies; `/run` is empty after a boot, as tracefs is.
pub const JOURNAL: &str = "/run/tensortier/perf.json";

/// Why probes could not be armed or taken away.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    /// The binary cannot be read.
    #[error(transparent)]
    Notes(#[from] NotesError),
    /// perf would arm other code than the probe.
    #[error(
        "{}: perf would look for probe {probe} at the wrong place, and write a breakpoint into other code; \
         link it without rust-lld (-Clinker-features=-lld)",
        binary.display()
    )]
    Layout {
        /// The binary.
        binary: PathBuf,
        /// The first such probe.
        probe: String,
    },
    /// The binary lacks a probe.
    #[error("{}: no probe {probe} in it", binary.display())]
    NoProbe {
        /// The binary.
        binary: PathBuf,
        /// The probe.
        probe: &'static str,
    },
    /// An event of that name is there and the journal does not name it.
    #[error("{event} is armed already, and not by tensortier perf setup: perf probe -d '{event}'")]
    Occupied {
        /// The event.
        event: String,
    },
    /// perf is missing or failed.
    #[error("{command}: {reason}")]
    Perf {
        /// What was run.
        command: String,
        /// What it said.
        reason: String,
    },
    /// perf armed something else than the probe; it has been taken away again.
    #[error("perf armed {event} at offset {armed:#x}, and the probe is at {probe:#x}; it was removed again")]
    Elsewhere {
        /// The event.
        event: String,
        /// Where perf put it.
        armed: u64,
        /// Where the probe is.
        probe: u64,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What the journal holds.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Journal {
    /// `/proc/sys/kernel/random/boot_id`.
    boot: String,
    /// The binary whose probes they are.
    binary: PathBuf,
    /// Where perf keeps a copy of the binary while it looks for the probes.
    cache: PathBuf,
    /// The probes that are, or are about to be, armed.
    probes: Vec<String>,
}

/// An event of tracefs's `uprobe_events`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Armed {
    name: String,
    path: String,
    offset: u64,
}

/// The places that arming works on.
#[derive(Clone, Debug)]
pub struct Arms {
    /// tracefs.
    pub tracefs: PathBuf,
    /// The journal.
    pub journal: PathBuf,
    /// perf.
    pub perf: PathBuf,
    /// A folder for perf's copy of the binary; best on the binary's file system.
    pub cache: PathBuf,
}

impl Arms {
    /// Arms every probe of `binary` and gives the events' names. Probes that an earlier call armed are taken away first:
    /// the binary may have been rebuilt.
    ///
    /// # Errors
    /// [`ArmError`]; what was armed until then has been taken away.
    pub fn arm(&self, binary: &Path) -> Result<Vec<String>, ArmError> {
        let notes = ours(binary)?;
        self.disarm()?;
        if let Some(other) = self.armed()?.first() {
            return Err(ArmError::Occupied { event: event(&other.name) });
        }
        let journal = Journal {
            boot: boot_id(),
            binary: binary.to_owned(),
            cache: self.cache.clone(),
            probes: notes.iter().map(|note| note.name.clone()).collect(),
        };
        self.write(&journal)?;
        let armed = self.add(binary, &notes);
        // The copy has served, and an error must not leave half of the probes.
        let removed = match &armed {
            Ok(()) => remove_folder(&self.cache),
            Err(_) => self.disarm().map(drop),
        };
        armed.and(removed)?;
        Ok(journal.probes.iter().map(|name| event(name)).collect())
    }

    /// Takes away what [`arm`](Self::arm) armed, by the journal, and gives the events' names.
    ///
    /// # Errors
    /// tracefs refused, as it does while an event is being counted; the journal is kept then.
    pub fn disarm(&self) -> Result<Vec<String>, ArmError> {
        let Some(journal) = self.read()? else { return Ok(Vec::new()) };
        remove_folder(&journal.cache)?;
        let mut removed = Vec::new();
        // Events end with the boot; what is there now is not what the journal names.
        if journal.boot == boot_id() {
            for armed in self.armed()? {
                if journal.probes.contains(&armed.name) && Path::new(&armed.path) == journal.binary {
                    self.remove(&armed.name)?;
                    removed.push(event(&armed.name));
                }
            }
        }
        match fs::remove_file(&self.journal) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(self.file(&self.journal, source)),
            _ => Ok(removed),
        }
    }

    fn add(&self, binary: &Path, notes: &[Note]) -> Result<(), ArmError> {
        fs::create_dir_all(&self.cache).map_err(|source| self.file(&self.cache, source))?;
        self.perf(|perf| perf.args(["buildid-cache", "--add"]).arg(binary))?;
        // With -x, perf looks in this binary alone and not in other builds that it knows.
        let events = notes.iter().flat_map(|note| ["--add".to_owned(), event(&note.name)]);
        self.perf(|perf| perf.args(["probe", "-q", "-x"]).arg(binary).args(events))?;
        let armed = self.armed()?;
        for note in notes {
            let found = armed.iter().find(|armed| armed.name == note.name);
            let (offset, probe) = (found.map_or(0, |armed| armed.offset), note.offset.unwrap_or(0));
            if offset != probe {
                return Err(ArmError::Elsewhere { event: event(&note.name), armed: offset, probe });
            }
        }
        Ok(())
    }

    fn perf(&self, arguments: impl FnOnce(&mut Command) -> &mut Command) -> Result<(), ArmError> {
        let mut perf = Command::new(&self.perf);
        arguments(perf.arg("--buildid-dir").arg(&self.cache));
        let failed = |reason: String| ArmError::Perf { command: format!("{perf:?}").replace('"', ""), reason };
        let output = match Command::new(perf.get_program()).args(perf.get_args()).output() {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(failed(
                    "no perf here: apt install linux-perf (Debian), linux-tools-generic (Ubuntu)".into(),
                ));
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        match output.status.success() {
            true => Ok(()),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }

    /// The events of our provider's name, whoever armed them.
    fn armed(&self) -> Result<Vec<Armed>, ArmError> {
        let path = self.tracefs.join("uprobe_events");
        let text = fs::read_to_string(&path).map_err(|source| self.file(&path, source))?;
        Ok(text.lines().filter_map(parse).collect())
    }

    fn remove(&self, probe: &str) -> Result<(), ArmError> {
        let path = self.tracefs.join("uprobe_events");
        let written = OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(format!("-:sdt_{PROVIDER}/{probe}\n").as_bytes()));
        written.map_err(|source| self.file(&path, source))
    }

    fn read(&self) -> Result<Option<Journal>, ArmError> {
        match fs::read_to_string(&self.journal) {
            // A torn journal was not finished, so nothing was armed after it.
            Ok(text) => Ok(Some(serde_json::from_str(&text).unwrap_or_default())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.file(&self.journal, source)),
        }
    }

    /// The journal is on disk before anything that it names.
    fn write(&self, journal: &Journal) -> Result<(), ArmError> {
        let text = serde_json::json!(journal).to_string();
        let folder = self.journal.parent().unwrap_or(Path::new("/"));
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&self.journal, text));
        written.map_err(|source| self.file(&self.journal, source))
    }

    fn file(&self, path: &Path, source: io::Error) -> ArmError {
        ArmError::File { path: path.to_owned(), source }
    }
}

/// The notes of our probes, all of them, once perf can be trusted to find them.
fn ours(binary: &Path) -> Result<Vec<Note>, ArmError> {
    let mut notes = notes::read(binary)?;
    notes.retain(|note| note.provider == PROVIDER);
    if let Some(note) = notes.iter().find(|note| !note.perf_agrees()) {
        return Err(ArmError::Layout { binary: binary.to_owned(), probe: note.name.clone() });
    }
    match PROBES.iter().find(|probe| !notes.iter().any(|note| note.name == probe.name)) {
        Some(probe) => Err(ArmError::NoProbe { binary: binary.to_owned(), probe: probe.name }),
        None => Ok(notes),
    }
}

/// A probe's name as perf has it.
fn event(probe: &str) -> String {
    format!("sdt_{PROVIDER}:{probe}")
}

/// `p:sdt_tensortier/promote /usr/bin/tensortier:0x1234(0x20) arg1=%di:s64 …`; other lines are others' events.
fn parse(line: &str) -> Option<Armed> {
    let (name, rest) = line.strip_prefix("p:")?.split_once(' ')?;
    let (group, name) = name.split_once('/')?;
    let place = rest.split_whitespace().next()?;
    let (path, offset) = place.rsplit_once(":0x")?;
    let offset = offset.split('(').next()?;
    let offset = u64::from_str_radix(offset, 16).ok()?;
    (group == format!("sdt_{PROVIDER}")).then(|| Armed { name: name.to_owned(), path: path.to_owned(), offset })
}

fn remove_folder(path: &Path) -> Result<(), ArmError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(ArmError::File { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
