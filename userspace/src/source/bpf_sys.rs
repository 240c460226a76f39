//! What bpf(2) offers and aya does not, and plain records out of plain bytes.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use aya::Pod;

/// `BPF_MAP_LOOKUP_AND_DELETE_BATCH` of linux/bpf.h.
const LOOKUP_AND_DELETE_BATCH: libc::c_int = 25;
/// `BPF_OBJ_GET_INFO_BY_FD`.
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;

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

/// `struct { … } info` of `union bpf_attr`.
#[repr(C)]
struct InfoAttr {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The start of `struct bpf_prog_info`.
#[repr(C)]
struct ProgramInfo {
    before: [u64; 26],
    recursion_misses: u64,
}

/// Events that the kernel did not hand to a program; `None` where it does not tell.
///
/// Minimum kernel: 5.12.
pub(super) fn recursion_misses(program: BorrowedFd<'_>) -> Option<u64> {
    let mut info = ProgramInfo { before: [0; 26], recursion_misses: 0 };
    let mut attr = InfoAttr {
        bpf_fd: program.as_raw_fd() as u32,
        info_len: size_of::<ProgramInfo>() as u32,
        info: ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: `attr` and `info` are of this frame and outlive the call. The kernel writes at most `info_len` bytes of
    // plain numbers; it reads lengths of further arrays there, all of them 0, and so writes to no other address.
    let asked =
        unsafe { libc::syscall(libc::SYS_bpf, OBJ_GET_INFO_BY_FD, ptr::from_mut(&mut attr), size_of::<InfoAttr>()) };
    // The kernel says how much of the structure it knows.
    (asked == 0 && attr.info_len as usize == size_of::<ProgramInfo>()).then_some(info.recursion_misses)
}

/// The record at the start of `bytes`; `None` where they are too few.
pub(super) fn read_record<T: Pod>(bytes: &[u8]) -> Option<T> {
    // SAFETY: enough bytes, read unaligned, and any bytes are a value of a `Pod` type.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) })
}
