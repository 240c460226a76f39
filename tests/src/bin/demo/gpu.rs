//! `--gpu`: an unmodified CUDA program that streams tensors from DRAM and from CXL to an emulated GPU, under
//! `tensortier run --gpu`.
//!
//! DAMON is off: the emulator's threads read host memory as a CPU does, and a GPU would leave no accessed bit. So what the
//! agent knows of the tensors it has from the bridge's hints. The driver is emulated and its times are modelled: none is
//! shown.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tensortier::{
    sys::Process,
    units::{NodeId, PAGE, Pid, show_bytes},
};
use tensortier_tests::{
    bench::{Bench, Op},
    copier::Copier,
    daemon::{self, Agent},
    emulator,
    scenario::sibling,
};

use crate::{kernel::Migrations, perf::Perf};

/// The program's tensors: whether each begins on CXL, and whether the GPU reads it.
const TENSORS: [(&str, bool, bool); 4] =
    [("layer0", true, true), ("layer1", true, true), ("unused", true, false), ("layer2", false, true)];
const TENSOR: u64 = 8 << 20;
/// What the agent is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

struct Tensor {
    name: &'static str,
    cxl: bool,
    read: bool,
    pages: Vec<u64>,
}

impl Tensor {
    /// The share of it that lies on a node.
    fn on(&self, node: NodeId, process: &Process) -> Result<f64> {
        let mut nodes = vec![0; self.pages.len()];
        process.nodes(&self.pages, &mut nodes)?;
        let there = nodes.iter().filter(|found| u32::try_from(**found) == Ok(node.0)).count();
        Ok(there as f64 / self.pages.len() as f64)
    }
}

pub fn show(bench: &mut Bench, folder: &Path, slow: NodeId) -> Result<()> {
    bench.environment("gpu", "emulated driver; damon off, so that only probes and hints tell of use");
    let config = folder.join("config.toml");
    fs::write(&config, "[damon]\nops = \"off\"\n").with_context(|| config.display().to_string())?;
    let driver = emulator::install(folder)?;
    let config = config.to_str().context("a path in text")?;
    let (agent, _) = Agent::start(&["--config", config])?;
    ask("pause")?;
    let perf = Perf::arm(folder)?;
    let migrations = Migrations::watch()?;

    println!("\n1. An unmodified CUDA program, on an emulated GPU, begins.");
    let mut words = perf.around();
    words.push(sibling("tensortier").display().to_string());
    words.extend(["run", "--gpu", "--require", "--name", "stream", "--"].map(str::to_owned));
    words.extend(Copier::WORDS.map(str::to_owned));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("TENSORTIER_PRELOAD", emulator::library("tensortier-preload")?);
    let mut program = Copier::start(&mut command)?;
    let process = Process::open(Pid(u32::try_from(program.tell("pid")?)?))?;
    ensure!(program.tell(&format!("load {}", driver.display()))? == 0, "the driver was not loaded");
    let tensors = TENSORS.iter().map(|tensor| begin(&mut program, tensor, slow)).collect::<Result<Vec<_>>>()?;
    print(&tensors, slow, &process)?;
    let on = |cxl, read, process: &Process| -> Result<f64> {
        let of = tensors.iter().filter(|tensor| (tensor.cxl, tensor.read) == (cxl, read));
        let shares = of.map(|tensor| tensor.on(slow, process)).collect::<Result<Vec<_>>>()?;
        Ok(shares.iter().sum::<f64>() / shares.len() as f64)
    };
    bench.bar("read_tensors_on_cxl_share_at_start", on(true, true, &process)?, Op::AtLeast, 0.95);

    println!("\n2. It streams three of them to the GPU, over and over. The agent may not move anything yet.");
    let read = tensors.iter().filter(|tensor| tensor.read).map(|tensor| tensor.name).collect::<Vec<_>>().join(",");
    let over = folder.join("over");
    program.say(&format!("loop {read} {TENSOR} {}", over.display()))?;
    let all: u64 = tensors.iter().filter(|tensor| tensor.cxl && tensor.read).map(|_| TENSOR).sum();
    let hot = wait("what the GPU reads from CXL to be hot", || {
        let hot = on_node(&daemon::status()?, slow, "hot_bytes");
        Ok(hot.filter(|hot| *hot >= all))
    })?;
    let status = daemon::status()?;
    let resident = on_node(&status, slow, "resident_bytes").unwrap_or(0);
    println!("   hot on node {slow}: {} of {} that lie there", show_bytes(hot), show_bytes(resident));
    let copied = copied(&status);
    for ((node, path), bytes) in &copied {
        println!("   copied from node {node}, as {path}: {}", show_bytes(*bytes));
    }
    bench.bar("hot_on_cxl_over_what_the_gpu_reads_there", hot as f64 / all as f64, Op::Exactly, 1.0);
    let of = |path: &str| copied.get(&(u64::from(slow.0), path.to_owned())).copied().unwrap_or(0);
    bench.bar("bytes_from_cxl_by_hints", of("bridge") as f64, Op::AtLeast, all as f64);
    bench.bar("bytes_from_cxl_by_probes", (of("registered") + of("unregistered")) as f64, Op::Exactly, 0.0);

    println!("\n3. Now it may.");
    ask("resume")?;
    wait("what the GPU reads to be in DRAM", || Ok((on(true, true, &process)? <= 0.05).then_some(())))?;
    print(&tensors, slow, &process)?;
    bench.bar("read_tensors_on_cxl_share_at_end", on(true, true, &process)?, Op::AtMost, 0.05);
    bench.bar("unread_tensor_on_cxl_share_at_end", on(true, false, &process)?, Op::AtLeast, 0.95);
    fs::write(&over, "").with_context(|| over.display().to_string())?;
    bench.bar("copies_that_failed", program.answer()? as f64, Op::Exactly, 0.0);
    let ended = program.end()?;
    ensure!(ended.success(), "the program ended with {ended}");
    let kernel_pages = migrations.by_syscall()?;
    agent.end()?;

    println!("\n4. What perf saw of it.\n");
    let perf_pages = perf.show("--gpu -- python3 gpu.py")?;
    println!();
    bench.figure("pages_moved_by_kernel", kernel_pages as f64);
    bench.bar("pages_moved_by_perf_minus_by_kernel", perf_pages as f64 - kernel_pages as f64, Op::Exactly, 0.0);
    Ok(())
}

fn begin(program: &mut Copier, &(name, cxl, read): &(&'static str, bool, bool), slow: NodeId) -> Result<Tensor> {
    let node = if cxl { slow.0 } else { 0 };
    let start = program.tell(&format!("arena {name} {TENSOR} {node}"))?;
    Ok(Tensor { name, cxl, read, pages: (start..start + TENSOR).step_by(PAGE as usize).collect() })
}

fn print(tensors: &[Tensor], slow: NodeId, process: &Process) -> Result<()> {
    for tensor in tensors {
        let share = 100.0 * tensor.on(slow, process)?;
        let read = if tensor.read { "read by the GPU" } else { "not read" };
        println!("   {:7} {}, {read}: {share:.0} % on node {slow}", tensor.name, show_bytes(TENSOR));
    }
    Ok(())
}

fn ask(what: &str) -> Result<()> {
    let status = daemon::tensortier(&[what]).status().context("cannot start tensortier")?;
    ensure!(status.success(), "tensortier {what}: {status}");
    Ok(())
}

fn wait<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(found) = look()? {
            return Ok(found);
        }
        thread::sleep(Duration::from_secs(1));
    }
    bail!("waited {} s for {what}", PATIENCE.as_secs())
}

/// A number of the job's on a node.
fn on_node(status: &Value, node: NodeId, what: &str) -> Option<u64> {
    status["jobs"][0]["watched"]["nodes"][node.to_string()][what].as_u64()
}

/// Bytes copied to the GPU so far, by node and path.
fn copied(status: &Value) -> BTreeMap<(u64, String), u64> {
    let rows = status["copied"].as_array().into_iter().flatten().filter(|row| row["to_device"] == true);
    let row = |row: &Value| Some(((row["node"].as_u64()?, row["path"].as_str()?.to_owned()), row["bytes"].as_u64()?));
    rows.filter_map(row).collect()
}
