//! What the stages are told by the config.

use std::{collections::BTreeSet, time::Instant};

use tensortier_model::Profiles;

use crate::{
    config::{Config, OpsChoice, PolicyKind},
    host::Host,
    hotness, ledger, migrate,
    policy::{Evidence, Rule, Speed, Spread},
    source::damon::{
        Damon, DamonError, Intervals,
        cadence::{Cadence, CpuBudget},
        sysfs::Ops,
    },
    units::{BLOCK, NodeSet},
};

pub(super) fn tier_nodes(host: &Host) -> NodeSet {
    host.tiers.iter().flat_map(|tier| tier.nodes.0.iter().copied()).collect()
}

/// How the config says that pages move.
pub fn migrate_params(config: &Config) -> migrate::Params {
    let rate = config.migrate.rate_bytes_per_sec;
    migrate::Params {
        rate_bytes_per_sec: Some(rate),
        // A quarter of a second's worth (ours), so that a low rate bounds short bursts too.
        burst_bytes: (rate / 4).max(BLOCK),
        stall_cap: config.migrate.stall_cap,
        max_tries: config.migrate.max_retries,
        ..migrate::Params::default()
    }
}

pub(super) fn intervals_of(config: &Config) -> Intervals {
    Intervals { sampling: config.damon.sampling_interval, aggregation: config.damon.aggregation_interval }
}

pub(super) fn cadence_of(config: &Config, now: Instant) -> Cadence {
    let share = |percent: f64| percent / 100.0;
    let budget = CpuBudget { active: share(config.damon.cpu_percent), rest: share(config.damon.rest_cpu_percent) };
    Cadence::new(intervals_of(config), budget, now)
}

pub(super) fn heat_params(config: &Config) -> hotness::Params {
    hotness::Params {
        half_life_s: config.hotness.half_life.as_secs_f64(),
        aggregation_s: intervals_of(config).aggregation.as_secs_f64(),
        // A fault alone is no reason to move: under the threshold, whatever the config sets that to.
        fault_heat: config.hotness.promote_heat * 0.4,
        ..hotness::Params::default()
    }
}

pub(super) fn rule_of(config: &Config) -> Rule {
    Rule {
        promote_heat: config.hotness.promote_heat,
        margin: config.policy.hysteresis_percent as f32 / 100.0,
        ..Rule::default()
    }
}

/// The rule of a policy.
pub(super) fn rule_by(policy: PolicyKind, rule: Rule) -> Rule {
    let (evidence, spread) = match policy {
        PolicyKind::Hotness => (Evidence::Heat, Spread::None),
        PolicyKind::Step => (Evidence::Usage, Spread::None),
        PolicyKind::Bandwidth => (Evidence::Usage, Spread::Bandwidth),
        PolicyKind::Balance => (Evidence::Usage, Spread::Latency),
        PolicyKind::Auto => (Evidence::Usage, Spread::Loaded),
    };
    Rule { evidence, spread, ..rule }
}

/// What the top tier and the lower ones can do: as the firmware says of their nodes, and where it says nothing as a
/// model of DRAM and of a CXL device has it.
pub(super) fn speeds_of(host: &Host) -> Option<[Speed; 2]> {
    let profiles = Profiles::builtin();
    let of = |nodes: NodeSet, model: &str| {
        let model = profiles.tier(model).ok()?;
        let access = |id| host.nodes.get(id).and_then(|node| node.access);
        let rate = |id| access(id).and_then(|access| access.read_mib_per_sec);
        let latency = |id| access(id).and_then(|access| access.read_latency_ns);
        let rates = nodes.0.iter().map(|id| rate(id).map_or(model.read, |mib| f64::from(mib) * f64::from(1 << 20)));
        let latencies = nodes.0.iter().map(|id| latency(id).map_or(model.latency_ns as f64, f64::from));
        Some(Speed { bytes_per_s: rates.sum(), latency_ns: latencies.reduce(f64::min)? })
    };
    Some([of(host.top(), "dram")?, of(host.lower(), "cxl-asic")?])
}

pub(super) fn take_damon(config: &Config, host: &Host) -> Result<Damon, DamonError> {
    let wanted = match config.damon.ops {
        OpsChoice::Auto => None,
        OpsChoice::Vaddr => Some(Ops::Vaddr),
        OpsChoice::Fvaddr => Some(Ops::Fvaddr),
        OpsChoice::Paddr => Some(Ops::Paddr),
        OpsChoice::Off => return Err(DamonError::Off),
    };
    // A kdamond a node, where schemes are to migrate.
    let movers = if config.wants_damos() && host.is_two_tier() { tier_nodes(host).0 } else { BTreeSet::new() };
    Damon::take(wanted, config.damon.max_regions, &movers.into_iter().collect::<Vec<_>>())
}

pub(super) fn ledger_rules(config: &Config) -> ledger::Rules {
    ledger::Rules {
        tries: config.migrate.max_retries,
        pingpong_window: config.policy.pingpong_window,
        ..ledger::Rules::default()
    }
}
