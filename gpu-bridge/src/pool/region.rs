//! A region: the objects of one placement and one lifetime, in slabs and blocks over its extents.

use std::collections::BTreeMap;

use tensortier_model::Bytes;

use super::{
    blocks::{Blocks, ExtentId},
    size,
    slab::{SlabAt, Slabs},
};

/// Where an object lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    pub extent: ExtentId,
    pub offset: Bytes,
    /// What it takes, rounded.
    pub bytes: Bytes,
    /// The slab that it is a cell of.
    pub slab: Option<SlabAt>,
}

#[derive(Debug, Default)]
pub struct Region {
    blocks: Blocks,
    slabs: Slabs,
    extents: BTreeMap<ExtentId, Bytes>,
    reserved: Bytes,
}

impl Region {
    /// Room for an object of `bytes`, if the region's extents have it.
    pub fn take(&mut self, bytes: Bytes) -> Option<Spot> {
        let size = size::rounded(bytes);
        if bytes > size::SLAB_MAX {
            let (extent, offset) = self.blocks.take(size, size::alignment(bytes))?;
            return Some(Spot { extent, offset, bytes: size, slab: None });
        }
        let (slab, offset) = match self.slabs.take(size) {
            Some(cell) => cell,
            None => {
                let at = self.blocks.take(size::slab(size), size::PAGE)?;
                self.slabs.open(at, size);
                self.slabs.take(size)?
            }
        };
        Some(Spot { extent: slab.0, offset, bytes: size, slab: Some(slab) })
    }

    /// Bytes to add for an object that [`Region::take`] had no room for: what it needs, and what is worth mapping.
    pub fn shortage(&self, bytes: Bytes) -> (Bytes, Bytes) {
        let need = if bytes > size::SLAB_MAX { size::rounded(bytes) } else { size::slab(size::rounded(bytes)) };
        (need, size::growth(self.reserved, need))
    }

    /// Adds an extent that is free from end to end.
    pub fn add(&mut self, extent: ExtentId, bytes: Bytes) {
        self.extents.insert(extent, bytes);
        self.reserved += bytes;
        self.blocks.give(extent, 0, bytes);
    }

    /// Gives an object's room back. `Some`: its extent is free from end to end and no longer the region's.
    pub fn give(&mut self, spot: Spot) -> Option<ExtentId> {
        let Spot { extent, offset, bytes, slab } = spot;
        let (offset, bytes) = match slab {
            None => (offset, bytes),
            Some(at) => (at.1, self.slabs.give(at, offset)?),
        };
        let free = self.blocks.give(extent, offset, bytes);
        let whole = *self.extents.get(&extent)?;
        if free != (0, whole) {
            return None;
        }
        self.blocks.remove(extent, 0);
        self.extents.remove(&extent);
        self.reserved -= whole;
        Some(extent)
    }

    /// Free bytes in blocks, and the largest block.
    pub fn free(&self) -> (Bytes, Bytes) {
        self.blocks.free()
    }
}
