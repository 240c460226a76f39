//! An unmodified PyTorch script whose saved activations lie on the slow node: what node 0 gains, losses, step time.
//!
//! The job (`tests/jobs/activations.py`) runs alone, then under `tensortier run --offload-activations`. Its bytes are those
//! of its anonymous pages by node (`maps`, `numa_maps`), looked at every 20 ms; what counts is the most there was above
//! what it had when it had just imported torch. What lies on the slow node is asked of the agent too. In every run the
//! allocator gives blocks of 1 MiB and more back when they are freed, as the package has it: else freed memory that glibc
//! keeps would count for half of what the job has alone. `--stored` adds a run in which nothing is computed again.
//!
//! In a guest under emulation: bytes, shares and equality mean something, times only as a ratio within one run.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, ExitCode, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::Value;
use tensortier::{
    host::Host,
    job::{
        numa_maps,
        vma::{self, Kind},
    },
    units::{NodeId, Pid},
};
use tensortier_tests::{
    bench::{Bench, BenchArgs, Op, median},
    daemon,
    guest::{Guest, root},
    scenario,
};

/// The model with at least 256 MiB of activations.
const LARGE: &str = "images";
const DRAM: NodeId = NodeId(0);
const MIB: f64 = (1 << 20) as f64;
const LOOK: Duration = Duration::from_millis(20);
const ASK: Duration = Duration::from_millis(500);

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// The guest's kernel, as `scripts/vm` has it.
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// Models of the job, in turn.
    #[arg(long, value_delimiter = ',', default_value = "images,perceptron")]
    model: Vec<String>,
    /// Steps of each run; the plan is made after the first.
    #[arg(long, default_value_t = 3)]
    steps: u32,
    /// A run in which nothing is computed again, too.
    #[arg(long)]
    stored: bool,
    /// Measures here, in a guest.
    #[arg(long, hide = true)]
    in_guest: bool,
}

/// How the job is run.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Alone,
    Stored,
    Planned,
}

/// What was seen of a run. Bytes above those after the import, the most there were.
struct Ran {
    losses: Vec<String>,
    step_seconds: f64,
    dram_bytes: f64,
    slow_bytes: f64,
    /// What the agent said of the slow node, the most of it, and what kind of memory it takes it for.
    agent: Option<(f64, String)>,
    /// What the package reports.
    report: Value,
    summary: Value,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.in_guest {
        return in_guest(&args);
    }
    scenario::build()?;
    let mut bench = Bench::new("torch-offload", &args.bench);
    let (models, steps) = (args.model.join(","), args.steps.to_string());
    let mut words = vec!["--model", &models, "--steps", &steps];
    words.extend(args.stored.then_some("--stored"));
    let shape = |guest: Guest| guest.dram("1536M").slow("1G").timeout(900);
    scenario::measure(&mut bench, &args.kernel, shape, &words)?;
    bench.finish()
}

fn in_guest(args: &Args) -> Result<ExitCode> {
    let mut bench = Bench::new("torch-offload", &args.bench);
    bench.environment("guest", "numa profile under emulation; numa_balancing=0, demotion=0, one thread");
    scenario::fix_settings()?;
    let slow = *Host::read(Path::new("/"))?.lower().0.first().context("this machine has one tier of memory")?;
    for model in &args.model {
        let alone = run(model, args.steps, How::Alone, slow)?;
        let planned = run(model, args.steps, How::Planned, slow)?;
        bench.figure(&format!("{model}.node0_mib_alone"), alone.dram_bytes / MIB);
        let large = model == LARGE;
        if large {
            // The first step stores everything, and all of it is there when its forward pass ends.
            let activations = number(&planned.report["peak_out_bytes"]) / MIB;
            bench.bar(&format!("{model}.activations_mib"), activations, Op::AtLeast, 256.0);
        }
        judge(&mut bench, model, &alone, &planned, large);
        if args.stored {
            judge(&mut bench, &format!("{model}.stored"), &alone, &run(model, args.steps, How::Stored, slow)?, large);
        }
    }
    bench.finish()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn judge(bench: &mut Bench, name: &str, alone: &Ran, ran: &Ran, large: bool) {
    let saved = 1.0 - ran.dram_bytes / alone.dram_bytes;
    let equal = !alone.losses.is_empty() && alone.losses == ran.losses;
    bench.bar(&format!("{name}.losses_equal"), f64::from(u8::from(equal)), Op::Exactly, 1.0);
    let (agent, kind) = ran.agent.clone().unwrap_or((f64::NAN, "nothing".into()));
    if large {
        bench.bar(&format!("{name}.node0_saved_share"), saved, Op::AtLeast, 0.3);
        bench.bar(&format!("{name}.slow_bytes_by_agent_over_seen"), agent / ran.slow_bytes, Op::AtLeast, 0.9);
    } else {
        bench.figure(&format!("{name}.node0_saved_share"), saved);
    }
    bench.environment("slow_node_is", kind);
    bench.figure(&format!("{name}.slow_mib_by_agent"), agent / MIB);
    bench.figure(&format!("{name}.slow_mib_seen"), ran.slow_bytes / MIB);
    bench.figure(&format!("{name}.node0_mib"), ran.dram_bytes / MIB);
    bench.figure(&format!("{name}.step_time_ratio"), ran.step_seconds / alone.step_seconds);
    bench.figure(&format!("{name}.computed_again_mib"), number(&ran.report["again_bytes"]) / MIB);
    bench.figure(&format!("{name}.copied_out_mib"), number(&ran.report["out_bytes"]) / MIB);
    let rows = ran.summary["watched"]["moved"].as_array().into_iter().flatten();
    let moved: f64 = rows.map(|row| number(&row["bytes"])).sum();
    bench.figure(&format!("{name}.moved_by_agent_mib"), moved / MIB);
}

fn run(model: &str, steps: u32, how: How, slow: NodeId) -> Result<Ran> {
    let folder = tempfile::tempdir().context("no folder for the run")?;
    let (report, summary) = (folder.path().join("report.json"), folder.path().join("summary.json"));
    let job = root().join("tests/jobs/activations.py");
    // Debian's own Python: that is where its package of torch lives.
    let python = ["/usr/bin/python3", &job.display().to_string(), "--model", model, "--steps", &steps.to_string()]
        .map(str::to_owned);
    let mut words = Vec::new();
    if how != How::Alone {
        words.push(scenario::sibling("tensortier").display().to_string());
        words.extend(["run", "--require", "--offload-activations", "--summary-json"].map(str::to_owned));
        words.extend([summary.display().to_string(), "--".to_owned()]);
    }
    words.extend(python);
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .env("TENSORTIER_PYTHON", root().join("gpu-bridge/python"))
        .env("TENSORTIER_OFFLOAD_REPORT", &report)
        .env("MALLOC_MMAP_THRESHOLD_", (1 << 20).to_string())
        .env("TENSORTIER_OFFLOAD_RECOMPUTE", if how == How::Stored { "0" } else { "1" })
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the job")?;
    let mut lines = BufReader::new(child.stdout.take().context("the job has no stdout")?).lines();
    let first = lines.next().context("the job says nothing")??;
    eprintln!("{first}");
    let pid = first.rsplit(' ').next().and_then(|pid| pid.parse().ok()).map(Pid);
    let pid = pid.with_context(|| format!("no process in {first:?}"))?;
    let ended = AtomicBool::new(false);
    let (mut losses, mut seconds) = (Vec::new(), Vec::<f64>::new());
    let (seen, agent) = thread::scope(|scope| -> Result<_> {
        let looks = scope.spawn(|| observe(pid, slow, &ended));
        let asks = (how != How::Alone).then(|| scope.spawn(|| ask(slow, &ended)));
        let told = (|| {
            for line in lines {
                let line = line.context("cannot read what the job says")?;
                eprintln!("{line}");
                let words: Vec<_> = line.split(' ').collect();
                if let ["step", _, "loss", loss, "seconds", took] = words[..] {
                    losses.push(loss.to_owned());
                    seconds.push(took.parse().with_context(|| format!("no time in {line:?}"))?);
                }
            }
            Ok(())
        })();
        ended.store(true, Ordering::Relaxed);
        let seen = looks.join().ok().context("the observer failed")?;
        let agent = asks.map(|asks| asks.join().ok().context("the asker failed")).transpose()?;
        told.and(Ok((seen?, agent)))
    })?;
    let status = child.wait().context("cannot wait for the job")?;
    ensure!(status.success() && losses.len() == steps as usize, "{} of {steps} steps, {status}", losses.len());
    let json = |path: &Path| match (how, fs::read_to_string(path)) {
        (How::Alone, _) => Ok(Value::Null),
        (_, text) => serde_json::from_str(&text.with_context(|| format!("{} is missing", path.display()))?)
            .with_context(|| format!("{} is not JSON", path.display())),
    };
    Ok(Ran {
        losses,
        // The first step is recorded, not planned.
        step_seconds: median(seconds.into_iter().skip(1)),
        dram_bytes: seen.0 as f64,
        slow_bytes: seen.1 as f64,
        agent: agent.flatten(),
        report: json(&report)?,
        summary: json(&summary)?,
    })
}

/// The most bytes on node 0 and on the slow node until the job ends, above those of now.
fn observe(pid: Pid, slow: NodeId, ended: &AtomicBool) -> Result<(u64, u64)> {
    let before = look(pid, slow)?;
    let mut most = (0, 0);
    while !ended.load(Ordering::Relaxed) {
        // The job may end between two looks.
        let Ok(now) = look(pid, slow) else { break };
        most = (most.0.max(now.0.saturating_sub(before.0)), most.1.max(now.1.saturating_sub(before.1)));
        thread::sleep(LOOK);
    }
    ensure!(most.0 > 0, "the job had no memory of its own: it was not seen");
    Ok(most)
}

/// Bytes of the anonymous pages on node 0 and on the slow node.
fn look(pid: Pid, slow: NodeId) -> Result<(u64, u64)> {
    let own = vma::of_process(pid)?.into_iter().filter(|vma| vma.kind == Kind::Anon);
    let own: BTreeSet<u64> = own.map(|vma| vma.range.start).collect();
    let lines = numa_maps::of_process(pid)?;
    let on =
        |node| lines.iter().filter(|line| own.contains(&line.start)).filter_map(|line| line.on.get(&node)).sum::<u64>();
    Ok((on(DRAM), on(slow)))
}

/// The most that the agent says the job has on the slow node, and what it calls the node.
fn ask(slow: NodeId, ended: &AtomicBool) -> Option<(f64, String)> {
    let mut most: Option<(f64, String)> = None;
    while !ended.load(Ordering::Relaxed) {
        if let Ok(status) = daemon::status() {
            let on = &status["jobs"][0]["watched"]["nodes"][slow.to_string()];
            let bytes = on["resident_bytes"].as_f64().unwrap_or(0.0);
            if most.as_ref().is_none_or(|(before, _)| bytes > *before) {
                most = Some((bytes, on["kind"].as_str().unwrap_or_default().to_owned()));
            }
        }
        thread::sleep(ASK);
    }
    most
}
