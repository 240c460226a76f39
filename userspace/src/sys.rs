//! The system calls on other processes' memory: where pages are, which are populated, moving them, memory policies.
//!
//! Below every stage, since residency ([`crate::job`]) and migration ([`crate::migrate`]) both rest on it. All `unsafe`
//! of the two is here. Constants and layouts that the libc crate lacks come from the kernel's uapi headers, named at each.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::units::{NodeId, NodeSet, PAGE, Pid, Range, read_text};

/// What `status[]` holds before a call: neither a node nor an errno, so an entry that the kernel left alone is seen.
pub const UNWRITTEN: i32 = i32::MIN;

/// A system call that failed, and on what.
#[derive(Debug, thiserror::Error)]
pub enum SysError {
    /// The call itself failed.
    #[error("{call} on {range} of process {pid}: {source}")]
    Call {
        /// The call.
        call: &'static str,
        /// The process it was about.
        pid: Pid,
        /// The addresses it was about; the span from first to last where they are scattered.
        range: Range,
        /// Why.
        source: io::Error,
    },
    /// The process has ended, or its pid names another one by now.
    #[error("process {pid} has ended")]
    Gone {
        /// The process.
        pid: Pid,
    },
    /// A memory policy was refused.
    #[error("{call} with {policy:?}: {source}")]
    Policy {
        /// The call.
        call: &'static str,
        /// The policy.
        policy: MemPolicy,
        /// Why.
        source: io::Error,
    },
}

impl SysError {
    /// The errno behind it; 0 where there is none.
    pub fn errno(&self) -> i32 {
        match self {
            SysError::Call { source, .. } | SysError::Policy { source, .. } => source.raw_os_error().unwrap_or(0),
            SysError::Gone { .. } => libc::ESRCH,
        }
    }
}

/// A stretch of populated pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The addresses, page aligned.
    pub range: Range,
    /// Mapped by huge page table entries: one address stands for each whole block of it.
    pub huge: bool,
}

/// A process held by a pidfd, so that a recycled pid is never taken for it.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    pidfd: OwnedFd,
    started: u64,
}

impl Process {
    /// Takes hold of the process that has `pid` now. Kernel 5.3 or newer.
    ///
    /// # Errors
    /// There is none, or its page map may not be read (root, or CAP_SYS_PTRACE, is needed).
    pub fn open(pid: Pid) -> Result<Self, SysError> {
        let failed = |call, source: io::Error| match source.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => SysError::Gone { pid },
            _ => SysError::Call { call, pid, range: Range::new(0, 0), source },
        };
        // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.0 as libc::pid_t, 0) };
        if fd < 0 {
            return Err(failed("pidfd_open", io::Error::last_os_error()));
        }
        // SAFETY: the kernel has just returned this descriptor; nothing else owns it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        File::open(format!("/proc/{pid}/pagemap")).map_err(|e| failed("open pagemap", e))?;
        let started = start_ticks(pid).map_err(|e| failed("read stat", e))?;
        let process = Self { pid, pidfd, started };
        // /proc/PID was opened by number: only if the pidfd's process still lives did both mean the same one.
        if process.alive() { Ok(process) } else { Err(SysError::Gone { pid }) }
    }

    /// The process's id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// When it started, in clock ticks since boot: with the pid, its identity for as long as the host is up.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Whether it has not ended. While true, its pid names no other process.
    pub fn alive(&self) -> bool {
        let mut fds = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(0))
    }

    /// The resident pages of `range` (the shared zero page left out), by one page table walk. Kernel 6.7 or newer.
    ///
    /// # Errors
    /// ENOTTY on an older kernel; ESRCH once the process has ended.
    pub fn populated(&self, range: Range) -> Result<Vec<Extent>, SysError> {
        // An open pagemap stays with the address space it was opened for, and an exec replaces that: open it each time.
        let pagemap = File::open(format!("/proc/{}/pagemap", self.pid))
            .map_err(|source| self.failed("open pagemap", range, source))?;
        let mut found: Vec<Extent> = Vec::new();
        let mut regions = [PageRegion::default(); 512];
        let (mut at, end) = (range.start / PAGE * PAGE, range.end.div_ceil(PAGE) * PAGE);
        while at < end {
            let mut request = ScanRequest {
                size: size_of::<ScanRequest>() as u64,
                start: at,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                category_inverted: PAGE_IS_PFNZERO,
                category_mask: PAGE_IS_PRESENT | PAGE_IS_PFNZERO,
                return_mask: PAGE_IS_PRESENT | PAGE_IS_HUGE,
                ..ScanRequest::default()
            };
            // SAFETY: `request` is a valid pm_scan_arg whose `vec` names `regions`, `vec_len` long; both outlive the call.
            let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut request) };
            if count < 0 {
                return Err(self.failed("PAGEMAP_SCAN", Range::new(at, end), io::Error::last_os_error()));
            }
            for region in regions.iter().take(count as usize) {
                let extent =
                    Extent { range: Range::new(region.start, region.end), huge: region.categories & PAGE_IS_HUGE != 0 };
                match found.last_mut() {
                    Some(last) if last.range.end == extent.range.start && last.huge == extent.huge => {
                        last.range.end = extent.range.end;
                    }
                    _ => found.push(extent),
                }
            }
            if request.walk_end <= at {
                break;
            }
            at = request.walk_end;
        }
        // Opened by number: what was read is this process's only if that still lives.
        // Addresses past the last mapping are reported with walk_end 0 by some kernels; the last regions still count.
        if self.alive() { Ok(found) } else { Err(SysError::Gone { pid: self.pid }) }
    }

    /// Which node each page is on: writes a node or a negative errno (ENOENT: not resident) to each `status`.
    /// Kernel 2.6.18 or newer; changes nothing.
    ///
    /// # Errors
    /// The process has ended (ESRCH) or may not be looked at (EPERM).
    pub fn nodes(&self, addresses: &[u64], status: &mut [i32]) -> Result<(), SysError> {
        self.move_pages(addresses, None, status).map(|_| ())
    }

    /// Asks the kernel to move each page to `node` (MPOL_MF_MOVE: pages mapped by this process alone). Returns how many
    /// it could not; then some entries of `status` are still [`UNWRITTEN`]. Kernel 5.8 or newer returns that count.
    ///
    /// # Errors
    /// ESRCH, EPERM; ENODEV or EACCES where the node is no place for this process; ENOMEM where it is full.
    pub fn move_to(&self, addresses: &[u64], node: NodeId, status: &mut [i32]) -> Result<u64, SysError> {
        self.move_pages(addresses, Some(node), status)
    }

    /// Takes the accessed bits of a range's pages away, so that a later look at them tells what was accessed since
    /// (`MADV_COLD`: the kernel flushes the TLB, and takes these pages first where it needs memory and they are not used).
    /// Pages that other processes map too, and mappings that cannot be cooled (locked, huge, devices), are passed over.
    /// Kernel 5.10.
    ///
    /// # Errors
    /// ESRCH once the process has ended, EPERM, ENOSYS.
    pub fn cool(&self, range: Range) -> Result<(), SysError> {
        // One call takes less than 2 GiB.
        const PART: u64 = 1 << 30;
        for start in (range.start..range.end).step_by(PART as usize) {
            let part = Range::new(start, range.end.min(start + PART));
            let vector = libc::iovec { iov_base: part.start as *mut libc::c_void, iov_len: part.bytes() as usize };
            // SAFETY: one iovec, alive over the call, of addresses in the other process: nothing of this one is read or
            // written through it, and no contents change in the other.
            let result = unsafe {
                libc::syscall(libc::SYS_process_madvise, self.pidfd.as_raw_fd(), &raw const vector, 1, MADV_COLD, 0)
            };
            if result < 0 {
                let source = io::Error::last_os_error();
                // Something of it is not mapped any more, or cannot be cooled.
                if !matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EINVAL)) {
                    return Err(self.failed("process_madvise", part, source));
                }
            }
        }
        Ok(())
    }

    fn move_pages(&self, addresses: &[u64], node: Option<NodeId>, status: &mut [i32]) -> Result<u64, SysError> {
        assert_eq!(addresses.len(), status.len(), "one status a page");
        status.fill(UNWRITTEN);
        let targets = node.map(|node| vec![node.0 as i32; addresses.len()]);
        // SAFETY: three arrays of addresses.len() entries each (or a null `nodes`), alive over the call; the kernel writes
        // `status` alone. Page contents and addresses do not change, in this process neither.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                self.pid.0 as libc::pid_t,
                addresses.len(),
                addresses.as_ptr(),
                targets.as_ref().map_or(std::ptr::null(), |t| t.as_ptr()),
                status.as_mut_ptr(),
                MPOL_MF_MOVE,
            )
        };
        if result < 0 {
            return Err(self.failed("move_pages", span(addresses), io::Error::last_os_error()));
        }
        Ok(result as u64)
    }

    fn failed(&self, call: &'static str, range: Range, source: io::Error) -> SysError {
        SysError::Call { call, pid: self.pid, range, source }
    }
}

/// The CPU time that the calling thread has used.
pub fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec. The clock exists for every thread, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn span(addresses: &[u64]) -> Range {
    let first = addresses.iter().copied().min().unwrap_or(0);
    Range::new(first, addresses.iter().copied().max().map_or(first, |last| last.saturating_add(PAGE)))
}

fn start_ticks(pid: Pid) -> io::Result<u64> {
    let stat = read_text(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may hold spaces and parentheses of its own; the 22nd field is the 20th after it.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name
        .split_whitespace()
        .nth(19)
        .and_then(|ticks| ticks.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no start time in it"))
}

// include/uapi/asm-generic/mman-common.h
const MADV_COLD: libc::c_int = 20;
// include/uapi/linux/mempolicy.h: only pages that no other process maps.
const MPOL_MF_MOVE: libc::c_int = 1 << 1;
// include/uapi/linux/fs.h, since 6.7: PAGEMAP_SCAN is _IOWR('f', 16, struct pm_scan_arg).
const PAGEMAP_SCAN: libc::Ioctl =
    (3 << 30 | (size_of::<ScanRequest>() << 16) | (b'f' as usize) << 8 | 16) as libc::Ioctl;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;

/// `struct page_region` of include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ScanRequest {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<ScanRequest>() == 96 && size_of::<PageRegion>() == 24);

/// A NUMA memory policy (set_mempolicy(2)), as a job has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemPolicy {
    /// The system's: the node of the CPU that touches first.
    Default,
    /// One node if it has room, else others.
    Preferred(NodeId),
    /// Any of these if they have room, else others. Kernel 5.15.
    PreferredMany(NodeSet),
    /// These nodes only.
    Bind(NodeSet),
    /// Page by page in turn.
    Interleave(NodeSet),
    /// In turn by the weights in /sys/kernel/mm/mempolicy/weighted_interleave. Kernel 6.9.
    WeightedInterleave(NodeSet),
    /// The node of the touching CPU, named as such.
    Local,
}

impl MemPolicy {
    // include/uapi/linux/mempolicy.h
    fn encode(&self) -> (libc::c_int, NodeSet) {
        match self {
            MemPolicy::Default => (0, NodeSet::default()),
            MemPolicy::Preferred(node) => (1, [*node].into_iter().collect()),
            MemPolicy::Bind(nodes) => (2, nodes.clone()),
            MemPolicy::Interleave(nodes) => (3, nodes.clone()),
            MemPolicy::Local => (4, NodeSet::default()),
            MemPolicy::PreferredMany(nodes) => (5, nodes.clone()),
            MemPolicy::WeightedInterleave(nodes) => (6, nodes.clone()),
        }
    }

    /// The nodes that it names.
    pub fn nodes(&self) -> NodeSet {
        self.encode().1
    }

    /// Mode, node mask and the mask's size, as the system calls take them.
    pub(crate) fn arguments(&self) -> (libc::c_int, Vec<u64>, usize) {
        let (mode, nodes) = self.encode();
        let (mask, bits) = node_mask(&nodes);
        (mode, mask, bits)
    }

    /// Makes it the policy of a range of this process; pages already there stay where they are.
    ///
    /// # Errors
    /// A node that does not exist, or a mode newer than the kernel (EINVAL); EFAULT where the range is not mapped.
    pub fn set_for_range(&self, range: Range) -> Result<(), SysError> {
        let (mode, mask, bits) = self.arguments();
        // SAFETY: `mask` has `bits` bits; mbind changes where future pages of the range come from, never its contents.
        let result =
            unsafe { libc::syscall(libc::SYS_mbind, range.start, range.bytes(), mode, mask.as_ptr(), bits, 0) };
        self.check("mbind", result)
    }

    fn check(&self, call: &'static str, result: libc::c_long) -> Result<(), SysError> {
        let source = io::Error::last_os_error();
        if result == 0 { Ok(()) } else { Err(SysError::Policy { call, policy: self.clone(), source }) }
    }
}

/// A bit a node, and the size to name: the kernel reads one bit less than it is told.
fn node_mask(nodes: &NodeSet) -> (Vec<u64>, usize) {
    let words = nodes.0.last().map_or(1, |last| last.0 as usize / 64 + 1);
    let mut mask = vec![0u64; words];
    for node in &nodes.0 {
        mask[node.0 as usize / 64] |= 1 << (node.0 % 64);
    }
    (mask, words * 64 + 1)
}

#[cfg(test)]
#[path = "sys_tests.rs"]
mod tests;
