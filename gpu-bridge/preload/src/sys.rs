//! What the kernel knows of addresses and nodes.
#![allow(unsafe_code)]

use std::{fs, ptr};

const PAGE: u64 = 4096;
/// Pages asked about in one call.
const QUERY: u64 = 16 << 10;

/// Whether every page of a range is mapped; which access is allowed is not told.
pub fn is_mapped(address: u64, bytes: u64) -> bool {
    let Some(end) = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE)) else { return false };
    let mut found = [0_u8; QUERY as usize];
    let mut at = address / PAGE * PAGE;
    while at < end {
        let length = (end - at).min(QUERY * PAGE);
        // SAFETY: the kernel looks at its own tables, and writes a byte for each page of at most QUERY.
        if unsafe { libc::mincore(at as *mut libc::c_void, length as usize, found.as_mut_ptr()) } != 0 {
            return false;
        }
        at += length;
    }
    true
}

/// The node of the page at an address that is mapped.
pub fn node_of(address: u64) -> Option<u32> {
    /// `MPOL_F_NODE | MPOL_F_ADDR`: the node of the page, instead of a policy.
    const NODE_OF_PAGE: libc::c_ulong = 1 | 2;
    let mut node = 0_i32;
    let none = ptr::null_mut::<libc::c_ulong>();
    // SAFETY: the kernel writes one integer.
    let result = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut node, none, 0 as libc::c_ulong, address, NODE_OF_PAGE)
    };
    if result == 0 { u32::try_from(node).ok() } else { None }
}

/// The node of the CPU that this thread runs on.
pub fn node_here() -> Option<u32> {
    let mut node = 0_u32;
    let none = ptr::null_mut::<u32>();
    // SAFETY: the kernel writes one integer.
    let result = unsafe { libc::syscall(libc::SYS_getcpu, none, &raw mut node, none) };
    (result == 0).then_some(node)
}

/// CLOCK_MONOTONIC, nanoseconds.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one struct; it knows this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Bytes of a node's memory; 0 where the kernel does not say.
pub fn node_bytes(node: u32) -> u64 {
    let text = fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).unwrap_or_default();
    let total = text.lines().find_map(|line| line.split_once("MemTotal:"));
    let kib = total.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// The node that a PCI device is attached to, where the kernel knows one.
pub fn node_of_pci(address: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/sys/bus/pci/devices/{address}/numa_node")).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_told_from_what_is_not() {
        let memory = vec![1_u8; 3 * PAGE as usize];
        let at = memory.as_ptr() as u64;
        assert!(is_mapped(at, memory.len() as u64));
        assert!(!is_mapped(1 << 40, 1), "nothing lies there");
        assert!(!is_mapped(u64::MAX - 5, 10), "beyond the end");
        assert!(node_of(at).is_some() && node_of(1 << 40).is_none());
    }

    #[test]
    fn a_hole_behind_what_is_mapped_is_seen() {
        // SAFETY: a fresh mapping of three pages, of which the last is given back; nobody else knows it.
        let at = unsafe {
            let (flags, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ);
            let at = libc::mmap(ptr::null_mut(), 3 * PAGE as usize, access, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::munmap(at.byte_add(2 * PAGE as usize), PAGE as usize), 0);
            at as u64
        };
        assert!(is_mapped(at, 2 * PAGE) && !is_mapped(at, 2 * PAGE + 1));
        // SAFETY: what is left of it.
        assert_eq!(unsafe { libc::munmap(at as *mut libc::c_void, 2 * PAGE as usize) }, 0);
    }

    #[test]
    fn nodes_have_memory() {
        assert!(node_here().is_some_and(|node| node_bytes(node) > 0));
        assert_eq!(node_bytes(99_999), 0);
        assert_eq!(node_of_pci("no such device"), None);
    }
}
