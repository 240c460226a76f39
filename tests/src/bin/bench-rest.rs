//! What the agent costs at rest: one job of 1 GiB in DRAM, then 16 idle ones; and how soon it answers `status`.
//!
//! In a guest under emulation: shares of a CPU are those of an emulated one, where system calls cost about ten times more
//! beside plain code than on hardware; a bar that holds there holds on hardware.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use tensortier::{
    control::{self, Answer, Request, client::Client},
    observe::status::Status,
};
use tensortier_tests::{
    bench::{Bench, BenchArgs, GuestArgs, Op, median},
    daemon::{Agent, Used, attach, status},
    scenario,
};

/// The job has settled and the monitor has backed off by then.
const SETTLE: Duration = Duration::from_secs(110);
const MEASURE: Duration = Duration::from_secs(60);
/// Jobs that hold memory and do nothing, and MiB of each.
const IDLE_JOBS: usize = 16;
const IDLE_MIB: usize = 16;
/// Aggregations of 20 s, which nothing may wait for.
const SLOW: &str = "[damon]\naggregation_interval_ms = 20000\n";
/// `status` is asked for over more than one of them.
const ASKED: usize = 200;
const BETWEEN: Duration = Duration::from_millis(150);

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    guests: GuestArgs,
    /// Measures here, in a guest.
    #[arg(long, hide = true)]
    in_guest: bool,
    /// Is an idle job: fills so many MiB and sleeps.
    #[arg(long, hide = true)]
    idle: Option<usize>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(mib) = args.idle {
        let _memory = std::hint::black_box(vec![1u8; mib << 20]);
        loop {
            thread::sleep(SETTLE);
        }
    }
    if args.in_guest {
        return in_guest(&args.guests.bench);
    }
    scenario::in_guests("rest", &args.guests, |guest| guest.dram("2G").slow("512M").timeout(1500))
}

fn in_guest(args: &BenchArgs) -> Result<ExitCode> {
    let mut bench = Bench::new("rest", args);
    bench.environment("guest", "numa profile under emulation; numa_balancing=0, demotion=0");
    scenario::fix_settings()?;
    one_job(&mut bench)?;
    idle_jobs(&mut bench)?;
    bench.finish()
}

fn one_job(bench: &mut Bench) -> Result<()> {
    let summary = PathBuf::from("/tmp/summary.json");
    let seconds = (SETTLE + MEASURE).as_secs() + 20;
    let mut run = Command::new(scenario::sibling("tensortier"))
        .args(["run", "--require", "--summary-json"])
        .arg(&summary)
        .arg("--")
        .arg(scenario::sibling("exerciser"))
        .args(["--hot", "64M", "--cold", "960M", "--hot-node", "0", "--cold-node", "0"])
        .args(["--seconds", &seconds.to_string(), "--report", "/tmp/report.json"])
        .spawn()
        .context("cannot start tensortier")?;
    thread::sleep(SETTLE);
    let pid = status()?["pid"].as_u64().context("the agent does not tell its pid")?.to_string();
    let (start, before) = (Instant::now(), cpu(&pid)?);
    let monitor = kdamond_cpu(MEASURE)?;
    let (elapsed, after) = (start.elapsed().as_secs_f64(), cpu(&pid)?);
    let rss = status_kib(&pid, "VmRSS:")? / 1024.0;
    ensure!(run.wait().context("cannot wait for tensortier")?.success(), "the job failed");
    bench.bar("agent_cpu_percent", (after - before) / elapsed * 100.0, Op::AtMost, 1.0);
    bench.bar("kdamond_cpu_percent", monitor / elapsed * 100.0, Op::AtMost, 5.0);
    bench.bar("agent_rss_mib", rss, Op::AtMost, 64.0);
    let text = fs::read_to_string(&summary).context("the run left no summary")?;
    let summary: serde_json::Value = serde_json::from_str(&text).context("the summary is not JSON")?;
    let number = |path: &str| summary.pointer(path).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN);
    bench.figure("bpf_map_mib", number("/watched/cost/bpf_map_bytes") / (1 << 20) as f64);
    bench.bar("moves", moved(&summary), Op::Exactly, 0.0);
    Ok(())
}

fn idle_jobs(bench: &mut Bench) -> Result<()> {
    let words = ["--idle".to_owned(), IDLE_MIB.to_string()];
    let start = || Command::new(std::env::current_exe()?).args(&words).stdin(Stdio::null()).spawn();
    let mut jobs = (0..IDLE_JOBS).map(|_| start()).collect::<Result<Vec<Child>, _>>().context("no idle jobs")?;
    let watch = |jobs: &[Child]| jobs.iter().try_for_each(|job| attach(job.id(), "idle", &[]));

    let (agent, _) = Agent::start(&[])?;
    watch(&jobs)?;
    thread::sleep(SETTLE);
    let (start, before) = (Instant::now(), cpu(&agent.pid().to_string())?);
    thread::sleep(MEASURE);
    let used = cpu(&agent.pid().to_string())? - before;
    let percent = used / start.elapsed().as_secs_f64() * 100.0;
    bench.bar("agent_cpu_percent_16_idle_jobs", percent, Op::AtMost, 1.0);
    // This program's code for an answer is read from disk here, so that below only the next agent is measured.
    ask(&mut Client::connect(control::SOCKET.as_ref())?)?;
    agent.end()?;

    let config = Path::new("/tmp/slow.toml");
    fs::write(config, SLOW).with_context(|| format!("cannot write {}", config.display()))?;
    let (agent, _) = Agent::start(&["--config", "/tmp/slow.toml"])?;
    watch(&jobs)?;
    // The first aggregation has begun by then.
    thread::sleep(Duration::from_secs(15));
    let mut client = Client::connect(control::SOCKET.as_ref())?;
    let (mut took, mut aggregation) = (Vec::new(), f64::NAN);
    for _ in 0..ASKED {
        thread::sleep(BETWEEN);
        let (status, seconds) = ask(&mut client)?;
        took.push(seconds * 1e3);
        aggregation = status.damon.as_ref().map_or(aggregation, |damon| damon.aggregation_seconds);
    }
    bench.figure("status_at_aggregation_seconds", aggregation);
    bench.figure("first_status_ms", took[0]);
    bench.figure("median_status_ms", median(took.iter().copied()));
    bench.bar("longest_status_ms", took.into_iter().fold(0.0, f64::max), Op::AtMost, 50.0);
    agent.end()?;
    jobs.iter_mut().try_for_each(Child::kill).context("an idle job has ended")?;
    jobs.iter_mut().try_for_each(|job| job.wait().map(drop)).context("cannot wait for an idle job")
}

/// The agent's status with all of the idle jobs, and the seconds until it was read.
fn ask(client: &mut Client) -> Result<(Arc<Status>, f64)> {
    let start = Instant::now();
    let answer = client.ask(&Request::Status {})?;
    let seconds = start.elapsed().as_secs_f64();
    let Answer::Status(status) = answer else { bail!("the agent answered something else than its status") };
    ensure!(status.jobs.len() == IDLE_JOBS, "{} jobs are watched", status.jobs.len());
    Ok((status, seconds))
}

fn moved(summary: &serde_json::Value) -> f64 {
    let rows = summary.pointer("/watched/moved").and_then(|rows| rows.as_array());
    rows.map_or(f64::NAN, |rows| {
        rows.iter().filter_map(|row| row["pages"].as_f64()).fold(0.0, |sum, pages| sum + pages)
    })
}

/// CPU seconds of a process or kernel thread so far.
fn cpu(pid: &str) -> Result<f64> {
    Ok(Used::of(pid)?.cpu())
}

fn status_kib(pid: &str, key: &str) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).context("no such process")?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB"));
    value.and_then(|kib| kib.parse().ok()).with_context(|| format!("no {key}"))
}

/// CPU seconds that the kernel's monitoring thread uses in so long. A new aim may start another thread in its place.
fn kdamond_cpu(time: Duration) -> Result<f64> {
    let path = Path::new("/sys/kernel/mm/damon/admin/kdamonds/0/pid");
    let mut threads: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let start = Instant::now();
    while start.elapsed() < time {
        let pid = fs::read_to_string(path).context("DAMON is not set up")?.trim().to_owned();
        // Between two aims there is none.
        if let Ok(now) = cpu(&pid) {
            let first = if threads.is_empty() { now } else { 0.0 };
            threads.entry(pid).or_insert((first, now)).1 = now;
        }
        thread::sleep(Duration::from_secs(1));
    }
    ensure!(!threads.is_empty(), "DAMON does not run");
    Ok(threads.values().map(|(first, last)| last - first).sum())
}
