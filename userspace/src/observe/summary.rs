//! What `run` says at the end of a job: where its bytes are, what moved and why, what could not, and what it cost.
//! Plain data that the agent fills; [`Account`] prints as text of at most 100 columns and serializes as JSON.

use std::{collections::BTreeMap, ffi::OsString, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::progress::Progress;
use crate::{
    job::signals::Ended,
    migrate::Cause,
    policy::{HeldBack, Reason},
    units::NodeId,
};

/// The whole account of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Account {
    /// The job.
    pub job: Job,
    /// What the agent saw and did; `None` where none watched.
    pub watched: Option<Summary>,
    /// What the reader should know first: why nothing watched, that there is one tier only, a dry run.
    pub notes: Vec<String>,
}

/// The job itself.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Job {
    /// Its command line.
    pub command: Vec<String>,
    /// Seconds from its first instruction to its end.
    pub seconds: f64,
    /// Its exit code; 128 and the number of the signal that ended it.
    pub exit_code: u8,
    /// The signal that ended it.
    pub signal: Option<String>,
}

/// The account of a job that is watched no more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Left {
    /// Its name.
    pub name: String,
    /// Seconds that it was watched.
    pub seconds: f64,
    /// What the agent saw and did.
    pub watched: Summary,
    /// What the reader should know first.
    pub notes: Vec<String>,
}

/// What the agent saw and did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// By node; the last look before the job's end.
    pub nodes: BTreeMap<NodeId, OnNode>,
    /// Moves by from, to and reason.
    pub moved: Vec<Moved>,
    /// What DAMON's schemes moved, as they count it; none of it is in `moved`.
    pub schemes: Vec<SchemeMoved>,
    /// Pages that were asked to move and did not, by cause.
    pub failed_pages: BTreeMap<Cause, u64>,
    /// Bytes that looked worth moving and were not asked to, by cause; as of the last decision.
    pub held_back_bytes: BTreeMap<HeldBack, u64>,
    /// Pages that moved back within the ping-pong window.
    pub pingpong_pages: u64,
    /// The longest time that a thread of the job can have waited for a moving page.
    pub longest_stall_seconds: f64,
    /// Seconds that moves waited, by cause.
    pub throttled_seconds: BTreeMap<String, f64>,
    /// Events that a source lost, by source.
    pub events_lost: BTreeMap<String, u64>,
    /// Whether moving helped.
    pub progress: Progress,
    /// Its training step; `None` where none is known.
    pub step: Option<LearnedStep>,
    /// Where accesses were seen.
    pub sources: Vec<Source>,
    /// What the agent cost.
    pub cost: Cost,
    /// The kernel's own counters over the run, this host's whole.
    pub kernel: Kernel,
}

/// A job's training step, learned from what it touches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnedStep {
    /// Mean time from one step's beginning to the next one's.
    pub seconds: f64,
    /// Share of the beginnings of use that came a step after one before, 0 to 1.
    pub confidence: f64,
    /// Steps since it is known.
    pub number: u64,
    /// How often a block's use begins in one step, the mean of the blocks that are used at all.
    pub uses: f64,
    /// Share of these beginnings in each tenth of the step, from where steps are counted.
    pub phases: Vec<f64>,
}

impl fmt::Display for LearnedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, confidence, number, uses, phases } = self;
        write!(f, "one every {seconds:.1} s (confidence {confidence:.2}), {number} since that is known")?;
        if phases.is_empty() {
            return Ok(());
        }
        let tenths: Vec<String> = phases.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
        write!(f, "; a block is used {uses:.1} times in one, % by tenths: {}", tenths.join(" "))
    }
}

/// What is on one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OnNode {
    /// Rank of its tier, 0 the top; none for a node that is in no tier.
    pub tier: Option<u32>,
    /// What the tier is, for people: `DRAM`, `CXL`.
    pub kind: String,
    /// The job's resident bytes, with those that it bound to the node itself.
    pub resident_bytes: u64,
    /// Those that are hot.
    pub hot_bytes: u64,
    /// Those that cannot move.
    pub unmovable_bytes: u64,
    /// Faults that the job took on pages of the node, by kind (`first_touch`, `hint`, `major`, …).
    pub faults: BTreeMap<String, u64>,
}

/// Moves of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// The node they left.
    pub from: NodeId,
    /// The node they went to.
    pub to: NodeId,
    /// Why.
    pub reason: Reason,
    /// Base pages.
    pub pages: u64,
    /// The same in bytes.
    pub bytes: u64,
}

/// What a DAMON scheme moved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchemeMoved {
    /// `migrate_hot` or `migrate_cold`.
    pub action: String,
    /// The node they left.
    pub from: NodeId,
    /// The node they went to.
    pub to: NodeId,
    /// Bytes of the regions that it tried, whosever pages were in them.
    pub tried_bytes: u64,
    /// Base pages that migrated.
    pub pages: u64,
    /// The same in bytes.
    pub bytes: u64,
}

/// One source of accesses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// Why it was not used, and what would make it usable; `None` where it was used.
    pub unusable: Option<String>,
}

/// What watching and moving cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time of this process.
    pub agent_cpu_seconds: f64,
    /// The part of it that went into moving pages, nearly all in the kernel.
    pub moving_cpu_seconds: f64,
    /// Its largest resident size.
    pub agent_rss_bytes: u64,
    /// CPU time of the kernel's access monitor for this job.
    pub kdamond_cpu_seconds: f64,
    /// Memory of the eBPF maps.
    pub bpf_map_bytes: u64,
}

/// The kernel's counters beside the agent's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Pages by the reason that `migrate:mm_migrate_pages` gives.
    pub migrated: BTreeMap<String, Migrated>,
    /// How `pgmigrate_success` of `/proc/vmstat` grew: every cause together.
    pub pgmigrate_success: Option<u64>,
}

/// Pages that the kernel migrated for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrated {
    /// Base pages that moved.
    pub succeeded: u64,
    /// Base pages that did not.
    pub failed: u64,
    /// Of those that moved, the pages that the agent's own calls account for.
    pub ours: u64,
}

impl Account {
    /// A summary of a job that nothing has watched so far.
    pub fn of_job(command: &[OsString], ended: Ended, took: Duration) -> Self {
        let job = Job {
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            seconds: took.as_secs_f64(),
            exit_code: ended.exit_code(),
            signal: ended.signal(),
        };
        Self { job, watched: None, notes: Vec::new() }
    }
}

impl Cost {
    /// What was used since `before`; sizes are those of now.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            agent_cpu_seconds: (self.agent_cpu_seconds - before.agent_cpu_seconds).max(0.0),
            moving_cpu_seconds: (self.moving_cpu_seconds - before.moving_cpu_seconds).max(0.0),
            kdamond_cpu_seconds: (self.kdamond_cpu_seconds - before.kdamond_cpu_seconds).max(0.0),
            ..self.clone()
        }
    }
}

impl Kernel {
    /// What was counted since `before`; reasons for which nothing was are left out.
    pub fn since(&self, before: &Self) -> Self {
        let grown = |(reason, now): (&String, &Migrated)| {
            let before = before.migrated.get(reason).copied().unwrap_or_default();
            let grown = Migrated {
                succeeded: now.succeeded.saturating_sub(before.succeeded),
                failed: now.failed.saturating_sub(before.failed),
                ours: now.ours.saturating_sub(before.ours),
            };
            (grown != Migrated::default()).then(|| (reason.clone(), grown))
        };
        let pages = self.pgmigrate_success.zip(before.pgmigrate_success);
        Self {
            migrated: self.migrated.iter().filter_map(grown).collect(),
            pgmigrate_success: pages.map(|(now, before)| now.saturating_sub(before)),
        }
    }
}

impl Summary {
    /// Base pages that moved, for whatever reason.
    pub fn moved_pages(&self) -> u64 {
        let schemes = self.schemes.iter().map(|moved| moved.pages);
        self.moved.iter().map(|moved| moved.pages).chain(schemes).sum()
    }

    /// Bytes that cannot move, on all nodes.
    pub fn unmovable_bytes(&self) -> u64 {
        self.nodes.values().map(|node| node.unmovable_bytes).sum()
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        super::text::left(self, f)
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        super::text::summary(self, f)
    }
}
