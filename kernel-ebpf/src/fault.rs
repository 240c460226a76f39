//! Page faults of tracked processes, counted in the kernel. On the path of every fault of the machine: one that falls into
//! the same region as the CPU's last costs no hash lookup, another one of a tracked process two, and one of a process
//! that is not tracked one. perf's own readers of these two tracepoints see no event while the programs run: its work for
//! each fault would cost more than ours, and its software event `page-faults` counts on.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::bpf_get_current_pid_tgid,
    macros::{map, tracepoint},
    maps::{Array, HashMap, PerCpuArray},
    programs::TracePointContext,
};
use tensortier_abi::{
    FaultCounts, JOB_COUNTS_FAULTS, Loss, MAX_JOBS, MAX_REGIONS, OpenRegion, REGION_SHIFT, RegionKey,
};

use crate::{
    emit::{HIDE, add_shared, done, field_u64, global, lost, offsets},
    job::JOBS,
};

/// Faults by process and region since user space last drained it, without those of the open regions.
#[map]
static FAULTS: HashMap<RegionKey, FaultCounts> = HashMap::with_max_entries(MAX_REGIONS, 0);

/// Each CPU's open region, one for either parity of the epoch.
#[map]
static OPEN_REGIONS: PerCpuArray<OpenRegion> = PerCpuArray::with_max_entries(2, 0);

/// User space turns it over at a drain: the open regions of the old parity are its own from then on.
#[map]
static EPOCH: Array<u32> = Array::with_max_entries(1, 0);

/// Faults by job: right at any time, even where `FAULTS` is full.
#[map]
static JOB_FAULTS: PerCpuArray<FaultCounts> = PerCpuArray::with_max_entries(MAX_JOBS, 0);

offsets!(FAULT_ADDRESS);

#[tracepoint]
pub fn page_fault_user(ctx: TracePointContext) -> u32 {
    done(try_page_fault(&ctx, FaultCounts { user: 1, kernel: 0 }));
    HIDE
}

#[tracepoint]
pub fn page_fault_kernel(ctx: TracePointContext) -> u32 {
    done(try_page_fault(&ctx, FaultCounts { user: 0, kernel: 1 }));
    HIDE
}

#[inline(always)]
fn try_page_fault(ctx: &TracePointContext, fault: FaultCounts) -> Result<(), Loss> {
    let address = field_u64(ctx, global!(FAULT_ADDRESS));
    // The upper half of the address space is the kernel's own: its faults there are not the job's.
    if address >> 63 != 0 {
        return Ok(());
    }
    let epoch = EPOCH.get(0).map_or(0, |epoch| *epoch);
    let Some(open) = OPEN_REGIONS.get_ptr_mut(epoch & 1) else { return Ok(()) };
    let (region, tgid) = (address >> REGION_SHIFT, (bpf_get_current_pid_tgid() >> 32) as u32);
    // SAFETY: this CPU's slot; tracepoint programs of one CPU do not interrupt one another.
    let open = unsafe { &mut *open };
    if open.region != region || open.tgid != tgid {
        let Some(entry) = JOBS.get_ptr(tgid) else { return Ok(()) };
        // SAFETY: a map value; user space may change it at the same time, one word at a time.
        let entry = unsafe { *entry };
        if entry.flags & JOB_COUNTS_FAULTS == 0 {
            return Ok(());
        }
        close(open);
        *open = OpenRegion { region, tgid, job: entry.job, counts: FaultCounts { user: 0, kernel: 0 } };
    }
    open.counts.user += fault.user;
    open.counts.kernel += fault.kernel;
    if let Some(total) = JOB_FAULTS.get_ptr_mut(open.job) {
        // SAFETY: as above.
        unsafe {
            (*total).user += fault.user;
            (*total).kernel += fault.kernel;
        }
    }
    Ok(())
}

/// Puts an open region's faults into `FAULTS`.
#[inline(always)]
fn close(open: &OpenRegion) {
    if open.tgid == 0 {
        return;
    }
    let key = RegionKey { region: open.region, tgid: open.tgid, zero: 0 };
    if add(&key, &open.counts) || FAULTS.insert(key, open.counts, BPF_NOEXIST.into()).is_ok() {
        return;
    }
    // Another CPU may have been first; otherwise the map is full.
    if !add(&key, &open.counts) {
        lost(Loss::FaultRegion, open.counts.user + open.counts.kernel);
    }
}

/// Adds to a region's entry, where it has one; other CPUs add at the same time.
#[inline(always)]
fn add(key: &RegionKey, counts: &FaultCounts) -> bool {
    let Some(kept) = FAULTS.get_ptr_mut(key) else { return false };
    // SAFETY: a map value, which stays a map value as long as the program runs.
    unsafe {
        add_shared(&raw mut (*kept).user, counts.user);
        add_shared(&raw mut (*kept).kernel, counts.kernel);
    }
    true
}
