//! `tensortier topo` on recorded hosts, through the real binary.
#![allow(missing_docs, clippy::unwrap_used)]

use std::process::{Command, Output};

fn topo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensortier")).arg("topo").args(arguments).output().unwrap()
}

fn recorded(name: &str) -> String {
    format!("{}/../tests/fixtures/host/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_table_shows_tiers_devices_and_findings() {
    let out = topo(&["--root", &recorded("cxl-6.12")]);
    let text = String::from_utf8(out.stdout).unwrap();
    for part in ["cxl", "CXL region0", "dax0.0", "node 1, by kernel", "[slow-tier-movable]", "fix: daxctl"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(out.status.code(), Some(0));
}

#[test]
fn json_has_the_host_and_the_findings() {
    let out = topo(&["--json", "--root", &recorded("sparse-7.3")]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["host"]["nodes"]["2"]["access"]["read_latency_ns"], 250);
    assert_eq!(report["host"]["tiers"][1]["nodes"], serde_json::json!([2]));
    assert_eq!(report["findings"][0]["id"], "numa-balancing-on");
}

#[test]
fn a_config_that_names_an_absent_node_is_shown_as_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "[tiers]\nnodes = [[0], [3]]\n").unwrap();
    let out = topo(&["--root", &recorded("numa-6.12"), "--config", config.to_str().unwrap()]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("error [config-node-absent] node 3"), "{text}");
}

#[test]
fn what_cannot_be_read_is_named_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let out = topo(&["--root", folder.path().to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8(out.stderr).unwrap().contains("sys/devices/system/node"));
    assert_eq!(topo(&["--config", "/nonexistent.toml"]).status.code(), Some(1));
}
