//! The frame of every bench: what was measured, where, and which bars hold.
//!
//! A bench makes one [`Bench`], reports figures and bars as it goes, and ends with [`Bench::finish`], which prints a
//! table, writes the JSON file and gives the exit code: 0 where every bar holds, 1 where one does not.
//!
//! A bench that measures inside a guest runs itself there with `--json` on a shared file, reads that file back with
//! [`Report::read`] and takes it over with [`Bench::absorb`].

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};

/// The options that every bench takes; flatten it into the bench's own arguments.
#[derive(Args, Clone, Debug, Default)]
pub struct BenchArgs {
    /// Writes environment, figures and bars to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The options of a bench that runs in guests.
#[derive(Args, Clone, Debug, Default)]
pub struct GuestArgs {
    /// What every bench takes.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Kernels, in turn.
    #[arg(long, value_delimiter = ',', default_value = "6.12,7.3")]
    pub kernel: Vec<String>,
}

/// How a value is held against its bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// The value must not exceed the bar.
    #[serde(rename = "<=")]
    AtMost,
    /// The value must reach the bar.
    #[serde(rename = ">=")]
    AtLeast,
    /// The value must be the bar exactly: counts and checksums.
    #[serde(rename = "==")]
    Exactly,
}

impl Op {
    /// Whether `value` holds against `bar`. NaN never does: what was not measured does not pass.
    pub fn holds(self, value: f64, bar: f64) -> bool {
        match self {
            Op::AtMost => value <= bar,
            Op::AtLeast => value >= bar,
            Op::Exactly => value == bar,
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Op::AtMost => "<=",
            Op::AtLeast => ">=",
            Op::Exactly => "==",
        }
    }
}

/// One bar and whether it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// What is held against the bar.
    pub name: String,
    /// The value measured; `None` (null) where none could be.
    pub value: Option<f64>,
    /// How it is held against the bar.
    pub op: Op,
    /// The bar.
    pub bar: f64,
    /// Whether it holds.
    pub holds: bool,
}

/// What a bench writes with `--json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The bench's name, as `scripts/bench` knows it.
    pub bench: String,
    /// Where it ran: kernel, cpu, guest, settings fixed for it.
    pub environment: BTreeMap<String, String>,
    /// Everything measured, by name; units in the names.
    pub figures: BTreeMap<String, f64>,
    /// The bars.
    pub bars: Vec<Bar>,
}

impl Report {
    /// Reads a report that a bench wrote with `--json`.
    ///
    /// # Errors
    /// The file cannot be read, or is not a report.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("the report {} is missing", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a bench's report", path.display()))
    }

    /// Whether every bar holds; a report without bars shows nothing and so does not.
    pub fn holds(&self) -> bool {
        !self.bars.is_empty() && self.bars.iter().all(|bar| bar.holds)
    }
}

/// One bench under way.
#[derive(Debug)]
pub struct Bench {
    report: Report,
    json: Option<PathBuf>,
}

impl Bench {
    /// A bench named as `scripts/bench` knows it, with this machine's kernel and CPU in its environment.
    pub fn new(name: &str, args: &BenchArgs) -> Self {
        let mut bench =
            Self { report: Report { bench: name.to_owned(), ..Report::default() }, json: args.json.clone() };
        for (key, value) in machine() {
            bench.environment(key, value);
        }
        bench
    }

    /// States a fact about where the bench runs or what it fixed (`guest`, `numa_balancing`, …).
    pub fn environment(&mut self, key: &str, value: impl ToString) {
        self.report.environment.insert(key.to_owned(), value.to_string());
    }

    /// Reports a figure; the unit belongs in the name (`touch_ns_per_fault`).
    pub fn figure(&mut self, name: &str, value: f64) {
        self.report.figures.insert(name.to_owned(), value);
    }

    /// Holds `value` against `bar`, and reports it as a figure too.
    pub fn bar(&mut self, name: &str, value: f64, op: Op, bar: f64) {
        self.figure(name, value);
        self.report.bars.push(Bar {
            name: name.to_owned(),
            value: value.is_finite().then_some(value),
            op,
            bar,
            holds: op.holds(value, bar),
        });
    }

    /// Takes over another run's figures, bars and environment, each name behind `PREFIX.` (empty: as they are).
    pub fn absorb(&mut self, prefix: &str, other: Report) {
        let named = |name: String| if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        self.report.environment.extend(other.environment.into_iter().map(|(key, value)| (named(key), value)));
        self.report.figures.extend(other.figures.into_iter().map(|(key, value)| (named(key), value)));
        self.report.bars.extend(other.bars.into_iter().map(|bar| Bar { name: named(bar.name.clone()), ..bar }));
    }

    /// Prints the table, writes the JSON file, and says how the bench ends.
    ///
    /// # Errors
    /// The JSON file cannot be written.
    pub fn finish(mut self) -> Result<ExitCode> {
        // JSON has no NaN: a figure that could not be measured is left out, its bar stays and does not hold.
        self.report.figures.retain(|_, value| value.is_finite());
        println!("{}", self.table());
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&self.report).context("a report is always JSON")?;
            fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.report.holds() {
            return Ok(ExitCode::SUCCESS);
        }
        let missed = self.report.bars.iter().filter(|bar| !bar.holds).count();
        eprintln!("{}: {missed} of {} bars do not hold", self.report.bench, self.report.bars.len());
        Ok(ExitCode::FAILURE)
    }

    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([self.report.bench.as_str(), "value", "bar", ""]);
        for bar in &self.report.bars {
            table.add_row([
                bar.name.clone(),
                bar.value.map_or("not measured".to_owned(), show),
                format!("{} {}", bar.op.sign(), show(bar.bar)),
                if bar.holds { "holds".to_owned() } else { "MISSED".to_owned() },
            ]);
        }
        let barred = |name: &str| self.report.bars.iter().any(|bar| bar.name == name);
        for (name, value) in self.report.figures.iter().filter(|(name, _)| !barred(name)) {
            table.add_row([name.clone(), show(*value), String::new(), String::new()]);
        }
        let environment: Vec<_> = self.report.environment.iter().map(|(key, value)| format!("{key}={value}")).collect();
        format!("{table}\n{}", environment.join(" · "))
    }
}

fn show(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 1000.0 || value == value.trunc() => 0,
        v if v >= 10.0 => 1,
        _ => 4,
    };
    format!("{value:.digits$}")
}

fn machine() -> Vec<(&'static str, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| line.strip_prefix("model name").and_then(|rest| rest.split_once(": ")))
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned());
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    vec![
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("cpu", cpu),
        ("cpus", cpus.to_string()),
        ("thp", chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled"))),
    ]
}

/// The bracketed choice of a sysfs file such as `always [madvise] never`; "absent" where there is none.
fn chosen(text: &str) -> String {
    let inside = |text: &str| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned());
    inside(text).unwrap_or_else(|| "absent".to_owned())
}

/// The middle value; NaN of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_bar_that_does_not_hold_or_was_not_measured_fails_the_bench() {
        for (value, holds) in [(149.0, true), (150.0, true), (150.1, false), (f64::NAN, false)] {
            let mut bench = Bench::new("example", &BenchArgs::default());
            bench.bar("ns", value, Op::AtMost, 150.0);
            assert_eq!(bench.report.holds(), holds, "{value}");
        }
        assert!(!Bench::new("example", &BenchArgs::default()).report.holds(), "no bar shows nothing");
    }

    #[test]
    fn reports_round_trip_and_merge_behind_a_prefix() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        let mut guest = Bench::new("example", &BenchArgs { json: Some(path.clone()) });
        guest.environment("guest", "6.12 numa");
        guest.bar("share", 0.97, Op::AtLeast, 0.95);
        guest.bar("lost", f64::NAN, Op::Exactly, 0.0);
        guest.finish().unwrap();

        let mut host = Bench::new("example", &BenchArgs::default());
        host.absorb("6.12", Report::read(&path).unwrap());
        assert_eq!(host.report.figures["6.12.share"], 0.97);
        assert_eq!(host.report.environment["6.12.guest"], "6.12 numa");
        assert_eq!(host.report.bars.iter().map(|bar| bar.holds).collect::<Vec<_>>(), [true, false]);
        let text = serde_json::to_value(&host.report).unwrap();
        assert_eq!(text["bars"][0]["op"], ">=");
        assert_eq!(text["bars"][1]["value"], serde_json::Value::Null);
    }
}
