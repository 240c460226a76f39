//! Free blocks of a set of extents: best fit, lowest address first among equals, neighbours coalesced.

use std::collections::{BTreeMap, BTreeSet};

use tensortier_model::Bytes;

/// Number of an extent; never used twice.
pub type ExtentId = u64;

/// The free blocks. Blocks of different extents never touch, whatever their addresses: a copy must not cross two
/// registrations.
#[derive(Debug, Default)]
pub struct Blocks {
    by_size: BTreeSet<(Bytes, ExtentId, Bytes)>,
    by_place: BTreeMap<(ExtentId, Bytes), Bytes>,
}

impl Blocks {
    /// Gives `bytes` at `offset` back; returns the free block that they are part of now, as (offset, bytes).
    pub fn give(&mut self, extent: ExtentId, mut offset: Bytes, mut bytes: Bytes) -> (Bytes, Bytes) {
        if let Some((&(e, before), &length)) = self.by_place.range(..(extent, offset)).next_back()
            && e == extent
            && before + length == offset
        {
            self.forget(extent, before, length);
            (offset, bytes) = (before, length + bytes);
        }
        if let Some(&length) = self.by_place.get(&(extent, offset + bytes)) {
            self.forget(extent, offset + bytes, length);
            bytes += length;
        }
        self.remember(extent, offset, bytes);
        (offset, bytes)
    }

    /// Takes `bytes` at a multiple of `align` from the smallest block that holds them.
    pub fn take(&mut self, bytes: Bytes, align: Bytes) -> Option<(ExtentId, Bytes)> {
        let (length, extent, begin) = *self
            .by_size
            .range((bytes, 0, 0)..)
            .find(|&&(length, _, begin)| begin.next_multiple_of(align) - begin + bytes <= length)?;
        let offset = begin.next_multiple_of(align);
        self.forget(extent, begin, length);
        if offset > begin {
            self.remember(extent, begin, offset - begin);
        }
        let rest = begin + length - (offset + bytes);
        if rest > 0 {
            self.remember(extent, offset + bytes, rest);
        }
        Some((extent, offset))
    }

    /// Takes a free block out of the set.
    pub fn remove(&mut self, extent: ExtentId, offset: Bytes) {
        if let Some(&bytes) = self.by_place.get(&(extent, offset)) {
            self.forget(extent, offset, bytes);
        }
    }

    /// All free bytes, and those of the largest block.
    pub fn free(&self) -> (Bytes, Bytes) {
        (self.by_place.values().sum(), self.by_size.last().map_or(0, |b| b.0))
    }

    fn remember(&mut self, extent: ExtentId, offset: Bytes, bytes: Bytes) {
        self.by_size.insert((bytes, extent, offset));
        self.by_place.insert((extent, offset), bytes);
    }

    fn forget(&mut self, extent: ExtentId, offset: Bytes, bytes: Bytes) {
        self.by_size.remove(&(bytes, extent, offset));
        self.by_place.remove(&(extent, offset));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_smallest_block_that_fits_is_taken() {
        let mut blocks = Blocks::default();
        blocks.give(1, 0, 100);
        blocks.give(2, 0, 30);
        blocks.give(3, 0, 50);
        assert_eq!(blocks.take(40, 1), Some((3, 0)));
        assert_eq!(blocks.take(10, 1), Some((3, 40)));
        assert_eq!(blocks.take(10, 16), Some((2, 0)));
        assert_eq!(blocks.take(10, 16), Some((2, 16)));
        assert_eq!(blocks.take(10, 16), Some((1, 0)));
        assert_eq!(blocks.take(101, 1), None);
    }

    proptest! {
        /// Against a map of single bytes: nothing overlaps, nothing is lost, free neighbours are one block.
        #[test]
        fn agrees_with_a_map_of_bytes(steps in prop::collection::vec((any::<bool>(), 1_u64..40, 0_u32..5), 1..120)) {
            const EXTENTS: usize = 3;
            let mut blocks = Blocks::default();
            let mut used = vec![[false; 128]; EXTENTS];
            for extent in 0..EXTENTS {
                blocks.give(extent as u64, 0, 128);
            }
            let mut live = Vec::new();
            for (take, bytes, align) in steps {
                if take || live.is_empty() {
                    if let Some((extent, offset)) = blocks.take(bytes, 1 << align) {
                        prop_assert_eq!(offset % (1 << align), 0);
                        for byte in &mut used[extent as usize][offset as usize..(offset + bytes) as usize] {
                            prop_assert!(!std::mem::replace(byte, true), "overlap");
                        }
                        live.push((extent, offset, bytes));
                    }
                } else {
                    let (extent, offset, bytes) = live.swap_remove(bytes as usize % live.len());
                    blocks.give(extent, offset, bytes);
                    used[extent as usize][offset as usize..(offset + bytes) as usize].fill(false);
                }
                let runs = |extent: &[bool; 128]| extent.chunk_by(|a, b| a == b).filter(|run| !run[0]).count();
                prop_assert_eq!(blocks.by_place.len(), used.iter().map(runs).sum::<usize>(), "coalesced");
                prop_assert_eq!(blocks.by_size.len(), blocks.by_place.len());
                let free = used.iter().flatten().filter(|byte| !**byte).count() as u64;
                prop_assert_eq!(blocks.free().0, free);
            }
        }
    }
}
