//! From what is written to what can work.

use std::{
    collections::BTreeSet,
    fmt::Display,
    net::SocketAddr,
    ops::{Range, RangeInclusive},
    path::Path,
    time::Duration,
};

use super::{
    Agent, Config, ConfigError, Damon, Hotness, Migrate, Policy, Rule, SCAN_COST_PER_REGION, Tiers,
    file::{Bytes, File, Key},
    rules,
};
use crate::units::{NodeSet, show_bytes};

/// The written config, and where to point when it cannot work.
struct Check<'a> {
    path: &'a Path,
    text: &'a str,
}

pub(super) fn check(path: &Path, text: &str, file: File) -> Result<Config, ConfigError> {
    let check = Check { path, text };
    let default = Config::default();
    Ok(Config {
        tiers: check.tiers(file.tiers)?,
        damon: check.damon(file.damon, default.damon)?,
        hotness: check.hotness(file.hotness, default.hotness)?,
        policy: check.policy(file.policy, default.policy)?,
        migrate: check.migrate(file.migrate, default.migrate)?,
        agent: check.agent(file.agent, default.agent)?,
        metrics: check.metrics(file.prometheus)?,
        rules: check.rules(file.job)?,
    })
}

impl Check<'_> {
    fn tiers(&self, written: super::file::Tiers) -> Result<Tiers, ConfigError> {
        let span = span(&written.nodes);
        let refuse = |why: String| self.refuse("tiers.nodes", span.clone(), why);
        let lists = value(written.nodes, Vec::new());
        let mut seen = BTreeSet::new();
        for &node in lists.iter().flatten() {
            if !seen.insert(node) {
                return Err(refuse(format!("node {node} is named twice; a node is in one tier")));
            }
        }
        if lists.iter().any(Vec::is_empty) {
            return Err(refuse("a tier without nodes; leave its list out".to_owned()));
        }
        let nodes = lists.into_iter().map(|list| list.into_iter().collect::<NodeSet>()).collect();
        Ok(Tiers { nodes, missing_node: value(written.missing_node, Default::default()) })
    }

    fn damon(&self, written: super::file::Damon, default: Damon) -> Result<Damon, ConfigError> {
        const MIN_REGIONS: u32 = 10;
        let regions_at = span(&written.max_regions).or(span(&written.sampling_interval_us));
        let aggregation_at = span(&written.aggregation_interval_ms).or(span(&written.sampling_interval_us));
        let sampling = self.within(
            "damon.sampling_interval_us",
            written.sampling_interval_us,
            default.sampling_interval.as_micros() as u64,
            100..=10_000_000,
        )?;
        let aggregation = self.within(
            "damon.aggregation_interval_ms",
            written.aggregation_interval_ms,
            default.aggregation_interval.as_millis() as u64,
            1..=600_000,
        )?;
        let (sampling, aggregation) = (Duration::from_micros(sampling), Duration::from_millis(aggregation));
        if aggregation < 2 * sampling {
            let why =
                format!("{aggregation:?} holds fewer than two samples of {sampling:?}; nothing could be told apart");
            return Err(self.refuse("damon.aggregation_interval_ms", aggregation_at, why));
        }
        let max_regions =
            self.within("damon.max_regions", written.max_regions, default.max_regions, MIN_REGIONS..=u32::MAX)?;
        let fits = sampling.as_nanos() / SCAN_COST_PER_REGION.as_nanos();
        if u128::from(max_regions) > fits {
            let scan = SCAN_COST_PER_REGION.saturating_mul(max_regions);
            let why = format!(
                "a look at {max_regions} regions takes {scan:?} at {SCAN_COST_PER_REGION:?} a region (ours, measured) \
                 and does not fit sampling_interval_us = {}; set max_regions to at most {fits}, or \
                 sampling_interval_us to at least {}",
                sampling.as_micros(),
                scan.as_nanos().div_ceil(1000),
            );
            return Err(self.refuse("damon.max_regions", regions_at, why));
        }
        let cpu_percent = self.within("damon.cpu_percent", written.cpu_percent, default.cpu_percent, 0.1..=100.0)?;
        let (rest_at, rest) = (span(&written.rest_cpu_percent), written.rest_cpu_percent);
        let default_rest = default.rest_cpu_percent.min(cpu_percent);
        let rest_cpu_percent = self.within("damon.rest_cpu_percent", rest, default_rest, 0.1..=100.0)?;
        if rest_cpu_percent > cpu_percent {
            let why = format!("at rest {rest_cpu_percent} would be more than cpu_percent, {cpu_percent}");
            return Err(self.refuse("damon.rest_cpu_percent", rest_at, why));
        }
        Ok(Damon {
            ops: value(written.ops, default.ops),
            sampling_interval: sampling,
            aggregation_interval: aggregation,
            max_regions,
            cpu_percent,
            rest_cpu_percent,
        })
    }

    fn hotness(&self, written: super::file::Hotness, default: Hotness) -> Result<Hotness, ConfigError> {
        let half_life =
            self.within("hotness.half_life_s", written.half_life_s, default.half_life.as_secs_f64(), 0.1..=86_400.0)?;
        let promote_heat =
            self.within("hotness.promote_heat", written.promote_heat, f64::from(default.promote_heat), 0.0..=1.0)?;
        Ok(Hotness { half_life: Duration::from_secs_f64(half_life), promote_heat: promote_heat as f32 })
    }

    fn policy(&self, written: super::file::Policy, default: Policy) -> Result<Policy, ConfigError> {
        let window = self.within(
            "policy.pingpong_window_s",
            written.pingpong_window_s,
            default.pingpong_window.as_secs_f64(),
            0.0..=86_400.0,
        )?;
        Ok(Policy {
            policy: value(written.policy, default.policy),
            headroom_bytes: value(written.headroom_bytes, Bytes(default.headroom_bytes)).0,
            headroom_percent: self.within(
                "policy.headroom_percent",
                written.headroom_percent,
                default.headroom_percent,
                0.0..=50.0,
            )?,
            hysteresis_percent: self.within(
                "policy.hysteresis_percent",
                written.hysteresis_percent,
                default.hysteresis_percent,
                0.0..=1000.0,
            )?,
            pingpong_window: Duration::from_secs_f64(window),
        })
    }

    fn migrate(&self, written: super::file::Migrate, default: Migrate) -> Result<Migrate, ConfigError> {
        const SLOWEST: u64 = 1 << 20;
        let rate_at = span(&written.rate_bytes_per_sec);
        let rate = value(written.rate_bytes_per_sec, Bytes(default.rate_bytes_per_sec)).0;
        if rate < SLOWEST {
            let why = format!("{rate} is under {} a second, which would move nothing in time", show_bytes(SLOWEST));
            return Err(self.refuse("migrate.rate_bytes_per_sec", rate_at, why));
        }
        let stall = default.stall_cap.as_millis() as u64;
        let stall = self.within("migrate.stall_cap_ms", written.stall_cap_ms, stall, 1..=10_000)?;
        Ok(Migrate {
            actuator: value(written.actuator, default.actuator),
            rate_bytes_per_sec: rate,
            stall_cap: Duration::from_millis(stall),
            max_retries: self.within("migrate.max_retries", written.max_retries, default.max_retries, 1..=1000)?,
            file_pages: value(written.file_pages, default.file_pages),
        })
    }

    fn agent(&self, written: super::file::Agent, default: Agent) -> Result<Agent, ConfigError> {
        let tick = self.within("agent.tick_ms", written.tick_ms, default.tick.as_millis() as u64, 10..=60_000)?;
        let group = value(written.group, String::new());
        Ok(Agent { tick: Duration::from_millis(tick), group: Some(group).filter(|group| !group.is_empty()) })
    }

    fn metrics(&self, written: super::file::Prometheus) -> Result<Option<SocketAddr>, ConfigError> {
        let span = span(&written.listen);
        let text = value(written.listen, String::new());
        if text.is_empty() {
            return Ok(None);
        }
        let why = |_| format!("{text:?} is no address and port, such as 127.0.0.1:9462 or [::1]:9462");
        text.parse().map(Some).map_err(|error| self.refuse("prometheus.listen", span, why(error)))
    }

    fn rules(&self, written: Vec<toml::Spanned<super::file::Job>>) -> Result<Vec<Rule>, ConfigError> {
        let mut taken = BTreeSet::new();
        let rules = written.into_iter().map(|rule| {
            let span = rule.span();
            rules::check(rule.into_inner(), &mut taken).map_err(|why| self.refuse("job", Some(span), why))
        });
        rules.collect()
    }

    fn within<T: PartialOrd + Display>(
        &self,
        key: &'static str,
        written: Key<T>,
        default: T,
        allowed: RangeInclusive<T>,
    ) -> Result<T, ConfigError> {
        let span = span(&written);
        let value = value(written, default);
        if allowed.contains(&value) {
            return Ok(value);
        }
        let why = format!("{value} is not between {} and {}", allowed.start(), allowed.end());
        Err(self.refuse(key, span, why))
    }

    fn refuse(&self, key: &'static str, span: Option<Range<usize>>, why: String) -> ConfigError {
        let line = span.and_then(|span| Some(self.text.get(..span.start)?.matches('\n').count() + 1));
        ConfigError::Value { path: self.path.to_owned(), line, key, why }
    }
}

fn span<T>(written: &Key<T>) -> Option<Range<usize>> {
    written.as_ref().map(|written| written.span())
}

fn value<T>(written: Key<T>, default: T) -> T {
    written.map_or(default, toml::Spanned::into_inner)
}
