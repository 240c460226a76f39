//! Device memory and the copying of bytes.
//!
//! Device addresses belong to a mapping without access: a host that follows one faults, as with a GPU. The bytes are in
//! a second mapping that only the engines use.
#![allow(unsafe_code)]

use std::{io, ptr};

/// The device's memory.
#[derive(Debug)]
pub struct DeviceMemory {
    /// First device address.
    pub base: u64,
    bytes: usize,
    inner: *mut u8,
}

// SAFETY: the inner mapping lives as long as the process; what may be copied when is the engines' order.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

fn map(bytes: usize, access: i32) -> io::Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base.cast()) }
}

impl DeviceMemory {
    /// Memory of `bytes`; pages come when they are written.
    ///
    /// # Errors
    /// `mmap`'s.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let bytes = bytes as usize;
        let base = map(bytes, libc::PROT_NONE)? as u64;
        Ok(Self { base, bytes, inner: map(bytes, libc::PROT_READ | libc::PROT_WRITE)? })
    }

    /// Whether an address is one of the device's.
    pub fn holds(&self, address: u64) -> bool {
        (self.base..self.base + self.bytes as u64).contains(&address)
    }

    /// Where the bytes of an address are: device addresses in the inner mapping, host addresses as they are.
    fn place(&self, address: u64) -> *mut u8 {
        if self.holds(address) { self.inner.wrapping_add((address - self.base) as usize) } else { address as *mut u8 }
    }

    /// What a device address has to grow by, wrapping, to be the address of its byte.
    pub fn shift(&self) -> u64 {
        (self.inner as u64).wrapping_sub(self.base)
    }

    /// Copies between any two addresses.
    pub fn copy(&self, to: u64, from: u64, bytes: usize) {
        // SAFETY: the rules have checked device ranges; host ranges are the program's promise, as with the driver.
        unsafe { ptr::copy(self.place(from), self.place(to), bytes) };
    }

    /// Writes `value`, of `width` bytes, `count` times.
    pub fn fill(&self, to: u64, value: u32, width: usize, count: usize) {
        let to = self.place(to);
        // SAFETY: the rules have checked the range and its alignment.
        unsafe {
            match width {
                1 => ptr::write_bytes(to, value as u8, count),
                2 => std::slice::from_raw_parts_mut(to.cast::<u16>(), count).fill(value as u16),
                _ => std::slice::from_raw_parts_mut(to.cast::<u32>(), count).fill(value),
            }
        }
    }

    /// Gives the pages of a freed range back.
    pub fn forget(&self, address: u64, bytes: u64) {
        // SAFETY: whole pages of the inner mapping, which nobody may use any more.
        unsafe { libc::madvise(self.place(address).cast(), bytes as usize, libc::MADV_DONTNEED) };
    }
}

/// Host memory for `cuMemAllocHost`: populated, page aligned.
///
/// # Errors
/// `mmap`'s.
pub fn host_map(bytes: usize) -> io::Result<u64> {
    let at = map(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: the mapping just made; populating is advice that older kernels refuse, and pages then come when touched.
    unsafe { libc::madvise(at.cast(), bytes, libc::MADV_POPULATE_WRITE) };
    Ok(at as u64)
}

/// Ends what [`host_map`] began.
pub fn host_unmap(address: u64, bytes: usize) {
    // SAFETY: the rules know that this range is one of `host_map`'s and free it once.
    unsafe { libc::munmap(address as *mut _, bytes) };
}
