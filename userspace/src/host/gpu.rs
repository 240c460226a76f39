//! GPUs: the node that each is nearest to, and the node that its own memory is.

use serde::Serialize;

use super::{HostError, tree::Tree};
use crate::units::NodeId;

const PCI: &str = "sys/bus/pci/devices";
const NVIDIA: &str = "proc/driver/nvidia/gpus";

/// A GPU on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// PCI address, `0000:81:00.0`.
    pub address: String,
    /// The node of the CPUs that it is attached to.
    pub node: Option<NodeId>,
    /// The node that its own memory is, on machines where the CPU can cache it.
    pub memory_node: Option<NodeId>,
}

/// The host's NVIDIA GPUs.
pub(super) fn read(tree: &Tree) -> Result<Vec<Gpu>, HostError> {
    let mut gpus = Vec::new();
    for address in tree.names(PCI)? {
        let folder = format!("{PCI}/{address}");
        // Class 0x03 is a display controller of any kind, 3D accelerators without a display included.
        let is_display = tree.hex(&format!("{folder}/class"))?.is_some_and(|class| class >> 16 == 0x03);
        if is_display && tree.hex(&format!("{folder}/vendor"))? == Some(0x10de) {
            let node: Option<i32> = tree.value(&format!("{folder}/numa_node"), "a node or -1")?;
            gpus.push(Gpu { node: node.and_then(to_node), memory_node: memory_node(tree, &address)?, address });
        }
    }
    Ok(gpus)
}

/// The driver prints `Node: 1` and `Status: online` for a GPU whose memory it gives to the kernel as a node.
fn memory_node(tree: &Tree, address: &str) -> Result<Option<NodeId>, HostError> {
    let name = format!("{NVIDIA}/{address}/numa_status");
    let Some(text) = tree.text(&name)? else { return Ok(None) };
    let field = |key| text.lines().find_map(|line| line.trim().strip_prefix(key)).map(str::trim);
    match (field("Node:").map(str::parse::<i32>), field("Status:")) {
        (Some(Ok(node)), Some("online")) => Ok(to_node(node)),
        (Some(Err(_)), _) => Err(tree.format(&name, "Node: and a number", &text)),
        _ => Ok(None),
    }
}

fn to_node(node: i32) -> Option<NodeId> {
    u32::try_from(node).ok().map(NodeId)
}
