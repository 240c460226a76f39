//! What about this host a user should know, with the consequence and the command that mends it.
//!
//! Findings rest on [`Host`] and [`Config`] alone, so that `topo`, `doctor` and the agent say the same. Nothing here
//! changes anything: commands are printed, and run by people.

mod kernel;
mod memory;

use serde::Serialize;

use super::Host;
use crate::config::Config;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Something works less well than it could.
    Warning,
    /// Something does not work.
    Error,
}

/// One thing to know about the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A name that stays the same.
    pub id: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What it is about: a node, a device, a setting.
    pub subject: String,
    /// What is so.
    pub what: String,
    /// What follows from it.
    pub consequence: String,
    /// The command or setting that mends it, where there is one.
    pub fix_command: Option<String>,
}

/// Everything worth saying about `host` under `config`, the gravest first.
pub fn findings(host: &Host, config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    memory::config_nodes(host, config, &mut found);
    memory::soft_reserved(host, &mut found);
    memory::cxl(host, &mut found);
    memory::dax(host, &mut found);
    memory::offline(host, &mut found);
    memory::movable(host, &mut found);
    memory::tiers(host, &mut found);
    kernel::damon(host, config, &mut found);
    kernel::onlining(host, &mut found);
    kernel::balancing(host, &mut found);
    kernel::tracing(host, &mut found);
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}
