//! Nothing, the kernel's tiering, DAMON's schemes and this agent on the same five workloads; resumes.
//!
//! In guests under emulation: shares, counts and ratios within one guest mean something, times do not. Results are kept
//! in a file and used again as long as the job's program, for the agent's also `tensortier`, and settings are the same.

use std::{env, fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use tensortier_tests::{
    bench::{Bench, GuestArgs},
    peers::{
        self, Cell, Job, System, Workload, chart,
        judge::{self, Cells, Seen},
    },
    points::{Store, build_of},
    scenario::{self, sibling},
};

/// What the agent keeps free: the default of 64 MiB is an eighth of the DRAM here, and the peers keep some MiB. With 8,
/// moves failed for want of memory.
const HEADROOM: &str = "headroom_bytes = \"16MiB\"\nheadroom_percent = 1.0";

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    guests: GuestArgs,
    /// Workloads, in turn.
    #[arg(long, value_delimiter = ',', default_values_t = Workload::ALL)]
    workload: Vec<Workload>,
    /// Systems to run, in turn; those of earlier runs are shown too.
    #[arg(long, value_delimiter = ',', default_values_t = System::ALL)]
    system: Vec<System>,
    /// The agent's policy, as its config names it.
    #[arg(long, default_value = "auto")]
    policy: String,
    /// Seconds of a run, instead of each workload's own.
    #[arg(long)]
    seconds: Option<f64>,
    /// Seconds of the job without a system, before, where `nothing` does not run in the same guest.
    #[arg(long, default_value_t = 15.0)]
    alone_seconds: f64,
    /// Seconds for which a peer runs again that has moved nothing; 0 leaves that out.
    #[arg(long, default_value_t = 300.0)]
    again_seconds: f64,
    /// Huge pages of the jobs: always or never.
    #[arg(long, default_value = "never", value_parser = ["always", "never"])]
    thp: String,
    /// Where results are kept.
    #[arg(long, value_name = "FILE", default_value = "out/peers.jsonl")]
    store: PathBuf,
    /// Where table and plot are written, as peers-KERNEL.md and peers-KERNEL.svg.
    #[arg(long, value_name = "FOLDER", default_value = "out")]
    results: PathBuf,
    /// Measures everything again.
    #[arg(long)]
    fresh: bool,
}

struct Run {
    args: Args,
    store: Store<Cell>,
    agent_build: u64,
}

fn main() -> Result<ExitCode> {
    if let Some(job) = scenario::asked::<Job>() {
        return job.and_then(|job| job.play()).map(|()| ExitCode::SUCCESS);
    }
    let args = Args::parse();
    scenario::build()?;
    let mut bench = Bench::new("peers", &args.guests.bench);
    bench.environment("guest", "numa profile under emulation, both nodes equally fast");
    bench.environment("agent", args.config().replace('\n', " "));
    let store = Store::of_build(&args.store, args.fresh, peers::build())?;
    let mut run = Run { args, store, agent_build: build_of(&sibling("tensortier"))? };
    for kernel in run.args.guests.kernel.clone() {
        let mut cells = Cells::new();
        for workload in run.args.workload.clone() {
            run.workload(&kernel, workload, &mut cells)?;
            judge::bars(&mut bench, &format!("{kernel}.{workload}"), workload, &cells);
        }
        run.write(&kernel, &cells)?;
    }
    bench.finish()
}

impl Args {
    fn config(&self) -> String {
        format!("[policy]\npolicy = \"{}\"\n{HEADROOM}\n", self.policy)
    }
}

impl Run {
    /// The cells of a workload: those that are asked for, run where they are not stored, and what is stored of others.
    fn workload(&mut self, kernel: &str, workload: Workload, cells: &mut Cells) -> Result<()> {
        let job = self.job(kernel, workload, self.args.seconds.unwrap_or(workload.seconds()));
        self.fill(job.clone())?;
        let still = |run: &Self, system: &System| -> Result<bool> {
            let stored = run.store.stored(&run.key(&job, *system)?);
            Ok(system.moves() && stored.is_some_and(|cell| !cell.moved_at_all()))
        };
        let mut again = self.job(kernel, workload, self.args.again_seconds);
        let mut idle = Vec::new();
        if again.seconds > job.seconds {
            for system in System::PEERS {
                if still(self, &system)? {
                    idle.push(system);
                }
            }
        }
        if !idle.is_empty() {
            // What both cost is compared over the same time.
            idle.push(System::Agent);
            again.systems.retain(|system| idle.contains(system));
            self.fill(again.clone())?;
        }
        for system in System::ALL {
            let stored = |job: &Job| Ok::<_, anyhow::Error>(self.store.stored(&self.key(job, system)?).cloned());
            let policy = (system == System::Agent).then(|| self.args.policy.clone());
            let long = if idle.contains(&system) { stored(&again)? } else { None };
            let seen = match (long, stored(&job)?) {
                (Some(cell), _) => {
                    let note = policy.into_iter().chain([format!("again, {} s", again.seconds)]);
                    Seen { cell, note: Some(note.collect::<Vec<_>>().join(", ")) }
                }
                (None, Some(cell)) => Seen { cell, note: policy },
                (None, None) => continue,
            };
            cells.insert((workload, system), seen);
        }
        Ok(())
    }

    fn job(&self, kernel: &str, workload: Workload, seconds: f64) -> Job {
        Job {
            kernel: kernel.to_owned(),
            workload,
            systems: self.args.system.clone(),
            thp: self.args.thp.clone(),
            seconds,
            alone_seconds: self.args.alone_seconds,
            config: self.args.config(),
        }
    }

    /// Runs what is not stored. One that fails is left out, and the bars that need it fail; the others go on in another
    /// guest.
    fn fill(&mut self, mut job: Job) -> Result<()> {
        let mut missing = Vec::new();
        for system in std::mem::take(&mut job.systems) {
            if self.store.stored(&self.key(&job, system)?).is_none() {
                missing.push(system);
            }
        }
        let bench = env::current_exe()?;
        while let Some(first) = missing.first().copied() {
            job.systems = missing.clone();
            let names = missing.iter().map(System::to_string).collect::<Vec<_>>().join(", ");
            eprintln!("peers: {} {}: {names}, {} s each", job.kernel, job.workload, job.seconds);
            let cells = job.run(&bench).unwrap_or_else(|error| {
                eprintln!("peers: {} {} failed: {error:#}", job.kernel, job.workload);
                Vec::new()
            });
            for (system, cell) in &cells {
                self.store.put(&self.key(&job, *system)?, cell.clone())?;
            }
            missing.retain(|system| cells.iter().all(|(done, _)| done != system));
            let failed = missing.first().copied().unwrap_or(first);
            missing.retain(|system| *system != failed);
        }
        Ok(())
    }

    fn key(&self, job: &Job, system: System) -> Result<String> {
        Ok(format!("{} {}", job.key(system)?, if system == System::Agent { self.agent_build } else { 0 }))
    }

    /// Writes and prints the table, and draws the plot.
    fn write(&self, kernel: &str, cells: &Cells) -> Result<()> {
        let folder = &self.args.results;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let table = judge::table(cells);
        println!("{kernel}:\n{table}");
        for ((workload, system), Seen { cell, .. }) in cells.iter().filter(|(_, seen)| !seen.cell.setup.is_empty()) {
            println!("{workload} {system}: {}", cell.setup);
        }
        let title = format!("share of accesses on DRAM, guest kernel {kernel}, emulated");
        for (ending, text) in [("md", table + "\n"), ("svg", chart::svg(&title, cells)?)] {
            let path = folder.join(format!("peers-{kernel}.{ending}"));
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}
