//! The exported functions. Each checks by the rules, then does by the engines.
//!
//! A function's documentation is the CUDA driver API's; here stand only the deviations.
#![allow(unsafe_code, non_snake_case, missing_docs, clippy::missing_safety_doc)]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ffi::{CStr, c_char, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    engines::{Engines, Work},
    memory::{self, DeviceMemory},
    pin::Pin,
    profile::Profile,
    rules::{Code, Rules, TEXTS, Transfer},
};

/// The version of the API that this answers for.
const VERSION: i32 = 12_080;
type Result<T> = std::result::Result<T, Code>;
type Callback = unsafe extern "C" fn(*mut c_void);

struct Driver {
    profile: Profile,
    rules: Mutex<Rules>,
    engines: Arc<Engines>,
    memory: Arc<DeviceMemory>,
    pins: Mutex<BTreeMap<u64, Option<Pin>>>,
}

static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Current contexts, the last on top.
    static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
    /// Whether the thread is in a callback, where the API must not be called.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

impl Driver {
    fn new() -> std::result::Result<Self, String> {
        let profile = Profile::chosen()?;
        let memory = DeviceMemory::new(profile.memory_bytes).map_err(|error| format!("device memory: {error}"))?;
        let memory = Arc::new(memory);
        let latency = Duration::from_nanos(profile.latency_ns);
        let engines = Engines::start(Arc::clone(&memory), [profile.h2d, profile.d2h], latency);
        let rules = Mutex::new(Rules::new(memory.base, profile.memory_bytes));
        Ok(Self { profile, rules, engines, memory, pins: Mutex::new(BTreeMap::new()) })
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rules, where a context is current.
    fn within(&self) -> Result<MutexGuard<'_, Rules>> {
        let rules = self.rules();
        rules.current(top())?;
        Ok(rules)
    }

    /// Takes a long-term pin; where the system has no io_uring for us it goes without and says so once.
    fn hold(&self, address: u64, bytes: u64) -> Result<()> {
        let pin = match Pin::new(address as usize, bytes as usize) {
            Ok(pin) => Some(pin),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                static SAID: OnceLock<()> = OnceLock::new();
                SAID.get_or_init(|| {
                    eprintln!("tensortier emulator: no io_uring ({error}); registered memory is not pinned")
                });
                None
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => return Err(Code::OutOfMemory),
            Err(_) => return Err(Code::InvalidValue),
        };
        self.pins().insert(address, pin);
        Ok(())
    }

    fn pins(&self) -> MutexGuard<'_, BTreeMap<u64, Option<Pin>>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a copy on a stream. One of pageable memory is over on return, so what its source held is captured.
    fn copy(
        &self,
        check: impl FnOnce(&Rules) -> Result<Transfer>,
        ends: (u64, u64, usize),
        stream: u64,
        sync: bool,
    ) -> Result<()> {
        let (to, from, bytes) = ends;
        let (transfer, queue, flags) = {
            let rules = self.within()?;
            let (queue, flags) = rules.stream(stream, THREAD.with(|thread| *thread))?;
            if bytes == 0 {
                return Ok(());
            }
            (check(&rules)?, queue, flags)
        };
        let share = match (transfer.pageable, transfer.engine) {
            (true, 0) => self.profile.pageable_h2d,
            (true, 1) => self.profile.pageable_d2h,
            _ => 1.0,
        };
        let work = Work::Copy { to, from, bytes: bytes as u64, engine: transfer.engine, share };
        self.engines.issue(queue, flags == 0, work);
        if sync || transfer.pageable {
            self.engines.wait_for(Some(queue));
        }
        Ok(())
    }

    fn fill(&self, to: u64, value: u32, width: usize, count: usize, stream: Option<u64>) -> Result<()> {
        let (queue, flags) = {
            let rules = self.within()?;
            let at = rules.stream(stream.unwrap_or(0), THREAD.with(|thread| *thread))?;
            if count == 0 {
                return Ok(());
            }
            let bytes = count.checked_mul(width).ok_or(Code::InvalidValue)?;
            if !to.is_multiple_of(width as u64) {
                return Err(Code::InvalidValue);
            }
            rules.device_range(to, bytes as u64)?;
            at
        };
        self.engines.issue(queue, flags == 0, Work::Fill { to, value, width, count });
        if stream.is_none() {
            self.engines.wait_for(Some(queue));
        }
        Ok(())
    }

    /// A stream's queue, and whether it keeps the default stream's order.
    fn queue(&self, stream: u64) -> Result<(u64, bool)> {
        let (queue, flags) = self.within()?.stream(stream, THREAD.with(|thread| *thread))?;
        Ok((queue, flags == 0))
    }
}

fn top() -> Option<u64> {
    CONTEXTS.with_borrow(|stack| stack.last().copied())
}

/// Runs a call; whatever happens, the host lives.
fn call(body: impl FnOnce(&Driver) -> Result<()>) -> i32 {
    if CALLING.get() {
        return Code::NotPermitted as i32;
    }
    let driver = match DRIVER.get_or_init(Driver::new) {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("tensortier emulator: {error}");
            return Code::Unknown as i32;
        }
    };
    match catch_unwind(AssertUnwindSafe(|| body(driver))) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code as i32,
        Err(_) => Code::Unknown as i32,
    }
}

/// Writes a result through the caller's pointer.
fn put<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: not null; that it points at a T is the API's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// As [`put`], where the caller may want no result.
fn offer<T>(to: *mut T, value: T) {
    if !to.is_null() {
        let _ = put(to, value);
    }
}

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
        let work = Work::Call(Box::new(move || {
            CALLING.set(true);
            // SAFETY: the program's function with the program's data, as it asked for.
            unsafe { function(data as *mut c_void) };
            CALLING.set(false);
        }));
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

fn host_alloc(d: &Driver, address: *mut u64, bytes: usize, flags: u32) -> Result<()> {
    drop(d.within()?);
    if address.is_null() || bytes == 0 {
        return Err(Code::InvalidValue);
    }
    let at = memory::host_map(bytes).map_err(|_| Code::OutOfMemory)?;
    let known = d.hold(at, bytes as u64).and_then(|()| d.rules().pin(at, bytes as u64, flags, true));
    if let Err(code) = known {
        d.pins().remove(&at);
        memory::host_unmap(at, bytes);
        return Err(code);
    }
    put(address, at)
}

/// Context, memory type (1 host, 2 device), device and host pointer; of others there are none here.
fn pointer_attribute(rules: &Rules, to: *mut c_void, attribute: i32, address: u64) -> Result<()> {
    let device = rules.is_device(address) && rules.allocation(address).is_ok();
    if !device && rules.pinned(address).is_none() {
        return Err(Code::InvalidValue);
    }
    match attribute {
        1 => put(to.cast(), rules.current(top())?),
        2 => put(to.cast(), if device { 2_u32 } else { 1 }),
        3 => put(to.cast(), address),
        4 if !device => put(to.cast(), address),
        8 => put(to.cast(), 0_u32),
        9 => put(to.cast(), 0_i32),
        _ => Err(Code::InvalidValue),
    }
}

/// Device attributes by their numbers: those of a device that copies and computes nothing.
fn attribute_of(attribute: i32) -> i32 {
    match attribute {
        // Two copy engines (40), unified addressing (41), overlap (15), mapped host memory (19), compute 8.0 (75, 76),
        // registering host memory (99); its pointers are the device's too (91 says so of pageable ones: no).
        40 => 2,
        15 | 19 | 41 | 99 => 1,
        75 => 8,
        // Warp, threads, multiprocessors: what a program divides by is not 0.
        10 => 32,
        1..=7 | 12 | 16 | 39 => 1,
        _ => 0,
    }
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
