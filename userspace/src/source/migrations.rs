//! Pages that the kernel migrated, by reason, the agent's own moves apart from everybody else's. `pgmigrate_success` of
//! /proc/vmstat mixes every cause, and the tracepoint counts batches; these are pages.

use std::iter;

use aya::maps::{Map, MapData, PerCpuArray};
use serde::Serialize;
use tensortier_abi::{MIGRATE_REASONS, MigrateSums, maps, migrate_index};

use super::{
    ebpf::{self, EbpfError},
    lost::LossCount,
};

/// Sums of one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Migrated {
    /// The kernel's name of the reason (`syscall_or_cpuset`, `demotion`, …); `reason_N` where it names none.
    pub reason: String,
    /// Whether the agent's own threads made the call.
    pub by_agent: bool,
    /// Batches.
    pub calls: u64,
    /// Base pages migrated.
    pub succeeded: u64,
    /// Base pages not migrated.
    pub failed: u64,
    /// Transparent huge pages migrated whole.
    pub thp_succeeded: u64,
    /// Transparent huge pages not migrated.
    pub thp_failed: u64,
    /// Transparent huge pages split for it.
    pub thp_split: u64,
    /// Large folios split for it; 0 on kernels that do not tell.
    pub large_folio_split: u64,
}

/// The migration sums.
pub struct Migrations {
    sums: PerCpuArray<MapData, MigrateSums>,
    names: Vec<String>,
    before: Vec<MigrateSums>,
    lost: LossCount,
}

/// The migration program alone, for whoever counts without being an agent: `by_agent` is then every agent's.
pub struct MigrationProgram {
    /// The sums since load.
    pub sums: Migrations,
    _ebpf: aya::Ebpf,
}

impl MigrationProgram {
    /// Loads and attaches it; dropping it detaches it.
    ///
    /// # Errors
    /// Built without the programs, no tracefs, a kernel without the tracepoint, or no right to load.
    pub fn load() -> Result<Self, EbpfError> {
        let (sums, ebpf) = ebpf::load_migrations()?;
        Ok(Self { sums, _ebpf: ebpf })
    }
}

impl Migrations {
    pub(super) fn new(sums: Map, names: &[(u32, String)], lost: LossCount) -> Result<Self, EbpfError> {
        let name = |reason| {
            let named = names.iter().find(|(number, _)| *number == reason);
            named.map_or_else(|| format!("reason_{reason}"), |(_, name)| name.clone())
        };
        Ok(Self {
            sums: PerCpuArray::try_from(sums).map_err(|error| EbpfError::map(maps::MIGRATIONS, error))?,
            names: (0..MIGRATE_REASONS).map(name).collect(),
            before: vec![MigrateSums::default(); MIGRATE_REASONS as usize * 2],
            lost,
        })
    }

    /// The names of the reasons, by the kernel's number.
    pub fn reasons(&self) -> &[String] {
        &self.names
    }

    /// What was migrated since the last drain; reasons without an event are left out.
    ///
    /// # Errors
    /// The kernel refuses to read the map.
    pub fn drain(&mut self) -> Result<Vec<Migrated>, EbpfError> {
        let now = self.read()?;
        let before = std::mem::replace(&mut self.before, now.clone());
        let since = |(now, before): (&MigrateSums, &MigrateSums)| combine(now, before, u64::wrapping_sub);
        Ok(self.named(iter::zip(&now, &before).map(since).collect()))
    }

    /// What was migrated since load; reasons without an event are left out.
    ///
    /// # Errors
    /// As [`drain`](Self::drain).
    pub fn totals(&self) -> Result<Vec<Migrated>, EbpfError> {
        Ok(self.named(self.read()?))
    }

    /// Events whose reason is beyond the slots since load; they are counted in the last slot.
    pub fn lost(&self) -> u64 {
        self.lost.total()
    }

    fn read(&self) -> Result<Vec<MigrateSums>, EbpfError> {
        let slots = (0..MIGRATE_REASONS * 2).map(|slot| {
            let cpus = self.sums.get(&slot, 0).map_err(|error| EbpfError::map(maps::MIGRATIONS, error))?;
            Ok(cpus.iter().fold(MigrateSums::default(), |sum, cpu| combine(&sum, cpu, u64::wrapping_add)))
        });
        slots.collect()
    }

    fn named(&self, sums: Vec<MigrateSums>) -> Vec<Migrated> {
        let slots = (0..MIGRATE_REASONS).flat_map(|reason| [(reason, false), (reason, true)]);
        let all = slots.map(|(reason, by_agent)| {
            let sum = sums[migrate_index(reason, by_agent) as usize];
            Migrated {
                reason: self.names[reason as usize].clone(),
                by_agent,
                calls: sum.calls,
                succeeded: sum.succeeded,
                failed: sum.failed,
                thp_succeeded: sum.thp_succeeded,
                thp_failed: sum.thp_failed,
                thp_split: sum.thp_split,
                large_folio_split: sum.large_folio_split,
            }
        });
        all.filter(|migrated| migrated.calls > 0).collect()
    }
}

fn combine(a: &MigrateSums, b: &MigrateSums, f: fn(u64, u64) -> u64) -> MigrateSums {
    MigrateSums {
        calls: f(a.calls, b.calls),
        succeeded: f(a.succeeded, b.succeeded),
        failed: f(a.failed, b.failed),
        thp_succeeded: f(a.thp_succeeded, b.thp_succeeded),
        thp_failed: f(a.thp_failed, b.thp_failed),
        thp_split: f(a.thp_split, b.thp_split),
        large_folio_split: f(a.large_folio_split, b.large_folio_split),
    }
}
