//! CXL memory devices and regions, the dax devices made of them, and the node that each becomes.

use serde::Serialize;

use super::{HostError, tree::Tree};
use crate::units::NodeId;

const CXL: &str = "sys/bus/cxl/devices";
const DAX: &str = "sys/bus/dax/devices";

/// A CXL memory device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CxlMemory {
    /// `mem0`.
    pub name: String,
    /// Bytes of volatile capacity.
    pub ram_bytes: Option<u64>,
    /// Bytes of persistent capacity.
    pub pmem_bytes: Option<u64>,
}

/// A CXL region: one or several devices' capacity as one range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CxlRegion {
    /// `region0`.
    pub name: String,
    /// Bytes.
    pub bytes: Option<u64>,
    /// Devices that the region is interleaved over.
    pub interleave_ways: Option<u32>,
    /// Whether its decoders are committed, so that the range answers.
    pub committed: Option<bool>,
    /// Its dax devices, by name.
    pub dax: Vec<String>,
}

/// A dax device: memory that a driver offers to programs (`device_dax`) or gives to the kernel (`kmem`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DaxDevice {
    /// `dax0.0`.
    pub name: String,
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// Bytes.
    pub bytes: Option<u64>,
    /// The node that it becomes as system memory.
    pub target_node: Option<NodeId>,
    /// The CXL region that it is part of.
    pub region: Option<String>,
}

impl DaxDevice {
    /// Whether the kernel uses it as memory.
    pub fn is_system_ram(&self) -> bool {
        self.driver.as_deref() == Some("kmem")
    }
}

pub(super) fn read_memories(tree: &Tree) -> Result<Vec<CxlMemory>, HostError> {
    let memory = |number| {
        let name = format!("mem{number}");
        Ok(CxlMemory {
            ram_bytes: tree.hex(&format!("{CXL}/{name}/ram/size"))?,
            pmem_bytes: tree.hex(&format!("{CXL}/{name}/pmem/size"))?,
            name,
        })
    };
    tree.numbered(CXL, "mem")?.into_iter().map(memory).collect()
}

pub(super) fn read_regions(tree: &Tree) -> Result<Vec<CxlRegion>, HostError> {
    let region = |number| {
        let name = format!("region{number}");
        let folder = format!("{CXL}/{name}");
        let dax = tree.names(&format!("{folder}/dax_region{number}"))?;
        Ok(CxlRegion {
            bytes: tree.hex(&format!("{folder}/size"))?,
            interleave_ways: tree.value(&format!("{folder}/interleave_ways"), "a number")?,
            committed: tree.switch(&format!("{folder}/commit"))?,
            dax: dax.into_iter().filter(|name| is_dax(name)).collect(),
            name,
        })
    };
    tree.numbered(CXL, "region")?.into_iter().map(region).collect()
}

pub(super) fn read_dax(tree: &Tree, regions: &[CxlRegion]) -> Result<Vec<DaxDevice>, HostError> {
    let drivers = tree.names("sys/bus/dax/drivers")?;
    let device = |name: String| {
        let folder = format!("{DAX}/{name}");
        let target: Option<i32> = tree.value(&format!("{folder}/target_node"), "a node or -1")?;
        Ok(DaxDevice {
            driver: drivers.iter().find(|driver| tree.exists(&format!("sys/bus/dax/drivers/{driver}/{name}"))).cloned(),
            bytes: tree.value(&format!("{folder}/size"), "a number of bytes")?,
            target_node: target.and_then(|node| u32::try_from(node).ok()).map(NodeId),
            region: regions.iter().find(|region| region.dax.contains(&name)).map(|region| region.name.clone()),
            name,
        })
    };
    tree.names(DAX)?.into_iter().filter(|name| is_dax(name)).map(device).collect()
}

/// `dax0.0`, and not the folder's other entries.
fn is_dax(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.strip_prefix("dax").and_then(|rest| rest.split_once('.')).is_some_and(|(a, b)| digits(a) && digits(b))
}
