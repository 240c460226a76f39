//! Mapped memory and the system calls on it. All `unsafe` of the pool is here.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::AsRawFd,
    ptr::{self, NonNull},
};

use tensortier_model::Bytes;

use super::size::PAGE;

/// Pages asked about in one `move_pages` call.
const QUERY: usize = 16 << 10;
/// Words of a node mask: the kernel's largest `MAX_NUMNODES` is 1024.
const MASK: usize = 16;

/// Memory of this process, unmapped when it is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; access goes through & and &mut as for a Vec.
unsafe impl Send for Mapping {}
// SAFETY: as above; & gives reads only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Anonymous memory of `bytes`, not populated, beginning at a multiple of `align` (a power of two).
    ///
    /// # Errors
    /// `mmap`'s.
    pub fn anonymous(bytes: Bytes, align: Bytes) -> io::Result<Self> {
        let (bytes, align) = (usize_of(bytes.next_multiple_of(PAGE))?, usize_of(align.max(PAGE))?);
        let padded = bytes.checked_add(align - PAGE as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), padded, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let head = (base as usize).next_multiple_of(align) - base as usize;
        let tail = padded - head - bytes;
        // SAFETY: head and tail are parts of the mapping just made, page aligned, and nobody has their addresses.
        unsafe {
            if head > 0 {
                libc::munmap(base, head);
            }
            if tail > 0 {
                libc::munmap(base.byte_add(head + bytes), tail);
            }
        }
        // SAFETY: within the mapping, which does not begin at 0.
        let base = unsafe { NonNull::new_unchecked(base.byte_add(head).cast()) };
        Ok(Self { base, bytes })
    }

    /// Puts `bytes` of `file` from `from` on in place of those at `offset`.
    ///
    /// # Errors
    /// `mmap`'s. The range is left without memory then; the mapping is of no use.
    ///
    /// # Panics
    /// If the range is not within the mapping.
    pub fn overlay(&mut self, offset: Bytes, bytes: Bytes, file: &File, from: Bytes) -> io::Result<()> {
        let (at, length) = self.range(offset, bytes);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let from = libc::off_t::try_from(from).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: replaces pages of this mapping only (`range` checked), which &mut says nobody looks at.
        let base =
            unsafe { libc::mmap(at.cast(), length, libc::PROT_READ | libc::PROT_WRITE, flags, file.as_raw_fd(), from) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Prefers `node` for pages of the range that are not there yet (`MPOL_PREFERRED`).
    ///
    /// # Errors
    /// `mbind`'s; EPERM is what a container's seccomp profile answers.
    ///
    /// # Panics
    /// If the range is not within the mapping.
    pub fn prefer(&self, offset: Bytes, bytes: Bytes, node: u32) -> io::Result<()> {
        let (at, length) = self.range(offset, bytes);
        let mut mask = [0_u64; MASK];
        let word = mask.get_mut(node as usize / 64).ok_or(io::ErrorKind::InvalidInput)?;
        *word = 1 << (node % 64);
        // SAFETY: sets a policy on pages of this mapping; the kernel reads MASK words of the mask (it takes one bit
        // less than it is told).
        let result = unsafe {
            libc::syscall(libc::SYS_mbind, at, length, libc::MPOL_PREFERRED, mask.as_ptr(), MASK * 64 + 1, 0_u32)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Makes every page be there. On Linux 5.14 and later the kernel says when it cannot (`MADV_POPULATE_WRITE`).
    ///
    /// # Errors
    /// Out of memory; a poisoned page.
    pub fn populate(&mut self) -> io::Result<()> {
        let (at, length) = self.range(0, self.bytes());
        // SAFETY: writes no byte that the process can see change.
        if unsafe { libc::madvise(at.cast(), length, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        for page in (0..length).step_by(PAGE as usize) {
            // SAFETY: within the mapping; volatile, so that the store of what is there already is not left out.
            unsafe {
                let byte = at.add(page);
                ptr::write_volatile(byte, ptr::read_volatile(byte));
            }
        }
        Ok(())
    }

    /// Asks for huge pages. Advice: a kernel without them gives small ones.
    pub fn prefer_huge(&self) {
        let (at, length) = self.range(0, self.bytes());
        // SAFETY: advice on pages of this mapping.
        unsafe { libc::madvise(at.cast(), length, libc::MADV_HUGEPAGE) };
    }

    /// Pages of the range by the node that they are on now. A negative errno stands for pages without one.
    ///
    /// # Errors
    /// `move_pages`'.
    ///
    /// # Panics
    /// If the range is not within the mapping.
    pub fn pages_by_node(&self, offset: Bytes, bytes: Bytes) -> io::Result<BTreeMap<i32, u64>> {
        let (at, length) = self.range(offset, bytes);
        let pages: Vec<*mut u8> = (0..length).step_by(PAGE as usize).map(|page| at.wrapping_add(page)).collect();
        let mut nodes = BTreeMap::new();
        for batch in pages.chunks(QUERY) {
            let mut status = vec![-libc::ENOENT; batch.len()];
            // SAFETY: with no nodes it only reports; both arrays have `batch.len()` entries.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_move_pages,
                    0,
                    batch.len(),
                    batch.as_ptr(),
                    ptr::null::<i32>(),
                    status.as_mut_ptr(),
                    0,
                )
            };
            if result < 0 {
                return Err(io::Error::last_os_error());
            }
            for node in status {
                *nodes.entry(node).or_default() += 1;
            }
        }
        Ok(nodes)
    }

    /// First address.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Its size.
    pub fn bytes(&self) -> Bytes {
        self.bytes as Bytes
    }

    /// The bytes of a range.
    ///
    /// # Panics
    /// If the range is not within the mapping.
    pub fn slice(&self, offset: Bytes, bytes: Bytes) -> &[u8] {
        let (at, length) = self.range(offset, bytes);
        // SAFETY: within the mapping, initialised by the kernel, and borrowed as long as the slice lives.
        unsafe { std::slice::from_raw_parts(at, length) }
    }

    /// The bytes of a range, to write.
    ///
    /// # Panics
    /// If the range is not within the mapping.
    pub fn slice_mut(&mut self, offset: Bytes, bytes: Bytes) -> &mut [u8] {
        let (at, length) = self.range(offset, bytes);
        // SAFETY: as above, and &mut makes it the only one.
        unsafe { std::slice::from_raw_parts_mut(at, length) }
    }

    fn range(&self, offset: Bytes, bytes: Bytes) -> (*mut u8, usize) {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes());
        assert!(fits, "{bytes} bytes at {offset} of a mapping of {}", self.bytes);
        // SAFETY: the offset is within the mapping.
        (unsafe { self.base.as_ptr().add(offset as usize) }, bytes as usize)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's; whoever borrowed from it is gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

fn usize_of(bytes: Bytes) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory.into())
}
