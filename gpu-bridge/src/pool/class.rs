//! What an object is for, and the nodes that suit it.

use tensortier_model::Bytes;

use super::stripe;

/// What touches an object. The order of nodes for each is ours ([`super`] says after whom).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Master weights, momentum, variance: the CPU reads and writes them, at memory latency. DRAM first.
    Optimizer,
    /// Weights that only the copy engine reads. CXL first, striped over the nearest cards.
    Parameters,
    /// Written by the copy engine, then read by the CPU. DRAM nearest the GPU first.
    Gradients,
    /// Written and read by the copy engine only. As parameters.
    Activations,
}

/// How long an object lives; objects that go together lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lifetime {
    /// As long as the job.
    Job,
    /// Until the end of the step.
    Step,
    /// Shorter than a step.
    Window,
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeKind {
    /// The host's own memory.
    Dram,
    /// CXL memory that the kernel manages as a node.
    Cxl,
    /// CXL memory as a device-dax file, outside the kernel's tiering; its number is the one it would have as a node.
    Dax,
}

/// A node that the pool may use.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// NUMA node.
    pub node: u32,
    /// What it is.
    pub kind: NodeKind,
    /// Distance from the GPU's node, as the firmware has it (10 is local).
    pub distance: u32,
    /// What it can deliver, in any unit that is the same for all: a stripe's share.
    pub weight: u32,
    /// Most bytes that the pool may hold there.
    pub budget: Bytes,
    /// Whether its memory is `ZONE_MOVABLE` ([`super::movable_nodes`]).
    pub movable: bool,
    /// Whether extents there are to be registered with the GPU's driver.
    pub register: bool,
}

/// The nodes that an object's bytes lie on, with weights; one node, or a stripe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement(Vec<(u32, u32)>);

impl Placement {
    /// All on one node.
    pub fn on(node: u32) -> Self {
        Self(vec![(node, 1)])
    }

    /// Over (node, weight) pairs; weights of 0 count as 1.
    pub fn striped(mut shares: Vec<(u32, u32)>) -> Self {
        shares.sort_unstable();
        shares.dedup_by_key(|share| share.0);
        shares.iter_mut().for_each(|share| share.1 = share.1.max(1));
        Self(shares)
    }

    /// (node, weight) pairs.
    pub fn shares(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Whether it spans several nodes.
    pub fn is_striped(&self) -> bool {
        self.0.len() > 1
    }
}

/// Placements for an object of `class`, best first: one per node, and for what only DMA touches a stripe before them.
pub fn candidates(class: Class, bytes: Bytes, nodes: &[NodeSpec]) -> Vec<Placement> {
    let dma_only = matches!(class, Class::Parameters | Class::Activations);
    let mut order: Vec<_> = nodes.iter().collect();
    order.sort_by_key(|n| ((n.kind == NodeKind::Dram) == dma_only, n.distance, n.node));
    let mut placements: Vec<_> = order.iter().map(|n| Placement::on(n.node)).collect();
    let cards: Vec<_> = order.iter().filter(|n| n.kind != NodeKind::Dram).collect();
    // Only the nearest cards: crossing the socket link costs more than a further card gives.
    let near: Vec<_> = cards.iter().filter(|n| n.distance == cards[0].distance).map(|n| (n.node, n.weight)).collect();
    if dma_only && bytes >= stripe::MIN_BYTES && near.len() > 1 {
        placements.insert(0, Placement::striped(near));
    }
    placements
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node: u32, kind: NodeKind, distance: u32) -> NodeSpec {
        NodeSpec { node, kind, distance, weight: node, budget: 1, movable: false, register: true }
    }

    fn ids(class: Class, bytes: Bytes, nodes: &[NodeSpec]) -> Vec<Vec<u32>> {
        let nodes_of = |p: Placement| p.shares().iter().map(|s| s.0).collect();
        candidates(class, bytes, nodes).into_iter().map(nodes_of).collect()
    }

    #[test]
    fn each_class_has_its_order() {
        let nodes = [
            node(0, NodeKind::Dram, 21),
            node(1, NodeKind::Dram, 10),
            node(2, NodeKind::Cxl, 14),
            node(3, NodeKind::Dax, 14),
            node(8, NodeKind::Cxl, 24),
        ];
        for class in [Class::Optimizer, Class::Gradients] {
            assert_eq!(ids(class, 1 << 30, &nodes), [vec![1], vec![0], vec![2], vec![3], vec![8]]);
        }
        for class in [Class::Parameters, Class::Activations] {
            assert_eq!(ids(class, 1 << 30, &nodes), [vec![2, 3], vec![2], vec![3], vec![8], vec![1], vec![0]]);
            assert_eq!(ids(class, 1 << 20, &nodes)[0], [2], "too small to stripe");
        }
        assert_eq!(ids(Class::Parameters, 1 << 30, &nodes[..2]), [vec![1], vec![0]], "no card at all");
    }
}
