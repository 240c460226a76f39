//! The program's own driver: its functions by address, and what is asked of it.
//!
//! Handles (contexts, streams, events) are the driver's pointers, kept as numbers.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char, c_void},
    ptr,
    sync::Arc,
};

use tensortier_bridge::{
    device::{Calls, StreamDevice},
    pipeline::Limits,
};
use tensortier_model::RealClock;

/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: i32 = 1;
/// `CUDA_ERROR_NOT_FOUND`: what a function answers that the driver does not have.
pub const NOT_FOUND: i32 = 500;
/// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
pub const NOT_REGISTERED: i32 = 713;
/// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`.
pub const CAPTURE_INVALIDATED: i32 = 901;

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
const PORTABLE_AND_MAPPED: u32 = 3;
/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`.
const EVENT_FLAGS: u32 = 3;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: i32 = 2;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;
/// `CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID`, `_BUS_ID`, `_DEVICE_ID`.
const PCI: [i32; 3] = [50, 33, 34];

macro_rules! driver {
    ($($field:ident: fn($($kind:ty),*) = $symbol:literal;)*) => {
        /// The driver's functions; one that it does not have is `None`.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Driver {
            $(pub $field: Option<unsafe extern "C" fn($($kind),*) -> i32>,)*
        }

        impl Driver {
            /// From a library's symbols.
            fn of(symbol: impl Fn(&CStr) -> *mut c_void) -> Self {
                Self {
                    $($field: {
                        let found = symbol($symbol);
                        // SAFETY: the driver's function of that name, which has this type.
                        (!found.is_null()).then(|| unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> i32>(found)
                        })
                    },)*
                }
            }
        }
    };
}

driver! {
    get_proc_address: fn(*const c_char, *mut u64, i32, u64) = c"cuGetProcAddress";
    get_proc_address_v2: fn(*const c_char, *mut u64, i32, u64, *mut i32) = c"cuGetProcAddress_v2";
    host_alloc: fn(*mut u64, usize, u32) = c"cuMemHostAlloc";
    alloc_host: fn(*mut u64, usize) = c"cuMemAllocHost_v2";
    free_host: fn(u64) = c"cuMemFreeHost";
    host_register: fn(u64, usize, u32) = c"cuMemHostRegister_v2";
    host_unregister: fn(u64) = c"cuMemHostUnregister";
    host_flags: fn(*mut u32, u64) = c"cuMemHostGetFlags";
    host_device_pointer: fn(*mut u64, u64, u32) = c"cuMemHostGetDevicePointer_v2";
    pointer_attribute: fn(*mut c_void, i32, u64) = c"cuPointerGetAttribute";
    pointer_attributes: fn(u32, *const i32, *const *mut c_void, u64) = c"cuPointerGetAttributes";
    address_range: fn(*mut u64, *mut usize, u64) = c"cuMemGetAddressRange_v2";
    copy_to_device: fn(u64, *const c_void, usize) = c"cuMemcpyHtoD_v2";
    copy_from_device: fn(*mut c_void, u64, usize) = c"cuMemcpyDtoH_v2";
    copy_to_device_async: fn(u64, *const c_void, usize, u64) = c"cuMemcpyHtoDAsync_v2";
    copy_from_device_async: fn(*mut c_void, u64, usize, u64) = c"cuMemcpyDtoHAsync_v2";
    context: fn(*mut u64) = c"cuCtxGetCurrent";
    context_id: fn(u64, *mut u64) = c"cuCtxGetId";
    context_device: fn(*mut i32) = c"cuCtxGetDevice";
    context_synchronize: fn() = c"cuCtxSynchronize";
    device_attribute: fn(*mut i32, i32, i32) = c"cuDeviceGetAttribute";
    event_create: fn(*mut u64, u32) = c"cuEventCreate";
    event_record: fn(u64, u64) = c"cuEventRecord";
    event_query: fn(u64) = c"cuEventQuery";
    event_synchronize: fn(u64) = c"cuEventSynchronize";
    stream_synchronize: fn(u64) = c"cuStreamSynchronize";
    is_capturing: fn(u64, *mut i32) = c"cuStreamIsCapturing";
    exchange_capture_mode: fn(*mut i32) = c"cuThreadExchangeStreamCaptureMode";
    begin_capture: fn(u64) = c"cuStreamBeginCapture";
    begin_capture_v2: fn(u64, i32) = c"cuStreamBeginCapture_v2";
    begin_capture_to_graph: fn(u64, u64, *const c_void, *const c_void, usize, i32) = c"cuStreamBeginCaptureToGraph";
    end_capture: fn(u64, *mut u64) = c"cuStreamEndCapture";
}

/// Calls a function of a [`Driver`], with what it answers; [`NOT_FOUND`] where the driver does not have it.
macro_rules! ask {
    ($driver:expr, $field:ident($($argument:expr),*)) => {
        match $driver.$field {
            // SAFETY: the arguments are numbers, which the driver checks, and pointers to locals of the right types.
            Some(function) => unsafe { function($($argument),*) },
            None => NOT_FOUND,
        }
    };
}

/// Address of a symbol of the driver that the program has loaded; null where there is none.
pub fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: opens nothing that is not open, and takes an address. It stays open, as the program's does.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() { ptr::null_mut() } else { libc::dlsym(library, name.as_ptr()) }
    }
}

impl Driver {
    /// The one that the program has loaded.
    pub fn loaded() -> Self {
        Self::of(symbol)
    }

    /// A number for the thread's current context that no other context ever has. `None` without one, and from drivers
    /// before 12.0, which number none: there, what belongs to a context that has gone cannot be told.
    pub fn context(&self) -> Option<u64> {
        let (mut context, mut id) = (0, 0);
        let current = ask!(self, context(&raw mut context)) == 0 && context != 0;
        (current && ask!(self, context_id(context, &raw mut id)) == 0).then_some(id)
    }

    /// What a call that needs nothing but a context answers.
    pub fn status(&self) -> i32 {
        let mut device = 0;
        ask!(self, context_device(&raw mut device))
    }

    /// Waits for the context's work.
    pub fn synchronize(&self) -> i32 {
        ask!(self, context_synchronize())
    }

    /// Whether a stream is being captured, or may be. A driver without graphs captures none.
    pub fn may_capture(&self, stream: u64) -> bool {
        let mut status = 0;
        self.is_capturing.is_some() && (ask!(self, is_capturing(stream, &raw mut status)) != 0 || status != 0)
    }

    /// Keeps calls of this thread from ending another thread's capture, until it is dropped.
    pub fn relaxed(&self) -> Relaxed<'_> {
        let mut mode = RELAXED;
        let before = (ask!(self, exchange_capture_mode(&raw mut mode)) == 0).then_some(mode);
        Relaxed { driver: self, before }
    }

    /// Whether a device range lies within one allocation.
    pub fn holds(&self, device: u64, bytes: u64) -> bool {
        let (mut base, mut length) = (0, 0);
        let known = ask!(self, address_range(&raw mut base, &raw mut length, device)) == 0;
        let end = device.checked_add(bytes).zip(base.checked_add(length as u64));
        known && end.is_some_and(|(end, last)| base <= device && end <= last)
    }

    /// Whether the driver knows nothing of an address: it is pageable host memory, or none.
    pub fn is_pageable(&self, address: u64) -> bool {
        let mut kind = 0_u64;
        ask!(self, pointer_attribute((&raw mut kind).cast(), MEMORY_TYPE, address)) == INVALID_VALUE
    }

    /// Registers host memory for every context, with device addresses that are the host's.
    ///
    /// # Errors
    /// The driver's code; [`NOT_FOUND`] where its addresses are others.
    pub fn register(&self, address: u64, bytes: u64) -> Result<(), i32> {
        match ask!(self, host_register(address, bytes as usize, PORTABLE_AND_MAPPED)) {
            0 => {}
            code => return Err(code),
        }
        let mut there = 0;
        if ask!(self, host_device_pointer(&raw mut there, address, 0)) == 0 && there == address {
            return Ok(());
        }
        self.unregister(address);
        Err(NOT_FOUND)
    }

    /// Takes a registration back; with a context that has gone it is gone already.
    pub fn unregister(&self, address: u64) {
        let _ = ask!(self, host_unregister(address));
    }

    /// Some events of the current context.
    pub fn events(&self, count: usize) -> Option<Vec<u64>> {
        let event = |_| {
            let mut event = 0;
            (ask!(self, event_create(&raw mut event, EVENT_FLAGS)) == 0).then_some(event)
        };
        (0..count).map(event).collect()
    }

    /// The flags that the driver shows of memory that it was asked for with `flags`: tried with a page of its own.
    pub fn shown_flags(&self, flags: u32) -> Option<u32> {
        let (mut page, mut shown) = (0, 0);
        if ask!(self, host_alloc(&raw mut page, 4096, flags)) != 0 {
            return None;
        }
        let known = ask!(self, host_flags(&raw mut shown, page)) == 0;
        let freed = ask!(self, free_host(page)) == 0;
        (known && freed).then_some(shown)
    }

    /// The PCI address of the current context's device, as sysfs has it.
    pub fn pci_address(&self) -> Option<String> {
        let mut device = 0;
        if ask!(self, context_device(&raw mut device)) != 0 {
            return None;
        }
        let mut parts = [0; 3];
        for (part, attribute) in parts.iter_mut().zip(PCI) {
            if ask!(self, device_attribute(&raw mut *part, attribute, device)) != 0 {
                return None;
            }
        }
        Some(format!("{:04x}:{:02x}:{:02x}.0", parts[0], parts[1], parts[2]))
    }

    /// Copies of the pipeline on streams of the current context, through registered rings that are never unmapped.
    pub fn device(
        &self,
        clock: Arc<RealClock>,
        limits: Limits,
        rings: [u64; 2],
        events: Vec<u64>,
    ) -> Option<StreamDevice> {
        let calls = Calls {
            copy_to_device: self.copy_to_device_async?,
            copy_from_device: self.copy_from_device_async?,
            event_record: self.event_record?,
            event_query: self.event_query?,
            event_synchronize: self.event_synchronize?,
            stream_synchronize: self.stream_synchronize?,
        };
        // SAFETY: the calls are the loaded driver's. Rings stay by this function's contract, and events belong to a context
        // that is current whenever a copy begins (`State::ring` keeps one device for each); the ranges of a copy are the
        // program's promise to the driver, and hold until the call returns, which is when the copy is over.
        unsafe { StreamDevice::new(calls, clock, limits, rings, events).ok() }
    }
}

/// See [`Driver::relaxed`].
pub struct Relaxed<'a> {
    driver: &'a Driver,
    before: Option<i32>,
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            ask!(self.driver, exchange_capture_mode(&raw mut mode));
        }
    }
}
