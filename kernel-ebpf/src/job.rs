//! Which processes belong to a job: the tree below each process that user space put into `JOBS`.

use aya_ebpf::{
    bindings::BPF_ANY,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    macros::map,
    maps::{HashMap, RingBuf},
    programs::TracePointContext,
};
use tensortier_abi::{
    ABSENT, JOB_ENDED, JOB_EVENT_EXEC, JOB_EVENT_EXIT, JOB_EVENT_FORK, JOB_EVENTS_BYTES, JobEntry, JobEvent, Loss,
    MAX_PROCESSES,
};

use crate::emit::{emit, field_u8, field_u32, field_u64, global, offsets, seen_by_perf};

/// Tracked processes.
#[map]
pub static JOBS: HashMap<u32, JobEntry> = HashMap::with_max_entries(MAX_PROCESSES, 0);

#[map]
static JOB_EVENTS: RingBuf = RingBuf::with_byte_size(JOB_EVENTS_BYTES, 0);

offsets!(NEWTASK_PID, NEWTASK_CLONE_FLAGS, EXIT_GROUP_DEAD);

/// `CLONE_THREAD` of linux/sched.h: the new task is a thread of its maker's process.
const CLONE_THREAD: u64 = 0x10000;

/// The current process's entry, where it is tracked, and its thread group id.
#[inline(always)]
pub fn current() -> Option<(u32, *mut JobEntry)> {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    JOBS.get_ptr_mut(tgid).map(|entry| (tgid, entry))
}

#[inline(always)]
fn event(kind: u32, job: u32, tgid: u32, parent: u32) -> Result<(), Loss> {
    // SAFETY: a helper without arguments.
    let at_ns = unsafe { bpf_ktime_get_ns() };
    emit(&JOB_EVENTS, JobEvent { at_ns, kind, job, tgid, parent }, Loss::JobEvent)
}

seen_by_perf! {
    /// A task is made. Runs in its maker, before the new task's first instruction.
    task_newtask: try_task_newtask
}

#[inline(always)]
fn try_task_newtask(ctx: &TracePointContext) -> Result<(), Loss> {
    if field_u64(ctx, global!(NEWTASK_CLONE_FLAGS)) & CLONE_THREAD != 0 {
        return Ok(());
    }
    let child = field_u32(ctx, global!(NEWTASK_PID));
    let Some((parent, entry)) = current() else {
        // The number of a job's process that ended may come back as a stranger's before user space has removed it.
        if JOBS.get_ptr(child).is_some() {
            // An entry that user space removed meanwhile is what was wanted.
            let _gone = JOBS.remove(child);
        }
        return Ok(());
    };
    // SAFETY: a map value; user space may change it at the same time, one word at a time.
    let entry = unsafe { *entry };
    let child_entry = JobEntry { job: entry.job, flags: entry.flags & !JOB_ENDED };
    JOBS.insert(child, child_entry, BPF_ANY.into()).map_err(|_full| Loss::JobProcess)?;
    #[cfg(feature = "log")]
    aya_log_ebpf::debug!(ctx, "job {}: {} made {}", entry.job, parent, child);
    event(JOB_EVENT_FORK, entry.job, child, parent)
}

seen_by_perf! {
    /// A process runs another program; its thread group id stays.
    process_exec: try_process_exec
}

#[inline(always)]
fn try_process_exec(_ctx: &TracePointContext) -> Result<(), Loss> {
    let Some((tgid, entry)) = current() else { return Ok(()) };
    // SAFETY: a map value.
    event(JOB_EVENT_EXEC, unsafe { (*entry).job }, tgid, 0)
}

seen_by_perf! {
    /// A thread ends. The process ends with the last of them, which newer kernels tell (`group_dead`); where they do not,
    /// the first thread's end is reported and user space looks whether others live on.
    process_exit: try_process_exit
}

#[inline(always)]
fn try_process_exit(ctx: &TracePointContext) -> Result<(), Loss> {
    let Some((tgid, entry)) = current() else { return Ok(()) };
    let ends = if global!(EXIT_GROUP_DEAD) == ABSENT {
        bpf_get_current_pid_tgid() as u32 == tgid
    } else {
        field_u8(ctx, global!(EXIT_GROUP_DEAD)) != 0
    };
    if !ends {
        return Ok(());
    }
    // SAFETY: a map value; only the last thread, or the first, comes here.
    let job = unsafe {
        (*entry).flags |= JOB_ENDED;
        (*entry).job
    };
    event(JOB_EVENT_EXIT, job, tgid, 0)
}
