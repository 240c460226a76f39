//! The step of an unmodified PyTorch job, learned from its touches, beside the job's own clock.
//!
//! In a guest under emulation, where a step of this job takes ten seconds and more. What the agent says is read every two
//! seconds and held against the mean of the steps that the job has told of by then.

use std::{
    io::{BufRead, BufReader},
    process::{ExitCode, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tensortier_tests::{
    bench::{Bench, BenchArgs, GuestArgs, Op, median},
    daemon::{Agent, status, tensortier},
    guest::root,
    scenario,
};

/// Steps of the job after which the agent's figure counts.
const JUDGED: std::ops::RangeInclusive<usize> = 5..=15;
const BETWEEN: Duration = Duration::from_secs(2);
/// MiB of the guest's nodes: all of the job fits the first.
const GUEST: (&str, &str) = ("1536M", "512M");

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    guests: GuestArgs,
    /// Layers of a million weights.
    #[arg(long, default_value_t = 16)]
    layers: usize,
    /// Measures here, in a guest.
    #[arg(long, hide = true)]
    in_guest: bool,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.in_guest {
        return in_guest(&args.guests.bench, args.layers);
    }
    scenario::build()?;
    let mut bench = Bench::new("step", &args.guests.bench);
    let layers = args.layers.to_string();
    for kernel in &args.guests.kernel {
        let shape = |guest: tensortier_tests::guest::Guest| guest.dram(GUEST.0).slow(GUEST.1).timeout(3000);
        scenario::measure(&mut bench, kernel, shape, &["--layers", &layers])?;
    }
    bench.finish()
}

/// Seconds of the step that a line of the job tells of.
fn step_seconds(line: &str) -> Option<f64> {
    line.strip_prefix("step ")?.rsplit(' ').next()?.parse().ok()
}

fn in_guest(args: &BenchArgs, layers: usize) -> Result<ExitCode> {
    let mut bench = Bench::new("step", args);
    bench.environment("guest", "numa profile under emulation; numa_balancing=0, demotion=0");
    scenario::fix_settings()?;
    let (agent, _) = Agent::start(&[])?;
    let job = root().join("tests/jobs/adam.py").display().to_string();
    let (layers, steps) = (layers.to_string(), (JUDGED.end() + 2).to_string());
    let words = ["run", "--require", "--name", "train", "--", "/usr/bin/python3", &job, "--layers", &layers];
    let mut run =
        tensortier(&words).args(["--steps", &steps]).stdout(Stdio::piped()).spawn().context("no tensortier")?;
    let told = Arc::new(Mutex::new(Vec::new()));
    let lines = BufReader::new(run.stdout.take().context("the job's output is not piped")?).lines();
    let own = Arc::clone(&told);
    let reader = thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            println!("{line}");
            if let Some(seconds) = step_seconds(&line)
                && let Ok(mut own) = own.lock()
            {
                own.push(seconds);
            }
        }
    });
    let (mut ratios, mut first) = (Vec::new(), f64::NAN);
    while run.try_wait().context("cannot look after the job")?.is_none() {
        thread::sleep(BETWEEN);
        let own = told.lock().map(|own| own.clone()).unwrap_or_default();
        let Ok(status) = status() else { continue };
        let Some(seconds) = status["jobs"][0]["watched"]["step"]["seconds"].as_f64() else { continue };
        println!("after {} steps: one every {seconds:.2} s", own.len());
        first = if first.is_nan() { own.len() as f64 } else { first };
        if JUDGED.contains(&own.len()) {
            ratios.push(seconds * own.len() as f64 / own.iter().sum::<f64>());
        }
    }
    ensure!(run.wait().context("cannot wait for the job")?.success(), "the job failed");
    drop(reader.join());
    agent.end()?;
    let own = told.lock().map(|own| own.clone()).unwrap_or_default();
    bench.figure("step_seconds", median(own.iter().copied()));
    bench.figure("known_after_steps", first);
    bench.figure("readings", ratios.len() as f64);
    bench.bar("percent_off_the_jobs_own_mean", (median(ratios) - 1.0).abs() * 100.0, Op::AtMost, 2.0);
    bench.finish()
}

#[cfg(test)]
mod tests {
    use super::step_seconds;

    #[test]
    fn lines_of_steps_alone_have_a_length() {
        assert_eq!(step_seconds("step 3 loss 0x1.02p+0 seconds 10.7272"), Some(10.7272));
        assert_eq!(step_seconds("torch 1.13.0a0 process 222"), None);
    }
}
