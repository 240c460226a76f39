//! C CO-RE programs of tensortier and their libbpf skeleton: what follows kernel pointers, which Rust programs cannot
//! relocate.
//!
//! [`VmaIter`] reads all of a process's VMAs at once. Minimum kernel: 5.12 with BTF (`iter/task_vma`); from 6.1 on it
//! costs nothing for the other tasks of the machine. [`AccessedPages`] reads the accessed bits of page tables; 5.17, and
//! x86-64. [`tracepoint_arguments`] reads the kernel's type information.

mod btf;
pub use btf::tracepoint_arguments;

#[cfg(not(without_bpf))]
mod iter;
#[cfg(not(without_bpf))]
mod pages;
#[cfg(not(without_bpf))]
pub use iter::VmaIter;
#[cfg(not(without_bpf))]
pub use pages::AccessedPages;

#[cfg(without_bpf)]
mod stub;
#[cfg(without_bpf)]
pub use stub::{AccessedPages, VmaIter};

/// A bit for each of a block's 512 pages, the first page's lowest.
pub type PageBits = [u64; 8];

/// Bits of [`Vma::flags`], the kernel's own (`VM_*` of linux/mm.h).
pub mod flags {
    /// May be read.
    pub const READ: u64 = 0x1;
    /// May be written.
    pub const WRITE: u64 = 0x2;
    /// May be executed.
    pub const EXEC: u64 = 0x4;
    /// Shared mapping.
    pub const SHARED: u64 = 0x8;
    /// Page frames without `struct page` behind them: device memory.
    pub const PFNMAP: u64 = 0x400;
    /// `mlock`ed.
    pub const LOCKED: u64 = 0x2000;
    /// Device I/O.
    pub const IO: u64 = 0x4000;
    /// Not copied to a child.
    pub const DONTCOPY: u64 = 0x2_0000;
    /// hugetlbfs pages.
    pub const HUGETLB: u64 = 0x40_0000;
    /// Pages with and without `struct page` behind them.
    pub const MIXEDMAP: u64 = 0x1000_0000;
}

/// What stands behind a VMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VmaKind {
    /// Private anonymous memory, stacks and heap among it.
    Anon,
    /// Shared memory of the kernel's tmpfs: shared anonymous mappings, memfd, POSIX and SysV segments, files on a tmpfs.
    Shmem,
    /// A file, or a device's.
    File,
    /// hugetlbfs.
    Hugetlb,
}

/// One VMA of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma {
    /// First address.
    pub start: u64,
    /// First address past it.
    pub end: u64,
    /// Bits of [`flags`]; others of the kernel's may be set.
    pub flags: u64,
    /// What stands behind it.
    pub kind: VmaKind,
    /// Major and minor number of the file's file system; 0 without a file. Of a file on overlayfs this is the one whose
    /// pages are mapped, below the overlay, where `/proc/PID/maps` names the overlay's.
    pub dev: (u32, u32),
    /// Inode of the file; 0 without one.
    pub inode: u64,
}

impl Vma {
    /// Whether all of these [`flags`] are set.
    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }
}

/// Why VMAs or page tables could not be read this way; `/proc/PID/maps` has VMAs too.
#[derive(Debug)]
pub enum VmaError {
    /// The binary has no programs.
    BuiltWithout(&'static str),
    /// The kernel does not take the program: no rights, no BTF, or too old.
    Load(libbpf_rs::Error),
    /// The kernel has no such symbol, does not keep those of data (`CONFIG_KALLSYMS_ALL`), or gives no addresses away
    /// (`kernel.kptr_restrict`).
    NoSymbol(&'static str),
    /// The iterator of a process could not be opened or read.
    Read {
        /// The process.
        tgid: u32,
        /// What the kernel says.
        source: std::io::Error,
    },
}

impl std::fmt::Display for VmaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BuiltWithout(reason) => {
                write!(f, "built without eBPF ({reason}); run scripts/setup and rebuild")
            }
            Self::Load(source) => {
                write!(
                    f,
                    "the kernel does not take the iterator: {source}; it needs root, BTF and Linux 5.12 (5.17 for pages)"
                )
            }
            Self::NoSymbol(name) => write!(
                f,
                "the kernel does not say where its {name} is: no x86-64, no CONFIG_KALLSYMS_ALL, or kernel.kptr_restrict = 2"
            ),
            Self::Read { tgid, source } => write!(f, "mappings of process {tgid}: {source}"),
        }
    }
}

impl std::error::Error for VmaError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::BuiltWithout(_) | Self::NoSymbol(_) => None,
            Self::Load(source) => Some(source),
            Self::Read { source, .. } => Some(source),
        }
    }
}
