//! what a decision of `auto` costs at 10^4 to 10^6 regions, and decoding a trace and deciding together
//!
//! Times are CPU time of the one thread that decides (`CLOCK_THREAD_CPUTIME_ID`), so that other work on the host does
//! not count. Memory is the peak of the resident set over what it was with the views alone. A tenth of the regions is hot
//! at random, the rest is swept once in twenty intervals; half of the bytes fit into DRAM.

use std::{fs, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use nix::time::{ClockId, clock_gettime};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::{Nanos, Profiles};
use tensortier_replay::{
    cost::Costs,
    policies,
    policy::{Load, Seen, View},
    trace::{Born, Header, Interval, Process, Reader, Sample, Writer},
    workload::Pattern,
};
use tensortier_tests::bench::{Bench, BenchArgs, Op};

const SECOND: Nanos = 1_000_000_000;
const SIZE: u64 = 2 << 20;
/// Intervals of a run; those of the first half are warm-up.
const INTERVALS: u64 = 80;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let costs = Costs::new(&Profiles::builtin(), "cxl-asic")?;
    let mut bench = Bench::new("replay-cost", &args.bench);
    let mut medians = Vec::new();
    // The largest first: later ones would hide in the memory that it leaves.
    for regions in [1_000_000, 100_000, 10_000] {
        let took = decisions(regions, &costs)?;
        medians.push(took.median / regions as f64);
        bench.figure(&format!("{regions} regions: median decision, ms"), took.median / 1e6);
        bench.figure(&format!("{regions} regions: first decision, ms"), took.first / 1e6);
        if regions == 1_000_000 {
            bench.bar("10^6 regions: slowest decision after the first, ms", took.slowest / 1e6, Op::AtMost, 100.0);
            bench.bar("10^6 regions: peak bytes a region", took.bytes / regions as f64, Op::AtMost, 200.0);
        }
    }
    // A tenth of a power more than linear: caches end between 10^4 and 10^6.
    let power = 1.0 + (medians[0] / medians[2]).log(100.0);
    bench.bar("power of the growth from 10^4 to 10^6 regions", power, Op::AtMost, 1.2);
    let (samples, took) = decode(100_000, &costs)?;
    bench.figure("decode and decide: samples", samples);
    bench.bar("decode and decide: million samples a second", samples / took * 1e3, Op::AtLeast, 5.0);
    bench.finish()
}

struct Took {
    median: f64,
    first: f64,
    slowest: f64,
    bytes: f64,
}

/// CPU time of this thread in nanoseconds.
fn cpu() -> Result<f64> {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("no CPU time of a thread on this kernel")?;
    Ok(now.tv_sec() as f64 * 1e9 + now.tv_nsec() as f64)
}

/// The peak of the resident set in bytes.
fn peak() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in /proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}

/// What regions do in an interval.
fn touch(random: &mut Xoshiro256PlusPlus, at: u64, region: usize) -> (f32, u64) {
    let hot = region.is_multiple_of(10);
    if hot {
        (random.random_range(0.2..0.9), random.random_range(1_000..(1 << 14)))
    } else if region as u64 % 20 == at % 20 {
        (0.05, SIZE / 64)
    } else {
        (0.0, 0)
    }
}

fn regions(count: usize) -> Vec<Seen> {
    let region = |index: usize| Seen {
        alive: true,
        job: 0,
        start: (index as u64 + 1) << 22,
        bytes: SIZE,
        top: if index < count / 2 { SIZE } else { 0 },
        ..Seen::default()
    };
    (0..count).map(region).collect()
}

/// Decisions of `auto` over so many regions.
fn decisions(count: usize, costs: &Costs) -> Result<Took> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut regions = regions(count);
    let capacity = SIZE * count as u64 / 2;
    let before = peak()?;
    let mut policy = policies::find("auto", costs).context("auto is a policy")?;
    let mut took = Vec::new();
    for at in 1..=INTERVALS {
        for (index, seen) in regions.iter_mut().enumerate() {
            (seen.heat, seen.lines) = touch(&mut random, at, index);
        }
        let (now, tiers) = (at * SECOND, [Load::default(); 2]);
        let start = cpu()?;
        let moves = policy.decide(&View { now, interval: SECOND, capacity, regions: &regions, tiers });
        took.push(cpu()? - start);
        moves.iter().for_each(|step| regions[step.region].top = step.top);
    }
    let bytes = peak()? - before;
    let mut later = took[INTERVALS as usize / 2..].to_vec();
    later.sort_by(f64::total_cmp);
    let slowest = took[1..].iter().copied().fold(0.0, f64::max);
    Ok(Took { median: later[later.len() / 2], first: took[0], slowest, bytes })
}

/// A trace whose every interval has a sample of each region. Returns the samples, and the time to decode and decide.
fn decode(count: usize, costs: &Costs) -> Result<(f64, f64)> {
    let header = Header { name: "dense".into(), interval_ns: SECOND, ..Header::default() };
    let mut writer = Writer::new(Vec::new(), &header)?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let processes = vec![Process { pid: 1, name: "job".into() }];
    let born = |seen: &Seen| Born { process: 0, start: seen.start, bytes: seen.bytes, pattern: Pattern::Random };
    let mut interval = Interval { processes, born: regions(count).iter().map(born).collect(), ..Interval::default() };
    for at in 1..=INTERVALS {
        interval.at = at * SECOND;
        let sample = |region: usize| {
            let (heat, lines) = touch(&mut random, at, region);
            Sample { region, heat: (heat * 1000.0) as u16, read: lines, written: lines / 4 }
        };
        interval.samples = (0..count).map(sample).collect();
        writer.interval(&interval)?;
        (interval.processes, interval.born) = (Vec::new(), Vec::new());
    }
    let trace = writer.finish()?;
    let mut policy = policies::find("auto", costs).context("auto is a policy")?;
    let (mut seen, mut samples) = (regions(count), 0.0);
    let capacity = SIZE * count as u64 / 2;
    let start = cpu()?;
    let mut reader = Reader::new(&trace[..])?;
    while reader.next(&mut interval)? {
        for sample in &interval.samples {
            let seen = &mut seen[sample.region];
            (seen.heat, seen.lines) = (f32::from(sample.heat) / 1000.0, sample.read + sample.written);
        }
        samples += interval.samples.len() as f64;
        let view = View { now: interval.at, interval: SECOND, capacity, regions: &seen, tiers: [Load::default(); 2] };
        let moves = policy.decide(&view);
        moves.iter().for_each(|step| seen[step.region].top = step.top);
    }
    Ok((samples, cpu()? - start))
}
