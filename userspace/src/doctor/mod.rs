//! What stands in the way of tiering on this host, each thing with its consequence and the command that mends it.
//!
//! The host's own [`findings`](host::findings) come first, as `topo` shows them; beside them stand what a look at the
//! running processes and at this process's rights adds. Everything is read under a root, so that a recorded host is
//! examined as a live one is. Nothing is changed.

mod floors;
mod owner;
mod policies;
mod processes;
mod rights;
mod settings;

use std::path::Path;

pub use self::{
    processes::{Policy, Process},
    rights::Rights,
};
use crate::{
    config::Config,
    host::{self, Finding, Host, HostError, Severity, tree::Tree},
};

/// Every finding about the host under `root`, the gravest first.
///
/// # Errors
/// A file of the host is malformed or cannot be read.
pub fn examine(root: &Path, host: &Host, config: &Config) -> Result<Vec<Finding>, HostError> {
    let tree = Tree::new(root);
    let mut found = host::findings(host, config);
    owner::damon(&tree, host, &mut found);
    rights::all(&rights::read(&tree)?, &mut found);
    floors::all(host, &mut found);
    settings::all(host, &mut found);
    policies::all(host, &processes::read(&tree), &mut found);
    sort(&mut found);
    Ok(found)
}

/// Puts the gravest first; equals keep their order.
pub fn sort(found: &mut [Finding]) {
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
}

/// Whether one of them stops tiering here.
pub fn stops(found: &[Finding]) -> bool {
    found.iter().any(|finding| finding.severity == Severity::Error)
}

#[cfg(test)]
mod tests;
