//! Records, map names and index constants shared by the kernel programs and user space.
//!
//! Everything here is laid out the same for the BPF target and for the host: no implicit padding, no pointer-sized
//! fields, asserted at compile time.
#![no_std]

pub mod gpu;

/// Names of the maps.
pub mod maps {
    /// Hash: thread group id → [`JobEntry`](crate::JobEntry).
    pub const JOBS: &str = "JOBS";
    /// Ring buffer of [`JobEvent`](crate::JobEvent).
    pub const JOB_EVENTS: &str = "JOB_EVENTS";
    /// Hash: [`RegionKey`](crate::RegionKey) → [`FaultCounts`](crate::FaultCounts); user space drains it.
    pub const FAULTS: &str = "FAULTS";
    /// Per-CPU array of two [`OpenRegion`](crate::OpenRegion)s: the programs use one, user space drains the other.
    pub const OPEN_REGIONS: &str = "OPEN_REGIONS";
    /// Array of one `u32`: its parity names the open region in use. User space counts it up at each drain.
    pub const EPOCH: &str = "EPOCH";
    /// Per-CPU array by job: [`FaultCounts`](crate::FaultCounts) since the job's slot was cleared.
    pub const JOB_FAULTS: &str = "JOB_FAULTS";
    /// Hash: thread id of a kdamond whose aggregations are wanted → `u32` of the caller's choice.
    pub const KDAMONDS: &str = "KDAMONDS";
    /// Ring buffer of [`DamonEvent`](crate::DamonEvent).
    pub const DAMON_EVENTS: &str = "DAMON_EVENTS";
    /// Per-CPU array of [`MigrateSums`](crate::MigrateSums), by [`migrate_index`](crate::migrate_index).
    pub const MIGRATIONS: &str = "MIGRATIONS";
    /// Ring buffer of [`GpuEvent`](crate::gpu::GpuEvent).
    pub const GPU_EVENTS: &str = "GPU_EVENTS";
    /// Per-CPU array of `u64`: events lost, by [`Loss`](crate::Loss).
    pub const LOST: &str = "LOST";
}

/// Jobs at a time; a job's number is its slot in [`maps::JOB_FAULTS`].
pub const MAX_JOBS: u32 = 256;
/// Processes tracked at a time.
pub const MAX_PROCESSES: u32 = 8192;
/// Regions that can take faults between two drains, unless user space asks for another number at load.
pub const MAX_REGIONS: u32 = 65536;
/// kdamonds watched at a time.
pub const MAX_KDAMONDS: u32 = 64;
/// Migration reasons counted apart; the kernel of 2026 has ten. A higher number lands in the last slot.
pub const MIGRATE_REASONS: u32 = 16;
/// Bits of an address below its region number (2 MiB regions).
pub const REGION_SHIFT: u32 = 21;
/// Bytes of the ring buffer of job events: 2048 of them.
pub const JOB_EVENTS_BYTES: u32 = 64 << 10;
/// Bytes of the ring buffer of DAMON aggregations: 18,000 regions.
pub const DAMON_EVENTS_BYTES: u32 = 1 << 20;

/// An offset global that user space leaves so: the running kernel has no such field, and the program reads 0.
pub const ABSENT: u32 = u32::MAX;
/// Field offsets that the programs can read: multiples of 4 below this. The verifier wants each offset to be a constant
/// in the code, so there is one load for each.
pub const MAX_OFFSET: u32 = 128;

/// A tracepoint's field whose offset user space reads from the format file, or for a raw tracepoint from the order of
/// the arguments, which are eight bytes each, and sets as a global before loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The global in the program.
    pub global: &'static str,
    /// The tracepoint, `category/name`.
    pub event: &'static str,
    /// The field's name in the format file.
    pub field: &'static str,
    /// Its size in bytes.
    pub size: u32,
    /// Whether the program means nothing without it.
    pub required: bool,
}

const fn required(global: &'static str, event: &'static str, field: &'static str, size: u32) -> Field {
    Field { global, event, field, size, required: true }
}

const fn optional(global: &'static str, event: &'static str, field: &'static str, size: u32) -> Field {
    Field { global, event, field, size, required: false }
}

const NEWTASK: &str = "task/task_newtask";
const EXIT: &str = "sched/sched_process_exit";
const FAULT: &str = "exceptions/page_fault_user";
const DAMON: &str = "damon/damon_aggregated";
const MIGRATE: &str = "migrate/mm_migrate_pages";

/// Every offset global.
pub const FIELDS: [Field; 17] = [
    required("NEWTASK_PID", NEWTASK, "pid", 4),
    required("NEWTASK_CLONE_FLAGS", NEWTASK, "clone_flags", 8),
    optional("EXIT_GROUP_DEAD", EXIT, "group_dead", 1),
    // Both fault tracepoints are of one event class and have the same fields.
    required("FAULT_ADDRESS", FAULT, "address", 8),
    required("DAMON_TARGET_ID", DAMON, "target_id", 8),
    optional("DAMON_NR_REGIONS", DAMON, "nr_regions", 4),
    required("DAMON_START", DAMON, "start", 8),
    required("DAMON_END", DAMON, "end", 8),
    required("DAMON_NR_ACCESSES", DAMON, "nr_accesses", 4),
    optional("DAMON_AGE", DAMON, "age", 4),
    required("MIGRATE_SUCCEEDED", MIGRATE, "succeeded", 8),
    required("MIGRATE_FAILED", MIGRATE, "failed", 8),
    optional("MIGRATE_THP_SUCCEEDED", MIGRATE, "thp_succeeded", 8),
    optional("MIGRATE_THP_FAILED", MIGRATE, "thp_failed", 8),
    optional("MIGRATE_THP_SPLIT", MIGRATE, "thp_split", 8),
    optional("MIGRATE_LARGE_FOLIO_SPLIT", MIGRATE, "large_folio_split", 8),
    required("MIGRATE_REASON", MIGRATE, "reason", 4),
];

/// The global that holds the agent's thread group id, so that its own migrations are counted apart. 0: those of every
/// thread named [`MOVER_COMM`], for a reader that may start before the agent does.
pub const AGENT_TGID: &str = "AGENT_TGID";
/// The name of the thread that moves pages for an agent, as the kernel has it.
pub const MOVER_COMM: [u8; 16] = *b"tt-migrate\0\0\0\0\0\0";

/// A program and the tracepoint it attaches to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// The function in the object.
    pub name: &'static str,
    /// The same function for the raw tracepoint, used where the kernel's BTF names the arguments. The kernel skips a
    /// tracepoint program, and perf's readers with it, while a map operation is preempted on that CPU; a raw one never.
    pub raw: Option<&'static str>,
    /// The tracepoint, `category/name`.
    pub event: &'static str,
    /// What is not seen where it cannot attach.
    pub shows: &'static str,
}

const fn program(name: &'static str, event: &'static str, shows: &'static str) -> Program {
    Program { name, raw: None, event, shows }
}

/// Every program.
pub const PROGRAMS: [Program; 7] = [
    program("task_newtask", NEWTASK, "children of a job's processes"),
    program("process_exec", "sched/sched_process_exec", "programs that a job starts"),
    program("process_exit", EXIT, "ends of a job's processes"),
    program("page_fault_user", FAULT, "page faults of a job's own instructions"),
    program("page_fault_kernel", "exceptions/page_fault_kernel", "page faults of system calls made by a job"),
    program("damon_aggregated", DAMON, "DAMON's regions"),
    Program {
        name: "mm_migrate_pages",
        raw: Some("mm_migrate_pages_raw"),
        event: MIGRATE,
        shows: "pages that the kernel migrated, by reason",
    },
];

/// [`JobEntry::flags`]: count this process's faults.
pub const JOB_COUNTS_FAULTS: u32 = 1;
/// [`JobEntry::flags`], set by the exit program: the process has ended or is about to; user space verifies and removes.
pub const JOB_ENDED: u32 = 2;

/// A tracked process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobEntry {
    /// The job, below [`MAX_JOBS`].
    pub job: u32,
    /// `JOB_*` bits.
    pub flags: u32,
}

/// [`JobEvent::kind`]: a tracked process made a process, which is tracked from its first instruction.
pub const JOB_EVENT_FORK: u32 = 1;
/// [`JobEvent::kind`]: a tracked process runs another program.
pub const JOB_EVENT_EXEC: u32 = 2;
/// [`JobEvent::kind`]: a tracked process ends; on kernels without `group_dead`, its first thread ended.
pub const JOB_EVENT_EXIT: u32 = 3;

/// Something that happened to a tracked process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobEvent {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub at_ns: u64,
    /// A `JOB_EVENT_*`.
    pub kind: u32,
    /// The job.
    pub job: u32,
    /// The process's thread group id.
    pub tgid: u32,
    /// The parent's thread group id for a fork, else 0.
    pub parent: u32,
}

/// A region of a process's address space.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionKey {
    /// Address >> [`REGION_SHIFT`].
    pub region: u64,
    /// The process's thread group id.
    pub tgid: u32,
    /// 0; hash keys are compared byte by byte.
    pub zero: u32,
}

/// Page faults, counted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Taken by instructions of the process.
    pub user: u64,
    /// Taken on its addresses by the kernel, in its system calls.
    pub kernel: u64,
}

/// The region in which a CPU took its last fault, and the faults there that are not in [`maps::FAULTS`] yet. Faults come
/// in runs, and an addition here costs a fraction of the hash lookups.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenRegion {
    /// Address >> [`REGION_SHIFT`].
    pub region: u64,
    /// The process's thread group id; 0 where there is none.
    pub tgid: u32,
    /// Its job.
    pub job: u32,
    /// The faults.
    pub counts: FaultCounts,
}

/// One region of one DAMON aggregation.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamonEvent {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub at_ns: u64,
    /// The target's index within its context.
    pub target: u64,
    /// First address (`vaddr`, `fvaddr`: virtual; `paddr`: physical).
    pub start: u64,
    /// First address past the region.
    pub end: u64,
    /// Thread id of the kdamond.
    pub kdamond: u32,
    /// Regions in this aggregation of the target; 0 where the kernel does not tell.
    pub nr_regions: u32,
    /// Samples of the aggregation that found it accessed.
    pub nr_accesses: u32,
    /// Aggregations for which the region has kept its access frequency.
    pub age: u32,
}

/// Sums over `mm_migrate_pages` events.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrateSums {
    /// Events (batches, not pages).
    pub calls: u64,
    /// Base pages migrated.
    pub succeeded: u64,
    /// Base pages not migrated.
    pub failed: u64,
    /// Transparent huge pages migrated whole.
    pub thp_succeeded: u64,
    /// Transparent huge pages not migrated.
    pub thp_failed: u64,
    /// Transparent huge pages split to migrate them.
    pub thp_split: u64,
    /// Large folios split to migrate them; 0 on kernels that do not tell.
    pub large_folio_split: u64,
}

/// Slot of [`maps::MIGRATIONS`] for a reason's number, apart for migrations by the agent's threads and by others.
pub const fn migrate_index(reason: u32, by_agent: bool) -> u32 {
    let reason = if reason < MIGRATE_REASONS { reason } else { MIGRATE_REASONS - 1 };
    reason * 2 + by_agent as u32
}

/// What was lost, and so the slot of [`maps::LOST`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Faults whose region could not be kept: the map is full. The job's totals still have them.
    FaultRegion = 0,
    /// DAMON regions: the ring buffer was full.
    Damon = 1,
    /// Fork, exec and exit events: the ring buffer was full.
    JobEvent = 2,
    /// Processes of a job that could not be tracked: the map is full.
    JobProcess = 3,
    /// Migration events with a reason beyond [`MIGRATE_REASONS`]; they are counted in the last slot.
    MigrateReason = 4,
    /// Copies to and from GPUs: the ring buffer was full.
    Gpu = 5,
}

/// Number of [`Loss`] kinds.
pub const LOSSES: u32 = 6;

const _: () = {
    assert!(size_of::<JobEntry>() == 8 && size_of::<JobEvent>() == 24);
    assert!(size_of::<RegionKey>() == 16 && size_of::<FaultCounts>() == 16);
    assert!(size_of::<OpenRegion>() == 32 && size_of::<DamonEvent>() == 48 && size_of::<MigrateSums>() == 56);
    assert!(JOB_EVENTS_BYTES.is_power_of_two() && DAMON_EVENTS_BYTES.is_power_of_two());
};

#[cfg(feature = "user")]
mod pod {
    #![allow(unsafe_code)]

    macro_rules! pod {
        ($($record:ty),*) => {
            // SAFETY: #[repr(C)] of integers without padding (the asserts above); any bytes are a value.
            $(unsafe impl aya::Pod for $record {})*
        };
    }
    use crate::{DamonEvent, FaultCounts, JobEntry, JobEvent, MigrateSums, OpenRegion, RegionKey, gpu::GpuEvent};
    pod!(JobEntry, JobEvent, RegionKey, FaultCounts, OpenRegion, DamonEvent, MigrateSums, GpuEvent);
}
