//! Text that no kernel writes: an error that names the file, and never a panic.

use proptest::prelude::*;

use super::{made::GIB, *};
use crate::host::{memory::parse_iomem, nodes::parse_zones};

/// The files that are read on every host, with something wrong in each.
const MALFORMED: [(&str, &str); 17] = [
    ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: lots kB\n"),
    ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 18446744073709551615 kB\nNode 0 MemFree: 1 kB\n"),
    ("sys/devices/system/node/node0/cpulist", "0-4294967295\n"),
    ("sys/devices/system/node/node0/distance", "10\n"),
    ("sys/devices/system/node/node0/distance", "10 -1\n"),
    ("sys/devices/system/node/node0/access0/initiators/read_latency", "fast\n"),
    ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0-\n"),
    ("sys/devices/system/memory/block_size_bytes", "128 MiB\n"),
    ("proc/zoneinfo", "Node x, zone DMA\n"),
    ("proc/zoneinfo", "Node 0, zone DMA\n  pages free -3\n"),
    ("proc/iomem", "System RAM\n"),
    ("proc/iomem", "ffffffffffffffff-ffffffffffffffff : System RAM\n"),
    ("proc/iomem", "2000-1000 : System RAM\n"),
    ("sys/bus/cxl/devices/mem0/ram/size", "0xg\n"),
    ("sys/bus/dax/devices/dax0.0/target_node", "one\n"),
    ("sys/kernel/mm/numa/demotion_enabled", "maybe\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always\n"),
];

#[test]
fn a_malformed_file_is_an_error_that_names_it() {
    for (path, text) in MALFORMED {
        let said = Made::sparse().put(path, text).try_read().unwrap_err().to_string();
        assert!(said.contains(path), "{path}: {said}");
        assert!(said.len() < 500, "{said}");
    }
    let said = Made::sparse().kdamond("perhaps\n", "-1\n", &[]).try_read().unwrap_err().to_string();
    assert!(said.contains("kdamonds/0/state"), "{said}");
}

#[test]
fn a_block_beyond_the_address_space_is_an_error() {
    let made = Made::sparse().put("sys/devices/system/memory/block_size_bytes", "ffffffffffffffff\n").blocks(
        2,
        4 * GIB..5 * GIB,
        "online\n",
    );
    assert!(made.try_read().unwrap_err().to_string().contains("memory32/state"));
}

#[test]
fn text_that_is_no_text_and_a_host_that_is_none_are_errors() {
    let made = Made::sparse();
    std::fs::write(made.root().join("sys/devices/system/node/node0/cpulist"), [0xff, 0xfe]).unwrap();
    assert!(made.try_read().unwrap_err().to_string().contains("node0/cpulist"));
    let said = Made::new().try_read().unwrap_err().to_string();
    assert!(said.contains("sys/devices/system/node") && said.contains("CONFIG_NUMA"), "{said}");
    // A folder where a file belongs.
    let made = Made::sparse().put("proc/zoneinfo/x", "");
    assert!(matches!(made.try_read(), Err(HostError::Read { path, .. }) if path.ends_with("proc/zoneinfo")));
}

#[test]
fn names_that_look_like_nodes_are_not() {
    let host =
        Made::sparse().put("sys/devices/system/node/node0x/meminfo", "").put("sys/devices/system/node/nodes", "");
    assert_eq!(host.read().nodes.len(), 2);
}

fn lines() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "[0-9a-f]{1,17}-[0-9a-f]{1,17}",
        Just(" : System RAM".to_owned()),
        Just("Node 0, zone DMA\n".to_owned()),
        Just("  pages free ".to_owned()),
        Just("present ".to_owned()),
        Just("\n  ".to_owned()),
        "[0-9]{1,21}",
        "\\PC{0,6}",
    ];
    prop::collection::vec(word, 0..24).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_resource_map_is_read_or_refused(text in lines()) {
        if let Ok(resources) = parse_iomem(&text) {
            prop_assert!(resources.iter().all(|resource| resource.range.start < resource.range.end));
        }
    }

    #[test]
    fn any_zone_table_is_read_or_refused(text in lines()) {
        if let Ok(nodes) = parse_zones(&text) {
            prop_assert!(nodes.values().flatten().all(|zone| zone.present > 0));
        }
    }
}

proptest! {
    // Each case writes a tree.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_text_in_any_file_is_read_or_refused(which in 0..MALFORMED.len(), text in lines()) {
        let _ = Made::sparse().put(MALFORMED[which].0, &text).try_read().map_err(|error| error.to_string());
    }
}
