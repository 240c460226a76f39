//! Large processes of this host and the nodes that they may use: by cpuset, and by memory policies of their own.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{
    host::tree::Tree,
    job::numa_maps,
    sys::MemPolicy,
    units::{NodeId, NodeSet, Pid, printable},
};

/// Processes with less resident memory are not worth a look.
const LEAST_BYTES: u64 = 64 << 20;
/// Reading numa_maps walks a process's page tables, so only so many of the largest are read.
const MOST: usize = 32;

/// A process with much memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its id.
    pub pid: Pid,
    /// Its name.
    pub name: String,
    /// Resident bytes.
    pub resident_bytes: u64,
    /// The nodes that its cpuset allows.
    pub allowed: NodeSet,
    /// Resident bytes under policies that bind to nodes or prefer one.
    pub policies: Vec<Policy>,
    /// Whether it has the CUDA driver loaded.
    pub cuda: bool,
}

/// What a process holds under one memory policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Whether memory may be on no other node.
    pub binds: bool,
    /// The nodes that it names.
    pub nodes: NodeSet,
    /// Resident bytes.
    pub bytes: u64,
}

impl Process {
    /// The policy that holds most of its memory, if that is at least half.
    pub fn main_policy(&self) -> Option<&Policy> {
        self.policies.iter().max_by_key(|policy| policy.bytes).filter(|policy| policy.bytes * 2 >= self.resident_bytes)
    }
}

/// The largest processes, largest first. Those that end meanwhile or are kept from the caller are left out.
pub(super) fn read(tree: &Tree<'_>) -> Vec<Process> {
    let pids = tree.numbered("proc", "").unwrap_or_default();
    let mut all: Vec<Process> = pids.into_iter().filter_map(|pid| status(tree, pid)).collect();
    all.sort_by_key(|process| (std::cmp::Reverse(process.resident_bytes), process.pid));
    all.truncate(MOST);
    for process in &mut all {
        process.policies = policies(tree, process.pid);
        process.cuda = text(tree, process.pid, "maps").is_some_and(|maps| maps.contains("/libcuda.so"));
    }
    all
}

fn text(tree: &Tree<'_>, pid: Pid, file: &str) -> Option<String> {
    tree.text(&format!("proc/{pid}/{file}")).ok().flatten()
}

fn status(tree: &Tree<'_>, pid: u32) -> Option<Process> {
    let text = text(tree, Pid(pid), "status")?;
    let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    // Kernel threads have no such line.
    let kib: u64 = field("VmRSS")?.split_whitespace().next()?.parse().ok()?;
    let resident_bytes = kib.checked_mul(1024)?;
    (resident_bytes >= LEAST_BYTES).then_some(())?;
    Some(Process {
        pid: Pid(pid),
        name: printable(field("Name").unwrap_or("?")),
        resident_bytes,
        allowed: field("Mems_allowed_list")?.parse().ok()?,
        policies: Vec::new(),
        cuda: false,
    })
}

fn policies(tree: &Tree<'_>, pid: Pid) -> Vec<Policy> {
    let text = text(tree, pid, "numa_maps").unwrap_or_default();
    let mut sums: BTreeMap<(bool, BTreeSet<NodeId>), u64> = BTreeMap::new();
    for line in numa_maps::parse(&text, "numa_maps").unwrap_or_default() {
        let key = match line.policy {
            MemPolicy::Bind(nodes) => (true, nodes.0),
            MemPolicy::Preferred(node) => (false, [node].into()),
            MemPolicy::PreferredMany(nodes) => (false, nodes.0),
            _ => continue,
        };
        *sums.entry(key).or_default() += line.on.values().sum::<u64>();
    }
    sums.into_iter().map(|((binds, nodes), bytes)| Policy { binds, nodes: NodeSet(nodes), bytes }).collect()
}
