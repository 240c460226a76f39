//! A training step learned by the agent in a guest, from the touches of a job that knows nothing of it.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;
use tensortier_tests::guest::{Guest, Profile, built};

/// Steps of the job, and their mean length in seconds.
const STEPS: usize = 12;
const STEP: f64 = 6.0;

/// Writes an optimizer's states once a step, one MiB after another, and weights all the time; each step's length is its
/// mean times an even factor from 0.9 to 1.1. It says when each began.
const JOB: &str = r#"import mmap, os, random, sys, time
steps, mean = int(sys.argv[1]), float(sys.argv[2])
MIB, STATES, WEIGHTS = 1 << 20, 96, 16
arena = mmap.mmap(-1, (STATES + WEIGHTS) * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
data, chance = bytes(MIB), random.Random(1)
for part in range(STATES + WEIGHTS):
    arena[part * MIB:(part + 1) * MIB] = data
time.sleep(5)
start = time.monotonic()
for step in range(steps + 1):
    os.write(1, f"{time.monotonic() - start:.3f}\n".encode())
    begun, length = time.monotonic(), mean * chance.uniform(0.9, 1.1)
    swept = turn = 0
    while step < steps and time.monotonic() - begun < length:
        # The sweep takes two thirds of the step.
        due = min(STATES, int(1.5 * STATES * (time.monotonic() - begun) / length))
        for part in [*range(swept, due), STATES + turn % WEIGHTS]:
            arena[part * MIB:(part + 1) * MIB] = data
        swept, turn = due, turn + 1
        time.sleep(0.02)
# Long enough to be asked about.
time.sleep(15)
"#;

fn script() -> String {
    format!(
        r#"echo 0 >/proc/sys/kernel/numa_balancing; echo false >/sys/kernel/mm/numa/demotion_enabled
        cd $TENSORTIER_OUT; cat >job.py <<'END'
{JOB}END
        printf '[policy]\npolicy = "auto"\n[prometheus]\nlisten = "127.0.0.1:9462"\n' >config.toml
        {agent} agent --config config.toml 2>agent.log & agent=$!
        until {agent} status >/dev/null 2>&1; do sleep 0.2; done
        {agent} run --require --name train --summary-json summary.json -- python3 job.py {STEPS} {STEP} >job.txt & run=$!
        until [ "$(wc -l <job.txt)" -gt {STEPS} ]; do
            sleep 3; wc -l <job.txt >>counts.txt; {agent} status --json >>status.jsonl
        done
        {agent} status >status.txt
        exec 3<>/dev/tcp/127.0.0.1/9462; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3 >metrics.txt
        wait $run; kill -TERM $agent; wait $agent"#,
        agent = built("tensortier").display(),
    )
}

fn text(out: &Path, name: &str) -> String {
    std::fs::read_to_string(out.join(name)).unwrap()
}

#[test]
fn the_step_of_a_job_is_learned_from_its_touches_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let ran = Guest::new(Profile::Numa, "6.12", out).dram("1G").slow("512M").script(&script()).unwrap();
    let log = ran.kernel_log().unwrap();
    assert!(!log.contains("WARNING:") && !log.contains("BUG:"), "{log}");

    let begun: Vec<f64> = text(out, "job.txt").lines().map(|line| line.parse().unwrap()).collect();
    let counts = text(out, "counts.txt");
    let statuses = text(out, "status.jsonl");
    let all = serde_json::Deserializer::from_str(&statuses).into_iter::<Value>().map(Result::unwrap);
    // Over the script's own mean up to there, from the sixth step on.
    let ratio = |(count, status): (&str, Value)| {
        let (steps, job) = (count.parse::<usize>().unwrap().saturating_sub(1), &status["jobs"][0]);
        assert_eq!(job["policy"], "auto", "{job}");
        let step = &job["watched"]["step"];
        let seconds = step["seconds"].as_f64().filter(|_| steps >= 5)?;
        let phases: f64 = step["phases"].as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).sum();
        let uses = step["uses"].as_f64().unwrap();
        assert!((phases - 1.0).abs() < 1e-6 && (0.5..=2.0).contains(&uses), "the sweep uses each block once: {step}");
        Some((seconds / (begun[steps] / steps as f64), step["confidence"].as_f64().unwrap()))
    };
    let mut found: Vec<(f64, f64)> = counts.lines().zip(all).filter_map(ratio).collect();
    println!("learned over true, and confidence: {found:?}");
    assert!(found.len() >= 4, "it is known for some of the time: {statuses}");
    assert!(found.iter().all(|(_, confidence)| *confidence >= 0.25), "{found:?}");
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (median, _) = found[found.len() / 2];
    // In a busy guest aggregations come late: twice of what holds on a quiet one.
    assert!((median - 1.0).abs() <= 0.04, "{median}: {found:?}");
    assert!(text(out, "status.txt").contains("train: steps: one every"), "{}", text(out, "status.txt"));
    assert!(text(out, "metrics.txt").contains("tensortier_step_seconds{workload=\"train\"}"));
    let summary: Value = serde_json::from_str(&text(out, "summary.json")).unwrap();
    assert!(summary["watched"]["step"]["number"].as_u64().unwrap() >= 2, "{summary}");
}
