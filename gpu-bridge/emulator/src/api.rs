//! The exported functions. Each checks by the rules, then does by the engines.
//!
//! A function's documentation is the CUDA driver API's; here stand only the deviations.
#![allow(unsafe_code, non_snake_case, missing_docs, clippy::missing_safety_doc)]

use std::{
    ffi::{CStr, c_char, c_void},
    time::Duration,
};

use crate::{
    driver::{CALLING, CONTEXTS, Result, attribute_of, call, host_alloc, offer, pointer_attribute, put, top},
    engines::Work,
    memory,
    rules::{Code, TEXTS},
};

/// The version of the API that this answers for.
const VERSION: i32 = 12_080;
type Callback = unsafe extern "C" fn(*mut c_void);

/// Exports each function, and lists them for `cuGetProcAddress`: name without version suffix, first version, address.
macro_rules! api {
    ($($since:literal $base:literal fn $name:ident($($arg:ident: $kind:ty),*) $body:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($arg: $kind),*) -> i32 {
                call($body)
            }
        )*

        fn table() -> Vec<(&'static str, i32, usize)> {
            vec![$(($base, $since, $name as *const () as usize)),*]
        }
    };
}

api! {
    2000 "cuInit" fn cuInit(flags: u32) |d| d.rules().init(flags);
    2020 "cuDriverGetVersion" fn cuDriverGetVersion(version: *mut i32) |_| put(version, VERSION);
    2000 "cuDeviceGetCount" fn cuDeviceGetCount(count: *mut i32) |d| { d.rules().ready()?; put(count, 1) };
    2000 "cuDeviceGet" fn cuDeviceGet(device: *mut i32, ordinal: i32) |d| { d.rules().device(ordinal)?; put(device, 0) };
    2000 "cuDeviceGetName" fn cuDeviceGetName(name: *mut c_char, length: i32, device: i32) |d| {
        d.rules().device(device)?;
        if name.is_null() || length <= 0 {
            return Err(Code::InvalidValue);
        }
        let text = d.profile.name.as_bytes();
        let count = text.len().min(length as usize - 1);
        // SAFETY: the caller gives `length` bytes, of which `count` and a zero are written.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, count);
            name.add(count).write(0);
        }
        Ok(())
    };
    3020 "cuDeviceTotalMem" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) |d| {
        d.rules().device(device)?;
        put(bytes, d.profile.memory_bytes as usize)
    };
    11040 "cuDeviceGetUuid" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32) |d| {
        d.rules().device(device)?;
        put(uuid, *b"tensortier-emul.")
    };
    5000 "cuDeviceComputeCapability" fn cuDeviceComputeCapability(major: *mut i32, minor: *mut i32, device: i32) |d| {
        d.rules().device(device)?;
        put(major, 8)?;
        put(minor, 0)
    };
    2000 "cuDeviceGetAttribute" fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) |d| {
        d.rules().device(device)?;
        put(value, attribute_of(attribute))
    };
    7000 "cuDevicePrimaryCtxRetain" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) |d| {
        put(context, d.rules().retain(device)?)
    };
    11000 "cuDevicePrimaryCtxRelease" fn cuDevicePrimaryCtxRelease_v2(device: i32) |d| {
        d.engines.wait_for(None);
        d.rules().release(device)
    };
    7000 "cuDevicePrimaryCtxGetState" fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) |d| {
        let rules = d.rules();
        rules.device(device)?;
        put(flags, 0)?;
        put(active, i32::from(rules.primary_active()))
    };
    11000 "cuDevicePrimaryCtxSetFlags" fn cuDevicePrimaryCtxSetFlags_v2(device: i32, _flags: u32) |d| d.rules().device(device);
    3020 "cuCtxCreate" fn cuCtxCreate_v2(context: *mut u64, flags: u32, device: i32) |d| {
        let id = d.rules().create(flags, device)?;
        CONTEXTS.with_borrow_mut(|stack| stack.push(id));
        put(context, id)
    };
    4000 "cuCtxDestroy" fn cuCtxDestroy_v2(context: u64) |d| {
        d.engines.wait_for(None);
        d.rules().destroy(context)?;
        CONTEXTS.with_borrow_mut(|stack| {
            if stack.last() == Some(&context) {
                stack.pop();
            }
        });
        Ok(())
    };
    4000 "cuCtxSetCurrent" fn cuCtxSetCurrent(context: u64) |d| {
        if context != 0 {
            d.rules().current(Some(context))?;
        }
        d.rules().ready()?;
        CONTEXTS.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend((context != 0).then_some(context));
        });
        Ok(())
    };
    4000 "cuCtxGetCurrent" fn cuCtxGetCurrent(context: *mut u64) |d| {
        d.rules().ready()?;
        put(context, top().unwrap_or(0))
    };
    4000 "cuCtxPushCurrent" fn cuCtxPushCurrent_v2(context: u64) |d| {
        d.rules().current(Some(context))?;
        CONTEXTS.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    };
    4000 "cuCtxPopCurrent" fn cuCtxPopCurrent_v2(context: *mut u64) |d| {
        d.rules().ready()?;
        offer(context, CONTEXTS.with_borrow_mut(Vec::pop).ok_or(Code::InvalidContext)?);
        Ok(())
    };
    12000 "cuCtxGetId" fn cuCtxGetId(context: u64, id: *mut u64) |d| {
        // Handles are never given twice here.
        let context = if context == 0 { top() } else { Some(context) };
        put(id, d.rules().current(context)?)
    };
    2000 "cuCtxGetDevice" fn cuCtxGetDevice(device: *mut i32) |d| { drop(d.within()?); put(device, 0) };
    3020 "cuCtxGetApiVersion" fn cuCtxGetApiVersion(_context: u64, version: *mut u32) |d| {
        drop(d.within()?);
        put(version, 3020)
    };
    2000 "cuCtxSynchronize" fn cuCtxSynchronize() |d| { drop(d.within()?); d.engines.wait_for(None); Ok(()) };
    3020 "cuMemGetInfo" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |d| {
        let (left, all) = d.within()?.memory();
        put(free, left as usize)?;
        put(total, all as usize)
    };
    3020 "cuMemAlloc" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) |d| {
        let mut rules = d.within()?;
        if address.is_null() {
            return Err(Code::InvalidValue);
        }
        put(address, rules.allocate(bytes as u64)?)
    };
    3020 "cuMemFree" fn cuMemFree_v2(address: u64) |d| {
        drop(d.within()?);
        if address == 0 {
            return Ok(());
        }
        d.engines.wait_for(None);
        let bytes = d.rules().free(address)?;
        // Only whole pages of it; the edges may be others'.
        let (start, end) = (address.next_multiple_of(4096), (address + bytes) / 4096 * 4096);
        if start < end {
            d.memory.forget(start, end - start);
        }
        Ok(())
    };
    3020 "cuMemGetAddressRange" fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) |d| {
        let (start, length) = d.within()?.allocation(address)?;
        offer(base, start);
        offer(bytes, length as usize);
        Ok(())
    };
    3020 "cuMemAllocHost" fn cuMemAllocHost_v2(address: *mut u64, bytes: usize) |d| host_alloc(d, address, bytes, 0);
    2020 "cuMemHostAlloc" fn cuMemHostAlloc(address: *mut u64, bytes: usize, flags: u32) |d| {
        host_alloc(d, address, bytes, flags)
    };
    2000 "cuMemFreeHost" fn cuMemFreeHost(address: u64) |d| {
        drop(d.within()?);
        d.engines.wait_for(None);
        let host = d.rules().unpin(address, true)?;
        d.pins().remove(&address);
        memory::host_unmap(address, host.bytes as usize);
        Ok(())
    };
    6050 "cuMemHostRegister" fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) |d| {
        d.within()?.can_pin(address, bytes as u64, flags, false)?;
        d.hold(address, bytes as u64)?;
        let known = d.rules().pin(address, bytes as u64, flags, false);
        if known.is_err() {
            d.pins().remove(&address);
        }
        known
    };
    4000 "cuMemHostUnregister" fn cuMemHostUnregister(address: u64) |d| {
        drop(d.within()?);
        d.engines.wait_for(None);
        d.rules().unpin(address, false)?;
        d.pins().remove(&address);
        Ok(())
    };
    3020 "cuMemHostGetDevicePointer" fn cuMemHostGetDevicePointer_v2(to: *mut u64, address: u64, flags: u32) |d| {
        let rules = d.within()?;
        if flags != 0 || rules.pinned(address).is_none() {
            return Err(Code::InvalidValue);
        }
        put(to, address)
    };
    3000 "cuMemHostGetFlags" fn cuMemHostGetFlags(flags: *mut u32, address: u64) |d| {
        put(flags, d.within()?.pinned(address).ok_or(Code::InvalidValue)?.1.flags)
    };
    4000 "cuPointerGetAttribute" fn cuPointerGetAttribute(to: *mut c_void, attribute: i32, address: u64) |d| {
        pointer_attribute(&*d.within()?, to, attribute, address)
    };
    3020 "cuMemcpyHtoD" fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) |d| {
        d.copy(|r| r.named(to, from, bytes as u64, (true, false)), (to, from, bytes), 0, true)
    };
    3020 "cuMemcpyDtoH" fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) |d| {
        d.copy(|r| r.named(to, from, bytes as u64, (false, true)), (to, from, bytes), 0, true)
    };
    3020 "cuMemcpyDtoD" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) |d| {
        d.copy(|r| r.named(to, from, bytes as u64, (true, true)), (to, from, bytes), 0, true)
    };
    4000 "cuMemcpy" fn cuMemcpy(to: u64, from: u64, bytes: usize) |d| {
        d.copy(|r| r.transfer(to, from, bytes as u64), (to, from, bytes), 0, true)
    };
    3020 "cuMemcpyHtoDAsync" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) |d| {
        d.copy(|r| r.named(to, from, bytes as u64, (true, false)), (to, from, bytes), stream, false)
    };
    3020 "cuMemcpyDtoHAsync" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) |d| {
        d.copy(|r| r.named(to, from, bytes as u64, (false, true)), (to, from, bytes), stream, false)
    };
    3020 "cuMemcpyDtoDAsync" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) |d| {
        d.copy(|r| r.named(to, from, bytes as u64, (true, true)), (to, from, bytes), stream, false)
    };
    4000 "cuMemcpyAsync" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) |d| {
        d.copy(|r| r.transfer(to, from, bytes as u64), (to, from, bytes), stream, false)
    };
    3020 "cuMemsetD8" fn cuMemsetD8_v2(to: u64, value: u8, count: usize) |d| d.fill(to, value.into(), 1, count, None);
    3020 "cuMemsetD16" fn cuMemsetD16_v2(to: u64, value: u16, count: usize) |d| d.fill(to, value.into(), 2, count, None);
    3020 "cuMemsetD32" fn cuMemsetD32_v2(to: u64, value: u32, count: usize) |d| d.fill(to, value, 4, count, None);
    3020 "cuMemsetD8Async" fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) |d| {
        d.fill(to, value.into(), 1, count, Some(stream))
    };
    3020 "cuMemsetD32Async" fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) |d| {
        d.fill(to, value, 4, count, Some(stream))
    };
    2000 "cuStreamCreate" fn cuStreamCreate(stream: *mut u64, flags: u32) |d| {
        put(stream, d.within()?.stream_create(flags)?)
    };
    5050 "cuStreamCreateWithPriority" fn cuStreamCreateWithPriority(stream: *mut u64, flags: u32, _priority: i32) |d| {
        put(stream, d.within()?.stream_create(flags)?)
    };
    4000 "cuStreamDestroy" fn cuStreamDestroy_v2(stream: u64) |d| {
        d.within()?.stream_destroy(stream)?;
        d.engines.forget(stream);
        Ok(())
    };
    5050 "cuStreamGetFlags" fn cuStreamGetFlags(stream: u64, flags: *mut u32) |d| {
        let (_, blocking) = d.queue(stream)?;
        put(flags, u32::from(!blocking))
    };
    2000 "cuStreamSynchronize" fn cuStreamSynchronize(stream: u64) |d| {
        let (queue, _) = d.queue(stream)?;
        d.engines.wait_for(Some(queue));
        Ok(())
    };
    2000 "cuStreamQuery" fn cuStreamQuery(stream: u64) |d| {
        let (queue, _) = d.queue(stream)?;
        if d.engines.is_idle(queue) { Ok(()) } else { Err(Code::NotReady) }
    };
    3020 "cuStreamWaitEvent" fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) |d| {
        let (queue, blocking) = d.queue(stream)?;
        d.rules().event(event)?;
        // 1 is CU_EVENT_WAIT_EXTERNAL, which means something in graphs only.
        if flags > 1 {
            return Err(Code::InvalidValue);
        }
        d.engines.wait_event(event, queue, blocking);
        Ok(())
    };
    10000 "cuLaunchHostFunc" fn cuLaunchHostFunc(stream: u64, function: Option<Callback>, data: u64) |d| {
        let (queue, blocking) = d.queue(stream)?;
        let function = function.ok_or(Code::InvalidValue)?;
        // SAFETY: the program's function with the program's data, as it asked for.
        let work = Work::Call(Box::new(move || calling(|| unsafe { function(data as *mut c_void) })));
        d.engines.issue(queue, blocking, work);
        Ok(())
    };
    2000 "cuEventCreate" fn cuEventCreate(event: *mut u64, flags: u32) |d| put(event, d.within()?.event_create(flags)?);
    4000 "cuEventDestroy" fn cuEventDestroy_v2(event: u64) |d| {
        d.within()?.event_destroy(event)?;
        d.engines.forget_event(event);
        Ok(())
    };
    2000 "cuEventRecord" fn cuEventRecord(event: u64, stream: u64) |d| {
        let (queue, blocking) = d.queue(stream)?;
        d.rules().event(event)?;
        d.engines.record(event, queue, blocking);
        Ok(())
    };
    2000 "cuEventSynchronize" fn cuEventSynchronize(event: u64) |d| {
        d.within()?.event(event)?;
        d.engines.wait_made(event);
        Ok(())
    };
    2000 "cuEventQuery" fn cuEventQuery(event: u64) |d| {
        d.within()?.event(event)?;
        if d.engines.is_made(event) { Ok(()) } else { Err(Code::NotReady) }
    };
    2000 "cuEventElapsedTime" fn cuEventElapsedTime(millis: *mut f32, start: u64, end: u64) |d| {
        for event in [start, end] {
            d.within()?.timed(event)?;
            if !d.engines.is_made(event) {
                return Err(Code::NotReady);
            }
        }
        let (start, end) = (d.engines.made_at(start), d.engines.made_at(end));
        let (start, end) = (start.ok_or(Code::InvalidHandle)?, end.ok_or(Code::InvalidHandle)?);
        let forward = end.saturating_duration_since(start).as_secs_f32();
        put(millis, (forward - start.saturating_duration_since(end).as_secs_f32()) * 1e3)
    };
    6000 "cuGetErrorName" fn cuGetErrorName(code: i32, text: *mut *const c_char) |_| {
        let found = TEXTS.iter().find(|entry| entry.0 == code);
        offer(text, found.map_or(std::ptr::null(), |entry| entry.1.as_ptr().cast()));
        found.map(drop).ok_or(Code::InvalidValue)
    };
    6000 "cuGetErrorString" fn cuGetErrorString(code: i32, text: *mut *const c_char) |_| {
        let found = TEXTS.iter().find(|entry| entry.0 == code);
        offer(text, found.map_or(std::ptr::null(), |entry| entry.2.as_ptr().cast()));
        found.map(drop).ok_or(Code::InvalidValue)
    };
    12000 "cuGetProcAddress" fn cuGetProcAddress_v2(
        name: *const c_char, to: *mut usize, version: i32, flags: u64, status: *mut i32
    ) |_| {
        let (address, state) = look_up(name, version, flags)?;
        offer(status, state);
        put(to, address)?;
        if address == 0 { Err(Code::NotFound) } else { Ok(()) }
    };
    11030 "cuGetProcAddress" fn cuGetProcAddress(name: *const c_char, to: *mut usize, version: i32, flags: u64) |_| {
        let (address, _) = look_up(name, version, flags)?;
        put(to, address)?;
        if address == 0 { Err(Code::NotFound) } else { Ok(()) }
    };
}

/// Runs the program's code where it must not call the API.
fn calling(body: impl FnOnce()) {
    CALLING.set(true);
    body();
    CALLING.set(false);
}

/// The address of a function by its name without suffix, and 0: found, 1: no such name, 2: not at this version.
fn look_up(name: *const c_char, version: i32, flags: u64) -> Result<(usize, i32)> {
    // Flags: 0 and 1 ask for the legacy default stream, 2 for one a thread, of which there are no variants here.
    if name.is_null() || flags > 2 {
        return Err(Code::InvalidValue);
    }
    // SAFETY: not null; the API's contract makes it a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let table = table();
    let named = || table.iter().filter(|entry| entry.0.as_bytes() == name && flags < 2);
    let newest = named().filter(|entry| entry.1 <= version).max_by_key(|entry| entry.1);
    Ok(match newest {
        Some(entry) => (entry.2, 0),
        None => (0, if named().next().is_some() { 2 } else { 1 }),
    })
}

/// Sets both engines' rates, bytes per second: a link that changes. Not of the driver's API.
#[unsafe(no_mangle)]
pub extern "C" fn tensortier_emulator_link(h2d: f64, d2h: f64) -> i32 {
    call(|d| {
        if !(h2d.is_finite() && d2h.is_finite() && h2d > 0.0 && d2h > 0.0) {
            return Err(Code::InvalidValue);
        }
        d.engines.set_rates(h2d, d2h);
        Ok(())
    })
}

/// Runs a function of the program's as a kernel of `nanos` on a stream. `run` is given `data` and what a device address
/// has to grow by, wrapping, to be the address of its byte; `done` is given `data` when that time is over. Each is called
/// once, on the processor's thread, and calls nothing of CUDA. Not of the driver's API, whose modules are not here.
#[unsafe(no_mangle)]
pub extern "C" fn tensortier_emulator_launch(
    stream: u64,
    nanos: u64,
    run: Option<unsafe extern "C" fn(*mut c_void, u64)>,
    done: Option<Callback>,
    data: u64,
) -> i32 {
    call(|d| {
        let (queue, blocking) = d.queue(stream)?;
        let (run, done) = (run.ok_or(Code::InvalidValue)?, done.ok_or(Code::InvalidValue)?);
        // SAFETY: the program's functions with the program's data, as it asked for.
        let run = Box::new(move |shift| calling(|| unsafe { run(data as *mut c_void, shift) }));
        // SAFETY: as above.
        let done = Box::new(move || calling(|| unsafe { done(data as *mut c_void) }));
        d.engines.issue(queue, blocking, Work::Kernel { run, time: Duration::from_nanos(nanos), done });
        Ok(())
    })
}
