//! The eBPF programs: what a job does to its memory, seen from tracepoints. No kprobe and no fentry, so that they attach on
//! every kernel that has the tracepoints. What a GPU does leaves no trace in the kernel: that is seen by uprobes.
//!
//! ```text
//! job.rs      fork, exec, exit     JOBS: whose faults count          → JOB_EVENTS
//! fault.rs    page faults          per region and per job            → FAULTS, JOB_FAULTS
//! damon.rs    DAMON aggregations   of the kdamonds in KDAMONDS       → DAMON_EVENTS
//! migrate.rs  migrated pages       by reason, the agent's own apart  → MIGRATIONS
//! gpu.rs      CUDA's copies and pins   of tracked processes              → GPU_EVENTS
//! emit.rs     field loads, ring buffer output, LOST
//! ```
//!
//! Built for the BPF target only; for the host this crate is an empty program.
#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(asm_experimental_arch))]
#![cfg_attr(target_arch = "bpf", allow(unsafe_code))]

#[cfg(target_arch = "bpf")]
mod damon;
#[cfg(target_arch = "bpf")]
mod emit;
#[cfg(target_arch = "bpf")]
mod fault;
#[cfg(target_arch = "bpf")]
mod gpu;
#[cfg(target_arch = "bpf")]
mod job;
#[cfg(target_arch = "bpf")]
mod migrate;

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

// Attaching to tracepoints and reading the clock need a licence that the kernel takes for GPL-compatible.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
