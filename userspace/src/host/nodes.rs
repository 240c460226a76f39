//! Nodes: CPUs, memory, zones, distances and the firmware's figures.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{HostError, memory::PhysRange, tree::Tree};
use crate::units::{NodeId, parse_list};

pub(super) const NODES: &str = "sys/devices/system/node";

/// One NUMA node.
#[derive(Clone, Debug, Serialize)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// What kind of memory it holds.
    pub kind: NodeKind,
    /// Its CPUs; none on a node that is memory alone.
    pub cpus: Vec<u32>,
    /// Bytes of memory that the kernel manages here.
    pub total_bytes: u64,
    /// Bytes that were free when read.
    pub free_bytes: u64,
    /// Bytes that can be had without pushing out memory in use: free, and half of the clean page cache.
    pub available_bytes: u64,
    /// Its zones that hold memory.
    pub zones: Vec<Zone>,
    /// Distance to each node (ACPI SLIT: 10 is local).
    pub distances: BTreeMap<NodeId, u32>,
    /// What the firmware says of reads and writes from the nearest initiator, where it says anything (ACPI HMAT).
    pub access: Option<Access>,
    /// Physical ranges of its online memory, ascending. Empty where the kernel shows neither memory blocks nor addresses.
    pub phys_ranges: Vec<PhysRange>,
    /// Bytes of memory blocks that are present and offline.
    pub offline_bytes: u64,
}

/// What a node's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// Memory beside CPUs.
    Dram,
    /// Memory of a CXL region.
    Cxl,
    /// Memory without CPUs whose bus the kernel does not tell: CXL set up by firmware, or a guest's slow node.
    NoCpu,
    /// A GPU's own memory as a node (GH200 and the like). Never part of a tier.
    Gpu,
    /// No online memory.
    Empty,
}

/// A zone of a node. Counts are pages of the kernel's base size, as `/proc/zoneinfo` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// `DMA`, `DMA32`, `Normal`, `Movable`, …
    pub name: String,
    /// Free pages.
    pub free: u64,
    /// Below this only the kernel's emergencies are served.
    pub min: u64,
    /// Below this kswapd is woken.
    pub low: u64,
    /// kswapd sleeps above this.
    pub high: u64,
    /// Pages present.
    pub present: u64,
    /// Pages that the allocator manages.
    pub managed: u64,
}

impl Zone {
    /// Whether long-term pinned pages may not stay here (`ZONE_MOVABLE`).
    pub fn is_movable(&self) -> bool {
        self.name == "Movable"
    }
}

/// The firmware's figures for access from the nearest initiator. Units are those of the kernel's node documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Access {
    /// Nanoseconds.
    pub read_latency_ns: Option<u32>,
    /// Nanoseconds.
    pub write_latency_ns: Option<u32>,
    /// MiB per second.
    pub read_mib_per_sec: Option<u32>,
    /// MiB per second.
    pub write_mib_per_sec: Option<u32>,
}

/// Every node of the host; its kind, ranges and blocks are filled in by those who know them.
pub(super) fn read(tree: &Tree) -> Result<BTreeMap<NodeId, Node>, HostError> {
    let ids = tree.numbered(NODES, "node")?;
    if ids.is_empty() {
        return Err(HostError::NoNodes { path: tree.path(NODES) });
    }
    let zones = read_zones(tree)?;
    let online: Vec<u32> = list(tree, &format!("{NODES}/online"))?.unwrap_or_else(|| ids.clone());
    ids.iter().map(|&id| Ok((NodeId(id), read_node(tree, NodeId(id), &online, &zones)?))).collect()
}

fn read_node(tree: &Tree, id: NodeId, online: &[u32], zones: &BTreeMap<NodeId, Vec<Zone>>) -> Result<Node, HostError> {
    let folder = format!("{NODES}/node{id}");
    let Meminfo { total_bytes, free_bytes, available_bytes } = read_meminfo(tree, id)?;
    let cpus = list(tree, &format!("{folder}/cpulist"))?.unwrap_or_default();
    let kind = match (total_bytes, cpus.is_empty()) {
        (0, _) => NodeKind::Empty,
        (_, false) => NodeKind::Dram,
        (_, true) => NodeKind::NoCpu,
    };
    Ok(Node {
        id,
        kind,
        cpus,
        total_bytes,
        free_bytes,
        available_bytes,
        zones: zones.get(&id).cloned().unwrap_or_default(),
        distances: read_distances(tree, &folder, online)?,
        access: read_access(tree, &folder)?,
        phys_ranges: Vec::new(),
        offline_bytes: 0,
    })
}

/// What a node's meminfo says.
pub(super) struct Meminfo {
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub available_bytes: u64,
}

/// Reads a node's meminfo. Half of the page cache that is neither dirty nor shared memory counts as available: the
/// kernel's own estimate for the whole machine (`si_mem_available`) does the same.
pub(super) fn read_meminfo(tree: &Tree, id: NodeId) -> Result<Meminfo, HostError> {
    let name = format!("{NODES}/node{id}/meminfo");
    let text = tree.text(&name)?.ok_or_else(|| tree.format(&name, "a node's meminfo", "no such file"))?;
    let bytes = |key: &str| {
        text.lines()
            .find_map(|line| line.split_once(key)?.1.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
            .and_then(|kib| kib.checked_mul(1024))
    };
    let (Some(total_bytes), Some(free_bytes)) = (bytes("MemTotal:"), bytes("MemFree:")) else {
        return Err(tree.format(&name, "lines MemTotal: and MemFree: in kB", &text));
    };
    let file = bytes("Active(file):").unwrap_or(0).saturating_add(bytes("Inactive(file):").unwrap_or(0));
    let cache = file.saturating_sub(bytes("Dirty:").unwrap_or(0)).saturating_sub(bytes("Writeback:").unwrap_or(0));
    Ok(Meminfo { total_bytes, free_bytes, available_bytes: free_bytes.saturating_add(cache / 2).min(total_bytes) })
}

/// The kernel writes one distance per online node, in the order of their ids.
fn read_distances(tree: &Tree, folder: &str, online: &[u32]) -> Result<BTreeMap<NodeId, u32>, HostError> {
    let name = format!("{folder}/distance");
    let Some(text) = tree.text(&name)? else { return Ok(BTreeMap::new()) };
    let distances: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
    match distances {
        Ok(distances) if distances.len() == online.len() => {
            Ok(online.iter().map(|&id| NodeId(id)).zip(distances).collect())
        }
        _ => Err(tree.format(&name, "one distance for each online node", &text)),
    }
}

fn read_access(tree: &Tree, folder: &str) -> Result<Option<Access>, HostError> {
    let figure = |name| tree.value(&format!("{folder}/access0/initiators/{name}"), "a number");
    let access = Access {
        read_latency_ns: figure("read_latency")?,
        write_latency_ns: figure("write_latency")?,
        read_mib_per_sec: figure("read_bandwidth")?,
        write_mib_per_sec: figure("write_bandwidth")?,
    };
    Ok((access != Access::default()).then_some(access))
}

fn list(tree: &Tree, name: &str) -> Result<Option<Vec<u32>>, HostError> {
    let Some(text) = tree.text(name)? else { return Ok(None) };
    parse_list(&text).map(Some).map_err(|_| tree.format(name, "a list such as 0,2-3", &text))
}

fn read_zones(tree: &Tree) -> Result<BTreeMap<NodeId, Vec<Zone>>, HostError> {
    let name = "proc/zoneinfo";
    let Some(text) = tree.text(name)? else { return Ok(BTreeMap::new()) };
    parse_zones(&text).map_err(|line| tree.format(name, "Node N, zone NAME and its counts", line))
}

/// The zones that hold memory, by node; the error is the line that does not read.
pub(super) fn parse_zones(text: &str) -> Result<BTreeMap<NodeId, Vec<Zone>>, &str> {
    let mut nodes: BTreeMap<NodeId, Vec<Zone>> = BTreeMap::new();
    let mut current: Option<(NodeId, Zone)> = None;
    let mut keep = |zone: Option<(NodeId, Zone)>| {
        if let Some((node, zone)) = zone.filter(|(_, zone)| zone.present > 0) {
            nodes.entry(node).or_default().push(zone);
        }
    };
    for line in text.lines() {
        if let Some(header) = line.strip_prefix("Node ") {
            let (id, zone) = header.split_once(", zone ").ok_or(line)?;
            let id = id.trim().parse().map_err(|_| line)?;
            keep(current.replace((NodeId(id), Zone { name: zone.trim().to_owned(), ..Zone::default() })));
            continue;
        }
        let Some((_, zone)) = &mut current else { continue };
        let line_of = line.trim();
        let (key, value) = line_of.strip_prefix("pages ").unwrap_or(line_of).split_once(' ').unwrap_or((line_of, ""));
        let field = match key {
            "free" => &mut zone.free,
            "min" => &mut zone.min,
            "low" => &mut zone.low,
            "high" => &mut zone.high,
            "present" => &mut zone.present,
            "managed" => &mut zone.managed,
            _ => continue,
        };
        *field = value.trim().parse().map_err(|_| line)?;
    }
    keep(current);
    Ok(nodes)
}
