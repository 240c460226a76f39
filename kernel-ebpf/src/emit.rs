//! What every program needs: a field of its tracepoint, a way out for its records, and a count of what was lost.

use core::arch::asm;

use aya_ebpf::{
    EbpfContext,
    macros::map,
    maps::{PerCpuArray, RingBuf},
};
use tensortier_abi::{LOSSES, Loss};

/// Events lost since load, by [`Loss`]; each CPU counts for itself.
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(LOSSES, 0);

/// Declares a global that user space sets before loading: an offset, or [`ABSENT`](tensortier_abi::ABSENT).
macro_rules! offsets {
    ($($name:ident),* $(,)?) => {
        $(#[unsafe(no_mangle)]
        static $name: u32 = tensortier_abi::ABSENT;)*
    };
}
pub(crate) use offsets;

/// Reads a global that user space set. The read is volatile, so that the compiler does not take the initial value for
/// the value; the verifier knows the real one and prunes by it.
macro_rules! global {
    ($name:ident) => {
        // SAFETY: a static of plain integers, valid for ever.
        unsafe { core::ptr::read_volatile(&raw const $name) }
    };
}
pub(crate) use global;

macro_rules! loads {
    ($name:ident, $out:ty, $width:literal, $ctx:ident, $($offset:literal)*) => {
        /// The field at `offset` of the tracepoint's record or a raw one's arguments; 0 where `offset` is `ABSENT`.
        ///
        /// A load from the context itself, at an offset that the verifier can see. `bpf_probe_read_kernel` would take
        /// any offset, but fails for tracepoint records on some virtualised kernels and costs a call. The arms are
        /// assembly so that the compiler does not fold them into one load at a computed address.
        #[inline(always)]
        pub fn $name(ctx: &impl EbpfContext, offset: u32) -> $out {
            let $ctx = ctx.as_ptr();
            let value: u64;
            match offset {
                $($offset => {
                    // SAFETY: the verifier refuses a load beyond the record.
                    unsafe {
                        asm!(
                            concat!("{value} = *(", $width, " *)({ctx} + ", stringify!($offset), ")"),
                            value = out(reg) value,
                            ctx = in(reg) $ctx,
                            options(readonly, nostack, preserves_flags),
                        )
                    };
                })*
                _ => value = 0,
            }
            value as $out
        }
    };
}

loads!(field_u64, u64, "u64", record, 0 8 16 24 32 40 48 56 64 72 80 88 96 104 112 120);
loads!(field_u32, u32, "u32", record, 8 12 16 20 24 28 32 36 40 44 48 52 56 60 64 68 72 76 80 84 88 92 96 100 104 108 112 116 120 124);
loads!(field_u8, u8, "u8", record, 8 12 16 20 24 28 32 36 40 44 48 52 56 60 64 68 72 76 80 84 88 92 96 100 104 108 112 116 120 124);

/// Copies `record` to user space.
///
/// # Errors
/// `loss` where the buffer is full.
#[inline(always)]
pub fn emit<T: 'static>(buffer: &RingBuf, record: T, loss: Loss) -> Result<(), Loss> {
    let mut entry = buffer.reserve::<T>(0).ok_or(loss)?;
    entry.write(record);
    entry.submit(0);
    Ok(())
}

/// A program on a tracepoint that answers what [`done`] says. The attribute of aya throws the answer away and gives 0,
/// which hides the event from perf.
macro_rules! seen_by_perf {
    ($(#[$doc:meta])* $name:ident: $body:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "tracepoint")]
        pub fn $name(ctx: *mut ::core::ffi::c_void) -> u32 {
            $crate::emit::done($body(&::aya_ebpf::programs::TracePointContext::new(ctx)))
        }
    };
}
pub(crate) use seen_by_perf;

/// A program's answer by which the event is hidden from perf's own readers of the tracepoint.
pub const HIDE: u32 = 0;
/// A program's answer by which they see it.
const SHOW: u32 = 1;

/// A program's return value: perf counts and records the event as if we were not there. A loss is counted.
#[inline(always)]
pub fn done(result: Result<(), Loss>) -> u32 {
    if let Err(loss) = result {
        lost(loss, 1);
    }
    SHOW
}

/// Counts lost events.
#[inline(always)]
pub fn lost(loss: Loss, events: u64) {
    if let Some(count) = LOST.get_ptr_mut(loss as u32) {
        // SAFETY: this CPU's slot; tracepoint programs of one CPU do not interrupt one another.
        unsafe { *count += events };
    }
}

/// Counts one lost event from a program that others of its kind can interrupt: uprobes run in their task, which may be
/// preempted.
#[inline(always)]
pub fn lost_shared(loss: Loss) {
    if let Some(count) = LOST.get_ptr_mut(loss as u32) {
        // SAFETY: a map value.
        unsafe { add_shared(count, 1) };
    }
}

/// Adds to a counter that other CPUs add to at the same time. The BPF target of rustc has no `fetch_add`.
///
/// # Safety
/// `counter` points into a map value.
#[inline(always)]
pub unsafe fn add_shared(counter: *mut u64, value: u64) {
    // SAFETY: the caller's.
    unsafe {
        asm!("lock *(u64 *)({counter} + 0) += {value}", counter = in(reg) counter, value = in(reg) value, options(nostack))
    };
}
