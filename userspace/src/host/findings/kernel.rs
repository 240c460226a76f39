//! Findings about the kernel: who else moves pages, who else watches, and what it was built without.

use super::{Finding, Severity};
use crate::{
    config::{Config, OpsChoice},
    host::{DamonOps, Host},
};

pub(super) fn damon(host: &Host, config: &Config, found: &mut Vec<Finding>) {
    if config.damon.ops == OpsChoice::Off {
        return;
    }
    let pick = host.damon.pick(config.damon.ops);
    if let Some(shortfall) = pick.shortfall {
        found.push(Finding {
            id: "damon-ops",
            severity: Severity::Warning,
            subject: "DAMON".to_owned(),
            what: shortfall,
            consequence: match pick.ops {
                Some(DamonOps::Paddr) => {
                    "paddr on physical ranges tells neither process nor virtual address: what moves rests on page \
                     faults, which say nothing of memory that stays mapped"
                        .to_owned()
                }
                Some(ops) => format!("{ops} is used instead"),
                None => "hotness rests on page faults and transfers, which say nothing of memory that stays mapped"
                    .to_owned(),
            },
            fix_command: Some(
                "a kernel with CONFIG_DAMON_SYSFS=y and CONFIG_DAMON_VADDR=y, as Debian's are".to_owned(),
            ),
        });
    }
    for kdamond in host.damon.running() {
        let pid = kdamond.pid.map_or("unknown".to_owned(), |pid| pid.to_string());
        found.push(Finding {
            id: "damon-occupied",
            severity: Severity::Warning,
            subject: format!("kdamond {}", kdamond.index),
            what: format!("kdamond {} runs (pid {pid})", kdamond.index),
            consequence: "a kdamond that the agent did not start is left alone, and the other sources go on".to_owned(),
            fix_command: Some("stop the program that started it; sysfs does not tell which".to_owned()),
        });
    }
    for module in host.damon.modules.iter().filter(|module| module.enabled) {
        found.push(Finding {
            id: "damon-module-on",
            severity: Severity::Warning,
            subject: module.name.to_owned(),
            what: format!("the kernel's own {} runs", module.name),
            consequence: "DAMON serves one such user at a time: starting another gives EBUSY".to_owned(),
            fix_command: Some(format!("echo N > /sys/module/{}/parameters/enabled", module.name)),
        });
    }
}

pub(super) fn onlining(host: &Host, found: &mut Vec<Finding>) {
    let Some(policy) = host.kernel.auto_online.as_deref() else { return };
    let hotplugs = !(host.cxl_memories.is_empty() && host.dax.is_empty() && host.soft_reserved.is_empty());
    if !hotplugs {
        return;
    }
    let consequence = match policy {
        "offline" => "memory that a driver adds stays offline until somebody brings it online",
        "online_movable" => "memory that a driver adds is system memory at once; pinned pages will not stay on it",
        "online_kernel" => {
            "memory that a driver adds is system memory at once, and kernel data on it can keep it from going offline"
        }
        _ => {
            "memory that a driver adds is system memory at once, in a zone that the kernel chooses; as a dax device it \
             would be out of tiering's reach"
        }
    };
    found.push(Finding {
        id: "online-policy",
        severity: Severity::Info,
        subject: "auto_online_blocks".to_owned(),
        what: format!("the policy for hot-added memory is {policy}"),
        consequence: consequence.to_owned(),
        fix_command: Some("echo online_kernel > /sys/devices/system/memory/auto_online_blocks".to_owned())
            .filter(|_| policy == "offline"),
    });
}

pub(super) fn balancing(host: &Host, found: &mut Vec<Finding>) {
    if !host.is_two_tier() {
        return;
    }
    if let Some(mode) = host.kernel.numa_balancing.filter(|mode| *mode != 0) {
        let does = if mode & 2 != 0 { "promotes pages between tiers" } else { "moves pages to the CPUs that use them" };
        found.push(Finding {
            id: "numa-balancing-on",
            severity: Severity::Warning,
            subject: "kernel.numa_balancing".to_owned(),
            what: format!("kernel.numa_balancing is {mode}: the kernel {does}"),
            consequence: "its moves are counted apart and can undo the agent's; its hint faults cost the job time"
                .to_owned(),
            fix_command: Some("sysctl kernel.numa_balancing=0".to_owned()),
        });
    }
    if host.kernel.demotion == Some(true) {
        found.push(Finding {
            id: "demotion-on",
            severity: Severity::Warning,
            subject: "demotion_enabled".to_owned(),
            what: "reclaim demotes pages to the lower tier".to_owned(),
            consequence: "its moves are counted apart and can undo the agent's".to_owned(),
            fix_command: Some("echo 0 > /sys/kernel/mm/numa/demotion_enabled".to_owned()),
        });
    }
}

pub(super) fn tracing(host: &Host, found: &mut Vec<Finding>) {
    if !host.kernel.btf {
        found.push(Finding {
            id: "no-btf",
            severity: Severity::Warning,
            subject: "/sys/kernel/btf/vmlinux".to_owned(),
            what: "the kernel does not carry its types".to_owned(),
            consequence: "programs that follow kernel pointers cannot load".to_owned(),
            fix_command: Some("a kernel with CONFIG_DEBUG_INFO_BTF=y".to_owned()),
        });
    }
    if host.kernel.tracefs.is_none() && host.denied.is_empty() {
        found.push(Finding {
            id: "no-tracefs",
            severity: Severity::Warning,
            subject: "/sys/kernel/tracing".to_owned(),
            what: "tracefs is not mounted".to_owned(),
            consequence: "page faults, migrations and DAMON's results cannot be counted".to_owned(),
            fix_command: Some("mount -t tracefs tracefs /sys/kernel/tracing".to_owned()),
        });
    }
    if let Some(first) = host.denied.first() {
        found.push(Finding {
            id: "not-root",
            severity: Severity::Info,
            subject: first.display().to_string(),
            what: format!("{} files are kept to root", host.denied.len()),
            consequence: "what they hold is missing here".to_owned(),
            fix_command: Some("sudo".to_owned()),
        });
    }
}
