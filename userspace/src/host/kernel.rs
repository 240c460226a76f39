//! What the running kernel has and how it is set.

use serde::Serialize;

use super::{HostError, tree::Tree};

/// Facts about the kernel; `None` is "this kernel has no such setting".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// `uname -r`. For people: no decision rests on it.
    pub release: Option<String>,
    /// Whether the kernel carries its own types, which the tracing programs need (CONFIG_DEBUG_INFO_BTF).
    pub btf: bool,
    /// Where tracefs is mounted, under the root.
    pub tracefs: Option<String>,
    /// `kernel.numa_balancing`: 0 off, bit 0 placement by CPU, bit 1 promotion between tiers.
    pub numa_balancing: Option<u32>,
    /// Whether reclaim demotes pages to the lower tier.
    pub demotion: Option<bool>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp_enabled: Option<String>,
    /// Work done at a fault to make a huge page.
    pub thp_defrag: Option<String>,
    /// Control groups in use.
    pub cgroup: Cgroup,
    /// What happens to hot-added memory: `offline`, `online`, `online_kernel` or `online_movable`.
    pub auto_online: Option<String>,
    /// Whether weighted interleave can be tuned (Linux 6.9).
    pub weighted_interleave: bool,
    /// Whether it shows its memory tiers (Linux 6.1).
    pub memory_tiers: bool,
}

/// Which control group hierarchies are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cgroup {
    /// Version 2 alone.
    V2,
    /// Version 1 alone.
    V1,
    /// Version 1 controllers with a version 2 tree beside them.
    Hybrid,
    /// None mounted.
    None,
}

pub(super) fn read(tree: &Tree) -> Result<Kernel, HostError> {
    let thp = "sys/kernel/mm/transparent_hugepage";
    let tracefs = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];
    Ok(Kernel {
        release: tree.text("proc/sys/kernel/osrelease")?,
        btf: tree.exists("sys/kernel/btf/vmlinux"),
        tracefs: tracefs.iter().find(|path| tree.exists(&format!("{path}/events"))).map(|path| format!("/{path}")),
        numa_balancing: tree.value("proc/sys/kernel/numa_balancing", "a number")?,
        demotion: tree.switch("sys/kernel/mm/numa/demotion_enabled")?,
        thp_enabled: tree.chosen(&format!("{thp}/enabled"))?,
        thp_defrag: tree.chosen(&format!("{thp}/defrag"))?,
        cgroup: parse_cgroup(&tree.text("proc/self/mounts")?.unwrap_or_default()),
        auto_online: tree.text("sys/devices/system/memory/auto_online_blocks")?,
        weighted_interleave: tree.exists("sys/kernel/mm/mempolicy/weighted_interleave"),
        memory_tiers: tree.exists("sys/devices/virtual/memory_tiering"),
    })
}

fn parse_cgroup(mounts: &str) -> Cgroup {
    let mounted = |kind| mounts.lines().any(|line| line.split_whitespace().nth(2) == Some(kind));
    match (mounted("cgroup"), mounted("cgroup2")) {
        (true, true) => Cgroup::Hybrid,
        (true, false) => Cgroup::V1,
        (false, true) => Cgroup::V2,
        (false, false) => Cgroup::None,
    }
}
