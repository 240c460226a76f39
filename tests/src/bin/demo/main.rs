//! An unmodified PyTorch job whose table of word vectors began on CXL, once alone and once under `tensortier run`. With
//! `--gpu` an unmodified CUDA program on the emulated driver, under `tensortier run --gpu`.
//!
//! On a host with two tiers it runs there, as root; elsewhere in the guest with the emulated CXL device. The demo looks
//! at the job from outside: which node each page of the table is on, what the kernel itself says it migrated, and what
//! perf counts of our probes.

mod gpu;
mod job;
mod kernel;
mod perf;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use job::{Job, Ran};
use kernel::{Migrations, Setting};
use perf::Perf;
use tensortier::{host::Host, units::NodeId};
use tensortier_tests::bench::{Bench, BenchArgs, Op, Report};

/// The words that the texts of tests/jobs/train.py use, of those that its table has: the hot part and the whole.
const USED_WORDS: u64 = 32_768;
const WORDS: u64 = 98_304;

/// Shows what tensortier gains for a training job part of whose memory began on the slow tier.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    bench: BenchArgs,
    /// Training steps of each of the two runs.
    #[arg(long, default_value_t = 48)]
    steps: u32,
    /// A CUDA program on the emulated driver, some of whose tensors began on CXL, in place of the training job.
    #[arg(long, conflicts_with_all = ["steps", "policy"])]
    gpu: bool,
    /// The policy under which the job runs, as `tensortier run --policy` has it.
    #[arg(long)]
    policy: Option<String>,
    /// The guest's kernel, as scripts/vm has it.
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// Runs on this machine, whatever it has.
    #[arg(long, hide = true)]
    here: bool,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if options.here || Host::read(Path::new("/"))?.is_two_tier() { here(&options) } else { in_guest(&options) }
}

fn in_guest(options: &Options) -> Result<ExitCode> {
    println!("This host has one tier of memory: the demo boots a guest with an emulated CXL device.");
    let out = env::temp_dir().join(format!("tensortier-demo-{}", std::process::id()));
    fs::create_dir(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let root = root();
    let mut words = options.policy.iter().flat_map(|policy| ["--policy".into(), policy.clone()]).collect::<Vec<_>>();
    words.extend(if options.gpu { vec!["--gpu".into()] } else { vec!["--steps".into(), options.steps.to_string()] });
    let status = Command::new(root.join("scripts/vm"))
        .current_dir(&root)
        .args(["--profile", "cxl", "--kernel", &options.kernel, "--timeout", "600", "--out"])
        .arg(&out)
        .arg("--")
        .arg(env::current_exe()?)
        .args(["--here", "--json", "/out/demo.json"])
        .args(words)
        .status()
        .context("cannot start scripts/vm")?;
    let report = out.join("demo.json");
    ensure!(report.exists(), "the demo did not end in the guest ({status}); its files are in {}", out.display());
    let holds = Report::read(&report)?.holds();
    if let Some(json) = &options.bench.json {
        fs::copy(&report, json).with_context(|| format!("cannot write {}", json.display()))?;
    }
    fs::remove_dir_all(&out).with_context(|| format!("cannot remove {}", out.display()))?;
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn here(options: &Options) -> Result<ExitCode> {
    let host = Host::read(Path::new("/"))?;
    let slow = *host.lower().0.first().context("this machine has one tier of memory: nothing to show here")?;
    let mut bench = Bench::new("demo", &options.bench);
    // Others that move pages would be measured too. They are put back at the end.
    let mut fixed = Vec::new();
    for (name, path, value) in [
        ("numa_balancing", "/proc/sys/kernel/numa_balancing", "0"),
        ("demotion", "/sys/kernel/mm/numa/demotion_enabled", "false"),
    ] {
        fixed.push(Setting::fix(path, value)?);
        bench.environment(name, value);
    }
    bench.environment("slow_node", slow);

    let folder = tempfile::tempdir().context("no folder for the runs")?;
    if options.gpu {
        gpu::show(&mut bench, folder.path(), slow)?;
    } else {
        train(&mut bench, options, folder.path(), slow)?;
    }
    bench.finish()
}

fn train(bench: &mut Bench, options: &Options, folder: &Path, slow: NodeId) -> Result<()> {
    let job = |agent| Job {
        root: root(),
        folder: folder.to_owned(),
        slow,
        steps: options.steps,
        policy: options.policy.clone(),
        agent,
    };
    println!("\n1. The job alone: {} steps, its table begun on node {slow}.", options.steps);
    let alone = job(None).run()?;
    println!("\n2. The same job under tensortier, and both under perf.");
    let perf = Perf::arm(folder)?;
    let migrations = Migrations::watch()?;
    let under = job(Some((folder.join("summary.json"), perf.around()))).run()?;
    let kernel_pages = migrations.by_syscall()?;
    let summary = fs::read_to_string(folder.join("summary.json")).context("the run left no summary")?;
    let summary: serde_json::Value = serde_json::from_str(&summary).context("the summary is not JSON")?;

    println!("\n3. What perf saw of it.\n");
    let perf_pages = perf.show("-- python3 train.py")?;

    println!("\n4. What was gained.\n");
    report(bench, &alone, &under, &summary, kernel_pages, slow);
    bench.bar("pages_moved_by_perf_minus_by_kernel", perf_pages as f64 - kernel_pages as f64, Op::Exactly, 0.0);
    Ok(())
}

fn report(bench: &mut Bench, alone: &Ran, under: &Ran, summary: &serde_json::Value, kernel_pages: u64, slow: NodeId) {
    let moved: u64 = rows(summary).filter_map(|row| row["pages"].as_u64()).sum();
    let promoted: u64 = rows(summary).filter(|row| row["from"] == slow.0).filter_map(|row| row["bytes"].as_u64()).sum();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);

    bench.bar("hot_in_dram_share_at_start", under.first.hot_share(), Op::AtMost, 0.05);
    bench.bar("hot_in_dram_share_at_end", under.last.hot_share(), Op::AtLeast, 0.95);
    let equal = alone.losses == under.losses && !alone.losses.is_empty();
    bench.bar("losses_equal", f64::from(u8::from(equal)), Op::Exactly, 1.0);
    bench.bar("pages_moved_by_summary_minus_by_kernel", moved as f64 - kernel_pages as f64, Op::Exactly, 0.0);

    bench.figure("hot_in_dram_share_at_end_alone", alone.last.hot_share());
    bench.figure("hot_mib", mib(under.last.hot_bytes));
    bench.figure("table_mib", mib(under.last.bytes));
    bench.figure("table_in_dram_mib_at_end", mib(under.last.bytes - under.last.slow_bytes));
    bench.figure("promoted_mib", mib(promoted));
    bench.figure("pages_moved_by_kernel", kernel_pages as f64);
    bench.figure("seconds_until_hot_95_in_dram", under.seconds_until_hot.unwrap_or(f64::NAN));
    bench.figure("step_seconds_alone", alone.late_step_seconds());
    bench.figure("step_seconds_under", under.late_step_seconds());
    bench.figure("step_time_ratio_alone_over_under", alone.late_step_seconds() / under.late_step_seconds());
    bench.figure("longest_step_seconds_alone", alone.longest_step_seconds());
    bench.figure("longest_step_seconds_under", under.longest_step_seconds());
}

fn rows(summary: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    summary["watched"]["moved"].as_array().into_iter().flatten()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
