//! DAMON's schemes as the actuator, in a guest with two tiers: a job in a control group of its own.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;
use tensortier_tests::{
    exerciser::Report,
    guest::{Guest, Profile, built},
};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const HOT: u64 = 16 * MIB;

/// The job runs through all of it: hot memory begun on the slow node, cold memory in DRAM. Then DRAM is made short, the
/// agent is killed with its schemes on, and another one follows it.
fn script() -> String {
    format!(
        r#"echo 0 >/proc/sys/kernel/numa_balancing; echo false >/sys/kernel/mm/numa/demotion_enabled
        balloon=$PWD/scripts/guest/balloon
        cd $TENSORTIER_OUT
        kdamonds=/sys/kernel/mm/damon/admin/kdamonds
        echo +memory >/sys/fs/cgroup/cgroup.subtree_control; mkdir /sys/fs/cgroup/job
        # A file of DAMON cannot be read (EBUSY) while the agent's command is in another one.
        states() {{
            for state in $kdamonds/*/state; do
                for _ in $(seq 200); do cat $state 2>/dev/null && break; sleep 0.05; done
            done
        }}
        config() {{
            printf '[migrate]\nactuator = "damos"\n[policy]\npingpong_window_s = 3.0\n%s\n' "$1" >config.toml
        }}
        start() {{
            {agent} agent --config config.toml 2>>agent.log & agent=$!
            until {agent} status >/dev/null 2>&1; do sleep 0.2; done
        }}
        config ""
        start
        (echo $BASHPID >/sys/fs/cgroup/job/cgroup.procs
         exec {exerciser} --hot 16M --cold 24M --hot-node 1 --cold-node 0 --thp never --seconds 500 \
             --report report.json) &
        job=$!
        sleep 10
        {agent} attach --name job /job
        sleep 45
        {agent} status --json >up.json
        cat $kdamonds/*/contexts/0/schemes/0/action >actions.txt
        # What the schemes move meanwhile counts against its 4 MiB; that DRAM is short shows in what is demoted.
        $balloon 300M 0 || true
        config 'headroom_percent = 50.0'
        kill -HUP $agent
        # Until they rest: what they move between the last count and their end is in no account.
        last=; sleep 30
        for try in $(seq 30); do
            demoted=$({agent} status --json | python3 -c 'import json, sys; print([row["pages"] for row in
                json.load(sys.stdin)["jobs"][0]["watched"]["schemes"] if row["action"] == "migrate_cold"])')
            [ "$demoted" != "$last" ] || break
            last=$demoted; sleep 5
        done
        {agent} detach --json job >left.json
        states >detached.txt
        {agent} attach --name again /job
        sleep 6
        states >on.txt
        kill -9 $agent; wait $agent || [ $? -eq 137 ]
        cp $kdamonds/nr_kdamonds killed.txt
        start
        {agent} status --json >next.json
        kill -TERM $agent; wait $agent
        cp $kdamonds/nr_kdamonds end.txt; ls /run/tensortier >run.txt
        kill $job; wait $job"#,
        agent = built("tensortier").display(),
        exerciser = built("exerciser").display(),
    )
}

fn json(out: &Path, name: &str) -> Value {
    serde_json::from_str(&text(out, name)).unwrap()
}

fn text(out: &Path, name: &str) -> String {
    std::fs::read_to_string(out.join(name)).unwrap().trim().to_owned()
}

/// Pages that the job's schemes moved with that action.
fn pages(watched: &Value, action: &str) -> u64 {
    let rows = watched["schemes"].as_array().unwrap().iter().filter(|row| row["action"] == action);
    rows.map(|row| row["pages"].as_u64().unwrap()).sum()
}

fn check(kernel: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let guest = Guest::new(Profile::Numa, kernel, out).dram("1G").slow("512M");
    let ran = guest.script(&script()).unwrap();
    let log = ran.kernel_log().unwrap();
    assert!(!log.contains("WARNING:") && !log.contains("BUG:"), "{log}");
    let said = text(out, "agent.log");

    let up = json(out, "up.json");
    let job = &up["jobs"][0];
    assert_eq!(job["actuator"], "damos", "{job}\n{said}");
    assert_eq!(text(out, "actions.txt"), "migrate_cold\nmigrate_hot");
    let hot = job["watched"]["nodes"]["0"]["hot_bytes"].as_u64().unwrap();
    assert!(hot >= HOT * 95 / 100, "{hot} of {HOT} hot bytes are in DRAM: {job}\n{said}");
    let promoted = pages(&job["watched"], "migrate_hot");
    assert!(promoted >= HOT / PAGE * 95 / 100, "{promoted}: {job}");
    assert_eq!(pages(&job["watched"], "migrate_cold"), 0, "DRAM was not short: {job}");

    let left = json(out, "left.json");
    let watched = &left["watched"];
    let demoted = pages(watched, "migrate_cold");
    assert!(demoted >= 24 * MIB / PAGE / 2, "the half of the cold bytes at least has left DRAM: {left}\n{said}");
    // Never both: no plan of ours, no page of our own calls, and what the tracepoint has for DAMON is the schemes' own.
    assert_eq!(watched["moved"].as_array().unwrap().len(), 0, "{left}");
    let migrated = &watched["kernel"]["migrated"];
    assert_eq!(migrated["syscall_or_cpuset"]["ours"].as_u64().unwrap_or(0), 0, "{left}");
    let traced = migrated["damon"]["succeeded"].as_u64().unwrap();
    let schemes = pages(watched, "migrate_hot") + demoted;
    assert!(
        traced > 0 && traced.abs_diff(schemes) <= traced / 100,
        "{traced} traced, {schemes} by the schemes: {left}"
    );

    assert!(text(out, "detached.txt").matches("on").count() <= 1, "of a job that has left no scheme runs");
    assert_eq!(text(out, "on.txt"), "on\non\non", "a monitor and a mover a node\n{said}");
    assert_eq!(text(out, "killed.txt"), "3", "the killed agent left its kdamonds");
    assert!(json(out, "next.json")["sources"][0]["unusable"].is_null(), "the next agent has DAMON again\n{said}");
    assert_eq!(text(out, "end.txt"), "0", "nothing is left of DAMON");
    let run = text(out, "run.txt");
    assert!(run.lines().all(|file| file != "agent.sock" && file != "damon.json"), "{run}");

    let report = Report::read(&out.join("report.json")).unwrap();
    assert!(report.checksum_ok && report.samples.last().unwrap().hot_dram > 0.9, "{:?}", report.samples.last());
}

#[test]
fn schemes_promote_and_demote_a_job_in_its_own_group_on_6_12() {
    check("6.12");
}

#[test]
fn schemes_promote_and_demote_a_job_in_its_own_group_on_7_3() {
    check("7.3");
}
