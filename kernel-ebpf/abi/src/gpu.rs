//! What the probes on the CUDA libraries tell.
//!
//! One program stands on every function of interest; the kernel hands it the [`call`] that user space attached it for,
//! which says where the arguments are (`bpf_get_attach_cookie`, Linux 5.15).

/// The program at the begin of a function.
pub const CALL_PROGRAM: &str = "gpu_call";
/// The program at the return of those that pin memory: only then is it known whether they did.
pub const RETURN_PROGRAM: &str = "gpu_return";

/// Bytes of the ring buffer of [`GpuEvent`]s: 26,000 of them.
pub const EVENTS_BYTES: u32 = 1 << 20;
/// Threads of all jobs that are within a function at a time; beyond that the longest within is forgotten.
pub const MAX_CALLS: u32 = 4096;

/// Forms of functions, by their arguments.
pub mod call {
    /// `(device, host, bytes, …)`: to the device.
    pub const TO_DEVICE: u64 = 1;
    /// `(host, device, bytes, …)`: from it.
    pub const TO_HOST: u64 = 2;
    /// `(to, from, bytes, …)`: what is where is told by the addresses alone.
    pub const COPY: u64 = 3;
    /// `(to, from, bytes, kind, …)` of the runtime library, with `kind` a `cudaMemcpyKind`.
    pub const RUNTIME_COPY: u64 = 4;
    /// `(host, bytes, …)`: pins memory of the program's.
    pub const REGISTER: u64 = 5;
    /// `(&host, bytes, …)`: gives pinned memory.
    pub const ALLOCATE: u64 = 6;
    /// `(host)`: ends the pin.
    pub const RELEASE: u64 = 7;
}

/// Kinds of [`GpuEvent`].
pub mod kind {
    /// A copy to a device.
    pub const TO_DEVICE: u32 = 1;
    /// A copy from a device.
    pub const TO_HOST: u32 = 2;
    /// A copy of which the call does not say what is on the host.
    pub const EITHER: u32 = 3;
    /// Host memory is pinned.
    pub const PINNED: u32 = 4;
    /// Host memory that begins there is about to be pinned no more.
    pub const RELEASED: u32 = 5;
}

/// A call of a tracked process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuEvent {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub at_ns: u64,
    /// First address of the host memory; of the source for [`kind::EITHER`].
    pub host: u64,
    /// The destination for [`kind::EITHER`], else 0.
    pub other: u64,
    /// How much; 0 for [`kind::RELEASED`].
    pub bytes: u64,
    /// The process's thread group id.
    pub tgid: u32,
    /// One of [`kind`].
    pub kind: u32,
}

const _: () = assert!(size_of::<GpuEvent>() == 40 && EVENTS_BYTES.is_power_of_two());
