//! Reads the mappings of processes: by the BPF iterator where the kernel takes it, else from /proc/PID/maps.
//!
//! The iterator tells kinds by what the kernel has rather than by names (a file on any tmpfs is shared memory), and
//! formats no text. It needs Linux 5.12 with BTF; the text is there on every kernel, and stands in where a mapping grew
//! while the iterator read.

use std::{
    mem,
    thread::{self, JoinHandle},
};

use tensortier_core::{VmaIter, VmaKind, flags};

use super::vma::{self, Kind, Vma, VmaError};
use crate::units::{Pid, Range};

/// Pages without `struct page` behind them: the vvar page, device memory.
const NO_PAGES: u64 = flags::PFNMAP | flags::MIXEDMAP | flags::IO;
/// VM_DONTEXPAND (linux/mm.h): mappings that are not the process's own memory, the vdso among them.
const DONT_EXPAND: u64 = 0x4_0000;

/// The BPF iterator. The kernel's type information is large, and nothing needs the iterator before the first job: it is
/// loaded on the side.
#[derive(Default)]
enum Iterator {
    Loading(JoinHandle<Option<VmaIter>>),
    Loaded(Box<VmaIter>),
    #[default]
    Missing,
}

impl Iterator {
    /// The iterator, once it is loaded; `None` where there is none.
    fn get(&mut self) -> Option<&mut VmaIter> {
        if matches!(self, Self::Loading(_))
            && let Self::Loading(loading) = mem::take(self)
            && let Ok(Some(loaded)) = loading.join()
        {
            *self = Self::Loaded(Box::new(loaded));
        }
        match self {
            Self::Loaded(iterator) => Some(iterator),
            _ => None,
        }
    }
}

/// The reader, loaded once.
#[derive(Default)]
pub struct Mappings {
    iterator: Iterator,
    buffer: Vec<tensortier_core::Vma>,
    /// Reads that went to the text because the iterator failed; 0 where there is no iterator at all.
    pub fallbacks: u64,
}

impl std::fmt::Debug for Mappings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mappings").field("fallbacks", &self.fallbacks).finish_non_exhaustive()
    }
}

impl Mappings {
    /// Begins to load the iterator, which the kernel may not take.
    pub fn new() -> Self {
        let load = || {
            let refused = |error| tracing::info!(%error, "mappings are read from /proc/PID/maps");
            VmaIter::new().map_err(refused).ok()
        };
        let loading = thread::Builder::new().name("tt-iterator".into()).spawn(load);
        Self { iterator: loading.map_or(Iterator::Missing, Iterator::Loading), ..Self::default() }
    }

    /// Whether the iterator is in use.
    pub fn by_iterator(&mut self) -> bool {
        self.iterator.get().is_some()
    }

    /// The mappings of a process, by address.
    ///
    /// # Errors
    /// The process has ended or may not be looked at.
    pub fn of(&mut self, pid: Pid) -> Result<Vec<Vma>, VmaError> {
        if let Some(iterator) = self.iterator.get() {
            self.buffer.clear();
            match iterator.read(pid.0, &mut self.buffer) {
                // None at all: it has ended, or its id is another one in the kernel's eyes (a pid namespace).
                Ok(()) if !self.buffer.is_empty() => return Ok(self.buffer.iter().map(told).collect()),
                Ok(()) => {}
                Err(error) => {
                    self.fallbacks += 1;
                    tracing::debug!(%pid, %error, "mappings are read as text this time");
                }
            }
        }
        vma::of_process(pid)
    }
}

fn told(vma: &tensortier_core::Vma) -> Vma {
    let kind = match vma.kind {
        VmaKind::Hugetlb => Kind::Hugetlb,
        _ if vma.flags & NO_PAGES != 0 => Kind::Special,
        VmaKind::Anon if vma.has(DONT_EXPAND) => Kind::Special,
        VmaKind::Anon => Kind::Anon,
        VmaKind::Shmem => Kind::Shmem,
        // A device's file has no device number of a file system that could be moved between nodes; anonymous inodes
        // (io_uring, perf) are the same to us: their pages are the driver's.
        VmaKind::File if vma.has(DONT_EXPAND) => Kind::Special,
        VmaKind::File => Kind::File,
    };
    Vma {
        range: Range::new(vma.start, vma.end),
        kind,
        writable: vma.has(flags::WRITE),
        executable: vma.has(flags::EXEC),
        shared: vma.has(flags::SHARED),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        io::Read,
        process::{Command, Stdio},
    };

    use super::*;

    fn seen(kind: VmaKind, flags: u64) -> Kind {
        told(&tensortier_core::Vma { start: 0x1000, end: 0x2000, flags, kind, dev: (0, 0), inode: 0 }).kind
    }

    #[test]
    fn what_has_no_pages_of_its_own_is_special() {
        assert_eq!(seen(VmaKind::Anon, flags::READ | flags::WRITE), Kind::Anon);
        assert_eq!(seen(VmaKind::Anon, flags::READ | flags::PFNMAP), Kind::Special);
        assert_eq!(seen(VmaKind::Anon, flags::READ | flags::EXEC | DONT_EXPAND), Kind::Special);
        assert_eq!(seen(VmaKind::File, flags::READ | flags::IO), Kind::Special);
        assert_eq!(seen(VmaKind::File, flags::READ), Kind::File);
        assert_eq!(seen(VmaKind::Shmem, flags::SHARED), Kind::Shmem);
        assert_eq!(seen(VmaKind::Hugetlb, DONT_EXPAND), Kind::Hugetlb);
    }

    /// Run as root it compares the iterator with the text, elsewhere the text with itself; both must find the same
    /// movable memory.
    #[test]
    fn both_ways_find_the_same_movable_memory() {
        let me = Pid(std::process::id());
        let movable = |vmas: Vec<Vma>| -> Vec<(u64, u64, Kind)> {
            let large = vmas.into_iter().filter(|vma| vma.kind.movable(false) && vma.range.bytes() >= 32 << 20);
            large.map(|vma| (vma.range.start, vma.range.end, vma.kind)).collect()
        };
        let arena = vec![1u8; 64 << 20];
        let mut mappings = Mappings::new();
        let fast = movable(mappings.of(me).unwrap());
        let text = movable(vma::of_process(me).unwrap());
        let at = &raw const arena[0] as u64;
        assert!(fast.iter().any(|(start, end, _)| (*start..*end).contains(&at)), "{fast:x?}");
        // Other tests of this process map memory meanwhile: only what holds the arena is compared.
        let home = |all: &[(u64, u64, Kind)]| all.iter().find(|(start, end, _)| (*start..*end).contains(&at)).copied();
        assert_eq!(home(&fast), home(&text));
        assert_eq!(mappings.fallbacks, 0);
    }

    #[test]
    fn more_mappings_than_one_read_holds_are_all_there_once() {
        let script =
            "import mmap, sys; m = [mmap.mmap(-1, 4096) for _ in range(3000)]; print(flush=True); sys.stdin.read()";
        let mut child =
            Command::new("python3").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = Pid(child.id());
        let ranges = |vmas: Vec<Vma>| vmas.into_iter().map(|vma| vma.range).collect::<Vec<_>>();
        let mut mappings = Mappings::new();
        let fast = ranges(mappings.of(pid).unwrap());
        // The text has the vsyscall page too, which is no mapping of the process.
        let text: Vec<_> = ranges(vma::of_process(pid).unwrap()).into_iter().filter(|r| r.start < 1 << 63).collect();
        drop(child.stdin.take());
        child.wait().unwrap();
        let fast: Vec<_> = fast.into_iter().filter(|r| r.start < 1 << 63).collect();
        assert!(fast.len() > 3000 && fast == text, "{} by the iterator, {} in the text", fast.len(), text.len());
        assert_eq!(mappings.fallbacks, 0);
    }
}
