//! Which pages of a process exist. Reserved address space costs nothing: CUDA and Python reserve hundreds of GiB.

use std::{fs::File, io, os::unix::fs::FileExt};

use crate::{
    sys::{Extent, Process, SysError},
    units::{PAGE, Range},
};

/// The resident stretches of a range: by PAGEMAP_SCAN, or by reading the page map itself before kernel 6.7, which does not
/// tell huge pages and costs 8 bytes of reading for each page of address space, so pass it populated mappings only
/// ([`super::numa_maps`] tells which).
///
/// # Errors
/// The process has ended or may not be looked at.
pub fn extents(process: &Process, range: Range) -> Result<Vec<Extent>, SysError> {
    match process.populated(range) {
        Err(error) if matches!(error.errno(), libc::ENOTTY | libc::EINVAL) => from_pagemap(process, range),
        result => result,
    }
}

/// The same by pread of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
///
/// # Errors
/// As [`extents`].
pub fn from_pagemap(process: &Process, range: Range) -> Result<Vec<Extent>, SysError> {
    let pid = process.pid();
    let failed = |source| SysError::Call { call: "read of pagemap", pid, range, source };
    let file = File::open(format!("/proc/{pid}/pagemap")).map_err(failed)?;
    let mut found = Vec::new();
    let mut buffer = vec![0u8; 8 * 8192];
    let (mut page, last) = (range.start / PAGE, range.end.div_ceil(PAGE));
    while page < last {
        let want = buffer.len().min(((last - page) * 8) as usize);
        let got = match file.read_at(&mut buffer[..want], page * 8) {
            Ok(got) if got >= 8 => got / 8,
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        decode(&buffer[..got * 8], page, &mut found);
        page += got as u64;
    }
    if process.alive() { Ok(found) } else { Err(SysError::Gone { pid }) }
}

/// Adds the present pages of page map entries that begin at page number `first`.
fn decode(entries: &[u8], first: u64, found: &mut Vec<Extent>) {
    const PRESENT: u64 = 1 << 63;
    for (page, entry) in (first..).zip(entries.as_chunks().0) {
        if u64::from_ne_bytes(*entry) & PRESENT == 0 {
            continue;
        }
        let range = Range::new(page * PAGE, (page + 1) * PAGE);
        match found.last_mut() {
            Some(last) if last.range.end == range.start => last.range.end = range.end,
            _ => found.push(Extent { range, huge: false }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::units::Pid;

    #[test]
    fn both_ways_find_the_same_pages() {
        let mut heap = vec![0u8; 64 * PAGE as usize];
        let first = (heap.as_ptr() as u64).div_ceil(PAGE) * PAGE;
        let offset = (first - heap.as_ptr() as u64) as usize;
        heap[offset] = 1;
        heap[offset + 3 * PAGE as usize] = 1;
        let range = Range::new(first, first + 8 * PAGE);
        let process = Process::open(Pid(std::process::id())).unwrap();
        let pages = |extents: Vec<Extent>| -> Vec<u64> {
            extents.iter().flat_map(|e| (e.range.start..e.range.end).step_by(PAGE as usize)).collect()
        };
        let read = pages(from_pagemap(&process, range).unwrap());
        assert!(read.contains(&first) && read.contains(&(first + 3 * PAGE)));
        assert_eq!(read, pages(extents(&process, range).unwrap()));
        assert_eq!(heap[offset], 1);
    }

    #[test]
    fn entries_join_across_buffers() {
        let present = (1u64 << 63).to_ne_bytes();
        let swapped = (1u64 << 62).to_ne_bytes();
        let mut found = Vec::new();
        decode(&[present, present].concat(), 10, &mut found);
        decode(&[present, swapped, present].concat(), 12, &mut found);
        let ranges: Vec<_> = found.iter().map(|e| (e.range.start / PAGE, e.range.end / PAGE)).collect();
        assert_eq!(ranges, [(10, 13), (14, 15)]);
    }
}
