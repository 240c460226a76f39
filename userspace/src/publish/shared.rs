//! The memory of a published placement: written here, read elsewhere.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    num::NonZeroUsize,
    os::fd::{AsRawFd, OwnedFd},
    ptr::NonNull,
    slice,
    sync::atomic::AtomicU64,
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, ProtFlags, mmap, munmap},
    },
    unistd::ftruncate,
};

/// Words that this process writes and others read. The mapping ends with it; theirs stays as long as they want.
pub(super) struct Shared {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: it owns its mapping, which no thread is bound to.
unsafe impl Send for Shared {}

impl Shared {
    /// `count` words, zeroed, and a descriptor that reads them and nothing else: whoever has it can neither write nor cut
    /// them, under whatever name it opens them again.
    pub fn new(count: usize) -> io::Result<(Self, OwnedFd)> {
        let bytes = count * size_of::<AtomicU64>();
        let file = memfd_create(c"tensortier-placement", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&file, bytes as i64)?;
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a mapping of its own at an address of the kernel's choice; nothing there is replaced.
        let start = unsafe { mmap(None, length, rights, MapFlags::MAP_SHARED, &file, 0)? };
        let shared = Self { start: start.cast(), count };
        // After the mapping: none that can write comes later.
        let seals =
            SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let reader = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok((shared, reader.into()))
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `count` words of a mapping that lives as long as `self`; they begin at a page and are atomic, so that
        // what other processes see of them is no data race.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, whole; `words` borrows from `self`, so nothing refers to it any more.
        let unmapped = unsafe { munmap(self.start.cast(), self.count * size_of::<AtomicU64>()) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "a placement stays mapped");
        }
    }
}
