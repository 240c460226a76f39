//! What is said about a host, and the command that goes with it.

use super::{made::GIB, *};

const WITH_RESERVED: &str = "100000000-13fffffff : System RAM\n140000000-17fffffff : Soft Reserved\n\
                             180000000-1bfffffff : Soft Reserved\n  180000000-1bfffffff : dax1.0\n    \
                             180000000-1bfffffff : System RAM (kmem)\n";

fn with_cxl(made: Made) -> Made {
    made.put("sys/bus/cxl/devices/mem0/ram/size", "0x40000000\n").put("sys/bus/cxl/devices/mem0/pmem/size", "0x0\n")
}

fn with_region(made: Made, committed: &str) -> Made {
    with_cxl(made)
        .put("sys/bus/cxl/devices/region0/size", "0x40000000\n")
        .put("sys/bus/cxl/devices/region0/commit", committed)
        .put("sys/bus/cxl/devices/region0/interleave_ways", "1\n")
}

fn with_dax(made: Made, driver: &str, node: &str) -> Made {
    with_region(made, "1\n")
        .put("sys/bus/cxl/devices/region0/dax_region0/dax0.0/uevent", "")
        .put("sys/bus/dax/devices/dax0.0/size", "1073741824\n")
        .put("sys/bus/dax/devices/dax0.0/target_node", node)
        .put(&format!("sys/bus/dax/drivers/{driver}/dax0.0/uevent"), "")
}

fn fix(host: &Host, id: &str) -> String {
    finding(host, &Config::default(), id).fix_command.unwrap()
}

#[test]
fn soft_reserved_memory_is_found_unless_a_driver_uses_it() {
    let host = Made::sparse().put("proc/iomem", WITH_RESERVED).read();
    assert_eq!(host.soft_reserved, [PhysRange { start: 0x1_4000_0000, end: 0x1_8000_0000 }]);
    let said = finding(&host, &Config::default(), "soft-reserved");
    assert!(said.subject.contains("0x140000000") && said.what.contains("1.0 GiB"), "{said:?}");
    assert!(said.fix_command.unwrap().contains("efi=nosoftreserve"));
    let host = with_dax(Made::sparse().put("proc/iomem", WITH_RESERVED), "device_dax", "2\n").read();
    assert_eq!(fix(&host, "soft-reserved"), "daxctl reconfigure-device --mode=system-ram dax0.0");
}

#[test]
fn each_stop_on_the_way_from_a_cxl_device_to_a_node_is_found() {
    let host = with_cxl(Made::sparse()).read();
    assert_eq!(fix(&host, "cxl-without-region"), "cxl create-region -t ram -m mem0");
    let host = with_region(Made::sparse(), "0\n").read();
    assert_eq!(fix(&host, "cxl-region-without-node"), "cxl enable-region region0");
    let host = with_region(Made::sparse(), "1\n").read();
    assert!(!has_finding(&host, "cxl-without-region"));
    assert!(fix(&host, "cxl-region-without-node").contains("dax_cxl"));
    let host = with_dax(Made::sparse(), "device_dax", "2\n").read();
    assert_eq!(fix(&host, "dax-not-memory"), "daxctl reconfigure-device --mode=system-ram dax0.0");
    let host = with_dax(Made::sparse(), "kmem", "7\n").read();
    assert_eq!(fix(&host, "dax-not-memory"), "daxctl online-memory dax0.0");
    let host = with_dax(Made::sparse(), "kmem", "2\n").read();
    assert!(!has_finding(&host, "dax-not-memory") && !has_finding(&host, "cxl-region-without-node"));
    assert_eq!(host.nodes[&node(2)].kind, NodeKind::Cxl);
}

#[test]
fn offline_memory_of_a_node_is_found() {
    let made = with_dax(Made::sparse().node(2, "", 0, "20 10"), "kmem", "2\n");
    let host = made.blocks(2, 4 * GIB..5 * GIB, "offline\n").read();
    assert_eq!((host.nodes[&node(2)].kind, host.nodes[&node(2)].offline_bytes), (NodeKind::Empty, GIB));
    assert_eq!(fix(&host, "memory-offline"), "daxctl online-memory dax0.0");
    assert!(!host.is_two_tier() && has_finding(&host, "one-tier"));
    let host = Made::sparse().blocks(2, 4 * GIB..5 * GIB, "offline\n").read();
    assert!(fix(&host, "memory-offline").contains("/sys/devices/system/node/node2/memory*/state"));
}

fn zone(id: u32, name: &str, pages: u64) -> String {
    format!(
        "Node {id}, zone {name:>8}\n  pages free     1\n        min      2\n        low      3\n        high     4\n        \
         present  {pages}\n        managed  {pages}\n        protection: (0, 0)\n  pagesets\n    cpu: 0\n              \
         count: 7\n              high:  9\n"
    )
}

#[test]
fn a_movable_slow_tier_is_warned_about_and_a_movable_top_is_not() {
    let host = Made::sparse().put("proc/zoneinfo", &[zone(0, "Movable", 900), zone(2, "Normal", 50)].concat()).read();
    assert!(!has_finding(&host, "slow-tier-movable"));
    let zones = [zone(0, "Normal", 900), zone(2, "Normal", 25), zone(2, "Movable", 75), zone(2, "Device", 0)].concat();
    let host = with_dax(Made::sparse().put("proc/zoneinfo", &zones), "kmem", "2\n").read();
    let said = finding(&host, &Config::default(), "slow-tier-movable");
    assert!(said.what.contains("75 %") && said.consequence.contains("pinning"), "{said:?}");
    assert_eq!(said.fix_command.unwrap(), "daxctl reconfigure-device --force --no-movable --mode=system-ram dax0.0");
    let zones = &host.nodes[&node(2)].zones;
    assert_eq!(
        zones.iter().map(|zone| (zone.name.as_str(), zone.high)).collect::<Vec<_>>(),
        [("Normal", 4), ("Movable", 4)]
    );
}

#[test]
fn the_onlining_policy_is_told_where_memory_is_hot_added() {
    let policy = "sys/devices/system/memory/auto_online_blocks";
    let host = Made::sparse().put(policy, "online\n").read();
    assert!(!has_finding(&host, "online-policy"));
    for (word, said) in [("online", "dax device"), ("offline", "stays offline"), ("online_movable", "pinned")] {
        let host = with_cxl(Made::sparse()).put(policy, &format!("{word}\n")).read();
        let found = finding(&host, &Config::default(), "online-policy");
        assert!(found.what.contains(word) && found.consequence.contains(said), "{found:?}");
        assert_eq!(found.fix_command.is_some(), word == "offline");
    }
}

#[test]
fn movers_beside_us_are_named_on_a_tiered_host_alone() {
    let set = |made: Made| {
        made.put("proc/sys/kernel/numa_balancing", "2\n").put("sys/kernel/mm/numa/demotion_enabled", "true\n")
    };
    let host = set(Made::sparse()).read();
    assert!(finding(&host, &Config::default(), "numa-balancing-on").what.contains("between tiers"));
    assert_eq!(fix(&host, "numa-balancing-on"), "sysctl kernel.numa_balancing=0");
    assert_eq!(fix(&host, "demotion-on"), "echo 0 > /sys/kernel/mm/numa/demotion_enabled");
    let host = set(Made::new().node(0, "0-3", GIB, "10")).read();
    assert!(!has_finding(&host, "numa-balancing-on") && !has_finding(&host, "demotion-on"));
}

#[test]
fn gpu_nodes_and_nodes_left_out_are_told() {
    let host =
        tiers::grace_hopper().put("proc/driver/nvidia/gpus/0009:01:00.0/numa_status", "Node: 1\nStatus: online\n");
    assert_eq!(finding(&host.read(), &Config::default(), "gpu-node").subject, "node 1");
    let left_out = config("[tiers]\nnodes = [[0]]");
    assert_eq!(finding(&Made::sparse().read(), &left_out, "config-node-left-out").subject, "node 2");
}

#[test]
fn the_gravest_comes_first() {
    let host = Made::sparse().read();
    let all = findings(&host, &config("[tiers]\nnodes = [[0], [9]]"));
    assert!(all.len() > 1 && all.is_sorted_by(|a, b| a.severity >= b.severity));
}
