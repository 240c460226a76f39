//! DAMON's schemes as a peer, set up by sysfs, in the guest alone.
//!
//! Each node has a kdamond over its physical addresses: the slow one's promotes what is accessed, the fast one's
//! demotes what is idle; a look at the page itself (`young`) has the last word. At most 200 MB a second move.
//!
//! * **Goals** (6.16): after damo's `scripts/mem_tier.sh` and the kernel's sample `mtier`: promote towards 99.7 % of
//!   node 0 used, demote towards 0.5 % of it free, every second; sampling tunes itself to 4 % of samples that see an
//!   access, between 5 ms and 10 s. Where the kernel lets the quota's tuner be chosen (7.1), it is `temporal`: the whole
//!   quota until the goal is met, then none. The default, `consist`, starts at one byte and moved nothing in five minutes.
//! * **Quotas alone** (6.11): after the schemes of HMSDK's `gen_migpol.py`, with its times a tenth so that a run of a
//!   minute shows them: 10 ms, 200 ms and 2 s, promote from 5 % of samples on, demote after 3 s idle. DAMON's own
//!   bounds of 10 to 1,000 regions stand in both, since HMSDK's 10,000 would be looked at ten times as often here.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tensortier::{
    host::Host,
    source::damon::sysfs::ADMIN,
    units::{NodeId, PAGE, Range},
};

use crate::scenario::fix;

const DRAM: NodeId = NodeId(0);
const SLOW: NodeId = NodeId(1);
/// The most bytes in [`RESET_MS`].
const QUOTA: u64 = 200_000_000;
const RESET_MS: u64 = 1000;
/// No bound of accesses and ages.
const MOST: u64 = u32::MAX as u64;
/// A kdamond starts and ends within this time, emulated or not.
const PATIENCE: Duration = Duration::from_secs(20);

/// DAMON at work, until it is told to end.
#[derive(Debug)]
pub struct Damos {
    admin: PathBuf,
    /// Whether the kernel has goals.
    pub goals: Option<Goals>,
}

/// How a quota follows its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goals {
    /// As before there was a choice.
    Consist,
    /// All of it until the goal is met (7.1).
    Temporal,
}

/// One kdamond's part: whose memory it looks at, and what it does.
#[derive(Clone, Debug)]
struct Side {
    ranges: Vec<Range>,
    promotes: bool,
}

impl Damos {
    /// Sets both kdamonds up and starts them.
    ///
    /// # Errors
    /// DAMON is missing or in use, or refuses a setting.
    pub fn start() -> Result<Self> {
        let host = Host::read_without_symbols(Path::new("/"))?;
        let ranges = |node: NodeId| -> Result<Vec<Range>> {
            let node = host.nodes.get(&node).with_context(|| format!("there is no node {node}"))?;
            Ok(node.phys_ranges.iter().map(|range| Range::new(range.start, range.end)).collect())
        };
        let admin = PathBuf::from(ADMIN);
        let write = |path: &str, value: &str| fix(&admin.join(path).display().to_string(), value);
        let count = admin.join("kdamonds/nr_kdamonds");
        let others = fs::read_to_string(&count).with_context(|| format!("no DAMON: {}", count.display()))?;
        ensure!(others.trim() == "0", "DAMON is in use: {} kdamonds", others.trim());
        write("kdamonds/nr_kdamonds", "2")?;
        write("kdamonds/0/contexts/nr_contexts", "1")?;
        write("kdamonds/0/contexts/0/schemes/nr_schemes", "1")?;
        write("kdamonds/0/contexts/0/schemes/0/quotas/goals/nr_goals", "1")?;
        let quotas = admin.join("kdamonds/0/contexts/0/schemes/0/quotas");
        let tuner = if quotas.join("goal_tuner").exists() { Goals::Temporal } else { Goals::Consist };
        let goals = quotas.join("goals/0/nid").exists().then_some(tuner);
        let sides = [Side { ranges: ranges(SLOW)?, promotes: true }, Side { ranges: ranges(DRAM)?, promotes: false }];
        for (number, side) in sides.iter().enumerate() {
            for (path, value) in side.writes(goals) {
                write(&format!("kdamonds/{number}/{path}"), &value)?;
            }
            write(&format!("kdamonds/{number}/state"), "on")?;
        }
        Ok(Self { admin, goals })
    }

    /// Bytes that it moved up and down so far.
    ///
    /// # Errors
    /// DAMON does not tell.
    pub fn moved(&self) -> Result<(u64, u64)> {
        let applied = |number: usize| -> Result<u64> {
            let kdamond = self.admin.join(format!("kdamonds/{number}"));
            fix(&kdamond.join("state").display().to_string(), "update_schemes_stats")?;
            let path = kdamond.join("contexts/0/schemes/0/stats/sz_applied");
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            text.trim().parse().with_context(|| format!("{} holds {text:?}", path.display()))
        };
        Ok((applied(0)?, applied(1)?))
    }

    /// Stops it and leaves DAMON as it was.
    ///
    /// # Errors
    /// A kdamond runs on.
    pub fn end(self) -> Result<()> {
        for number in 0..2 {
            let state = self.admin.join(format!("kdamonds/{number}/state"));
            fix(&state.display().to_string(), "off")?;
            let start = Instant::now();
            while fs::read_to_string(&state).is_ok_and(|state| state.trim() == "on") {
                ensure!(start.elapsed() < PATIENCE, "kdamond {number} does not end");
                thread::sleep(Duration::from_millis(50));
            }
        }
        fix(&self.admin.join("kdamonds/nr_kdamonds").display().to_string(), "0")
    }
}

impl Side {
    /// Files below a kdamond's folder and what is written to them, in order.
    fn writes(&self, goals: Option<Goals>) -> Vec<(String, String)> {
        let mut writes = Vec::new();
        let mut put = |path: &str, value: String| writes.push((path.to_owned(), value));
        put("contexts/nr_contexts", "1".into());
        put("contexts/0/operations", "paddr".into());
        let attrs = "contexts/0/monitoring_attrs";
        let [sample_ms, aggregation_ms, update_ms]: [u64; 3] =
            if goals.is_some() { [5, 100, 60_000] } else { [10, 200, 2000] };
        for (what, ms) in [("sample_us", sample_ms), ("aggr_us", aggregation_ms), ("update_us", update_ms)] {
            put(&format!("{attrs}/intervals/{what}"), (ms * 1000).to_string());
        }
        if goals.is_some() {
            // Basis points, aggregations, and bounds in µs.
            for (what, value) in
                [("access_bp", 400), ("aggrs", 3), ("min_sample_us", 5000), ("max_sample_us", 10_000_000)]
            {
                put(&format!("{attrs}/intervals/intervals_goal/{what}"), value.to_string());
            }
        }
        put(&format!("{attrs}/nr_regions/min"), "10".into());
        put(&format!("{attrs}/nr_regions/max"), "1000".into());
        put("contexts/0/targets/nr_targets", "1".into());
        put("contexts/0/targets/0/regions/nr_regions", self.ranges.len().to_string());
        for (number, range) in self.ranges.iter().enumerate() {
            put(&format!("contexts/0/targets/0/regions/{number}/start"), range.start.to_string());
            put(&format!("contexts/0/targets/0/regions/{number}/end"), range.end.to_string());
        }
        let scheme = "contexts/0/schemes/0";
        put("contexts/0/schemes/nr_schemes", "1".into());
        let (action, target) = if self.promotes { ("migrate_hot", DRAM) } else { ("migrate_cold", SLOW) };
        put(&format!("{scheme}/action"), action.into());
        put(&format!("{scheme}/target_nid"), target.to_string());
        put(&format!("{scheme}/apply_interval_us"), "1000000".into());
        let samples = aggregation_ms / sample_ms;
        // 5 % of the samples, or none.
        let (least, most) = if self.promotes { (samples.div_ceil(20), MOST) } else { (0, 0) };
        let age = if self.promotes || goals.is_some() { 0 } else { 3000 / aggregation_ms };
        for (what, least, most) in [("sz", PAGE, u64::MAX), ("nr_accesses", least, most), ("age", age, MOST)] {
            put(&format!("{scheme}/access_pattern/{what}/min"), least.to_string());
            put(&format!("{scheme}/access_pattern/{what}/max"), most.to_string());
        }
        put(&format!("{scheme}/quotas/bytes"), QUOTA.to_string());
        put(&format!("{scheme}/quotas/reset_interval_ms"), RESET_MS.to_string());
        for what in ["nr_accesses", "age"] {
            put(&format!("{scheme}/quotas/weights/{what}_permil"), "100".into());
        }
        put(&format!("{scheme}/quotas/goals/nr_goals"), if goals.is_some() { "1" } else { "0" }.into());
        if goals == Some(Goals::Temporal) {
            put(&format!("{scheme}/quotas/goal_tuner"), "temporal".into());
        }
        if goals.is_some() {
            let (metric, basis_points) =
                if self.promotes { ("node_mem_used_bp", 9970) } else { ("node_mem_free_bp", 50) };
            put(&format!("{scheme}/quotas/goals/0/target_metric"), metric.into());
            put(&format!("{scheme}/quotas/goals/0/target_value"), basis_points.to_string());
            put(&format!("{scheme}/quotas/goals/0/nid"), DRAM.to_string());
        }
        put(&format!("{scheme}/filters/nr_filters"), "1".into());
        put(&format!("{scheme}/filters/0/type"), "young".into());
        // Keeps back what matches: going up, what is not young; going down, what is.
        put(&format!("{scheme}/filters/0/matching"), if self.promotes { "N" } else { "Y" }.into());
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(promotes: bool, goals: Option<Goals>) -> Vec<(String, String)> {
        Side { ranges: vec![Range::new(4096, 8192), Range::new(1 << 32, 2 << 32)], promotes }.writes(goals)
    }

    fn value<'a>(writes: &'a [(String, String)], path: &str) -> Option<&'a str> {
        writes.iter().rev().find(|(file, _)| file.ends_with(path)).map(|(_, value)| value.as_str())
    }

    #[test]
    fn goals_bound_both_ways_and_without_them_only_what_is_long_idle_goes_down() {
        let (up, down) = (side(true, Some(Goals::Consist)), side(false, Some(Goals::Temporal)));
        assert_eq!([value(&up, "goal_tuner"), value(&down, "goal_tuner")], [None, Some("temporal")]);
        assert_eq!(value(&up, "goals/0/target_metric"), Some("node_mem_used_bp"));
        assert_eq!(value(&down, "goals/0/target_metric"), Some("node_mem_free_bp"));
        assert_eq!([value(&up, "target_nid"), value(&down, "target_nid")], [Some("0"), Some("1")]);
        assert_eq!([value(&up, "goals/0/nid"), value(&down, "goals/0/nid")], [Some("0"), Some("0")]);
        let (up, down) = (side(true, None), side(false, None));
        assert_eq!(value(&up, "goals/nr_goals"), Some("0"));
        assert_eq!([value(&up, "nr_accesses/min"), value(&up, "age/min")], [Some("1"), Some("0")]);
        assert_eq!([value(&down, "nr_accesses/max"), value(&down, "age/min")], [Some("0"), Some("15")]);
        assert_eq!([value(&up, "regions/1/end"), value(&up, "nr_regions")], [Some("8589934592"), Some("2")]);
    }
}
