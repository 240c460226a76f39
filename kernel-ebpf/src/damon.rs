//! DAMON's aggregations, as they happen. The tracepoint fires in the kdamond, once for each region, and names the target
//! only by its index within the context: the kdamond's thread id tells contexts apart.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    macros::map,
    maps::{HashMap, RingBuf},
    programs::TracePointContext,
};
use tensortier_abi::{DAMON_EVENTS_BYTES, DamonEvent, Loss, MAX_KDAMONDS};

use crate::emit::{emit, field_u32, field_u64, global, offsets, seen_by_perf};

/// kdamonds whose aggregations user space wants.
#[map]
static KDAMONDS: HashMap<u32, u32> = HashMap::with_max_entries(MAX_KDAMONDS, 0);

#[map]
static DAMON_EVENTS: RingBuf = RingBuf::with_byte_size(DAMON_EVENTS_BYTES, 0);

offsets!(DAMON_TARGET_ID, DAMON_NR_REGIONS, DAMON_START, DAMON_END, DAMON_NR_ACCESSES, DAMON_AGE);

seen_by_perf! {
    damon_aggregated: try_damon_aggregated
}

#[inline(always)]
fn try_damon_aggregated(ctx: &TracePointContext) -> Result<(), Loss> {
    let kdamond = bpf_get_current_pid_tgid() as u32;
    if KDAMONDS.get_ptr(kdamond).is_none() {
        return Ok(());
    }
    let record = DamonEvent {
        // SAFETY: a helper without arguments.
        at_ns: unsafe { bpf_ktime_get_ns() },
        target: field_u64(ctx, global!(DAMON_TARGET_ID)),
        start: field_u64(ctx, global!(DAMON_START)),
        end: field_u64(ctx, global!(DAMON_END)),
        kdamond,
        nr_regions: field_u32(ctx, global!(DAMON_NR_REGIONS)),
        nr_accesses: field_u32(ctx, global!(DAMON_NR_ACCESSES)),
        age: field_u32(ctx, global!(DAMON_AGE)),
    };
    emit(&DAMON_EVENTS, record, Loss::Damon)
}
