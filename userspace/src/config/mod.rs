//! The config: one TOML file, checked as a whole before anything starts.
//!
//! `default.toml` beside this file has every key with its default and its meaning. A file is read into its written form
//! and checked into [`Config`], whose values need no second look.

mod check;
mod file;
mod rules;

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

pub use rules::{Actuator, Limits, Mode, PolicyKind, Rule};
use serde::Deserialize;

use crate::units::NodeSet;

/// Where the config is looked for when no file is named.
pub const DEFAULT_PATH: &str = "/etc/tensortier/config.toml";

/// The config with every default written out, for people to start from.
pub const DEFAULT_TOML: &str = include_str!("default.toml");

/// CPU time that DAMON needs to look at one region once.
///
/// Ours, measured: a kdamond over 1,300 to 1,900 physical regions on a virtualised x86-64 host (Linux 6.18, 500 ms
/// sampling) had used 2.0 µs a region and sample after 19 minutes, its one scheme included.
pub const SCAN_COST_PER_REGION: Duration = Duration::from_nanos(2000);

/// Why a config was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("config {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not TOML, has a key that does not exist, or a value of the wrong type.
    #[error("config {}: {source}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: Box<toml::de::Error>,
    },
    /// A value cannot work.
    #[error("config {}{}: {key}: {why}", path.display(), line.map(|line| format!(" line {line}")).unwrap_or_default())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line of the key, where the file has it.
        line: Option<usize>,
        /// The key, `section.name`.
        key: &'static str,
        /// What is wrong, and what would do.
        why: String,
    },
}

/// A checked config.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Config {
    /// Which nodes are which tier.
    pub tiers: Tiers,
    /// The access monitor.
    pub damon: Damon,
    /// Heat.
    pub hotness: Hotness,
    /// When something moves.
    pub policy: Policy,
    /// How it moves.
    pub migrate: Migrate,
    /// The agent itself.
    pub agent: Agent,
    /// Where the metrics are served; `None` is nowhere.
    pub metrics: Option<SocketAddr>,
    /// Jobs that are watched without being asked for.
    pub rules: Vec<Rule>,
}

/// Which nodes are which tier.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Tiers {
    /// Top tier first; empty where the host decides.
    pub nodes: Vec<NodeSet>,
    /// What to do when one of them is absent.
    pub missing_node: MissingNode,
}

/// What to do when the config names a node that is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingNode {
    /// Refuse to start.
    #[default]
    Error,
    /// Go on without it and say so.
    Degrade,
}

/// The access monitor.
#[derive(Clone, Debug, PartialEq)]
pub struct Damon {
    /// Which of its operations to use.
    pub ops: OpsChoice,
    /// Time between two looks at every region.
    pub sampling_interval: Duration,
    /// Time over which looks are added up.
    pub aggregation_interval: Duration,
    /// The most regions of one context.
    pub max_regions: u32,
    /// What its kernel thread may use of a CPU while there is something to move.
    pub cpu_percent: f64,
    /// What it may use at rest.
    pub rest_cpu_percent: f64,
}

/// Which of DAMON's operations to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OpsChoice {
    /// The best that the kernel has.
    #[default]
    Auto,
    /// A process's memory as the kernel follows it.
    Vaddr,
    /// Named ranges of a process's memory.
    Fvaddr,
    /// Physical memory.
    Paddr,
    /// None.
    Off,
}

/// Heat.
#[derive(Clone, Debug, PartialEq)]
pub struct Hotness {
    /// Evidence loses half its weight in this time.
    pub half_life: Duration,
    /// The heat from which a block is worth moving up, 0 to 1.
    pub promote_heat: f32,
}

/// When something moves.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// What decides, where a job has no word of its own.
    pub policy: PolicyKind,
    /// Bytes to keep free on each top-tier node at the least.
    pub headroom_bytes: u64,
    /// Share of each top-tier node to keep free at the least.
    pub headroom_percent: f64,
    /// How much hotter a block must be to take another one's place.
    pub hysteresis_percent: f64,
    /// How long a block that moved stays where it is.
    pub pingpong_window: Duration,
}

impl Policy {
    /// Bytes to keep free on a node of `total_bytes`: the larger of the two settings, and never more than half the node.
    pub fn headroom(&self, total_bytes: u64) -> u64 {
        let share = (total_bytes as f64 * self.headroom_percent / 100.0) as u64;
        share.max(self.headroom_bytes).min(total_bytes / 2)
    }
}

/// How it moves.
#[derive(Clone, Debug, PartialEq)]
pub struct Migrate {
    /// What moves pages, where a job has no word of its own.
    pub actuator: Actuator,
    /// The most bytes that move in a second.
    pub rate_bytes_per_sec: u64,
    /// The longest time that moving may hold up a thread of the job.
    pub stall_cap: Duration,
    /// Tries before a range is called unmovable.
    pub max_retries: u32,
    /// Whether pages of files move.
    pub file_pages: bool,
}

/// The agent itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// Time between two decisions.
    pub tick: Duration,
    /// The group that may read the agent's state, besides root.
    pub group: Option<String>,
}

impl Default for Damon {
    fn default() -> Self {
        Self {
            ops: OpsChoice::Auto,
            sampling_interval: Duration::from_millis(50),
            aggregation_interval: Duration::from_secs(1),
            max_regions: 2000,
            cpu_percent: 5.0,
            rest_cpu_percent: 1.0,
        }
    }
}

impl Default for Hotness {
    fn default() -> Self {
        Self { half_life: Duration::from_secs(3), promote_heat: 0.05 }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            policy: PolicyKind::default(),
            headroom_bytes: 64 << 20,
            headroom_percent: 2.0,
            hysteresis_percent: 25.0,
            pingpong_window: Duration::from_secs(10),
        }
    }
}

impl Default for Migrate {
    fn default() -> Self {
        Self {
            actuator: Actuator::MovePages,
            rate_bytes_per_sec: 1 << 30,
            stall_cap: Duration::from_millis(20),
            max_retries: 3,
            file_pages: false,
        }
    }
}

impl Default for Agent {
    fn default() -> Self {
        Self { tick: Duration::from_millis(500), group: None }
    }
}

/// No config is longer, in bytes.
const LARGEST: u64 = 1 << 20;

impl Config {
    /// Reads the named file, or [`DEFAULT_PATH`] where none is named.
    ///
    /// # Errors
    /// [`ConfigError`] where a named file is missing, and where any file cannot be read or cannot work.
    pub fn load(named: Option<&Path>) -> Result<Self, ConfigError> {
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        match text(path) {
            Ok(text) => Self::parse(path, &text),
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
        }
    }

    /// Reads the text of a config; `path` is for the errors.
    ///
    /// # Errors
    /// [`ConfigError`] with the line and the key.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let file = toml::from_str(text)
            .map_err(|source| ConfigError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
        check::check(path, text, file)
    }

    /// Whether pages of any job are to be moved by DAMON's schemes.
    pub fn wants_damos(&self) -> bool {
        let named = self.rules.iter().filter_map(|rule| rule.actuator);
        named.chain([self.migrate.actuator]).any(|actuator| actuator == Actuator::Damos)
    }

    /// The nodes that the config names.
    pub fn named_nodes(&self) -> NodeSet {
        let all: BTreeSet<_> = self.tiers.nodes.iter().flat_map(|set| set.0.iter().copied()).collect();
        NodeSet(all)
    }
}

/// The text of a config file. What is no plain file might never end.
fn text(path: &Path) -> io::Result<String> {
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
    }
    if meta.len() > LARGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than a config of 1 MiB"));
    }
    std::fs::read_to_string(path)
}

#[cfg(test)]
mod tests;
