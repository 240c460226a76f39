//! Where the processes run: promotion goes to the DRAM nearest the CPUs that use it.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use crate::{
    host::Host,
    units::{NodeId, Pid, read_text},
};

/// Threads wander; a home is looked up again after this.
const FRESH: Duration = Duration::from_secs(10);
/// Of a process with more threads so many are asked.
const THREADS: usize = 64;

/// The node that most threads of each process ran on last.
#[derive(Debug, Default)]
pub struct Homes {
    known: BTreeMap<Pid, NodeId>,
    at: Option<Instant>,
}

impl Homes {
    /// The homes of these processes. Nothing is asked on a host with one node of CPUs.
    pub fn of(&mut self, pids: impl Iterator<Item = Pid>, host: &Host, now: Instant) -> &BTreeMap<Pid, NodeId> {
        let fresh = self.at.is_some_and(|at| now.duration_since(at) < FRESH);
        if host.nodes.values().filter(|node| !node.cpus.is_empty()).count() > 1 && !fresh {
            let home = |pid| Some((pid, majority(last_cpus(pid), |cpu| node_of(host, cpu))?));
            (self.known, self.at) = (pids.filter_map(home).collect(), Some(now));
        }
        &self.known
    }
}

fn node_of(host: &Host, cpu: u32) -> Option<NodeId> {
    host.nodes.values().find(|node| node.cpus.contains(&cpu)).map(|node| node.id)
}

/// The node of most of the CPUs; of equals the lowest.
fn majority(cpus: impl IntoIterator<Item = u32>, node_of: impl Fn(u32) -> Option<NodeId>) -> Option<NodeId> {
    let mut votes: BTreeMap<NodeId, usize> = BTreeMap::new();
    cpus.into_iter().filter_map(node_of).for_each(|node| *votes.entry(node).or_default() += 1);
    votes.into_iter().rev().max_by_key(|(_, count)| *count).map(|(node, _)| node)
}

/// The CPU that each thread ran on last.
fn last_cpus(pid: Pid) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(THREADS);
    threads.filter_map(|thread| last_cpu(&read_text(thread.path().join("stat")).ok()?)).collect()
}

/// Field 39 of proc_pid_stat(5); the name before it may hold spaces and parentheses.
fn last_cpu(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(39 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_ran_on_a_cpu() {
        assert!(!last_cpus(Pid(std::process::id())).is_empty());
        let stat = format!("7 (a ) b) S {}5 0 0", "0 ".repeat(39 - 4));
        assert_eq!((last_cpu(&stat), last_cpu("7 (a)"), last_cpu("")), (Some(5), None, None));
    }

    #[test]
    fn most_threads_decide_and_unknown_cpus_do_not() {
        let node = |cpu| (cpu < 8).then_some(NodeId(cpu / 4 * 2));
        assert_eq!(majority([0, 4, 5, 9, 9, 9], node), Some(NodeId(2)));
        assert_eq!(majority([0, 4], node), Some(NodeId(0)));
        assert_eq!(majority([9], node), None);
    }
}
