//! What an emulated GPU alone reads, in a guest with an emulated CXL device. DAMON is off here: the emulator's threads read
//! host memory as a CPU does, and a GPU would leave no accessed bit. So what the agent knows of it, it has from the probes.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;
use tensortier_tests::{
    emulator,
    guest::{Guest, Profile, built},
};

const MIB: u64 = 1 << 20;

/// Tensors of 4 MiB: two that begin on the CXL node, one of which is copied, and a pinned one on node 0. Nothing moves at
/// first, then everything may.
fn script() -> String {
    format!(
        r#"echo 0 >/proc/sys/kernel/numa_balancing; echo false >/sys/kernel/mm/numa/demotion_enabled
        cd $TENSORTIER_OUT; printf '[damon]\nops = "off"\n' >config.toml
        export TENSORTIER_CONFIG=$PWD/config.toml
        {agent} agent 2>agent.log & agent=$!; until {agent} status >/dev/null 2>&1; do sleep 0.2; done
        {agent} pause
        cp libcuda.so.1 /tmp/libcuda.so.1
        printf '%s\n' 'load /tmp/libcuda.so.1' 'arena hot 4194304 1' 'arena cold 4194304 1' 'arena pinned 4194304 0' \
            'sleep 4' 'register pinned 4194304' 'sleep 3' 'loop hot 4194304 40' >commands
        {agent} run --require --name gpu --summary-json gpu.json -- /usr/bin/python3 {job} <commands >gpu.out & job=$!
        until [ "$(wc -l <gpu.out)" -ge 7 ]; do sleep 0.2; done
        {agent} status --json >before.json
        sleep 10; {agent} status --json >paused.json; {agent} status >paused.txt
        {agent} resume; sleep 12; {agent} status --json >moved.json
        wait $job; kill -TERM $agent; wait $agent"#,
        agent = built("tensortier").display(),
        job = concat!(env!("CARGO_MANIFEST_DIR"), "/jobs/gpu.py"),
    )
}

fn json(out: &Path, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(out.join(name)).unwrap()).unwrap()
}

fn on(status: &Value, node: &str, what: &str) -> u64 {
    status["jobs"][0]["watched"]["nodes"][node][what].as_u64().unwrap_or_else(|| panic!("{status}"))
}

#[test]
fn tensors_that_only_the_gpu_reads_from_cxl_are_hot_and_come_to_dram() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    emulator::install(out).unwrap();
    let ran = Guest::new(Profile::Cxl, "6.12", out).script(&script()).unwrap();
    let log = ran.kernel_log().unwrap();
    assert!(!log.contains("WARNING:") && !log.contains("BUG:"), "{log}");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    println!("{}\n{}", read("agent.log"), read("paused.txt"));
    let (before, paused, moved) = (json(out, "before.json"), json(out, "paused.json"), json(out, "moved.json"));

    assert_eq!(on(&before, "1", "hot_bytes"), 0, "nothing was copied yet: {before}");
    assert!(on(&before, "1", "resident_bytes") >= 8 * MIB);
    assert_eq!(on(&before, "0", "unmovable_bytes"), 4 * MIB, "what was registered is known to be pinned: {before}");
    // What is copied and no more.
    assert_eq!(on(&paused, "1", "hot_bytes"), 4 * MIB, "{paused}");
    assert!(on(&paused, "1", "resident_bytes") >= 8 * MIB);
    let copied = |status: &Value, node: u64| -> u64 {
        let rows = status["copied"].as_array().unwrap().iter().filter(|row| row["node"] == node);
        rows.map(|row| row["bytes"].as_u64().unwrap()).sum()
    };
    assert!(copied(&paused, 1) >= 8 * MIB && copied(&paused, 1) % (4 * MIB) == 0, "{paused}");
    assert!(paused["probes"]["gpu_transfer"].as_u64().unwrap() >= 2, "{paused}");
    assert_eq!(paused["events_lost"]["gpu"], 0);

    assert_eq!(on(&moved, "0", "hot_bytes"), 4 * MIB, "{moved}");
    assert_eq!(on(&moved, "1", "hot_bytes"), 0, "{moved}");
    assert!((4 * MIB..5 * MIB).contains(&on(&moved, "1", "resident_bytes")), "the other one stays: {moved}");
    assert!(copied(&moved, 0) >= 4 * MIB, "copied from where it is now: {moved}");
    let account = json(out, "gpu.json");
    assert_eq!(account["watched"]["failed_pages"], serde_json::json!({}), "nothing pinned was tried: {account}");
    assert!(read("gpu.out").lines().nth(7) == Some("0"), "the copies succeeded: {}", read("gpu.out"));
}
