//! The one bpf(2) command that aya does not offer, and plain records out of plain bytes.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use aya::Pod;

/// `BPF_MAP_LOOKUP_AND_DELETE_BATCH` of linux/bpf.h.
const LOOKUP_AND_DELETE_BATCH: libc::c_int = 25;

/// `struct { … } batch` of `union bpf_attr`, linux/bpf.h.
#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Takes everything out of a hash map, some thousand entries a call. An entry that a program changes while it is taken
/// may lose that change; one that it adds meanwhile is taken now or the next time.
///
/// Minimum kernel: 5.6.
///
/// # Errors
/// What bpf(2) says; entries taken before are in `out`.
pub(super) fn drain<K: Pod + Default, V: Pod + Default>(map: BorrowedFd<'_>, out: &mut Vec<(K, V)>) -> io::Result<()> {
    const CHUNK: usize = 4096;
    let mut keys = vec![K::default(); CHUNK];
    let mut values = vec![V::default(); CHUNK];
    let mut cursor = 0u32;
    let mut started = false;
    loop {
        let mut next = 0u32;
        let mut attr = BatchAttr {
            in_batch: if started { ptr::from_ref(&cursor) as u64 } else { 0 },
            out_batch: ptr::from_mut(&mut next) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: CHUNK as u32,
            map_fd: map.as_raw_fd() as u32,
            ..BatchAttr::default()
        };
        // SAFETY: every address in `attr` points to memory of this frame that outlives the call: `CHUNK` keys and values
        // of the map's own sizes (the caller's types are those the map was checked against), and two cursors, which for
        // hash maps are 32 bits.
        let failed = unsafe {
            libc::syscall(libc::SYS_bpf, LOOKUP_AND_DELETE_BATCH, ptr::from_mut(&mut attr), size_of::<BatchAttr>())
        } < 0;
        let error = failed.then(io::Error::last_os_error);
        match error.as_ref().and_then(io::Error::raw_os_error) {
            // ENOENT: that was the rest.
            None | Some(libc::ENOENT) => {
                let taken = CHUNK.min(attr.count as usize);
                out.extend(keys.iter().copied().zip(values.iter().copied()).take(taken));
            }
            Some(libc::EINTR | libc::EAGAIN) => continue,
            Some(_) => return error.map_or(Ok(()), Err),
        }
        if error.is_some() {
            return Ok(());
        }
        (cursor, started) = (next, true);
    }
}

/// The record at the start of `bytes`; `None` where they are too few.
pub(super) fn read_record<T: Pod>(bytes: &[u8]) -> Option<T> {
    // SAFETY: enough bytes, read unaligned, and any bytes are a value of a `Pod` type.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) })
}
