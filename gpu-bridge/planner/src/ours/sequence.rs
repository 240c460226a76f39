//! From an order and what is forgotten to the sequence of all runs, second ones included.
//!
//! Going through the order, what an operator reads and nobody holds any more is made again just
//! before it, with whatever that takes, in the order's own order. From one making of a storage
//! to its last touch before the next one (or the end) it has one *life*; only within a life does
//! it take memory. So forgetting is settled here, and what is left is swapping.

use super::genes::{Facts, Genes};
use crate::{belady::NEVER, graph::OpId};

/// Runs, as a multiple of the operators, above which recomputation has got out of hand.
const MOST_RUNS: usize = 3;

/// The runs of a step with the next use of all they touch.
#[derive(Default)]
pub(super) struct Sequence {
    pub(super) ops: Vec<OpId>,
    /// Run `p` has entries `starts[p]..starts[p + 1]` of `next`, parallel to its touches.
    pub(super) starts: Vec<u32>,
    /// Next run in the same life that touches the storage; for persistent ones past the end the
    /// first of the next step; [`NEVER`].
    pub(super) next: Vec<u32>,
    /// First run that touches each storage.
    pub(super) first: Vec<u32>,
    begins: Vec<bool>,
    alive: Vec<bool>,
    stamp: Vec<u32>,
    stack: Vec<u32>,
    chain: Vec<OpId>,
}

impl Sequence {
    /// Fills the sequence; false where something cannot be made again or runs grow without end.
    pub(super) fn build(&mut self, facts: &Facts<'_>, genes: &Genes) -> bool {
        let graph = facts.graph;
        let order = &genes.order;
        self.ops.clear();
        self.starts.clear();
        self.begins.clear();
        self.alive.clear();
        self.alive.extend_from_slice(&facts.persistent);
        self.stamp.clear();
        self.stamp.resize(graph.ops.len(), 0);
        for (at, &op) in order.ops.iter().enumerate() {
            if !self.missing(facts, genes, op, at as u32 + 1) {
                return false;
            }
            let chain = std::mem::take(&mut self.chain);
            chain.iter().for_each(|&made| self.push(facts, made));
            self.push(facts, op);
            for touch in graph.flat.of(op) {
                self.bury(facts, genes, touch.storage as usize, at as u32);
            }
            for &made in &chain {
                for touch in graph.flat.of(made) {
                    let s = touch.storage as usize;
                    // A gap begins after the use before it, not after a making in between.
                    if order.last[s] <= at as u32 && !genes.extend[s] && !facts.persistent[s] {
                        self.end_life(facts, s);
                    }
                }
            }
            self.chain = chain;
            if self.ops.len() > MOST_RUNS * order.ops.len() {
                return false;
            }
        }
        self.link(facts);
        true
    }

    /// What has to run before `op` so that all it reads is there.
    fn missing(&mut self, facts: &Facts<'_>, genes: &Genes, op: OpId, stamp: u32) -> bool {
        let graph = facts.graph;
        self.chain.clear();
        self.stack.clear();
        let absent = |alive: &[bool], touch: &crate::graph::Touch| touch.reads && !alive[touch.storage as usize];
        self.stack.extend(graph.flat.of(op).iter().filter(|t| absent(&self.alive, t)).map(|t| t.storage));
        while let Some(s) = self.stack.pop() {
            let Some(maker) = facts.maker[s as usize] else { return false };
            if std::mem::replace(&mut self.stamp[maker], stamp) != stamp {
                self.chain.push(maker);
                let touches = graph.flat.of(maker);
                self.stack.extend(touches.iter().filter(|t| absent(&self.alive, t)).map(|t| t.storage));
            }
        }
        let position = &genes.order.position;
        self.chain.sort_unstable_by_key(|&op| position[op]);
        true
    }

    fn push(&mut self, facts: &Facts<'_>, op: OpId) {
        self.starts.push(self.begins.len() as u32);
        self.ops.push(op);
        for touch in facts.graph.flat.of(op) {
            let alive = &mut self.alive[touch.storage as usize];
            self.begins.push(touch.writes && !*alive);
            *alive |= touch.writes;
        }
    }

    fn bury(&mut self, facts: &Facts<'_>, genes: &Genes, s: usize, at: u32) {
        let order = &genes.order;
        let forgotten = genes.forget[s] && order.gap[s] == at;
        let over = order.last[s] == at && !genes.extend[s];
        if forgotten || over {
            self.end_life(facts, s);
        }
    }

    fn end_life(&mut self, facts: &Facts<'_>, s: usize) {
        if facts.graph.storages[s].kind == crate::graph::StorageKind::Temporary {
            self.alive[s] = false;
        }
    }

    fn link(&mut self, facts: &Facts<'_>) {
        let count = self.begins.len();
        self.starts.push(count as u32);
        self.next.clear();
        self.next.resize(count, NEVER);
        let mut seen = vec![NEVER; facts.bytes.len()];
        self.first.clear();
        self.first.resize(facts.bytes.len(), NEVER);
        for at in (0..self.ops.len()).rev() {
            let touches = facts.graph.flat.of(self.ops[at]);
            for (k, touch) in (self.starts[at] as usize..).zip(touches) {
                let s = touch.storage as usize;
                self.next[k] = seen[s];
                self.first[s] = at as u32;
                seen[s] = if self.begins[k] { NEVER } else { at as u32 };
            }
        }
        let length = self.ops.len() as u32;
        for at in 0..self.ops.len() {
            let touches = facts.graph.flat.of(self.ops[at]);
            for (k, touch) in (self.starts[at] as usize..).zip(touches) {
                let s = touch.storage as usize;
                if self.next[k] == NEVER && facts.persistent[s] {
                    self.next[k] = length + self.first[s];
                }
            }
        }
    }
}
