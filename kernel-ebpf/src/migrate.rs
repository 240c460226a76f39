//! Pages that the kernel migrated, by reason. The tracepoint fires once a batch, so the pages are summed here; a move by
//! the agent's own threads is told apart from the kernel's and from other programs'.

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid},
    macros::{map, raw_tracepoint},
    maps::PerCpuArray,
    programs::{RawTracePointContext, TracePointContext},
};
use tensortier_abi::{Loss, MIGRATE_REASONS, MOVER_COMM, MigrateSums, migrate_index};

use crate::emit::{done, field_u32, field_u64, global, offsets, seen_by_perf};

#[map]
static MIGRATIONS: PerCpuArray<MigrateSums> = PerCpuArray::with_max_entries(MIGRATE_REASONS * 2, 0);

offsets!(
    MIGRATE_SUCCEEDED,
    MIGRATE_FAILED,
    MIGRATE_THP_SUCCEEDED,
    MIGRATE_THP_FAILED,
    MIGRATE_THP_SPLIT,
    MIGRATE_LARGE_FOLIO_SPLIT,
    MIGRATE_REASON,
);

/// The agent's thread group id; 0 goes by the thread's name.
#[unsafe(no_mangle)]
static AGENT_TGID: u32 = 0;

seen_by_perf! {
    mm_migrate_pages: try_mm_migrate_pages
}

#[raw_tracepoint(tracepoint = "mm_migrate_pages")]
pub fn mm_migrate_pages_raw(ctx: RawTracePointContext) -> i32 {
    // An argument of 32 bits has the rest of its word undefined.
    let reason = field_u64(&ctx, global!(MIGRATE_REASON)) as u32;
    done(sum(&ctx, reason)) as i32
}

#[inline(always)]
fn try_mm_migrate_pages(ctx: &TracePointContext) -> Result<(), Loss> {
    sum(ctx, field_u32(ctx, global!(MIGRATE_REASON)))
}

#[inline(always)]
fn sum(ctx: &impl EbpfContext, reason: u32) -> Result<(), Loss> {
    let by_agent = match global!(AGENT_TGID) {
        0 => bpf_get_current_comm().is_ok_and(|comm| u128::from_ne_bytes(comm) == u128::from_ne_bytes(MOVER_COMM)),
        agent => (bpf_get_current_pid_tgid() >> 32) as u32 == agent,
    };
    let batch = MigrateSums {
        calls: 1,
        succeeded: field_u64(ctx, global!(MIGRATE_SUCCEEDED)),
        failed: field_u64(ctx, global!(MIGRATE_FAILED)),
        thp_succeeded: field_u64(ctx, global!(MIGRATE_THP_SUCCEEDED)),
        thp_failed: field_u64(ctx, global!(MIGRATE_THP_FAILED)),
        thp_split: field_u64(ctx, global!(MIGRATE_THP_SPLIT)),
        large_folio_split: field_u64(ctx, global!(MIGRATE_LARGE_FOLIO_SPLIT)),
    };
    if let Some(sums) = MIGRATIONS.get_ptr_mut(migrate_index(reason, by_agent)) {
        // SAFETY: this CPU's slot; tracepoint programs of one CPU do not interrupt one another.
        unsafe {
            (*sums).calls += batch.calls;
            (*sums).succeeded += batch.succeeded;
            (*sums).failed += batch.failed;
            (*sums).thp_succeeded += batch.thp_succeeded;
            (*sums).thp_failed += batch.thp_failed;
            (*sums).thp_split += batch.thp_split;
            (*sums).large_folio_split += batch.large_folio_split;
        }
    }
    if reason < MIGRATE_REASONS { Ok(()) } else { Err(Loss::MigrateReason) }
}
