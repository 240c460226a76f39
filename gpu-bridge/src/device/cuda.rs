//! The driver's calls, but for those of [engines](super::engine) and [kernels](super::kernels).
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char, c_void},
    ptr,
    sync::Arc,
};

use cudarc::driver::sys::{self, CUresult, CUstream};
use tensortier_model::{Bytes, Clock, Nanos, RealClock};

pub use super::threads::Slow;
use super::{
    engine::{self, Engine},
    kernels::Kernels,
    threads::{Ends, Task, Threads},
};
use crate::{
    pipeline::{Device, Direction, Done, Limits, Op, Work, kernel::Kernel},
    pool::{Backing, BackingError, HostMemory, Mapping, Registrar, Run, size},
};

/// Why the GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No driver on this host.
    #[error(
        "no CUDA driver (libcuda.so.1) here; what needs none works: scripts/emulator runs a command with an emulated one"
    )]
    NoDriver,
    /// The driver refused.
    #[error("{call}: {name}")]
    Refused {
        /// The call.
        call: &'static str,
        /// The driver's name of the reason.
        name: String,
    },
    /// A driver that is not the emulated one.
    #[error("kernels run on the emulated driver alone; scripts/emulator runs a command with it")]
    NoKernels,
    /// No memory for the staging rings.
    #[error("staging ring: {0}")]
    Ring(#[from] BackingError),
    /// No threads.
    #[error("copy threads: {0}")]
    Threads(#[from] std::io::Error),
}

pub(super) fn check(call: &'static str, code: CUresult) -> Result<(), CudaError> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text: *const c_char = ptr::null();
    // SAFETY: the driver sets `text` to a string of its own, or to null.
    let name = unsafe {
        sys::cuGetErrorName(code, &raw mut text);
        if text.is_null() { format!("error {}", code as i32) } else { CStr::from_ptr(text).to_string_lossy().into() }
    };
    Err(CudaError::Refused { call, name })
}

/// The first GPU of this process, with its primary context.
#[derive(Debug)]
pub struct Gpu {
    device: i32,
    name: String,
}

impl Gpu {
    /// Loads the driver and makes the primary context this thread's.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], or what the driver says.
    pub fn open() -> Result<Self, CudaError> {
        // SAFETY: opens and closes the library. Without it any other call of cudarc's would panic.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let (mut device, mut context) = (0, ptr::null_mut());
        let mut name = [0 as c_char; 256];
        // SAFETY: every pointer is to a local of the type that the call writes.
        let name = unsafe {
            check("cuInit", sys::cuInit(0))?;
            check("cuDeviceGet", sys::cuDeviceGet(&raw mut device, 0))?;
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&raw mut context, device))?;
            check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
            check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), 255, device))?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        Ok(Self { device, name })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is on the PCI bus, as sysfs has it: `0000:81:00.0`.
    ///
    /// # Errors
    /// The driver's.
    pub fn pci_address(&self) -> Result<String, CudaError> {
        use sys::CUdevice_attribute_enum as Attribute;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the driver writes an integer.
            let code = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, self.device) };
            check("cuDeviceGetAttribute", code).map(|()| value)
        };
        let domain = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        Ok(format!("{domain:04x}:{bus:02x}:{:02x}.0", attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?))
    }

    /// Takes device memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn allocate(&self, bytes: Bytes) -> Result<u64, CudaError> {
        let mut address = 0;
        // SAFETY: the driver writes an address.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes as usize) })?;
        Ok(address)
    }

    /// Gives device memory back.
    ///
    /// # Errors
    /// The driver's.
    pub fn free(&self, address: u64) -> Result<(), CudaError> {
        // SAFETY: the driver knows its allocations and refuses others.
        check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
    }

    /// Copies host memory to the device by one blocking call, as a program without a bridge does.
    ///
    /// # Errors
    /// The driver's.
    pub fn write(&self, device: u64, host: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the slice is there until the call returns.
        check("cuMemcpyHtoD", unsafe { sys::cuMemcpyHtoD_v2(device, host.as_ptr().cast(), host.len()) })
    }

    /// Copies device memory to the host likewise.
    ///
    /// # Errors
    /// The driver's.
    pub fn read(&self, device: u64, host: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: as above, and nobody else has the slice.
        check("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), device, host.len()) })
    }

    /// A function that only the emulated driver has: sets the rates of its engines, bytes per second. False where the
    /// driver is another.
    pub fn set_emulated_link(&self, h2d: f64, d2h: f64) -> bool {
        type Set = extern "C" fn(f64, f64) -> i32;
        // SAFETY: whoever exports this name is the emulator, whose function has this type.
        unsafe { sys::culib().get::<Set>(b"tensortier_emulator_link\0").is_ok_and(|set| set(h2d, d2h) == 0) }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: takes back `open`'s retain. A driver that is shutting down refuses, which is as good.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Registers the pool's extents with the driver of the current context.
impl Registrar for &Gpu {
    fn register(&mut self, address: u64, bytes: Bytes) -> Result<(), String> {
        // SAFETY: the pool's extents stay mapped until they are unregistered.
        let code = unsafe { sys::cuMemHostRegister_v2(address as *mut c_void, bytes as usize, 0) };
        check("cuMemHostRegister", code).map_err(|error| error.to_string())
    }

    fn unregister(&mut self, address: u64, _: Bytes) {
        // SAFETY: as above; an error leaves a registration that ends with the process.
        let _ = unsafe { sys::cuMemHostUnregister(address as *mut c_void) };
    }
}

/// Copy threads, two registered rings, an engine for each direction and a stream for kernels.
#[derive(Debug)]
pub struct CudaDevice<'a> {
    gpu: &'a Gpu,
    clock: Arc<RealClock>,
    ends: Arc<Ends>,
    threads: Threads,
    rings: Vec<Mapping>,
    memory: HostMemory,
    /// By direction.
    engines: [Engine; 2],
    kernels: Kernels,
    /// What kernels run on.
    processor: CUstream,
    flying: u64,
    /// The first error of the driver's since the last [`CudaDevice::failure`].
    failure: Option<CudaError>,
}

impl<'a> CudaDevice<'a> {
    /// Rings of `limits.ring` bytes on `node`, registered, and `limits.threads` threads. `slow` nodes are paced.
    ///
    /// # Errors
    /// The driver's, the kernel's.
    ///
    /// # Safety
    /// Host and device ranges of every copy and kernel that a pipeline on this device is given must stay valid, and
    /// unused by others, until it has ended or the device is dropped.
    pub unsafe fn new(
        gpu: &'a Gpu,
        clock: Arc<RealClock>,
        limits: Limits,
        node: u32,
        slow: Slow,
    ) -> Result<Self, CudaError> {
        let ends = Arc::new(Ends::new(Arc::clone(&clock)));
        let threads = Threads::start(limits.threads.max(1), &ends, slow)?;
        let engines = [Engine::make(&ends, &clock)?, Engine::make(&ends, &clock)?];
        let mut device = Self {
            gpu,
            clock,
            ends,
            threads,
            rings: Vec::new(),
            memory: HostMemory::new(),
            engines,
            kernels: Kernels::find(),
            processor: engine::stream()?,
            flying: 0,
            failure: None,
        };
        for _ in 0..2 {
            let ring = device.memory.map(&[Run { node, bytes: limits.ring.max(size::HUGE) }], size::HUGE)?;
            let code = (&mut &*gpu).register(ring.address(), ring.bytes());
            if let Err(name) = code {
                device.memory.unmap(ring);
                return Err(CudaError::Refused { call: "cuMemHostRegister", name });
            }
            device.rings.push(ring);
        }
        Ok(device)
    }

    /// What went wrong since it was last asked; copies that it hit have not arrived.
    pub fn failure(&mut self) -> Option<CudaError> {
        self.failure.take()
    }

    /// Ends what could not be started, so that whoever waits for it goes on and asks for the failure.
    fn fail(&mut self, id: u64, error: CudaError) {
        self.failure.get_or_insert(error);
        let now = self.clock.now();
        self.ends.push(Done { id, began: now, ended: now });
    }

    fn ring(&self, direction: Direction, offset: Bytes) -> u64 {
        self.rings[direction as usize].address() + offset
    }

    fn engine(&self, direction: Direction, id: u64, host: u64, device: u64, bytes: Bytes) -> Result<(), CudaError> {
        let engine = &self.engines[direction as usize];
        // SAFETY: by `new`'s contract, and the pipeline's for rings.
        unsafe { engine.copy(id, direction, host, device, bytes) }
    }
}

impl Device for CudaDevice<'_> {
    fn start(&mut self, Op { id, work, bytes }: Op) {
        self.flying += 1;
        let started = match work {
            Work::Fill { host, ring, node } => {
                self.threads.copy(Task { id, from: host, to: self.ring(Direction::H2d, ring), bytes, node });
                Ok(())
            }
            Work::Drain { ring, host, node } => {
                self.threads.copy(Task { id, from: self.ring(Direction::D2h, ring), to: host, bytes, node });
                Ok(())
            }
            Work::Staged { direction, ring, device } => {
                self.engine(direction, id, self.ring(direction, ring), device, bytes)
            }
            Work::Direct { direction, host, device, .. } => self.engine(direction, id, host, device, bytes),
        };
        if let Err(error) = started {
            self.fail(id, error);
        }
    }

    fn launch(&mut self, id: u64, kernel: Kernel) {
        self.flying += 1;
        if let Err(error) = self.kernels.launch(self.processor, id, kernel, &self.clock, &self.ends) {
            self.fail(id, error);
        }
    }

    fn sums(&mut self, id: u64) -> Option<Vec<u64>> {
        self.kernels.sums(id)
    }

    fn next(&mut self, until: Option<Nanos>) -> Option<Done> {
        if until.is_none() && self.flying == 0 {
            return None;
        }
        let done = self.ends.next(until)?;
        self.flying -= 1;
        Some(done)
    }
}

impl Drop for CudaDevice<'_> {
    fn drop(&mut self) {
        while self.flying > 0 && self.ends.next(None).is_some() {
            self.flying -= 1;
        }
        engine::end(self.processor);
        let mut gpu = self.gpu;
        for ring in self.rings.drain(..) {
            gpu.unregister(ring.address(), ring.bytes());
            self.memory.unmap(ring);
        }
    }
}
