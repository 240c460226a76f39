//! What the exerciser saw, as JSON.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tensortier::units::{NodeSet, Range};

use super::{
    layout::{Kind, Piece},
    options::Options,
    oracle::Best,
};

/// The whole run. Times of samples and phases are seconds since the first touch after the fill.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What was asked for.
    pub options: Options,
    /// Nodes counted as DRAM.
    pub dram_nodes: NodeSet,
    /// Wall clock at the first touch after the fill, in ms since 1970.
    pub started_unix_ms: u64,
    /// Length of the run, in seconds.
    pub seconds: f64,
    /// The arena in address order.
    pub pieces: Vec<Piece>,
    /// The hot range of each phase; the run begins with the first and goes round.
    pub windows: Vec<Range>,
    /// Where the bytes lay before the first loop.
    pub start: Placement,
    /// Bytes in huge pages then.
    pub start_huge_bytes: u64,
    /// Where they lay after the last loop.
    pub end: Placement,
    /// Bytes in huge pages then.
    pub end_huge_bytes: u64,
    /// Whether every word of the arena was what the touches made it.
    pub checksum_ok: bool,
    /// Words checked: one a cache line.
    pub words: u64,
    /// Words that were something else.
    pub damaged_words: u64,
    /// Touches of each 2 MiB block that had any after the fill.
    pub blocks: Vec<Block>,
    /// When each phase began, in seconds.
    pub phases: Vec<f64>,
    /// One a second.
    pub samples: Vec<Sample>,
    /// What the best fixed sets of memory had given, window by window; none without `--oracle-dram`.
    pub best: Vec<Best>,
    /// Time from the end of one unit of work (64 KiB, or one scattered page) to the end of the next, over all threads.
    pub stalls_ns: Quantiles,
    /// Time of one loop over the hot bytes.
    pub loops_ns: Quantiles,
    /// Time from one pass over the warm and growing bytes to the next; of a loop, where there are none.
    pub steps_ns: Quantiles,
}

/// Bytes of each kind by node, from every page; `none` is what is not present.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Placement(pub BTreeMap<Kind, BTreeMap<String, u64>>);

impl Placement {
    /// Bytes of `kind` on `node`.
    pub fn bytes(&self, kind: Kind, node: u32) -> u64 {
        self.0.get(&kind).and_then(|nodes| nodes.get(&node.to_string())).copied().unwrap_or(0)
    }
}

/// Touches of one 2 MiB block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Its first address, a multiple of 2 MiB.
    pub start: u64,
    /// Cache lines touched in it, each touch counted.
    pub accesses: u64,
}

/// One look at the touched pages. Two of a stripe's sixteen pages stand for it; a scattered page stands for itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When, in seconds.
    pub at: f64,
    /// Number of the phase.
    pub phase: u64,
    /// Share of the hot window on each node (`none`: not present).
    pub hot: BTreeMap<String, f64>,
    /// Share of the hot window on DRAM.
    pub hot_dram: f64,
    /// Share of the touches since the last sample that went to what is now on DRAM; without touches, `hot_dram`.
    pub access_dram: f64,
    /// Cache lines touched since the last sample.
    pub accesses: u64,
    /// The longest unit of work since the last sample, in ns.
    pub longest_stall_ns: u64,
}

/// A distribution of durations, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// How many were measured.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 99 % are no longer.
    pub p99: u64,
    /// 99.9 % are no longer.
    pub p999: u64,
    /// The longest.
    pub max: u64,
    /// Mean.
    pub mean: f64,
}

impl Report {
    /// Reads the report that `exerciser --report` wrote.
    ///
    /// # Errors
    /// The file's path, where it cannot be read or is not a report.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read the report {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not an exerciser's report", path.display()))
    }

    /// Seconds until the hot share on DRAM first reached `share`.
    pub fn hot_dram_reached(&self, share: f64) -> Option<f64> {
        self.samples.iter().find(|sample| sample.hot_dram >= share).map(|sample| sample.at)
    }

    /// Mean access-weighted DRAM share over the samples in the last half of each phase, weighted by touches.
    pub fn settled_access_dram(&self) -> Option<f64> {
        let mut ends: Vec<f64> = self.phases.iter().skip(1).copied().collect();
        ends.push(self.seconds);
        let settled = |sample: &&Sample| {
            let phase = sample.phase as usize;
            match (self.phases.get(phase), ends.get(phase)) {
                (Some(&from), Some(&to)) => sample.at >= (from + to) / 2.0,
                _ => false,
            }
        };
        let (touches, on_dram) = self.samples.iter().filter(settled).fold((0.0, 0.0), |(n, d), sample| {
            (n + sample.accesses as f64, d + sample.accesses as f64 * sample.access_dram)
        });
        (touches > 0.0).then(|| on_dram / touches)
    }

    /// Share of touches that went to DRAM, and what the best fixed sets had given there: over what began at least
    /// `settle` seconds after its phase did. NaN where there is nothing.
    pub fn shares(&self, settle: f64) -> (f64, f64) {
        let judged =
            |from: f64, phase: u64| self.phases.get(phase as usize).is_some_and(|start| from >= start + settle);
        // A sample is of the time since the one before it.
        let ends = [0.0].into_iter().chain(self.samples.iter().map(|sample| sample.at));
        let samples = ends.zip(&self.samples).filter(|(from, sample)| judged(*from, sample.phase));
        let best = self.best.iter().filter(|best| judged(best.from, best.phase));
        (
            mean(samples.map(|(_, sample)| (sample.accesses as f64, sample.access_dram))),
            mean(best.map(|best| (best.accesses as f64, best.share))),
        )
    }
}

/// Mean of values with weights.
fn mean(weighted: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (weights, sum) =
        weighted.fold((0.0, 0.0), |(weights, sum), (weight, value)| (weights + weight, sum + weight * value));
    sum / weights
}
