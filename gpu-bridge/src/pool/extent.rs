//! Extents: memory mapped once, registered once, and passed on between regions.

use std::collections::{BTreeMap, BTreeSet};

use tensortier_model::Bytes;

use super::{
    backing::{Backing, BackingError, Run},
    blocks::ExtentId,
    class::{NodeKind, NodeSpec, Placement},
    memory::Mapping,
    size, stripe,
};

/// Makes memory known to the GPU's driver (`cuMemHostRegister`), which pins it.
pub trait Registrar {
    /// Registers a range; copies from it are then direct.
    ///
    /// # Errors
    /// The driver's. The caller has cleared a sticky error; the range stays in use, through the staging ring.
    fn register(&mut self, address: u64, bytes: Bytes) -> Result<(), String>;

    /// Takes back what [`Registrar::register`] did.
    fn unregister(&mut self, address: u64, bytes: Bytes);
}

/// For hosts without a driver: refuses.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRegistrar;

impl Registrar for NoRegistrar {
    fn register(&mut self, _: u64, _: Bytes) -> Result<(), String> {
        Err("no CUDA driver".into())
    }

    fn unregister(&mut self, _: u64, _: Bytes) {}
}

/// One mapped and perhaps registered piece of memory.
#[derive(Debug)]
pub struct Extent {
    pub mapping: Mapping,
    pub placement: Placement,
    pub registered: bool,
    runs: Vec<Run>,
}

/// A node's room and what is taken of it.
#[derive(Clone, Debug)]
pub struct Node {
    pub spec: NodeSpec,
    pub reserved: Bytes,
    pub peak: Bytes,
}

/// All extents: those in regions, and the idle ones that wait for a region of their placement.
#[derive(Debug)]
pub struct Extents<B, R> {
    pub backing: B,
    pub registrar: R,
    pub nodes: BTreeMap<u32, Node>,
    pub registrations: u64,
    pub registration_failures: u64,
    all: BTreeMap<ExtentId, Extent>,
    idle: BTreeSet<(Placement, Bytes, ExtentId)>,
    next: ExtentId,
}

impl<B: Backing, R: Registrar> Extents<B, R> {
    pub fn new(nodes: Vec<NodeSpec>, backing: B, registrar: R) -> Self {
        let nodes = nodes.into_iter().map(|spec| (spec.node, Node { spec, reserved: 0, peak: 0 })).collect();
        let (all, idle) = Default::default();
        Self { backing, registrar, nodes, registrations: 0, registration_failures: 0, all, idle, next: 0 }
    }

    pub fn get(&self, id: ExtentId) -> &Extent {
        &self.all[&id]
    }

    pub fn get_mut(&mut self, id: ExtentId) -> Option<&mut Extent> {
        self.all.get_mut(&id)
    }

    /// Copies from one extent to another.
    pub fn copy(&mut self, from: (ExtentId, Bytes), to: (ExtentId, Bytes), bytes: Bytes) {
        // Out of the map and in again: the two are borrowed at once.
        if let Some(mut target) = self.all.remove(&to.0) {
            target.mapping.slice_mut(to.1, bytes).copy_from_slice(self.get(from.0).mapping.slice(from.1, bytes));
            self.all.insert(to.0, target);
        }
    }

    /// The smallest idle extent of `placement` with at least `need` bytes. A stripe is taken whole, so only one nearly
    /// of that size: a part of it would lie on other nodes than its weights say.
    pub fn reuse(&mut self, placement: &Placement, need: Bytes) -> Option<(ExtentId, Bytes)> {
        let most = if placement.is_striped() { need + need / 32 } else { Bytes::MAX };
        let found = self.idle.range((placement.clone(), need, 0)..).next()?.clone();
        if found.0 != *placement || found.1 > most {
            return None;
        }
        self.idle.remove(&found);
        Some((found.2, found.1))
    }

    /// A new extent of `bytes`, or a little more where a device's granule asks for it.
    ///
    /// # Errors
    /// `Ok(None)`: a node's budget does not allow it. Otherwise the backing's.
    pub fn map(&mut self, placement: &Placement, bytes: Bytes) -> Result<Option<(ExtentId, Bytes)>, BackingError> {
        let device = |n: &u32| self.nodes.get(n).is_some_and(|n| n.spec.kind == NodeKind::Dax);
        let granule = stripe::granule(placement.shares().iter().any(|(node, _)| device(node)));
        let runs = stripe::runs(placement, bytes.next_multiple_of(granule), granule);
        if !self.fits(&runs) {
            return Ok(None);
        }
        let mapping = self.backing.map(&runs, size::HUGE)?;
        for run in &runs {
            if let Some(node) = self.nodes.get_mut(&run.node) {
                node.reserved += run.bytes;
                node.peak = node.peak.max(node.reserved);
            }
        }
        let registered = self.register(placement, &mapping);
        let (id, bytes) = (self.next, mapping.bytes());
        self.next += 1;
        self.all.insert(id, Extent { mapping, placement: placement.clone(), registered, runs });
        Ok(Some((id, bytes)))
    }

    fn register(&mut self, placement: &Placement, mapping: &Mapping) -> bool {
        let wanted = |(node, _): &(u32, u32)| self.nodes.get(node).is_some_and(|n| n.spec.register);
        if !placement.shares().iter().all(wanted) {
            return false;
        }
        let registered = self.registrar.register(mapping.address(), mapping.bytes()).is_ok();
        self.registrations += u64::from(registered);
        self.registration_failures += u64::from(!registered);
        registered
    }

    fn fits(&self, runs: &[Run]) -> bool {
        let mut room: BTreeMap<u32, Bytes> =
            self.nodes.values().map(|n| (n.spec.node, n.spec.budget - n.reserved)).collect();
        runs.iter().all(|run| {
            let left = room.get(&run.node).and_then(|left| left.checked_sub(run.bytes));
            left.map(|left| room.insert(run.node, left)).is_some()
        })
    }

    /// Sets an extent aside that no region uses any more.
    pub fn retire(&mut self, id: ExtentId) {
        let extent = self.get(id);
        self.idle.insert((extent.placement.clone(), extent.mapping.bytes(), id));
    }

    /// Gives the largest idle extent on one of the nodes of `placement` back to the system; false where there is none.
    pub fn release_one(&mut self, placement: &Placement) -> bool {
        let meets = |other: &Placement| {
            other.shares().iter().any(|(node, _)| placement.shares().iter().any(|(wanted, _)| wanted == node))
        };
        let largest = self.idle.iter().filter(|idle| meets(&idle.0)).max_by_key(|idle| idle.1).cloned();
        let Some(found) = largest else { return false };
        self.idle.remove(&found);
        self.unmap(found.2);
        true
    }

    fn unmap(&mut self, id: ExtentId) {
        let Some(Extent { mapping, registered, runs, .. }) = self.all.remove(&id) else { return };
        if registered {
            self.registrar.unregister(mapping.address(), mapping.bytes());
        }
        self.backing.unmap(mapping);
        for run in runs {
            if let Some(node) = self.nodes.get_mut(&run.node) {
                node.reserved -= run.bytes;
            }
        }
    }

    /// Unregisters and unmaps everything.
    pub fn clear(&mut self) {
        self.idle.clear();
        for id in self.all.keys().copied().collect::<Vec<_>>() {
            self.unmap(id);
        }
    }

    /// Mapped bytes over all nodes, and how many extents they are.
    pub fn reserved(&self) -> (Bytes, usize) {
        (self.nodes.values().map(|n| n.reserved).sum(), self.all.len())
    }
}
