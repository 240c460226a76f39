//! Unmodified CUDA programs on the emulated driver, with and without the library under them: answers, and pageable copies.
//!
//! One C program in three forms: linked with the driver, opening it, and asking `cuGetProcAddress`. Every sequence of
//! random calls, right and wrong ones, gives a hash of all codes, values and bytes; they must be the same. Rates are those
//! of blocking copies of pageable memory, as ratios within this run: the data file of the emulator says what share of the
//! link such copies have, and so by how much they can become faster.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use tensortier_tests::bench::{Bench, BenchArgs, Op, median};

const FORMS: [&str; 3] = ["LINKED", "OPENED", "PROC"];
const PROFILE: &str = include_str!("../../../gpu-bridge/emulator/profile.toml");
/// Of what the data file allows, what must be reached.
const SHARE: f64 = 0.9;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Random sequences, over the three forms together.
    #[arg(long, default_value_t = 100_000)]
    sequences: u64,
    /// The first sequence's seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes of a copy whose rate is measured.
    #[arg(long, default_value_t = 64 << 20)]
    bytes: u64,
    /// Copies each way of a measurement.
    #[arg(long, default_value_t = 5)]
    copies: u64,
    /// Measurements of each kind; medians count.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
}

/// A program, the folder with its driver, and the library.
struct Program {
    path: PathBuf,
    folder: PathBuf,
    library: PathBuf,
}

/// What the program printed, and the library's counters.
struct Answers {
    lines: Vec<String>,
    counters: Vec<u64>,
}

impl Program {
    fn run(&self, under: bool, profile: &str, arguments: [&str; 3]) -> Result<Answers> {
        let mut command = Command::new(&self.path);
        command.args(arguments).env("LD_LIBRARY_PATH", &self.folder);
        command.env("TENSORTIER_EMULATOR", self.folder.join(profile));
        if under {
            command.env("LD_AUDIT", &self.library).env("LD_PRELOAD", &self.library);
        }
        let output = command.output().with_context(|| self.path.display().to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}: {said}", self.path.display(), output.status);
        let mut lines: Vec<String> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
        let last = lines.pop().context("the program printed nothing")?;
        let counters = last.strip_prefix("counters").context("the last line has no counters")?;
        let counters = counters.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        Ok(Answers { lines, counters })
    }

    /// Bytes per second of copies in and out.
    fn rates(&self, under: bool, bytes: u64, copies: u64) -> Result<[f64; 2]> {
        let answers = self.run(under, "data.toml", ["rate", &bytes.to_string(), &copies.to_string()])?;
        ensure!(under == answers.counters.first().is_some_and(|staged| *staged > 0), "{:?}", answers.counters);
        let rate = |name: &str| -> Result<f64> {
            let line = answers.lines.iter().find_map(|line| line.strip_prefix(name));
            Ok(line.with_context(|| format!("no {name}"))?.trim().parse()?)
        };
        Ok([rate("h2d")?, rate("d2h")?])
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let mut bench = Bench::new("preload", &args.bench);
    let folder = tempfile::tempdir()?;
    let beside = std::env::current_exe()?.parent().context("a folder")?.join("deps");
    std::os::unix::fs::symlink(beside.join("libtensortier_emulator.so"), folder.path().join("libcuda.so.1"))?;
    std::fs::write(folder.path().join("data.toml"), PROFILE)?;
    // For answers alone: an engine that takes no time, so that many sequences do not either.
    let fast = PROFILE.replace("2.0e9", "1.0e13").replace("latency_ns = 10000", "latency_ns = 0");
    ensure!(fast != PROFILE, "the emulator's profile has other figures than this bench replaces");
    std::fs::write(folder.path().join("fast.toml"), fast)?;
    let programs: Vec<Program> = FORMS.iter().map(|form| build(form, folder.path(), &beside)).collect::<Result<_>>()?;

    bench.environment("sequences", args.sequences);
    bench.environment("seed", args.seed);
    for (at, (form, program)) in FORMS.iter().zip(&programs).enumerate() {
        let share = args.sequences / 3 + u64::from((at as u64) < args.sequences % 3);
        same_answers(&mut bench, form, program, args.seed + at as u64 * args.sequences, share)?;
    }
    rates(&mut bench, &args, &programs)?;
    bench.finish()
}

fn build(form: &str, folder: &Path, beside: &Path) -> Result<Program> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu-bridge/preload/tests/program.c");
    let path = folder.join(form.to_lowercase());
    let mut cc = Command::new("cc");
    cc.args(["-O1", &format!("-D{form}"), source, "-o"]).arg(&path);
    match form {
        "LINKED" => cc.arg(folder.join("libcuda.so.1")),
        _ => cc.arg("-ldl"),
    };
    ensure!(cc.status().context("cc")?.success(), "{source} was not compiled");
    let library = beside.join("libtensortier_preload.so");
    ensure!(library.exists(), "{}: built with this bench", library.display());
    Ok(Program { path, folder: folder.into(), library })
}

/// Runs the same sequences with and without the library, at once.
fn same_answers(bench: &mut Bench, form: &str, program: &Program, seed: u64, count: u64) -> Result<()> {
    let arguments = [seed.to_string(), count.to_string()];
    let run = |under| program.run(under, "fast.toml", ["sequences", &arguments[0], &arguments[1]]);
    let (alone, under) = thread::scope(|scope| {
        let alone = scope.spawn(|| run(false));
        let under = run(true);
        (alone.join(), under)
    });
    let (Ok(alone), under) = (alone, under?) else { bail!("a thread of this bench panicked") };
    let alone = alone?;
    ensure!(alone.lines.len() as u64 == count, "{} of {count} sequences", alone.lines.len());
    let differ = alone.lines.iter().zip(&under.lines).filter(|(alone, under)| alone != under);
    let differ: Vec<_> = differ.collect();
    if let Some((alone, under)) = differ.first() {
        eprintln!("{form}: sequence {alone} without the library, {under} with it");
    }
    let name = form.to_lowercase();
    let missing = alone.lines.len().abs_diff(under.lines.len());
    bench.bar(&format!("{name}.sequences_that_differ"), (differ.len() + missing) as f64, Op::Exactly, 0.0);
    bench.figure(&format!("{name}.sequences"), count as f64);
    let [
        staged,
        bytes,
        known,
        capturing,
        busy,
        no_ring,
        unsure,
        refused,
        failed,
        pooled,
        _,
        passed,
        given,
        untold,
        panics,
    ] = under.counters[..]
    else {
        bail!("{form}: counters {:?}", under.counters)
    };
    for (what, value) in [
        ("staged_copies", staged),
        ("staged_bytes", bytes),
        ("pooled_allocations", pooled),
        ("allocations_left_to_the_driver", passed),
        ("copies_left_to_the_driver_known", known),
        ("copies_left_to_the_driver_unsure", unsure),
        ("copies_left_to_the_driver_refused", refused),
        ("copies_left_to_the_driver_other", capturing + busy + no_ring),
        ("addresses_given", given),
        ("copies_that_no_agent_was_told_of", untold),
    ] {
        bench.figure(&format!("{name}.{what}"), value as f64);
    }
    // The comparison says something only where the library had a part.
    bench.bar(&format!("{name}.staged_copies_a_sequence"), staged as f64 / count as f64, Op::AtLeast, 0.1);
    bench.bar(&format!("{name}.pooled_allocations_a_sequence"), pooled as f64 / count as f64, Op::AtLeast, 0.1);
    bench.bar(&format!("{name}.panics_and_failed_copies"), (panics + failed) as f64, Op::Exactly, 0.0);
    Ok(())
}

/// A key's number in the emulator's data file.
fn datum(key: &str) -> Result<f64> {
    let line = PROFILE.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_prefix('='));
    line.and_then(|value| value.trim().parse().ok()).with_context(|| format!("profile.toml has no {key}"))
}

fn rates(bench: &mut Bench, args: &Args, programs: &[Program]) -> Result<()> {
    for (form, program) in FORMS.iter().zip(programs) {
        let mut ratios: [Vec<f64>; 2] = Default::default();
        for _ in 0..args.repeat {
            let alone = program.rates(false, args.bytes, args.copies)?;
            let under = program.rates(true, args.bytes, args.copies)?;
            (0..2).for_each(|way| ratios[way].push(under[way] / alone[way]));
        }
        for (ratios, way) in ratios.into_iter().zip(["h2d", "d2h"]) {
            let name = form.to_lowercase();
            let allowed = 1.0 / datum(&format!("pageable_{way}"))?;
            let reached = median(ratios);
            bench.figure(&format!("{name}.{way}_times_as_fast"), reached);
            bench.figure(&format!("{name}.{way}_times_as_fast_allowed"), allowed);
            bench.bar(&format!("{name}.{way}_of_the_ratio_allowed"), reached / allowed, Op::AtLeast, SHARE);
        }
    }
    Ok(())
}
