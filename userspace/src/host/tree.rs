//! Reads of procfs and sysfs under a root path, so that a recorded tree reads as a live host does.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use super::HostError;
use crate::units::PAGE;

/// No file that describes a host is longer; a longer one is corrupt or hostile.
const MAX_BYTES: u64 = 32 << 20;

/// A file that is busy is tried again for so long.
const PATIENCE: Duration = Duration::from_millis(500);

/// Does it again while the kernel says that the file is busy: DAMON's files are so to all but one of those who use them
/// at a moment, reading included.
pub(crate) fn patiently<T>(mut access: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match access() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && start.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

/// The files under one root.
pub(crate) struct Tree<'a> {
    root: &'a Path,
    denied: RefCell<Vec<PathBuf>>,
}

impl<'a> Tree<'a> {
    pub fn new(root: &'a Path) -> Self {
        Self { root, denied: RefCell::default() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// The files that exist and that the caller may not read.
    pub fn into_denied(self) -> Vec<PathBuf> {
        self.denied.into_inner()
    }

    /// The file's text without surrounding white space; `None` where this kernel has no such file or keeps it to root.
    pub fn text(&self, name: &str) -> Result<Option<String>, HostError> {
        let path = self.path(name);
        let read = patiently(|| {
            let mut bytes = Vec::with_capacity(PAGE as usize);
            File::open(&path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        });
        match read {
            Ok(bytes) if bytes.len() as u64 > MAX_BYTES => Err(self.format(name, "a file of at most 32 MiB", "more")),
            // Names of programs and files are bytes; where a value is no text, whoever reads it says so.
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
            Err(error) => self.absent(path, error).map(|()| None),
        }
    }

    /// One value of a file, in the form that `T` reads.
    pub fn value<T: FromStr>(&self, name: &str, expected: &'static str) -> Result<Option<T>, HostError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| self.format(name, expected, &text))
    }

    /// A hexadecimal number, with or without `0x`.
    pub fn hex(&self, name: &str) -> Result<Option<u64>, HostError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        u64::from_str_radix(digits, 16).map(Some).map_err(|_| self.format(name, "a hexadecimal number", &text))
    }

    /// A switch, written `Y`/`N`, `1`/`0` or `true`/`false`.
    pub fn switch(&self, name: &str) -> Result<Option<bool>, HostError> {
        match self.text(name)?.as_deref() {
            None => Ok(None),
            Some("Y" | "1" | "true") => Ok(Some(true)),
            Some("N" | "0" | "false") => Ok(Some(false)),
            Some(other) => Err(self.format(name, "Y or N, 1 or 0, true or false", other)),
        }
    }

    /// The word in brackets of a file such as `always [madvise] never`.
    pub fn chosen(&self, name: &str) -> Result<Option<String>, HostError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word.to_owned());
        word.map(Some).ok_or_else(|| self.format(name, "one word in [brackets]", &text))
    }

    /// The names in a folder, sorted; none where the folder is missing.
    pub fn names(&self, folder: &str) -> Result<Vec<String>, HostError> {
        let path = self.path(folder);
        let entries = match path.read_dir() {
            Ok(entries) => entries,
            Err(error) => return self.absent(path, error).map(|()| Vec::new()),
        };
        let mut names = entries
            .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|source| HostError::Read { path, source })?;
        names.sort();
        Ok(names)
    }

    /// The numbers of a folder's entries that are named `prefix` and a number, ascending: `node0`, `node2`.
    pub fn numbered(&self, folder: &str, prefix: &str) -> Result<Vec<u32>, HostError> {
        let names = self.names(folder)?;
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The error for a file whose text is not what the kernel documents.
    pub fn format(&self, name: &str, expected: &'static str, found: &str) -> HostError {
        const SHOWN: usize = 80;
        let found = found.chars().take(SHOWN).collect();
        HostError::Format { path: self.path(name), expected, found }
    }

    fn absent(&self, path: PathBuf, error: io::Error) -> Result<(), HostError> {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(()),
            io::ErrorKind::PermissionDenied => {
                self.denied.borrow_mut().push(path);
                Ok(())
            }
            // The kernel's answer for a device that went away, or for a fact that the device does not have.
            _ if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => Ok(()),
            _ => Err(HostError::Read { path, source: error }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_busy_for_a_moment_is_had_and_other_errors_are_not_waited_for() {
        let mut tries = 0;
        let mut after = |kind: io::ErrorKind, busy: u32| {
            tries += 1;
            if tries > busy { Ok(tries) } else { Err(io::Error::from(kind)) }
        };
        assert_eq!(patiently(|| after(io::ErrorKind::ResourceBusy, 3)).unwrap(), 4);
        tries = 0;
        let mut denied = |kind: io::ErrorKind| -> io::Result<()> {
            tries += 1;
            Err(kind.into())
        };
        assert!(patiently(|| denied(io::ErrorKind::PermissionDenied)).is_err());
        assert_eq!(tries, 1);
        let busy = patiently(|| Err::<(), _>(io::Error::from(io::ErrorKind::ResourceBusy)));
        assert_eq!(busy.unwrap_err().kind(), io::ErrorKind::ResourceBusy, "not for ever");
    }
}
