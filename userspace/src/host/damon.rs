//! DAMON as this kernel has it: its operations, what runs, and which of its files exist.
//!
//! Everything is read; nothing is made to find out. A context's `avail_operations` exists only once somebody has made
//! a kdamond, so without one the kernel's symbol table tells what was compiled in.

use std::{
    collections::BTreeSet,
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read},
};

use serde::{Deserialize, Serialize};

use super::{HostError, tree::Tree};
use crate::config::OpsChoice;

const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";

/// No kernel's symbol table is longer.
const MAX_SYMBOL_BYTES: u64 = 128 << 20;

/// A way in which DAMON looks at memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DamonOps {
    /// A process's memory; the kernel follows its mappings (Linux 5.15, CONFIG_DAMON_VADDR).
    Vaddr,
    /// Named ranges of a process's memory (Linux 5.19, CONFIG_DAMON_VADDR).
    Fvaddr,
    /// Physical memory (Linux 5.16, CONFIG_DAMON_PADDR).
    Paddr,
}

impl DamonOps {
    /// The first kernel that has it, and the option that builds it.
    pub fn needs(self) -> (&'static str, &'static str) {
        match self {
            Self::Vaddr => ("5.15", "CONFIG_DAMON_VADDR"),
            Self::Fvaddr => ("5.19", "CONFIG_DAMON_VADDR"),
            Self::Paddr => ("5.16", "CONFIG_DAMON_PADDR"),
        }
    }
}

impl fmt::Display for DamonOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vaddr => "vaddr",
            Self::Fvaddr => "fvaddr",
            Self::Paddr => "paddr",
        })
    }
}

/// A part of DAMON's interface that came after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DamonFeature {
    /// Regions that a scheme tried (Linux 6.2).
    TriedRegions,
    /// A scheme's own interval (Linux 6.7).
    ApplyInterval,
    /// The bytes that a quota allows at the moment (Linux 6.9).
    EffectiveBytes,
    /// A scheme's target node, with the actions migrate_hot and migrate_cold (Linux 6.11).
    TargetNode,
    /// Intervals that tune themselves (Linux 6.15).
    IntervalsGoal,
    /// Files that refresh themselves (Linux 6.17).
    Refresh,
    /// Addresses in units other than bytes (Linux 6.18).
    AddressUnit,
}

/// Each feature, the file that shows it under a kdamond's folder, and the kernel function that writes that file.
const FEATURES: [(DamonFeature, &str, &str); 7] = [
    (DamonFeature::TriedRegions, "contexts/0/schemes/0/tried_regions", "damon_sysfs_scheme_regions_release"),
    (DamonFeature::ApplyInterval, "contexts/0/schemes/0/apply_interval_us", "apply_interval_us_show"),
    (DamonFeature::EffectiveBytes, "contexts/0/schemes/0/quotas/effective_bytes", "effective_bytes_show"),
    (DamonFeature::TargetNode, "contexts/0/schemes/0/target_nid", "target_nid_show"),
    (
        DamonFeature::IntervalsGoal,
        "contexts/0/monitoring_attrs/intervals/intervals_goal",
        "damon_sysfs_intervals_goal_release",
    ),
    (DamonFeature::Refresh, "refresh_ms", "refresh_ms_show"),
    (DamonFeature::AddressUnit, "contexts/0/addr_unit", "addr_unit_show"),
];

/// One kernel thread that runs DAMON through sysfs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kdamond {
    /// Its number in sysfs.
    pub index: u32,
    /// Whether it runs.
    pub on: bool,
    /// Its thread, while it runs.
    pub pid: Option<u32>,
}

/// A user of DAMON inside the kernel, outside the sysfs tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamonModule {
    /// `damon_stat`, `damon_reclaim` or `damon_lru_sort`.
    pub name: &'static str,
    /// Whether it is on.
    pub enabled: bool,
}

/// DAMON on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damon {
    /// Whether it can be driven through sysfs (Linux 5.18, CONFIG_DAMON_SYSFS).
    pub sysfs: bool,
    /// The operations that it has; `None` where neither a context nor the symbol table tells.
    pub ops: Option<BTreeSet<DamonOps>>,
    /// The later parts of its interface, as far as they can be seen.
    pub features: BTreeSet<DamonFeature>,
    /// Kernel threads that exist in sysfs, ours or others'.
    pub kdamonds: Vec<Kdamond>,
    /// The kernel's own users of DAMON that are built in.
    pub modules: Vec<DamonModule>,
}

impl Damon {
    /// Whether `ops` can be used. What cannot be seen is taken as possible: the attempt will tell.
    pub fn can(&self, ops: DamonOps) -> bool {
        self.sysfs && self.ops.as_ref().is_none_or(|known| known.contains(&ops))
    }

    /// The operations to use for a choice of the config: those named, or else the best that the kernel has, a
    /// process's own addresses before physical ones.
    pub fn pick(&self, choice: OpsChoice) -> OpsPick {
        let wanted = match choice {
            OpsChoice::Off => return OpsPick { ops: None, shortfall: None },
            OpsChoice::Auto => DamonOps::Fvaddr,
            OpsChoice::Vaddr => DamonOps::Vaddr,
            OpsChoice::Fvaddr => DamonOps::Fvaddr,
            OpsChoice::Paddr => DamonOps::Paddr,
        };
        if !self.sysfs {
            let shortfall = "this kernel has no DAMON in sysfs, which came with Linux 5.18 and CONFIG_DAMON_SYSFS=y";
            return OpsPick { ops: None, shortfall: Some(shortfall.to_owned()) };
        }
        let order = [wanted, DamonOps::Fvaddr, DamonOps::Vaddr, DamonOps::Paddr];
        let ops = order.into_iter().find(|&ops| self.can(ops));
        let (served, named) = match choice {
            // Either way of looking at virtual addresses serves when nobody named one.
            OpsChoice::Auto => (matches!(ops, Some(DamonOps::Fvaddr | DamonOps::Vaddr)), DamonOps::Vaddr),
            _ => (ops == Some(wanted), wanted),
        };
        let (floor, option) = named.needs();
        let shortfall = format!("this kernel's DAMON has no {named}, which needs Linux {floor} and {option}=y");
        OpsPick { ops, shortfall: (!served).then_some(shortfall) }
    }

    /// Kernel threads that run already.
    pub fn running(&self) -> impl Iterator<Item = &Kdamond> {
        self.kdamonds.iter().filter(|kdamond| kdamond.on)
    }

    /// Whether the kernel's own user of DAMON of this name is on.
    pub fn module_on(&self, name: &str) -> bool {
        self.modules.iter().any(|module| module.name == name && module.enabled)
    }
}

/// The operations to use, and what the kernel lacks when they are not the ones wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpsPick {
    /// The operations; `None` where DAMON is off or has none.
    pub ops: Option<DamonOps>,
    /// What was wanted and is missing, with the kernel and the option that have it.
    pub shortfall: Option<String>,
}

/// `symbols` is asked where DAMON is in sysfs: [`read_symbols`], or nothing for what may stay unknown.
pub(super) fn read(
    tree: &Tree,
    symbols: impl FnOnce(&Tree) -> Result<BTreeSet<String>, HostError>,
) -> Result<Damon, HostError> {
    let mut modules = Vec::new();
    for name in ["damon_stat", "damon_reclaim", "damon_lru_sort"] {
        if let Some(enabled) = tree.switch(&format!("sys/module/{name}/parameters/enabled"))? {
            modules.push(DamonModule { name, enabled });
        }
    }
    if !tree.exists(KDAMONDS) {
        return Ok(Damon { sysfs: false, ops: None, features: BTreeSet::new(), kdamonds: Vec::new(), modules });
    }
    let symbols = symbols(tree)?;
    let kdamonds: Vec<Kdamond> =
        tree.numbered(KDAMONDS, "")?.into_iter().map(|index| read_kdamond(tree, index)).collect::<Result<_, _>>()?;
    let folder = |file: &str| format!("{KDAMONDS}/{}/{file}", kdamonds.first().map_or(0, |kdamond| kdamond.index));
    let seen = |file: &str, symbol: &str| tree.exists(&folder(file)) || symbols.contains(symbol);
    let features = FEATURES.iter().filter(|(_, file, symbol)| seen(file, symbol)).map(|(feature, ..)| *feature);
    let features = features.collect();
    let ops = match tree.text(&folder("contexts/0/avail_operations"))? {
        Some(text) => Some(parse_ops(&text)),
        None => ops_of(&symbols),
    };
    Ok(Damon { sysfs: true, ops, features, kdamonds, modules })
}

fn read_kdamond(tree: &Tree, index: u32) -> Result<Kdamond, HostError> {
    match try_kdamond(tree, index) {
        // Some command of its owner goes on and on: it runs.
        Err(HostError::Read { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => {
            Ok(Kdamond { index, on: true, pid: None })
        }
        read => read,
    }
}

fn try_kdamond(tree: &Tree, index: u32) -> Result<Kdamond, HostError> {
    let folder = format!("{KDAMONDS}/{index}");
    let pid: Option<i64> = tree.value(&format!("{folder}/pid"), "a pid or -1")?;
    let state = format!("{folder}/state");
    let on = match tree.text(&state)?.as_deref() {
        Some("on") => true,
        Some("off") | None => false,
        Some(other) => return Err(tree.format(&state, "on or off", other)),
    };
    Ok(Kdamond { index, on, pid: pid.and_then(|pid| u32::try_from(pid).ok()) })
}

/// Names that this program does not know are newer than it, and no error.
fn parse_ops(text: &str) -> BTreeSet<DamonOps> {
    let known = |name| match name {
        "vaddr" => Some(DamonOps::Vaddr),
        "fvaddr" => Some(DamonOps::Fvaddr),
        "paddr" => Some(DamonOps::Paddr),
        _ => None,
    };
    text.split_whitespace().filter_map(known).collect()
}

/// The list of operations and `fvaddr` came with the same kernel, so the function that writes the one tells of the other.
fn ops_of(symbols: &BTreeSet<String>) -> Option<BTreeSet<DamonOps>> {
    let has = |name| symbols.contains(name);
    let compiled = [
        (DamonOps::Vaddr, has("damon_va_check_accesses")),
        (DamonOps::Fvaddr, has("damon_va_check_accesses") && has("avail_operations_show")),
        (DamonOps::Paddr, has("damon_pa_check_accesses")),
    ];
    (!symbols.is_empty()).then(|| compiled.into_iter().filter(|(_, has)| *has).map(|(ops, _)| ops).collect())
}

/// Those kernel symbols that say what of DAMON was compiled in. The table is long, so it is read line by line.
pub(super) fn read_symbols(tree: &Tree) -> Result<BTreeSet<String>, HostError> {
    let path = tree.path("proc/kallsyms");
    let Ok(file) = File::open(&path) else { return Ok(BTreeSet::new()) };
    let wanted: BTreeSet<&str> = FEATURES
        .iter()
        .map(|(_, _, symbol)| *symbol)
        .chain(["damon_va_check_accesses", "damon_pa_check_accesses", "avail_operations_show"])
        .collect();
    let mut found = BTreeSet::new();
    for line in BufReader::new(file.take(MAX_SYMBOL_BYTES)).lines() {
        let line = line.map_err(|source| HostError::Read { path: path.clone(), source })?;
        if let Some(name) = line.split_whitespace().nth(2).filter(|name| wanted.contains(name)) {
            found.insert(name.to_owned());
        }
    }
    Ok(found)
}
