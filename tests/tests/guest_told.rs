//! What a job is told in a guest with an emulated CXL device: whether moving helped, what its own memory policies mean,
//! and that a limit is near.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;
use tensortier_tests::guest::{Guest, Profile, built};

const MIB: u64 = 1 << 20;

/// Binds or prefers a node for an arena, and writes all of it in each step, with a line for each; or writes it once.
const JOB: &str = r#"import ctypes, mmap, os, sys, time
mode, node, size, steps = (int(word) for word in sys.argv[1:])
arena = mmap.mmap(-1, size << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(arena)))
mask, MBIND = ctypes.c_ulong(1 << node), 237
if ctypes.CDLL(None).syscall(MBIND, at, ctypes.c_size_t(size << 20), mode, ctypes.byref(mask), ctypes.c_ulong(65), 0):
    sys.exit("mbind failed")
data = bytes(size << 20)
arena[:] = data
while steps:
    arena[:] = data
    os.write(1, b"step\n")
time.sleep(600)
"#;

/// Moving waits until the job has had a steady rate on the slow node.
fn script() -> String {
    format!(
        r#"echo 0 >/proc/sys/kernel/numa_balancing; echo false >/sys/kernel/mm/numa/demotion_enabled
        cd $TENSORTIER_OUT; cat >job.py <<'END'
{JOB}END
        {agent} agent 2>agent.log & agent=$!; until {agent} status >/dev/null 2>&1; do sleep 0.2; done
        run() {{ exec {agent} run --require --name $1 --summary-json $1.json "${{@:2}}" >$1.out 2>$1.err; }}
        echo +memory >/sys/fs/cgroup/cgroup.subtree_control
        mkdir /sys/fs/cgroup/tight; echo 40M >/sys/fs/cgroup/tight/memory.max
        {agent} pause
        run steps -- python3 job.py 1 1 8 1 & steps=$!
        run barred -- python3 job.py 2 0 8 0 & barred=$!
        (echo $BASHPID >/sys/fs/cgroup/tight/cgroup.procs; run tight -- python3 job.py 1 0 20 0) & tight=$!
        tells() {{ # What the job's progress is to have; a busy host takes its time.
            for try in $(seq 60); do {agent} status --json >$1; grep -q "$2" $1 && return; sleep 3; done
        }}
        tells before.json '"per_second"'
        {agent} resume; tells status.json '"verdict": "'; {agent} status >status.txt
        kill -TERM $steps $barred $tight; wait $steps $barred $tight || [ $? -eq 143 ]
        kill -TERM $agent; wait $agent"#,
        agent = built("tensortier").display(),
    )
}

fn json(out: &Path, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(out.join(name)).unwrap()).unwrap()
}

fn job(status: &Value, name: &str) -> Value {
    let jobs = status["jobs"].as_array().unwrap();
    jobs.iter().find(|job| job["name"] == name).unwrap_or_else(|| panic!("no {name}: {status}")).clone()
}

#[test]
fn jobs_are_told_what_helped_what_holds_them_and_what_is_near() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let ran = Guest::new(Profile::Cxl, "6.12", out).script(&script()).unwrap();
    let log = ran.kernel_log().unwrap();
    assert!(!log.contains("WARNING:") && !log.contains("BUG:"), "{log}");
    let (before, status) = (json(out, "before.json"), json(out, "status.json"));

    let (slow, steps) = (job(&before, "steps"), job(&status, "steps"));
    assert!(slow["watched"]["progress"]["before"]["per_second"].as_f64().unwrap() > 0.0, "{slow}");
    assert!(slow["watched"]["progress"]["verdict"].is_null(), "nothing has moved: {slow}");
    let progress = &steps["watched"]["progress"];
    assert_eq!(
        (progress["work"].as_str(), progress["verdict"].as_str()),
        (Some("calls"), Some("faster")),
        "{progress}"
    );
    assert!(progress["step_time_ratio"].as_f64().unwrap() < 0.5, "{progress}");
    let text = std::fs::read_to_string(out.join("status.txt")).unwrap();
    assert!(text.contains("read and write calls a second before the moves"), "{text}");

    let notes = steps["notes"].to_string();
    assert!(notes.contains("prefers the slow tier") && notes.contains("(prefer:1)"), "{notes}");
    let promoted = steps["watched"]["nodes"]["0"]["resident_bytes"].as_u64().unwrap();
    assert!(promoted >= 8 * MIB, "what it only prefers is promoted: {steps}");
    let barred = job(&status, "barred");
    assert!(barred["notes"].to_string().contains("(bind:0)"), "{barred}");
    assert!(barred["watched"]["moved"].as_array().unwrap().is_empty(), "{barred}");

    let tight = job(&status, "tight");
    let notes = tight["notes"].to_string();
    assert!(notes.contains("left of the 40.0 MiB of /sys/fs/cgroup/tight/memory.max"), "{notes}");
    assert_eq!(tight["group_limits"][0]["bytes"], 40 * MIB, "{tight}");
}
