//! Whose DAMON it is, where the agent's journal tells.

use serde_json::Value;

use crate::host::{Finding, Host, Kdamond, Severity, tree::Tree};

/// The journal of [`source::damon`](crate::source::damon): written by the agent before it starts a kdamond.
const JOURNAL: &str = "run/tensortier/damon.json";

/// A kdamond that an agent started is no stranger: says whose it is in place of [`damon-occupied`](crate::host::findings).
pub(super) fn damon(tree: &Tree<'_>, host: &Host, found: &mut Vec<Finding>) {
    let text = tree.text(JOURNAL).ok().flatten().unwrap_or_default();
    let Ok(journal) = serde_json::from_str::<Value>(&text) else { return };
    let boot = tree.text("proc/sys/kernel/random/boot_id").ok().flatten();
    let agent = journal["agent"][0].as_u64().unwrap_or(0);
    let ours = |kdamond: &&Kdamond| kdamond.pid.is_some_and(|pid| journal["kdamond"] == pid);
    let Some(kdamond) = host.damon.running().find(ours).filter(|_| journal["boot"].as_str() == boot.as_deref()) else {
        return;
    };
    let subject = format!("kdamond {}", kdamond.index);
    found.retain(|finding| finding.id != "damon-occupied" || finding.subject != subject);
    let alive = tree.exists(&format!("proc/{agent}"));
    found.push(Finding {
        id: if alive { "damon-ours" } else { "damon-left-behind" },
        severity: Severity::Info,
        what: match alive {
            true => format!("{subject} works for the tensortier agent with pid {agent}"),
            false => format!("{subject} was left by a tensortier agent (pid {agent}) that is gone"),
        },
        subject,
        consequence: match alive {
            true => "a second agent would have no DAMON".to_owned(),
            false => "it costs CPU time until the next agent ends it, which it does when it starts".to_owned(),
        },
        fix_command: (!alive).then(|| "sudo tensortier run -- true".to_owned()),
    });
}
