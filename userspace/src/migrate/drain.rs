//! Evacuates a node: moves what can be moved off it, of every process of the host, and lists what remains and whose it
//! is. Pages that no process maps (page cache, kernel memory) are not seen here and stay; offlining deals with those.

use std::{collections::BTreeMap, path::Path, sync::atomic::AtomicBool};

use serde::{Deserialize, Serialize};

use super::{Cause, Executor, Params};
use crate::{
    host::{Host, NodeKind},
    job::{
        numa_maps::{self, Line},
        running::{self, Facts},
        vma::{self, Vma},
    },
    policy::{Move, Plan, Reason},
    units::{BLOCK, NodeId, NodeSet, PAGE, Pid, Range},
};

/// Addresses of one move: enough to share calls, little enough that progress shows.
const PIECE: u64 = 32 * BLOCK;

/// What came of a drain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drained {
    /// The node.
    pub node: u32,
    /// Bytes that moved, by the node they went to.
    pub moved_bytes: BTreeMap<NodeId, u64>,
    /// Pages that were tried and did not move, by cause.
    pub failed_pages: BTreeMap<Cause, u64>,
    /// What is still there, by process.
    pub remaining: Vec<Remaining>,
}

/// Memory of one process that is still on the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Remaining {
    /// The process.
    pub pid: u32,
    /// Its program.
    pub name: String,
    /// Bytes by why they are there.
    pub bytes: BTreeMap<Why, u64>,
}

/// Why memory stayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The process bound it to this node.
    Bound,
    /// hugetlb pages: their pools are reserved by node.
    Hugetlb,
    /// Pages of files, which move only where `migrate.file_pages` says so.
    File,
    /// Device memory and the like.
    Special,
    /// It was tried: pinned, shared with other processes, forbidden by a cpuset, or no room elsewhere.
    Refused,
}

/// Why a node cannot be drained.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DrainError {
    /// There is no such node, or it has no memory.
    #[error("node {node}: this host has memory on nodes {present}")]
    NoNode {
        /// The node.
        node: NodeId,
        /// Those with memory.
        present: NodeSet,
    },
    /// There is nowhere to go.
    #[error("node {node} is the only one with memory for programs: there is nowhere to move it to")]
    Nowhere {
        /// The node.
        node: NodeId,
    },
}

/// Moves what can be moved off `node`. Takes as long as the pages take.
///
/// # Errors
/// There is no such node, or no other one.
pub fn evacuate(host: &Host, node: NodeId, params: Params, file_pages: bool) -> Result<Drained, DrainError> {
    let mut room = targets(host, node)?;
    let proc = Path::new("/proc");
    let mut drained = Drained { node: node.0, ..Drained::default() };
    let (mut executor, stop) = (Executor::new(params), AtomicBool::new(false));
    for (pid, _) in running::all(proc).into_iter().filter(|(_, facts)| !facts.empty) {
        // One that has ended has nothing there.
        let (Ok(vmas), Ok(lines)) = (vma::of_process(pid), numa_maps::of_process(pid)) else { continue };
        let moves = moves(pid, &vmas, &lines, node, file_pages, &mut room);
        executor.run_each(&Plan { id: 0, moves, ..Plan::default() }, &stop, |outcome| {
            *drained.moved_bytes.entry(outcome.asked.to).or_default() += outcome.moved * PAGE;
            for (cause, pages) in outcome.failed {
                // Of each range most pages are elsewhere or nowhere: that is no failure.
                if !matches!(cause, Cause::Absent | Cause::AlreadyThere | Cause::Elsewhere) {
                    *drained.failed_pages.entry(cause).or_default() += pages;
                }
            }
        });
    }
    drained.moved_bytes.retain(|_, bytes| *bytes > 0);
    drained.remaining =
        running::all(proc).into_iter().filter_map(|(pid, facts)| remaining(pid, &facts, node, file_pages)).collect();
    Ok(drained)
}

/// The other nodes with memory for programs, nearest first, with their free bytes.
fn targets(host: &Host, node: NodeId) -> Result<Vec<(NodeId, u64)>, DrainError> {
    let present: NodeSet = host.tier_nodes().collect();
    if !host.nodes.get(&node).is_some_and(|node| node.kind != NodeKind::Empty) {
        return Err(DrainError::NoNode { node, present });
    }
    let mut others: Vec<NodeId> = present.0.into_iter().filter(|other| *other != node).collect();
    others.sort_by_key(|other| (host.distance(node, *other), *other));
    let room = |id: NodeId| (id, host.nodes.get(&id).map_or(0, |node| node.available_bytes));
    if others.is_empty() { Err(DrainError::Nowhere { node }) } else { Ok(others.into_iter().map(room).collect()) }
}

/// The movable mappings of a process with bytes on `node`, in pieces, each to the nearest node with room for them.
fn moves(
    pid: Pid,
    vmas: &[Vma],
    lines: &[Line],
    node: NodeId,
    file_pages: bool,
    room: &mut [(NodeId, u64)],
) -> Vec<Move> {
    let mut moves = Vec::new();
    for line in lines.iter().filter(|line| why(line, vmas, node, file_pages) == Some(Why::Refused)) {
        let bytes = line.on.get(&node).copied().unwrap_or(0);
        let Some(vma) = vmas.iter().find(|vma| vma.range.start == line.start) else { continue };
        let roomiest = room.iter().enumerate().max_by_key(|(_, (_, free))| *free).map(|(at, _)| at);
        let Some(at) = room.iter().position(|(_, free)| *free >= bytes).or(roomiest) else { continue };
        let (to, free) = &mut room[at];
        *free = free.saturating_sub(bytes);
        let mut start = vma.range.start;
        while start < vma.range.end {
            let range = Range::new(start, (start + PIECE).min(vma.range.end));
            let bytes = range.bytes().min(bytes);
            moves.push(Move { pid, range, from: node, to: *to, bytes, reason: Reason::Drain, heat: 0.0 });
            start = range.end;
        }
    }
    moves
}

/// Why a mapping with bytes on `node` stays there; `Refused` where only trying tells. `None` where it has none.
fn why(line: &Line, vmas: &[Vma], node: NodeId, file_pages: bool) -> Option<Why> {
    line.on.get(&node).filter(|bytes| **bytes > 0)?;
    let kind = vmas.iter().find(|vma| vma.range.start == line.start).map(|vma| vma.kind);
    Some(match kind {
        _ if line.hugetlb => Why::Hugetlb,
        _ if matches!(&line.policy, crate::sys::MemPolicy::Bind(nodes) if nodes.contains(node)) => Why::Bound,
        Some(vma::Kind::File) if !file_pages => Why::File,
        Some(kind) if kind.movable(true) => Why::Refused,
        _ => Why::Special,
    })
}

fn remaining(pid: Pid, facts: &Facts, node: NodeId, file_pages: bool) -> Option<Remaining> {
    let (vmas, lines) = (vma::of_process(pid).ok()?, numa_maps::of_process(pid).ok()?);
    let mut bytes: BTreeMap<Why, u64> = BTreeMap::new();
    for line in &lines {
        if let Some(why) = why(line, &vmas, node, file_pages) {
            *bytes.entry(why).or_default() += line.on.get(&node).copied().unwrap_or(0);
        }
    }
    (!bytes.is_empty()).then(|| Remaining { pid: pid.0, name: facts.name.clone(), bytes })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{job::vma::Kind, sys::MemPolicy};

    const FROM: NodeId = NodeId(2);

    fn mapping(start: u64, blocks: u64, kind: Kind) -> Vma {
        let range = Range::new(start * BLOCK, (start + blocks) * BLOCK);
        Vma { range, kind, writable: true, executable: false, shared: false }
    }

    fn line(start: u64, blocks: u64, policy: MemPolicy) -> Line {
        Line { start: start * BLOCK, policy, on: [(FROM, blocks * BLOCK)].into(), hugetlb: false }
    }

    #[test]
    fn what_may_move_goes_to_the_nearest_node_with_room_and_the_rest_has_its_reason() {
        let vmas = [
            mapping(0, 40, Kind::Anon),
            mapping(100, 8, Kind::Shmem),
            mapping(200, 4, Kind::File),
            mapping(300, 4, Kind::Anon),
        ];
        let bound = MemPolicy::Bind([FROM].into_iter().collect());
        let lines = [
            line(0, 40, MemPolicy::Default),
            line(100, 8, MemPolicy::Default),
            line(200, 4, MemPolicy::Default),
            line(300, 4, bound),
        ];
        let mut room = [(NodeId(0), 10 * BLOCK), (NodeId(1), 100 * BLOCK)];
        let planned = moves(Pid(7), &vmas, &lines, FROM, false, &mut room);
        let brief: Vec<_> =
            planned.iter().map(|step| (step.range.start / BLOCK, step.range.bytes() / BLOCK, step.to.0)).collect();
        assert_eq!(brief, [(0, 32, 1), (32, 8, 1), (100, 8, 0)], "pieces; 40 blocks do not fit on node 0, 8 do");
        assert_eq!(room, [(NodeId(0), 2 * BLOCK), (NodeId(1), 60 * BLOCK)]);
        let reasons: Vec<_> = lines.iter().map(|line| why(line, &vmas, FROM, false).unwrap()).collect();
        assert_eq!(reasons, [Why::Refused, Why::Refused, Why::File, Why::Bound]);
        assert_eq!(why(&lines[2], &vmas, FROM, true), Some(Why::Refused), "files are tried where that is asked for");
        assert_eq!(why(&lines[0], &vmas, NodeId(0), false), None, "nothing of it is there");
    }
}
