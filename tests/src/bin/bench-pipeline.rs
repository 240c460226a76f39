//! Copies through the bridge on an emulated driver: share of the link, a link that changes, placement known or not.
//!
//! Bytes are real and checked. The link is modelled, at a share of what one thread of this machine copies in the same
//! run; figures are ratios within one run. `--gpu` uses this host's driver and GPU instead, for what needs no model.
#![allow(unsafe_code)]

use std::{
    collections::{BTreeMap, VecDeque},
    process::ExitCode,
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use tensortier_bridge::{
    device::{CudaDevice, Gpu, Slow},
    pipeline::{Copy, CopyId, Direction, Limits, Pipeline, Settings, Tuning, prefetch::Prefetch},
    pool::Registrar,
};
use tensortier_link::placement::{Extent, Kind};
use tensortier_model::{Clock, Nanos, RealClock};
use tensortier_tests::{
    bench::{Bench, BenchArgs, Op, median},
    emulated::ensure_emulated,
    memcpy::{memcpy, memcpy_by_two, pattern},
};

const MIB: u64 = 1 << 20;
/// Bytes of a copy.
const COPY: u64 = 32 * MIB;
/// Different sources that copies take in turn: more than a cache holds.
const SOURCES: u64 = 4;
const LIMITS: Limits = Limits { ring: 64 * MIB, threads: 2 };
const BOTH: [Direction; 2] = [Direction::H2d, Direction::D2h];

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// This host's own driver and GPU.
    #[arg(long)]
    gpu: bool,
    /// The link, as a share of what one thread copies.
    #[arg(long, default_value_t = 0.3)]
    link: f64,
    /// Repetitions; medians count.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// Copies of each measurement.
    #[arg(long, default_value_t = 20)]
    copies: usize,
}

type Bridge<'a> = Pipeline<Arc<RealClock>, CudaDevice<'a>>;

/// Host and device memory of one direction.
struct Buffers {
    pageable: Vec<u8>,
    device: u64,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if !args.gpu {
        ensure_emulated()?;
    }
    let mut bench = Bench::new("pipeline", &args.bench);
    let gpu = Gpu::open()?;
    ensure!(args.gpu || gpu.name().contains("emulator"), "{}: that is no emulator; --gpu measures a GPU", gpu.name());
    bench.environment("device", gpu.name());
    bench.environment("copy_mib", COPY / MIB);
    let mut host = [(); 2].map(|()| Buffers { pageable: pattern((SOURCES * COPY) as usize), device: 0 });
    for buffers in &mut host {
        buffers.device = gpu.allocate(SOURCES * COPY)?;
    }
    let memcpy = median((0..7).map(|_| memcpy(COPY as usize)));
    // Each byte of a staged copy is moved twice here, by a thread and by the emulated engine.
    let ceiling = median((0..7).map(|_| memcpy_by_two(COPY as usize))) / 4.0;
    let link = args.link * memcpy;
    bench.figure("memcpy_one_thread_gb_s", memcpy / 1e9);
    if !args.gpu {
        ensure!(gpu.set_emulated_link(link, link), "the emulator takes no rates");
        bench.figure("link_gb_s", link / 1e9);
        bench.bar("link_over_memcpy", link / memcpy, Op::AtLeast, 0.25);
        bench.figure("memory_ceiling_each_way_gb_s", ceiling / 1e9);
    }
    one_way(&mut bench, &args, &gpu, &host)?;
    both_ways(&mut bench, &args, &gpu, &host, if args.gpu { f64::INFINITY } else { ceiling })?;
    let equal = checksums(&gpu, &mut host)?;
    bench.bar("bytes_equal", f64::from(equal), Op::Exactly, 1.0);
    if !args.gpu {
        changing(&mut bench, &args, &gpu, &host, link)?;
        mixed(&mut bench, &args, &gpu, link)?;
    }
    bench.finish()
}

/// A pipeline on the GPU, with fresh rings.
fn bridge(gpu: &Gpu, tuning: Tuning, slow: Slow) -> Result<Bridge<'_>> {
    let clock = Arc::new(RealClock::new());
    // SAFETY: copies of this bench name buffers of `main`, or of the caller, that outlive every pipeline, and each
    // direction has its own.
    let device = unsafe { CudaDevice::new(gpu, Arc::clone(&clock), LIMITS, 0, slow)? };
    Ok(Pipeline::new(clock, device, LIMITS, tuning))
}

/// Rates of `copies` copies in each direction, two queued, after some that are not counted; in the time that all run.
fn rates(
    bridge: &mut Bridge,
    ways: &[Direction],
    host: &[Buffers; 2],
    registered: bool,
    copies: usize,
) -> Result<Vec<f64>> {
    let warm = 4;
    let mut queues = [VecDeque::<CopyId>::new(), VecDeque::new()];
    let mut submitted = [0_u64; 2];
    let mut ended: [Vec<Nanos>; 2] = Default::default();
    let mut lanes: BTreeMap<CopyId, usize> = BTreeMap::new();
    while bridge.completed().is_some() {}
    loop {
        for &direction in ways {
            let lane = direction as usize;
            while queues[lane].len() < 2 && submitted[lane] < (warm + copies) as u64 {
                let at = submitted[lane] % SOURCES * COPY;
                let (source, device) = (host[lane].pageable.as_ptr() as u64 + at, host[lane].device + at);
                let copy =
                    Copy { stream: lane as u64, direction, host: source, device, bytes: COPY, node: 0, registered };
                let id = bridge.submit(copy);
                lanes.insert(id, lane);
                queues[lane].push_back(id);
                submitted[lane] += 1;
            }
        }
        // The one that was submitted first.
        let Some(&oldest) = queues.iter().filter_map(VecDeque::front).min() else { break };
        bridge.wait(oldest);
        while let Some(completion) = bridge.completed() {
            if let Some(&lane) = lanes.get(&completion.id) {
                ended[lane].push(completion.ended);
                queues[lane].retain(|id| *id != completion.id);
            }
        }
    }
    if let Some(error) = bridge.device().failure() {
        bail!("{error}");
    }
    let all = ways.iter().map(|way| ended[*way as usize][warm + copies - 1]).min().context("a direction")?;
    let rate = |way: &Direction| {
        let ended = &ended[*way as usize];
        let counted: Vec<_> = ended[warm - 1..].iter().take_while(|end| **end <= all).collect();
        (counted.len() - 1) as f64 * COPY as f64 * 1e9 / (*counted[counted.len() - 1] - *counted[0]) as f64
    };
    Ok(ways.iter().map(rate).collect())
}

/// Rate of registered memory, in which threads have no part: the link's.
fn pinned(gpu: &Gpu, ways: &[Direction], host: &[Buffers; 2], copies: usize) -> Result<Vec<f64>> {
    let mut registrar = gpu;
    for buffers in host {
        let address = buffers.pageable.as_ptr() as u64;
        registrar.register(address, buffers.pageable.len() as u64).map_err(anyhow::Error::msg)?;
    }
    let rates = rates(&mut bridge(gpu, Tuning::Adaptive, Slow::new())?, ways, host, true, copies);
    for buffers in host {
        registrar.unregister(buffers.pageable.as_ptr() as u64, buffers.pageable.len() as u64);
    }
    rates
}

fn one_way(bench: &mut Bench, args: &Args, gpu: &Gpu, host: &[Buffers; 2]) -> Result<()> {
    for (direction, name) in BOTH.into_iter().zip(["h2d", "d2h"]) {
        let (mut links, mut shares, mut naives) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.repeat {
            let link = pinned(gpu, &[direction], host, args.copies)?[0];
            let mut bridge = bridge(gpu, Tuning::Adaptive, Slow::new())?;
            let staged = rates(&mut bridge, &[direction], host, false, args.copies)?[0];
            links.push(link);
            shares.push(staged / link);
            naives.push(naive(gpu, direction, &host[direction as usize])? / link);
        }
        bench.figure(&format!("{name}.registered_gb_s"), median(links) / 1e9);
        bench.figure(&format!("{name}.naive_pageable_over_registered"), median(naives));
        bench.bar(&format!("{name}.bridge_pageable_over_registered"), median(shares), Op::AtLeast, 0.95);
    }
    Ok(())
}

fn both_ways(bench: &mut Bench, args: &Args, gpu: &Gpu, host: &[Buffers; 2], ceiling: f64) -> Result<()> {
    let mut shares: [Vec<f64>; 2] = Default::default();
    let mut links = Vec::new();
    for _ in 0..args.repeat {
        let link = pinned(gpu, &BOTH, host, args.copies)?;
        let staged = rates(&mut bridge(gpu, Tuning::Adaptive, Slow::new())?, &BOTH, host, false, args.copies)?;
        for lane in 0..2 {
            shares[lane].push(staged[lane] / link[lane].min(ceiling));
        }
        links.push(link[0].min(link[1]));
    }
    bench.figure("both.registered_slower_way_gb_s", median(links) / 1e9);
    for (shares, name) in shares.into_iter().zip(["h2d", "d2h"]) {
        bench.bar(&format!("both.{name}_over_lower_of_registered_and_ceiling"), median(shares), Op::AtLeast, 0.9);
    }
    Ok(())
}

/// One blocking copy after the other of pageable memory, as a program without a bridge makes them.
fn naive(gpu: &Gpu, direction: Direction, host: &Buffers) -> Result<f64> {
    let mut into = vec![1_u8; COPY as usize];
    let copies = 3;
    let began = Instant::now();
    for i in 0..copies {
        let at = (i % SOURCES * COPY) as usize;
        match direction {
            Direction::H2d => gpu.write(host.device, &host.pageable[at..at + COPY as usize])?,
            Direction::D2h => gpu.read(host.device, &mut into)?,
        }
    }
    Ok((copies * COPY) as f64 / began.elapsed().as_secs_f64())
}

/// Whether what the bridge copies in and out again is what went in, an odd number of bytes from odd places.
fn checksums(gpu: &Gpu, host: &mut [Buffers; 2]) -> Result<bool> {
    let (bytes, odd) = (3 * COPY + 12_345, 67);
    let sum = |bytes: &[u8]| crc32fast::hash(bytes);
    let device = host[0].device + odd;
    let mut bridge = bridge(gpu, Tuning::Adaptive, Slow::new())?;
    let mut back = vec![0_u8; bytes as usize];
    let source = &host[0].pageable[odd as usize..(odd + bytes) as usize];
    for (direction, host) in [(Direction::H2d, source.as_ptr() as u64), (Direction::D2h, back.as_mut_ptr() as u64)] {
        bridge.submit(Copy { stream: 0, direction, host, device, bytes, node: 0, registered: false });
    }
    bridge.wait_all();
    if let Some(error) = bridge.device().failure() {
        bail!("{error}");
    }
    let mut naive = vec![0_u8; bytes as usize];
    gpu.read(device, &mut naive)?;
    Ok(sum(source) == sum(&back) && sum(source) == sum(&naive))
}

/// The link at its rate, half and half again as much: what adapts, in one run, against the best of what stays.
fn changing(bench: &mut Bench, args: &Args, gpu: &Gpu, host: &[Buffers; 2], link: f64) -> Result<()> {
    const PHASES: [f64; 3] = [1.0, 0.5, 1.5];
    let copies = args.copies.min(12);
    let mut adaptive: [Vec<f64>; 3] = Default::default();
    for _ in 0..args.repeat.min(3) {
        let mut bridge = bridge(gpu, Tuning::Adaptive, Slow::new())?;
        for (share, rates_of) in PHASES.into_iter().zip(&mut adaptive) {
            gpu.set_emulated_link(link * share, link * share);
            // The first copies are for settling.
            rates(&mut bridge, &[Direction::H2d], host, false, copies)?;
            rates_of.push(rates(&mut bridge, &[Direction::H2d], host, false, copies)?[0]);
        }
    }
    for (share, adaptive) in PHASES.into_iter().zip(adaptive) {
        gpu.set_emulated_link(link * share, link * share);
        let mut best = (0.0, String::new());
        for chunk in [MIB / 4, MIB, 4 * MIB] {
            for threads in [1, 2] {
                for depth in [threads + 1, threads + 4] {
                    let settings = Settings { chunk, depth, threads };
                    let mut bridge = bridge(gpu, Tuning::Fixed(settings), Slow::new())?;
                    let rate = rates(&mut bridge, &[Direction::H2d], host, false, copies.min(6))?[0];
                    if rate > best.0 {
                        best = (rate, format!("{} KiB, depth {depth}, {threads} threads", chunk >> 10));
                    }
                }
            }
        }
        bench.environment(&format!("best_static_at_{share}"), best.1);
        bench.bar(
            &format!("changing.at_{share}_adaptive_over_best_static"),
            median(adaptive) / best.0,
            Op::AtLeast,
            0.9,
        );
    }
    gpu.set_emulated_link(link, link);
    Ok(())
}

/// How a job's copies come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    OnDemand,
    Blind,
    Placed,
}

const LAYERS: u64 = 24;
const LAYER: u64 = 8 * MIB;
/// Every fourth layer is on a card that is this share of the link; time of computing, in layers' times on the link.
const SLOW: f64 = 0.2;
const COMPUTE: f64 = 1.5;

/// Layers in DRAM and on a slow card (paced: there is none here): what the job waits.
fn mixed(bench: &mut Bench, args: &Args, gpu: &Gpu, link: f64) -> Result<()> {
    let host = pattern((LAYERS * LAYER) as usize);
    let device = gpu.allocate(LAYERS * LAYER)?;
    let mut stalls: [Vec<f64>; 3] = Default::default();
    let compute = (COMPUTE * LAYER as f64 * 1e9 / link) as Nanos;
    for _ in 0..args.repeat.min(3) {
        for (way, stalls) in [Way::OnDemand, Way::Blind, Way::Placed].into_iter().zip(&mut stalls) {
            stalls.push(stall(gpu, way, &host, device, link, compute)? / (5 * LAYERS * compute) as f64);
        }
    }
    gpu.free(device)?;
    let [demand, blind, placed] = stalls.map(median);
    bench.figure("mixed.on_demand_stall_over_compute", demand);
    bench.figure("mixed.blind_stall_over_compute", blind);
    bench.figure("mixed.placed_stall_over_compute", placed);
    bench.bar("mixed.placed_over_blind_stall", placed / blind, Op::AtMost, 1.0);
    Ok(())
}

fn is_slow(layer: u64) -> bool {
    layer % 4 == 3
}

/// Nanoseconds that the job waits in its sixth to tenth step.
fn stall(gpu: &Gpu, way: Way, host: &[u8], device: u64, link: f64, compute: Nanos) -> Result<f64> {
    let clock = Arc::new(RealClock::new());
    let slow = Slow::from([(1, SLOW * link)]);
    // SAFETY: `host` and `device` outlive this function and its pipeline, and nothing else uses them.
    let cuda = unsafe { CudaDevice::new(gpu, Arc::clone(&clock), LIMITS, 0, slow)? };
    let mut pipeline = Pipeline::new(Arc::clone(&clock), cuda, LIMITS, Tuning::Adaptive);
    let mut prefetch = Prefetch::new(link, 5 * LAYER);
    for layer in 0..LAYERS {
        let (node, rate) = if is_slow(layer) { (1, SLOW * link) } else { (0, 10.0 * link) };
        let kind = if node == 0 { Kind::Dram } else { Kind::Cxl };
        let start = host.as_ptr() as u64 + layer * LAYER;
        let read_mib_per_sec = (rate / MIB as f64) as u32;
        let extent = Extent { start, end: start + LAYER, node, kind, read_mib_per_sec, latency_ns: 300 };
        prefetch.declare(layer, LAYER, Some(&extent).filter(|_| way == Way::Placed));
    }
    let mut copies = BTreeMap::new();
    let mut waited = 0.0;
    let submit = |pipeline: &mut Bridge, copies: &mut BTreeMap<CopyId, u64>, layer: u64| {
        let (at, node) = (layer * LAYER, u32::from(is_slow(layer)));
        let (host, device) = (host.as_ptr() as u64 + at, device + at);
        let copy =
            Copy { stream: layer, direction: Direction::H2d, host, device, bytes: LAYER, node, registered: false };
        copies.insert(pipeline.submit(copy), layer);
    };
    let tick = |pipeline: &mut Bridge, prefetch: &mut Prefetch, copies: &mut BTreeMap<CopyId, u64>| {
        if way != Way::OnDemand {
            for layer in prefetch.due(clock.now()) {
                submit(pipeline, copies, layer);
            }
        }
        pipeline.run_until(clock.now() + 100_000);
        while let Some(completion) = pipeline.completed() {
            if let Some(layer) = copies.remove(&completion.id) {
                prefetch.arrived(layer, completion.ended);
            }
        }
    };
    for step in 0..10 {
        for layer in 0..LAYERS {
            let begin = clock.now();
            let mut here = prefetch.wanted(layer, begin);
            let stalled = !here;
            while !here {
                if prefetch.begin(layer, clock.now()) {
                    submit(&mut pipeline, &mut copies, layer);
                }
                tick(&mut pipeline, &mut prefetch, &mut copies);
                here = prefetch.is_here(layer);
            }
            let stall = if stalled { clock.now() - begin } else { 0 };
            prefetch.waited(stall);
            waited += if step >= 5 { stall as f64 } else { 0.0 };
            let end = clock.now() + compute;
            while clock.now() < end {
                tick(&mut pipeline, &mut prefetch, &mut copies);
            }
            prefetch.released(layer);
        }
    }
    pipeline.wait_all();
    match pipeline.device().failure() {
        Some(error) => bail!("{error}"),
        None => Ok(waited),
    }
}
