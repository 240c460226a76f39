//! Hosts recorded by scripts/record-host.

use super::*;

fn recorded(name: &str) -> Host {
    Host::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/host").join(name)).unwrap()
}

#[test]
fn this_machine_reads() {
    let host = Host::read(Path::new("/")).unwrap();
    let cpus: usize = host.nodes.values().map(|node| node.cpus.len()).sum();
    assert!(cpus > 0);
    assert!(!host.top().0.is_empty());
    assert!(host.nodes.values().all(|node| node.free_bytes <= node.total_bytes));
}

#[test]
fn figures_of_the_firmware_make_the_tiers() {
    // 6.12 with a DAMON context made; 7.3 without one.
    for (name, slow, release) in [("numa-6.12", 1, "6.12"), ("sparse-7.3", 2, "7.3")] {
        let host = recorded(name);
        assert_eq!((host.top(), host.lower()), (set("0"), set(&slow.to_string())), "{name}");
        assert!(host.tiers.iter().all(|tier| tier.source == TierSource::Kernel));
        let slow = &host.nodes[&node(slow)];
        let access = slow.access.unwrap();
        assert_eq!((access.read_latency_ns, access.read_mib_per_sec), (Some(250), Some(30720)));
        assert_eq!((slow.kind, slow.cpus.len(), slow.offline_bytes), (NodeKind::NoCpu, 0, 0));
        let bytes: u64 = slow.phys_ranges.iter().map(PhysRange::bytes).sum();
        assert_eq!(bytes, 1 << 30);
        assert!(host.kernel.release.as_ref().unwrap().starts_with(release));
        assert_eq!(host.damon.ops.as_ref().unwrap().len(), 3, "{name}");
        assert!(host.damon.features.contains(&DamonFeature::TargetNode));
        assert_eq!(host.damon.features.contains(&DamonFeature::AddressUnit), release == "7.3");
        assert_eq!((host.kernel.cgroup, host.kernel.btf), (Cgroup::V2, true));
    }
}

#[test]
fn a_cxl_device_is_followed_from_region_to_node() {
    for name in ["cxl-6.12", "cxl-7.3"] {
        let host = recorded(name);
        assert_eq!(host.nodes[&node(1)].kind, NodeKind::Cxl);
        assert_eq!((host.top(), host.lower()), (set("0"), set("1")));
        assert_eq!(host.cxl_memories[0].ram_bytes, Some(512 << 20));
        assert_eq!((host.cxl_regions[0].committed, host.cxl_regions[0].bytes), (Some(true), Some(512 << 20)));
        assert_eq!(host.cxl_regions[0].dax, ["dax0.0"]);
        let dax = &host.dax[0];
        assert_eq!((dax.driver.as_deref(), dax.target_node), (Some("kmem"), Some(node(1))));
        assert_eq!(dax.region.as_deref(), Some("region0"));
        assert_eq!(host.nodes[&node(1)].phys_ranges, [PhysRange { start: 0x1_1000_0000, end: 0x1_3000_0000 }]);
        let said = finding(&host, &Config::default(), "slow-tier-movable");
        assert!(said.fix_command.unwrap().ends_with("dax0.0"));
        assert_eq!(host.kernel.auto_online.as_deref(), Some("online_movable"));
        for absent in ["soft-reserved", "dax-not-memory", "cxl-region-without-node", "one-tier", "damon-ops"] {
            assert!(!has_finding(&host, absent), "{name}: {absent}");
        }
    }
}
