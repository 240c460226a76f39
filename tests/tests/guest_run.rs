//! `tensortier run` in a guest with two tiers: what it moves, what it says, and what it leaves alone.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;
use tensortier_tests::{
    exerciser::Report,
    guest::{Guest, Profile, built},
};

fn script(run_options: &str, exerciser_options: &str) -> String {
    let (agent, exerciser) = (built("tensortier"), built("exerciser"));
    format!(
        "echo 0 >/proc/sys/kernel/numa_balancing; echo false >/sys/kernel/mm/numa/demotion_enabled
         {agent} run --require --summary-json $TENSORTIER_OUT/summary.json {run_options} -- \
             {exerciser} {exerciser_options} --report $TENSORTIER_OUT/report.json
         cat /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds",
        agent = agent.display(),
        exerciser = exerciser.display(),
    )
}

struct Seen {
    report: Report,
    summary: Value,
    stdout: String,
    stderr: String,
}

fn run(guest: &Guest, script: &str, out: &Path) -> Seen {
    let ran = guest.script(script).unwrap();
    let summary = std::fs::read_to_string(out.join("summary.json")).unwrap();
    let log = ran.kernel_log().unwrap();
    assert!(!log.contains("WARNING:") && !log.contains("BUG:"), "{log}");
    Seen {
        report: Report::read(&out.join("report.json")).unwrap(),
        summary: serde_json::from_str(&summary).unwrap(),
        stdout: ran.stdout,
        stderr: ran.stderr,
    }
}

fn pages_to(summary: &Value, node: u64) -> u64 {
    let rows = summary["watched"]["moved"].as_array().unwrap();
    rows.iter().filter(|row| row["to"] == node).map(|row| row["pages"].as_u64().unwrap()).sum()
}

/// The hot part is 32 MiB in one of 49 mappings in 160 GiB of reserved addresses: small, and far from everything.
#[test]
fn hot_bytes_go_to_dram_and_the_account_is_the_kernels() {
    let out = tempfile::tempdir().unwrap();
    let guest = Guest::new(Profile::Numa, "6.12", out.path()).dram("1G").slow("512M");
    let job = "--hot 32M --cold 96M --reserve 160G --vmas 49 --hot-node 1 --cold-node 1 --thp never --seconds 40";
    let seen = run(&guest, &script("", job), out.path());
    let last = seen.report.samples.last().unwrap();
    assert!(last.hot_dram >= 0.95, "{} of the hot bytes are in DRAM", last.hot_dram);
    assert!(seen.report.checksum_ok);
    let moved = pages_to(&seen.summary, 0);
    assert!((7782..=10650).contains(&moved), "{moved} pages, 8192 are hot");
    let kernel = &seen.summary["watched"]["kernel"];
    assert_eq!(kernel["migrated"]["syscall_or_cpuset"]["ours"], moved, "the tracepoint's count: {kernel}");
    let vmstat = kernel["pgmigrate_success"].as_u64().unwrap();
    let others: u64 =
        kernel["migrated"].as_object().unwrap().values().map(|row| row["succeeded"].as_u64().unwrap()).sum();
    assert_eq!(vmstat, others, "pgmigrate_success is the sum over all reasons: {kernel}");
    assert_eq!(seen.stdout.lines().last(), Some("0"), "no kdamond is left");
    let faults = &seen.summary["watched"]["nodes"]["1"]["faults"]["user"];
    // Hot pages may have gone up before their faults were given a node.
    assert!(faults.as_u64().unwrap() >= 24_000, "128 MiB were first touched on node 1: {faults}");
}

#[test]
fn a_dry_run_gives_reasons_and_moves_nothing_on_nodes_0_and_2() {
    let out = tempfile::tempdir().unwrap();
    let guest = Guest::new(Profile::Sparse, "7.3", out.path()).dram("1G").slow("512M");
    let job = "--hot 32M --cold 32M --hot-node 2 --cold-node 2 --seconds 15";
    let physical = format!(
        "printf '[damon]\nops = \"paddr\"\n' >$TENSORTIER_OUT/paddr.toml; {}",
        script("--config $TENSORTIER_OUT/paddr.toml", job).replace("summary.json", "physical.json")
    );
    let seen = run(&guest, &format!("{}\n{physical}", script("--dry-run", job)), out.path());
    assert_eq!(seen.report.samples.last().unwrap().hot_dram, 0.0);
    assert_eq!(seen.summary["watched"]["kernel"]["migrated"]["syscall_or_cpuset"]["ours"], Value::Null);
    assert!(seen.stderr.contains("node 2") && seen.stderr.contains("hot"), "{}", seen.stderr);
    // With physical addresses alone, all memory of the slow node is watched, and nobody's pages are guessed.
    let physical = std::fs::read_to_string(out.path().join("physical.json")).unwrap();
    let physical: Value = serde_json::from_str(&physical).unwrap();
    let source = &physical["watched"]["sources"][0];
    let why = source["unusable"].as_str().unwrap();
    assert!(
        source["name"] == "damon paddr" && why.contains(" of 51") && why.contains(" MiB of the lower tiers"),
        "{physical}"
    );
    assert!(!why.contains("(0 B of"), "the job's 64 MiB there are accessed: {why}");
    assert_eq!(pages_to(&physical, 0), 0);
}

#[test]
fn damon_that_is_somebody_elses_is_left_alone_and_said() {
    let out = tempfile::tempdir().unwrap();
    let guest = Guest::new(Profile::Numa, "7.3", out.path()).dram("1G").slow("512M").append("damon_stat.enabled=1");
    let job = "--hot 16M --cold 16M --hot-node 1 --cold-node 1 --seconds 15";
    let script = format!("{}; cat /sys/module/damon_stat/parameters/enabled", script("", job));
    let seen = run(&guest, &script, out.path());
    assert_eq!(seen.stdout.lines().last(), Some("Y"), "DAMON_STAT still runs");
    let sources = seen.summary["watched"]["sources"].to_string();
    assert!(sources.contains("DAMON_STAT") || sources.contains("damon_stat"), "{sources}");
    assert!(seen.report.checksum_ok);
}
