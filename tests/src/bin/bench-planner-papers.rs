//! The planners of the DTR, DELTA and G10 papers against recorded results.
//!
//! The recorded inputs are not part of the repository; `--traces` or the variable TENSORTIER_TRACES names their folder.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use comfy_table::{Table, presets};
use tensortier_model::Profiles;
use tensortier_planner::{
    delta::{AsReleased, Backing, Config, Delta, Switches},
    dtr::{Dtr, Heuristic, OpLog, Outcome, Runtime, Stop},
    g10,
    graph::{Liveness, json},
    knapsack::{Item, cover, cover_exact},
    traces,
};
use tensortier_tests::{
    bench::{Bench, BenchArgs, Op},
    golden::{self, G10, Golden},
};

/// DTR's golden numbers, DELTA against DTR, the knapsack against dynamic programming, G10's plans and times.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Folder of the recorded inputs, with `dtr` and `g10` in it.
    #[arg(long, value_name = "DIR", env = traces::VARIABLE)]
    traces: Option<PathBuf>,
}

const RATIOS: [f64; 8] = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2];
/// The link for which DELTA is held against DTR, bytes/s.
const LINK: f64 = 12e9;
const LOGS: [&str; 6] = ["resnet32", "unet", "inceptionv4", "lstm", "treelstm", "unroll_gan"];
/// The logs on which DELTA's parts are switched off one by one.
const ABLATED: [&str; 3] = ["resnet32", "unet", "inceptionv4"];

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let Some(dir) = args.traces.or_else(|| traces::find(Path::new(env!("CARGO_MANIFEST_DIR")))) else {
        bail!(
            "nothing to compare with: no recorded inputs. Name their folder with --traces DIR or {}, or put it at \
             shared/traces beside the repository",
            traces::VARIABLE
        );
    };
    let mut bench = Bench::new("planner-papers", &args.bench);
    let mut logs = Vec::new();
    for name in LOGS {
        let log = OpLog::load(&dir.join("dtr").join(format!("{name}.log.gz")))?;
        logs.push((name, log));
    }
    dtr(&mut bench, &logs);
    delta(&mut bench, &logs);
    ablation(&mut bench, &logs);
    knapsack(&mut bench)?;
    for expected in golden::G10_RESULTS {
        g10(&mut bench, &dir.join("g10"), expected)?;
    }
    bench.finish()
}

fn budget(log: &OpLog, ratio: f64) -> u64 {
    (log.peak_bytes() as f64 * ratio) as u64
}

fn run_dtr(log: &OpLog, ratio: f64, heuristic: Heuristic) -> Outcome {
    Runtime::new(log, budget(log, ratio), Dtr::new(log, heuristic)).remat_limit(log.base_ns).run()
}

/// Time over base time as the golden table prints it.
fn printed(outcome: &Outcome) -> String {
    match (outcome.stop, outcome.overhead()) {
        (Some(Stop::RematLimit), _) => ">2".to_owned(),
        (Some(Stop::OutOfMemory { .. }), _) => "OOM".to_owned(),
        (None, overhead) => overhead.map_or_else(|| "-".to_owned(), |o| format!("{o:.4}")),
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    table
}

fn dtr(bench: &mut Bench, logs: &[(&str, OpLog)]) {
    println!("DTR: time over base time by budget over peak; ours, and the authors' simulator where it differs");
    let mut rows = table(&["log, cost", "0.9", "0.8", "0.7", "0.6", "0.5", "0.4", "0.3", "0.2"]);
    for Golden { log: name, sizes, results } in golden::DTR {
        let Some((_, log)) = logs.iter().find(|l| l.0 == *name) else { continue };
        let ours = [log.peak_bytes(), log.base_ns, log.constant_bytes(), log.largest_op_bytes()];
        let off = ours.iter().zip(sizes).filter(|(a, b)| a != b).count();
        bench.bar(&format!("dtr.{name}.sizes_that_differ"), off as f64, Op::Exactly, 0.0);
        for (heuristic, expected) in *results {
            let mut row = vec![format!("{name} {}", heuristic.name())];
            let mut off = 0;
            for (ratio, golden) in RATIOS.iter().zip(*expected) {
                let ours = printed(&run_dtr(log, *ratio, *heuristic));
                let same = golden.is_empty() || ours == *golden;
                off += usize::from(!same);
                row.push(if same { ours } else { format!("{ours} ({golden})") });
            }
            rows.add_row(row);
            bench.bar(&format!("dtr.{name}.{}.cells_that_differ", heuristic.name()), off as f64, Op::Exactly, 0.0);
        }
    }
    println!("{rows}\nno log here: {}\n", golden::DTR_WITHOUT_LOG.join(", "));
}

/// Geometric mean of what was added.
#[derive(Default)]
struct GeoMean {
    logs: f64,
    count: u32,
}

impl GeoMean {
    fn add(&mut self, value: f64) {
        self.logs += value.ln();
        self.count += 1;
    }

    fn mean(&self) -> f64 {
        (self.logs / f64::from(self.count)).exp()
    }
}

fn delta(bench: &mut Bench, logs: &[(&str, OpLog)]) {
    println!("DELTA over a link of 12 GB/s against DTR (classes); the published DELTA code beside");
    let mut rows = table(&["log", "budget/peak", "DTR", "DELTA", "DELTA/DTR", "as released", "its peak/budget"]);
    let (mut mean, mut exceptions, mut only_delta, mut only_dtr) = (GeoMean::default(), Vec::new(), 0, 0);
    let (mut swaps, mut decisions) = (0, 0);
    for (name, log) in logs {
        for ratio in RATIOS {
            let dtr = run_dtr(log, ratio, Heuristic::Classes);
            let (ours, _) = run_delta(log, ratio, Config::with_link(LINK));
            let runtime = Runtime::new(log, budget(log, ratio), AsReleased::new(log, LINK));
            let (released, policy) = runtime.remat_limit(log.base_ns).run_with_policy();
            swaps += policy.swaps;
            decisions += policy.swaps + policy.drops;
            let over = match (ours.overhead(), dtr.overhead()) {
                (Some(a), Some(b)) => {
                    mean.add(a / b);
                    if a > b {
                        exceptions.push(format!("{name} {ratio}: {:.4}", a / b));
                    }
                    format!("{:.4}", a / b)
                }
                (Some(_), None) => {
                    only_delta += 1;
                    "only DELTA ends".to_owned()
                }
                (None, Some(_)) => {
                    only_dtr += 1;
                    exceptions.push(format!("{name} {ratio}: only DTR ends"));
                    "only DTR ends".to_owned()
                }
                (None, None) => "neither ends".to_owned(),
            };
            let soft = released.peak_bytes as f64 / budget(log, ratio) as f64;
            rows.add_row([
                (*name).to_owned(),
                ratio.to_string(),
                printed(&dtr),
                printed(&ours),
                over,
                printed(&released),
                format!("{soft:.2}"),
            ]);
        }
    }
    println!("{rows}");
    println!("slower than DTR: {}\n", if exceptions.is_empty() { "none".to_owned() } else { exceptions.join(", ") });
    bench.bar("delta.time_over_dtr_geomean", mean.mean(), Op::AtMost, 1.0);
    bench.figure("delta.cells_compared", f64::from(mean.count));
    bench.figure("delta.cells_slower_than_dtr", exceptions.len() as f64);
    bench.figure("delta.cells_only_delta_ends", f64::from(only_delta));
    bench.figure("delta.cells_only_dtr_ends", f64::from(only_dtr));
    bench.bar("delta_as_released.swapped_share", swaps as f64 / f64::from(decisions as u32), Op::AtLeast, 0.99);
}

fn run_delta(log: &OpLog, ratio: f64, config: Config) -> (Outcome, Delta) {
    Runtime::new(log, budget(log, ratio), Delta::new(log, config)).remat_limit(log.base_ns).run_with_policy()
}

/// What each part of DELTA is worth: time without it over time with all, where both end.
fn ablation(bench: &mut Bench, logs: &[(&str, OpLog)]) {
    let all = Switches::ALL;
    let without = [
        ("knapsack", Switches { knapsack: false, ..all }),
        ("swap", Switches { swap: false, ..all }),
        ("recompute", Switches { recompute: false, ..all }),
        ("offload_ahead", Switches { offload_ahead: false, ..all }),
        ("reload_ahead", Switches { reload_ahead: false, ..all }),
        ("recompute_ahead", Switches { recompute_ahead: false, ..all }),
    ];
    let mut means: Vec<GeoMean> = without.iter().map(|_| GeoMean::default()).collect();
    let (mut small_dram, mut cxl_bytes) = (GeoMean::default(), 0);
    for (_, log) in logs.iter().filter(|l| ABLATED.contains(&l.0)) {
        for ratio in [0.8, 0.6, 0.4] {
            let base = Config::with_link(LINK);
            let Some(with_all) = run_delta(log, ratio, base).0.overhead() else { continue };
            for ((_, switches), mean) in without.iter().zip(&mut means) {
                let outcome = run_delta(log, ratio, Config { switches: *switches, ..base }).0;
                if let Some(time) = outcome.overhead() {
                    mean.add(time / with_all);
                }
            }
            // A twentieth of the peak in DRAM, the rest on a card slower than the link.
            let dram = Backing { bytes: log.peak_bytes() / 20, ..base.dram };
            let cxl = Some(Backing::behind_link(LINK * 0.75));
            let (outcome, policy) = run_delta(log, ratio, Config { dram, cxl, ..base });
            cxl_bytes += policy.counts().out_bytes.1;
            if let Some(time) = outcome.overhead() {
                small_dram.add(time / with_all);
            }
        }
    }
    for ((name, _), mean) in without.iter().zip(&means) {
        bench.figure(&format!("delta.time_without_{name}_over_all_geomean"), mean.mean());
    }
    bench.figure("delta.time_small_dram_and_cxl_over_dram_geomean", small_dram.mean());
    bench.figure("delta.cxl_out_bytes", cxl_bytes as f64);
}

/// The knapsack on every graph at its peak: free half of what is live, give up what its operators computed there.
fn knapsack(bench: &mut Bench) -> Result<()> {
    let gpu = Profiles::builtin().gpu("a100-40g")?.clone();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu-bridge/planner/tests/data/graphs");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .with_context(|| format!("cannot list {}", folder.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    paths.sort();
    let (mut worst_kept, mut worst_cost) = (1.0f64, 1.0f64);
    for path in &paths {
        let graph = json::load(path, &gpu)?;
        let live = Liveness::new(&graph, &graph.traced_order());
        let curve = live.curve(&graph);
        let peak = (0..curve.len()).max_by_key(|&i| curve[i]).unwrap_or(0);
        let mut cost = vec![0.0; graph.storages.len()];
        for op in &graph.ops {
            op.writes.iter().for_each(|&s| cost[s] += op.time as f64);
        }
        let at_peak = |&s: &usize| live.span(&graph, s).is_some_and(|(a, b)| a <= peak && peak <= b);
        let temporary = |&s: &usize| !graph.storages[s].kind.is_persistent();
        let storages = (0..graph.storages.len()).filter(at_peak).filter(temporary);
        let items: Vec<Item> = storages.map(|s| Item { bytes: graph.storages[s].bytes, cost: cost[s] }).collect();
        let need = items.iter().map(|i| i.bytes).sum::<u64>() / 2;
        let unit = items.iter().map(|i| i.bytes).fold(need, gcd).max(need >> 16);
        let found = cover(&items, need, 1).context("half of the items is always coverable")?;
        let exact = cover_exact(&items, need, unit).context("a table of 2^16 columns fits")?;
        let total: f64 = items.iter().map(|i| i.cost).sum();
        worst_kept = worst_kept.min((total - found.cost) / (total - exact.cost));
        worst_cost = worst_cost.max(found.cost / exact.cost);
        bench.bar(
            &format!("knapsack.{}.bytes_over_need", graph.name),
            found.bytes as f64 / need as f64,
            Op::AtLeast,
            1.0,
        );
    }
    bench.bar("knapsack.worst_kept_over_exact", worst_kept, Op::AtLeast, 0.5);
    bench.figure("knapsack.worst_cost_over_exact", worst_cost);
    bench.figure("knapsack.graphs", paths.len() as f64);
    Ok(())
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn g10(bench: &mut Bench, dir: &Path, expected: &G10) -> Result<()> {
    let name = expected.name;
    let w = g10::Workload::load(&dir.join(format!("{name}.json.gz")))?;
    let theirs = g10::Plan::load(&dir.join("plans").join(format!("{name}.plan.json.gz")), &w)?;
    let ours = g10::plan(&w, &g10::Profile::g10(&w));
    let found = g10::compare(&ours, &theirs);
    println!(
        "G10 {name}: {} of {} departures to the same tier, {} returning at the same kernel; differences: {}",
        found.same,
        theirs.moves.len(),
        found.same_return,
        if found.differences.is_empty() { "none" } else { "" }
    );
    found.differences.iter().for_each(|d| println!("  {d:?}"));
    let off = |(a, b): (u64, u64)| a.abs_diff(b) as f64;
    bench.bar(&format!("g10.{name}.far_bytes_off"), off(found.far_bytes), Op::Exactly, 0.0);
    bench.bar(&format!("g10.{name}.host_bytes_off"), off(found.host_bytes), Op::Exactly, 0.0);
    bench.figure(&format!("g10.{name}.moves_that_differ"), found.differences.len() as f64);
    let curves = ours.gpu_bytes_before_moves == theirs.gpu_bytes_before_moves
        && ours.gpu_bytes_after_moves == theirs.gpu_bytes_after_moves
        && ours.gpu_bytes_after_prefetch_advance == theirs.gpu_bytes_after_prefetch_advance;
    bench.figure(&format!("g10.{name}.memory_curves_equal"), f64::from(u8::from(curves)));

    let run = g10::simulate(&w, &ours, &g10::Profile::g10_runtime(&w))?;
    bench.bar(
        &format!("g10.{name}.ratio_to_ideal_off"),
        (run.ratio() - expected.ratio).abs(),
        Op::AtMost,
        golden::G10_TOLERANCE,
    );
    bench.figure(&format!("g10.{name}.ratio_to_ideal"), run.ratio());
    bench.figure(&format!("g10.{name}.iteration_s"), run.iteration_us / 1e6);
    bench.figure(&format!("g10.{name}.iteration_s_published"), expected.iteration_s);
    let nothing = g10::simulate(&w, &g10::Plan::default(), &g10::Profile::g10_runtime(&w))?;
    bench.figure(&format!("g10.{name}.ratio_to_ideal_without_plan"), nothing.ratio());
    let p = g10::Profile::cxl(&w);
    let cxl = g10::plan(&w, &p);
    let run = g10::simulate(&w, &cxl, &p)?;
    bench.figure(&format!("g10.{name}.ratio_to_ideal_cxl_for_ssd"), run.ratio());
    bench.figure(&format!("g10.{name}.cxl_bytes"), cxl.bytes_to(g10::Backing::Far) as f64);
    Ok(())
}
