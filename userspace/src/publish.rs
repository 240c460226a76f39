//! The link to the GPU bridge: where a process's memory is goes out, what it copies comes in.
//!
//! ```text
//! control socket: {"link":{}}  ──▶  {"linked":{}} with two descriptors (SCM_RIGHTS)
//!   1. the placement   a memfd, sealed and read-only; the agent writes, the process reads and never waits
//!   2. the hints       one end of a SOCK_SEQPACKET pair; a datagram is a message of hints
//! ```
//!
//! Formats and rules of both are [`tensortier_link`]'s. A placement is of one process, that which asked for it. A hint is
//! about its sender's own memory or about nothing: the kernel names the sender of each datagram (`SCM_CREDENTIALS`), so
//! one that was sent on to another process, or inherited, says nothing of the first. What is no message, of no job, or
//! beyond what is read in a tick, costs its sender and nobody else; all of it is counted.

mod shared;

use std::{
    collections::BTreeMap,
    io::{self, IoSliceMut},
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use nix::{
    cmsg_space,
    errno::Errno,
    sys::socket::{
        AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixCredentials, recvmsg, setsockopt,
        socketpair, sockopt::PassCred,
    },
};
use tensortier_link::{
    hints::{self, Hint},
    placement::{Extent, Kind, Writer, words},
};

use self::shared::Shared;
use crate::{
    host::{Host, NodeKind},
    job::Resident,
    units::{NodeId, Pid},
};

/// Extents that a process is told of: 64 GiB of blocks that alternate. Of more the smallest are left out.
const CAPACITY: usize = 1 << 15;
/// Links at a time: each costs a descriptor and, at the most, 2 MiB.
const MAX_LINKS: usize = 256;
/// Links of one user other than root.
const OF_A_USER: usize = 64;
/// Messages that are read from a link in a tick; the rest waits, and a full socket makes its sender drop hints.
const MESSAGES: usize = 8;

/// What goes to the process that asked for a link.
pub type Descriptors = [Arc<OwnedFd>; 2];

/// A hint, and the process whose memory it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// The sender, as the kernel names it.
    pub pid: Pid,
    /// What it said.
    pub hint: Hint,
}

struct Link {
    user: u32,
    memory: Shared,
    hints: OwnedFd,
    /// What was published last.
    extents: Vec<Extent>,
    published: bool,
}

/// What was not taken in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Messages and hints that are none.
    pub malformed: u64,
    /// Hints that senders had no room for, by their own word.
    pub dropped: u64,
}

/// All links.
#[derive(Default)]
pub struct Links {
    links: BTreeMap<Pid, Link>,
    refused: Refused,
}

impl Links {
    /// A link for a process of a job; one that it had before ends.
    ///
    /// # Errors
    /// There are too many, in words, or the system has no memory or descriptors for one.
    pub fn open(&mut self, pid: Pid, user: u32) -> io::Result<Descriptors> {
        self.close(pid);
        let own = self.links.values().filter(|link| link.user == user).count();
        if self.links.len() >= MAX_LINKS || user != 0 && own >= OF_A_USER {
            let all = self.links.len();
            return Err(io::Error::other(format!("{all} processes are linked, {own} of user {user}: no more are")));
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        setsockopt(&ours, PassCred, &true)?;
        let (memory, reader) = Shared::new(words(CAPACITY))?;
        self.links.insert(pid, Link { user, memory, hints: ours, extents: Vec::new(), published: false });
        Ok([Arc::new(reader), Arc::new(theirs)])
    }

    /// Ends the link of a process, where it has one.
    pub fn close(&mut self, pid: Pid) {
        self.links.remove(&pid);
    }

    /// The processes that have one.
    pub fn pids(&self) -> impl Iterator<Item = Pid> + '_ {
        self.links.keys().copied()
    }

    /// Tells a process where its memory is, where that has changed. `now_ns` is CLOCK_MONOTONIC.
    pub fn publish(&mut self, pid: Pid, residents: &[Resident], host: &Host, now_ns: u64) {
        let Some(link) = self.links.get_mut(&pid) else { return };
        let extents = extents(residents, CAPACITY, &|node| tier(host, node));
        if link.published && extents == link.extents {
            return;
        }
        let written = Writer::new(link.memory.words()).and_then(|mut writer| writer.publish(&extents, now_ns));
        match written {
            Ok(()) => (link.extents, link.published) = (extents, true),
            // Memory and extents have the same capacity.
            Err(error) => tracing::error!(%pid, %error, "the placement is not published"),
        }
    }

    /// Gives what came since the last time to `heed`, in the order of each link; whether more may wait.
    pub fn hear(&mut self, mut heed: impl FnMut(Said)) -> bool {
        let mut message = vec![0; hints::MAX_BYTES + 1];
        let mut more = false;
        for link in self.links.values() {
            for turn in 1..=MESSAGES {
                more |= turn == MESSAGES;
                match receive(&link.hints, &mut message) {
                    Ok(Some((length, Some(pid)))) => match hints::decode(&message[..length]) {
                        Ok(decoded) => {
                            self.refused.malformed += u64::from(decoded.malformed);
                            self.refused.dropped += u64::from(decoded.dropped);
                            decoded.hints.into_iter().for_each(|hint| heed(Said { pid, hint }));
                        }
                        Err(error) => {
                            tracing::debug!(%pid, %error, "a message is none");
                            self.refused.malformed += 1;
                        }
                    },
                    Ok(Some((_, None))) => self.refused.malformed += 1,
                    Ok(None) => break,
                    Err(error) => {
                        tracing::debug!(%error, "hints cannot be read");
                        break;
                    }
                }
            }
        }
        more
    }

    /// What was not taken in so far.
    pub fn refused(&self) -> Refused {
        self.refused
    }
}

/// The length of the next message, and who sent it; `None` where nothing waits. There is no room for descriptors: where some
/// come with a message the kernel closes them, and does not say who sent it.
fn receive(socket: &OwnedFd, message: &mut [u8]) -> nix::Result<Option<(usize, Option<Pid>)>> {
    let mut credentials = cmsg_space!(UnixCredentials);
    let mut parts = [IoSliceMut::new(message)];
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut credentials), MsgFlags::MSG_DONTWAIT);
    let received = match received {
        Err(Errno::EAGAIN | Errno::ECONNRESET) => return Ok(None),
        other => other?,
    };
    let pid = received.cmsgs().ok().and_then(|mut messages| {
        messages.find_map(|message| match message {
            ControlMessageOwned::ScmCredentials(sender) => u32::try_from(sender.pid()).ok().filter(|pid| *pid != 0),
            _ => None,
        })
    });
    // An empty datagram looks like the end; but the sender of one is named.
    Ok((received.bytes > 0 || pid.is_some()).then_some((received.bytes, pid.map(Pid))))
}

/// Kind, bandwidth and latency of a node, where it is memory that a process is told of.
fn tier(host: &Host, node: NodeId) -> Option<(Kind, u32, u32)> {
    let found = host.nodes.get(&node)?;
    let kind = match found.kind {
        NodeKind::Dram => Kind::Dram,
        NodeKind::Cxl | NodeKind::NoCpu => Kind::Cxl,
        NodeKind::Gpu | NodeKind::Empty => return None,
    };
    let access = found.access.as_ref();
    let known = |value: Option<u32>| value.unwrap_or(0);
    let rate = known(access.and_then(|access| access.read_mib_per_sec));
    Some((kind, rate, known(access.and_then(|access| access.read_latency_ns))))
}

/// The extents of a process: neighbouring blocks that lie, for the most part, on one node. Of more than `most` the largest.
fn extents(residents: &[Resident], most: usize, tier: &dyn Fn(NodeId) -> Option<(Kind, u32, u32)>) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    for resident in residents.iter().filter(|resident| resident.range.bytes() > 0) {
        let node = resident.on.iter().max_by_key(|(_, bytes)| **bytes).map(|(node, _)| *node);
        let Some((node, (kind, read_mib_per_sec, latency_ns))) = node.and_then(|node| Some((node, tier(node)?))) else {
            continue;
        };
        match extents.last_mut() {
            Some(last) if last.end == resident.range.start && last.node == node.0 => last.end = resident.range.end,
            _ => extents.push(Extent {
                start: resident.range.start,
                end: resident.range.end,
                node: node.0,
                kind,
                read_mib_per_sec,
                latency_ns,
            }),
        }
    }
    if extents.len() > most {
        extents.sort_by_key(|extent| std::cmp::Reverse(extent.end - extent.start));
        extents.truncate(most);
        extents.sort_by_key(|extent| extent.start);
    }
    extents
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
