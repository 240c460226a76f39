//! Copies between host and GPU, and host memory pinned for them, from the CUDA libraries' own functions. A GPU's reads
//! set no accessed bit, so these calls are all that shows them.
//!
//! The probes stand in the libraries' files, so whoever maps one comes by: a process that is not tracked costs one hash
//! lookup. The runtime library's copies mostly end in the driver's; the same copy by the same thread is told once.

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_ANY,
    helpers::{bpf_get_attach_cookie, bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_probe_read_user},
    macros::{map, uprobe, uretprobe},
    maps::{LruHashMap, RingBuf},
    programs::{ProbeContext, RetProbeContext},
};
use tensortier_abi::{
    Loss,
    gpu::{EVENTS_BYTES, GpuEvent, MAX_CALLS, call, kind},
};

use crate::{
    emit::{emit, lost_shared},
    job::current,
};

#[map]
static GPU_EVENTS: RingBuf = RingBuf::with_byte_size(EVENTS_BYTES, 0);

/// The runtime library's copy that a thread is within: `to`, `from`, bytes.
#[map]
static GPU_COPIES: LruHashMap<u64, [u64; 3]> = LruHashMap::with_max_entries(MAX_CALLS, 0);

/// The pin that a thread waits for: call, first argument, bytes.
#[map]
static GPU_PINS: LruHashMap<u64, [u64; 3]> = LruHashMap::with_max_entries(MAX_CALLS, 0);

#[uprobe]
pub fn gpu_call(ctx: ProbeContext) -> u32 {
    if let Err(loss) = try_gpu_call(&ctx) {
        lost_shared(loss);
    }
    0
}

#[inline(always)]
fn try_gpu_call(ctx: &ProbeContext) -> Result<(), Loss> {
    let Some((tgid, _)) = current() else { return Ok(()) };
    let arguments = (ctx.arg::<u64>(0), ctx.arg::<u64>(1), ctx.arg::<u64>(2), ctx.arg::<u64>(3));
    let (Some(first), Some(second), Some(third), Some(fourth)) = arguments else { return Ok(()) };
    let thread = bpf_get_current_pid_tgid();
    // SAFETY: the context of this program.
    let form = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let (kind, host, other, bytes) = match form {
        call::REGISTER | call::ALLOCATE => {
            // Full, the oldest gives way: no insertion fails for that.
            let _ = GPU_PINS.insert(thread, [form, first, second], BPF_ANY.into());
            return Ok(());
        }
        call::RELEASE => (kind::RELEASED, first, 0, 0),
        call::RUNTIME_COPY => {
            let copy = match fourth as u32 {
                1 => (kind::TO_DEVICE, second, 0, third),
                2 => (kind::TO_HOST, first, 0, third),
                // cudaMemcpyDefault; what is left is within the host or within the device.
                4 => (kind::EITHER, second, first, third),
                _ => return Ok(()),
            };
            let _ = GPU_COPIES.insert(thread, [first, second, third], BPF_ANY.into());
            copy
        }
        _ => {
            if let Some(within) = GPU_COPIES.get_ptr(thread) {
                // SAFETY: a map value of this thread's alone.
                let within = unsafe { *within };
                let _ = GPU_COPIES.remove(thread);
                if within[0] == first && within[1] == second && within[2] == third {
                    return Ok(());
                }
            }
            match form {
                call::TO_DEVICE => (kind::TO_DEVICE, second, 0, third),
                call::TO_HOST => (kind::TO_HOST, first, 0, third),
                call::COPY => (kind::EITHER, second, first, third),
                _ => return Ok(()),
            }
        }
    };
    tell(kind, host, other, bytes, tgid)
}

#[uretprobe]
pub fn gpu_return(ctx: RetProbeContext) -> u32 {
    if let Err(loss) = try_gpu_return(&ctx) {
        lost_shared(loss);
    }
    0
}

#[inline(always)]
fn try_gpu_return(ctx: &RetProbeContext) -> Result<(), Loss> {
    let Some((tgid, _)) = current() else { return Ok(()) };
    let thread = bpf_get_current_pid_tgid();
    let Some(pin) = GPU_PINS.get_ptr(thread) else { return Ok(()) };
    // SAFETY: a map value of this thread's alone.
    let [form, first, bytes] = unsafe { *pin };
    let _ = GPU_PINS.remove(thread);
    if ctx.ret::<u32>() != 0 {
        return Ok(());
    }
    let host = if form == call::ALLOCATE {
        // SAFETY: the helper checks the address.
        match unsafe { bpf_probe_read_user(first as *const u64) } {
            Ok(host) => host,
            Err(_) => return Err(Loss::Gpu),
        }
    } else {
        first
    };
    tell(kind::PINNED, host, 0, bytes, tgid)
}

#[inline(always)]
fn tell(kind: u32, host: u64, other: u64, bytes: u64, tgid: u32) -> Result<(), Loss> {
    // SAFETY: a helper without arguments.
    let at_ns = unsafe { bpf_ktime_get_ns() };
    emit(&GPU_EVENTS, GpuEvent { at_ns, host, other, bytes, tgid, kind }, Loss::Gpu)
}
