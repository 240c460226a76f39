//! Settings that change how well tiering works, and break nothing.

use crate::host::{Cgroup, Finding, Host, Severity};

pub(super) fn all(host: &Host, found: &mut Vec<Finding>) {
    huge_pages(host, found);
    cgroups(host, found);
}

fn huge_pages(host: &Host, found: &mut Vec<Finding>) {
    let enabled = "/sys/kernel/mm/transparent_hugepage/enabled";
    let (what, consequence, fix) = match host.kernel.thp_enabled.as_deref() {
        Some("always") => (
            "huge pages are given to every program",
            "a huge page moves whole: one that takes longer than the stall cap is moved all the same",
            format!("echo madvise > {enabled}"),
        ),
        Some("never") => (
            "huge pages are off",
            "each 4 KiB page is moved for itself, which costs several times as much for the same bytes",
            format!("echo madvise > {enabled}"),
        ),
        _ => return,
    };
    found.push(Finding {
        id: "huge-pages",
        severity: Severity::Info,
        subject: enabled.to_owned(),
        what: what.to_owned(),
        consequence: consequence.to_owned(),
        fix_command: Some(fix),
    });
}

fn cgroups(host: &Host, found: &mut Vec<Finding>) {
    let what = match host.kernel.cgroup {
        Cgroup::V2 => return,
        Cgroup::V1 => "control groups are version 1 alone",
        Cgroup::Hybrid => "control groups are mixed: version 1 controllers beside a version 2 tree",
        Cgroup::None => "no control groups are mounted",
    };
    found.push(Finding {
        id: "cgroup-version",
        severity: Severity::Info,
        subject: "/sys/fs/cgroup".to_owned(),
        what: what.to_owned(),
        consequence:
            "a job is followed as a process tree, which needs none; memory by node of a whole cgroup is not to be had"
                .to_owned(),
        fix_command: Some("boot with systemd.unified_cgroup_hierarchy=1".to_owned()),
    });
}
