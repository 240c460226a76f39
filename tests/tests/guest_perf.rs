//! The probes under a real perf, and the kernel's migrations by reason, in a guest with two tiers.
#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

use serde_json::Value;
use tensortier::observe::usdt::PROBES;
use tensortier_tests::{
    guest::{Guest, Profile},
    perf::{self, counts},
};

/// Another program that moves 64 of its pages, as `migrated:syscall_or_cpuset` of others shows.
const OTHER: &str = "
import ctypes, mmap
memory = mmap.mmap(-1, 64 * 4096)
memory.write(b'x' * len(memory))
first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
pages = (ctypes.c_void_p * 64)(*range(first, first + 64 * 4096, 4096))
status = (ctypes.c_int * 64)()
assert ctypes.CDLL(None).syscall(279, 0, 64, pages, (ctypes.c_int * 64)(*[1] * 64), status, 2) == 0
assert list(status) == [1] * 64
";

fn script() -> String {
    let exerciser = Path::new(env!("CARGO_BIN_EXE_exerciser"));
    let agent = exerciser.with_file_name("tensortier");
    assert!(agent.exists(), "{} is missing: cargo build -p tensortier", agent.display());
    format!(
        "echo 0 >/proc/sys/kernel/numa_balancing; echo false >/sys/kernel/mm/numa/demotion_enabled
         cd $TENSORTIER_OUT
         agent() {{ {agent} \"$@\"; }}
         agent doctor --json >doctor.json
         agent perf setup
         cp /sys/kernel/tracing/uprobe_events uprobes
         agent perf list >list.txt
         agent perf stat --json -o stat.json -- {agent} perf record -o /tmp/perf.data -- \
             perf stat -a -x, -e 'sdt_tensortier:*' -o hits.csv -- \
             {agent} run --require --summary-json summary.json -- \
             {exerciser} --hot 32M --cold 96M --hot-node 1 --cold-node 1 --thp never --seconds 40 --report report.json
         perf script -i /tmp/perf.data -F comm,event,trace >script.txt
         cat >other.py <<'END'\n{OTHER}\nEND
         agent perf stat -x, -o other.csv -- sh -c 'echo 1 >/proc/sys/vm/compact_memory; python3 other.py'
         agent perf stat -o table.txt -- python3 other.py
         agent perf teardown
         cat /sys/kernel/tracing/uprobe_events",
        agent = agent.display(),
        exerciser = exerciser.display(),
    )
}

fn counted_on(kernel: &str) {
    let out = tempfile::tempdir().unwrap();
    let ran = Guest::new(Profile::Numa, kernel, out.path()).dram("2G").slow("512M").script(&script()).unwrap();
    let read = |name: &str| fs::read_to_string(out.path().join(name)).unwrap();
    let json = |name: &str| -> Value { serde_json::from_str(&read(name)).unwrap() };
    for name in ["list.txt", "table.txt", "hits.csv", "doctor.json"] {
        println!("{name}:\n{}", read(name));
    }

    // What the agent says of itself.
    let summary = json("summary.json");
    let rows = summary["watched"]["moved"].as_array().unwrap();
    let pages = |to: Option<u64>| -> u64 {
        let wanted = rows.iter().filter(|row| to.is_none_or(|to| row["to"] == to));
        wanted.map(|row| row["pages"].as_u64().unwrap()).sum()
    };
    assert!(pages(Some(0)) > 7000, "8192 pages are hot: {rows:?}");

    // What perf counted and recorded of the probes.
    let (hits, trace) = (counts(&read("hits.csv"), 2), read("script.txt"));
    let hit = |probe: &str| hits[&format!("sdt_tensortier:{probe}")];
    let argument = |probe: &str, argument: &str| {
        perf::sum(perf::of_event(&trace, &format!("sdt_tensortier:{probe}")), argument).unwrap()
    };
    let (moved, recorded) = argument("migrate_done", "arg2");
    assert_eq!((moved, recorded), (pages(None), hit("migrate_done")));
    assert_eq!(hit("migrate_start"), hit("migrate_done"));
    let (promoted, demoted) = (argument("promote", "arg2").0, argument("demote", "arg2").0);
    assert_eq!((promoted, demoted), (pages(Some(0)), pages(Some(1))));
    let asked = argument("migrate_start", "arg2").0;
    assert_eq!(asked, moved + argument("migrate_done", "arg3").0, "asked = moved + failed");
    assert!(hit("plan_ready") > 0 && argument("plan_ready", "arg2").0 == hit("migrate_start"));

    // What `perf stat` of our own shows beside it.
    let stat = json("stat.json");
    let shown = |event: &str, whose: &str| {
        let counters = stat["counters"].as_array().unwrap();
        let found = counters.iter().find(|one| one["event"] == event && one["whose"] == whose);
        found.unwrap_or_else(|| panic!("no {event} of {whose} in {stat}"))["count"].as_u64().unwrap()
    };
    assert_eq!(shown("migrated:syscall_or_cpuset", "agent"), moved);
    assert_eq!(shown("sdt_tensortier:migrate_done", "agent"), hit("migrate_done"));

    // Our programs sit on the kernel's tracepoints, and perf sees the events all the same.
    assert!(shown("damon:damon_aggregated", "damon") > 0);
    let batches = perf::of_event(&trace, "migrate:mm_migrate_pages").filter(|line| line.contains("tt-migrate"));
    let by_syscall = batches.filter(|line| line.contains("reason=syscall_or_cpuset"));
    assert_eq!(perf::sum(by_syscall, "nr_succeeded").unwrap().0, moved, "{trace}");

    // Reasons and owners are apart.
    let other = counts(&read("other.csv"), 2);
    assert_eq!(other["migrated:syscall_or_cpuset programs"], 64, "{other:?}");
    assert_eq!(other["migrated:syscall_or_cpuset agent"], 0);
    assert!(other["migrated:compaction kernel"] > 0, "{other:?}");
    assert_eq!((other["migrated:numa_misplaced numa-balancing"], other["migrated:demotion demotion"]), (0, 0));
    let sum: u64 = other.iter().filter(|(name, _)| name.starts_with("migrated:")).map(|(_, count)| count).sum();
    assert_eq!(sum, other["pgmigrate_success kernel"], "the reasons are all of it: {other:?}");

    // Nothing of ours is left, and the host is fit.
    assert!(!ran.stdout.contains("\np:sdt_tensortier"), "{}", ran.stdout);
    let removed = ran.stdout.lines().find(|line| line.starts_with("removed ")).unwrap_or_default();
    assert_eq!(removed.matches("sdt_tensortier:").count(), PROBES.len(), "{}", ran.stdout);
    assert_eq!(read("uprobes").lines().count(), PROBES.len(), "{}", read("uprobes"));
    assert_eq!(json("doctor.json")["stops"], false);
    let log = ran.kernel_log().unwrap();
    assert!(!log.contains("WARNING:") && !log.contains("BUG:"), "{log}");
}

#[test]
fn perf_and_the_agent_count_the_same_on_6_12() {
    counted_on("6.12");
}

#[test]
fn perf_and_the_agent_count_the_same_on_7_3() {
    counted_on("7.3");
}
