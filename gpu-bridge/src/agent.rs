//! The bridge's end of the link to the agent: where this process's memory is comes in, what it copies goes out. Formats and
//! rules are [`tensortier_link`]'s; without an agent, or with one of another version, all goes on without it.
//!
//! Nothing here waits for the agent but [`AgentLink::connect`], and that for [`PATIENCE`] at most. Hints that the socket
//! has no room for are dropped, and how many is said in the next message.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    io::{self, IoSliceMut, Write},
    mem,
    num::NonZeroUsize,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    path::Path,
    ptr::NonNull,
    slice,
    sync::atomic::AtomicU64,
    time::Duration,
};

use nix::{
    cmsg_space,
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        mman::{MapFlags, ProtFlags, mmap, munmap},
        socket::{ControlMessageOwned, MsgFlags, recvmsg, send},
        stat::fstat,
    },
};
use tensortier_link::{
    hints::{Hint, Kind, MAX_HINTS, encode},
    placement::{PlacementError, Reader},
};
use tensortier_model::Bytes;

use crate::pipeline::{Direction, prefetch::Places};

/// Where an agent listens unless it is told otherwise.
pub const SOCKET: &str = "/run/tensortier/agent.sock";
/// An agent is waited for no longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The agent's answer is a line shorter than this.
const MAX_ANSWER: usize = 4096;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No agent answers.
    #[error("no agent answers at {path}: {source}; start one with `tensortier agent`, as root")]
    Agent {
        /// The socket.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The agent refused, in its own words; or what answers is no agent of this version.
    #[error("the agent links no process like this: {0}")]
    Refused(String),
    /// What was given is no placement that can be read safely.
    #[error("the agent's placement cannot be used: {0}")]
    Placement(#[from] PlacementError),
    /// The system refuses.
    #[error("cannot use what the agent gave: {0}")]
    System(#[from] io::Error),
}

impl From<Errno> for LinkError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// A link. Dropping it ends it.
pub struct AgentLink {
    memory: Mapped,
    /// Until the agent has gone.
    hints: Option<OwnedFd>,
    identity: (u64, u64),
    places: Places,
    generation: u64,
    waiting: BTreeMap<(u64, u64, u32), Hint>,
    dropped: u32,
}

impl AgentLink {
    /// Asks the agent at `path` for a link. It gives one to processes that it watches.
    ///
    /// # Errors
    /// [`LinkError`], in words for people; the caller goes on without.
    pub fn connect(path: &Path) -> Result<Self, LinkError> {
        let no_agent = |source| LinkError::Agent { path: path.display().to_string(), source };
        let mut stream = UnixStream::connect(path).map_err(no_agent)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(no_agent)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(no_agent)?;
        stream.write_all(b"{\"link\":{}}\n").map_err(no_agent)?;
        let (line, descriptors) = answer(&stream).map_err(no_agent)?;
        let [placement, hints] = <[OwnedFd; 2]>::try_from(descriptors)
            .map_err(|_| LinkError::Refused(String::from_utf8_lossy(&line).trim().to_owned()))?;
        let memory = Mapped::new(&placement)?;
        Reader::new(memory.words())?;
        let (identity, hints) = (identity(&hints)?, Some(hints));
        let (places, generation, waiting, dropped) = Default::default();
        Ok(Self { memory, hints, identity, places, generation, waiting, dropped })
    }

    /// Where this process's memory is, as published last. Empty until something was published; after the agent's end
    /// what it said last.
    pub fn places(&mut self) -> &Places {
        let mut extents = Vec::new();
        // One that is broken, or overtook us, leaves what was known.
        if let Ok(reader) = Reader::new(self.memory.words())
            && reader.latest() != self.generation
            && let Ok(stamp) = reader.read(&mut extents)
        {
            (self.places, self.generation) = (Places::new(extents), stamp.generation);
        }
        &self.places
    }

    /// A range was copied, or will be at `at_ns` ([`Kind::Expected`]), or was registered. Said with the next
    /// [`flush`](Self::flush), or before that where much has gathered. `at_ns` is CLOCK_MONOTONIC.
    pub fn hint(&mut self, kind: Kind, start: u64, bytes: Bytes, at_ns: u64) {
        if bytes == 0 {
            return;
        }
        let entry = self.waiting.entry((start, bytes, kind as u32));
        let hint = entry.or_insert(Hint { start, bytes, kind, times: 0, at_ns });
        hint.times = hint.times.saturating_add(1);
        hint.at_ns = hint.at_ns.max(at_ns);
        if self.waiting.len() >= MAX_HINTS {
            self.flush();
        }
    }

    /// A copy was made.
    pub fn copied(&mut self, direction: Direction, host: u64, bytes: Bytes, at_ns: u64) {
        let kind = match direction {
            Direction::H2d => Kind::HostToDevice,
            Direction::D2h => Kind::DeviceToHost,
        };
        self.hint(kind, host, bytes, at_ns);
    }

    /// A range will be copied, either way: the agent does not demote it until then.
    pub fn expected(&mut self, host: u64, bytes: Bytes, at_ns: u64) {
        self.hint(Kind::Expected, host, bytes, at_ns);
    }

    /// Says what has gathered. Where the agent does not read, or has ended, it is dropped.
    pub fn flush(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let hints: Vec<Hint> = std::mem::take(&mut self.waiting).into_values().collect();
        let message = encode(&hints, self.dropped);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match self.socket().map(|socket| send(socket.as_raw_fd(), &message, flags)) {
            Some(Ok(_)) => self.dropped = 0,
            failed => {
                if failed != Some(Err(Errno::EAGAIN)) {
                    self.hints = None;
                }
                self.dropped = self.dropped.saturating_add(hints.len() as u32);
            }
        }
    }

    /// The socket, while it is that. A program may close descriptors that it knows nothing of, and get the number for a
    /// file of its own, which is not ours to write to or to close.
    fn socket(&mut self) -> Option<&OwnedFd> {
        if self.hints.as_ref().is_some_and(|hints| identity(hints).ok() != Some(self.identity)) {
            mem::forget(self.hints.take());
        }
        self.hints.as_ref()
    }

    /// Whether the agent has ended, as the last [`flush`](Self::flush) found: only a new link helps.
    pub fn is_gone(&self) -> bool {
        self.hints.is_none()
    }

    /// Hints that were dropped since the agent last took some.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }
}

impl Drop for AgentLink {
    fn drop(&mut self) {
        let _ = self.socket();
    }
}

/// Device and inode.
fn identity(descriptor: &OwnedFd) -> nix::Result<(u64, u64)> {
    fstat(descriptor).map(|found| (found.st_dev, found.st_ino))
}

/// The agent's line, and what came with it.
fn answer(stream: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut line, mut descriptors) = (Vec::new(), Vec::new());
    while line.last() != Some(&b'\n') {
        let mut bytes = [0; 512];
        let mut room = cmsg_space!([RawFd; 2]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut room), flags)?;
        for message in received.cmsgs()? {
            if let ControlMessageOwned::ScmRights(given) = message {
                // SAFETY: the kernel has just made these descriptors for this process; nothing else owns them.
                descriptors.extend(given.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let length = received.bytes;
        if length == 0 || line.len() + length > MAX_ANSWER {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(&bytes[..length]);
    }
    Ok((line, descriptors))
}

/// A placement's memory, read-only.
struct Mapped {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: it owns its mapping, which no thread is bound to; all access is atomic.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(file: &OwnedFd) -> Result<Self, LinkError> {
        // What can be cut shorter would end this process by SIGBUS.
        let seals = SealFlag::from_bits_truncate(fcntl(file.as_fd(), FcntlArg::F_GET_SEALS)?);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) {
            return Err(io::Error::other("its memory is not sealed").into());
        }
        let count = usize::try_from(fstat(file)?.st_size).unwrap_or(0) / size_of::<AtomicU64>();
        let bytes = NonZeroUsize::new(count * size_of::<AtomicU64>());
        let bytes = bytes.ok_or(PlacementError::Size { need: 1, have: 0 })?;
        // SAFETY: a mapping of its own at an address of the kernel's choice; nothing there is replaced.
        let start = unsafe { mmap(None, bytes, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file, 0)? };
        Ok(Self { start: start.cast(), count })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `count` words of a mapping that lives as long as `self` and cannot be cut (the seal); they begin at a
        // page, and are only read here, atomically, so that what the agent writes is no data race.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, whole; `words` borrows from `self`, so nothing refers to it any more.
        // It cannot fail for a mapping that is there.
        let _ = unsafe { munmap(self.start.cast(), self.count * size_of::<AtomicU64>()) };
    }
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
