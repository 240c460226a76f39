//! `--version`: the version, and with `--json` what this kernel offers.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use serde::Serialize;

/// Kernel features, found by looking for them; never by the kernel's version.
#[derive(Serialize)]
struct Features {
    /// The kernel's release, for reports only.
    kernel: String,
    /// Type information for CO-RE programs.
    btf: bool,
    /// DAMON's sysfs interface.
    damon_sysfs: bool,
    /// Page fault tracepoints of x86.
    page_fault_tracepoints: bool,
    /// What DAMON's aggregations arrive through.
    damon_aggregated: bool,
    /// The kernel's own account of migrations.
    mm_migrate_pages: bool,
    /// `--place weighted-interleave`.
    weighted_interleave: bool,
    /// The unified cgroup tree.
    cgroup_v2: bool,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    features: Features,
}

impl Features {
    fn find(root: &Path) -> Self {
        let has = |path: &str| root.join(path).exists();
        // Mounted under debugfs on older hosts.
        let tracepoint = |path: &str| {
            ["sys/kernel/tracing/events", "sys/kernel/debug/tracing/events"]
                .iter()
                .any(|folder| root.join(folder).join(path).exists())
        };
        Self {
            kernel: fs::read_to_string(root.join("proc/sys/kernel/osrelease")).unwrap_or_default().trim().to_owned(),
            btf: has("sys/kernel/btf/vmlinux"),
            damon_sysfs: has("sys/kernel/mm/damon/admin/kdamonds"),
            page_fault_tracepoints: tracepoint("exceptions/page_fault_user"),
            damon_aggregated: tracepoint("damon/damon_aggregated"),
            mm_migrate_pages: tracepoint("migrate/mm_migrate_pages"),
            weighted_interleave: has("sys/kernel/mm/mempolicy/weighted_interleave"),
            cgroup_v2: has("sys/fs/cgroup/cgroup.controllers"),
        }
    }
}

/// Prints the version.
pub fn run(json: bool) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = io::stdout().lock();
    if json {
        let version = Version { version, features: Features::find(Path::new("/")) };
        writeln!(out, "{}", serde_json::to_string_pretty(&version)?)?;
    } else {
        writeln!(out, "tensortier {version}")?;
    }
    Ok(())
}
