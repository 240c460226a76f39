//! What the executor costs against one raw move_pages call of the same pages, and how long it lets the job wait.
//!
//! Runs in the guest, where two nodes are (emulated: only ratios of one run mean anything). Each pair moves one arena
//! there and back by one raw call each way, then by the executor each way, the order of the two alternating.

use std::{
    env, fs,
    path::Path,
    process::{Command, ExitCode},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use tensortier::{
    migrate::{Executor, Outcome, Params},
    policy::{Move, Plan, Reason},
    sys::{Process, UNWRITTEN},
    units::{BLOCK, NodeId, PAGE, Pid, Range},
};
use tensortier_tests::{
    arena::{Arena, PageSize},
    bench::{Bench, BenchArgs, Op, Report},
};

const DRAM: NodeId = NodeId(0);
const SLOW: NodeId = NodeId(1);

#[derive(Parser)]
#[command(about)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Pairs of raw and executor runs, for each page size
    #[arg(long, default_value_t = 11)]
    pairs: usize,
    /// Bytes moved each way in MiB
    #[arg(long, default_value_t = 32)]
    mib: u64,
    /// Kernel of the guest
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// Measures here; the bench starts itself so in the guest
    #[arg(long, hide = true)]
    in_guest: bool,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    ensure!(args.pairs > 0 && args.mib > 0 && args.mib.is_multiple_of(2), "--pairs of 1 or more, --mib even");
    if args.in_guest { measure(&args) } else { start_guest(&args) }
}

fn start_guest(args: &Args) -> Result<ExitCode> {
    let out = env::temp_dir().join(format!("tensortier-bench-executor-{}", std::process::id()));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let result = run_guest(args, &out);
    fs::remove_dir_all(&out).with_context(|| format!("cannot remove {}", out.display()))?;
    result
}

fn run_guest(args: &Args, out: &Path) -> Result<ExitCode> {
    let vm = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/vm");
    let status = Command::new(&vm)
        .args(["--profile", "numa", "--kernel", &args.kernel, "--out"])
        .arg(out)
        .arg("--")
        .arg(env::current_exe().context("this program's path")?)
        .args(["--in-guest", "--pairs", &args.pairs.to_string(), "--mib", &args.mib.to_string(), "--json"])
        .arg("/out/report.json")
        .status()
        .with_context(|| format!("cannot run {}", vm.display()))?;
    let Ok(report) = Report::read(&out.join("report.json")) else { bail!("the guest measured nothing ({status})") };
    let mut bench = Bench::new("executor", &args.bench);
    bench.absorb("", report);
    bench.environment("guest", format!("scripts/vm --profile numa --kernel {}", args.kernel));
    bench.finish()
}

fn measure(args: &Args) -> Result<ExitCode> {
    // The settings below are never touched outside the guest that scripts/vm makes.
    let command_line = fs::read_to_string("/proc/cmdline")?;
    ensure!(command_line.contains("tensortier.run="), "this is not a guest of scripts/vm");
    let mut bench = Bench::new("executor", &args.bench);
    for (name, path, value) in [
        ("numa_balancing", "/proc/sys/kernel/numa_balancing", "0"),
        ("demotion", "/sys/kernel/mm/numa/demotion_enabled", "false"),
    ] {
        fs::write(path, value).with_context(|| format!("cannot write {path}"))?;
        bench.environment(name, value);
    }
    for (name, size) in [("4k", PageSize::Base), ("thp", PageSize::Huge)] {
        let mut subject = Subject::new(args.mib << 20, size)?;
        let pairs = subject.pairs(args.pairs)?;
        bench.bar(&format!("{name}_share_of_raw"), median(pairs.iter().map(|p| p.raw / p.executor)), Op::AtLeast, 0.85);
        bench.figure(
            &format!("{name}_share_of_raw_least"),
            pairs.iter().map(|p| p.raw / p.executor).fold(1e9, f64::min),
        );
        bench.figure(&format!("{name}_pairs"), pairs.len() as f64);
        let mib = (args.mib * 2) as f64;
        bench.figure(&format!("{name}_raw_mib_per_s"), median(pairs.iter().map(|p| mib / p.raw)));
        bench.figure(&format!("{name}_executor_mib_per_s"), median(pairs.iter().map(|p| mib / p.executor)));
        let cap_ms = Params::default().stall_cap.as_secs_f64() * 1e3;
        let stalls: Vec<f64> = subject.stalls.iter().map(|stall| stall.as_secs_f64() * 1e3).collect();
        bench.bar(&format!("{name}_call_stall_p95_ms"), quantile(stalls.clone(), 0.95), Op::AtMost, cap_ms);
        bench.figure(&format!("{name}_call_stall_longest_ms"), quantile(stalls, 1.0));
        bench.figure(
            &format!("{name}_executor_in_calls_share"),
            subject.in_calls / pairs.iter().map(|p| p.executor).sum::<f64>(),
        );
        bench.figure(
            &format!("{name}_executor_resting_share"),
            subject.throttled / pairs.iter().map(|p| p.executor).sum::<f64>(),
        );
        bench.figure(&format!("{name}_calls_per_move"), f64::from(subject.calls) / subject.moves as f64);
        let waits = subject.waits()?;
        bench.figure(&format!("{name}_job_wait_p999_ms"), quantile(waits.clone(), 0.999));
        bench.figure(&format!("{name}_job_wait_longest_ms"), quantile(waits, 1.0));
        bench.bar(&format!("{name}_intact"), f64::from(u8::from(subject.intact())), Op::Exactly, 1.0);
    }
    bench.finish()
}

/// Seconds that one raw run and one executor run took, there and back.
struct Pair {
    raw: f64,
    executor: f64,
}

struct Subject {
    arena: Arena,
    process: Process,
    executor: Executor,
    unit: u64,
    stalls: Vec<Duration>,
    calls: u32,
    moves: usize,
    in_calls: f64,
    throttled: f64,
}

impl Subject {
    fn new(bytes: u64, size: PageSize) -> Result<Self> {
        let mut arena = Arena::new(bytes, size)?;
        arena.fill(arena.range());
        let process = Process::open(Pid(std::process::id()))?;
        let huge: u64 = process.populated(arena.range())?.iter().filter(|e| e.huge).map(|e| e.range.bytes()).sum();
        ensure!(huge == if size == PageSize::Huge { bytes } else { 0 }, "{huge} bytes of {bytes} are in huge pages");
        let unit = if size == PageSize::Huge { BLOCK } else { PAGE };
        let mut subject = Self {
            arena,
            process,
            executor: Executor::new(Params::default()),
            unit,
            stalls: Vec::new(),
            calls: 0,
            moves: 0,
            in_calls: 0.0,
            throttled: 0.0,
        };
        subject.raw(DRAM)?;
        // Sizes of batches are learned once and kept; what the agent does for hours is measured, not its first second.
        for to in [SLOW, DRAM, SLOW, DRAM] {
            subject.executor(to)?;
        }
        (subject.stalls, subject.calls, subject.moves) = (Vec::new(), 0, 0);
        (subject.in_calls, subject.throttled) = (0.0, 0.0);
        Ok(subject)
    }

    fn pairs(&mut self, count: usize) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        for i in 0..count {
            let mut pair = Pair { raw: 0.0, executor: 0.0 };
            for raw in if i % 2 == 0 { [true, false] } else { [false, true] } {
                for to in [SLOW, DRAM] {
                    let start = Instant::now();
                    if raw {
                        self.raw(to)?
                    } else {
                        self.executor(to)?
                    }
                    *if raw { &mut pair.raw } else { &mut pair.executor } += start.elapsed().as_secs_f64();
                }
            }
            pairs.push(pair);
        }
        Ok(pairs)
    }

    fn raw(&mut self, to: NodeId) -> Result<()> {
        let range = self.arena.range();
        let addresses: Vec<u64> = (range.start..range.end).step_by(self.unit as usize).collect();
        let mut status = vec![UNWRITTEN; addresses.len()];
        let left = self.process.move_to(&addresses, to, &mut status)?;
        ensure!(left == 0 && status.iter().all(|s| *s == to.0 as i32), "a raw call left {left} pages behind");
        Ok(())
    }

    fn executor(&mut self, to: NodeId) -> Result<()> {
        let from = if to == DRAM { SLOW } else { DRAM };
        let plan = plan(self.process.pid(), self.arena.range(), from, to);
        let outcomes = self.executor.run(&plan, &AtomicBool::new(false));
        let moved: u64 = outcomes.iter().map(|outcome| outcome.moved).sum();
        ensure!(moved == self.arena.range().pages(), "the executor moved {moved} pages: {:?}", failures(&outcomes));
        self.stalls.extend(outcomes.iter().map(|outcome| outcome.longest_stall));
        self.calls += outcomes.iter().map(|outcome| outcome.calls).sum::<u32>();
        self.moves += outcomes.len();
        self.in_calls += outcomes.iter().map(|outcome| outcome.in_calls.as_secs_f64()).sum::<f64>();
        self.throttled += outcomes.iter().map(|outcome| outcome.throttled.as_secs_f64()).sum::<f64>();
        Ok(())
    }

    /// How long single touches of a thread took, in ms, while the executor moved the arena there and back.
    fn waits(&mut self) -> Result<Vec<f64>> {
        let done = AtomicBool::new(false);
        let arena = &self.arena;
        let (pid, range) = (self.process.pid(), arena.range());
        let executor = &mut self.executor;
        thread::scope(|scope| {
            let toucher = scope.spawn(|| {
                let (mut waits, mut page) = (Vec::new(), 0);
                while !done.load(Ordering::Relaxed) {
                    // A stride that meets every page in an order unlike the executor's.
                    page = (page + 1237) % range.pages();
                    let at = range.start + page * PAGE;
                    let start = Instant::now();
                    if !arena.intact(Range::new(at, at + PAGE)) {
                        bail!("{at:#x} changed while it moved");
                    }
                    waits.push(start.elapsed().as_secs_f64() * 1e3);
                }
                Ok(waits)
            });
            for (from, to) in [(DRAM, SLOW), (SLOW, DRAM), (DRAM, SLOW), (SLOW, DRAM)] {
                executor.run(&plan(pid, range, from, to), &AtomicBool::new(false));
            }
            done.store(true, Ordering::Relaxed);
            toucher.join().map_err(|_| anyhow::anyhow!("the touching thread panicked"))?
        })
    }

    fn intact(&self) -> bool {
        self.arena.intact(self.arena.range())
    }
}

/// Block by block, as the policy plans.
fn plan(pid: Pid, range: Range, from: NodeId, to: NodeId) -> Plan {
    let blocks = (range.start..range.end).step_by(BLOCK as usize).map(|start| Range::new(start, start + BLOCK));
    let moves = blocks.map(|range| Move { pid, range, from, to, bytes: BLOCK, reason: Reason::Hot, heat: 1.0 });
    Plan { id: 1, moves: moves.collect(), ..Plan::default() }
}

fn failures(outcomes: &[Outcome]) -> Vec<String> {
    outcomes.iter().filter(|o| !o.failed.is_empty()).map(|o| format!("{:?}", o.failed)).collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values.collect(), 0.5)
}

fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((q * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
}
