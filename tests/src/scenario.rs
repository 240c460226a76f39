//! The exerciser in a guest, under the agent and without it: what the benches of placement are made of.
//!
//! The bench runs itself again inside the guest ([`inside`]); only there are settings of the kernel changed. Settings
//! fixed in every scenario: NUMA balancing off, the kernel's demotion off, huge pages on `madvise`.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tensortier::units::NodeId;

use crate::{
    bench::{self, Bench},
    exerciser::report::Report,
    guest::{Guest, Profile, root},
};

/// The guest finds its scenario in this variable.
const VARIABLE: &str = "TENSORTIER_SCENARIO";

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// Names its figures.
    pub name: String,
    /// The guest's kernel, as `scripts/vm --kernel` takes it.
    pub kernel: String,
    /// Memory of node 0 and of the slow node, in MiB.
    pub guest_mib: (u64, u64),
    /// Free memory of node 0 when the job starts, in MiB; the rest is taken away.
    pub free_dram_mib: u64,
    /// The policy, where it is not the agent's default.
    pub policy: Option<String>,
    /// The exerciser's arguments, without its length and report.
    pub exerciser: Vec<String>,
    /// Seconds under the agent.
    pub seconds: f64,
    /// Seconds without it, before, for comparison in the same guest; 0 for none.
    pub alone_seconds: f64,
}

/// A scenario's name: its parts, and the policy where one is asked for.
pub fn name(parts: &[&str], policy: Option<&str>) -> String {
    parts.iter().copied().chain(policy).collect::<Vec<_>>().join(".")
}

/// What was seen.
#[derive(Debug)]
pub struct Seen {
    /// The exerciser under the agent.
    pub under: Report,
    /// The exerciser without it.
    pub alone: Option<Report>,
    /// The agent's summary.
    pub summary: serde_json::Value,
}

impl Seen {
    /// Bytes that the agent says it moved to `to`.
    pub fn moved_to(&self, to: NodeId) -> u64 {
        let rows = self.summary["watched"]["moved"].as_array().into_iter().flatten();
        rows.filter(|row| row["to"] == to.0).filter_map(|row| row["bytes"].as_u64()).sum()
    }

    /// A number of the summary by its path, `watched.cost.agent_cpu_seconds`; NaN where it is not there.
    pub fn number(&self, path: &str) -> f64 {
        path.split('.').fold(&self.summary, |value, key| &value[key]).as_f64().unwrap_or(f64::NAN)
    }
}

impl Scenario {
    /// Boots a guest, runs the scenario in it, and reads what came back. `bench` is this program.
    ///
    /// # Errors
    /// The guest does not run, a run in it fails, or the kernel complained (its log has a warning or an oops).
    pub fn run(&self, bench: &Path) -> Result<Seen> {
        let out = boot(&self.name, &self.kernel, self.guest_mib, self.seconds + self.alone_seconds, self, bench)?;
        let alone = (self.alone_seconds > 0.0).then(|| Report::read(&out.join("alone.json"))).transpose()?;
        let summary = fs::read_to_string(out.join("summary.json")).context("the run left no summary")?;
        let seen = Seen {
            under: Report::read(&out.join("under.json"))?,
            alone,
            summary: serde_json::from_str(&summary).context("the summary is not JSON")?,
        };
        fs::remove_dir_all(&out).with_context(|| format!("cannot remove {}", out.display()))?;
        Ok(seen)
    }

    fn exerciser(&self, seconds: f64, report: &Path) -> Vec<String> {
        let mut words = vec![sibling("exerciser").display().to_string()];
        words.extend(self.exerciser.iter().cloned());
        words.extend(["--seconds".into(), seconds.to_string(), "--report".into(), report.display().to_string()]);
        words
    }

    fn play(&self) -> Result<()> {
        let out = out()?;
        fix_settings()?;
        if self.alone_seconds > 0.0 {
            leave_free(self.free_dram_mib)?;
            let words = self.exerciser(self.alone_seconds, &out.join("alone.json"));
            run(Command::new(&words[0]).args(&words[1..]))?;
        }
        leave_free(self.free_dram_mib)?;
        let words = self.exerciser(self.seconds, &out.join("under.json"));
        let summary = out.join("summary.json");
        run(Command::new(sibling("tensortier"))
            .args(["run", "--require"])
            .args(self.policy.iter().flat_map(|policy| ["--policy", policy]))
            .arg("--summary-json")
            .arg(summary)
            .arg("--")
            .args(words))
    }
}

/// A bench that measures inside guests alone, of the shape given: one for each kernel.
///
/// # Errors
/// What the guests run does not build, or as [`measure`].
pub fn in_guests(name: &str, args: &bench::GuestArgs, shape: impl Fn(Guest) -> Guest) -> Result<ExitCode> {
    build()?;
    let mut bench = Bench::new(name, &args.bench);
    for kernel in &args.kernel {
        measure(&mut bench, kernel, &shape, &[])?;
    }
    bench.finish()
}

/// Has a bench measure inside a guest: it runs itself there with `--in-guest` and `words`, and its figures are taken in
/// under the kernel's name. Gives the guest's kernel log.
///
/// # Errors
/// The guest does not run, or nothing was measured in it.
pub fn measure(bench: &mut Bench, kernel: &str, shape: impl FnOnce(Guest) -> Guest, words: &[&str]) -> Result<String> {
    let program = env::current_exe()?;
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let out = tempdir(&format!("{name}-{kernel}"))?;
    let guest = shape(Guest::new(Profile::Numa, kernel, &out));
    let in_guest = ["--in-guest", "--json", "/out/report.json"].iter().chain(words).map(OsStr::new);
    let ran = guest.run([program.as_os_str()].into_iter().chain(in_guest))?;
    print!("{}", ran.stdout);
    bench.absorb(kernel, bench::Report::read(&out.join("report.json"))?);
    let log = ran.kernel_log()?;
    fs::remove_dir_all(&out).with_context(|| format!("cannot remove {}", out.display()))?;
    Ok(log)
}

/// Boots a guest with so many MiB of DRAM and of slow memory and runs `bench` in it, this program, which finds `job`
/// there by [`asked`]; `seconds` is about how long the job takes. Gives the folder with what was written to
/// `$TENSORTIER_OUT`, which is the caller's to remove.
///
/// # Errors
/// The guest does not run, the job fails, or the kernel complained (its log has a warning or an oops).
pub fn boot<T: Serialize>(
    name: &str,
    kernel: &str,
    mib: (u64, u64),
    seconds: f64,
    job: &T,
    bench: &Path,
) -> Result<PathBuf> {
    let out = tempdir(name)?;
    let variable = format!("{VARIABLE}={}", serde_json::to_string(job)?);
    let guest = Guest::new(Profile::Numa, kernel, &out)
        .dram(&format!("{}M", mib.0))
        .slow(&format!("{}M", mib.1))
        .timeout(300 + 8 * seconds as u32);
    let ran = guest.run([OsStr::new("env"), OsStr::new(&variable), bench.as_os_str()])?;
    ensure!(ran.code == 0, "{name} failed in the guest ({}):\n{}", ran.code, ran.stdout);
    let complaint = |line: &&str| line.contains("WARNING:") || line.contains("BUG:");
    if let Some(line) = ran.kernel_log()?.lines().find(complaint) {
        bail!("{name}: the guest's kernel complained: {line}; see {}", out.join("kernel.log").display());
    }
    Ok(out)
}

/// In the guest: the job that was asked for. `None` on the host, where the bench itself is to run.
pub fn asked<T: DeserializeOwned>() -> Option<Result<T>> {
    let text = env::var(VARIABLE).ok()?;
    Some(serde_json::from_str(&text).context("the guest was asked for something else"))
}

/// In the guest: the folder whose files the host gets.
///
/// # Errors
/// This is no guest.
pub fn out() -> Result<PathBuf> {
    Ok(PathBuf::from(env::var_os("TENSORTIER_OUT").context("the guest has no $TENSORTIER_OUT")?))
}

/// In the guest: runs the scenario that was asked for. `None` on the host, where the bench itself is to run.
///
/// # Errors
/// A program of the scenario fails, or a setting cannot be fixed.
pub fn inside() -> Option<Result<()>> {
    asked().map(|scenario| scenario.and_then(|scenario: Scenario| scenario.play()))
}

/// In the guest: takes the kernel's own tiering out of the measurement.
///
/// # Errors
/// The kernel refuses a setting.
pub fn fix_settings() -> Result<()> {
    fix("/proc/sys/kernel/numa_balancing", "0")?;
    fix("/sys/kernel/mm/numa/demotion_enabled", "false")?;
    fix("/sys/kernel/mm/transparent_hugepage/enabled", "madvise")?;
    fix("/sys/kernel/mm/transparent_hugepage/defrag", "madvise")
}

/// A program that was built beside this one.
pub fn sibling(name: &str) -> PathBuf {
    env::current_exe().unwrap_or_default().with_file_name(name)
}

/// Builds what the guests run, as this program was built.
///
/// # Errors
/// cargo fails.
pub fn build() -> Result<()> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args([
        "build",
        "--quiet",
        "-p",
        "tensortier",
        "-p",
        "tensortier-tests",
        "--bin",
        "tensortier",
        "--bin",
        "exerciser",
    ]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    run(&mut cargo)
}

/// Takes memory of node 0 away until `mib` are free; gives back what an earlier call took.
///
/// # Errors
/// The node has less.
pub fn leave_free(mib: u64) -> Result<()> {
    let balloon = root().join("scripts/guest/balloon");
    run(Command::new(&balloon).args(["0", "0"]))?;
    run(Command::new(&balloon).args([&format!("{mib}M"), "0"]))
}

/// Writes a setting of the kernel.
///
/// # Errors
/// The kernel refuses.
pub fn fix(path: &str, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("cannot write {value} to {path}"))
}

/// Runs a command to its end.
///
/// # Errors
/// It cannot be started, or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(status.success(), "{:?} ended with {status}", command.get_program());
    Ok(())
}

fn tempdir(name: &str) -> Result<PathBuf> {
    let path = env::temp_dir().join(format!("tensortier-{}-{}", name.replace(['/', ' '], "-"), std::process::id()));
    fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}
