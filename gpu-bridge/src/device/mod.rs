//! A real GPU under the pipeline: the CUDA driver, loaded at run time, and threads that copy.
//!
//! Without a driver everything else works: [`Gpu::open`] says that there is none. The same code runs on the emulated
//! driver (gpu-bridge/emulator), which is all that it has run on: no GPU was at hand.

mod cuda;
mod engine;
mod kernels;
mod stream;
mod threads;

pub use cuda::{CudaDevice, CudaError, Gpu, Slow};
pub use stream::{Calls, StreamDevice};
