//! What this kernel is too old for, or was built without. Each is found by looking for it, never by the version.

use crate::host::{DamonFeature, Finding, Host, Severity, TierSource};

struct Floor {
    id: &'static str,
    there: fn(&Host) -> bool,
    what: &'static str,
    floor: &'static str,
    consequence: &'static str,
}

const FLOORS: [Floor; 3] = [
    Floor {
        id: "floor-memory-tiers",
        there: |host| host.kernel.memory_tiers,
        what: "memory tiers in sysfs",
        floor: "Linux 6.1",
        consequence: "tiers go by nodes without CPUs and by distance; name them in [tiers] nodes where that is wrong",
    },
    Floor {
        id: "floor-weighted-interleave",
        there: |host| host.kernel.weighted_interleave,
        what: "weighted interleave",
        floor: "Linux 6.9",
        consequence: "run --place=weighted-interleave is refused; --place=interleave spreads evenly",
    },
    Floor {
        id: "floor-damos-migrate",
        there: |host| !host.damon.sysfs || host.damon.features.contains(&DamonFeature::TargetNode),
        what: "the DAMON schemes migrate_hot and migrate_cold",
        floor: "Linux 6.11",
        consequence: "pages move by move_pages(2) alone",
    },
];

pub(super) fn all(host: &Host, found: &mut Vec<Finding>) {
    for Floor { id, there, what, floor, consequence } in &FLOORS {
        if !there(host) {
            found.push(Finding {
                id,
                severity: Severity::Info,
                subject: "kernel".to_owned(),
                what: format!("this kernel has no {what}, which came with {floor}"),
                consequence: (*consequence).to_owned(),
                fix_command: None,
            });
        }
    }
    tiers_unseen(host, found);
}

/// The kernel files everything under one tier where the firmware's tables (HMAT, CDAT) say nothing of speed.
fn tiers_unseen(host: &Host, found: &mut Vec<Finding>) {
    let by_distance = host.tiers.iter().any(|tier| tier.source == TierSource::Distance);
    if host.is_two_tier() && by_distance && host.kernel.memory_tiers {
        found.push(Finding {
            id: "tiers-unseen",
            severity: Severity::Info,
            subject: format!("node {}", host.lower()),
            what: format!("the kernel does not know that node {} is slower", host.lower()),
            consequence:
                "tensortier goes by CPUs and distance; the kernel's own demotion and promotion do nothing for it"
                    .to_owned(),
            fix_command: Some(
                "[tiers] nodes in /etc/tensortier/config.toml, where the tiers are other ones".to_owned(),
            ),
        });
    }
}
