//! A CUDA driver (`libcuda.so.1`) without a GPU, for testing programs that copy between host and device.
//!
//! ```text
//! api.rs      the exported functions: pointers in, error codes out
//! driver.rs   the one driver of the process; how a call is run, copies and pins made
//! rules.rs    what the driver allows: contexts, allocations, registrations, streams, events; no bytes, no time
//! engines.rs  what it does: ops of streams on two copy engines, a processor and a thread for the rest, in order, each as
//!             long as modelled
//! memory.rs   device memory that the host cannot touch, host memory; pin.rs: long-term pins by io_uring
//! ```
//!
//! Bytes are real: a copy that is wrong is seen. Times are modelled: a copy takes the engine the profile's latency and
//! bytes by its rate, whatever the CPU needs, unless the CPU needs longer. From pageable memory it is slower by a measured
//! share. Registered memory is really pinned, so that it cannot migrate, as on a host with a GPU.
//!
//! Kernels are functions of the program's, launched by a function that only the emulator has.
//!
//! What is not there: modules, graphs, memory pools, peers, managed memory, IPC; `cuGetProcAddress` says that it does not
//! know them, and the device has no property of theirs. Where the driver would crash (a stream that never was), this
//! answers with an error.

mod api;
mod driver;
mod engines;
mod memory;
mod pin;
mod profile;
mod rules;

pub use profile::Profile;
pub use rules::Code;

#[cfg(test)]
mod tests;
