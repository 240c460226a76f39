//! Slabs: one block cut into objects of one size.

use std::collections::{BTreeMap, BTreeSet};

use tensortier_model::Bytes;

use super::{blocks::ExtentId, size};

/// Where a slab begins.
pub type SlabAt = (ExtentId, Bytes);

#[derive(Debug)]
struct Slab {
    size: Bytes,
    capacity: u32,
    /// Cells given back; those from `fresh` on were never used.
    free: Vec<u32>,
    fresh: u32,
}

impl Slab {
    fn used(&self) -> u32 {
        self.fresh - self.free.len() as u32
    }
}

/// The slabs of a region.
#[derive(Debug, Default)]
pub struct Slabs {
    all: BTreeMap<SlabAt, Slab>,
    /// Those with a free cell, by size of their objects. The lowest is filled first, so the others can empty.
    open: BTreeSet<(Bytes, SlabAt)>,
}

impl Slabs {
    /// A cell of `size` in a slab that has one: the slab, and the cell's offset in the extent.
    pub fn take(&mut self, size: Bytes) -> Option<(SlabAt, Bytes)> {
        let &(_, at) = self.open.range((size, (0, 0))..).next().filter(|open| open.0 == size)?;
        let slab = self.all.get_mut(&at)?;
        let cell = slab.free.pop().unwrap_or_else(|| {
            slab.fresh += 1;
            slab.fresh - 1
        });
        if slab.used() == slab.capacity {
            self.open.remove(&(size, at));
        }
        Some((at, at.1 + u64::from(cell) * size))
    }

    /// Takes in a fresh block of [`size::slab`] bytes for objects of `size`.
    pub fn open(&mut self, at: SlabAt, size: Bytes) {
        let capacity = (size::slab(size) / size) as u32;
        self.all.insert(at, Slab { size, capacity, free: Vec::new(), fresh: 0 });
        self.open.insert((size, at));
    }

    /// Gives a cell back. `Some(bytes)`: the slab is empty and gone, its block is the caller's again.
    pub fn give(&mut self, at: SlabAt, offset: Bytes) -> Option<Bytes> {
        let slab = self.all.get_mut(&at)?;
        slab.free.push(((offset - at.1) / slab.size) as u32);
        let size = slab.size;
        if slab.used() > 0 {
            self.open.insert((size, at));
            return None;
        }
        self.all.remove(&at);
        self.open.remove(&(size, at));
        Some(size::slab(size))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn cells_fill_the_slab_without_overlap_and_an_empty_slab_is_given_back() {
        let mut slabs = Slabs::default();
        let object = 320;
        assert_eq!(slabs.take(object), None);
        slabs.open((7, 8192), object);
        let mut cells = Vec::new();
        while let Some((at, offset)) = slabs.take(object) {
            assert_eq!(at, (7, 8192));
            cells.push(offset);
        }
        assert_eq!(cells.len() as u64, size::slab(object) / object);
        assert_eq!(cells.iter().map(|c| (c - 8192) / object).collect::<HashSet<_>>().len(), cells.len());
        assert!(cells.iter().all(|c| (c - 8192) % object == 0 && c + object <= 8192 + size::slab(object)));
        assert_eq!(slabs.take(384), None, "sizes do not mix");
        let last = cells.pop().expect("some");
        for cell in cells {
            assert_eq!(slabs.give((7, 8192), cell), None);
        }
        assert_eq!(slabs.give((7, 8192), last), Some(size::slab(object)));
        assert_eq!(slabs.take(object), None);
    }
}
