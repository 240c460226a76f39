//! The probes under perf, the agent's account, the kernel's tracepoint and numa_maps: one count of one run.
//!
//! In a guest. Two jobs, one with 4 KiB pages and one with huge pages, are first promoted, then demoted to a budget. The
//! bench runs itself three deep: on the host, in the guest around perf, and beneath perf, where the agent starts and ends
//! between two looks of every reader.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tensortier_tests::{
    bench::{Bench, GuestArgs, Op},
    daemon::{self, Agent, attach, tell, tensortier},
    exerciser, perf,
    scenario::{self, sibling},
};

/// A job: its name and its exerciser's `--thp`. Each has 24 MiB hot and 24 MiB cold, all begun on node 1.
const JOBS: [(&str, &str); 2] = [("small", "never"), ("huge", "always")];
const JOB_PAGES: i64 = (48 << 20) / 4096;
/// Pages that are hot: half of each of the two jobs.
const HOT_PAGES: f64 = JOB_PAGES as f64;
/// Nothing has moved for this long: a stage is over.
const QUIET: Duration = Duration::from_secs(20);
/// A stage ends by then in any case.
const STAGE: Duration = Duration::from_secs(180);
/// Slow enough that the executor waits, and `throttled` fires.
const CONFIG: &str = "[migrate]\nrate_bytes_per_sec = \"12MiB\"\n";

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    guests: GuestArgs,
    /// Measures here, in a guest.
    #[arg(long, hide = true)]
    in_guest: bool,
    /// Runs agent and jobs, and writes what they say to FILE.
    #[arg(long, hide = true, value_name = "FILE")]
    beneath_perf: Option<PathBuf>,
}

/// What is known without perf.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Seen {
    agent: u32,
    stages: Vec<Stage>,
    /// Hits of each probe by the agent's own count.
    probes: BTreeMap<String, u64>,
    /// Pages that the eBPF program summed for the agent.
    by_program: u64,
    /// Events that the kernel skipped, for programs and for perf.
    missed: u64,
    /// What `pgmigrate_success` of /proc/vmstat grew by.
    vmstat: u64,
    damaged_words: u64,
}

/// One job, from one look at its numa_maps to the next.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Stage {
    name: String,
    /// By the account, in pages.
    promoted: u64,
    demoted: u64,
    /// Pages on node 0 and node 1, before and after.
    before: [i64; 2],
    after: [i64; 2],
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(file) = &args.beneath_perf {
        let seen = serde_json::to_string(&beneath_perf()?)?;
        fs::write(file, seen).with_context(|| format!("cannot write {}", file.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.in_guest {
        return in_guest(&args);
    }
    scenario::in_guests("counters", &args.guests, |guest| guest.dram("1G").slow("512M").timeout(1200))
}

fn in_guest(args: &Args) -> Result<ExitCode> {
    let mut bench = Bench::new("counters", &args.guests.bench);
    bench.environment("guest", "numa profile under emulation; numa_balancing=0, demotion=0");
    scenario::fix_settings()?;
    env::set_current_dir("/tmp").context("no /tmp")?;
    run(tensortier(&["perf", "setup"]).stdout(Stdio::null()))?;
    run(Command::new("perf")
        .args(["stat", "-a", "-x,", "-e", "sdt_tensortier:*", "-o", "hits.csv", "--"])
        .arg(sibling("tensortier"))
        .args(["perf", "record", "-o", "perf.data", "--"])
        .arg(env::current_exe()?)
        .args(["--beneath-perf", "seen.json"]))?;
    let script = Command::new("perf").args(["script", "-i", "perf.data", "-F", "pid,event,trace"]).output();
    let script = script.context("cannot start perf")?;
    ensure!(script.status.success(), "perf script: {}", String::from_utf8_lossy(&script.stderr));
    run(tensortier(&["perf", "teardown"]).stdout(Stdio::null()))?;

    let seen: Seen = serde_json::from_str(&fs::read_to_string("seen.json")?).context("seen.json is not JSON")?;
    let hits = perf::counts(&fs::read_to_string("hits.csv")?, 2);
    hold(&mut bench, &seen, &hits, &String::from_utf8_lossy(&script.stdout))?;
    bench.finish()
}

/// Holds the counts against each other.
fn hold(bench: &mut Bench, seen: &Seen, hits: &BTreeMap<String, u64>, script: &str) -> Result<()> {
    let mut not_recorded = 0.0;
    for (probe, reached) in &seen.probes {
        let event = format!("sdt_tensortier:{probe}");
        let hits = hits.get(&event).map_or(f64::NAN, |hits| *hits as f64);
        bench.figure(&format!("{probe}_hits"), hits);
        bench.bar(&format!("{probe}_hits_minus_agents_count"), hits - *reached as f64, Op::Exactly, 0.0);
        not_recorded += (hits - perf::of_event(script, &event).count() as f64).abs();
    }
    bench.bar("hits_not_recorded", not_recorded, Op::Exactly, 0.0);

    let argument = |event: &str| perf::sum(perf::of_event(script, event), "arg2").map(|(pages, _)| pages as f64);
    let pages = argument("sdt_tensortier:migrate_done")?;
    let by_agent = perf::of_event(script, "migrate:mm_migrate_pages")
        .filter(|line| perf::pid(line) == Some(seen.agent) && line.contains("reason=syscall_or_cpuset"));
    let tracepoint = perf::sum(by_agent, "nr_succeeded")?.0 as f64;
    let total = |of: fn(&Stage) -> u64| seen.stages.iter().map(of).sum::<u64>() as f64;
    let (promoted, demoted) = (total(|stage| stage.promoted), total(|stage| stage.demoted));
    bench.bar("migrate_done_pages", pages, Op::AtLeast, HOT_PAGES);
    bench.bar("ledger_minus_migrate_done_pages", promoted + demoted - pages, Op::Exactly, 0.0);
    bench.bar("tracepoint_minus_migrate_done_pages", tracepoint - pages, Op::Exactly, 0.0);
    bench.bar("bpf_minus_migrate_done_pages", seen.by_program as f64 - pages, Op::Exactly, 0.0);
    bench.bar("pgmigrate_success_minus_migrate_done_pages", seen.vmstat as f64 - pages, Op::Exactly, 0.0);
    bench.figure("events_missed", seen.missed as f64);
    bench.figure("promoted_pages", promoted);
    bench.figure("demoted_pages", demoted);
    bench.bar("promote_minus_ledger_pages", argument("sdt_tensortier:promote")? - promoted, Op::Exactly, 0.0);
    bench.bar("demote_minus_ledger_pages", argument("sdt_tensortier:demote")? - demoted, Op::Exactly, 0.0);

    for stage in &seen.stages {
        let Stage { name, promoted, demoted, before, after } = stage;
        let grown = [after[0] - before[0], after[1] - before[1]];
        // The job takes fresh memory from node 0 and frees it there: of its growth on either node, what moved is left.
        let fresh = grown[0] + grown[1];
        let (came, net) = (grown[0] - fresh, *promoted as i64 - *demoted as i64);
        bench.figure(&format!("{name}_came_to_dram_pages"), came as f64);
        bench.figure(&format!("{name}_fresh_pages"), fresh as f64);
        bench.bar(&format!("{name}_numa_maps_minus_ledger_pages"), (came - net) as f64, Op::Exactly, 0.0);
    }
    bench.bar("damaged_words", seen.damaged_words as f64, Op::Exactly, 0.0);
    Ok(())
}

/// Agent and jobs, from their start to their end.
fn beneath_perf() -> Result<Seen> {
    fs::write("config.toml", CONFIG).context("cannot write the config")?;
    let mut jobs = JOBS.iter().map(|(name, thp)| start(name, thp)).collect::<Result<Vec<_>>>()?;
    let before = vmstat()?;
    let (agent, _) = Agent::start(&["--config", "config.toml"])?;
    let mut stages = stage("promoted", &jobs, &[])?;
    stages.extend(stage("demoted", &jobs, &["--dram-budget", "8M"])?);
    // An agent without jobs shows its state every 10 s.
    thread::sleep(Duration::from_secs(12));
    let status = daemon::status()?;
    let probes = serde_json::from_value(status["probes"].clone()).context("the agent counts no probes")?;
    let by_program = status["kernel"]["migrated"]["syscall_or_cpuset"]["ours"].as_u64().context("no sums by reason")?;
    let missed = status["events_lost"]["missed"].as_u64().context("no count of missed events")?;
    let vmstat = vmstat()? - before;
    let mut seen = Seen { agent: agent.pid(), stages, probes, by_program, missed, vmstat, damaged_words: 0 };
    agent.end()?;
    for (job, (name, _)) in jobs.iter_mut().zip(JOBS) {
        tell(job.id(), "TERM")?;
        job.wait().context("cannot wait for a job")?;
        seen.damaged_words += exerciser::Report::read(Path::new(&format!("{name}.json")))?.damaged_words;
    }
    Ok(seen)
}

/// Starts a job and waits until its memory is filled.
fn start(name: &str, thp: &str) -> Result<Child> {
    let mut command = Command::new(sibling("exerciser"));
    command.args(["--hot", "24M", "--cold", "24M", "--hot-node", "1", "--cold-node", "1", "--thp", thp]);
    command.args(["--seconds", "900", "--report", &format!("{name}.json")]).stdout(Stdio::null());
    let job = command.spawn().context("cannot start the exerciser")?;
    let (start, mut before) = (Instant::now(), 0);
    loop {
        thread::sleep(Duration::from_secs(2));
        let filled = on_nodes(job.id())?[1];
        if filled == before && filled >= JOB_PAGES {
            return Ok(job);
        }
        ensure!(start.elapsed() < STAGE, "job {name} does not fill its memory");
        before = filled;
    }
}

/// Has the jobs watched until nothing moves any more.
fn stage(name: &str, jobs: &[Child], limits: &[&str]) -> Result<Vec<Stage>> {
    let before = jobs.iter().map(|job| on_nodes(job.id())).collect::<Result<Vec<_>>>()?;
    for (job, (name, _)) in jobs.iter().zip(JOBS) {
        attach(job.id(), name, limits)?;
    }
    let (start, mut moved, mut since) = (Instant::now(), 0, Instant::now());
    while start.elapsed() < STAGE && (moved == 0 || since.elapsed() < QUIET) {
        thread::sleep(Duration::from_secs(1));
        let now: u64 =
            daemon::status()?["jobs"].as_array().into_iter().flatten().map(|job| pages(job, 0) + pages(job, 1)).sum();
        if now != moved {
            (moved, since) = (now, Instant::now());
        }
    }
    let mut stages = Vec::new();
    for ((job, (job_name, _)), before) in jobs.iter().zip(JOBS).zip(before) {
        let left = tensortier(&["detach", "--json", job_name]).output().context("cannot start tensortier")?;
        let left: Value = serde_json::from_slice(&left.stdout).context("the account is not JSON")?;
        let (promoted, demoted) = (pages(&left, 0), pages(&left, 1));
        let after = on_nodes(job.id())?;
        stages.push(Stage { name: format!("{job_name}_{name}"), promoted, demoted, before, after });
    }
    Ok(stages)
}

/// Pages that moved to a node, by an account or a job's status.
fn pages(account: &Value, to: u64) -> u64 {
    let rows = account["watched"]["moved"].as_array().into_iter().flatten();
    rows.filter(|row| row["to"] == to).filter_map(|row| row["pages"].as_u64()).sum()
}

/// Pages of a process on node 0 and node 1, as numa_maps has them: of 4 KiB, since no mapping is of hugetlbfs.
fn on_nodes(pid: u32) -> Result<[i64; 2]> {
    let path = format!("/proc/{pid}/numa_maps");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let on = |node: &str| text.split_whitespace().filter_map(|word| word.strip_prefix(node)?.parse::<i64>().ok()).sum();
    Ok([on("N0="), on("N1=")])
}

/// Pages that the kernel has migrated, for whatever reason.
fn vmstat() -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?;
    let value = text.lines().find_map(|line| line.strip_prefix("pgmigrate_success ")?.parse().ok());
    value.context("no pgmigrate_success in /proc/vmstat")
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(status.success(), "{:?} ended with {status}", command.get_program());
    Ok(())
}
