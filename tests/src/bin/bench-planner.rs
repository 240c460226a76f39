//! Our planner beside every other on six training graphs, and beside what the papers report; resumes.
//!
//! Results are kept in a file and used again by the same build, so an interrupted run goes on where it was.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Parser;
use tensortier_model::{Bytes, Machine, Nanos, Profiles};
use tensortier_planner::{
    bounds, check, g10,
    graph::Graph,
    ours::Ours,
    plan::Plan,
    planners::Planner,
    sim,
    swapadvisor::{Progress, Search},
};
use tensortier_tests::{
    bench::{Bench, BenchArgs, Op},
    points::{self, Point, Store},
};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Seconds that our planner has for a plan.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Seconds of the run, one for each graph at a quarter of its peak, that the plan after `--seconds` is held
    /// against; 600 is the full check.
    #[arg(long, default_value_t = 180.0)]
    long: f64,
    /// Only those runs, of the graphs chosen: what `--seconds` reach of `--long`.
    #[arg(long)]
    long_only: bool,
    /// Seconds for each plan on the way to the least memory and the largest batch.
    #[arg(long, default_value_t = 6.0)]
    step_seconds: f64,
    /// Plans that the other searches evaluate.
    #[arg(long, default_value_t = 1500)]
    evaluations: usize,
    /// Only graphs whose file name contains this; the bar over six graphs then cannot hold.
    #[arg(long, default_value = "")]
    only: String,
    /// Where results are kept.
    #[arg(long, value_name = "FILE", default_value = "out/planner.jsonl")]
    store: PathBuf,
    /// Measures everything again.
    #[arg(long)]
    fresh: bool,
}

/// The deadline leaves this for the last evaluation and for the final plan.
const MARGIN: f64 = 0.5;
/// The limit at which the long run is made.
const LONG_AT: &str = "4";
/// Graphs that DELTA's authors use, too.
const DELTAS: [&str; 5] = ["resnet50_b64", "resnet101_b64", "bert-large_b8", "gpt2-large_b4", "gpt2-xl_b2"];

/// Multiples of the traced batch that are tried.
const BATCHES: [u64; 12] = [2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32];

/// What holds over all graphs and limits.
#[derive(Default)]
struct Tally {
    graphs: usize,
    behind: usize,
    behind_at_equal_time: usize,
    compared: usize,
    rejected: usize,
    slowest: f64,
}

struct Run {
    args: Args,
    profiles: Profiles,
    store: Store,
    bench: Bench,
    tally: Tally,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let mut bench = Bench::new("planner", &args.bench);
    bench.environment("machine", "v100-16g, pcie4-x16 (25 GB/s each way, 10 us a copy), 1 TiB of DRAM");
    bench.environment("ours", format!("seed 1, one thread, {} s a plan, long run {} s", args.seconds, args.long));
    bench.environment("others", format!("searches: {} evaluations, seed 1, all cores", args.evaluations));
    let store = Store::open(&args.store, args.fresh)?;
    let mut run = Run { args, profiles: Profiles::builtin(), store, bench, tally: Tally::default() };
    let graphs = points::graphs(&run.profiles, &run.args.only)?;
    if run.args.long_only {
        for (name, graph) in &graphs {
            for (part, hbm) in points::limits(graph).into_iter().filter(|(part, _)| *part == LONG_AT) {
                run.ours(&format!("{name}.1/{part}"), graph, part, hbm)?;
            }
        }
        return run.bench.finish();
    }
    for (name, graph) in &graphs {
        run.tally.graphs += 1;
        for (part, hbm) in points::limits(graph) {
            run.point(name, graph, part, hbm)?;
        }
    }
    for (name, graph) in graphs.iter().filter(|(name, _)| DELTAS.contains(&name.as_str())) {
        run.least_memory(name, graph)?;
        if name.starts_with("gpt2") {
            run.largest_batch(name, graph)?;
        }
    }
    run.g10()?;
    let Run { mut bench, tally, args, .. } = run;
    bench.bar("graphs", tally.graphs as f64, Op::Exactly, 6.0);
    bench.bar("plans_of_others_ahead_of_ours", tally.behind as f64, Op::Exactly, 0.0);
    bench.bar("plans_rejected_by_the_checker", tally.rejected as f64, Op::Exactly, 0.0);
    bench.bar("longest_planning_s", tally.slowest, Op::AtMost, args.seconds);
    bench.figure("plans_of_others", tally.compared as f64);
    bench.figure("plans_of_others_ahead_of_ours_after_their_own_time", tally.behind_at_equal_time as f64);
    bench.finish()
}

fn of_ideal(graph: &Graph, step: Option<Nanos>) -> f64 {
    step.map_or(f64::NAN, |step| graph.ideal_time() as f64 / step.max(1) as f64)
}

/// Simulates and checks, so that a result means a plan that is correct.
fn judged(graph: &Graph, machine: &Machine, plan: &Plan, seconds: f64) -> Result<Point> {
    let (report, spans) = sim::timeline(graph, machine, plan)?;
    let accepted =
        check::check(graph, machine, plan).and_then(|()| check::check_timeline(graph, machine, plan, &spans));
    let problem = accepted.err().map(|violation| violation.to_string());
    Ok(Point { step: Some(report.step_ns), seconds, problem, curve: Vec::new() })
}

/// Our plan; the search ends at `seconds`, or once the step is no longer than `enough`.
fn ours(graph: &Graph, machine: &Machine, seconds: f64, enough: Nanos) -> Result<Point> {
    let began = Instant::now();
    let deadline = Some(Duration::from_secs_f64((seconds - MARGIN).max(0.1)));
    let search = Ours { seed: 1, evaluations: usize::MAX, deadline };
    let stop = |now: Progress| if now.best <= enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let found = match search.run(graph, machine, stop) {
        Ok(found) => found,
        Err(error) => {
            let seconds = began.elapsed().as_secs_f64();
            return Ok(Point { step: None, seconds, problem: Some(error.to_string()), curve: Vec::new() });
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    let curve = found.curve.iter().map(|(at, now)| (at.as_secs_f64(), now.best)).collect();
    Ok(Point { curve, ..judged(graph, machine, &found.plan, seconds)? })
}

fn other(planner: Planner, graph: &Graph, machine: &Machine, evaluations: usize) -> Result<Point> {
    let began = Instant::now();
    let search = Search { evaluations, ..Search::default() };
    match planner.plan(graph, machine, search, |_| ControlFlow::Continue(())) {
        Ok(plan) => judged(graph, machine, &plan, began.elapsed().as_secs_f64()),
        Err(error) => {
            let seconds = began.elapsed().as_secs_f64();
            Ok(Point { step: None, seconds, problem: Some(error.to_string()), curve: Vec::new() })
        }
    }
}

impl Run {
    /// Our plan at one limit, and its step after `--seconds`; at [`LONG_AT`] held against that of the long run.
    fn ours(&mut self, at: &str, graph: &Graph, part: &str, hbm: Bytes) -> Result<(Point, Option<Nanos>)> {
        let machine = points::machine(&self.profiles, hbm)?;
        let Args { seconds, long, .. } = self.args;
        let whole = if part == LONG_AT { long.max(seconds) } else { seconds };
        let key = format!("{at} ours {whole}");
        let point = self.store.get(&key, || ours(graph, &machine, whole, graph.ideal_time()))?;
        self.tally.rejected += usize::from(point.problem.is_some());
        if whole <= seconds {
            self.tally.slowest = self.tally.slowest.max(point.seconds);
            let step = point.step;
            return Ok((point, step));
        }
        let step = point.at(seconds - MARGIN);
        let (mine, most) = (of_ideal(graph, step), of_ideal(graph, point.step));
        println!("{at}: {mine:.4} of ideal after {seconds} s, {most:.4} after {whole} s");
        self.bench.bar(&format!("{at}.share_of_{whole}_s"), mine / most, Op::AtLeast, 0.95);
        Ok((point, step))
    }

    fn point(&mut self, name: &str, graph: &Graph, part: &str, hbm: Bytes) -> Result<()> {
        let machine = points::machine(&self.profiles, hbm)?;
        let evaluations = self.args.evaluations;
        let at = format!("{name}.1/{part}");
        let (point, step) = self.ours(&at, graph, part, hbm)?;
        let bound = of_ideal(graph, Some(bounds::order_free(graph, &machine)));
        let mine = of_ideal(graph, step);
        self.bench.figure(&format!("{at}.bound_any_order.of_ideal"), bound);
        let published = match part {
            "2" => Some(0.90),
            "12" => Some(0.53),
            _ => None,
        };
        match published {
            // Where no order of the operators allows it, within a tenth of what one allows.
            Some(bar) if bound < bar => {
                self.bench.bar(&format!("{at}.ours.of_ideal"), mine, Op::AtLeast, 0.9 * bound);
            }
            Some(bar) => self.bench.bar(&format!("{at}.ours.of_ideal"), mine, Op::AtLeast, bar),
            None => self.bench.figure(&format!("{at}.ours.of_ideal"), mine),
        }
        let mut line = format!("{at}: bound {bound:.3} any order; ours {mine:.3};");
        for planner in Planner::ALL.into_iter().filter(|&planner| planner != Planner::Ours) {
            let key = format!("{at} {planner} {evaluations}");
            let theirs = self.store.get(&key, || other(planner, graph, &machine, evaluations))?;
            self.bench.figure(&format!("{at}.{planner}.of_ideal"), of_ideal(graph, theirs.step));
            self.bench.figure(&format!("{at}.{planner}.plan_s"), theirs.seconds);
            let Some(other) = theirs.step else {
                line += &format!(" {planner} none;");
                continue;
            };
            self.tally.compared += 1;
            self.tally.rejected += usize::from(theirs.problem.is_some());
            self.tally.behind += usize::from(step.is_none_or(|step| step > other));
            let by_then = point.at(theirs.seconds);
            self.tally.behind_at_equal_time += usize::from(by_then.is_none_or(|step| step > other));
            line += &format!(" {planner} {:.3} in {:.2} s;", of_ideal(graph, theirs.step), theirs.seconds);
        }
        println!("{line}");
        Ok(())
    }

    /// Least memory with at most 5 and 15 % more time, by bisection over shares of the peak.
    fn least_memory(&mut self, name: &str, graph: &Graph) -> Result<()> {
        let seconds = self.args.step_seconds;
        for percent in [5u64, 15] {
            let enough = graph.ideal_time() * (100 + percent) / 100;
            // In 64ths of the peak; at the peak there is no slowdown.
            let (mut fails, mut holds) = (0u32, 64u32);
            while holds - fails > 1 {
                let middle = (fails + holds) / 2;
                let hbm = graph.peak() / 64 * u64::from(middle);
                let machine = points::machine(&self.profiles, hbm)?;
                let key = format!("{name} least {percent} {middle} {seconds}");
                let point = self.store.get(&key, || ours(graph, &machine, seconds, enough))?;
                self.tally.rejected += usize::from(point.step.is_some() && point.problem.is_some());
                if point.step.is_some_and(|step| step <= enough) { holds = middle } else { fails = middle }
            }
            let saved = 100.0 * (1.0 - f64::from(holds) / 64.0);
            self.bench.figure(&format!("{name}.memory_saved_at_{percent}_percent_slowdown.percent"), saved);
            println!("{name}: {saved:.0} % less memory at {percent} % more time (DELTA's own set-ups: 40 to 72 %)");
        }
        Ok(())
    }

    /// Largest of [`BATCHES`] times the traced batch on a device on which that batch just fits unplanned.
    fn largest_batch(&mut self, name: &str, graph: &Graph) -> Result<()> {
        let gpu = self.profiles.gpu(points::GPU)?.clone();
        let machine = points::machine(&self.profiles, graph.peak())?;
        let seconds = self.args.step_seconds;
        let (mut largest, mut quick) = (1, 1);
        for times in BATCHES {
            let scaled = points::scaled(graph, &gpu, times)?;
            if scaled.largest_op() > machine.hbm {
                break;
            }
            let key = format!("{name} batch {times} {seconds}");
            let point = self.store.get(&key, || ours(&scaled, &machine, seconds, scaled.ideal_time()))?;
            let speed = of_ideal(&scaled, point.step);
            if point.step.is_none() {
                break;
            }
            largest = times;
            self.tally.rejected += usize::from(point.problem.is_some());
            if speed >= 1.0 / 1.15 {
                quick = times;
            }
            self.bench.figure(&format!("{name}.batch_x{times}.of_ideal"), speed);
        }
        self.bench.figure(&format!("{name}.largest_batch"), largest as f64);
        self.bench.figure(&format!("{name}.largest_batch_at_15_percent_slowdown"), quick as f64);
        println!(
            "{name}: batch up to {largest} times, {quick} at 15 % more time, sizes estimated (DELTA's own: 5.5, 6)"
        );
        Ok(())
    }

    /// G10's ViT, with G10's constants.
    fn g10(&mut self) -> Result<()> {
        let path = points::recorded().map(|folder| folder.join("g10/VIT_b1280.json.gz"));
        let Some(path) = path.filter(|path| path.exists()) else {
            self.bench.environment("g10", "no recorded inputs; TENSORTIER_TRACES names their folder");
            self.bench.bar("g10.vit_b1280.ours.of_ideal", f64::NAN, Op::AtLeast, 0.80);
            return Ok(());
        };
        let workload = g10::Workload::load(&path)?;
        let graph = workload.graph()?;
        let tiers = [("g10-host", workload.host_bytes), ("g10-ssd", 1 << 42)];
        let machine = Machine::new(&self.profiles, "a100-40g", workload.hbm_bytes, "g10-pcie", &tiers)?;
        let bound = of_ideal(&graph, Some(bounds::order_free(&graph, &machine)));
        let seconds = self.args.seconds;
        let point =
            self.store.get(&format!("g10 vit {seconds}"), || ours(&graph, &machine, seconds, graph.ideal_time()))?;
        self.tally.rejected += usize::from(point.problem.is_some());
        self.tally.slowest = self.tally.slowest.max(point.seconds);
        let bar = if bound < 0.80 { 0.9 * bound } else { 0.80 };
        self.bench.bar("g10.vit_b1280.ours.of_ideal", of_ideal(&graph, point.step), Op::AtLeast, bar);
        self.bench.figure("g10.vit_b1280.bound_any_order.of_ideal", bound);
        Ok(())
    }
}
