//! The memory policies that a job set for itself, from /proc/PID/numa_maps, and what they leave to move.
//!
//! The kernel's move_pages obeys cpusets and not memory policies, so it is here that a binding is respected. Reading the
//! file walks the process's page tables: read it when the mappings change, not at every decision.

use std::{collections::BTreeMap, fs};

use super::vma::{Vma, VmaError};
use crate::{
    sys::MemPolicy,
    units::{NodeId, NodeSet, PAGE, Pid, Range},
};

/// One mapping's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where the mapping starts; the line does not say where it ends.
    pub start: u64,
    /// The policy in force: the mapping's own, else the process's.
    pub policy: MemPolicy,
    /// Resident bytes on each node.
    pub on: BTreeMap<NodeId, u64>,
    /// hugetlbfs, which the maps file tells by name only.
    pub hugetlb: bool,
}

/// What may be moved of a process, and what it keeps for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Movable {
    /// Ranges that may be moved, by address.
    pub ranges: Vec<Range>,
    /// Resident bytes, by node, left out because the job bound their mapping to nodes of its own choice.
    pub bound: BTreeMap<NodeId, u64>,
    /// Resident bytes on each node under each policy that names nodes, by the policy's text (`prefer:1`): a framework that
    /// starts a rank with `numactl -p NODE` shows here.
    pub by_policy: BTreeMap<String, BTreeMap<NodeId, u64>>,
}

/// Reads a process's numa_maps.
///
/// # Errors
/// The process has ended, may not be looked at, or the kernel has no NUMA support (then there is no such file).
pub fn of_process(pid: Pid) -> Result<Vec<Line>, VmaError> {
    let path = format!("/proc/{pid}/numa_maps");
    let text = fs::read(&path).map_err(|source| VmaError::Read { path: path.clone(), source })?;
    parse(&String::from_utf8_lossy(&text), &path)
}

/// Reads the text of a numa_maps file; `path` is for the error.
///
/// # Errors
/// A line that is not one.
pub fn parse(text: &str, path: &str) -> Result<Vec<Line>, VmaError> {
    let bad = |line: &str| VmaError::Line { path: path.to_owned(), line: line.to_owned() };
    text.lines().map(|line| parse_line(line).ok_or_else(|| bad(line))).collect()
}

/// Leaves out of `vmas` what may not be moved: kinds that never are, files unless opted in, and mappings bound to a set
/// that does not hold all of `tiers`, the nodes between which pages would move.
pub fn movable(vmas: &[Vma], lines: &[Line], tiers: &NodeSet, file_pages: bool) -> Movable {
    let by_start: BTreeMap<u64, &Line> = lines.iter().map(|line| (line.start, line)).collect();
    let mut movable = Movable::default();
    for vma in vmas {
        let line = by_start.get(&vma.range.start);
        if !vma.kind.movable(file_pages) || line.is_some_and(|line| line.hugetlb) {
            continue;
        }
        if let Some(line) = line {
            if let Some(name) = name(&line.policy) {
                let on = movable.by_policy.entry(name).or_default();
                line.on.iter().for_each(|(node, bytes)| *on.entry(*node).or_default() += bytes);
            }
            if matches!(&line.policy, MemPolicy::Bind(nodes) if !tiers.0.is_subset(&nodes.0)) {
                line.on.iter().for_each(|(node, bytes)| *movable.bound.entry(*node).or_default() += bytes);
                continue;
            }
        }
        match movable.ranges.last_mut() {
            Some(last) if last.end == vma.range.start => last.end = vma.range.end,
            _ => movable.ranges.push(vma.range),
        }
    }
    movable
}

/// The policy as the kernel writes it; `None` for the ones that name no node.
fn name(policy: &MemPolicy) -> Option<String> {
    match policy {
        MemPolicy::Default | MemPolicy::Local => None,
        MemPolicy::Preferred(node) => Some(format!("prefer:{node}")),
        MemPolicy::PreferredMany(nodes) => Some(format!("prefer (many):{nodes}")),
        MemPolicy::Bind(nodes) => Some(format!("bind:{nodes}")),
        MemPolicy::Interleave(nodes) => Some(format!("interleave:{nodes}")),
        MemPolicy::WeightedInterleave(nodes) => Some(format!("weighted interleave:{nodes}")),
    }
}

fn parse_line(line: &str) -> Option<Line> {
    let (start, rest) = line.split_once(' ')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let (policy, rest) = parse_policy(rest)?;
    let (mut pages, mut page_bytes, mut hugetlb) = (Vec::new(), PAGE, false);
    for word in rest.split(' ') {
        match word.split_once('=') {
            Some(("kernelpagesize_kB", kib)) => page_bytes = kib.parse::<u64>().ok()?.checked_mul(1024)?,
            Some((node, count)) => {
                // Other words of this form (anon=, file=, Name=) are not node counts.
                if let Some(node) = node.strip_prefix('N').and_then(|node| node.parse().ok()) {
                    pages.push((NodeId(node), count.parse::<u64>().ok()?));
                }
            }
            None => hugetlb |= word == "huge",
        }
    }
    let on =
        pages.into_iter().map(|(node, count)| Some((node, count.checked_mul(page_bytes)?))).collect::<Option<_>>()?;
    Some(Line { start, policy, on, hugetlb })
}

/// mpol_to_str (mm/mempolicy.c) writes `MODE[=FLAGS][:NODES]`, and two of the modes have a space in their names.
fn parse_policy(text: &str) -> Option<(MemPolicy, &str)> {
    let modes = ["prefer (many)", "weighted interleave", "default", "prefer", "bind", "interleave", "local"];
    let mode = modes.into_iter().find(|mode| text.starts_with(mode))?;
    let (tail, rest) = text[mode.len()..].split_once(' ').unwrap_or((&text[mode.len()..], ""));
    let nodes: NodeSet = tail.split_once(':').map_or("", |(_, nodes)| nodes).parse().ok()?;
    let policy = match mode {
        "prefer (many)" => MemPolicy::PreferredMany(nodes),
        "weighted interleave" => MemPolicy::WeightedInterleave(nodes),
        "prefer" => MemPolicy::Preferred(*nodes.0.first()?),
        "bind" => MemPolicy::Bind(nodes),
        "interleave" => MemPolicy::Interleave(nodes),
        "local" => MemPolicy::Local,
        _ => MemPolicy::Default,
    };
    Some((policy, rest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::{super::vma, *};

    const LINES: &str = "\
10000000 default file=/usr/bin/python3 mapped=4 N0=4 kernelpagesize_kB=4
20000000 bind:0 anon=2 dirty=2 N0=2 kernelpagesize_kB=4
30000000 prefer=static:2 anon=3 dirty=3 N0=1 N2=2 kernelpagesize_kB=4
40000000 prefer (many):0-1 anon=1 N1=1 kernelpagesize_kB=4
50000000 weighted interleave:0-1 file=/a\\040b N1=7 kernelpagesize_kB=4
60000000 interleave:0,2 file=/anon_hugepage\\040(deleted) huge dirty=1 N2=1 kernelpagesize_kB=2048
70000000 bind:0,2 anon=1 N2=1 kernelpagesize_kB=4
80000000 local
";

    fn nodes(list: &str) -> NodeSet {
        list.parse().unwrap()
    }

    #[test]
    fn policies_and_bytes_are_read() {
        let lines = parse(LINES, "numa_maps").unwrap();
        let policies: Vec<_> = lines.iter().map(|line| line.policy.clone()).collect();
        let expected = [
            MemPolicy::Default,
            MemPolicy::Bind(nodes("0")),
            MemPolicy::Preferred(NodeId(2)),
            MemPolicy::PreferredMany(nodes("0-1")),
            MemPolicy::WeightedInterleave(nodes("0-1")),
            MemPolicy::Interleave(nodes("0,2")),
            MemPolicy::Bind(nodes("0,2")),
            MemPolicy::Local,
        ];
        assert_eq!(policies, expected);
        assert_eq!(lines[2].on, [(NodeId(0), 4096), (NodeId(2), 8192)].into());
        assert!(lines[5].hugetlb && lines[5].on[&NodeId(2)] == 2 << 20);
    }

    #[test]
    fn what_the_job_bound_is_left_and_counted_and_what_it_prefers_is_reported() {
        let maps = "\
20000000-20002000 rw-p 0 00:00 0
30000000-30003000 rw-p 0 00:00 0
60000000-60200000 rw-s 0 00:01 1 /memfd:hugetlb (deleted)
70000000-70001000 rw-p 0 00:00 0
90000000-90001000 rw-p 0 00:00 0
";
        let vmas = vma::parse(maps, "maps").unwrap();
        let movable = movable(&vmas, &parse(LINES, "numa_maps").unwrap(), &nodes("0,2"), false);
        let starts: Vec<_> = movable.ranges.iter().map(|range| range.start).collect();
        assert_eq!(starts, [0x3000_0000, 0x7000_0000, 0x9000_0000]);
        assert_eq!(movable.bound, [(NodeId(0), 8192)].into());
        assert_eq!(movable.by_policy["prefer:2"], [(NodeId(0), 4096), (NodeId(2), 8192)].into());
    }

    #[test]
    fn this_process_reads_itself() {
        let lines = of_process(Pid(std::process::id())).unwrap();
        assert!(lines.iter().flat_map(|line| line.on.values()).sum::<u64>() > 0);
    }

    proptest! {
        #[test]
        fn hostile_text_is_an_error_and_no_panic(text in "[0-9a-fN]{1,9} (bind|prefer|default)[ -~]{0,80}") {
            if let Ok(lines) = parse(&text, "numa_maps") {
                prop_assert_eq!(lines.len(), text.lines().count());
            }
        }
    }
}
