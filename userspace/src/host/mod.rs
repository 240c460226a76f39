//! What this machine is: nodes, tiers, CXL, GPUs, DAMON and the kernel's settings.
//!
//! [`Host::read`] reads procfs and sysfs under a root, `/` on a live host and a recorded tree in tests. It writes
//! nothing. A file that this kernel does not have is a fact; a file that does not read as the kernel documents it is an
//! error that names the file.

mod cxl;
mod damon;
mod findings;
mod gpu;
mod kernel;
mod memory;
mod nodes;
mod tiers;
pub(crate) mod tree;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use serde::Serialize;

pub use self::{
    cxl::{CxlMemory, CxlRegion, DaxDevice},
    damon::{Damon, DamonFeature, DamonModule, DamonOps, Kdamond, OpsPick},
    findings::{Finding, Severity, findings},
    gpu::Gpu,
    kernel::{Cgroup, Kernel},
    memory::PhysRange,
    nodes::{Access, Node, NodeKind, Zone},
    tiers::{Tier, TierSource},
};
use self::{memory::IoMem, tree::Tree};
use crate::{
    config::{Config, MissingNode},
    units::{NodeId, NodeSet},
};

/// Why a host could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file or folder is there and reading it failed.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file's text is not what the kernel documents.
    #[error("{}: expected {expected}, found {found:?}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What belongs there.
        expected: &'static str,
        /// The beginning of what is there.
        found: String,
    },
    /// The kernel shows no nodes.
    #[error("{}: no nodes here; is sysfs mounted, and does the kernel have CONFIG_NUMA?", path.display())]
    NoNodes {
        /// The folder.
        path: PathBuf,
    },
    /// The config names nodes that this host does not have.
    #[error(
        "the config names node {missing}, and this host has memory on {present}; \
         correct [tiers] nodes, bring the memory online, or set missing_node = \"degrade\""
    )]
    MissingNodes {
        /// The absent nodes.
        missing: NodeSet,
        /// The nodes that can be in a tier.
        present: NodeSet,
    },
    /// The config puts a GPU's own memory in a tier.
    #[error("the config puts node {node} in a tier, and it is a GPU's own memory; take it out of [tiers] nodes")]
    GpuNode {
        /// The node.
        node: NodeId,
    },
}

/// One machine.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// Nodes by id.
    pub nodes: BTreeMap<NodeId, Node>,
    /// Tiers, top first. As read, every node with memory is in one, a GPU's apart.
    pub tiers: Vec<Tier>,
    /// CXL memory devices.
    pub cxl_memories: Vec<CxlMemory>,
    /// CXL regions.
    pub cxl_regions: Vec<CxlRegion>,
    /// dax devices.
    pub dax: Vec<DaxDevice>,
    /// GPUs.
    pub gpus: Vec<Gpu>,
    /// DAMON.
    pub damon: Damon,
    /// The kernel's features and settings.
    pub kernel: Kernel,
    /// Ranges that firmware set aside and that no driver has made memory of.
    pub soft_reserved: Vec<PhysRange>,
    /// Files that are kept from the caller; what they hold is missing here.
    pub denied: Vec<PathBuf>,
}

impl Host {
    /// Reads the host under `root`.
    ///
    /// # Errors
    /// [`HostError`] with the file, where one cannot be read or is malformed, or where there are no nodes.
    pub fn read(root: &Path) -> Result<Self, HostError> {
        Self::read_with(root, damon::read_symbols)
    }

    /// As [`Host::read`], but for the kernel's symbol table: most of the time went there, and whoever tries DAMON need not
    /// be told what it has. What only the table tells is unknown then.
    ///
    /// # Errors
    /// As [`Host::read`].
    pub fn read_without_symbols(root: &Path) -> Result<Self, HostError> {
        Self::read_with(root, |_| Ok(BTreeSet::new()))
    }

    fn read_with(
        root: &Path,
        symbols: impl FnOnce(&Tree) -> Result<BTreeSet<String>, HostError>,
    ) -> Result<Self, HostError> {
        let tree = Tree::new(root);
        let mut nodes = nodes::read(&tree)?;
        let iomem = IoMem::read(&tree)?;
        memory::assign(&tree, &iomem, &mut nodes)?;
        let cxl_regions = cxl::read_regions(&tree)?;
        let dax = cxl::read_dax(&tree, &cxl_regions)?;
        let gpus = gpu::read(&tree)?;
        let of_cxl = dax.iter().filter(|dax| dax.region.is_some()).filter_map(|dax| dax.target_node);
        let of_gpu = gpus.iter().filter_map(|gpu| gpu.memory_node);
        let kinds = of_cxl.map(|id| (id, NodeKind::Cxl)).chain(of_gpu.map(|id| (id, NodeKind::Gpu)));
        for (id, kind) in kinds {
            if let Some(node) = nodes.get_mut(&id).filter(|node| node.kind != NodeKind::Empty && node.cpus.is_empty()) {
                node.kind = kind;
            }
        }
        Ok(Self {
            tiers: tiers::read(&tree, &nodes)?,
            nodes,
            cxl_memories: cxl::read_memories(&tree)?,
            cxl_regions,
            dax,
            gpus,
            damon: damon::read(&tree, symbols)?,
            kernel: kernel::read(&tree)?,
            soft_reserved: iomem.soft_reserved(),
            denied: tree.into_denied(),
        })
    }

    /// Puts the tiers of the config in place of the host's own, where it names any.
    ///
    /// # Errors
    /// [`HostError::MissingNodes`] where a named node has no memory, unless the config says to go on without it, and
    /// [`HostError::GpuNode`] where one is a GPU's own memory.
    pub fn configure(&mut self, config: &Config) -> Result<(), HostError> {
        if config.tiers.nodes.is_empty() {
            return Ok(());
        }
        if let Some(node) = self.named_gpu_nodes(config).next() {
            return Err(HostError::GpuNode { node });
        }
        let missing = self.missing(config);
        if !missing.0.is_empty() && config.tiers.missing_node == MissingNode::Error {
            return Err(HostError::MissingNodes { missing, present: self.tier_nodes().collect() });
        }
        self.tiers = tiers::ranked(config.tiers.nodes.clone(), &self.nodes, TierSource::Config);
        Ok(())
    }

    /// The nodes that the config names and that have no memory here.
    pub fn missing(&self, config: &Config) -> NodeSet {
        let has_memory = |id: &NodeId| self.nodes.get(id).is_some_and(|node| node.kind != NodeKind::Empty);
        config.named_nodes().0.into_iter().filter(|id| !has_memory(id)).collect()
    }

    /// The nodes that the config names and that are a GPU's own memory.
    pub fn named_gpu_nodes(&self, config: &Config) -> impl Iterator<Item = NodeId> {
        let is_gpu = |id: &NodeId| self.nodes.get(id).is_some_and(|node| node.kind == NodeKind::Gpu);
        config.named_nodes().0.into_iter().filter(is_gpu)
    }

    /// The nodes whose memory is for programs, and so can be in a tier.
    pub fn tier_nodes(&self) -> impl Iterator<Item = NodeId> {
        tiers::usable(&self.nodes).map(|node| node.id)
    }

    /// Reads free and total bytes of every node again; cheap enough for every decision.
    ///
    /// # Errors
    /// [`HostError`] where a node's meminfo is gone or malformed.
    pub fn refresh_free(&mut self, root: &Path) -> Result<(), HostError> {
        let tree = Tree::new(root);
        for node in self.nodes.values_mut() {
            let info = nodes::read_meminfo(&tree, node.id)?;
            (node.total_bytes, node.free_bytes) = (info.total_bytes, info.free_bytes);
            node.available_bytes = info.available_bytes;
        }
        Ok(())
    }

    /// The top tier's nodes. Empty only where no node has memory for programs.
    pub fn top(&self) -> NodeSet {
        self.tiers.first().map(|tier| tier.nodes.clone()).unwrap_or_default()
    }

    /// The nodes of every tier below the top.
    pub fn lower(&self) -> NodeSet {
        self.tiers.iter().skip(1).flat_map(|tier| tier.nodes.0.iter().copied()).collect()
    }

    /// Whether there are at least two tiers to move between.
    pub fn is_two_tier(&self) -> bool {
        self.tiers.len() > 1
    }

    /// The tier that `node` is in; none for a GPU's memory and for nodes without memory.
    pub fn tier_of(&self, node: NodeId) -> Option<&Tier> {
        self.tiers.iter().find(|tier| tier.nodes.contains(node))
    }

    /// The node that `cpu` belongs to.
    pub fn node_of_cpu(&self, cpu: u32) -> Option<NodeId> {
        self.nodes.values().find(|node| node.cpus.contains(&cpu)).map(|node| node.id)
    }

    /// The top-tier node nearest to `node`: `node` itself where it is in the top tier.
    pub fn nearest_top(&self, node: NodeId) -> Option<NodeId> {
        self.nearest(node, &self.tiers.first()?.nodes)
    }

    /// The top-tier node with the least distance to a job's CPUs, each CPU counting once.
    pub fn nearest_top_of_cpus(&self, cpus: &[u32]) -> Option<NodeId> {
        let homes: Vec<NodeId> = cpus.iter().filter_map(|&cpu| self.node_of_cpu(cpu)).collect();
        let total = |to: NodeId| homes.iter().map(|&from| u64::from(self.distance(from, to))).sum::<u64>();
        self.tiers.first()?.nodes.0.iter().copied().min_by_key(|&node| (total(node), node))
    }

    /// Where cold pages of `node` go: the nearest node of the tier below.
    pub fn demotion_target(&self, node: NodeId) -> Option<NodeId> {
        let rank = self.tier_of(node)?.rank;
        self.nearest(node, &self.tiers.get(rank + 1)?.nodes)
    }

    /// The distance that the firmware states; far where it states none.
    pub fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        const FAR: u32 = 255;
        self.nodes.get(&from).and_then(|node| node.distances.get(&to)).copied().unwrap_or(FAR)
    }

    fn nearest(&self, from: NodeId, among: &NodeSet) -> Option<NodeId> {
        among.0.iter().copied().min_by_key(|&to| (from != to, self.distance(from, to), to))
    }
}

#[cfg(test)]
pub(crate) mod tests;
