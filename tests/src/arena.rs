//! Memory of a known page size, with contents that a move must not change.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use tensortier::units::{BLOCK, PAGE, Range};

/// Which pages an arena is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// Base pages only.
    Base,
    /// Transparent huge pages, as far as the kernel has them.
    Huge,
}

/// Anonymous memory, aligned to whole blocks.
#[derive(Debug)]
pub struct Arena {
    mapping: *mut libc::c_void,
    mapped: usize,
    range: Range,
}

// SAFETY: the mapping belongs to the arena alone and is written through `&mut self` only.
unsafe impl Send for Arena {}
// SAFETY: as above; `&self` only reads.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes` (whole blocks), not yet populated.
    ///
    /// # Errors
    /// There is no address space, or the kernel has no transparent huge pages where they are asked for.
    pub fn new(bytes: u64, pages: PageSize) -> io::Result<Self> {
        assert_eq!(bytes % BLOCK, 0, "an arena has whole blocks");
        let mapped = (bytes + BLOCK) as usize;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapping =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags | libc::MAP_NORESERVE, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = (mapping as u64).next_multiple_of(BLOCK);
        let arena = Self { mapping, mapped, range: Range::new(start, start + bytes) };
        let advice = if pages == PageSize::Huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: advice on the mapping just made.
        match unsafe { libc::madvise(mapping, mapped, advice) } {
            0 => Ok(arena),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its addresses.
    pub fn range(&self) -> Range {
        self.range
    }

    /// Writes each page of `range` with what [`Self::intact`] expects there.
    pub fn fill(&mut self, range: Range) {
        for address in self.words(range) {
            // SAFETY: `words` yields aligned addresses inside the mapping.
            unsafe { (address as *mut u64).write_volatile(address ^ 0x5eed) };
        }
    }

    /// Whether each page of `range` still holds what [`Self::fill`] wrote.
    pub fn intact(&self, range: Range) -> bool {
        // SAFETY: as in `fill`.
        self.words(range).all(|address| unsafe { (address as *const u64).read_volatile() } == address ^ 0x5eed)
    }

    /// Pins a range of the arena: see [`pin`].
    ///
    /// # Errors
    /// As [`pin`].
    pub fn pin(&self, range: Range) -> io::Result<Pin> {
        assert_eq!(self.range.intersect(&range), Some(range), "outside the arena");
        pin(range)
    }

    /// Eight words of each page.
    fn words(&self, range: Range) -> impl Iterator<Item = u64> + use<> {
        assert_eq!(self.range.intersect(&range), Some(range), "outside the arena");
        (range.start / PAGE * PAGE..range.end).step_by(PAGE as usize / 8)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is the arena's own.
        unsafe { libc::munmap(self.mapping, self.mapped) };
    }
}

/// Memory that is pinned, until this is dropped.
#[derive(Debug)]
pub struct Pin {
    ring: OwnedFd,
}

// include/uapi/linux/io_uring.h
const IORING_REGISTER_BUFFERS: libc::c_uint = 0;
const IORING_UNREGISTER_BUFFERS: libc::c_uint = 1;

impl Drop for Pin {
    fn drop(&mut self) {
        // Closing the ring alone lets go of the pages at some later time, in the kernel's own.
        // SAFETY: the descriptor is this ring's; unregistering takes no argument.
        unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.ring.as_raw_fd(),
                IORING_UNREGISTER_BUFFERS,
                std::ptr::null::<libc::c_void>(),
                0,
            )
        };
    }
}

/// Pins memory of this process as a device driver does (long-term), by registering it as an io_uring buffer. Kernel 5.1 or
/// newer.
///
/// # Errors
/// io_uring is switched off, the range is not mapped, or the memory may not be locked.
pub fn pin(range: Range) -> io::Result<Pin> {
    // include/uapi/linux/io_uring.h: struct io_uring_params has 120 bytes; all zero asks for nothing special.
    let mut parameters = [0u64; 15];
    // SAFETY: the kernel reads and writes the 120 bytes; one entry is the smallest ring.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    if ring < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and is nobody else's.
    let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
    let buffer = libc::iovec { iov_base: range.start as *mut libc::c_void, iov_len: range.bytes() as usize };
    // SAFETY: one iovec over memory of this process; registering reads and writes none of it.
    let result = unsafe {
        libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), IORING_REGISTER_BUFFERS, &raw const buffer, 1)
    };
    if result == 0 { Ok(Pin { ring }) } else { Err(io::Error::last_os_error()) }
}
