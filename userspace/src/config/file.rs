//! The config as it is written: every key optional, with the place where it stands.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::{Actuator, MissingNode, Mode, OpsChoice, PolicyKind};
use crate::units::{NodeId, parse_bytes};

/// A key that may be missing.
pub(super) type Key<T> = Option<Spanned<T>>;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub tiers: Tiers,
    pub damon: Damon,
    pub hotness: Hotness,
    pub policy: Policy,
    pub migrate: Migrate,
    pub agent: Agent,
    pub prometheus: Prometheus,
    pub job: Vec<Spanned<Job>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Prometheus {
    pub listen: Key<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Job {
    pub name: String,
    pub comm: Option<String>,
    pub user: Option<String>,
    pub cgroup: Option<PathBuf>,
    pub mode: Mode,
    pub actuator: Option<Actuator>,
    pub policy: Option<PolicyKind>,
    pub dram_bytes: Option<Bytes>,
    pub cxl_bytes: Option<Bytes>,
    pub priority: i32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tiers {
    pub nodes: Key<Vec<Vec<NodeId>>>,
    pub missing_node: Key<MissingNode>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Damon {
    pub ops: Key<OpsChoice>,
    pub sampling_interval_us: Key<u64>,
    pub aggregation_interval_ms: Key<u64>,
    pub max_regions: Key<u32>,
    pub cpu_percent: Key<f64>,
    pub rest_cpu_percent: Key<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Hotness {
    pub half_life_s: Key<f64>,
    pub promote_heat: Key<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Policy {
    pub policy: Key<PolicyKind>,
    pub headroom_bytes: Key<Bytes>,
    pub headroom_percent: Key<f64>,
    pub hysteresis_percent: Key<f64>,
    pub pingpong_window_s: Key<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Migrate {
    pub actuator: Key<Actuator>,
    pub rate_bytes_per_sec: Key<Bytes>,
    pub stall_cap_ms: Key<u64>,
    pub max_retries: Key<u32>,
    pub file_pages: Key<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Agent {
    pub tick_ms: Key<u64>,
    pub group: Key<String>,
}

/// Bytes, written as a number or as text such as `512MiB`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bytes(pub u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a number of bytes or text such as \"512MiB\"")
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Bytes, E> {
                u64::try_from(bytes).map(Bytes).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                parse_bytes(text).map(Bytes).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
