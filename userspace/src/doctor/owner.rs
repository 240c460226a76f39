//! Whose DAMON it is, where the agent's journal tells.

use crate::{
    host::{Finding, Host, Kdamond, Severity, tree::Tree},
    source::damon::owner::Entry,
};

/// The journal of [`source::damon`](crate::source::damon): written by the agent before it starts a kdamond.
const JOURNAL: &str = "run/tensortier/damon.json";

/// A kdamond that an agent started is no stranger: says whose it is in place of [`damon-occupied`](crate::host::findings).
pub(super) fn damon(tree: &Tree<'_>, host: &Host, found: &mut Vec<Finding>) {
    let text = tree.text(JOURNAL).ok().flatten().unwrap_or_default();
    let boot = tree.text("proc/sys/kernel/random/boot_id").ok().flatten();
    let Some(journal) = Entry::parse(&text).filter(|journal| Some(&journal.boot) == boot.as_ref()) else { return };
    let agent = journal.agent.0;
    let alive = tree.exists(&format!("proc/{agent}"));
    let noted = |kdamond: &&Kdamond| {
        let pid = usize::try_from(kdamond.index).ok().and_then(|number| journal.kdamonds.get(&number));
        pid.is_some() && kdamond.pid.as_ref() == pid
    };
    for kdamond in host.damon.running().filter(noted) {
        let subject = format!("kdamond {}", kdamond.index);
        found.retain(|finding| finding.id != "damon-occupied" || finding.subject != subject);
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
}
