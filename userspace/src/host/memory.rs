//! Physical memory: which ranges a node has, and what firmware holds back.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{HostError, Node, NodeKind, nodes::NODES, tree::Tree};
use crate::units::NodeId;

/// A half-open range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PhysRange {
    /// First address.
    pub start: u64,
    /// First address past the range.
    pub end: u64,
}

impl PhysRange {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    fn intersect(&self, other: &Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }
}

/// A line of `/proc/iomem` and the lines that it lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub range: PhysRange,
    pub name: String,
    pub within: Vec<String>,
}

impl Resource {
    fn is_ram(&self) -> bool {
        self.name.starts_with("System RAM")
    }
}

/// Physical memory as the kernel's resource map has it; empty where addresses are kept from the caller.
#[derive(Clone, Debug, Default)]
pub(super) struct IoMem(Vec<Resource>);

impl IoMem {
    pub fn read(tree: &Tree) -> Result<Self, HostError> {
        let name = "proc/iomem";
        let Some(text) = tree.text(name)? else { return Ok(Self::default()) };
        let resources = parse_iomem(&text).map_err(|line| tree.format(name, "START-END : NAME", line))?;
        // Without CAP_SYS_ADMIN every address reads as zero.
        let hidden = resources.iter().all(|resource| resource.range.end <= 1);
        Ok(if hidden { Self::default() } else { Self(resources) })
    }

    fn ram(&self) -> impl Iterator<Item = &Resource> {
        self.0.iter().filter(|resource| resource.is_ram())
    }

    /// Ranges that firmware set aside for a driver and that no driver has made memory of.
    pub fn soft_reserved(&self) -> Vec<PhysRange> {
        let unused = |reserved: &&Resource| {
            reserved.name == "Soft Reserved" && !self.ram().any(|ram| ram.range.intersect(&reserved.range).is_some())
        };
        self.0.iter().filter(unused).map(|resource| resource.range).collect()
    }
}

/// Reads `/proc/iomem`; the error is the line that does not read.
pub(super) fn parse_iomem(text: &str) -> Result<Vec<Resource>, &str> {
    let mut resources = Vec::new();
    let mut within: Vec<(usize, String)> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let indent = line.len() - line.trim_start().len();
        let (range, name) = line.trim().split_once(" : ").ok_or(line)?;
        let (start, last) = range.split_once('-').ok_or(line)?;
        let start = u64::from_str_radix(start, 16).map_err(|_| line)?;
        let last = u64::from_str_radix(last, 16).map_err(|_| line)?;
        let end = last.checked_add(1).filter(|end| *end > start).ok_or(line)?;
        within.retain(|(depth, _)| *depth < indent);
        resources.push(Resource {
            range: PhysRange { start, end },
            name: name.to_owned(),
            within: within.iter().map(|(_, name)| name.clone()).collect(),
        });
        within.push((indent, name.to_owned()));
    }
    Ok(resources)
}

/// Gives every node its ranges and, where the resource map tells, its kind.
///
/// A node's ranges are its online memory blocks, cut to the System RAM in them: all of them, since a node whose memory
/// is split around holes has several, and the largest is not the node.
pub(super) fn assign(tree: &Tree, iomem: &IoMem, nodes: &mut BTreeMap<NodeId, Node>) -> Result<(), HostError> {
    let block_bytes = tree.hex("sys/devices/system/memory/block_size_bytes")?;
    let lone = nodes.len() == 1;
    for node in nodes.values_mut() {
        let online = match block_bytes {
            Some(bytes) => online_blocks(tree, node, bytes)?,
            // Without memory hotplug there are no blocks; a lone node has all there is.
            None if lone => vec![PhysRange { start: 0, end: u64::MAX }],
            None => Vec::new(),
        };
        let ram: Vec<&Resource> = iomem.ram().collect();
        if ram.is_empty() {
            node.phys_ranges = if block_bytes.is_some() { online } else { Vec::new() };
            continue;
        }
        let mut ranges = Vec::new();
        for block in &online {
            for resource in &ram {
                if let Some(range) = block.intersect(&resource.range) {
                    ranges.push(range);
                    node.kind = kind_of(resource, node.kind);
                }
            }
        }
        node.phys_ranges = merged(ranges);
    }
    Ok(())
}

/// The driver that added memory names it in the resource map.
fn kind_of(ram: &Resource, so_far: NodeKind) -> NodeKind {
    match so_far {
        NodeKind::NoCpu if ram.name == "System RAM (NVIDIA)" => NodeKind::Gpu,
        NodeKind::NoCpu if ram.within.iter().any(|name| name.starts_with("CXL Window")) => NodeKind::Cxl,
        other => other,
    }
}

fn online_blocks(tree: &Tree, node: &mut Node, block_bytes: u64) -> Result<Vec<PhysRange>, HostError> {
    let mut ranges = Vec::new();
    for block in tree.numbered(&format!("{NODES}/node{}", node.id), "memory")? {
        let state = format!("sys/devices/system/memory/memory{block}/state");
        let start = u64::from(block).checked_mul(block_bytes);
        let range = start.and_then(|start| Some(PhysRange { start, end: start.checked_add(block_bytes)? }));
        let range = range.ok_or_else(|| tree.format(&state, "a block inside the address space", "beyond it"))?;
        match tree.text(&state)?.as_deref() {
            Some("online") => ranges.push(range),
            Some("offline" | "going-offline") => node.offline_bytes = node.offline_bytes.saturating_add(block_bytes),
            Some(other) => return Err(tree.format(&state, "online or offline", other)),
            None => {}
        }
    }
    Ok(merged(ranges))
}

fn merged(mut ranges: Vec<PhysRange>) -> Vec<PhysRange> {
    ranges.sort_unstable();
    let mut merged: Vec<PhysRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
