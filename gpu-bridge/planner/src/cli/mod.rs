//! `tensortier plan`: a graph and a machine in, a checked plan with its figures out.

mod chart;
#[cfg(test)]
mod tests;

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use bytesize::ByteSize;
use clap::Args;
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tensortier_model::{Bytes, Machine, Nanos, Profiles, TierKind};

use crate::{
    bounds, check,
    graph::{Graph, json},
    planners::Planner,
    sim::{self, Report},
    swapadvisor::Search,
};

/// Plans which tensors of a training step leave GPU memory, where to and when.
#[derive(Args, Debug, Clone)]
pub struct PlanArgs {
    /// Graph of a training step, as scripts/trace-torch writes it; may be gzipped.
    pub graph: PathBuf,
    /// GPU profile; an unknown name lists those there are.
    #[arg(long, default_value = "a100-40g")]
    pub gpu: String,
    /// GPU memory that the plan may use; the whole of the GPU's by default.
    #[arg(long, value_name = "SIZE")]
    pub hbm: Option<ByteSize>,
    /// Host DRAM that the plan may use.
    #[arg(long, value_name = "SIZE", default_value = "256GiB")]
    pub dram: ByteSize,
    /// CXL memory that the plan may use; none by default.
    #[arg(long, value_name = "SIZE")]
    pub cxl: Option<ByteSize>,
    /// Profile of the link between GPU and host.
    #[arg(long, default_value = "pcie4-x16")]
    pub link: String,
    /// Profile of the CXL memory.
    #[arg(long, value_name = "NAME", default_value = "cxl-asic")]
    pub cxl_profile: String,
    /// TOML file with further profiles, or measured ones under the same names.
    #[arg(long, value_name = "FILE")]
    pub profiles: Option<PathBuf>,
    /// Planner; an unknown name lists those there are.
    #[arg(long, default_value = "ours")]
    pub planner: Planner,
    /// Seed of a search.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Plans that a search evaluates.
    #[arg(long, default_value_t = 2000)]
    pub evaluations: usize,
    /// Seconds after which a search takes what it has.
    #[arg(long, value_name = "SECONDS")]
    pub deadline: Option<u64>,
    /// Writes the plan as JSON.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Writes the timeline (memory, streams, tiers) as SVG, or as HTML where the name ends so.
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
    /// Prints the figures as JSON.
    #[arg(long)]
    pub json: bool,
}

/// The figures of a plan.
#[derive(Debug, Serialize)]
struct Figures {
    graph: String,
    planner: String,
    gpu: String,
    hbm_bytes: Bytes,
    peak_bytes: Bytes,
    ideal_ns: Nanos,
    of_ideal: f64,
    bound_order_fixed_ns: Nanos,
    bound_order_free_ns: Nanos,
    plan_seconds: f64,
    tiers: Vec<String>,
    #[serde(flatten)]
    report: Report,
}

/// Plans, checks the plan, and gives the text to print: a table, or JSON with `--json`.
///
/// # Errors
/// Files, profiles or graphs that are not valid; memory too small for the planner.
pub fn run(args: &PlanArgs) -> Result<String> {
    let mut profiles = Profiles::builtin();
    if let Some(path) = &args.profiles {
        profiles.extend_from_file(path)?;
    }
    let gpu = profiles.gpu(&args.gpu)?;
    let graph = json::load(&args.graph, gpu)?;
    let hbm = args.hbm.map_or(gpu.memory_bytes, |size| size.as_u64());
    let mut tiers = vec![("dram", args.dram.as_u64())];
    tiers.extend(args.cxl.map(|size| (args.cxl_profile.as_str(), size.as_u64())));
    let machine = Machine::new(&profiles, &args.gpu, hbm, &args.link, &tiers)?;

    let began = Instant::now();
    let plan = {
        let bar = progress(args.evaluations);
        let search = Search {
            seed: args.seed,
            evaluations: args.evaluations,
            deadline: args.deadline.map(Duration::from_secs),
            ..Search::default()
        };
        let found = args.planner.plan(&graph, &machine, search, |now| {
            bar.set_position(now.evaluations as u64);
            bar.set_message(format!("step {}", millis(now.best)));
            ControlFlow::Continue(())
        });
        bar.finish_and_clear();
        found.with_context(|| no_plan(&graph, &machine, args.planner))?
    };
    let plan_seconds = began.elapsed().as_secs_f64();
    check::check(&graph, &machine, &plan).context("the planner made a plan that its checker rejects")?;
    let (report, spans) = sim::timeline(&graph, &machine, &plan)?;
    check::check_timeline(&graph, &machine, &plan, &spans).context("the simulated times are impossible")?;

    if let Some(path) = &args.plan {
        write(path, &plan.to_json())?;
    }
    if let Some(path) = &args.timeline {
        let svg = chart::svg(&graph, &machine, &plan, &spans, &report)?;
        let html = path.extension().is_some_and(|end| end == "html" || end == "htm");
        write(path, &if html { chart::html(&graph.name, &svg) } else { svg })?;
    }
    let order: Vec<_> = plan.order().collect();
    let figures = Figures {
        graph: graph.name.clone(),
        planner: plan.planner.clone(),
        gpu: args.gpu.clone(),
        hbm_bytes: hbm,
        peak_bytes: graph.peak(),
        ideal_ns: graph.ideal_time(),
        of_ideal: graph.ideal_time() as f64 / report.step_ns.max(1) as f64,
        bound_order_fixed_ns: bounds::order_fixed(&graph, &machine, &order),
        bound_order_free_ns: bounds::order_free(&graph, &machine),
        plan_seconds,
        tiers: machine.tiers.iter().map(|tier| tier.profile.name.clone()).collect(),
        report,
    };
    if args.json {
        return Ok(serde_json::to_string_pretty(&figures)? + "\n");
    }
    Ok(table(&figures, &machine))
}

fn no_plan(graph: &Graph, machine: &Machine, planner: Planner) -> String {
    format!(
        "{planner} has no plan for {} in {} of GPU memory (its largest operator needs {}, its peak is {}): \
         give more with --hbm, or more --dram or --cxl, or another --planner",
        graph.name,
        size(machine.hbm),
        size(graph.largest_op()),
        size(graph.peak()),
    )
}

fn table(figures: &Figures, machine: &Machine) -> String {
    let report = &figures.report;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("graph", figures.graph.clone());
    row("planner", figures.planner.clone());
    row("GPU memory", format!("{} of a peak of {}", size(figures.hbm_bytes), size(figures.peak_bytes)));
    row("step", format!("{} ({:.1} % of unlimited memory)", millis(report.step_ns), 100.0 * figures.of_ideal));
    row("unlimited", millis(figures.ideal_ns));
    row("bound, this order", millis(figures.bound_order_fixed_ns));
    row("bound, any order", millis(figures.bound_order_free_ns));
    let again = report.compute_ns.saturating_sub(figures.ideal_ns);
    if again > 0 {
        row("recomputed", format!("{}; the bounds are for plans that do not", millis(again)));
    }
    row("copies", report.copies.to_string());
    for (at, tier) in machine.tiers.iter().enumerate() {
        let kind = match tier.profile.kind {
            TierKind::Dram => "DRAM",
            TierKind::Cxl => "CXL",
            TierKind::Ssd => "SSD",
        };
        let (out, back) = (size(report.bytes_out[at]), size(report.bytes_in[at]));
        row(kind, format!("{out} out, {back} in, at most {} kept", size(report.tier_peak[at])));
    }
    row("planned in", format!("{:.2} s", figures.plan_seconds));
    format!("{table}\n")
}

fn progress(evaluations: usize) -> ProgressBar {
    let bar = ProgressBar::new(evaluations as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} plans, {msg}, {eta} left") {
        bar.set_style(style);
    }
    bar
}

fn size(bytes: Bytes) -> String {
    ByteSize(bytes).display().iec().to_string()
}

fn millis(ns: Nanos) -> String {
    format!("{:.2} ms", ns as f64 / 1e6)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
