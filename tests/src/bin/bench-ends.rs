//! Beginnings and ends: quick runs, SIGKILLs of the agent and of jobs at random moments under load, SIGTERM.
//!
//! In a guest under emulation; bars on times are those for hardware, and hold there if they hold here.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tensortier_tests::{
    bench::{Bench, GuestArgs, Op},
    daemon::{Agent, attach, status, tell, tensortier},
    exerciser,
    guest::Guest,
    scenario::{self, sibling},
};

const CGROUPS: &str = "/sys/fs/cgroup";

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    guests: GuestArgs,
    /// Runs that end at once.
    #[arg(long, default_value_t = 100)]
    starts: u32,
    /// Agents killed while their job's pages move.
    #[arg(long, default_value_t = 50)]
    agent_kills: u32,
    /// Jobs killed.
    #[arg(long, default_value_t = 50)]
    job_kills: u32,
    /// Measures here, in a guest.
    #[arg(long, hide = true)]
    in_guest: bool,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.in_guest {
        return in_guest(&args);
    }
    scenario::build()?;
    let mut bench = Bench::new("ends", &args.guests.bench);
    for kernel in &args.guests.kernel {
        let counts = [args.starts, args.agent_kills, args.job_kills].map(|count| count.to_string());
        let words = ["--starts", &counts[0], "--agent-kills", &counts[1], "--job-kills", &counts[2]];
        let shape = |guest: Guest| guest.dram("1G").slow("512M").timeout(5400);
        let log = scenario::measure(&mut bench, kernel, shape, &words)?;
        let complaints = log.lines().filter(|line| line.contains("WARNING:") || line.contains("BUG:")).count();
        bench.bar(&format!("{kernel}_kernel_complaints"), complaints as f64, Op::Exactly, 0.0);
    }
    bench.finish()
}

fn in_guest(args: &Args) -> Result<ExitCode> {
    let mut bench = Bench::new("ends", &args.guests.bench);
    bench.environment("guest", "numa profile under emulation; numa_balancing=0, demotion=0");
    scenario::fix_settings()?;
    let (settings, groups) = (settings()?, cgroups(CGROUPS.as_ref())?);
    quick_runs(args, &mut bench)?;
    let mut agent = kill_agents(args, &mut bench)?;
    kill_jobs(args, &mut bench, &mut agent)?;

    // What is looked for at the end is there now.
    bench.bar("programs_of_an_agent", programs()?, Op::AtLeast, 4.0);

    // SIGTERM while pages move.
    let mut job = exercise(&[], "300", "/tmp/last.json")?;
    attach(job.id(), "load", &[])?;
    thread::sleep(Duration::from_secs(10));
    bench.bar("sigterm_seconds", agent.end()?.as_secs_f64(), Op::AtMost, 2.0);
    ensure!(job.try_wait()?.is_none(), "the job ended with the agent");
    job.kill()?;
    job.wait()?;

    bench.bar("kdamonds_left", number("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds")?, Op::Exactly, 0.0);
    let more = cgroups(CGROUPS.as_ref())? as f64 - groups as f64;
    bench.bar("cgroups_left", more, Op::Exactly, 0.0);
    bench.bar("programs_left", programs()?, Op::Exactly, 0.0);
    let probes = fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap_or_default().lines().count();
    bench.bar("probes_left", probes as f64, Op::Exactly, 0.0);
    bench.bar("settings_changed", f64::from(u8::from(self::settings()? != settings)), Op::Exactly, 0.0);
    bench.finish()
}

fn quick_runs(args: &Args, bench: &mut Bench) -> Result<()> {
    let (mut failed, mut longest, mut left) = (0.0, 0.0f64, 0.0);
    for _ in 0..args.starts {
        let start = Instant::now();
        let run = tensortier(&["run", "--require", "--", "true"]).stderr(Stdio::null()).status()?;
        longest = longest.max(start.elapsed().as_secs_f64());
        failed += f64::from(u8::from(!run.success()));
        left += number("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds")?;
    }
    bench.bar("failed_runs", failed, Op::Exactly, 0.0);
    bench.bar("kdamonds_after_runs", left, Op::Exactly, 0.0);
    bench.figure("longest_quick_run_seconds", longest);
    Ok(())
}

fn kill_agents(args: &Args, bench: &mut Bench) -> Result<Agent> {
    let report = Path::new("/tmp/killed-agents.json");
    // It is ended below, however long the agents take to start.
    let mut job = exercise(&["--phase-seconds", "6"], "7200", "/tmp/killed-agents.json")?;
    let (mut random, mut longest) = (Random(7), 0.0f64);
    let mut agent = Agent::start(&[])?.0;
    for _ in 0..args.agent_kills {
        attach(job.id(), "load", &[])?;
        thread::sleep(random.below(Duration::from_secs(5)));
        agent.kill()?;
        let took;
        (agent, took) = Agent::start(&[])?;
        longest = longest.max(took.as_secs_f64());
    }
    tell(job.id(), "TERM")?;
    job.wait()?;
    let report = exerciser::Report::read(report)?;
    bench.bar("damaged_words_after_agent_kills", report.damaged_words as f64, Op::Exactly, 0.0);
    bench.bar("longest_next_start_seconds", longest, Op::AtMost, 2.0);
    Ok(agent)
}

fn kill_jobs(args: &Args, bench: &mut Bench, agent: &mut Agent) -> Result<()> {
    let (mut random, mut wrong) = (Random(11), 0.0);
    for _ in 0..args.job_kills {
        let exerciser = sibling("exerciser").display().to_string();
        let words = ["run", "--require", "--name", "killed", "--", &exerciser, "--hot", "16M", "--cold", "8M"];
        let mut run = tensortier(&words);
        run.args(["--hot-node", "1", "--cold-node", "1", "--seconds", "300", "--report", "/tmp/killed-job.json"]);
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        thread::sleep(Duration::from_secs(1) + random.below(Duration::from_secs(4)));
        for pid in watched()? {
            tell(pid, "KILL")?;
        }
        wrong += f64::from(u8::from(run.wait()?.code() != Some(128 + 9)));
        wrong += self::status()?["jobs"].as_array().map_or(1.0, |jobs| jobs.len() as f64);
    }
    ensure!(agent.runs()?, "the agent ended with a job");
    bench.bar("wrong_after_job_kills", wrong, Op::Exactly, 0.0);
    Ok(())
}

/// The processes of the one job, once it is watched.
fn watched() -> Result<Vec<u32>> {
    let start = Instant::now();
    loop {
        let status = status()?;
        let pids = status["jobs"][0]["pids"].as_array().into_iter().flatten();
        let pids: Vec<u32> = pids.filter_map(|pid| u32::try_from(pid.as_u64()?).ok()).collect();
        if !pids.is_empty() {
            return Ok(pids);
        }
        ensure!(start.elapsed() < Duration::from_secs(30), "the job is not watched");
        thread::sleep(Duration::from_millis(100));
    }
}

fn exercise(more: &[&str], seconds: &str, report: &str) -> Result<Child> {
    let mut command = Command::new(sibling("exerciser"));
    command.args(["--hot", "48M", "--cold", "48M", "--hot-node", "1", "--cold-node", "1", "--thp", "never"]);
    command.args(more).args(["--seconds", seconds, "--report", report]).stdout(Stdio::null());
    command.spawn().context("cannot start the exerciser")
}

fn number(path: &str) -> Result<f64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    text.trim().parse().with_context(|| format!("no number in {path}"))
}

/// Our programs that the kernel has compiled: it lists them by the first 15 bytes of their names.
fn programs() -> Result<f64> {
    let symbols = fs::read_to_string("/proc/kallsyms").context("cannot read /proc/kallsyms")?;
    let ours = ["page_fault_user", "page_fault_kern", "damon_aggregate", "mm_migrate_page"];
    let left = symbols.lines().filter(|line| line.contains("bpf_prog_") && ours.iter().any(|name| line.contains(name)));
    Ok(left.count() as f64)
}

/// Control groups below a folder of their tree.
fn cgroups(folder: &Path) -> Result<usize> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir());
    folders.map(|path| Ok(1 + cgroups(&path)?)).sum()
}

/// What the agent has no business to change.
fn settings() -> Result<Vec<String>> {
    let files = ["/proc/sys/kernel/numa_balancing", "/sys/kernel/mm/numa/demotion_enabled"];
    let more = ["/sys/kernel/mm/transparent_hugepage/enabled", "/proc/sys/kernel/bpf_stats_enabled"];
    let all = files.into_iter().chain(more).map(PathBuf::from);
    all.map(|path| fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))).collect()
}

/// xorshift64 (Marsaglia, "Xorshift RNGs", 2003): moments that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        limit.mul_f64((self.0 % 1000) as f64 / 1000.0)
    }
}
