//! How long simulating and decoding a plan of GPT2-XL takes, on one core.

use std::{path::Path, process::ExitCode, time::Instant};

use anyhow::{Context, Result};
use clap::Parser;
use tensortier_model::{Machine, Profiles};
use tensortier_planner::{
    graph::json,
    sim,
    swapadvisor::{self, Decoder, Sizes},
};
use tensortier_tests::bench::{Bench, BenchArgs, Op};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Repetitions; the median counts.
    #[arg(long, default_value_t = 101)]
    repeat: usize,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let mut bench = Bench::new("planner-speed", &args.bench);
    let profiles = Profiles::builtin();
    let gpu = profiles.gpu("v100-16g")?;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu-bridge/planner/tests/data/graphs");
    let graph = json::load(&Path::new(folder).join("gpt2-xl_b2.json.gz"), gpu)?;
    let hbm = graph.peak() / 2;
    let machine = Machine::new(&profiles, "v100-16g", hbm, "pcie4-x16", &[("dram", 1 << 40)])?;
    let order = graph.traced_order();
    bench.environment("graph", &graph.name);
    bench.environment("memory", "half of the peak");
    bench.figure("ops", graph.ops.len() as f64);
    bench.figure("storages", graph.storages.len() as f64);

    let plan = swapadvisor::global(&graph, &machine, &order)?;
    bench.figure("plan_steps", plan.steps.len() as f64);
    let report = sim::simulate(&graph, &machine, &plan)?;
    bench.figure("plan_copies", report.copies as f64);
    let simulated = median(args.repeat, || sim::simulate(&graph, &machine, &plan).map(drop))?;
    bench.bar("simulate_ms", simulated, Op::AtMost, 2.0);

    let sizes = Sizes::new(&graph, hbm);
    let shapes = sizes.defaults();
    let shape = shapes.first().context("no pools fit")?;
    let mut decoder = Decoder::new(&graph, &machine);
    let with_pools = median(args.repeat, || {
        let plan = decoder.decode(&order, Some(&sizes.pools(shape)))?;
        anyhow::Ok(sim::simulate(&graph, &machine, &plan).map(drop)?)
    })?;
    bench.bar("decode_and_simulate_ms", with_pools, Op::AtMost, 6.0);
    let global = median(args.repeat, || {
        let plan = decoder.decode(&order, None)?;
        anyhow::Ok(sim::simulate(&graph, &machine, &plan).map(drop)?)
    })?;
    bench.bar("decode_and_simulate_global_ms", global, Op::AtMost, 6.0);
    bench.finish()
}

/// Median milliseconds of `repeat` calls on this thread.
fn median<E>(repeat: usize, mut call: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut times = Vec::with_capacity(repeat);
    for _ in 0..repeat.max(1) {
        let began = Instant::now();
        call()?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
