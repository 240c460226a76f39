//! What the exported functions share: the one driver of the process, its rules and engines, and how a call is run.
#![allow(unsafe_code)]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ffi::c_void,
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
    rules::{Code, Rules, Transfer},
};

pub(crate) type Result<T> = std::result::Result<T, Code>;

pub(crate) struct Driver {
    pub(crate) profile: Profile,
    rules: Mutex<Rules>,
    pub(crate) engines: Arc<Engines>,
    pub(crate) memory: Arc<DeviceMemory>,
    pins: Mutex<BTreeMap<u64, Option<Pin>>>,
}

static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Current contexts, the last on top.
    pub(crate) static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
    /// Whether the thread is in a callback, where the API must not be called.
    pub(crate) static CALLING: Cell<bool> = const { Cell::new(false) };
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

    pub(crate) fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rules, where a context is current.
    pub(crate) fn within(&self) -> Result<MutexGuard<'_, Rules>> {
        let rules = self.rules();
        rules.current(top())?;
        Ok(rules)
    }

    /// Takes a long-term pin; where the system has no io_uring for us it goes without and says so once.
    pub(crate) fn hold(&self, address: u64, bytes: u64) -> Result<()> {
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

    pub(crate) fn pins(&self) -> MutexGuard<'_, BTreeMap<u64, Option<Pin>>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a copy on a stream. One of pageable memory is over on return, so what its source held is captured.
    pub(crate) fn copy(
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

    pub(crate) fn fill(&self, to: u64, value: u32, width: usize, count: usize, stream: Option<u64>) -> Result<()> {
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
    pub(crate) fn queue(&self, stream: u64) -> Result<(u64, bool)> {
        let (queue, flags) = self.within()?.stream(stream, THREAD.with(|thread| *thread))?;
        Ok((queue, flags == 0))
    }
}

pub(crate) fn top() -> Option<u64> {
    CONTEXTS.with_borrow(|stack| stack.last().copied())
}

/// Runs a call; whatever happens, the host lives.
pub(crate) fn call(body: impl FnOnce(&Driver) -> Result<()>) -> i32 {
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
pub(crate) fn put<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: not null; that it points at a T is the API's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// As [`put`], where the caller may want no result.
pub(crate) fn offer<T>(to: *mut T, value: T) {
    if !to.is_null() {
        let _ = put(to, value);
    }
}

pub(crate) fn host_alloc(d: &Driver, address: *mut u64, bytes: usize, flags: u32) -> Result<()> {
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
pub(crate) fn pointer_attribute(rules: &Rules, to: *mut c_void, attribute: i32, address: u64) -> Result<()> {
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
pub(crate) fn attribute_of(attribute: i32) -> i32 {
    match attribute {
        // Two copy engines (40), unified addressing (41), overlap (15), mapped host memory (19), compute 8.0 (75, 76),
        // registering host memory (99), whose pointers are the device's too (91).
        40 => 2,
        15 | 19 | 41 | 91 | 99 => 1,
        75 => 8,
        // Warp, threads, multiprocessors: what a program divides by is not 0.
        10 => 32,
        1..=7 | 12 | 16 | 39 => 1,
        _ => 0,
    }
}
