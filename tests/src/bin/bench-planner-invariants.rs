//! Random graphs and crossovers by the hundred thousand: every plan correct, every child valid.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rayon::prelude::*;
use tensortier_model::{Machine, Profiles};
use tensortier_planner::{
    bounds, check,
    graph::random,
    sim,
    swapadvisor::{
        self, Decoder, Sizes,
        genes::{Genes, child, is_valid_order, successors},
    },
};
use tensortier_tests::bench::{Bench, BenchArgs, Op};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Random graphs; each also has one crossover a generation, for so many generations as there are.
    #[arg(long, default_value_t = 100_000)]
    graphs: u64,
    /// Start of the random streams.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Default, Clone, Copy)]
struct Tally {
    graphs: u64,
    crossovers: u64,
    plans_with_copies: u64,
    violations: u64,
}

impl Tally {
    fn plus(self, other: Self) -> Self {
        Self {
            graphs: self.graphs + other.graphs,
            crossovers: self.crossovers + other.crossovers,
            plans_with_copies: self.plans_with_copies + other.plans_with_copies,
            violations: self.violations + other.violations,
        }
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let mut bench = Bench::new("planner-invariants", &args.bench);
    bench.environment("seed", args.seed);
    let tiers = [("dram", 1 << 40), ("cxl-asic", 1 << 40)];
    let machine = Machine::new(&Profiles::builtin(), "v100-16g", 0, "pcie4-x16", &tiers)?;
    let tally = (0..args.graphs)
        .into_par_iter()
        .map(|at| one(args.seed.wrapping_mul(1_000_003).wrapping_add(at), machine.clone()))
        .reduce(Tally::default, Tally::plus);
    bench.figure("plans_with_copies", tally.plans_with_copies as f64);
    bench.bar("random_graphs", tally.graphs as f64, Op::AtLeast, 1e5);
    bench.bar("crossovers", tally.crossovers as f64, Op::AtLeast, 1e5);
    bench.bar("violations", tally.violations as f64, Op::Exactly, 0.0);
    bench.finish()
}

fn one(seed: u64, mut machine: Machine) -> Tally {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let size = rng.random_range(1..40);
    let graph = random::graph(&mut rng, size);
    let (least, peak) = (graph.largest_op(), graph.peak());
    machine.hbm = rng.random_range(least..=peak.max(least));
    machine.tiers[0].capacity = rng.random_range(0..200_000);
    let mut tally = Tally { graphs: 1, ..Tally::default() };
    let fail = |what: String, tally: &mut Tally| {
        eprintln!("seed {seed}: {what}");
        tally.violations += 1;
    };
    let free = bounds::order_free(&graph, &machine);
    let judge = |plan: &tensortier_planner::Plan| -> Result<sim::Report> {
        check::check(&graph, &machine, plan)?;
        let (report, spans) = sim::timeline(&graph, &machine, plan)?;
        check::check_timeline(&graph, &machine, plan, &spans)?;
        anyhow::ensure!(report.step_ns >= free, "faster than the bound over all orders");
        let ideal = report.copies == 0 && report.step_ns == graph.ideal_time();
        anyhow::ensure!(plan.pools.is_some() || machine.hbm < peak || ideal, "moves although everything fits");
        Ok(report)
    };
    let order = graph.traced_order();
    match swapadvisor::global(&graph, &machine, &order).map_err(Into::into).and_then(|plan| judge(&plan)) {
        Ok(report) => tally.plans_with_copies += u64::from(report.copies > 0),
        Err(error) => fail(format!("{error:#}"), &mut tally),
    }
    let sizes = Sizes::new(&graph, machine.hbm);
    let after = successors(&graph);
    let shapes = sizes.defaults();
    let shape = |at: usize| shapes.get(at % shapes.len().max(1)).cloned();
    let mut parents = [0, 1].map(|at| Genes { order: order.clone(), shape: shape(at) });
    let mut decoder = Decoder::new(&graph, &machine);
    for turn in 0..2 {
        let young = child(&graph, &after, &sizes, &parents[0], &parents[1], &mut rng);
        tally.crossovers += 1;
        if !is_valid_order(&graph, &young.order) {
            fail("a child's order breaks an edge".into(), &mut tally);
        }
        let pools = young.shape.as_ref().map(|shape| sizes.pools(shape));
        match decoder.decode(&young.order, pools.as_ref()) {
            Ok(plan) => {
                if let Err(error) = check::check(&graph, &machine, &plan) {
                    fail(format!("{error}"), &mut tally);
                }
            }
            Err(error) => fail(format!("{error}"), &mut tally),
        }
        parents[turn % 2] = young;
    }
    tally
}
