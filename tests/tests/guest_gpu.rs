//! What an emulated GPU alone reads, in a guest with an emulated CXL device. DAMON is off here: the emulator's threads read
//! host memory as a CPU does, and a GPU would leave no accessed bit. So what the agent knows of it, it has from the probes
//! on the driver; or, where the bridge copies through its ring, which is all that the probes see then, from its hints.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::{Value, json};
use tensortier_tests::{
    emulator,
    guest::{Guest, Profile, built},
};

const MIB: u64 = 1 << 20;

/// Tensors of 4 MiB: two that begin on the CXL node, one of which is copied, and a pinned one on node 0. Nothing moves at
/// first, then everything may. Then the same program under the bridge's library, and nothing moves again.
fn script() -> String {
    format!(
        r#"echo 0 >/proc/sys/kernel/numa_balancing; echo false >/sys/kernel/mm/numa/demotion_enabled
        cd $TENSORTIER_OUT; printf '[damon]\nops = "off"\n' >config.toml
        export TENSORTIER_CONFIG=$PWD/config.toml TENSORTIER_PRELOAD={preload}
        status() {{ {agent} status --json >$1.json; }}
        lines() {{ touch $1; until [ "$(wc -l <$1)" -ge $2 ]; do kill -0 $job; sleep 0.2; done; }}
        {agent} agent 2>agent.log & agent=$!; until {agent} status >/dev/null 2>&1; do kill -0 $agent; sleep 0.2; done
        {agent} pause; cp libcuda.so.1 /tmp/libcuda.so.1
        printf '%s\n' 'load /tmp/libcuda.so.1' 'arena hot 4194304 1' 'arena cold 4194304 1' 'arena pinned 4194304 0' \
            'sleep 4' 'register pinned 4194304' 'sleep 8' 'loop hot 4194304 /tmp/over' >commands
        {agent} run --require --name alone --summary-json alone.json -- /usr/bin/python3 {job} <commands >alone.out & job=$!
        lines alone.out 6; sleep 3; status before
        lines alone.out 7; sleep 8; status paused; {agent} status >paused.txt
        {agent} resume; sleep 10; status moved; touch /tmp/over
        wait $job; rm /tmp/over; {agent} pause; status between
        printf '%s\n' 'load /tmp/libcuda.so.1' 'arena hot 4194304 1' 'arena cold 4194304 1' \
            'loop hot 4194304 /tmp/over' >commands
        {agent} run --require --gpu --name under -- /usr/bin/python3 {job} <commands >under.out & job=$!
        lines under.out 3; sleep 8; status under; touch /tmp/over
        wait $job; kill -TERM $agent; wait $agent"#,
        agent = built("tensortier").display(),
        job = concat!(env!("CARGO_MANIFEST_DIR"), "/jobs/gpu.py"),
        preload = emulator::library("tensortier-preload").unwrap().display(),
    )
}

fn json(out: &Path, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(out.join(name)).unwrap()).unwrap()
}

fn on(status: &Value, node: &str, what: &str) -> u64 {
    status["jobs"][0]["watched"]["nodes"][node][what].as_u64().unwrap_or_else(|| panic!("{status}"))
}

/// Bytes copied from a node to the device so far, by one path.
fn copied(status: &Value, node: u64, path: &str) -> u64 {
    let rows = status["copied"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["to_device"] == true && row["node"] == node && row["path"] == path);
    rows.map(|row| row["bytes"].as_u64().unwrap()).sum()
}

#[test]
fn tensors_that_only_the_gpu_reads_from_cxl_are_hot_by_probes_and_by_hints() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    emulator::install(out).unwrap();
    let ran = Guest::new(Profile::Cxl, "6.12", out).script(&script()).unwrap();
    let log = ran.kernel_log().unwrap();
    assert!(!log.contains("WARNING:") && !log.contains("BUG:"), "{log}");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    println!("{}\n{}", read("agent.log"), read("paused.txt"));
    by_probes(out);
    by_hints(out);
    let codes = |name: &str| read(name).lines().last().unwrap().to_owned();
    assert_eq!((codes("alone.out"), codes("under.out")), ("0".into(), "0".into()), "every copy succeeded");
}

/// The job alone: its copies are calls of the driver, which is probed.
fn by_probes(out: &Path) {
    let [before, paused, moved] = ["before.json", "paused.json", "moved.json"].map(|name| json(out, name));
    assert_eq!(on(&before, "1", "hot_bytes"), 0, "nothing was copied yet: {before}");
    assert!(on(&before, "1", "resident_bytes") >= 8 * MIB);
    // What is copied and no more.
    assert_eq!(on(&paused, "1", "hot_bytes"), 4 * MIB, "{paused}");
    assert!(on(&paused, "1", "resident_bytes") >= 8 * MIB);
    assert_eq!(on(&paused, "0", "unmovable_bytes"), 4 * MIB, "what was registered is known to be pinned: {paused}");
    let from_cxl = copied(&paused, 1, "unregistered");
    assert!(from_cxl >= 8 * MIB && from_cxl.is_multiple_of(4 * MIB), "{paused}");
    assert!(paused["probes"]["gpu_transfer"].as_u64().unwrap() >= 2, "{paused}");
    assert_eq!(paused["events_lost"]["gpu"], 0);

    assert_eq!(on(&moved, "0", "hot_bytes"), 4 * MIB, "{moved}");
    assert_eq!(on(&moved, "1", "hot_bytes"), 0, "{moved}");
    assert!((4 * MIB..5 * MIB).contains(&on(&moved, "1", "resident_bytes")), "the other one stays: {moved}");
    assert!(copied(&moved, 0, "unregistered") >= 4 * MIB, "copied from where it is now: {moved}");
    let account = json(out, "alone.json");
    assert_eq!(account["watched"]["failed_pages"], json!({}), "nothing pinned was tried: {account}");
}

/// The job under the library: the driver copies from the ring, on node 0.
fn by_hints(out: &Path) {
    let [between, under] = ["between.json", "under.json"].map(|name| json(out, name));
    assert_eq!(on(&under, "1", "hot_bytes"), 4 * MIB, "{under}");
    assert!(on(&under, "1", "resident_bytes") >= 8 * MIB, "nothing has moved: {under}");
    assert!(copied(&under, 1, "bridge") >= 8 * MIB, "{under}");
    let probed = |status: &Value, node| ["registered", "unregistered"].map(|path| copied(status, node, path));
    assert_eq!(probed(&under, 1), probed(&between, 1), "no probe saw a copy of it");
    assert_ne!(probed(&under, 0), probed(&between, 0), "they saw the ring: {under}");
    assert_eq!(under["events_lost"]["hints"], 0);
}
