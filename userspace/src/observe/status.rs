//! What the agent says of itself at any moment: `status`, and the metrics.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    path::PathBuf,
};

use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};

use super::summary::{Cost, Kernel, Source, Summary};
use crate::{
    config::{Actuator, PolicyKind},
    job::cgroup::Limit,
    policy::Limits,
    units::{NodeId, NodeSet, Pid, show_bytes},
};

/// The state of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The agent's process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Seconds since it started.
    pub seconds: f64,
    /// The config that it runs with; `None` is the default one.
    pub config: Option<PathBuf>,
    /// Whether it ends with its last job.
    pub until_idle: bool,
    /// Whether nothing moves, of the jobs there are and of those to come, until `resume`.
    pub paused: bool,
    /// Nodes that the config names and that have no memory here.
    pub missing_nodes: NodeSet,
    /// The nodes that take part.
    pub nodes: BTreeMap<NodeId, Node>,
    /// Where accesses are seen.
    pub sources: Vec<Source>,
    /// DAMON's monitoring, where there is one.
    pub damon: Option<Damon>,
    /// Bytes that jobs copied to and from GPUs since the agent's start.
    pub copied: Vec<Copied>,
    /// Events that sources lost, by source.
    pub events_lost: BTreeMap<String, u64>,
    /// What the agent cost since its start.
    pub cost: Cost,
    /// CPU seconds of each eBPF program, where the kernel's statistics are enabled.
    pub bpf_seconds: BTreeMap<String, f64>,
    /// How often each USDT probe was reached since the agent's start, armed or not.
    pub probes: BTreeMap<String, u64>,
    /// The kernel's own counters since the agent's start.
    pub kernel: Kernel,
    /// The jobs.
    pub jobs: Vec<JobStatus>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Rank of its tier, 0 the top; none for a node that is in no tier.
    pub tier: Option<u32>,
    /// What the tier is, for people.
    pub kind: String,
    /// Bytes it has.
    pub total_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
}

/// Copies of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Copied {
    /// Whether to the GPU; else from it.
    pub to_device: bool,
    /// The node of the host memory; none where it is not known.
    pub node: Option<NodeId>,
    /// What is known of that memory: one of [`PATHS`](super::usdt::PATHS).
    pub path: String,
    /// Bytes.
    pub bytes: u64,
}

/// DAMON's monitoring.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Damon {
    /// The kernel thread.
    pub kdamond: u32,
    /// Seconds between two looks at a region.
    pub sampling_seconds: f64,
    /// Seconds over which looks are added up.
    pub aggregation_seconds: f64,
    /// Aggregations seen of this thread.
    pub aggregations: u64,
    /// Achieved share of the sampling asked for; 1 where the thread keeps up.
    pub sampling_ratio: Option<f64>,
}

/// What is done for a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is watched, and its pages move.
    #[default]
    Migrating,
    /// It is watched, and plans are told.
    DryRun,
    /// It is watched.
    Watching,
    /// Nothing moves until `resume`.
    Paused,
    /// Its account is being closed.
    Leaving,
}

/// One job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its number.
    pub id: u64,
    /// Its name: the metrics' label `workload`.
    pub name: String,
    /// How it came to be watched.
    pub origin: String,
    /// The user it belongs to.
    pub user: u32,
    /// What is done for it.
    pub state: State,
    /// What moves its pages.
    pub actuator: Actuator,
    /// What decides on where they belong.
    pub policy: PolicyKind,
    /// What it may have.
    pub limits: Limits,
    /// What its control groups, and those above them, let it have: of all nodes together.
    pub group_limits: Vec<Limit>,
    /// Its processes.
    pub pids: Vec<Pid>,
    /// Seconds since it is watched.
    pub seconds: f64,
    /// What the agent saw and did so far.
    pub watched: Summary,
    /// Lengths of the calls that moved its pages.
    pub calls: Calls,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// Lengths of calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// Calls.
    pub count: u64,
    /// All of them together, in seconds.
    pub sum_seconds: f64,
    /// 99 in a hundred were shorter, in seconds.
    pub p99_seconds: f64,
    /// How many took how long; the last one has no bound.
    pub buckets: Vec<Bucket>,
}

/// Calls of about one length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// At most so many seconds.
    pub up_to: f64,
    /// Calls longer than the bucket before.
    pub count: u64,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {} (version {}) for {:.0} s", self.pid, self.version, self.seconds)?;
        f.write_str(if self.until_idle { ", ends with its last job\n" } else { "\n" })?;
        if self.paused {
            writeln!(f, "  paused: nothing moves until `tensortier resume`")?;
        }
        if !self.missing_nodes.0.is_empty() {
            writeln!(f, "  node {}: named in the config, and has no memory here", self.missing_nodes)?;
        }
        for (id, node) in &self.nodes {
            let tier = node.tier.map_or_else(|| "-".to_owned(), |tier| tier.to_string());
            let (free, total) = (show_bytes(node.free_bytes), show_bytes(node.total_bytes));
            writeln!(f, "  node {id}: tier {tier} {}, {free} free of {total}", node.kind)?;
        }
        match &self.damon {
            Some(damon) => writeln!(
                f,
                "  kdamond {}: every {:.0} ms, told every {:.1} s, {} so far",
                damon.kdamond,
                damon.sampling_seconds * 1e3,
                damon.aggregation_seconds,
                damon.aggregations
            )?,
            None => writeln!(f, "  DAMON monitors nothing now")?,
        }
        for Copied { to_device, node, path, bytes } in &self.copied {
            let (bytes, way) = (show_bytes(*bytes), if *to_device { "from" } else { "to" });
            let node = node.map_or_else(|| "memory of no known node".to_owned(), |node| format!("node {node}"));
            writeln!(f, "  GPUs copied {bytes} {way} {node} ({path})")?;
        }
        for source in &self.sources {
            if let Some(why) = &source.unusable {
                writeln!(f, "  not used: {}: {why}", source.name)?;
            }
        }
        if self.jobs.is_empty() {
            return f.write_str("no jobs");
        }
        writeln!(f, "{}", self.table())?;
        let mut notes = String::new();
        for job in &self.jobs {
            let progress = job.watched.progress.to_string();
            if !progress.is_empty() {
                writeln!(notes, "{}: {progress}", job.name)?;
            }
            if let Some(step) = &job.watched.step {
                writeln!(notes, "{}: steps: {step}", job.name)?;
            }
            for note in &job.notes {
                writeln!(notes, "{}: {note}", job.name)?;
            }
        }
        f.write_str(notes.trim_end())
    }
}

impl Status {
    fn table(&self) -> String {
        let mut table = Table::new();
        let nodes = self.nodes.keys().map(|node| format!("node {node} (hot)"));
        let header = ["job", "name", "state", "user", "processes"].map(str::to_owned).into_iter();
        table
            .load_style(presets::NOTHING)
            .set_header(header.chain(nodes).chain(["unmovable", "moved"].map(str::to_owned)));
        for job in &self.jobs {
            let state = serde_json::to_value(job.state).ok().and_then(|state| state.as_str().map(str::to_owned));
            let on = self.nodes.keys().map(|node| {
                let on = job.watched.nodes.get(node).cloned().unwrap_or_default();
                format!("{} ({})", show_bytes(on.resident_bytes), show_bytes(on.hot_bytes))
            });
            let row = [
                job.id.to_string(),
                job.name.clone(),
                state.unwrap_or_default(),
                job.user.to_string(),
                job.pids.len().to_string(),
            ];
            let moved = show_bytes(job.watched.moved_pages() * crate::units::PAGE);
            table.add_row(row.into_iter().chain(on).chain([show_bytes(job.watched.unmovable_bytes()), moved]));
        }
        table.trim_fmt()
    }
}
