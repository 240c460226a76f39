//! Findings about memory: what is missing, what is offline, and what pinning would do.

use super::{Finding, Severity};
use crate::{
    config::{Config, MissingNode},
    host::{Host, NodeKind},
    units::{NodeId, NodeSet, show_bytes},
};

pub(super) fn config_nodes(host: &Host, config: &Config, found: &mut Vec<Finding>) {
    let missing = host.missing(config);
    if !missing.0.is_empty() {
        let degrades = config.tiers.missing_node == MissingNode::Degrade;
        found.push(Finding {
            id: "config-node-absent",
            severity: if degrades { Severity::Warning } else { Severity::Error },
            subject: format!("node {missing}"),
            what: format!("the config puts node {missing} in a tier, and this host has no memory there"),
            consequence: if degrades {
                "the agent goes on with the other nodes".to_owned()
            } else {
                "the agent refuses to start".to_owned()
            },
            fix_command: Some("cxl list -M -R; daxctl list; or set missing_node = \"degrade\" in [tiers]".to_owned()),
        });
    }
    for node in host.named_gpu_nodes(config) {
        found.push(Finding {
            id: "config-gpu-node",
            severity: Severity::Error,
            subject: format!("node {node}"),
            what: format!("the config puts node {node} in a tier, and it is a GPU's own memory"),
            consequence: "the agent refuses to start".to_owned(),
            fix_command: Some("take it out of [tiers] nodes".to_owned()),
        });
    }
    if !config.tiers.nodes.is_empty() {
        let named = config.named_nodes();
        let left_out: NodeSet = host.tier_nodes().filter(|&id| !named.contains(id)).collect();
        if !left_out.0.is_empty() {
            found.push(Finding {
                id: "config-node-left-out",
                severity: Severity::Info,
                subject: format!("node {left_out}"),
                what: format!("[tiers] nodes does not name node {left_out}, which has memory"),
                consequence: "nothing is moved to it or from it".to_owned(),
                fix_command: None,
            });
        }
    }
}

pub(super) fn soft_reserved(host: &Host, found: &mut Vec<Finding>) {
    for range in &host.soft_reserved {
        let device = host.dax.iter().find(|dax| !dax.is_system_ram());
        found.push(Finding {
            id: "soft-reserved",
            severity: Severity::Warning,
            subject: format!("{:#x}-{:#x}", range.start, range.end),
            what: format!("the firmware set {} aside, and no driver has made memory of it", show_bytes(range.bytes())),
            consequence: "it is not a node, and nothing can be placed on it".to_owned(),
            fix_command: Some(match device {
                Some(dax) => format!("daxctl reconfigure-device --mode=system-ram {}", dax.name),
                None => "modprobe -a cxl_acpi cxl_pci cxl_mem dax_cxl dax_hmem kmem; before Linux 6.3: boot with \
                         efi=nosoftreserve"
                    .to_owned(),
            }),
        });
    }
}

pub(super) fn cxl(host: &Host, found: &mut Vec<Finding>) {
    let capacity: u64 = host.cxl_memories.iter().filter_map(|memory| memory.ram_bytes).sum();
    let in_regions: u64 = host.cxl_regions.iter().filter_map(|region| region.bytes).sum();
    if capacity > in_regions {
        let names: Vec<&str> = host.cxl_memories.iter().map(|memory| memory.name.as_str()).collect();
        found.push(Finding {
            id: "cxl-without-region",
            severity: Severity::Warning,
            subject: names.join(" "),
            what: format!("CXL devices have {} that is in no region", show_bytes(capacity - in_regions)),
            consequence: "that capacity has no address, so no node".to_owned(),
            fix_command: Some(format!("cxl create-region -t ram -m {}", names.join(" "))),
        });
    }
    for region in &host.cxl_regions {
        let (what, fix) = match (region.committed, region.dax.is_empty()) {
            (Some(false), _) => ("is not committed", format!("cxl enable-region {}", region.name)),
            (_, true) => ("has no dax device", "modprobe -a dax_cxl kmem".to_owned()),
            _ => continue,
        };
        found.push(Finding {
            id: "cxl-region-without-node",
            severity: Severity::Warning,
            subject: region.name.clone(),
            what: format!("CXL region {} {what}", region.name),
            consequence: "its memory is not a node, and nothing can be placed on it".to_owned(),
            fix_command: Some(fix),
        });
    }
}

pub(super) fn dax(host: &Host, found: &mut Vec<Finding>) {
    for dax in &host.dax {
        let online = dax.target_node.and_then(|id| host.nodes.get(&id)).is_some_and(|node| node.total_bytes > 0);
        let (what, fix) = if !dax.is_system_ram() {
            let driver = dax.driver.as_deref().map_or("no driver".to_owned(), |driver| format!("driver {driver}"));
            (
                format!("{} is with {driver}, not system memory", dax.name),
                format!("daxctl reconfigure-device --mode=system-ram {}", dax.name),
            )
        } else if !online {
            (format!("{} is system memory and offline", dax.name), format!("daxctl online-memory {}", dax.name))
        } else {
            continue;
        };
        found.push(Finding {
            id: "dax-not-memory",
            severity: Severity::Warning,
            subject: dax.name.clone(),
            what,
            consequence: "no page can live there; a program that opens the device can still use it".to_owned(),
            fix_command: Some(fix),
        });
    }
}

pub(super) fn offline(host: &Host, found: &mut Vec<Finding>) {
    for node in host.nodes.values().filter(|node| node.offline_bytes > 0) {
        let fix = match dax_of(host, node.id) {
            Some(dax) => format!("daxctl online-memory {dax}"),
            None => {
                format!("for f in /sys/devices/system/node/node{}/memory*/state; do echo online > $f; done", node.id)
            }
        };
        found.push(Finding {
            id: "memory-offline",
            severity: Severity::Warning,
            subject: format!("node {}", node.id),
            what: format!("{} of node {} is present and offline", show_bytes(node.offline_bytes), node.id),
            consequence: "nothing can be placed on it".to_owned(),
            fix_command: Some(fix),
        });
    }
}

pub(super) fn movable(host: &Host, found: &mut Vec<Finding>) {
    let lower = host.lower();
    for node in host.nodes.values().filter(|node| lower.contains(node.id)) {
        let pages = |movable| -> u64 {
            node.zones.iter().filter(|zone| zone.is_movable() == movable).map(|zone| zone.managed).sum()
        };
        if pages(true) == 0 {
            continue;
        }
        let share = 100 * pages(true) / (pages(true) + pages(false));
        let fix = match dax_of(host, node.id) {
            Some(dax) => format!("daxctl reconfigure-device --force --no-movable --mode=system-ram {dax}"),
            None => "boot with memhp_default_state=online_kernel".to_owned(),
        };
        found.push(Finding {
            id: "slow-tier-movable",
            severity: Severity::Warning,
            subject: format!("node {}", node.id),
            what: format!("{share} % of node {} is ZONE_MOVABLE", node.id),
            consequence: "pinning memory there (CUDA host registration, RDMA, fixed I/O buffers) moves it to the top \
                          tier; memory without pins is served as well as any"
                .to_owned(),
            fix_command: Some(fix),
        });
    }
}

pub(super) fn tiers(host: &Host, found: &mut Vec<Finding>) {
    for node in host.nodes.values().filter(|node| node.kind == NodeKind::Gpu) {
        found.push(Finding {
            id: "gpu-node",
            severity: Severity::Info,
            subject: format!("node {}", node.id),
            what: format!("node {} is a GPU's own memory", node.id),
            consequence: "it is in no tier: nothing is moved to it or from it".to_owned(),
            fix_command: None,
        });
    }
    if !host.is_two_tier() {
        found.push(Finding {
            id: "one-tier",
            severity: Severity::Error,
            subject: "tiers".to_owned(),
            what: "this host shows one tier of memory".to_owned(),
            consequence: "jobs are watched and reported, and nothing is moved".to_owned(),
            fix_command: Some("cxl list -M -R; daxctl list".to_owned()),
        });
    }
}

/// The dax device whose memory is `node`.
fn dax_of(host: &Host, node: NodeId) -> Option<&str> {
    host.dax.iter().find(|dax| dax.is_system_ram() && dax.target_node == Some(node)).map(|dax| dax.name.as_str())
}
