//! What is taken over, on a driver of a few lines: "device" memory is this process's, and every copy is done at once.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]

use std::{cell::Cell, ffi::c_void, sync::atomic::Ordering};

use tensortier_bridge::pipeline::Direction;

use crate::{
    driver::{Driver, INVALID_VALUE, NOT_REGISTERED},
    hooks::hook_of,
    pinned::Owner,
    state::State,
};

const MIB: usize = 1 << 20;

thread_local! {
    /// What the next calls answer, and how many chunks are taken before a failure.
    static CAPTURING: Cell<i32> = const { Cell::new(0) };
    static CHUNKS_LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static CONTEXT: Cell<u64> = const { Cell::new(5) };
    static KNOWN: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static DEVICE: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
    static REGISTERS: Cell<i32> = const { Cell::new(0) };
    static MODE: Cell<i32> = const { Cell::new(0) };
    /// Registrations so far, and the bytes of the last.
    static REGISTERED: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

fn chunk(to: *mut u8, from: *const u8, bytes: usize) -> i32 {
    let left = CHUNKS_LEFT.get();
    if left == 0 {
        return 700;
    }
    CHUNKS_LEFT.set(left - 1);
    assert_eq!(MODE.get(), 2, "no call of ours may end another thread's capture");
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    0
}

unsafe extern "C" fn to_device(to: u64, from: *const c_void, bytes: usize, _: u64) -> i32 {
    chunk(to as *mut u8, from.cast(), bytes)
}

unsafe extern "C" fn from_device(to: *mut c_void, from: u64, bytes: usize, _: u64) -> i32 {
    chunk(to.cast(), from as *const u8, bytes)
}

macro_rules! answers {
    ($($name:ident($($arg:ident: $kind:ty),*) $body:expr;)*) => {
        $(unsafe extern "C" fn $name($($arg: $kind),*) -> i32 { $body })*
    };
}

answers! {
    context(to: *mut u64) { unsafe { to.write(CONTEXT.get()) }; 0 };
    context_id(context: u64, to: *mut u64) { unsafe { to.write(context + 100) }; 0 };
    status(to: *mut i32) { unsafe { to.write(0) }; if CONTEXT.get() == 0 { 201 } else { 0 } };
    synchronize() if CONTEXT.get() == 0 { 201 } else { 0 };
    attribute(to: *mut c_void, kind: i32, address: u64) {
        let (start, bytes) = KNOWN.get();
        if !(start..start + bytes).contains(&address) {
            return INVALID_VALUE;
        }
        unsafe { to.cast::<u64>().write(if kind == 2 { 1 } else { 77 }) };
        0
    };
    range(base: *mut u64, bytes: *mut usize, _address: u64) {
        unsafe { (base.write(DEVICE.get().0), bytes.write(DEVICE.get().1)) };
        0
    };
    register(_address: u64, bytes: usize, _flags: u32) {
        REGISTERED.set((REGISTERED.get().0 + 1, bytes));
        REGISTERS.get()
    };
    unregister(_address: u64) 0;
    device_pointer(to: *mut u64, address: u64, _flags: u32) { unsafe { to.write(address) }; 0 };
    host_alloc(to: *mut u64, _bytes: usize, flags: u32) { unsafe { to.write(u64::from(flags)) }; 0 };
    host_flags(to: *mut u32, address: u64) { unsafe { to.write(address as u32 | 2) }; 0 };
    free_host(_address: u64) 0;
    event_create(to: *mut u64, _flags: u32) { unsafe { to.write(9) }; 0 };
    event_record(_event: u64, _stream: u64) 0;
    one(_handle: u64) 0;
    is_capturing(_stream: u64, to: *mut i32) { unsafe { to.write(CAPTURING.get()) }; 0 };
    exchange(mode: *mut i32) { unsafe { mode.write(MODE.replace(mode.read())) }; 0 };
}

fn driver() -> Driver {
    Driver {
        context: Some(context),
        context_id: Some(context_id),
        context_device: Some(status),
        context_synchronize: Some(synchronize),
        pointer_attribute: Some(attribute),
        address_range: Some(range),
        host_register: Some(register),
        host_unregister: Some(unregister),
        host_device_pointer: Some(device_pointer),
        host_alloc: Some(host_alloc),
        host_flags: Some(host_flags),
        free_host: Some(free_host),
        copy_to_device_async: Some(to_device),
        copy_from_device_async: Some(from_device),
        event_create: Some(event_create),
        event_record: Some(event_record),
        event_query: Some(one),
        event_synchronize: Some(one),
        stream_synchronize: Some(one),
        is_capturing: Some(is_capturing),
        exchange_capture_mode: Some(exchange),
        ..Driver::default()
    }
}

/// Host and device memory of some MiB.
fn memory() -> (Vec<u8>, Vec<u8>) {
    let host = (0..3 * MIB + 123).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    let device = vec![0_u8; 3 * MIB + 123];
    DEVICE.set((device.as_ptr() as u64, device.len()));
    (host, device)
}

fn count(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[test]
fn large_pageable_copies_are_staged_and_arrive_both_ways() {
    let state = State::new(driver());
    let (host, device) = memory();
    let (from, at) = (host.as_ptr() as u64, device.as_ptr() as u64);
    assert_eq!(state.copy(Direction::H2d, at, from, host.len(), 3), Some(0));
    assert!(host == device);
    let back = vec![0_u8; host.len()];
    assert_eq!(state.copy(Direction::D2h, at, back.as_ptr() as u64, back.len(), 0), Some(0));
    assert!(back == host);
    assert_eq!((count(&state.counts.staged_copies), count(&state.counts.staged_bytes)), (2, 2 * host.len() as u64));
    assert_eq!(MODE.get(), 0, "the thread's capture mode is as before");
    assert_eq!(state.copy(Direction::H2d, at, from, MIB - 1, 0), None, "small");
    assert_eq!(state.copy(Direction::H2d, at, 0, MIB, 0), None, "no source");
    state.give_up();
    assert_eq!(state.copy(Direction::H2d, at, from, host.len(), 3), None);
}

#[test]
fn what_is_not_surely_the_same_goes_to_the_driver() {
    let state = State::new(driver());
    let (host, device) = memory();
    let (from, at, bytes) = (host.as_ptr() as u64, device.as_ptr() as u64, host.len());
    let copy = |device, from, bytes| state.copy(Direction::H2d, device, from, bytes, 0);
    assert_eq!(copy(at + 1, from, bytes), None, "beyond the allocation");
    assert_eq!(copy(at, 1 << 40, bytes), None, "not mapped");
    assert_eq!(copy(at, u64::MAX - 5, bytes), None, "beyond the last address");
    assert_eq!(count(&state.counts.passed_unsure), 3);
    for known in [from, from + bytes as u64 - 1] {
        KNOWN.set((known, 1));
        assert_eq!(copy(at, from, bytes), None, "the driver knows an end of it");
    }
    KNOWN.set((0, 0));
    assert_eq!(count(&state.counts.passed_known), 2);
    CONTEXT.set(0);
    assert_eq!(copy(at, from, bytes), None, "no context");
    CONTEXT.set(5);
    assert_eq!(count(&state.counts.passed_no_ring), 1);
    // The same with a driver that numbers no contexts, and with one that registers nothing.
    let old = State::new(Driver { context_id: None, ..driver() });
    assert_eq!(old.copy(Direction::H2d, at, from, bytes, 0), None);
    REGISTERS.set(2);
    let full = State::new(driver());
    assert_eq!(full.copy(Direction::H2d, at, from, bytes, 0), None);
    REGISTERS.set(0);
    assert_eq!(count(&old.counts.passed_no_ring) + count(&full.counts.passed_no_ring), 2);
    assert!(device.iter().all(|byte| *byte == 0), "nothing was copied");
}

#[test]
fn captures_are_left_alone() {
    let state = State::new(driver());
    let (host, device) = memory();
    let copy = || state.copy(Direction::H2d, device.as_ptr() as u64, host.as_ptr() as u64, host.len(), 0);
    state.captured(true, 0);
    state.captured(true, 1);
    assert_eq!(copy(), None, "anywhere in the process");
    assert_eq!(state.allocate(MIB, 0), None);
    state.captured(false, 401);
    assert_eq!(copy(), None, "a capture that goes on");
    state.captured(false, 901);
    CAPTURING.set(1);
    assert_eq!(copy(), None, "one that was begun unseen, on this stream");
    CAPTURING.set(0);
    assert_eq!(count(&state.counts.passed_capturing), 3);
    assert_eq!(copy(), Some(0));
    assert!(state.allocate(MIB, 0).is_some());
}

#[test]
fn a_refusal_is_the_drivers_to_tell_and_a_failure_on_the_way_is_passed_on() {
    let state = State::new(driver());
    let (host, device) = memory();
    let copy = || state.copy(Direction::H2d, device.as_ptr() as u64, host.as_ptr() as u64, host.len(), 0);
    CHUNKS_LEFT.set(0);
    assert_eq!(copy(), None, "the driver's own call tells why");
    CHUNKS_LEFT.set(1);
    assert_eq!(copy(), Some(700));
    CHUNKS_LEFT.set(u64::MAX);
    assert_eq!((count(&state.counts.passed_refused), count(&state.counts.failed_copies)), (1, 1));
    assert_eq!(copy(), Some(0), "a failure is not kept");
    assert!(host == device);
}

#[test]
fn pinned_memory_has_an_owner_until_it_is_freed() {
    let state = State::new(driver());
    assert_eq!(state.allocate(100, 0), None, "small");
    assert_eq!(state.allocate(MIB, 4), None, "write-combined");
    let address = state.allocate(MIB + 5, 1).expect("room");
    let Owner::Program(live) = state.owner(address + 77) else { panic!("{:?}", state.owner(address)) };
    assert_eq!((live.address, live.bytes, live.flags), (address, MIB as u64 + 5, 3), "as the driver shows 1");
    assert_eq!(state.owner(address + MIB as u64 + 5), Owner::Nobody, "the rest of its last page");
    assert_eq!(state.unregister(address), Some(NOT_REGISTERED));
    assert_eq!(state.free(address + 8), Some(INVALID_VALUE));
    CONTEXT.set(0);
    assert_eq!((state.free(address), state.unregister(address)), (Some(201), Some(201)));
    CONTEXT.set(6);
    assert_eq!(state.free(address), Some(0), "from another context");
    assert_eq!(state.free(address), Some(INVALID_VALUE), "once");
    CONTEXT.set(5);
    let other = state.allocate(MIB + 5, 0).expect("room");
    assert_ne!(other, address, "work of its own context may still use it");
    assert_eq!(state.free(other), Some(0));
    let again = [(); 2].map(|()| state.allocate(MIB + 5, 0).expect("room"));
    assert!(again.contains(&address), "now both are free");
    assert_eq!(again.map(|address| state.free(address)), [Some(0); 2]);
    let memory = [0_u8; 8];
    assert_eq!((state.free(memory.as_ptr() as u64), state.owner(1)), (None, Owner::Other));
    assert_eq!(count(&state.counts.pooled_allocations), 4);
}

#[test]
fn where_registering_fails_the_driver_allocates() {
    let state = State::new(driver());
    REGISTERS.set(1);
    for _ in 0..5 {
        assert_eq!(state.allocate(MIB, 0), None);
    }
    REGISTERS.set(0);
    assert_eq!(state.allocate(MIB, 0), None, "not asked again");
    assert_eq!(count(&state.counts.passed_allocations), 6);
}

/// Registering waits for the device and costs milliseconds (torchtune issue 2076); powers of two cost memory (pytorch
/// issue 95823).
#[test]
fn a_steady_program_registers_nothing_and_no_more_than_it_asked_for() {
    let state = State::new(driver());
    let (host, device) = memory();
    let (from, to, odd) = (host.as_ptr() as u64, device.as_ptr() as u64, 33 * MIB + 5);
    let step = || {
        assert_eq!(state.copy(Direction::H2d, to, from, host.len(), 0), Some(0));
        let pinned = [odd, MIB, 70_000].map(|bytes| state.allocate(bytes, 0).expect("room"));
        assert_eq!(pinned.map(|address| state.free(address)), [Some(0); 3]);
    };
    let first = state.allocate(odd, 0).expect("room");
    assert!(REGISTERED.get().1 < odd + 4096, "{} bytes registered for {odd}", REGISTERED.get().1);
    assert_eq!(state.free(first), Some(0));
    step();
    let after = REGISTERED.get().0;
    (0..3).for_each(|_| step());
    assert_eq!(REGISTERED.get().0, after);
}

#[test]
fn names_stand_for_the_newest_function_that_the_version_means() {
    let symbol = |name: &std::ffi::CStr| if name == c"cuStreamBeginCapture_v2" { 20 } else { 10 };
    let found = |name: &[u8], at, version, flags| hook_of(name, at, version, flags, symbol).map(|hook| hook.symbol);
    assert_eq!(found(b"cuMemcpyHtoD", 999, 12_080, 0), Some(c"cuMemcpyHtoD_v2"));
    assert_eq!(found(b"cuMemcpyHtoD", 999, 3_000, 0), None, "32-bit addresses then");
    assert_eq!(found(b"cuMemcpyHtoD", 999, 12_080, 2), None, "a default stream for each thread");
    assert_eq!(found(b"cuMemcpyHtoD", 999, 15_000, 0), None, "who knows");
    assert_eq!(found(b"cuMemcpyHtoD", 10, 15_000, 0), Some(c"cuMemcpyHtoD_v2"), "the very same");
    assert_eq!(found(b"cuStreamBeginCapture", 20, 10_000, 0), Some(c"cuStreamBeginCapture_v2"));
    assert_eq!(found(b"cuStreamBeginCapture", 999, 10_000, 0), Some(c"cuStreamBeginCapture"));
    assert_eq!(found(b"cuGetProcAddress", 999, 12_000, 0), Some(c"cuGetProcAddress_v2"));
    assert_eq!(found(b"cuGetProcAddress", 999, 11_080, 0), Some(c"cuGetProcAddress"));
    assert_eq!(found(b"cuLaunchKernel", 10, 12_000, 0), None);
}
