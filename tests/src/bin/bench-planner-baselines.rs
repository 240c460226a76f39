//! Every planner on the six training graphs at four memory limits, with bounds.

use std::{ops::ControlFlow, process::ExitCode, time::Instant};

use anyhow::Result;
use clap::Parser;
use tensortier_model::{Machine, Nanos, Profiles};
use tensortier_planner::{
    bounds, check,
    graph::Graph,
    planners::Planner,
    sim,
    swapadvisor::{Found, Mode, Search},
};
use tensortier_tests::{
    bench::{Bench, BenchArgs, Op},
    points,
};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Plans that each search evaluates.
    #[arg(long, default_value_t = 1500)]
    evaluations: usize,
    /// Only graphs whose file name contains this; the bars over six graphs then cannot hold.
    #[arg(long, default_value = "")]
    only: String,
}

/// What holds over all graphs and limits.
#[derive(Default)]
struct Tally {
    graphs: usize,
    beats_seeds: usize,
    beats_odswap: usize,
    rejected: usize,
    below_bound: usize,
    rises: usize,
    moved_with_enough: usize,
    unequal_curves: usize,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let mut bench = Bench::new("planner-baselines", &args.bench);
    let profiles = Profiles::builtin();
    let began = Instant::now();
    bench.environment("gpu", points::GPU);
    bench.environment("link", "pcie4-x16, 25 GB/s each way, 10 us a copy");
    bench.environment("tier", "dram, 1 TiB");
    bench.environment("search", format!("{} evaluations, population 64, seed 1", args.evaluations));
    let search = Search { evaluations: args.evaluations, ..Search::default() };
    let mut tally = Tally::default();
    for (name, graph) in points::graphs(&profiles, &args.only)? {
        let (peak, largest) = (graph.peak(), graph.largest_op());
        println!(
            "{name}: peak {:.2} GB, largest operator {:.2} GB, unlimited {:.1} ms",
            peak as f64 / 1e9,
            largest as f64 / 1e9,
            graph.ideal_time() as f64 / 1e6
        );
        tally.graphs += 1;
        with_enough(&graph, &points::machine(&profiles, peak)?, search, &mut tally)?;
        for (part, hbm) in points::limits(&graph) {
            let machine = points::machine(&profiles, hbm)?;
            one_limit(&mut bench, &format!("{name}.1/{part}"), &graph, &machine, search, &mut tally, part == "2")?;
        }
    }
    bench.figure("seconds", began.elapsed().as_secs_f64());
    let graphs = tally.graphs as f64;
    bench.bar("graphs", graphs, Op::Exactly, 6.0);
    bench.bar("search_beats_its_seeds_at_1/2_on", tally.beats_seeds as f64, Op::Exactly, graphs);
    bench.bar("search_beats_odswap_at_1/2_on", tally.beats_odswap as f64, Op::Exactly, graphs);
    bench.bar("plans_rejected_by_the_checker", tally.rejected as f64, Op::Exactly, 0.0);
    bench.bar("plans_below_a_bound", tally.below_bound as f64, Op::Exactly, 0.0);
    bench.bar("rises_of_best_so_far", tally.rises as f64, Op::Exactly, 0.0);
    bench.bar("plans_that_move_with_memory_at_peak", tally.moved_with_enough as f64, Op::Exactly, 0.0);
    bench.bar("unequal_curves_of_equal_seeds", tally.unequal_curves as f64, Op::Exactly, 0.0);
    bench.finish()
}

fn go(_: tensortier_planner::swapadvisor::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// With memory for the peak nothing moves and the step takes the ideal time.
fn with_enough(graph: &Graph, machine: &Machine, search: Search, tally: &mut Tally) -> Result<()> {
    for planner in Planner::ALL {
        let plan = planner.plan(graph, machine, search, go)?;
        let report = sim::simulate(graph, machine, &plan)?;
        let ideal = report.copies == 0 && report.step_ns == graph.ideal_time();
        tally.moved_with_enough += usize::from(!ideal);
    }
    Ok(())
}

fn one_limit(
    bench: &mut Bench,
    name: &str,
    graph: &Graph,
    machine: &Machine,
    search: Search,
    tally: &mut Tally,
    half: bool,
) -> Result<()> {
    let of_ideal = |time: Nanos| graph.ideal_time() as f64 / time.max(1) as f64;
    let free = bounds::order_free(graph, machine);
    let fixed = bounds::order_fixed(graph, machine, &graph.traced_order());
    bench.figure(&format!("{name}.bound_any_order.of_ideal"), of_ideal(free));
    bench.figure(&format!("{name}.bound_traced_order.of_ideal"), of_ideal(fixed));
    let mut line = format!("  {name}: bounds {:.3} any order, {:.3} traced;", of_ideal(free), of_ideal(fixed));
    let mut odswap = Nanos::MAX;
    for planner in Planner::ALL {
        let began = Instant::now();
        let (plan, found) = match planner {
            Planner::SwapAdvisor | Planner::SwapAdvisorGlobal => {
                let mode = if planner == Planner::SwapAdvisor { Mode::Classes } else { Mode::Global };
                match (Search { mode, ..search }).run(graph, machine, go) {
                    Ok(found) => (Ok(found.plan.clone()), Some(found)),
                    Err(error) => (Err(error.into()), None),
                }
            }
            _ => (planner.plan(graph, machine, search, go), None),
        };
        let seconds = began.elapsed().as_secs_f64();
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                // Fixed slots need room for the largest of every class at once; the other planners do not.
                bench.environment(&format!("{name}.{planner}"), format!("no plan: {error}"));
                line += &format!(" {planner} none ({error});");
                continue;
            }
        };
        let (report, spans) = sim::timeline(graph, machine, &plan)?;
        let accepted =
            check::check(graph, machine, &plan).and_then(|()| check::check_timeline(graph, machine, &plan, &spans));
        if let Err(violation) = accepted {
            eprintln!("{name} {planner}: {violation}");
            tally.rejected += 1;
        }
        let below = report.step_ns < free || planner.keeps_order() && report.step_ns < fixed;
        tally.below_bound += usize::from(below && !planner.recomputes());
        bench.figure(&format!("{name}.{planner}.of_ideal"), of_ideal(report.step_ns));
        bench.figure(&format!("{name}.{planner}.plan_s"), seconds);
        line += &format!(" {planner} {:.3} in {seconds:.2} s;", of_ideal(report.step_ns));
        match planner {
            Planner::OdswapLru | Planner::OdswapNaive | Planner::OdswapSize => odswap = odswap.min(report.step_ns),
            _ => {}
        }
        if let Some(found) = &found {
            tally.rises += found.curve.windows(2).filter(|pair| pair[1].best > pair[0].best).count();
            if planner == Planner::SwapAdvisor && half {
                judge(graph, machine, search, found, report.step_ns, odswap, tally)?;
            }
        }
    }
    println!("{line}");
    Ok(())
}

/// Beaten means strictly faster, or both at the ideal time.
fn judge(
    graph: &Graph,
    machine: &Machine,
    search: Search,
    found: &Found,
    time: Nanos,
    odswap: Nanos,
    tally: &mut Tally,
) -> Result<()> {
    let beats = |other: Nanos| time < other || time == graph.ideal_time() && time == other;
    tally.beats_seeds += usize::from(found.seeds.iter().all(|&seed| beats(seed)));
    tally.beats_odswap += usize::from(beats(odswap));
    // A fifth of the budget is enough to show that equal seeds give equal curves.
    let short = Search { evaluations: search.evaluations / 5, ..search };
    let (one, other) = (short.run(graph, machine, go)?, short.run(graph, machine, go)?);
    tally.unequal_curves += usize::from(one.curve != other.curve || one.plan != other.plan);
    Ok(())
}
