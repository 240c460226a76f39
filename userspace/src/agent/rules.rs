//! Which running processes the config's rules make jobs of.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use nix::unistd::User;

use crate::{
    config::Rule,
    job::running::{self, Facts},
    units::Pid,
};

/// Processes that a rule makes a job, or part of one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The rule's place in the config.
    pub rule: usize,
    /// The processes, without what is below them.
    pub pids: BTreeSet<Pid>,
    /// Whose the first one is.
    pub user: u32,
}

/// A rule as it stands now: names looked up, the control group read.
pub(super) struct Matcher<'a> {
    rule: &'a Rule,
    user: Option<Option<u32>>,
    group: Option<BTreeSet<Pid>>,
}

impl<'a> Matcher<'a> {
    /// Looks up what the rule names. A user or a group that is not there now fits nothing.
    pub fn new(rule: &'a Rule) -> Self {
        let user = rule.user.as_deref().map(|name| {
            let by_name = || User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
            name.parse().ok().or_else(by_name)
        });
        let group = rule.cgroup.as_deref().map(|path| {
            let folder = running::cgroup_folder("/".as_ref(), path);
            folder.and_then(|folder| running::of_cgroup(&folder).ok()).unwrap_or_default()
        });
        Self { rule, user, group }
    }

    fn fits(&self, pid: Pid, facts: &Facts) -> bool {
        !facts.empty
            && self.rule.comm.as_ref().is_none_or(|comm| *comm == facts.name)
            && self.user.is_none_or(|user| user.is_some() && user == facts.user)
            && self.group.as_ref().is_none_or(|group| group.contains(&pid))
    }
}

/// Warns of rules whose control group is not there now: it may come, or be mistyped.
pub(super) fn tell_absent(rules: &[Rule]) {
    for rule in rules {
        let absent = |path: &&PathBuf| running::cgroup_folder("/".as_ref(), path).is_none();
        if let Some(path) = rule.cgroup.as_ref().filter(absent) {
            let (rule, cgroup) = (&rule.name, path.display());
            tracing::warn!(rule, %cgroup, "no such control group now: the rule fits nothing until there is");
        }
    }
}

/// What the rules find among `processes`, the first rule that fits first. Processes below one that is found, or that are
/// `taken` already, are left out.
pub(super) fn find(matchers: &[Matcher], processes: &BTreeMap<Pid, Facts>, taken: impl Fn(Pid) -> bool) -> Vec<Found> {
    let mut fits: BTreeMap<Pid, usize> = BTreeMap::new();
    for (pid, facts) in processes.iter().filter(|(pid, _)| !taken(**pid)) {
        if let Some(rule) = matchers.iter().position(|matcher| matcher.fits(*pid, facts)) {
            fits.insert(*pid, rule);
        }
    }
    let mut found: Vec<Found> = Vec::new();
    for (&pid, &rule) in fits.iter().filter(|(pid, _)| !is_below(**pid, processes, &fits)) {
        let user = processes.get(&pid).and_then(|facts| facts.user).unwrap_or(0);
        match found.iter_mut().find(|found| found.rule == rule && matchers[rule].group.is_some()) {
            Some(same) => drop(same.pids.insert(pid)),
            None => found.push(Found { rule, pids: [pid].into(), user }),
        }
    }
    found
}

fn is_below(pid: Pid, processes: &BTreeMap<Pid, Facts>, fits: &BTreeMap<Pid, usize>) -> bool {
    let mut at = pid;
    // A tree read while it changes could lead in a circle.
    for _ in 0..64 {
        let Some(facts) = processes.get(&at) else { return false };
        at = facts.parent;
        if fits.contains_key(&at) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Limits, Mode};

    fn rule(comm: Option<&str>, user: Option<&str>) -> Rule {
        let (comm, user) = (comm.map(str::to_owned), user.map(str::to_owned));
        Rule {
            name: "r".into(),
            comm,
            user,
            cgroup: None,
            mode: Mode::Migrate,
            actuator: None,
            policy: None,
            limits: Limits::default(),
        }
    }

    fn processes() -> BTreeMap<Pid, Facts> {
        let facts = |pid: u32, parent: u32, name: &str, user: u32| {
            let nodes = Default::default();
            (
                Pid(pid),
                Facts {
                    name: name.into(),
                    parent: Pid(parent),
                    user: Some(user),
                    nodes,
                    cpus: vec![],
                    empty: name == "kswapd0",
                },
            )
        };
        let all = [(10, 1, "python3", 7), (11, 10, "python3", 7), (20, 1, "sh", 7), (21, 20, "python3", 8)];
        all.into_iter()
            .chain([(30, 2, "kswapd0", 0)])
            .map(|(pid, parent, name, user)| facts(pid, parent, name, user))
            .collect()
    }

    fn found(rules: &[Rule], taken: impl Fn(Pid) -> bool) -> Vec<(usize, Vec<u32>, u32)> {
        let matchers: Vec<Matcher> = rules.iter().map(Matcher::new).collect();
        let found = find(&matchers, &processes(), taken).into_iter();
        found.map(|found| (found.rule, found.pids.iter().map(|pid| pid.0).collect(), found.user)).collect()
    }

    #[test]
    fn the_topmost_process_that_fits_is_a_job() {
        assert_eq!(found(&[rule(Some("python3"), None)], |_| false), [(0, vec![10], 7), (0, vec![21], 8)]);
        assert_eq!(found(&[rule(Some("python3"), Some("8"))], |_| false), [(0, vec![21], 8)]);
        assert_eq!(found(&[rule(None, Some("7"))], |_| false), [(0, vec![10], 7), (0, vec![20], 7)]);
    }

    #[test]
    fn what_is_taken_or_without_memory_or_of_an_unknown_user_is_left_out() {
        assert_eq!(found(&[rule(Some("python3"), None)], |pid| pid.0 < 20), [(0, vec![21], 8)]);
        assert!(found(&[rule(Some("kswapd0"), None)], |_| false).is_empty());
        assert!(found(&[rule(None, Some("no-such-user-here"))], |_| false).is_empty());
    }

    #[test]
    fn the_first_rule_that_fits_has_it_and_a_group_is_one_job() {
        let rules = [rule(Some("sh"), None), rule(Some("python3"), None)];
        assert_eq!(found(&rules, |_| false), [(1, vec![10], 7), (0, vec![20], 7)], "21 is below 20");
        let group = rule(None, None);
        let matcher = Matcher { rule: &group, user: None, group: Some([Pid(10), Pid(21)].into()) };
        let one = find(&[matcher], &processes(), |_| false);
        assert_eq!(one, [Found { rule: 0, pids: [Pid(10), Pid(21)].into(), user: 7 }]);
    }
}
