//! What counting every page fault costs, and whether the counts are right (host kernel, root).
//!
//! `/usr/bin/python3 -c 'import torch'` is one of the programs counted.

use std::{env, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use tensortier::{
    source::{
        ebpf::{Options, Programs},
        job_events::JobId,
    },
    units::Pid,
};
use tensortier_tests::{
    bench::{Bench, BenchArgs, Op, median},
    worker::{self, Worker},
};

/// Page faults: cost of counting them, and correctness of the counts.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Pairs of a run without and a run with the programs.
    #[arg(long, default_value_t = 21)]
    pairs: u32,
    /// Pages touched in each run.
    #[arg(long, default_value_t = 32768)]
    pages: u64,
    #[command(subcommand)]
    mode: Option<Mode>,
}

#[derive(Subcommand)]
enum Mode {
    /// The process that is measured; the bench starts it itself.
    #[command(hide = true)]
    Worker,
}

const JOB: JobId = JobId(0);
const ROUNDS: usize = 15;
const TORCH: &str = "run /usr/bin/python3 -c import_torch";

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.mode.is_some() {
        worker::serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut bench = Bench::new("faultcost", &args.bench);
    let mut worker = Worker::start(&env::current_exe()?)?;
    bench.environment("pages", args.pages);
    bench.environment("pairs", args.pairs);
    overhead(&mut bench, &mut worker, &args)?;
    run_time(&mut bench, &mut worker, args.pages)?;
    counts(&mut bench, &mut worker, args.pages)?;
    bench.finish()
}

fn load(worker: &Worker) -> Result<Programs> {
    let mut programs = Programs::load(&Options::default()).context("faultcost needs root and BPF")?;
    for program in ["page_fault_user", "page_fault_kernel"] {
        ensure!(programs.runs(program), "{program} does not run here: {:?}", programs.attachments());
    }
    programs.jobs.track(Pid(worker.pid()), JOB)?;
    Ok(programs)
}

/// The touch loop without and with the programs, in turn: ABAB, so that drift of the machine meets both alike.
fn overhead(bench: &mut Bench, worker: &mut Worker, args: &Args) -> Result<()> {
    let touch = format!("touch {}", args.pages);
    let loops = |worker: &mut Worker| -> Result<f64> {
        let reply = worker.ask(&touch)?;
        Ok(reply.ns as f64 / args.pages as f64)
    };
    loops(worker)?;
    let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.pairs {
        let off = loops(worker)?;
        let programs = load(worker)?;
        let on = loops(worker)?;
        drop(programs);
        ratios.push((on / off - 1.0) * 100.0);
        without.push(off);
        with.push(on);
    }
    bench.figure("touch_ns_per_fault_off", median(without));
    bench.figure("touch_ns_per_fault_on", median(with));
    bench.bar("touch_loop_added_percent", median(ratios), Op::AtMost, 10.0);
    Ok(())
}

/// Nanoseconds a run of each program by the kernel's own statistics, enabled through a descriptor for as long as this
/// takes; the median over rounds, each of which is a mean over its faults.
fn run_time(bench: &mut Bench, worker: &mut Worker, pages: u64) -> Result<()> {
    let programs = load(worker)?;
    let _enabled = aya::sys::enable_stats(aya::sys::Stats::RunTime).context("cannot enable BPF statistics")?;
    let mut measure = |program: &str, command: String, pages: u64| -> Result<f64> {
        let spent = || -> (Duration, u64) {
            let times = programs.run_times();
            times
                .iter()
                .find(|time| time.program == program)
                .map_or((Duration::ZERO, 0), |time| (time.spent, time.runs))
        };
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let before = spent();
            worker.ask(&command)?;
            let after = spent();
            let runs = after.1 - before.1;
            ensure!(runs >= pages, "{program} ran {runs} times for {pages} faults");
            rounds.push((after.0 - before.0).as_nanos() as f64 / runs as f64);
        }
        Ok(median(rounds))
    };
    let user = measure("page_fault_user", format!("touch {pages}"), pages)?;
    let kernel = measure("page_fault_kernel", format!("read {pages}"), pages)?;
    // The dearest kind of fault: each in another region than the last.
    let spread = measure("page_fault_user", "spread 4096".to_owned(), 4096)?;
    bench.bar("page_fault_user_ns_per_run", user, Op::AtMost, 150.0);
    bench.bar("page_fault_kernel_ns_per_run", kernel, Op::AtMost, 150.0);
    bench.figure("page_fault_user_ns_per_run_new_region", spread);
    Ok(())
}

/// Counted faults against those that the kernel charges to the process.
fn counts(bench: &mut Bench, worker: &mut Worker, pages: u64) -> Result<()> {
    let mut programs = load(worker)?;
    for (name, command) in
        [("touch", format!("touch {pages}")), ("read", format!("read {pages}")), ("torch", TORCH.to_owned())]
    {
        programs.faults.drain()?;
        let reply = worker.ask(&command)?;
        let mine = programs.faults.drain()?;
        let (user, kernel) = mine
            .iter()
            .filter(|fault| fault.pid.0 == reply.pid)
            .fold((0, 0), |(user, kernel), fault| (user + fault.count.user, kernel + fault.count.kernel));
        let off = (user + kernel).abs_diff(reply.faults) as f64 / reply.faults as f64 * 100.0;
        bench.figure(&format!("{name}_faults_charged"), reply.faults as f64);
        bench.figure(&format!("{name}_faults_counted_user"), user as f64);
        bench.figure(&format!("{name}_faults_counted_kernel"), kernel as f64);
        bench.bar(&format!("{name}_count_off_percent"), off, Op::AtMost, 1.0);
    }
    bench.bar("regions_lost", programs.faults.lost() as f64, Op::Exactly, 0.0);
    Ok(())
}
