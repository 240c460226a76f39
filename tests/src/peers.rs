//! The same work under nothing, the kernel's own tiering, DAMON's schemes and this agent: the parts of `bench-peers`.
//!
//! The systems meet a workload one after the other in one guest ([`Job::run`] on the host, [`Job::play`] in the guest),
//! each with the job begun anew. The job runs without a system first: times are compared within the guest alone. A
//! system is started before the job; everything is counted from the job's first touch after its fill to its end.
//!
//! [`workload`] the work, [`system`] who moves its pages, [`damos`] how DAMON is set up for it, [`watch`] counters and
//! CPU time, [`judge`] the table and the bars, [`chart`] the plot.

pub mod chart;
pub mod damos;
pub mod judge;
pub mod system;
pub mod watch;
pub mod workload;

use std::{
    collections::BTreeMap,
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    process::Command,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tensortier::units::PAGE;

use self::{system::Running, watch::Watch};
pub use self::{system::System, workload::Workload};
use crate::{
    exerciser::Report,
    scenario::{self, sibling},
};

/// What a result depends on beside the agent: the job's program, and how it is watched. A change of these makes all
/// results anew, where a build of something else beside them does not.
const SOURCES: [&str; 12] = [
    include_str!("exerciser.rs"),
    include_str!("exerciser/layout.rs"),
    include_str!("exerciser/memory.rs"),
    include_str!("exerciser/options.rs"),
    include_str!("exerciser/oracle.rs"),
    include_str!("exerciser/report.rs"),
    include_str!("exerciser/sample.rs"),
    include_str!("exerciser/work.rs"),
    include_str!("peers.rs"),
    include_str!("peers/damos.rs"),
    include_str!("peers/system.rs"),
    include_str!("peers/watch.rs"),
];

/// Where the exerciser reports, in the guest.
const REPORT: &str = "report.json";

/// Systems on one workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The guest's kernel.
    pub kernel: String,
    /// What runs.
    pub workload: Workload,
    /// Who moves its pages, in turn.
    pub systems: Vec<System>,
    /// Huge pages of the job: `always` or `never`.
    pub thp: String,
    /// Seconds with each system.
    pub seconds: f64,
    /// Seconds without one, before, where [`System::Nothing`] is not among them.
    pub alone_seconds: f64,
    /// The agent's config.
    pub config: String,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Access-weighted share on DRAM after the workload's time to settle.
    pub share: f64,
    /// What the best fixed sets had given there.
    pub oracle: f64,
    /// Seconds and share, over the whole run.
    pub curve: Vec<(f64, f64)>,
    /// From, to, and what the best fixed set had given.
    pub best: Vec<(f64, f64, f64)>,
    /// Length of the run, in seconds.
    pub seconds: f64,
    /// Bytes of the job.
    pub footprint: u64,
    /// Bytes migrated on the machine, whoever did it (`pgmigrate_success`).
    pub moved: u64,
    /// Bytes up and down by the system's own account; the run's beginning before the first touch is in it.
    pub by_account: Option<(u64, u64)>,
    /// The kernel's counters that changed, in their own units.
    pub counters: BTreeMap<String, u64>,
    /// CPU seconds by who used them: `agent`, `kdamond`, `kswapd`, `job`, `job_system`.
    pub cpu: BTreeMap<String, f64>,
    /// Time of an access over that in the run without a system, in the same guest.
    pub slowdown: f64,
    /// 99th percentile and longest time of a unit of work, in ns, and the former without a system.
    pub stall_ns: (u64, u64, u64),
    /// Mean time of a step, in ns.
    pub step_ns: f64,
    /// Whether no word of the job was damaged, in both runs.
    pub intact: bool,
    /// What the system says of how it was set up.
    pub setup: String,
}

impl Cell {
    /// CPU of the agent and of kdamonds, in seconds a second.
    pub fn watching_cpu(&self) -> f64 {
        let of = |name: &str| self.cpu.get(name).copied().unwrap_or(0.0);
        (of("agent") + of("kdamond")) / self.seconds
    }

    /// Share of the job's bytes that moved in a minute.
    pub fn moved_a_minute(&self) -> f64 {
        self.moved as f64 / self.footprint as f64 / self.seconds * 60.0
    }

    /// Whether it moved anything to speak of: a MiB, while the memory was filled too.
    pub fn moved_at_all(&self) -> bool {
        let (up, down) = self.by_account.unwrap_or_default();
        self.moved.max(up + down) >= 1 << 20
    }
}

/// A number that stands for what results depend on beside the agent.
pub fn build() -> u64 {
    let mut hasher = DefaultHasher::new();
    (SOURCES, cfg!(debug_assertions)).hash(&mut hasher);
    hasher.finish()
}

impl Job {
    /// Names the result of one of its systems: all that it depends on beside the programs.
    ///
    /// # Errors
    /// None in practice: a job is JSON.
    pub fn key(&self, system: System) -> Result<String> {
        let config = if system == System::Agent { self.config.clone() } else { String::new() };
        let alone = Self { systems: vec![system], config, ..self.clone() };
        Ok(format!("{} {:?}", serde_json::to_string(&alone)?, self.workload.exerciser(&self.thp)))
    }

    /// Runs it in a guest; `bench` is this program. What the systems left, up to the one that failed.
    ///
    /// # Errors
    /// The guest does not run, the job fails without a system, or the kernel complained.
    pub fn run(&self, bench: &Path) -> Result<Vec<(System, Cell)>> {
        let name = format!("{}-{}", self.kernel, self.workload);
        let seconds = self.alone_seconds + self.seconds * self.systems.len() as f64;
        let out = scenario::boot(&name, &self.kernel, self.workload.guest_mib(), seconds, self, bench)?;
        let mut cells = Vec::new();
        for system in &self.systems {
            let Ok(text) = fs::read_to_string(out.join(file(*system))) else { continue };
            cells.push((*system, serde_json::from_str(&text).with_context(|| format!("{system} left {text:?}"))?));
        }
        fs::remove_dir_all(&out).with_context(|| format!("cannot remove {}", out.display()))?;
        Ok(cells)
    }

    /// In the guest: runs it and writes the results for the host. A system that fails ends it, with words on stderr:
    /// what it leaves behind would meet the next one.
    ///
    /// # Errors
    /// Something fails beside a system.
    pub fn play(&self) -> Result<()> {
        scenario::fix_settings()?;
        let mut alone = None;
        if !self.systems.contains(&System::Nothing) {
            scenario::leave_free(self.workload.dram_mib())?;
            alone = Some(self.exercise(self.alone_seconds, None)?);
        }
        for system in &self.systems {
            let (cell, report) = match self.meet(*system, alone.as_ref()) {
                Ok(met) => met,
                Err(error) => {
                    eprintln!("peers: {} under {system} failed: {error:#}", self.workload);
                    return Ok(());
                }
            };
            if *system == System::Nothing {
                alone = Some(report);
            }
            let path = scenario::out()?.join(file(*system));
            let text = serde_json::to_string(&cell)?;
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// The job under a system; `alone` is it without one, where that is known yet.
    fn meet(&self, system: System, alone: Option<&Report>) -> Result<(Cell, Report)> {
        let running = Running::start(system, &self.config)?;
        // What the system itself needs is there before the job's memory is measured out.
        scenario::leave_free(self.workload.dram_mib())?;
        let watch = Watch::start()?;
        let under = self.exercise(self.seconds, running.client())?;
        let looks = watch.end()?;
        let account = running.end()?;
        let started = UNIX_EPOCH + Duration::from_millis(under.started_unix_ms);
        let used = watch::between(&looks, started, started + Duration::from_secs_f64(under.seconds))?;
        let (share, oracle) = under.shares(self.workload.settle_seconds());
        ensure!(share.is_finite() && oracle.is_finite(), "{} s are too short for {}", self.seconds, self.workload);
        let alone = alone.unwrap_or(&under);
        let slowdown = access_ns(&under) / access_ns(alone);
        ensure!(slowdown.is_finite(), "{} s alone are too short to compare with", self.alone_seconds);
        let cell = Cell {
            share,
            oracle,
            curve: under.samples.iter().map(|sample| (sample.at, sample.access_dram)).collect(),
            best: under.best.iter().map(|best| (best.from, best.to, best.share)).collect(),
            seconds: under.seconds,
            footprint: under.pieces.iter().map(|piece| piece.range.bytes()).sum(),
            moved: used.counters.get("pgmigrate_success").copied().unwrap_or(0) * PAGE,
            by_account: account.moved,
            counters: used.counters,
            cpu: used.cpu,
            slowdown,
            stall_ns: (under.stalls_ns.p99, under.stalls_ns.max, alone.stalls_ns.p99),
            step_ns: under.steps_ns.mean,
            intact: under.checksum_ok && alone.checksum_ok,
            setup: account.setup,
        };
        Ok((cell, under))
    }

    /// Runs the exerciser, by `client` where the system wants to start its jobs itself.
    fn exercise(&self, seconds: f64, client: Option<Command>) -> Result<Report> {
        let report = env::temp_dir().join(REPORT);
        let exerciser = sibling("exerciser");
        let mut command = match client {
            None => Command::new(exerciser),
            Some(mut client) => {
                client.arg("--").arg(exerciser);
                client
            }
        };
        command.args(self.workload.exerciser(&self.thp)).args(["--seconds", &seconds.to_string(), "--report"]);
        // A damaged word ends the exerciser with 1; that is a result, and so is its report.
        let _ = fs::remove_file(&report);
        let status = command.arg(&report).status().context("cannot start the exerciser")?;
        Report::read(&report).with_context(|| format!("the exerciser ended with {status}"))
    }
}

/// The file that the guest leaves of a system.
fn file(system: System) -> String {
    format!("{system}.json")
}

/// Mean time of an access, in ns, without the first second.
fn access_ns(report: &Report) -> f64 {
    let Some((first, rest)) = report.samples.split_first() else { return f64::NAN };
    let (seconds, accesses) =
        rest.iter().fold((0.0, 0), |(_, sum), sample| (sample.at - first.at, sum + sample.accesses));
    seconds * 1e9 / accesses as f64
}
