//! Copies between host memory and GPUs, and host memory pinned for them: by probes on the functions of the CUDA libraries
//! that jobs have mapped. Nothing of the job is changed or preloaded.
//!
//! A library is found by looking at a process's mappings: when the process begins or runs another program, and then at
//! growing intervals, since interpreters load it late. From then on the probes stand in the library's file, so that every
//! process of a job that maps it is seen from its first call. Copies that are made before the first look go unseen.
//!
//! What is not seen: copies of two and three dimensions, of batches and of graphs, managed memory, and what a runtime
//! library that is linked into the program asks of the driver by ways of its own.
//!
//! Minimum kernel: 5.15 (cookies of uprobes), with `CONFIG_UPROBE_EVENTS`.

mod library;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    time::{Duration, Instant},
};

use aya::{
    Ebpf,
    maps::{Map, MapData, RingBuf},
    programs::{
        UProbe,
        uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLinkId, UProbeScope},
    },
};
use tensortier_abi::{
    gpu::{CALL_PROGRAM, EVENTS_BYTES, GpuEvent, RETURN_PROGRAM, call, kind},
    maps,
};

use self::library::{FileId, Function, Library, mapped};
use super::{
    bpf_sys,
    ebpf::EbpfError,
    layout::chain,
    lost::{Clock, LossCount},
};
use crate::units::{Pid, Range};

/// A process is looked at again after this, then after twice as long, and so on.
const SOON: Duration = Duration::from_millis(500);
/// The longest time between two looks.
const SELDOM: Duration = Duration::from_secs(64);
/// Processes that are looked at in one call so late, beside an eighth of all: a call must not take long.
const LATE_LOOKS: usize = 2;
/// Files with probes at a time. Setting them takes the kernel some milliseconds a function.
const MAX_FILES: usize = 32;
/// A library that no job has mapped for so long loses its probes.
const UNUSED: Duration = Duration::from_secs(600);

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Direction {
    /// From host memory to a GPU.
    ToDevice = 1,
    /// From a GPU to host memory.
    ToHost = 2,
}

/// What a process asked of a CUDA library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuCallKind {
    /// A copy.
    Copy {
        /// Which way.
        direction: Direction,
        /// The host's end of it.
        host: Range,
    },
    /// A copy of which only the addresses tell what is on the host.
    Either {
        /// The source.
        from: Range,
        /// The destination.
        to: Range,
    },
    /// Host memory was pinned.
    Pinned(Range),
    /// Host memory that begins there is pinned no more.
    Released(u64),
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuCall {
    /// The process.
    pub pid: Pid,
    /// What it asked for.
    pub kind: GpuCallKind,
    /// When.
    pub at: Instant,
}

/// The probes and what they told.
pub struct GpuCalls {
    events: RingBuf<MapData>,
    lost: LossCount,
    refused: Option<String>,
    processes: BTreeMap<Pid, Looked>,
    files: BTreeMap<FileId, Probed>,
}

/// A process of a job.
struct Looked {
    next: Instant,
    spacing: Duration,
    libraries: BTreeSet<FileId>,
}

/// A library's file.
struct Probed {
    calls: Vec<UProbeLinkId>,
    returns: Vec<UProbeLinkId>,
    used: Instant,
}

impl GpuCalls {
    pub(super) fn new(events: Map, lost: LossCount, ebpf: &mut Ebpf) -> Result<Self, EbpfError> {
        let loaded =
            [CALL_PROGRAM, RETURN_PROGRAM].iter().try_for_each(|name| program(ebpf, name)?.load().map_err(chain));
        Ok(Self {
            events: RingBuf::try_from(events).map_err(|error| EbpfError::map(maps::GPU_EVENTS, error))?,
            lost,
            refused: loaded.err(),
            processes: BTreeMap::new(),
            files: BTreeMap::new(),
        })
    }

    /// Why copies are not seen, or not all of them; `None` where nothing is known to stand in the way.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Whether a process had a CUDA library mapped when it was last looked at.
    pub fn is_used_by(&self, pid: Pid) -> bool {
        self.processes.get(&pid).is_some_and(|looked| !looked.libraries.is_empty())
    }

    /// Looks at the processes that are due, sets probes in the libraries that they have, and takes those away that nobody
    /// has had for long.
    pub(super) fn look(&mut self, ebpf: &mut Ebpf, tracked: &BTreeSet<Pid>, now: Instant) {
        self.processes.retain(|pid, _| tracked.contains(pid));
        let mut late = LATE_LOOKS + tracked.len() / 8;
        for pid in tracked {
            let looked = Looked { next: now, spacing: SOON, libraries: BTreeSet::new() };
            let looked = self.processes.entry(*pid).or_insert(looked);
            if now < looked.next || (looked.spacing == SELDOM && late == 0) {
                continue;
            }
            late -= usize::from(looked.spacing == SELDOM);
            looked.next = now + looked.spacing;
            looked.spacing = (looked.spacing * 2).min(SELDOM);
            // It may have ended. Names are bytes, not text.
            let Ok(maps) = fs::read(format!("/proc/{pid}/maps")) else { continue };
            let libraries = mapped(*pid, &String::from_utf8_lossy(&maps));
            looked.libraries = libraries.iter().map(|library| library.id.clone()).collect();
            for library in libraries {
                self.probe(ebpf, &library, now);
            }
        }
        for looked in self.processes.values() {
            for id in &looked.libraries {
                if let Some(file) = self.files.get_mut(id) {
                    file.used = now;
                }
            }
        }
        let unused: Vec<FileId> = self.files.iter().filter(|(_, file)| now - file.used > UNUSED).map(id).collect();
        unused.iter().for_each(|id| self.release(ebpf, id));
    }

    /// The process runs another program: it is looked at anew.
    pub fn restart(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    fn probe(&mut self, ebpf: &mut Ebpf, library: &Library, now: Instant) {
        if self.files.contains_key(&library.id) {
            return;
        }
        if self.files.len() >= MAX_FILES {
            let oldest =
                self.files.iter().filter(|(_, file)| file.used < now).min_by_key(|(_, file)| file.used).map(id);
            let Some(oldest) = oldest else {
                return self.refuse(format!("{}: jobs have more than {MAX_FILES} such libraries", library.name));
            };
            self.release(ebpf, &oldest);
        }
        let functions = match library.functions() {
            Ok(functions) => functions,
            // The process has ended, or unmapped it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                self.refuse(format!("{}: {error}", library.name));
                Vec::new()
            }
        };
        let mut probed = Probed { calls: Vec::new(), returns: Vec::new(), used: now };
        let begin = Instant::now();
        for function in &functions {
            if let Err(reason) = probed.set(ebpf, library, function) {
                self.refuse(format!("{} of {}: {reason}", function.name, library.name));
            }
        }
        let (pid, set, took) = (library.path.display(), probed.calls.len(), begin.elapsed());
        tracing::info!(library = library.name, %pid, set, ?took, "copies of this library are seen");
        self.files.insert(library.id.clone(), probed);
    }

    fn release(&mut self, ebpf: &mut Ebpf, id: &FileId) {
        let Some(Probed { calls, returns, .. }) = self.files.remove(id) else { return };
        for (name, links) in [(CALL_PROGRAM, calls), (RETURN_PROGRAM, returns)] {
            let Ok(program) = program(ebpf, name) else { continue };
            for link in links {
                if let Err(error) = program.detach(link) {
                    tracing::debug!(%error, "a probe was gone already");
                }
            }
        }
    }

    fn refuse(&mut self, reason: String) {
        tracing::warn!(reason, "copies to and from GPUs are not all seen");
        self.refused.get_or_insert(reason);
    }

    /// Takes the calls since the last drain, in order. At most what the ring buffer held at the start.
    ///
    /// # Errors
    /// None at present; a record that is too short is refused.
    pub fn drain(&mut self) -> Result<Vec<GpuCall>, EbpfError> {
        let clock = Clock::read();
        let mut calls = Vec::new();
        while calls.len() < Self::capacity()
            && let Some(item) = self.events.next()
        {
            let event: GpuEvent =
                bpf_sys::read_record(&item).ok_or_else(|| EbpfError::map(maps::GPU_EVENTS, "a short record"))?;
            calls.extend(told(&event).map(|kind| GpuCall {
                pid: Pid(event.tgid),
                kind,
                at: clock.instant(event.at_ns),
            }));
        }
        Ok(calls)
    }

    /// Calls that the ring buffer holds.
    pub fn capacity() -> usize {
        EVENTS_BYTES as usize / size_of::<GpuEvent>()
    }

    /// Calls lost since load because the ring buffer was full.
    pub fn lost(&self) -> u64 {
        self.lost.total()
    }
}

impl Probed {
    fn set(&mut self, ebpf: &mut Ebpf, library: &Library, function: &Function) -> Result<(), String> {
        let Function { offset, form, .. } = *function;
        let mut attach = |name, cookie| {
            let point = UProbeAttachPoint { location: UProbeAttachLocation::AbsoluteOffset(offset), cookie };
            program(ebpf, name)?.attach(point, &library.path, UProbeScope::AllProcesses).map_err(chain)
        };
        self.calls.push(attach(CALL_PROGRAM, Some(form))?);
        if matches!(form, call::REGISTER | call::ALLOCATE) {
            self.returns.push(attach(RETURN_PROGRAM, None)?);
        }
        Ok(())
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut UProbe, String> {
    ebpf.program_mut(name).ok_or("not in the object")?.try_into().map_err(chain)
}

fn id((id, _): (&FileId, &Probed)) -> FileId {
    id.clone()
}

/// What an event says; nothing for one of another kind, and for a copy of no bytes.
fn told(event: &GpuEvent) -> Option<GpuCallKind> {
    let range = |start: u64| Range::new(start, start.saturating_add(event.bytes));
    let host = range(event.host);
    let some = host.bytes() > 0;
    match event.kind {
        kind::TO_DEVICE if some => Some(GpuCallKind::Copy { direction: Direction::ToDevice, host }),
        kind::TO_HOST if some => Some(GpuCallKind::Copy { direction: Direction::ToHost, host }),
        kind::EITHER if some => Some(GpuCallKind::Either { from: host, to: range(event.other) }),
        kind::PINNED if some => Some(GpuCallKind::Pinned(host)),
        kind::RELEASED => Some(GpuCallKind::Released(event.host)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_say_nothing_are_left_out_and_ends_beyond_all_addresses_are_cut() {
        let event = |kind, host, bytes| GpuEvent { kind, host, bytes, other: 64, ..GpuEvent::default() };
        let (direction, end) = (Direction::ToHost, Range { start: u64::MAX - 1, end: u64::MAX });
        assert_eq!(told(&event(kind::TO_HOST, u64::MAX - 1, 9)), Some(GpuCallKind::Copy { direction, host: end }));
        let (from, to) = (Range::new(8, 12), Range::new(64, 68));
        assert_eq!(told(&event(kind::EITHER, 8, 4)), Some(GpuCallKind::Either { from, to }));
        assert_eq!(told(&event(kind::RELEASED, 8, 0)), Some(GpuCallKind::Released(8)));
        for nothing in [event(kind::TO_DEVICE, 8, 0), event(kind::PINNED, u64::MAX, 5), event(99, 8, 8)] {
            assert_eq!(told(&nothing), None);
        }
    }
}
