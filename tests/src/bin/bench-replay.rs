//! policies on generated jobs against the offline optimum, the best fixed set and nine baselines
//!
//! Every generator of tensortier-replay runs under every policy, with so much of its memory as DRAM. The first ten steps
//! are warm-up. Costs are those that the optimum minimises, accesses and moves; step times are modelled with both tiers
//! at work at once. Each bar is held by the worst of the seeds.
//!
//! Random routing runs for 1,000 steps, the others for 30. In a short run the best fixed set in hindsight is best by
//! luck: of 64 experts that are routed to alike, the half that got most of 20 steps' draws got a fifth more than its
//! share, which nobody can know ahead.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use comfy_table::{Table, presets};
use tensortier_model::Profiles;
use tensortier_replay::{
    baseline,
    cost::Costs,
    generate::{self, Generator, Spec},
    policies,
    policy::Policy,
    score::Case,
    sim::Totals,
    step::judge,
    workload::Workload,
};
use tensortier_tests::bench::{Bench, BenchArgs, Op};

/// Steps before anything is counted.
const WARM_UP: usize = 10;
/// Rules of recency, whose ratio on the optimizer's sweep stands beside ours.
const RECENCY: [&str; 4] = ["LRU-2Q", "NUMA balancing", "TPP", "memtierd heat"];

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Only generators whose name has this in it.
    #[arg(long, default_value = "")]
    only: String,
    /// DRAM as a share of the most that lives at once.
    #[arg(long, default_value_t = 0.5)]
    dram: f64,
    /// Seeds, from 1 on.
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// The lower tier's profile.
    #[arg(long, default_value = "cxl-asic")]
    profile: String,
}

/// One generator and seed: what every policy came to.
struct Field {
    policies: BTreeMap<String, Totals>,
    optimum: Totals,
    fixed: Totals,
    recorded: f64,
    accessed: f64,
    /// How far the learned period is from the script's own, the worst of its jobs; none where it was learned in no step.
    off: f64,
}

impl Field {
    fn of(generator: &Generator, seed: u64, args: &Args, costs: &Costs) -> Self {
        let steps = if routed(generator) { 1000 } else { 30 };
        let workload = generator.make(&Spec { seed, steps, ..Spec::default() });
        let capacity = (workload.footprint() as f64 * args.dram) as u64 >> 28 << 28;
        let case = Case::new(&workload, costs, capacity, workload.after_steps(WARM_UP));
        let ours = policies::NAMES.iter().filter_map(|name| policies::find(name, costs));
        let all = baseline::all(costs, workload.regions.len()).into_iter().chain(ours);
        let run = |mut policy: Box<dyn Policy>| (policy.name(), case.totals(policy.as_mut()));
        Self {
            policies: all.map(run).collect(),
            optimum: case.optimum(),
            fixed: case.best_fixed(),
            recorded: case.recorded() as f64,
            accessed: case.accessed() as f64,
            off: if generator.periodic { period_off(&workload) } else { 0.0 },
        }
    }

    /// The least of the baselines.
    fn best(&self, of: fn(&Totals) -> f64) -> f64 {
        let theirs = self.policies.iter().filter(|(name, _)| !policies::NAMES.contains(&name.as_str()));
        theirs.map(|(_, totals)| of(totals)).fold(f64::INFINITY, f64::min)
    }
}

/// How far the median of the periods learned in steps 5 to 15 is from the script's own mean; infinite where one job has
/// none in most of them.
fn period_off(workload: &Workload) -> f64 {
    let off = |job: usize| {
        let known: Vec<f64> = judge::ratios(workload, job as u32)[4..15].iter().flatten().copied().collect();
        let middle = judge::median(known.iter().copied()).filter(|_| known.len() > 5);
        middle.map_or(f64::INFINITY, |middle| (middle - 1.0).abs())
    };
    (0..workload.steps.len()).map(off).fold(0.0, f64::max)
}

/// Whether its accesses are drawn at random from chances that stay as they are.
fn routed(generator: &Generator) -> bool {
    !generator.periodic && generator.name != "rotating"
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let costs = Costs::new(&Profiles::builtin(), &args.profile).context("--profile")?;
    let mut bench = Bench::new("replay", &args.bench);
    bench.environment("dram_share", args.dram);
    bench.environment("seeds", args.seeds);
    bench.environment("profile", &args.profile);
    let (mut cost, mut time, mut moved) = (Matrix::default(), Matrix::default(), Matrix::default());
    for generator in generate::ALL.iter().filter(|generator| generator.name.contains(&args.only)) {
        let fields: Vec<Field> = (1..=args.seeds).map(|seed| Field::of(generator, seed, &args, &costs)).collect();
        bars(&mut bench, generator, &fields);
        for field in &fields {
            let all = field.policies.iter().map(|(name, totals)| (name.as_str(), totals));
            for (name, totals) in all.chain([("best fixed", &field.fixed), ("optimum", &field.optimum)]) {
                cost.put(name, generator.name, totals.cost_ns / field.optimum.cost_ns);
                time.put(name, generator.name, totals.time_ns / field.recorded);
                moved.put(name, generator.name, 100.0 * totals.moved as f64 / field.accessed);
            }
        }
    }
    println!("Cost over the offline optimum:\n{}\n", cost.table(3));
    println!("Modelled time over that with all memory in DRAM:\n{}\n", time.table(3));
    println!("Bytes moved, % of the bytes accessed:\n{}\n", moved.table(2));
    bench.finish()
}

/// Bars of one generator, each with the worst of the seeds.
fn bars(bench: &mut Bench, generator: &Generator, fields: &[Field]) {
    let name = generator.name;
    let worst = |of: &dyn Fn(&Field, &Totals) -> f64| {
        fields.iter().map(|field| of(field, &field.policies["auto"])).fold(f64::NEG_INFINITY, f64::max)
    };
    if generator.periodic {
        let off = fields.iter().map(|field| field.off).fold(0.0, f64::max);
        bench.bar(&format!("{name}: learned period off the script's mean, steps 5 to 15"), off, Op::AtMost, 0.02);
        let over = worst(&|field, auto| auto.cost_ns / field.optimum.cost_ns);
        bench.bar(&format!("{name}: auto's cost over the optimum"), over, Op::AtMost, 1.10);
        let allowed = |field: &Field| 1.10 * field.optimum.moved as f64 + 0.01 * field.accessed;
        let over = worst(&|field, auto| auto.moved as f64 / allowed(field));
        bench.bar(&format!("{name}: bytes moved over 1.10 × the optimum's + 1 %"), over, Op::AtMost, 1.0);
    }
    if routed(generator) {
        let over = worst(&|field, auto| auto.cost_ns / field.fixed.cost_ns);
        bench.bar(&format!("{name}: auto's cost over the best fixed set"), over, Op::AtMost, 1.05);
    }
    let (what, of): (_, fn(&Totals) -> f64) =
        if generator.streaming { ("step time", |t| t.time_ns) } else { ("cost", |t| t.cost_ns) };
    let over = worst(&|field, auto| of(auto) / field.best(of));
    bench.bar(&format!("{name}: auto's {what} over the best baseline's"), over, Op::AtMost, 1.02);
    if name == "optimizer" {
        for recency in RECENCY {
            let over = worst(&|field, _| field.policies[recency].cost_ns / field.optimum.cost_ns);
            bench.figure(&format!("{name}: {recency}'s cost over the optimum"), over);
        }
    }
}

/// A value for each policy and generator: the mean over the seeds.
#[derive(Default)]
struct Matrix {
    columns: Vec<&'static str>,
    rows: Vec<String>,
    cells: BTreeMap<(String, &'static str), (f64, f64)>,
}

impl Matrix {
    fn put(&mut self, row: &str, column: &'static str, value: f64) {
        if !self.columns.contains(&column) {
            self.columns.push(column);
        }
        if !self.rows.iter().any(|known| known == row) {
            self.rows.push(row.to_owned());
        }
        let cell = self.cells.entry((row.to_owned(), column)).or_default();
        *cell = (cell.0 + value, cell.1 + 1.0);
    }

    fn table(&self, digits: usize) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([""].iter().chain(&self.columns));
        for row in &self.rows {
            let cell = |column: &&'static str| {
                let cell = self.cells.get(&(row.clone(), *column));
                cell.map_or(String::new(), |(sum, count)| format!("{:.digits$}", sum / count))
            };
            table.add_row(std::iter::once(row.clone()).chain(self.columns.iter().map(cell)));
        }
        table
    }
}
