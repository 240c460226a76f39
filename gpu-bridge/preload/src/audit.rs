//! The auditor (`man 7 rtld-audit`): the dynamic linker asks it where each binding shall lead.
//!
//! It runs in a linker namespace of its own, before the program, and so only compares names and adds: no allocation, no
//! thread, no state but three words. Where it leads to is the copy of this very file that `LD_PRELOAD` put beside the
//! program: the same functions at the same distance from the file's first byte.
//!
//! Of programs that are linked with the driver it is asked as well, and answers the same as the exported names would.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use std::{
    ffi::{CStr, c_char, c_uint, c_void},
    ptr,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering},
};

use crate::hooks::HOOKS;

/// The version of the interface that this was written for; earlier ones differ only in what is not used here.
const VERSION: c_uint = 2;
/// `LA_FLG_BINDTO`, `LA_FLG_BINDFROM`: bindings to this object, from this object.
const BIND_TO: c_uint = 1;
const BIND_FROM: c_uint = 2;
/// What the linker keeps for this auditor of each object: which it is. glibc asks about a `dlsym` where either of the two
/// flags is set, so both ends are looked at again.
const DRIVER: usize = 1;
const SECOND_COPY: usize = 2;
const OTHER: usize = 3;
/// `LM_ID_BASE`: the program's namespace.
const PROGRAM: libc::c_long = 0;

/// First address and path of this copy, and first address of the program's (0: none).
static OWN: AtomicUsize = AtomicUsize::new(0);
static PATH: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
static BESIDE: AtomicUsize = AtomicUsize::new(0);

/// The public beginning of the linker's `struct link_map`.
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const c_char,
}

/// Called first. Whatever it returns must be a version that the linker has.
#[unsafe(no_mangle)]
extern "C" fn la_version(offered: c_uint) -> c_uint {
    // SAFETY: filled in by `dladdr`, where it finds the object of this function.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address of this file and a structure to fill in.
    if unsafe { libc::dladdr(la_version as *const c_void, &raw mut found) } != 0 {
        OWN.store(found.dli_fbase as usize, Ordering::Relaxed);
        PATH.store(found.dli_fname.cast_mut(), Ordering::Relaxed);
    }
    offered.min(VERSION)
}

/// Called for each object that is loaded.
#[unsafe(no_mangle)]
unsafe extern "C" fn la_objopen(map: *const LinkMap, namespace: libc::c_long, cookie: *mut usize) -> c_uint {
    if map.is_null() || cookie.is_null() {
        return 0;
    }
    // SAFETY: the linker's words: a place for what is kept of this object, and its record with its path as a C string.
    let (kind, flags) = unsafe { kind(&*map, namespace) };
    // SAFETY: as above.
    unsafe { cookie.write(kind) };
    flags
}

/// Which object it is, and the bindings that are asked about.
///
/// # Safety
/// The record's name is a C string, or null.
unsafe fn kind(map: &LinkMap, namespace: libc::c_long) -> (usize, c_uint) {
    if namespace != PROGRAM {
        return (OTHER, 0);
    }
    // SAFETY: by this function's contract.
    let name = if map.name.is_null() { c"" } else { unsafe { CStr::from_ptr(map.name) } };
    let own = PATH.load(Ordering::Relaxed);
    // SAFETY: the linker's string, which lives as long as this copy.
    if !own.is_null() && unsafe { CStr::from_ptr(own) } == name {
        BESIDE.store(map.address, Ordering::Relaxed);
        return (SECOND_COPY, 0);
    }
    if is_driver(name) { (DRIVER, BIND_TO) } else { (OTHER, BIND_FROM) }
}

/// Whether a path is the driver's: `libcuda.so`, with or without a version behind.
fn is_driver(path: &CStr) -> bool {
    let name = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.strip_prefix(b"libcuda.so").is_some_and(|rest| rest.is_empty() || rest[0] == b'.')
}

/// Called for each binding from an object with [`BIND_FROM`] to one with [`BIND_TO`], those of `dlsym` among them.
#[unsafe(no_mangle)]
unsafe extern "C" fn la_symbind64(
    symbol: *const libc::Elf64_Sym,
    _index: c_uint,
    from: *const usize,
    to: *const usize,
    _flags: *mut c_uint,
    name: *const c_char,
) -> usize {
    // SAFETY: the linker gives a symbol, whose value is its address, its name as a C string, and what is kept of both ends.
    let (address, name, from, to) = unsafe { ((*symbol).st_value as usize, CStr::from_ptr(name), *from, *to) };
    let (own, beside) = (OWN.load(Ordering::Relaxed), BESIDE.load(Ordering::Relaxed));
    // The second copy itself asks for the driver's own functions.
    if own == 0 || beside == 0 || to != DRIVER || from == SECOND_COPY {
        return address;
    }
    HOOKS.iter().find(|hook| hook.symbol == name).map_or(address, |hook| beside + (hook.address as usize - own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_known_by_its_name_alone() {
        for (path, is) in [
            (c"/usr/lib/x86_64-linux-gnu/libcuda.so.1", true),
            (c"libcuda.so", true),
            (c"/a/libcuda.so.570.124.06", true),
            (c"/a/libcudart.so.12", false),
            (c"/a/libcuda.so.1/other.so", false),
            (c"/a/libcuda.something", false),
            (c"", false),
        ] {
            assert_eq!(is_driver(path), is, "{path:?}");
        }
    }

    #[test]
    fn bindings_lead_to_the_second_copy_once_it_is_there_and_its_own_never_do() {
        assert_eq!(la_version(1), 1);
        assert_eq!(la_version(7), VERSION);
        let open = |address, name: &CStr, namespace| {
            let (map, mut kept) = (LinkMap { address, name: name.as_ptr() }, 0);
            // SAFETY: a record as the linker has it.
            let flags = unsafe { la_objopen(&raw const map, namespace, &raw mut kept) };
            (kept, flags)
        };
        // SAFETY: all zero is a symbol.
        let mut symbol: libc::Elf64_Sym = unsafe { std::mem::zeroed() };
        symbol.st_value = 1234;
        let bind = |from: usize, to: usize, name: &CStr| {
            let (symbol, flags) = (&raw const symbol, ptr::null_mut());
            // SAFETY: a symbol, a name and what `la_objopen` kept; what else the linker gives is not looked at.
            unsafe { la_symbind64(symbol, 0, &raw const from, &raw const to, flags, name.as_ptr()) }
        };
        let (driver, to) = open(4096, c"/lib/libcuda.so.1", PROGRAM);
        let (program, from) = open(0, c"", PROGRAM);
        assert_eq!((to, from, open(0, c"/lib/libcuda.so.1", 1).1), (BIND_TO, BIND_FROM, 0));
        assert_eq!(bind(program, driver, c"cuMemHostAlloc"), 1234, "no second copy yet");
        // SAFETY: `la_version` has found this file's own path.
        let own = unsafe { CStr::from_ptr(PATH.load(Ordering::Relaxed)) }.to_owned();
        let base = OWN.load(Ordering::Relaxed);
        let (second, none) = open(base + 0x1000, &own, PROGRAM);
        assert_eq!(none, 0);
        let hook = HOOKS.iter().find(|hook| hook.symbol == c"cuMemHostAlloc").expect("one of them");
        assert_eq!(bind(program, driver, c"cuMemHostAlloc"), hook.address as usize + 0x1000);
        assert_eq!(bind(second, driver, c"cuMemHostAlloc"), 1234);
        assert_eq!(bind(program, program, c"cuMemHostAlloc"), 1234, "of that name, and not the driver's");
        assert_eq!(bind(program, driver, c"cuLaunchKernel"), 1234);
    }
}
