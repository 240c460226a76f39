//! Hosts that were recorded, hosts made for a case, and text that no kernel writes.
#![allow(clippy::unwrap_used)]

mod damon;
mod findings;
mod hostile;
pub(crate) mod made;
mod recorded;
mod tiers;

use self::made::Made;
use super::*;

fn node(id: u32) -> NodeId {
    NodeId(id)
}

fn set(list: &str) -> NodeSet {
    list.parse().unwrap()
}

fn config(text: &str) -> Config {
    Config::parse(Path::new("t.toml"), text).unwrap()
}

/// The finding of this name; a panic with all of them where it is missing.
fn finding(host: &Host, config: &Config, id: &str) -> Finding {
    let all = findings(host, config);
    all.iter().find(|finding| finding.id == id).unwrap_or_else(|| panic!("no {id} among {all:#?}")).clone()
}

fn has_finding(host: &Host, id: &str) -> bool {
    findings(host, &Config::default()).iter().any(|finding| finding.id == id)
}
