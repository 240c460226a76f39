//! What a policy is given besides the view: nodes, a budget, and what moved lately.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::spread::Speeds;
use crate::units::{BLOCK, NodeId, Pid, Range};

/// A node whose memory takes part in tiering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Bytes it has.
    pub total: u64,
    /// Bytes that can be allocated on it without pushing out memory in use.
    pub free: u64,
    /// Bytes of `free` that are left for new allocations; no plan goes under it.
    pub headroom: u64,
}

/// The nodes by tier. A node that is in neither list, such as a GPU's memory, is never touched: nothing on it moves
/// and nothing moves to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tiers {
    /// The top tier (DRAM).
    pub top: Vec<Node>,
    /// All lower tiers (CXL).
    pub lower: Vec<Node>,
    /// NUMA distances; a pair without one counts as farther than any other.
    pub distance: BTreeMap<(NodeId, NodeId), u32>,
    /// The top node nearest a process's CPUs and GPU, where that is known.
    pub preferred: BTreeMap<Pid, NodeId>,
    /// The least that was free on a top node in the last while, where that is known: room that is not wanted again soon.
    pub lasting: BTreeMap<NodeId, u64>,
    /// What the tiers can do, where a policy may ask for it.
    pub speeds: Option<Speeds>,
}

impl Tiers {
    /// Whether `id` is on the top tier.
    pub fn is_top(&self, id: NodeId) -> bool {
        self.top.iter().any(|node| node.id == id)
    }

    /// Takes the room that a move needs, and gives the room that it leaves.
    pub fn take(&mut self, step: &super::Move) {
        for node in self.top.iter_mut().chain(&mut self.lower) {
            if node.id == step.from {
                node.free += step.bytes;
            } else if node.id == step.to {
                node.free = node.free.saturating_sub(step.bytes);
            }
        }
    }

    /// Top nodes for memory of `pid` that is on `from`, best first.
    pub(super) fn top_for(&self, pid: Pid, from: NodeId) -> Vec<NodeId> {
        let near = self.preferred.get(&pid).copied().unwrap_or(from);
        self.nearest(near, &self.top)
    }

    /// Lower nodes for memory on `from`, best first.
    pub(super) fn lower_for(&self, from: NodeId) -> Vec<NodeId> {
        self.nearest(from, &self.lower)
    }

    fn nearest(&self, from: NodeId, nodes: &[Node]) -> Vec<NodeId> {
        let mut ids: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
        let far = |id: &NodeId| self.distance.get(&(from, *id)).copied().unwrap_or(u32::MAX);
        ids.sort_by_key(|id| (*id != from, far(id), *id));
        ids.dedup();
        ids
    }
}

/// What one decision may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The id its plan gets.
    pub plan: u64,
    /// Bytes its moves may add up to, demotions included. Under two blocks nothing can be swapped.
    pub bytes: u64,
}

/// The last move of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastMove {
    /// When.
    pub at: Instant,
    /// Where it was.
    pub from: NodeId,
    /// Where it went.
    pub to: NodeId,
    /// The heat that decided it.
    pub heat: f32,
    /// How often in a row it has gone back soon after it came.
    pub offences: u32,
}

/// What moved lately: the ledger's word to the policy.
#[derive(Clone, Debug)]
pub struct Recent {
    pub(crate) last: BTreeMap<(Pid, u64), LastMove>,
    /// Time after a move in which a block does not go back (`policy.pingpong_window_s`).
    pub(crate) window: Duration,
}

impl Default for Recent {
    fn default() -> Self {
        Self { last: BTreeMap::new(), window: Duration::from_secs(10) }
    }
}

impl Recent {
    /// The window after so many offences: doubled by each, 64 times at the most.
    pub fn hold(&self, offences: u32) -> Duration {
        self.window.saturating_mul(1 << offences.min(6))
    }

    /// Going back within this time is an offence: half as long again as the hold, so that a block that goes back as
    /// soon as it may is held longer the next time.
    pub(crate) fn soon(&self, offences: u32) -> Duration {
        self.hold(offences).mul_f64(1.5)
    }

    /// After so long without a move a block's offences are forgotten.
    pub(crate) fn forgiven(&self, offences: u32) -> Duration {
        self.hold(offences).saturating_mul(8)
    }

    /// Drops what is forgiven.
    pub(crate) fn sweep(&mut self, now: Instant) {
        let last = std::mem::take(&mut self.last);
        let young = |last: &LastMove| now.saturating_duration_since(last.at) < self.forgiven(last.offences);
        self.last = last.into_iter().filter(|(_, last)| young(last)).collect();
    }

    /// The last move of the block that `range` begins in.
    pub fn last(&self, pid: Pid, range: Range) -> Option<&LastMove> {
        self.last.get(&(pid, range.start / BLOCK))
    }
}
