//! Kernels on the emulated driver: functions of ours that it calls on its processor's thread.
//!
//! A real GPU needs them as device code, which is not here: there [`Kernels::launch`] says so.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    ffi::c_void,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cudarc::driver::sys::{self, CUresult, CUstream};
use tensortier_model::{Clock, Nanos, RealClock};

use super::{cuda::CudaError, threads::Ends};
use crate::pipeline::{
    Done,
    kernel::{Kernel, Memory, Range},
};

type Launch = extern "C" fn(
    stream: u64,
    nanos: u64,
    run: Option<unsafe extern "C" fn(*mut c_void, u64)>,
    done: Option<unsafe extern "C" fn(*mut c_void)>,
    data: u64,
) -> CUresult;

type Sums = Arc<Mutex<BTreeMap<u64, Vec<u64>>>>;

/// What the driver can do for kernels, and what they have found.
#[derive(Debug, Default)]
pub struct Kernels {
    launch: Option<Launch>,
    sums: Sums,
}

/// One launch, from here to its end.
struct Call {
    id: u64,
    kernel: Kernel,
    began: Nanos,
    clock: Arc<RealClock>,
    ends: Arc<Ends>,
    sums: Sums,
}

fn lock(sums: &Sums) -> MutexGuard<'_, BTreeMap<u64, Vec<u64>>> {
    sums.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kernels {
    /// Looks the driver's function up.
    pub fn find() -> Self {
        // SAFETY: whoever exports this name is the emulator, whose function has this type.
        let launch = unsafe { sys::culib().get::<Launch>(b"tensortier_emulator_launch\0").ok().map(|found| *found) };
        Self { launch, sums: Sums::default() }
    }

    /// Runs a kernel on a stream.
    pub fn launch(
        &self,
        stream: CUstream,
        id: u64,
        kernel: Kernel,
        clock: &Arc<RealClock>,
        ends: &Arc<Ends>,
    ) -> Result<(), CudaError> {
        let launch = self.launch.ok_or(CudaError::NoKernels)?;
        let (clock, ends, sums) = (Arc::clone(clock), Arc::clone(ends), Arc::clone(&self.sums));
        let time = kernel.time;
        let data = Box::into_raw(Box::new(Call { id, kernel, began: 0, clock, ends, sums }));
        let code = launch(stream as u64, time, Some(run), Some(done), data as u64);
        if code == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        // SAFETY: refused, so it will not be called: the box is ours again.
        drop(unsafe { Box::from_raw(data) });
        Err(CudaError::Refused { call: "tensortier_emulator_launch", name: format!("error {}", code as i32) })
    }

    /// The checksums of what a kernel read.
    pub fn sums(&self, id: u64) -> Option<Vec<u64>> {
        lock(&self.sums).remove(&id)
    }
}

/// Device memory, as far as its addresses are from where the emulator keeps the bytes.
struct Shifted(u64);

impl Memory for Shifted {
    fn read(&self, (at, bytes): Range) -> &[u8] {
        if bytes == 0 {
            return &[];
        }
        // SAFETY: `CudaDevice::new` has its caller promise that kernels name live device memory, used by nothing else
        // until they end.
        unsafe { std::slice::from_raw_parts(at.wrapping_add(self.0) as *const u8, bytes as usize) }
    }

    fn write(&mut self, (at, bytes): Range) -> &mut [u8] {
        if bytes == 0 {
            return &mut [];
        }
        // SAFETY: as above; `Kernel::run` has one slice at a time.
        unsafe { std::slice::from_raw_parts_mut(at.wrapping_add(self.0) as *mut u8, bytes as usize) }
    }
}

unsafe extern "C" fn run(data: *mut c_void, shift: u64) {
    // SAFETY: `launch` made the box; the emulator calls this once, before `done`.
    let call = unsafe { &mut *data.cast::<Call>() };
    call.began = call.clock.now();
    let found = call.kernel.run(&mut Shifted(shift));
    lock(&call.sums).insert(call.id, found);
}

unsafe extern "C" fn done(data: *mut c_void) {
    // SAFETY: as above, and the last call.
    let call = unsafe { Box::from_raw(data.cast::<Call>()) };
    call.ends.push(Done { id: call.id, began: call.began, ended: call.clock.now() });
}
