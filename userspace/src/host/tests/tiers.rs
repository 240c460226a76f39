//! Nodes, their ranges, and the tiers made of them.

use super::{made::GIB, *};

#[test]
fn ids_are_a_set_and_distances_follow_the_online_list() {
    let host = Made::sparse().read();
    assert_eq!(host.nodes.keys().copied().collect::<Vec<_>>(), [node(0), node(2)]);
    assert_eq!((host.top(), host.lower()), (set("0"), set("2")));
    assert_eq!(host.distance(node(0), node(2)), 20);
    assert_eq!(host.tiers[1].source, TierSource::Distance);
    assert_eq!((host.nearest_top(node(2)), host.demotion_target(node(0))), (Some(node(0)), Some(node(2))));
    assert_eq!((host.demotion_target(node(2)), host.tier_of(node(1))), (None, None));
    assert!(host.is_two_tier());
}

#[test]
fn free_memory_is_read_again() {
    let made = Made::sparse();
    let mut host = made.read();
    assert_eq!(host.nodes[&node(2)].free_bytes, 2 * GIB);
    let made = made.node(2, "", GIB, "20 10");
    host.refresh_free(made.root()).unwrap();
    assert_eq!((host.nodes[&node(2)].total_bytes, host.nodes[&node(2)].free_bytes), (GIB, GIB / 2));
}

#[test]
fn memory_tiers_of_the_kernel_come_first() {
    let tier = |number, list| (format!("sys/devices/virtual/memory_tiering/memory_tier{number}/nodelist"), list);
    let base = || {
        Made::new()
            .put("sys/devices/system/node/online", "0-2\n")
            .node(0, "0-3", 8 * GIB, "10 21 31")
            .node(1, "4-7", 8 * GIB, "21 10 31")
            .node(2, "", 8 * GIB, "31 31 10")
    };
    let with = |tiers: &[(String, &str)]| tiers.iter().fold(base(), |made, (path, list)| made.put(path, list)).read();
    // A slow node with CPUs of its own: only the kernel knows.
    let host = with(&[tier(4, "0"), tier(22, "1"), tier(961, "2")]);
    assert_eq!(host.tiers.iter().map(|tier| tier.nodes.to_string()).collect::<Vec<_>>(), ["0", "1", "2"]);
    assert!(host.tiers.iter().all(|tier| tier.source == TierSource::Kernel));
    // Without HMAT the kernel files all under one tier.
    let host = with(&[tier(4, "0-2")]);
    assert_eq!((host.top(), host.lower(), host.tiers[0].source), (set("0-1"), set("2"), TierSource::Distance));
    // Tiers that leave a node out say nothing of it.
    assert_eq!(with(&[tier(4, "0"), tier(22, "1")]).tiers[0].source, TierSource::Distance);
}

#[test]
fn nodes_without_cpus_lie_below_by_distance_and_fast_ones_beside_dram() {
    let made = Made::new()
        .put("sys/devices/system/node/online", "0-3\n")
        .node(0, "0-3", 8 * GIB, "10 13 17 28")
        .node(1, "", 8 * GIB, "13 10 18 28")
        .node(2, "", 8 * GIB, "17 18 10 28")
        .node(3, "", 8 * GIB, "28 28 28 10");
    let rate = |made: Made, id, rate| {
        made.put(&format!("sys/devices/system/node/node{id}/access0/initiators/read_bandwidth"), rate)
    };
    let host = rate(rate(made, 0, "204800\n"), 1, "921600\n").read();
    assert_eq!(host.tiers.iter().map(|tier| tier.nodes.to_string()).collect::<Vec<_>>(), ["0-1", "2", "3"]);
    assert_eq!(host.demotion_target(node(2)), Some(node(3)));
    assert_eq!(host.nearest_top(node(3)), Some(node(0)));
}

#[test]
fn the_nearest_top_node_is_that_of_most_of_the_cpus() {
    let host = Made::new()
        .put("sys/devices/system/node/online", "0-2\n")
        .node(0, "0-3", 8 * GIB, "10 21 31")
        .node(1, "4-7", 8 * GIB, "21 10 14")
        .node(2, "", 8 * GIB, "31 14 10")
        .read();
    assert_eq!(host.nearest_top_of_cpus(&[0, 4, 5]), Some(node(1)));
    assert_eq!(host.nearest_top_of_cpus(&[0, 1, 5]), Some(node(0)));
    assert_eq!(host.nearest_top(node(2)), Some(node(1)));
    assert_eq!((host.node_of_cpu(6), host.node_of_cpu(99)), (Some(node(1)), None));
}

#[test]
fn a_node_has_all_its_ranges_and_not_the_largest_alone() {
    let iomem = "00001000-0009ffff : System RAM\n000a0000-000fffff : Reserved\n00100000-7fffffff : System RAM\n  \
                 01000000-01ffffff : Kernel code\n100000000-13fffffff : System RAM\n\
                 200000000-23fffffff : CXL Window 0\n  200000000-21fffffff : region0\n    200000000-21fffffff : dax0.0\n      \
                 200000000-21fffffff : System RAM (kmem)\n";
    let host = Made::sparse()
        .put("proc/iomem", iomem)
        .blocks(0, 0..0x8000_0000, "online\n")
        .blocks(0, 0x1_0000_0000..0x1_4000_0000, "online\n")
        .blocks(2, 0x2_0000_0000..0x2_1000_0000, "online\n")
        .blocks(2, 0x2_1000_0000..0x2_2000_0000, "offline\n")
        .read();
    let ranges = |id| host.nodes[&node(id)].phys_ranges.iter().map(|r| (r.start, r.end)).collect::<Vec<_>>();
    assert_eq!(ranges(0), [(0x1000, 0xa0000), (0x10_0000, 0x8000_0000), (0x1_0000_0000, 0x1_4000_0000)]);
    assert_eq!(ranges(2), [(0x2_0000_0000, 0x2_1000_0000)]);
    assert_eq!((host.nodes[&node(2)].kind, host.nodes[&node(2)].offline_bytes), (NodeKind::Cxl, 256 << 20));
}

#[test]
fn addresses_kept_from_the_caller_leave_the_blocks() {
    let hidden = "00000000-00000000 : System RAM\n00000000-00000000 : Soft Reserved\n";
    let host = Made::sparse().put("proc/iomem", hidden).blocks(2, 4 * GIB..5 * GIB, "online\n").read();
    assert_eq!(host.nodes[&node(2)].phys_ranges, [PhysRange { start: 4 * GIB, end: 5 * GIB }]);
    assert_eq!(host.soft_reserved, []);
}

/// A GH200: node 1 is the GPU's memory, nodes 2 and 3 are kept for its partitions.
pub(super) fn grace_hopper() -> Made {
    Made::new()
        .put("sys/devices/system/node/online", "0-3\n")
        .node(0, "0-71", 480 * GIB, "10 80 80 80")
        .node(1, "", 96 * GIB, "80 10 255 255")
        .node(2, "", 0, "80 255 10 255")
        .node(3, "", 0, "80 255 255 10")
        .put("sys/bus/pci/devices/0009:01:00.0/class", "0x030200\n")
        .put("sys/bus/pci/devices/0009:01:00.0/vendor", "0x10de\n")
        .put("sys/bus/pci/devices/0009:01:00.0/numa_node", "0\n")
        .put("sys/bus/pci/devices/0000:01:00.0/class", "0x010802\n")
}

#[test]
fn a_gpus_memory_is_never_a_tier() {
    let by_map = grace_hopper().put("proc/iomem", "42000000000-437ffffffff : System RAM (NVIDIA)\n").blocks(
        1,
        0x420_0000_0000..0x420_1000_0000,
        "online\n",
    );
    let status = "proc/driver/nvidia/gpus/0009:01:00.0/numa_status";
    let by_driver = grace_hopper().put(status, "Node:      1\nStatus:    online\n");
    for made in [by_map, by_driver] {
        let mut host = made.read();
        assert_eq!(host.nodes[&node(1)].kind, NodeKind::Gpu);
        assert_eq!((host.top(), host.lower()), (set("0"), set("")));
        assert_eq!(host.gpus[0].node, Some(node(0)));
        assert_eq!(host.tier_of(node(1)), None);
        let config = config("[tiers]\nnodes = [[0], [1]]");
        let said = host.configure(&config).unwrap_err().to_string();
        assert!(said.contains("node 1") && said.contains("GPU"), "{said}");
        assert_eq!(finding(&host, &config, "config-gpu-node").severity, Severity::Error);
    }
}

#[test]
fn the_config_says_which_nodes_are_which_tier() {
    let mut host = Made::sparse().read();
    host.configure(&Config::default()).unwrap();
    assert_eq!(host.tiers[0].source, TierSource::Distance);
    host.configure(&config("[tiers]\nnodes = [[2], [0]]")).unwrap();
    assert_eq!((host.top(), host.lower(), host.tiers[0].source), (set("2"), set("0"), TierSource::Config));
}

#[test]
fn a_node_that_the_config_names_and_that_is_absent_stops_or_degrades() {
    let mut host = Made::sparse().read();
    let strict = config("[tiers]\nnodes = [[0], [2, 3]]");
    let said = host.configure(&strict).unwrap_err().to_string();
    assert!(said.contains("node 3") && said.contains("0,2"), "{said}");
    assert_eq!(finding(&host, &strict, "config-node-absent").severity, Severity::Error);
    let lenient = config("[tiers]\nnodes = [[0], [2, 3]]\nmissing_node = \"degrade\"");
    host.configure(&lenient).unwrap();
    assert_eq!((host.lower(), host.missing(&lenient)), (set("2"), set("3")));
    assert_eq!(finding(&host, &lenient, "config-node-absent").severity, Severity::Warning);
}
