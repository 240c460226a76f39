//! Evicted neighbourhoods by equivalence classes: one union-find set for each connected group of evicted storages.

use super::log::{OpId, StorageId};
use super::state::{Place, State};

/// A set, or a link to the set it was merged into.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    /// Cost of the set, ns, at its root. Signed, because a rematerialised storage takes out what it costs then, which
    /// may be more than it put in.
    compute_ns: i64,
}

/// The classes. A storage that comes back leaves its cost out of the class, but the class stays whole: two groups it
/// joined remain joined. That error is part of the method.
#[derive(Clone, Debug)]
pub(crate) struct Classes {
    nodes: Vec<Node>,
    /// Node of each evicted storage.
    of: Vec<Option<u32>>,
}

impl Classes {
    pub(crate) fn new(storages: usize) -> Self {
        Classes { nodes: Vec::new(), of: vec![None; storages] }
    }

    /// A call is about to run for the first time: each storage it allocates is a class of its own that costs nothing,
    /// and may be merged with others before it is there.
    pub(crate) fn created_by(&mut self, state: &State<'_>, op: OpId) {
        for &t in &state.log.ops[op as usize].outputs {
            let s = state.log.storage_of(t);
            if state.log.storages[s as usize].root == t {
                self.of[s as usize] = Some(self.add(0));
            }
        }
    }

    fn add(&mut self, compute_ns: i64) -> u32 {
        let node = self.nodes.len() as u32;
        self.nodes.push(Node { parent: node, compute_ns });
        node
    }

    fn root(&mut self, mut node: u32) -> u32 {
        let mut root = node;
        while self.nodes[root as usize].parent != root {
            root = self.nodes[root as usize].parent;
        }
        while node != root {
            node = std::mem::replace(&mut self.nodes[node as usize].parent, root);
        }
        root
    }

    /// Roots of the distinct classes beside a storage.
    fn beside(&mut self, state: &State<'_>, s: StorageId) -> Vec<u32> {
        let gone = state.neighbours(s).filter(|&n| n != s && state.storages[n as usize].place == Place::Gone);
        let mut roots: Vec<u32> = Vec::new();
        for n in gone {
            if let Some(node) = self.of[n as usize] {
                let root = self.root(node);
                if !roots.contains(&root) {
                    roots.push(root);
                }
            }
        }
        roots
    }

    /// Cost of the evicted neighbourhood of a storage, ns.
    pub(crate) fn cost(&mut self, state: &State<'_>, s: StorageId) -> i64 {
        self.beside(state, s).into_iter().map(|r| self.nodes[r as usize].compute_ns).sum()
    }

    /// A storage was evicted: its class is its own cost and all classes beside it.
    pub(crate) fn evicted(&mut self, state: &State<'_>, s: StorageId) {
        let node = self.add(state.storages[s as usize].compute_ns as i64);
        for r in self.beside(state, s) {
            self.nodes[node as usize].compute_ns += self.nodes[r as usize].compute_ns;
            self.nodes[r as usize].parent = node;
        }
        self.of[s as usize] = Some(node);
    }

    /// Storages came back: they take their cost out of their classes.
    pub(crate) fn came_back(&mut self, state: &State<'_>, fresh: &[StorageId]) {
        for &s in fresh {
            if let Some(node) = self.of[s as usize].take() {
                let root = self.root(node);
                self.nodes[root as usize].compute_ns -= state.storages[s as usize].compute_ns as i64;
            }
        }
    }
}
