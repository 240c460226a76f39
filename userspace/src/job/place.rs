//! `run --place`: the memory policy a job starts with. Memory that will be pinned cannot be moved later, so its place
//! is chosen here, at allocation.

use std::str::FromStr;

use crate::{
    sys::MemPolicy,
    units::{NodeId, NodeSet},
};

/// A memory policy that a job starts with; its threads and children inherit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(MemPolicy);

/// Why a place was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlaceError {
    /// Not of a known form.
    #[error(
        "not a place: {0:?} (write prefer=N, bind=N,M, interleave=N,M or weighted-interleave=N,M with node numbers)"
    )]
    Form(String),
    /// A node without memory, or none at all.
    #[error("--place names node {node}, which has no memory here; the nodes with memory are {have}")]
    NoSuchNode {
        /// The node.
        node: NodeId,
        /// Those with memory.
        have: NodeSet,
    },
    /// A bind that leaves a job no memory near a CPU.
    #[error(
        "--place bind={0} leaves the job no node with CPUs: CUDA cannot allocate on such nodes alone, and a full node \
         ends the job; write prefer={first} to begin there without being held there",
        first = .0.0.first().map_or(0, |node| node.0)
    )]
    BindWithoutCpus(NodeSet),
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let bad = || PlaceError::Form(text.to_owned());
        let (mode, nodes) = text.split_once('=').ok_or_else(bad)?;
        let nodes: NodeSet = nodes.parse().map_err(|_| bad())?;
        let &first = nodes.0.first().ok_or_else(bad)?;
        let policy = match mode {
            "prefer" if nodes.0.len() == 1 => MemPolicy::Preferred(first),
            "bind" => MemPolicy::Bind(nodes),
            "interleave" => MemPolicy::Interleave(nodes),
            "weighted-interleave" => MemPolicy::WeightedInterleave(nodes),
            _ => return Err(bad()),
        };
        Ok(Self(policy))
    }
}

impl Place {
    /// Holds the place against the nodes of this machine that have memory and those that have CPUs.
    ///
    /// # Errors
    /// A node has no memory, or a bind names no node with CPUs.
    pub fn check(&self, memory: &NodeSet, cpus: &NodeSet) -> Result<(), PlaceError> {
        let nodes = self.0.nodes();
        if let Some(&node) = nodes.0.difference(&memory.0).next() {
            return Err(PlaceError::NoSuchNode { node, have: memory.clone() });
        }
        match &self.0 {
            MemPolicy::Bind(nodes) if nodes.0.is_disjoint(&cpus.0) => Err(PlaceError::BindWithoutCpus(nodes.clone())),
            _ => Ok(()),
        }
    }

    /// The policy.
    pub fn policy(&self) -> &MemPolicy {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn places_are_read_and_bad_ones_refused() {
        assert_eq!("prefer=2".parse(), Ok(Place(MemPolicy::Preferred(NodeId(2)))));
        assert_eq!("bind=0,65".parse::<Place>().unwrap().policy().arguments(), (2, vec![1, 2], 129));
        for bad in ["", "prefer", "prefer=", "prefer=0,1", "near=0", "bind=x", "interleave=1-0"] {
            assert!(matches!(bad.parse::<Place>(), Err(PlaceError::Form(_))), "{bad}");
        }
    }

    #[test]
    fn a_bind_needs_a_node_with_cpus() {
        let (memory, cpus) = ("0,2".parse().unwrap(), "0".parse().unwrap());
        let check = |place: &str| place.parse::<Place>().unwrap().check(&memory, &cpus);
        assert_eq!(check("bind=0,2"), Ok(()));
        assert_eq!(check("prefer=2"), Ok(()));
        assert_eq!(check("bind=2"), Err(PlaceError::BindWithoutCpus("2".parse().unwrap())));
        assert!(matches!(check("interleave=0-1"), Err(PlaceError::NoSuchNode { node: NodeId(1), .. })));
    }
}
