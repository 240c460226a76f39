//! Loads the eBPF programs, attaches what this kernel can attach, and says what it cannot and what is then not seen.
//!
//! Minimum kernel: 5.11 (ring buffers, memory accounted to the cgroup). No BTF, kprobe or fentry is needed.

use std::{
    iter,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    process,
    time::{Duration, Instant},
};

use aya::{Ebpf, EbpfLoader, maps::Map, programs::ProgramType};
use serde::Serialize;
use tensortier_abi::{AGENT_TGID, FIELDS, Loss, MAX_REGIONS, PROGRAMS, Program, gpu, maps};

use super::{
    bpf_sys,
    damon_events::DamonEvents,
    fault::Faults,
    format::{Format, FormatError, tracefs},
    gpu::GpuCalls,
    job_events::JobEvents,
    layout::Layout,
    lost::Lost,
    migrations::Migrations,
};
use crate::units::read_text;

/// The programs; empty where the build left them out, and then `MISSING` says why.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("TENSORTIER_EBPF_OBJECT"));
const MISSING: &str = env!("TENSORTIER_EBPF_MISSING");

/// Why the programs do not run, or could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum EbpfError {
    /// The binary has no programs.
    #[error("built without eBPF ({MISSING}); run scripts/setup and rebuild")]
    BuiltWithout,
    /// No tracepoints.
    #[error(transparent)]
    Tracepoints(#[from] FormatError),
    /// The kernel refused the object: no rights, or no BPF.
    #[error("the kernel does not take the eBPF programs: {source}; they need root (CAP_BPF and CAP_PERFMON)")]
    Load {
        /// What aya says.
        source: aya::EbpfError,
    },
    /// A map is missing or of another kind, or the kernel refused an operation on it.
    #[error("eBPF map {map}: {reason}")]
    Map {
        /// Its name.
        map: &'static str,
        /// What failed.
        reason: String,
    },
}

impl EbpfError {
    pub(super) fn map(map: &'static str, reason: impl ToString) -> Self {
        Self::Map { map, reason: reason.to_string() }
    }
}

/// Whether the binary has the eBPF programs.
///
/// # Errors
/// [`EbpfError::BuiltWithout`], with the reason and the command that mends it.
pub fn built() -> Result<(), EbpfError> {
    if OBJECT.is_empty() { Err(EbpfError::BuiltWithout) } else { Ok(()) }
}

/// What to load.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Regions (2 MiB) that can take faults between two drains; about 80 bytes of kernel memory each.
    pub regions: u32,
    /// Use raw tracepoints where a program has that form and the kernel's BTF names the arguments.
    pub raw: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { regions: MAX_REGIONS, raw: true }
    }
}

/// One program and whether it runs.
#[derive(Clone, Debug, Serialize)]
pub struct Attachment {
    /// The program.
    pub program: &'static str,
    /// Its tracepoint, `category/name`.
    pub event: &'static str,
    /// What it shows, and what is not seen where it does not run.
    pub shows: &'static str,
    /// Whether it is the raw tracepoint's form, which the kernel never skips.
    pub raw: bool,
    /// Why it does not run; `None` where it does.
    pub missing: Option<String>,
}

/// What a program cost so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RunTime {
    /// The program.
    pub program: &'static str,
    /// Time spent in it. Counts only while somebody has the kernel's statistics enabled (`BPF_ENABLE_STATS`).
    pub spent: Duration,
    /// Runs counted meanwhile.
    pub runs: u64,
}

/// The loaded programs and the ways to read them. Dropping it detaches every program.
pub struct Programs {
    /// Which processes belong to a job.
    pub jobs: JobEvents,
    /// Page faults.
    pub faults: Faults,
    /// DAMON's aggregations.
    pub damon: DamonEvents,
    /// Pages migrated.
    pub migrations: Migrations,
    /// Copies to and from GPUs.
    pub gpu: GpuCalls,
    attachments: Vec<Attachment>,
    ebpf: Ebpf,
    #[cfg(feature = "ebpf-log")]
    log: Option<aya_log::EbpfLogger<&'static dyn log::Log>>,
}

impl Programs {
    /// Loads and attaches. A program whose tracepoint this kernel lacks, or that it refuses, is left out and said
    /// ([`attachments`](Self::attachments)); the others run.
    ///
    /// # Errors
    /// Built without the programs; no tracefs; the kernel takes none of the object's maps.
    pub fn load(options: &Options) -> Result<Self, EbpfError> {
        built()?;
        let tracefs = tracefs()?;
        let layout = Layout::read(tracefs, options.raw);
        let agent = process::id();
        let mut loader = EbpfLoader::new();
        for (field, offset) in FIELDS.iter().zip(&layout.offsets) {
            loader.override_global(field.global, offset, true);
        }
        loader.override_global(AGENT_TGID, &agent, true).map_max_entries(maps::FAULTS, options.regions);
        let mut ebpf = loader.load(OBJECT).map_err(|source| EbpfError::Load { source })?;

        let lost = Lost::new(take(&mut ebpf, maps::LOST)?)?;
        let reasons = Format::read(tracefs, MIGRATE_EVENT).map(|format| format.symbols("reason")).unwrap_or_default();
        let mut programs = Self {
            jobs: JobEvents::new(
                take(&mut ebpf, maps::JOBS)?,
                take(&mut ebpf, maps::JOB_EVENTS)?,
                lost.of(&[Loss::JobEvent, Loss::JobProcess]),
            )?,
            faults: Faults::new(
                take(&mut ebpf, maps::FAULTS)?,
                take(&mut ebpf, maps::OPEN_REGIONS)?,
                take(&mut ebpf, maps::EPOCH)?,
                take(&mut ebpf, maps::JOB_FAULTS)?,
                lost.of(&[Loss::FaultRegion]),
            )?,
            damon: DamonEvents::new(
                take(&mut ebpf, maps::KDAMONDS)?,
                take(&mut ebpf, maps::DAMON_EVENTS)?,
                lost.of(&[Loss::Damon]),
            )?,
            migrations: Migrations::new(take(&mut ebpf, maps::MIGRATIONS)?, &reasons, lost.of(&[Loss::MigrateReason]))?,
            gpu: GpuCalls::new(take(&mut ebpf, maps::GPU_EVENTS)?, lost.of(&[Loss::Gpu]), &mut ebpf)?,
            attachments: Vec::new(),
            #[cfg(feature = "ebpf-log")]
            log: aya_log::EbpfLogger::init(&mut ebpf).inspect_err(|error| tracing::warn!(%error, "no eBPF log")).ok(),
            ebpf,
        };
        for program in &PROGRAMS {
            let missing = match layout.missing.get(program.event) {
                Some(reason) => Some(reason.clone()),
                None => layout.attach(&mut programs.ebpf, program).err(),
            };
            if let Some(reason) = &missing {
                tracing::warn!(program = program.name, reason, unseen = program.shows, "not attached");
            }
            let Program { name, event, shows, .. } = *program;
            let raw = layout.raw.contains(event);
            programs.attachments.push(Attachment { program: name, event, shows, raw, missing });
        }
        Ok(programs)
    }

    /// Each program, and why it does not run where it does not.
    pub fn attachments(&self) -> &[Attachment] {
        &self.attachments
    }

    /// Looks for CUDA libraries in the processes tracked, and sets probes in them.
    pub fn look_for_gpus(&mut self, now: Instant) {
        let tracked = self.jobs.tracked().map(|(pid, _)| pid).collect();
        self.gpu.look(&mut self.ebpf, &tracked, now);
    }

    /// Whether the program of that name runs.
    pub fn runs(&self, program: &str) -> bool {
        self.attachments.iter().any(|one| one.program == program && one.missing.is_none())
    }

    /// What each program cost, by the kernel's statistics; zeros while these are off.
    pub fn run_times(&self) -> Vec<RunTime> {
        let run_time = |program: &Program| {
            let forms = program.raw.into_iter().chain([program.name]);
            // Of its two forms the one that was loaded.
            let info = forms.filter_map(|form| self.ebpf.program(form)?.info().ok()).next()?;
            Some(RunTime { program: program.name, spent: info.run_time(), runs: info.run_count() })
        };
        let uprobe = |name: &&'static str| {
            let info = self.ebpf.program(name)?.info().ok()?;
            Some(RunTime { program: name, spent: info.run_time(), runs: info.run_count() })
        };
        let uprobes = [gpu::CALL_PROGRAM, gpu::RETURN_PROGRAM];
        iter::chain(PROGRAMS.iter().filter_map(run_time), uprobes.iter().filter_map(uprobe)).collect()
    }

    /// Events that the kernel handed to no program. It skips one that comes on a CPU where another program, or a map
    /// operation of any process, was preempted (`trace_call_bpf`); perf's readers of these tracepoints miss it too.
    ///
    /// Minimum kernel: 6.7; 0 before.
    pub fn missed(&self) -> u64 {
        let tracepoints = self.ebpf.programs().filter(|(_, program)| program.prog_type() != ProgramType::KProbe);
        let descriptors = tracepoints.filter_map(|(_, program)| program.fd().ok());
        descriptors.filter_map(|program| bpf_sys::recursion_misses(program.as_fd())).sum()
    }

    /// Hands messages of the programs (feature `ebpf-log`) to the log.
    pub fn flush_log(&mut self) {
        #[cfg(feature = "ebpf-log")]
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }
}

/// Loads what [`MigrationProgram`](super::migrations::MigrationProgram) holds: one program, and the other programs' maps
/// as small as they can be.
pub(super) fn load_migrations() -> Result<(Migrations, Ebpf), EbpfError> {
    built()?;
    let tracefs = tracefs()?;
    let layout = Layout::read(tracefs, true);
    let mut loader = EbpfLoader::new();
    for (field, offset) in FIELDS.iter().zip(&layout.offsets) {
        loader.override_global(field.global, offset, true);
    }
    loader.override_global(AGENT_TGID, &0u32, true).map_max_entries(maps::FAULTS, 1);
    let mut ebpf = loader.load(OBJECT).map_err(|source| EbpfError::Load { source })?;
    let program = PROGRAMS.iter().find(|program| program.event == MIGRATE_EVENT);
    let attached = match layout.missing.get(MIGRATE_EVENT) {
        Some(reason) => Err(reason.clone()),
        None => program.ok_or("not in the object".to_owned()).and_then(|program| layout.attach(&mut ebpf, program)),
    };
    attached.map_err(|reason| EbpfError::map(maps::MIGRATIONS, reason))?;
    let reasons = Format::read(tracefs, MIGRATE_EVENT)?.symbols("reason");
    let lost = Lost::new(take(&mut ebpf, maps::LOST)?)?.of(&[Loss::MigrateReason]);
    Ok((Migrations::new(take(&mut ebpf, maps::MIGRATIONS)?, &reasons, lost)?, ebpf))
}

pub(super) const MIGRATE_EVENT: &str = "migrate/mm_migrate_pages";

fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, EbpfError> {
    ebpf.take_map(name).ok_or_else(|| EbpfError::map(name, "not in the object"))
}

/// Kernel memory of a map; 0 where the kernel does not tell.
pub(super) fn memory_of(map: &aya::maps::MapData) -> u64 {
    fact(map.fd().as_fd(), "memlock:").unwrap_or_default()
}

/// What the kernel tells of a map or a program under that name.
fn fact(of: BorrowedFd<'_>, name: &str) -> Option<u64> {
    let text = read_text(format!("/proc/self/fdinfo/{}", of.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
