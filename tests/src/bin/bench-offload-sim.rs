//! A training step that offloads, simulated: ZeRO-Infinity on drives against the bridge on DRAM and CXL cards.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use comfy_table::{Table, presets};
use tensortier_bridge::offload::{
    host::Host,
    infinity::{self, Settings},
    step::{Outcome, simulate},
    tiered::{self, Parts},
    workload::Workload,
};
use tensortier_tests::bench::{Bench, BenchArgs, Op};

/// Models by (layers, width): 6.4, 12.6 and 29.6 billion parameters.
const MODELS: [(u64, u64); 3] = [(32, 4096), (40, 5120), (48, 7168)];
/// What the paper reports, on its own hardware: throughput and model size as factors, latency as a share taken off.
const PAPER: [(&str, f64); 3] = [("throughput_gain", 0.727), ("latency_cut", 0.629), ("larger_model", 1.14)];

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Tokens of a step on each GPU.
    #[arg(long, default_value_t = 8192)]
    tokens: u64,
}

struct Row {
    name: String,
    outcome: Outcome,
    largest: f64,
    /// Whether the model fits; otherwise the times are those of a host that had room.
    fits: bool,
    ahead: usize,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let mut bench = Bench::new("offload-sim", &args.bench);
    bench.environment(
        "simulated",
        "nothing was measured on hardware; figures and sources: gpu-bridge/src/offload/*.toml",
    );
    bench.environment("tokens", args.tokens);
    let (mut least, mut possible) = (f64::INFINITY, true);
    for gpus in [1, 8] {
        for (layers, hidden) in MODELS {
            let work = Workload { layers, hidden, tokens: args.tokens };
            let name = format!("{gpus}gpu.{:.1}b", work.parameters() as f64 / 1e9);
            let rows = rows(gpus, &work)?;
            print(&name, &work, gpus, &rows);
            for row in &rows {
                let outcome = &row.outcome;
                possible &=
                    outcome.step >= outcome.bound * (1.0 - 1e-9) && outcome.passes >= outcome.compute * (1.0 - 1e-9);
                let figure = |what: &str| format!("{name}.{}.{what}", row.name);
                bench.figure(&figure("step_s"), outcome.step);
                bench.figure(&figure("stall_ms"), outcome.stall * 1e3);
                bench.figure(&figure("fetch_ms"), outcome.fetch * 1e3);
                bench.figure(&figure("largest_b"), row.largest / 1e9);
                bench.figure(&figure("fits"), f64::from(row.fits));
            }
            let step =
                |wanted: &str| rows.iter().find(|row| row.name == wanted).map_or(f64::NAN, |row| row.outcome.step);
            let all = step("bridge.2cards");
            for part in ["numa", "dap", "pool"] {
                least = least.min(step(&format!("bridge.2cards.no_{part}")) / all);
            }
        }
    }
    for (what, value) in PAPER {
        bench.figure(&format!("paper.{what}.reported_by_the_paper_on_its_own_hardware"), value);
    }
    // What must hold of any simulation of these; how much faster is a result, not a bar.
    bench.bar("no_step_below_its_bound", f64::from(possible), Op::Exactly, 1.0);
    bench.bar("step_without_a_part_over_step_with_all_least", least, Op::AtLeast, 0.999);
    bench.finish()
}

fn rows(gpus: usize, work: &Workload) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for drives in [1, 4] {
        let host = Host::builtin(gpus, 0, drives)?;
        for (settings, which) in [(Settings::documented(), "default"), (Settings::tuned(), "tuned")] {
            let outcome = simulate(&host, work, &infinity::plan(&host, work, &settings));
            let bytes = drives as u64 * host.profile.ssd_bytes;
            let fits = |work: &Workload| {
                let (dram, ssd) = infinity::needs(&host, work, &settings);
                dram <= host.profile.dram_bytes * host.profile.sockets as u64 && ssd <= bytes
            };
            let name = format!("infinity.{drives}ssd.{which}");
            rows.push(Row { name, outcome, largest: largest(work, fits), fits: fits(work), ahead: 0 });
        }
    }
    for cards in [1, 2, 4] {
        rows.push(bridge(gpus, cards, work, Parts::ALL, "")?);
        if cards == 2 {
            rows.push(bridge(gpus, cards, work, Parts { numa: false, ..Parts::ALL }, ".no_numa")?);
            rows.push(bridge(gpus, cards, work, Parts { dap: false, ..Parts::ALL }, ".no_dap")?);
            rows.push(bridge(gpus, cards, work, Parts { pool: false, ..Parts::ALL }, ".no_pool")?);
        }
    }
    Ok(rows)
}

fn bridge(gpus: usize, cards: usize, work: &Workload, parts: Parts, suffix: &str) -> Result<Row> {
    let host = Host::builtin(gpus, cards, 1)?;
    let (outcome, ahead) = tiered::settle(&host, work, parts);
    let fits = |work: &Workload| tiered::fits(&host, work, parts.pool);
    let name = format!("bridge.{cards}cards{suffix}");
    Ok(Row { name, outcome, largest: largest(work, fits), fits: fits(work), ahead })
}

/// Parameters of the largest model of this width that `fits`.
fn largest(work: &Workload, fits: impl Fn(&Workload) -> bool) -> f64 {
    let of = |layers| Workload { layers, ..*work };
    let most = (1..20_000).take_while(|&layers| fits(&of(layers))).last().unwrap_or(0);
    of(most).parameters() as f64
}

fn print(name: &str, work: &Workload, gpus: usize, rows: &[Row]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        name,
        "tokens/s",
        "x default 1ssd",
        "x tuned 4ssd",
        "stall ms",
        "fetch ms",
        "computing",
        "ahead",
        "fits",
        "largest model",
    ]);
    let rate = |row: &Row| (work.tokens * gpus as u64) as f64 / row.outcome.step;
    let base = |wanted: &str| rows.iter().find(|row| row.name == wanted).map_or(f64::NAN, &rate);
    let (one, four) = (base("infinity.1ssd.default"), base("infinity.4ssd.tuned"));
    for row in rows {
        let outcome = &row.outcome;
        table.add_row([
            row.name.clone(),
            format!("{:.0}", rate(row)),
            format!("{:.2}", rate(row) / one),
            format!("{:.2}", rate(row) / four),
            format!("{:.1}", outcome.stall * 1e3),
            format!("{:.1}", outcome.fetch * 1e3),
            format!("{:.0} %", 100.0 * outcome.compute / outcome.step),
            if row.ahead > 0 { row.ahead.to_string() } else { String::new() },
            if row.fits { "yes".to_owned() } else { "no".to_owned() },
            format!("{:.1} B", row.largest / 1e9),
        ]);
    }
    println!("{table}\n");
}
