//! Three jobs with budgets and priorities on one agent: who has how much of DRAM.
//!
//! In a guest under emulation; shares mean something there, times do not.

use std::{
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tensortier_tests::{
    bench::{Bench, GuestArgs, Op},
    daemon::{Agent, status, tell, tensortier},
    scenario::{self, sibling},
};

/// Nothing has moved for so long: the state is steady.
const QUIET: Duration = Duration::from_secs(30);
/// It is by then, under emulation.
const SETTLE: Duration = Duration::from_secs(300);
const MIB: f64 = (1 << 20) as f64;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    guests: GuestArgs,
    /// Measures here, in a guest.
    #[arg(long, hide = true)]
    in_guest: bool,
}

/// A job: its name, budget in MiB and priority; all have 144 MiB that are hot and 16 MiB that are not. A block of 2 MiB
/// must be within 2 % of a budget.
struct Job(&'static str, Option<f64>, i32);

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.in_guest {
        return in_guest(&args);
    }
    scenario::in_guests("multijob", &args.guests, |guest| guest.dram("1G").slow("768M").timeout(1800))
}

fn in_guest(args: &Args) -> Result<ExitCode> {
    let mut bench = Bench::new("multijob", &args.guests.bench);
    bench.environment("guest", "numa profile under emulation; numa_balancing=0, demotion=0");
    scenario::fix_settings()?;
    let (agent, _) = Agent::start(&[])?;

    let budgets = [Job("first", Some(128.0), 0), Job("second", Some(112.0), 0), Job("third", Some(104.0), 0)];
    let has = settled(&budgets, None)?;
    for (Job(name, budget, _), has) in budgets.iter().zip(&has.on_0) {
        let budget = budget.unwrap_or(f64::NAN);
        bench.bar(&format!("{name}_off_budget_percent"), (has / budget - 1.0).abs() * 100.0, Op::AtMost, 2.0);
    }
    // With the headroom, room for less than the 144 MiB that are hot of one job.
    let alone = settled(&[Job("high", None, 10)], Some(160))?;
    let has = settled(&[Job("high", None, 10), Job("middle", None, 0), Job("low", None, -10)], Some(160))?;
    bench.figure("high_alone_mib", alone.on_0[0]);
    for (name, has) in ["high", "middle", "low"].iter().zip(&has.on_0) {
        bench.figure(&format!("{name}_mib"), *has);
    }
    bench.figure("jobs_could_have_alone_mib", alone.available);
    bench.figure("jobs_could_have_mib", has.available);
    let share = |settled: &Settled| settled.on_0[0] / settled.available * 100.0;
    bench.bar("high_less_than_alone_points", share(&alone) - share(&has), Op::AtMost, 2.0);
    agent.end()?;
    bench.finish()
}

/// What came of it, in MiB.
struct Settled {
    /// Each job's on node 0.
    on_0: Vec<f64>,
    /// What the jobs have there together and what is free over the headroom. The kernel's own use of the node differs
    /// by tens of MiB from run to run, so that shares are of this.
    available: f64,
}

/// Runs the jobs until they have settled. With `free_mib`, so much of node 0 is free
/// once the jobs have begun and before anything moves, however many jobs there are.
fn settled(jobs: &[Job], free_mib: Option<u64>) -> Result<Settled> {
    said(&["pause"])?;
    let mut running = jobs.iter().map(start).collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    while !jobs.iter().all(|Job(name, ..)| on_nodes(name).is_ok_and(|on| on[0] + on[1] >= 160.0)) {
        ensure!(begun.elapsed() < SETTLE, "the jobs do not fill their memory");
        thread::sleep(Duration::from_secs(1));
    }
    free_mib.map_or(Ok(()), leave_free)?;
    said(&["resume"])?;
    let (begun, mut moved, mut since) = (Instant::now(), 0, Instant::now());
    while since.elapsed() < QUIET && begun.elapsed() < SETTLE {
        thread::sleep(Duration::from_secs(1));
        let now = pages()?;
        if now != moved {
            (moved, since) = (now, Instant::now());
        }
    }
    let on_0 = jobs.iter().map(|Job(name, ..)| Ok(on_nodes(name)?[0])).collect::<Result<Vec<_>>>()?;
    let available = on_0.iter().sum::<f64>() + room()?;
    println!("settled after {:.0} s", begun.elapsed().as_secs_f64());
    for job in status()?["jobs"].as_array().into_iter().flatten() {
        println!("{}: notes {}, held back {}", job["name"], job["notes"], job["watched"]["held_back_bytes"]);
    }
    for child in &mut running {
        // `run` passes it on.
        tell(child.id(), "TERM")?;
        child.wait()?;
    }
    leave_free(0)?;
    Ok(Settled { on_0, available })
}

/// MiB of a job on node 0 and on node 1.
fn on_nodes(name: &str) -> Result<[f64; 2]> {
    let status = status()?;
    let job = status["jobs"].as_array().into_iter().flatten().find(|job| job["name"] == name);
    let nodes = &job.context("a job is not watched")?["watched"]["nodes"];
    let on = |node: &str| nodes[node]["resident_bytes"].as_f64().context("a job is on no node").map(|on| on / MIB);
    Ok([on("0")?, on("1")?])
}

/// MiB of node 0 that are free over the headroom that the agent keeps by default.
fn room() -> Result<f64> {
    let status = status()?;
    let of = |name: &str| status["nodes"]["0"][name].as_f64().context("node 0 is not in the status");
    let headroom = tensortier::config::Policy::default().headroom(of("total_bytes")? as u64);
    Ok((of("free_bytes")? - headroom as f64).max(0.0) / MIB)
}

/// Pages that have moved so far, of all jobs.
fn pages() -> Result<u64> {
    let status = status()?;
    let rows = status["jobs"].as_array().into_iter().flatten().flat_map(|job| job["watched"]["moved"].as_array());
    Ok(rows.flatten().filter_map(|row| row["pages"].as_u64()).sum())
}

fn said(words: &[&str]) -> Result<()> {
    ensure!(tensortier(words).stdout(Stdio::null()).status()?.success(), "the agent refuses: {words:?}");
    Ok(())
}

fn start(Job(name, budget, priority): &Job) -> Result<Child> {
    let mut command = tensortier(&["run", "--require", "--name", name, "--priority", &priority.to_string()]);
    if let Some(budget) = budget {
        command.args(["--dram-budget", &format!("{budget}M")]);
    }
    command.arg("--").arg(sibling("exerciser"));
    command.args(["--hot", "144M", "--cold", "16M", "--hot-node", "1", "--cold-node", "1", "--thp", "never"]);
    command.args(["--seconds", "600", "--report"]).arg(format!("/tmp/{name}.json"));
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start a job")
}

/// Takes memory of node 0 away until so much is free; 0 gives all of it back.
fn leave_free(mib: u64) -> Result<()> {
    let balloon = tensortier_tests::guest::root().join("scripts/guest/balloon");
    let size = if mib == 0 { "0".to_owned() } else { format!("{mib}M") };
    let left = Command::new(balloon).args([&size, "0"]).stdout(Stdio::null()).status()?;
    ensure!(left.success(), "DRAM could not be taken down to {mib} MiB");
    Ok(())
}
