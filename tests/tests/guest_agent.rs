//! `tensortier agent` in a guest with two tiers: budgets, a killed agent and the one after it, draining a node.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;
use tensortier_tests::{
    exerciser::Report,
    guest::{Guest, Profile, built},
};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 24 * MIB;

fn script() -> String {
    format!(
        r#"echo 0 >/proc/sys/kernel/numa_balancing; echo false >/sys/kernel/mm/numa/demotion_enabled
        cd $TENSORTIER_OUT
        kdamonds=/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds
        start() {{ {agent} agent 2>>agent.log & agent=$!; until {agent} status >/dev/null 2>&1; do sleep 0.2; done; }}
        job() {{
            {agent} run --require --name $1 $2 --summary-json $1.json -- {exerciser} --hot $3 --cold 16M --hot-node 1 \
                --cold-node 1 --thp never --seconds 260 --report $1-report.json &
        }}
        start
        job bounded "--dram-budget 24M" 64M; bounded=$!
        job free "" 32M; free=$!
        sleep 60
        {agent} status --json >before.json
        kill -9 $agent; wait $agent || [ $? -eq 137 ]
        cp $kdamonds left.txt
        start
        {exerciser} --hot 8M --hot-node 1 --pin 8M --thp never --seconds 600 & pinner=$!; echo $pinner >pinner.txt
        sleep 12
        {agent} status --json >after.json
        {agent} drain 1 --json >drained.json
        kill -TERM $pinner; wait $pinner $bounded $free
        kill -TERM $agent; wait $agent
        cp $kdamonds end.txt; ls /run/tensortier >run.txt"#,
        agent = built("tensortier").display(),
        exerciser = built("exerciser").display(),
    )
}

fn json(out: &Path, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(out.join(name)).unwrap()).unwrap()
}

fn text(out: &Path, name: &str) -> String {
    std::fs::read_to_string(out.join(name)).unwrap().trim().to_owned()
}

fn bytes(job: &Value, node: &str, what: &str) -> u64 {
    job["watched"]["nodes"][node][what].as_u64().unwrap()
}

#[test]
fn budgets_hold_and_neither_a_killed_agent_nor_a_drained_node_costs_a_job_anything() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let guest = Guest::new(Profile::Numa, "6.12", out).dram("1G").slow("512M");
    let ran = guest.script(&script()).unwrap();
    let log = ran.kernel_log().unwrap();
    assert!(!log.contains("WARNING:") && !log.contains("BUG:"), "{log}");

    let before = json(out, "before.json");
    let job = |name: &str| before["jobs"].as_array().unwrap().iter().find(|job| job["name"] == name).unwrap().clone();
    let (bounded, free) = (job("bounded"), job("free"));
    let has = bytes(&bounded, "0", "resident_bytes");
    assert!(has.abs_diff(BUDGET) <= BUDGET / 50 + 2 * MIB, "{has} of {BUDGET}: within 2 % and a block");
    let hot = bytes(&free, "0", "hot_bytes");
    assert!(hot >= 32 * MIB * 95 / 100, "{hot} of the free job's 32 MiB are hot and in DRAM: {free}");

    assert_eq!(text(out, "left.txt"), "1", "the killed agent left its kdamond");
    let after = json(out, "after.json");
    assert!(after["damon"]["aggregations"].as_u64().unwrap() > 0, "the next agent has DAMON again: {after}");
    assert_eq!(after["jobs"].as_array().unwrap().len(), 2, "their runs had it watch them again");

    let drained = json(out, "drained.json");
    assert!(drained["moved_bytes"]["0"].as_u64().unwrap() > 32 * MIB, "{drained}");
    let pinner: u64 = text(out, "pinner.txt").parse().unwrap();
    let remaining = drained["remaining"].as_array().unwrap();
    assert!(remaining.iter().any(|process| process["pid"] == pinner), "what is pinned is listed by pid: {drained}");
    for process in remaining.iter().filter(|process| process["name"] == "exerciser") {
        let refused = process["bytes"]["refused"].as_u64().unwrap_or(0);
        if process["pid"] == pinner {
            assert!((8 * MIB..10 * MIB).contains(&refused), "8 MiB are pinned: {process}");
        } else {
            assert!(refused < 4 * MIB, "{process}");
        }
    }
    for name in ["bounded", "free"] {
        let report = Report::read(&out.join(format!("{name}-report.json"))).unwrap();
        assert!(report.checksum_ok && report.samples.last().unwrap().hot_dram > 0.95, "{name}");
        assert!(json(out, &format!("{name}.json"))["notes"].to_string().contains("an agent ended while the job ran"));
    }
    assert_eq!(text(out, "end.txt"), "0", "nothing is left of DAMON's monitoring");
    let left = text(out, "run.txt");
    assert!(left.lines().all(|file| file != "agent.sock" && file != "damon.json"), "{left}");
}
