//! Host memory that the pool wastes on six training steps, beside power-of-two and BFC-style allocators; its times; stripes.
//!
//! Stripes are read back page by page with `move_pages`, in a guest whose two nodes stand for two cards.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use hdrhistogram::Histogram;
use tensortier::{
    sys::Process,
    units::{PAGE, Pid},
};
use tensortier_bridge::pool::{Class, FakeNodes, Handle, HostMemory, Lifetime, NoRegistrar, NodeKind, NodeSpec, Pool};
use tensortier_model::Profiles;
use tensortier_planner::graph::{Graph, json};
use tensortier_tests::{
    allocators::{Bfc, Kept, PowerOfTwo, Request, Reserve, requests},
    bench::{Bench, BenchArgs, GuestArgs, Op},
    guest::Guest,
    scenario,
};

/// Weights of the two nodes of a stripe, and bytes: the least that is striped, odd ones, and what has huge pages.
const WEIGHTS: [[u32; 2]; 4] = [[1, 1], [3, 1], [2, 5], [1, 29]];
const STRIPED: [u64; 4] = [8 << 20, (20 << 20) + 4096, (33 << 20) + 12_345, 300 << 20];

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    guests: GuestArgs,
    /// Training steps of each trace.
    #[arg(long, default_value_t = 4)]
    steps: usize,
    /// Only graphs whose file name contains this; the bar over six graphs then cannot hold.
    #[arg(long, default_value = "")]
    only: String,
    /// Measures stripes here, in a guest.
    #[arg(long, hide = true)]
    in_guest: bool,
}

/// What an allocator wasted: shares of the live bytes.
#[derive(Clone, Copy, Debug)]
struct Waste {
    /// (peak reserved - peak live) / peak live; of several nodes, their peaks summed: room on one is none on another.
    peak: f64,
    /// (reserved - live) over the job's time / live over the job's time.
    timed: f64,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.in_guest {
        return stripes(&args.guests.bench);
    }
    let mut bench = Bench::new("pool", &args.guests.bench);
    bench.environment("steps", args.steps);
    bench.environment("op_times", "v100-16g profile");
    bench.environment("memory", "reserved, not populated: sums and times of bookkeeping and mmap, not of page faults");
    let mut graphs = 0;
    let mut worst = [Waste { peak: 0.0, timed: 0.0 }; 2];
    for path in paths()?.iter().filter(|path| path.to_string_lossy().contains(&args.only)) {
        let graph = json::load(path, Profiles::builtin().gpu("v100-16g")?)?;
        eprintln!("{}: {}", graph.name, sizes(&graph));
        for ((kept, what), worst) in [(Kept::Offloaded, "offloaded"), (Kept::All, "all")].into_iter().zip(&mut worst) {
            let name = format!("{what}.{}", graph.name.replace(' ', "_"));
            let trace = requests(&graph, args.steps, kept);
            for (host, nodes) in hosts() {
                let (waste, times) = pool(&trace, nodes)?;
                bench.figure(&format!("{name}.{host}.peak_waste"), waste.peak);
                bench.figure(&format!("{name}.{host}.timed_waste"), waste.timed);
                for (call, histogram) in times {
                    for (quantile, label) in [(0.5, "p50"), (0.99, "p99")] {
                        let value = histogram.value_at_quantile(quantile) as f64;
                        bench.figure(&format!("{name}.{host}.{call}_{label}_ns"), value);
                    }
                }
                worst.peak = worst.peak.max(waste.peak);
                worst.timed = worst.timed.max(waste.timed);
            }
            let others: [(&str, Box<dyn Reserve>); 2] =
                [("pow2", Box::new(PowerOfTwo::default())), ("bfc", Box::new(Bfc::default()))];
            for (other, mut allocator) in others {
                let waste = replay(&trace, |request| {
                    match *request {
                        Request::Allocate(id, bytes, ..) => allocator.allocate(id, bytes),
                        Request::Free(id) => allocator.free(id),
                        Request::Compute(_) => {}
                    }
                    Ok(allocator.reserved())
                })?;
                bench.figure(&format!("{name}.{other}.peak_waste"), waste.peak);
                bench.figure(&format!("{name}.{other}.timed_waste"), waste.timed);
            }
        }
        graphs += 1;
    }
    bench.bar("graphs", f64::from(graphs), Op::Exactly, 6.0);
    for (what, worst) in ["offloaded", "all"].into_iter().zip(worst) {
        bench.bar(&format!("{what}.worst_peak_waste"), worst.peak, Op::AtMost, 0.05);
        bench.figure(&format!("{what}.worst_timed_waste"), worst.timed);
    }
    for kernel in &args.guests.kernel {
        scenario::measure(&mut bench, kernel, |guest: Guest| guest.dram("1536M").slow("1G"), &[])?;
    }
    bench.finish()
}

/// Stripes over the two nodes of this guest, by where their pages are.
fn stripes(args: &BenchArgs) -> Result<ExitCode> {
    let mut bench = Bench::new("pool", args);
    bench.environment("guest", "numa profile under emulation: nodes 0 and 1 stand for two cards; shares, no times");
    scenario::fix_settings()?;
    let this = Process::open(Pid(std::process::id()))?;
    let mut worst: f64 = 0.0;
    for weights in WEIGHTS {
        let node = |(node, weight)| NodeSpec { node, weight, budget: 1 << 30, ..card(node, 14) };
        let mut pool = Pool::new((0..).zip(weights).map(node).collect(), HostMemory::new(), NoRegistrar)?;
        for bytes in STRIPED {
            let handle = pool.allocate(bytes, Class::Parameters, Lifetime::Job)?;
            let view = pool.view(handle)?;
            ensure!(view.placement.is_striped(), "{bytes} bytes lie on {:?}", view.placement);
            let pages: Vec<u64> = (view.address..view.address + bytes).step_by(PAGE as usize).collect();
            let mut nodes = vec![i32::MIN; pages.len()];
            this.nodes(&pages, &mut nodes)?;
            for (node, weight) in (0..).zip(weights) {
                let share = nodes.iter().filter(|found| **found == node).count() as f64 / pages.len() as f64;
                let wanted = f64::from(weight) / f64::from(weights.iter().sum::<u32>());
                let off = (share - wanted).abs();
                bench.figure(&format!("stripe_{}_{}.{bytes}_bytes.node{node}_share", weights[0], weights[1]), share);
                worst = worst.max(off);
            }
            pool.free(handle)?;
        }
    }
    bench.bar("worst_stripe_share_off_its_weight", worst, Op::AtMost, 0.01);
    bench.finish()
}

fn card(node: u32, distance: u32) -> NodeSpec {
    let (kind, weight, budget) = (NodeKind::Cxl, 1, 1 << 42);
    NodeSpec { node, kind, distance, weight, budget, movable: false, register: false }
}

fn sizes(graph: &Graph) -> String {
    let bytes = graph.storages.iter().map(|s| s.bytes).filter(|bytes| *bytes > 0);
    let (least, most) = (bytes.clone().min().unwrap_or(0), bytes.max().unwrap_or(0));
    format!("objects of {least} to {most} bytes")
}

/// One DRAM node, and two sockets of which one has two cards: there each class has nodes of its own.
fn hosts() -> [(&'static str, Vec<NodeSpec>); 2] {
    let dram = NodeSpec { kind: NodeKind::Dram, ..card(0, 10) };
    let far = NodeSpec { kind: NodeKind::Dram, ..card(1, 21) };
    [("dram", vec![dram.clone()]), ("dram+2cxl", vec![dram, far, card(2, 14), card(3, 14)])]
}

/// Times of a call, nanoseconds, with its name.
type Times = (&'static str, Histogram<u64>);

/// Runs a trace over the pool; with the times of its calls, those that map memory included.
fn pool(trace: &[Request], nodes: Vec<NodeSpec>) -> Result<(Waste, [Times; 2])> {
    let room = nodes.iter().map(|spec| (spec.node, spec.budget)).collect();
    let backing = FakeNodes { room, ..FakeNodes::default() };
    let mut pool = Pool::new(nodes, backing, NoRegistrar)?;
    let mut handles: Vec<Option<Handle>> = Vec::new();
    // Live bytes of each node, now and at the most, and those of each object.
    let (mut live, mut peaks) = (BTreeMap::<u32, f64>::new(), BTreeMap::<u32, f64>::new());
    let mut shares: Vec<Vec<(u32, f64)>> = Vec::new();
    let mut times = [("alloc", Histogram::<u64>::new(3)?), ("free", Histogram::<u64>::new(3)?)];
    let mut waste = replay(trace, |request| {
        let began = Instant::now();
        match *request {
            Request::Allocate(id, bytes, class, lifetime) => {
                let handle = pool.allocate(bytes, class, lifetime)?;
                times[0].1.saturating_record(began.elapsed().as_nanos() as u64);
                handles.resize(handles.len().max(id + 1), None);
                shares.resize(shares.len().max(id + 1), Vec::new());
                let placement = pool.view(handle)?.placement;
                let sum: f64 = placement.shares().iter().map(|share| f64::from(share.1)).sum();
                for &(node, weight) in placement.shares() {
                    let part = bytes as f64 * f64::from(weight) / sum;
                    let now = live.entry(node).or_default();
                    *now += part;
                    let peak = peaks.entry(node).or_default();
                    *peak = peak.max(*now);
                    shares[id].push((node, part));
                }
                handles[id] = Some(handle);
            }
            Request::Free(id) => {
                pool.free(handles[id].take().context("a trace frees what it has allocated")?)?;
                times[1].1.saturating_record(began.elapsed().as_nanos() as u64);
                shares[id].drain(..).for_each(|(node, part)| *live.entry(node).or_default() -= part);
            }
            Request::Compute(_) => {}
        }
        Ok(pool.usage().reserved)
    })?;
    let reserved: u64 = pool.nodes().values().map(|node| node.peak).sum();
    waste.peak = reserved as f64 / peaks.values().sum::<f64>() - 1.0;
    Ok((waste, times))
}

/// Gives each request to `serve`, which says what is reserved after it.
fn replay(trace: &[Request], mut serve: impl FnMut(&Request) -> Result<u64>) -> Result<Waste> {
    let mut sizes = Vec::new();
    let (mut live, mut reserved, mut peak_live, mut peak_reserved) = (0_u64, 0, 0, 0);
    let (mut live_time, mut waste_time) = (0.0, 0.0);
    for request in trace {
        reserved = serve(request)?;
        match *request {
            Request::Allocate(id, bytes, ..) => {
                sizes.resize(sizes.len().max(id + 1), 0);
                sizes[id] = bytes;
                live += bytes;
            }
            Request::Free(id) => live -= std::mem::take(&mut sizes[id]),
            Request::Compute(nanos) => {
                live_time += live as f64 * nanos as f64;
                waste_time += (reserved - live) as f64 * nanos as f64;
            }
        }
        peak_live = peak_live.max(live);
        peak_reserved = peak_reserved.max(reserved);
    }
    ensure!(reserved >= live, "an allocator cannot hold less than what is live");
    let peak = (peak_reserved - peak_live) as f64 / peak_live as f64;
    Ok(Waste { peak, timed: waste_time / live_time })
}

fn paths() -> Result<Vec<PathBuf>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu-bridge/planner/tests/data/graphs"));
    let files = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths: Vec<_> = files.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.to_string_lossy().ends_with(".json.gz"));
    paths.sort();
    if paths.is_empty() {
        bail!("{} has no graph", folder.display());
    }
    Ok(paths)
}
