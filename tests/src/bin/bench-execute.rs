//! Plans run on the emulated driver with real bytes: checksums of an in-core run, simulated against measured step time.
//!
//! Graphs have 1/16 of their bytes. Kernels read and write every byte of their tensors and spin for the rest of their
//! time. The link is set so low that this machine's cores can do all of that at once, operators are slower by as much, and
//! so the ratio of computing to copying is that of a V100 on PCIe 4. What link, card and kernels then really take, all of
//! them at work, is measured before the plans are made; plans and simulation know no other figures.

use std::{
    ops::ControlFlow,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use comfy_table::{Table, presets};
use tensortier_bridge::{
    device::Gpu,
    execute::{self, InCore, Outcome, Program},
};
use tensortier_model::{Bytes, Machine, Nanos, Profiles};
use tensortier_planner::{
    graph::{Graph, OpKind},
    plan::Plan,
    planners::Planner,
    sim,
    swapadvisor::Search,
};
use tensortier_tests::{
    bench::{Bench, BenchArgs, Op, median},
    calibrate::{self, Calibration, Memory},
    emulated::ensure_emulated,
    memcpy::memcpy,
    points,
};

/// Bytes of the graphs are divided by this.
const SHRINK: Bytes = 16;
/// The link of the machine whose ratio of computing to copying is kept, bytes per second.
const PCIE4: f64 = 25e9;
/// Share of what kernels can read and write that operators may ask for.
const SPARE: f64 = 0.6;
/// Time that may be missing to operators which ask for more, as a share of the step.
const MISSING: f64 = 0.005;
/// The link is at most this share of what one thread copies.
const LINK: f64 = 0.05;
/// The card's share of the link, both directions together.
const CARD: f64 = 0.6;
const PLANNERS: [Planner; 3] = [Planner::Ours, Planner::SwapAdvisor, Planner::Delta];
const GRAPHS: [&str; 2] = ["resnet50_b64", "vit_b_16_b32"];

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Only graphs whose name contains this; the bar over both then cannot hold.
    #[arg(long, default_value = "")]
    only: String,
    /// Seconds for a plan.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Training steps of a run; the first is not counted.
    #[arg(long, default_value_t = 4)]
    steps: usize,
    /// Runs of each plan, in turn; the median of all steps counts.
    #[arg(long, default_value_t = 2)]
    repeat: usize,
    /// So many times slower than this machine's cores need: waiting for a busy core is then a smaller share of the time.
    #[arg(long, default_value_t = 2.0)]
    slower: f64,
    /// The device's memory is the graph's peak divided by this.
    #[arg(long, default_value_t = 2)]
    part: u64,
}

/// A plan under test.
struct Case {
    name: String,
    machine: Machine,
    plan: Plan,
    program: Program,
    report: sim::Report,
    measured: Vec<Nanos>,
    /// Seconds that the emulated processor's thread had a core, and of how many.
    core: (f64, f64),
    outcome: Outcome,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    ensure!(args.steps >= 2 && args.repeat >= 1 && args.part >= 1, "steps begin at 2, runs and parts at 1");
    ensure!((0.1..=100.0).contains(&args.slower), "--slower {}: must be within 0.1 and 100", args.slower);
    ensure_emulated()?;
    let mut bench = Bench::new("execute", &args.bench);
    let gpu = Gpu::open()?;
    ensure!(gpu.name().contains("emulator"), "{}: kernels run on the emulated driver alone", gpu.name());
    bench.environment("device", gpu.name());
    bench.environment("load_at_start", load());
    let profiles = Profiles::builtin();
    let (copied, crunched) = (median((0..5).map(|_| memcpy(32 << 20))), calibrate::crunching(&gpu)?);
    bench.figure("memcpy_one_thread_gb_s", copied / 1e9);
    bench.figure("kernels_read_and_write_gb_s", crunched / 1e9);
    let mut ran = 0;
    for name in GRAPHS.into_iter().filter(|name| name.contains(&args.only)) {
        let (_, graph) = points::graphs(&profiles, name)?.pop().with_context(|| format!("no graph {name}"))?;
        let slower = args.slower * slowdown(&graph, crunched).max(PCIE4 / SHRINK as f64 / (LINK * copied));
        let link = PCIE4 / SHRINK as f64 / slower;
        ensure!(gpu.set_emulated_link(link, link), "the emulator takes no rates");
        let graph = points::shrunk(&graph, SHRINK, slower)?;
        bench.figure(&format!("{name}.operators_slower"), slower);
        ran += one(&mut bench, &args, &gpu, name, &graph, link)?;
    }
    bench.bar("plans_run", ran as f64, Op::AtLeast, 6.0);
    bench.environment("load_at_end", load());
    bench.finish()
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Seconds that the emulated processor's thread has run. While it has kernels it always wants a core, so in core anything
/// below the wall clock's time is what other processes had.
fn core() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    // A thread's name has 15 characters; then come its state and ten fields before user and system time.
    let ticks = |stat: String| {
        let (_, rest) = stat.split_once("(emulator-comput) ")?;
        let mut times = rest.split(' ').skip(11).map(|ticks| ticks.parse::<f64>().ok());
        Some(times.next()?? + times.next()??)
    };
    stats.filter_map(ticks).sum::<f64>() / 100.0
}

/// How many times as long operators must take so that a core that reads and writes `crunched` bytes per second keeps up.
fn slowdown(graph: &Graph, crunched: f64) -> f64 {
    let work = |op: &tensortier_planner::graph::Op| {
        let bytes = (graph.bytes_of(&op.reads) + graph.bytes_of(&op.writes)) / SHRINK;
        (bytes as f64 * 1e9 / (SPARE * crunched), op.time as f64)
    };
    let works: Vec<(f64, f64)> = graph.ops.iter().filter(|op| op.kind == OpKind::Compute).map(work).collect();
    let missing = |slower: f64| works.iter().map(|(work, time)| (work - time * slower).max(0.0)).sum::<f64>();
    let ideal = graph.ideal_time() as f64;
    let (mut low, mut high) = (0.0, 10_000.0);
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if missing(middle) <= MISSING * ideal * middle { high = middle } else { low = middle }
    }
    high
}

/// Runs all planners' plans of one graph; how many there are.
fn one(bench: &mut Bench, args: &Args, gpu: &Gpu, name: &str, graph: &Graph, link: f64) -> Result<usize> {
    let expected = InCore::run(graph, args.steps);
    let found = calibrate::calibrate(gpu, link, CARD * link)?;
    tell(bench, name, &found, link);
    let (peak, hbm) = (graph.peak(), (graph.peak() / args.part).max(graph.largest_op() * 11 / 10));
    // DRAM has not room for all that leaves.
    let machine = calibrate::machine(&found, hbm, (peak - hbm.min(peak)) / 2, 1 << 34)?;
    let model = points::overhead(graph, found.kernel as Nanos)?;
    let mut cases = Vec::new();
    let in_core = calibrate::machine(&found, peak, 0, 0)?;
    let unlimited = Plan::unlimited(&model, &model.traced_order());
    cases.push(case("in-core", &model, in_core, unlimited, args.steps)?);
    for planner in PLANNERS {
        let deadline = Some(Duration::from_secs_f64(args.seconds));
        let search = Search { evaluations: usize::MAX, deadline, ..Search::default() };
        let began = Instant::now();
        match planner.plan(&model, &machine, search, |_| ControlFlow::Continue(())) {
            Ok(plan) => cases.push(case(planner.name(), &model, machine.clone(), plan, args.steps)?),
            Err(error) => {
                println!("{name}: {planner} has no plan after {:.1} s: {error}", began.elapsed().as_secs_f64())
            }
        }
    }
    for _ in 0..args.repeat {
        for case in &mut cases {
            let memory = Memory::of(gpu, &case.program)?;
            let mut bridge = calibrate::bridge(gpu, CARD * link)?;
            let (began, before) = (Instant::now(), core());
            let ran = execute::run(&mut bridge, graph, &case.program, &memory.room, &expected);
            case.core.0 += core() - before;
            case.core.1 += began.elapsed().as_secs_f64();
            if let Some(error) = bridge.device().failure() {
                return Err(error).context(case.name.clone());
            }
            let outcome = ran.with_context(|| case.name.clone())?;
            case.measured.extend(outcome.periods());
            case.outcome.checked += outcome.checked;
            case.outcome.wrong.extend(&outcome.wrong);
            (case.outcome.copies, case.outcome.moved) = (outcome.copies, outcome.moved);
        }
    }
    // Does the machine still deliver what it did?
    let after = calibrate::calibrate(gpu, link, CARD * link)?;
    let drift = after.tiers[0][0].rate.min(after.tiers[0][1].rate) / found.tiers[0][0].rate.min(found.tiers[0][1].rate);
    bench.figure(&format!("{name}.link_after_over_before"), drift);
    report(bench, name, graph, &cases);
    Ok(cases.len() - 1)
}

fn tell(bench: &mut Bench, name: &str, found: &Calibration, link: f64) {
    bench.figure(&format!("{name}.link_set_mb_s"), link / 1e6);
    for (tier, paths) in ["link", "card"].iter().zip(found.tiers) {
        for (way, path) in ["in", "out"].iter().zip(paths) {
            bench.figure(&format!("{name}.{tier}_{way}_mb_s"), path.rate / 1e6);
            bench.figure(&format!("{name}.{tier}_{way}_latency_us"), path.latency / 1e3);
        }
    }
    bench.figure(&format!("{name}.kernel_overhead_us"), found.kernel / 1e3);
}

fn case(name: &str, model: &Graph, machine: Machine, plan: Plan, steps: usize) -> Result<Case> {
    let program = execute::prepare(model, &machine, &plan, steps).with_context(|| name.to_owned())?;
    let report = sim::simulate(model, &machine, &plan)?;
    let (measured, core, outcome) = Default::default();
    Ok(Case { name: name.to_owned(), machine, plan, program, report, measured, core, outcome })
}

fn report(bench: &mut Bench, name: &str, graph: &Graph, cases: &[Case]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        name,
        "HBM MiB",
        "simulated s",
        "measured s",
        "ratio",
        "core",
        "checksums",
        "wrong",
        "copies",
        "parts",
        "in MiB",
        "out MiB",
        "card MiB",
        "run again",
    ]);
    let mib = |bytes: Bytes| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
    for case in cases {
        let (simulated, measured) = (case.report.step_ns as f64, median(case.measured.iter().map(|&ns| ns as f64)));
        let at = format!("{name}.{}", case.name);
        let per_step = |count: usize| count / case.program.steps();
        let (copies, parts) = case.program.copies_and_parts();
        let report = &case.report;
        bench.figure(&format!("{at}.processor_had_a_core"), case.core.0 / case.core.1);
        bench.figure(&format!("{at}.copies_a_step"), per_step(copies) as f64);
        table.add_row([
            case.name.clone(),
            mib(case.machine.hbm),
            format!("{:.3}", simulated / 1e9),
            format!("{:.3}", measured / 1e9),
            format!("{:.3}", measured / simulated),
            format!("{:.2}", case.core.0 / case.core.1),
            case.outcome.checked.to_string(),
            case.outcome.wrong.len().to_string(),
            per_step(copies).to_string(),
            per_step(parts).to_string(),
            mib(report.bytes_in.iter().sum()),
            mib(report.bytes_out.iter().sum()),
            mib(report.bytes_in.get(1).unwrap_or(&0) + report.bytes_out.get(1).unwrap_or(&0)),
            (case.plan.order().count() - graph.ops.len()).to_string(),
        ]);
        bench.figure(&format!("{at}.simulated_s"), simulated / 1e9);
        bench.figure(&format!("{at}.measured_s"), measured / 1e9);
        bench.figure(&format!("{at}.of_ideal"), graph.ideal_time() as f64 / measured);
        bench.figure(&format!("{at}.checksums"), case.outcome.checked as f64);
        bench.figure(&format!("{at}.moved_mib_a_step"), report.moved() as f64 / f64::from(1 << 20));
        bench.bar(&format!("{at}.wrong_checksums"), case.outcome.wrong.len() as f64, Op::Exactly, 0.0);
        bench.bar(&format!("{at}.measured_off_simulated"), (measured / simulated - 1.0).abs(), Op::AtMost, 0.15);
    }
    println!("{table}");
    println!(
        "core: share of the time that the emulated processor's thread had one; copies, parts and MiB are one step's\n"
    );
}
