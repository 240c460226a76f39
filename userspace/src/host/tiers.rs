//! Tiers: nodes of like speed, the fastest first.
//!
//! Three answers, the first that separates anything wins. The config's, when the user says so. The kernel's memory
//! tiers, which rest on HMAT and drivers, when they put nodes apart. Else nodes with CPUs are the top tier and nodes
//! without come below it, the nearer the higher: a kernel without HMAT files every node under one tier.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{HostError, Node, NodeKind, tree::Tree};
use crate::units::{NodeId, NodeSet};

const TIERING: &str = "sys/devices/virtual/memory_tiering";

/// Nodes of like speed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tier {
    /// 0 is the top tier.
    pub rank: usize,
    /// Its nodes.
    pub nodes: NodeSet,
    /// Who says so.
    pub source: TierSource,
}

/// What a tier's membership rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierSource {
    /// The kernel's memory tiers.
    Kernel,
    /// CPUs and distance.
    Distance,
    /// The config file.
    Config,
}

/// Tiers as the host itself shows them.
pub(super) fn read(tree: &Tree, nodes: &BTreeMap<NodeId, Node>) -> Result<Vec<Tier>, HostError> {
    let mut kernel = Vec::new();
    for number in tree.numbered(TIERING, "memory_tier")? {
        let name = format!("{TIERING}/memory_tier{number}/nodelist");
        if let Some(set) = tree.value::<NodeSet>(&name, "a list such as 0,2-3")? {
            kernel.push(set);
        }
    }
    let kernel = ranked(kernel, nodes, TierSource::Kernel);
    let covered = usable(nodes).all(|node| kernel.iter().any(|tier| tier.nodes.contains(node.id)));
    if kernel.len() > 1 && covered {
        return Ok(kernel);
    }
    Ok(ranked(by_distance(nodes), nodes, TierSource::Distance))
}

/// Tiers of the given sets: nodes that cannot be in a tier are taken out, and empty tiers with them.
pub(super) fn ranked(sets: Vec<NodeSet>, nodes: &BTreeMap<NodeId, Node>, source: TierSource) -> Vec<Tier> {
    let in_tier = |id: &NodeId| usable(nodes).any(|node| node.id == *id);
    sets.into_iter()
        .map(|set| set.0.into_iter().filter(in_tier).collect::<NodeSet>())
        .filter(|set| !set.0.is_empty())
        .enumerate()
        .map(|(rank, nodes)| Tier { rank, nodes, source })
        .collect()
}

/// Nodes with memory that belongs to programs: a GPU's is the GPU's.
pub(super) fn usable(nodes: &BTreeMap<NodeId, Node>) -> impl Iterator<Item = &Node> {
    nodes.values().filter(|node| !matches!(node.kind, NodeKind::Gpu | NodeKind::Empty))
}

fn by_distance(nodes: &BTreeMap<NodeId, Node>) -> Vec<NodeSet> {
    let bandwidth = |node: &Node| node.access.and_then(|access| access.read_mib_per_sec);
    let beside_cpus = usable(nodes).filter(|node| !node.cpus.is_empty()).filter_map(bandwidth).max();
    // High-bandwidth memory is a node without CPUs too, and no lower tier.
    let is_fast = |node: &Node| bandwidth(node).zip(beside_cpus).is_some_and(|(own, top)| own >= top);
    let (top, rest): (Vec<&Node>, Vec<&Node>) = usable(nodes).partition(|node| !node.cpus.is_empty() || is_fast(node));
    let mut lower: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
    for node in rest {
        let nearest = top.iter().filter_map(|upper| upper.distances.get(&node.id)).min();
        lower.entry(nearest.copied().unwrap_or(u32::MAX)).or_default().push(node.id);
    }
    let top = top.into_iter().map(|node| node.id).collect();
    std::iter::once(top).chain(lower.into_values().map(|ids| ids.into_iter().collect())).collect()
}
