//! The driver's rules, by its functions: every test has the process's one device, so they use memory of their own.
#![allow(unsafe_code)]

use std::{ffi::c_void, ptr};

use crate::{api::*, rules::Code};

const MIB: usize = 1 << 20;

fn context() {
    assert_eq!(cuInit(0), 0);
    let mut context = 0;
    assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 0), 0);
    assert_eq!(cuCtxSetCurrent(context), 0);
}

fn code(code: Code) -> i32 {
    code as i32
}

fn device(bytes: usize) -> u64 {
    let mut address = 0;
    assert_eq!(cuMemAlloc_v2(&mut address, bytes), 0);
    address
}

fn pattern(bytes: usize, seed: u32) -> Vec<u8> {
    (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 11) as u8).collect()
}

#[test]
fn a_thread_without_a_context_is_told_so() {
    context();
    let other = std::thread::spawn(|| {
        let mut address = 0;
        (cuMemAlloc_v2(&mut address, 4096), cuCtxSynchronize(), cuCtxPopCurrent_v2(ptr::null_mut()))
    });
    let wrong = code(Code::InvalidContext);
    assert_eq!(other.join().expect("no panic"), (wrong, wrong, wrong));
    assert_eq!(cuInit(1), code(Code::InvalidValue));
    let mut device = 0;
    assert_eq!(cuDeviceGet(&mut device, 1), code(Code::InvalidDevice));
}

#[test]
fn the_name_says_emulator() {
    context();
    let mut name = [0; 64];
    assert_eq!(cuDeviceGetName(name.as_mut_ptr(), 64, 0), 0);
    let text: String = name.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
    assert!(text.contains("emulator"), "{text}");
    assert_eq!(cuDeviceGetName(name.as_mut_ptr(), 4, 0), 0);
    assert_eq!(name[3], 0, "cut and still a string");
}

#[test]
fn bytes_go_there_and_back_by_every_way() {
    context();
    for (kind, bytes) in [("pageable", 3 * MIB + 5), ("pinned", 2 * MIB + 1), ("registered", MIB)] {
        let there = device(bytes);
        let (from, to) = (pattern(bytes, bytes as u32), vec![0_u8; bytes]);
        let (mut source, mut sink) = (from.as_ptr() as u64, to.as_ptr() as u64);
        if kind == "pinned" {
            assert_eq!(cuMemAllocHost_v2(&mut source, bytes), 0);
            assert_eq!(cuMemHostAlloc(&mut sink, bytes, 1), 0);
            // Host to host is a copy too.
            assert_eq!(cuMemcpy(source, from.as_ptr() as u64, bytes), 0);
        } else if kind == "registered" {
            assert_eq!(cuMemHostRegister_v2(source, bytes, 0), 0);
        }
        let mut stream = 0;
        assert_eq!(cuStreamCreate(&mut stream, 1), 0);
        assert_eq!(cuMemcpyHtoDAsync_v2(there, source, bytes, stream), 0);
        assert_eq!(cuMemcpyDtoHAsync_v2(sink, there, bytes, stream), 0);
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert_eq!(cuStreamDestroy_v2(stream), 0);
        if kind == "pinned" {
            assert_eq!(cuMemcpy(to.as_ptr() as u64, sink, bytes), 0);
            assert_eq!((cuMemFreeHost(source), cuMemFreeHost(sink)), (0, 0));
            assert_eq!(cuMemFreeHost(sink), code(Code::InvalidValue), "once");
        } else if kind == "registered" {
            assert_eq!(cuMemHostUnregister(source), 0);
        }
        assert!(from == to, "{kind}");
        assert_eq!(cuMemFree_v2(there), 0);
    }
}

#[test]
fn memory_is_allocated_and_freed_by_the_rules() {
    context();
    let mut address = 0;
    assert_eq!(cuMemAlloc_v2(&mut address, 0), code(Code::InvalidValue));
    assert_eq!(cuMemAlloc_v2(&mut address, usize::MAX), code(Code::OutOfMemory));
    assert_eq!(cuMemAlloc_v2(ptr::null_mut(), 4096), code(Code::InvalidValue));
    let block = device(MIB);
    let (mut base, mut bytes) = (0, 0);
    assert_eq!(cuMemGetAddressRange_v2(&mut base, &mut bytes, block + 77), 0);
    assert_eq!((base, bytes), (block, MIB));
    assert_eq!(cuMemFree_v2(block + 512), code(Code::InvalidValue));
    assert_eq!(cuMemsetD8_v2(block, 7, MIB + 1), code(Code::InvalidValue));
    assert_eq!(cuMemsetD32_v2(block + 2, 7, 1), code(Code::InvalidValue), "not aligned");
    assert_eq!((cuMemFree_v2(block), cuMemFree_v2(block), cuMemFree_v2(0)), (0, code(Code::InvalidValue), 0));
}

#[test]
fn copies_outside_of_what_is_allocated_are_refused() {
    context();
    let block = device(4096);
    let host = [1_u8; 8192];
    let at = host.as_ptr() as u64;
    assert_eq!(cuMemcpyHtoD_v2(block, at, 4097), code(Code::InvalidValue));
    assert_eq!(cuMemcpyHtoD_v2(at, at, 16), code(Code::InvalidValue), "not a device address");
    assert_eq!(cuMemcpyDtoH_v2(at, at, 16), code(Code::InvalidValue));
    assert_eq!(cuMemcpyHtoD_v2(block, 0, 16), code(Code::InvalidValue));
    assert_eq!(cuMemcpyHtoD_v2(block, at, 0), 0);
    assert_eq!(cuMemcpyHtoDAsync_v2(block, at, 16, 0xdead), code(Code::InvalidHandle));
    assert_eq!(cuMemFree_v2(block), 0);
}

#[test]
fn registration_is_once_whole_and_the_owners() {
    context();
    let memory = vec![0_u8; 4 * MIB];
    let at = (memory.as_ptr() as u64).next_multiple_of(4096);
    assert_eq!(cuMemHostRegister_v2(at, 0, 0), code(Code::InvalidValue));
    assert_eq!(cuMemHostRegister_v2(at, 4096, 0x100), code(Code::InvalidValue));
    assert_eq!(cuMemHostRegister_v2(at, MIB, 1), 0);
    let again = code(Code::HostMemoryAlreadyRegistered);
    assert_eq!(cuMemHostRegister_v2(at + 4096, 4096, 0), again);
    assert_eq!(cuMemHostRegister_v2(at + MIB as u64 - 1, MIB, 0), again);
    assert_eq!(cuMemHostRegister_v2(at + MIB as u64, MIB, 0), 0, "beside it");
    let mut flags = 9;
    assert_eq!(cuMemHostGetFlags(&mut flags, at + 5), 0);
    assert_eq!(flags, 1);
    assert_eq!(cuMemHostUnregister(at + 4096), code(Code::HostMemoryNotRegistered));
    assert_eq!(cuMemFreeHost(at), code(Code::InvalidValue), "not the driver's");
    assert_eq!((cuMemHostUnregister(at), cuMemHostUnregister(at + MIB as u64)), (0, 0));
    assert_eq!(cuMemHostUnregister(at), code(Code::HostMemoryNotRegistered));
    assert_eq!(cuMemHostGetFlags(&mut flags, at), code(Code::InvalidValue));
    // Never mapped: the pin finds out.
    assert_eq!(cuMemHostRegister_v2(1 << 40, 4096, 0), code(Code::InvalidValue));
}

#[test]
fn streams_and_events_keep_their_order() {
    context();
    let (mut a, mut b, mut event, mut other) = (0, 0, 0, 0);
    assert_eq!((cuStreamCreate(&mut a, 1), cuStreamCreate(&mut b, 1)), (0, 0));
    assert_eq!((cuEventCreate(&mut event, 0), cuEventCreate(&mut other, 2)), (0, 0));
    assert_eq!(cuEventQuery(event), 0, "never recorded");
    let block = device(16 * MIB);
    let mut host = 0;
    assert_eq!(cuMemAllocHost_v2(&mut host, 16 * MIB), 0);
    // 16 MiB at 2 GB/s take 8 ms: what follows is issued before they end.
    assert_eq!(cuMemcpyHtoDAsync_v2(block, host, 16 * MIB, a), 0);
    assert_eq!(cuEventRecord(event, a), 0);
    assert_eq!(cuStreamQuery(a), code(Code::NotReady));
    assert_eq!(cuEventQuery(event), code(Code::NotReady));
    assert_eq!(cuStreamWaitEvent(b, event, 0), 0);
    assert_eq!(cuMemsetD8Async(block, 5, 16 * MIB, b), 0);
    assert_eq!(cuStreamSynchronize(b), 0);
    assert_eq!(cuEventQuery(event), 0, "b has waited for it");
    let mut millis = 0.0;
    assert_eq!(cuEventElapsedTime(&mut millis, event, other), code(Code::InvalidHandle), "takes no times");
    let mut late = 0;
    assert_eq!(cuEventCreate(&mut late, 0), 0);
    assert_eq!(cuEventElapsedTime(&mut millis, event, late), code(Code::InvalidHandle), "never recorded");
    assert_eq!((cuMemcpyHtoDAsync_v2(block, host, 16 * MIB, a), cuEventRecord(late, a)), (0, 0));
    assert_eq!(cuEventSynchronize(late), 0);
    assert_eq!(cuEventElapsedTime(&mut millis, event, late), 0);
    assert!(millis >= 8.0, "as long as modelled at least: {millis} ms");
    assert_eq!((cuStreamDestroy_v2(a), cuStreamDestroy_v2(a)), (0, code(Code::InvalidHandle)));
    assert_eq!((cuStreamDestroy_v2(b), cuEventDestroy_v2(event), cuEventDestroy_v2(other)), (0, 0, 0));
    assert_eq!((cuMemFreeHost(host), cuMemFree_v2(block)), (0, 0));
}

/// What the function of a test's stream found.
static FOUND: std::sync::Mutex<Vec<i32>> = std::sync::Mutex::new(Vec::new());

extern "C" fn look(data: *mut c_void) {
    FOUND.lock().expect("no panic").extend([data as usize as i32, cuCtxSynchronize()]);
}

#[test]
fn a_host_function_runs_in_order_and_may_not_call_the_driver() {
    context();
    let mut stream = 0;
    assert_eq!(cuStreamCreate(&mut stream, 0), 0);
    assert_eq!(cuLaunchHostFunc(stream, None, 0), code(Code::InvalidValue));
    assert_eq!(cuLaunchHostFunc(stream, Some(look), 41), 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert_eq!(*FOUND.lock().expect("no panic"), [41, code(Code::NotPermitted)]);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
}

#[test]
fn functions_are_found_by_name_and_version() {
    let find = |name: &std::ffi::CStr, version| {
        let (mut address, mut status) = (1, 9);
        let result = cuGetProcAddress_v2(name.as_ptr(), &mut address, version, 0, &mut status);
        (result, address, status)
    };
    assert_eq!(find(c"cuMemAlloc", 12_000), (0, cuMemAlloc_v2 as *const () as usize, 0));
    assert_eq!(find(c"cuLaunchKernel", 12_000), (code(Code::NotFound), 0, 1));
    assert_eq!(find(c"cuLaunchHostFunc", 9_000), (code(Code::NotFound), 0, 2));
    assert_eq!(find(c"cuGetProcAddress", 12_000).1, cuGetProcAddress_v2 as *const () as usize);
    assert_eq!(find(c"cuGetProcAddress", 11_080).1, cuGetProcAddress as *const () as usize);
    let mut address = 1;
    assert_eq!(cuGetProcAddress(c"cuNothing".as_ptr(), &mut address, 12_000, 0), code(Code::NotFound));
    assert_eq!(cuGetProcAddress(ptr::null(), &mut address, 12_000, 0), code(Code::InvalidValue));
}

#[test]
fn every_code_has_a_name() {
    let mut text = ptr::null();
    assert_eq!(cuGetErrorName(712, &mut text), 0);
    assert!(!text.is_null());
    assert_eq!(cuGetErrorString(5555, &mut text), code(Code::InvalidValue));
    assert!(text.is_null());
}

/// What a kernel of the test's has: where its byte is, and how often each function was called.
struct Add {
    at: u64,
    by: u8,
    ran: u32,
    ended: u32,
}

unsafe extern "C" fn add(data: *mut c_void, shift: u64) {
    // SAFETY: the test's own structure, and a byte of device memory.
    unsafe {
        let add = &mut *data.cast::<Add>();
        let byte = add.at.wrapping_add(shift) as *mut u8;
        *byte = (*byte).wrapping_mul(3).wrapping_add(add.by);
        add.ran += 1;
        // Nothing of CUDA may be called here.
        assert_eq!(cuCtxSynchronize(), code(Code::NotPermitted));
    }
}

unsafe extern "C" fn ended(data: *mut c_void) {
    // SAFETY: as above.
    unsafe { (*data.cast::<Add>()).ended += 1 };
}

#[test]
fn kernels_keep_a_streams_order_take_their_time_and_are_told_when_it_is_over() {
    context();
    let at = device(4096);
    let mut adds = [1, 5].map(|by| Add { at, by, ran: 0, ended: 0 });
    let mut stream = 0;
    assert_eq!(cuStreamCreate(&mut stream, 1), 0);
    assert_eq!(cuMemsetD8Async(at, 2, 16, stream), 0);
    let began = std::time::Instant::now();
    for data in &mut adds {
        let data = ptr::from_mut(data) as u64;
        assert_eq!(tensortier_emulator_launch(stream, 3_000_000, Some(add), Some(ended), data), 0);
    }
    let mut back = [0_u8; 2];
    assert_eq!(cuMemcpyDtoHAsync_v2(back.as_mut_ptr() as u64, at, 2, stream), 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert!(began.elapsed() >= std::time::Duration::from_millis(6));
    assert_eq!(back, [(2 * 3 + 1) * 3 + 5, 2]);
    assert!(adds.iter().all(|add| (add.ran, add.ended) == (1, 1)));
    let refused = tensortier_emulator_launch(stream + 999, 1, Some(add), Some(ended), 0);
    assert_ne!(refused, 0);
    assert_eq!(tensortier_emulator_launch(stream, 1, None, Some(ended), 0), code(Code::InvalidValue));
    assert_eq!(cuStreamDestroy_v2(stream), 0);
    assert_eq!(cuMemFree_v2(at), 0);
}
