//! What the driver allows and what it answers otherwise: a state machine without bytes and without time.
//!
//! Codes and when they come are those of the CUDA driver API's documentation. Where that leaves the answer open, ours is
//! the one a program can live with: an error.

use std::collections::BTreeMap;

/// Result codes of the driver that this one uses, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Code {
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    InvalidDevice = 101,
    InvalidContext = 201,
    InvalidHandle = 400,
    NotFound = 500,
    NotReady = 600,
    HostMemoryAlreadyRegistered = 712,
    HostMemoryNotRegistered = 713,
    NotPermitted = 800,
    NotSupported = 801,
    Unknown = 999,
}

/// Names and descriptions, 0 among them, as `cuGetErrorName` and `cuGetErrorString` give them; C strings.
pub const TEXTS: [(i32, &str, &str); 14] = [
    (0, "CUDA_SUCCESS\0", "no error\0"),
    (1, "CUDA_ERROR_INVALID_VALUE\0", "invalid argument\0"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY\0", "out of memory\0"),
    (3, "CUDA_ERROR_NOT_INITIALIZED\0", "initialization error\0"),
    (101, "CUDA_ERROR_INVALID_DEVICE\0", "invalid device ordinal\0"),
    (201, "CUDA_ERROR_INVALID_CONTEXT\0", "invalid device context\0"),
    (400, "CUDA_ERROR_INVALID_HANDLE\0", "invalid resource handle\0"),
    (500, "CUDA_ERROR_NOT_FOUND\0", "named symbol not found\0"),
    (600, "CUDA_ERROR_NOT_READY\0", "device not ready\0"),
    (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED\0", "part or all of the memory is already registered\0"),
    (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED\0", "the memory is not registered\0"),
    (800, "CUDA_ERROR_NOT_PERMITTED\0", "operation not permitted\0"),
    (801, "CUDA_ERROR_NOT_SUPPORTED\0", "operation not supported\0"),
    (999, "CUDA_ERROR_UNKNOWN\0", "unknown error\0"),
];

/// Flags of `cuMemHostAlloc`: portable, mapped, write-combined.
const HOST_ALLOC_FLAGS: u32 = 0b111;
/// Flags of `cuMemHostRegister`: portable, mapped; of I/O memory and read-only memory there is none here.
const REGISTER_FLAGS: u32 = 0b11;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// Flags of events: blocking sync, no timing, interprocess (which is not supported).
const EVENT_FLAGS: u32 = 0b11;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`; 0 is the former.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
/// Device allocations begin at multiples of this.
const ALIGNMENT: u64 = 512;

/// A range of pinned host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its size.
    pub bytes: u64,
    /// As given when it was made.
    pub flags: u32,
    /// Whether it is the driver's own, to be freed; otherwise the program's, to be unregistered.
    pub allocated: bool,
}

/// Which way a copy goes and what it has to do with the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// 0: to the device, 1: from it, 2: within it or within the host.
    pub engine: usize,
    /// Whether it touches host memory that is not pinned.
    pub pageable: bool,
}

/// Everything that the driver knows.
#[derive(Debug)]
pub struct Rules {
    initialised: bool,
    base: u64,
    memory: u64,
    device: BTreeMap<u64, u64>,
    host: BTreeMap<u64, Host>,
    contexts: BTreeMap<u64, u32>,
    primary: Option<(u64, u32)>,
    streams: BTreeMap<u64, u32>,
    events: BTreeMap<u64, u32>,
    next: u64,
}

type Result<T> = std::result::Result<T, Code>;

impl Rules {
    /// A driver that has not been initialised, with `memory` bytes of device memory from `base` on.
    pub fn new(base: u64, memory: u64) -> Self {
        let (device, host, contexts, streams, events) = Default::default();
        Self {
            initialised: false,
            base,
            memory,
            device,
            host,
            contexts,
            primary: None,
            streams,
            events,
            next: 0x1_0000,
        }
    }

    fn handle(&mut self) -> u64 {
        self.next += 64;
        self.next
    }

    /// `cuInit`.
    pub fn init(&mut self, flags: u32) -> Result<()> {
        if flags != 0 {
            return Err(Code::InvalidValue);
        }
        self.initialised = true;
        Ok(())
    }

    /// Everything but a few calls needs `cuInit` before.
    pub fn ready(&self) -> Result<()> {
        if self.initialised { Ok(()) } else { Err(Code::NotInitialized) }
    }

    /// There is one device.
    pub fn device(&self, ordinal: i32) -> Result<()> {
        self.ready()?;
        if ordinal == 0 { Ok(()) } else { Err(Code::InvalidDevice) }
    }

    /// Most calls need a current context that exists.
    pub fn current(&self, context: Option<u64>) -> Result<u64> {
        self.ready()?;
        context.filter(|context| self.contexts.contains_key(context)).ok_or(Code::InvalidContext)
    }

    /// Makes a context.
    pub fn create(&mut self, flags: u32, device: i32) -> Result<u64> {
        self.device(device)?;
        let id = self.handle();
        self.contexts.insert(id, flags);
        Ok(id)
    }

    /// Ends a context; the primary one is released instead.
    pub fn destroy(&mut self, context: u64) -> Result<()> {
        self.ready()?;
        if self.primary.is_some_and(|(primary, _)| primary == context) || self.contexts.remove(&context).is_none() {
            return Err(Code::InvalidContext);
        }
        Ok(())
    }

    /// The primary context, for one more user.
    pub fn retain(&mut self, device: i32) -> Result<u64> {
        self.device(device)?;
        if let Some((context, users)) = &mut self.primary {
            *users += 1;
            return Ok(*context);
        }
        let context = self.create(0, device)?;
        self.primary = Some((context, 1));
        Ok(context)
    }

    /// One user less of the primary context; with the last it ends.
    pub fn release(&mut self, device: i32) -> Result<()> {
        self.device(device)?;
        let (context, users) = self.primary.as_mut().ok_or(Code::InvalidContext)?;
        *users -= 1;
        if *users == 0 {
            self.contexts.remove(context);
            self.primary = None;
        }
        Ok(())
    }

    /// Whether the primary context is there.
    pub fn primary_active(&self) -> bool {
        self.primary.is_some()
    }

    /// Takes device memory: the first gap that is large enough.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Err(Code::InvalidValue);
        }
        let bytes = bytes.checked_next_multiple_of(ALIGNMENT).ok_or(Code::OutOfMemory)?;
        let mut at = self.base;
        for (&start, &length) in &self.device {
            if start - at >= bytes {
                break;
            }
            at = start + length;
        }
        if self.base + self.memory - at < bytes {
            return Err(Code::OutOfMemory);
        }
        self.device.insert(at, bytes);
        Ok(at)
    }

    /// Gives device memory back; its size.
    pub fn free(&mut self, address: u64) -> Result<u64> {
        self.device.remove(&address).ok_or(Code::InvalidValue)
    }

    /// Free and all bytes of device memory.
    pub fn memory(&self) -> (u64, u64) {
        (self.memory - self.device.values().sum::<u64>(), self.memory)
    }

    /// The allocation that an address is in.
    pub fn allocation(&self, address: u64) -> Result<(u64, u64)> {
        let found = self.device.range(..=address).next_back().filter(|(start, bytes)| address - **start < **bytes);
        found.map(|(start, bytes)| (*start, *bytes)).ok_or(Code::NotFound)
    }

    /// A device range, which must lie within one allocation.
    pub fn device_range(&self, address: u64, bytes: u64) -> Result<()> {
        let (start, length) = self.allocation(address).map_err(|_| Code::InvalidValue)?;
        if bytes <= length - (address - start) { Ok(()) } else { Err(Code::InvalidValue) }
    }

    /// Makes host memory known. `allocated` says whose it is.
    pub fn pin(&mut self, address: u64, bytes: u64, flags: u32, allocated: bool) -> Result<()> {
        self.can_pin(address, bytes, flags, allocated)?;
        self.host.insert(address, Host { bytes, flags, allocated });
        Ok(())
    }

    /// Whether [`Rules::pin`] would take it.
    pub fn can_pin(&self, address: u64, bytes: u64, flags: u32, allocated: bool) -> Result<()> {
        let allowed = if allocated { HOST_ALLOC_FLAGS } else { REGISTER_FLAGS };
        let end = address.checked_add(bytes).ok_or(Code::InvalidValue)?;
        if bytes == 0 || address == 0 || flags & !allowed != 0 {
            return Err(Code::InvalidValue);
        }
        let before = self.host.range(..end).next_back();
        if before.is_some_and(|(start, host)| start + host.bytes > address) {
            return Err(Code::HostMemoryAlreadyRegistered);
        }
        Ok(())
    }

    /// Forgets what was registered (`allocated` false) or allocated.
    pub fn unpin(&mut self, address: u64, allocated: bool) -> Result<Host> {
        let none = if allocated { Code::InvalidValue } else { Code::HostMemoryNotRegistered };
        let host = *self.host.get(&address).ok_or(none)?;
        if host.allocated != allocated {
            return Err(if allocated { Code::InvalidValue } else { Code::HostMemoryNotRegistered });
        }
        self.host.remove(&address);
        Ok(host)
    }

    /// The pinned range that an address is in.
    pub fn pinned(&self, address: u64) -> Option<(u64, Host)> {
        let found = self.host.range(..=address).next_back();
        found.map(|(start, host)| (*start, *host)).filter(|(start, host)| address - start < host.bytes)
    }

    fn whole(&self, address: u64, bytes: u64) -> bool {
        self.pinned(address).is_some_and(|(start, host)| address - start + bytes <= host.bytes)
    }

    /// Whether an address is the device's.
    pub fn is_device(&self, address: u64) -> bool {
        (self.base..self.base + self.memory).contains(&address)
    }

    /// What a copy of two addresses of any kind is.
    pub fn transfer(&self, to: u64, from: u64, bytes: u64) -> Result<Transfer> {
        let kinds = (self.is_device(to), self.is_device(from));
        for (address, device) in [(to, kinds.0), (from, kinds.1)] {
            match device {
                true => self.device_range(address, bytes)?,
                false if address == 0 => return Err(Code::InvalidValue),
                false => {}
            }
        }
        let host = |address, device: bool| !device && !self.whole(address, bytes);
        let engine = match kinds {
            (true, false) => 0,
            (false, true) => 1,
            _ => 2,
        };
        Ok(Transfer { engine, pageable: host(to, kinds.0) || host(from, kinds.1) })
    }

    /// A copy whose two sides the call names: `device` says of (to, from) whether each must be the device's.
    pub fn named(&self, to: u64, from: u64, bytes: u64, device: (bool, bool)) -> Result<Transfer> {
        if (self.is_device(to), self.is_device(from)) != device {
            return Err(Code::InvalidValue);
        }
        self.transfer(to, from, bytes)
    }

    /// Makes a stream.
    pub fn stream_create(&mut self, flags: u32) -> Result<u64> {
        if flags & !NON_BLOCKING != 0 {
            return Err(Code::InvalidValue);
        }
        let id = self.handle();
        self.streams.insert(id, flags);
        Ok(id)
    }

    /// Ends a stream.
    pub fn stream_destroy(&mut self, stream: u64) -> Result<()> {
        self.streams.remove(&stream).map(drop).ok_or(Code::InvalidHandle)
    }

    /// The queue that a handle stands for and its flags; `thread` numbers the calling thread's own.
    pub fn stream(&self, handle: u64, thread: u64) -> Result<(u64, u32)> {
        match handle {
            0 | LEGACY => Ok((0, 0)),
            // Its own queue, below all handles.
            PER_THREAD => Ok((0x100 + thread, 0)),
            _ => self.streams.get(&handle).map(|flags| (handle, *flags)).ok_or(Code::InvalidHandle),
        }
    }

    /// Makes an event.
    pub fn event_create(&mut self, flags: u32) -> Result<u64> {
        if flags & !EVENT_FLAGS != 0 {
            return Err(Code::InvalidValue);
        }
        let id = self.handle();
        self.events.insert(id, flags);
        Ok(id)
    }

    /// Ends an event.
    pub fn event_destroy(&mut self, event: u64) -> Result<()> {
        self.events.remove(&event).map(drop).ok_or(Code::InvalidHandle)
    }

    /// An event that exists.
    pub fn event(&self, event: u64) -> Result<()> {
        if self.events.contains_key(&event) { Ok(()) } else { Err(Code::InvalidHandle) }
    }

    /// An event that takes times.
    pub fn timed(&self, event: u64) -> Result<()> {
        let flags = self.events.get(&event).ok_or(Code::InvalidHandle)?;
        if flags & NO_TIMING == 0 { Ok(()) } else { Err(Code::InvalidHandle) }
    }
}
