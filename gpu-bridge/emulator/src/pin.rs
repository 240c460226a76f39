//! Long-term pins, as a GPU's driver takes them: fixed buffers of an io_uring (`FOLL_PIN | FOLL_LONGTERM`, Linux 5.1).
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// `struct io_uring_params`, of which only the size matters here: all zero asks for the defaults.
const PARAMS: usize = 120;
/// Largest fixed buffer.
const BUFFER: usize = 1 << 30;
const REGISTER_BUFFERS: libc::c_uint = 0;

/// Pages that stay where they are until this is dropped.
#[derive(Debug)]
pub struct Pin {
    _ring: OwnedFd,
}

impl Pin {
    /// Pins the pages of a range.
    ///
    /// # Errors
    /// `EFAULT`: not mapped; `ENOMEM`: beyond `RLIMIT_MEMLOCK`; `EPERM`, `ENOSYS`: this system has no io_uring for us.
    pub fn new(address: usize, bytes: usize) -> io::Result<Self> {
        let mut params = [0_u8; PARAMS];
        // SAFETY: the kernel reads and fills `params`, which has the size of its structure.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that the kernel has just made for us.
        let ring = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let buffers: Vec<_> = (0..bytes)
            .step_by(BUFFER)
            .map(|at| libc::iovec { iov_base: (address + at) as *mut _, iov_len: BUFFER.min(bytes - at) })
            .collect();
        // SAFETY: the kernel checks the ranges and pins their pages; it reads `buffers.len()` entries.
        let result = unsafe {
            let (fd, count) = (ring.as_raw_fd(), buffers.len());
            libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_BUFFERS, buffers.as_ptr(), count)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { _ring: ring }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pinned kibibytes of this process, by the kernel's account.
    fn pinned() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("since Linux 3.2");
        line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number")
    }

    /// Other tests pin some mebibytes at the same time.
    #[test]
    fn the_kernel_counts_the_pages_as_pinned_until_the_end() {
        let memory = vec![1_u8; 128 << 20];
        let before = pinned();
        let pin = Pin::new(memory.as_ptr() as usize, memory.len()).expect("within RLIMIT_MEMLOCK");
        assert!(pinned() > before + (64 << 10), "{before} {}", pinned());
        drop(pin);
        // The ring's end unpins from a worker of the kernel.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while pinned() > before + (64 << 10) {
            assert!(std::time::Instant::now() < until, "still pinned: {}", pinned());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
