//! The ordered list of storages that may be evicted.

use super::log::StorageId;

/// Marks a place whose storage left.
const HOLE: StorageId = StorageId::MAX;

/// A list that keeps its order when members leave, with constant-time membership.
///
/// Order decides which of several equally cheap storages goes, so it is part of the policy's meaning.
#[derive(Clone, Debug)]
pub struct Pool {
    list: Vec<StorageId>,
    /// Place of each storage in `list`, plus one; 0 for those outside.
    place: Vec<u32>,
    members: usize,
}

impl Pool {
    /// An empty pool for storages below `storages`.
    pub fn new(storages: usize) -> Self {
        Pool { list: Vec::new(), place: vec![0; storages], members: 0 }
    }

    /// Appends a storage; does nothing if it is a member.
    pub fn push(&mut self, s: StorageId) {
        if self.place[s as usize] == 0 {
            self.list.push(s);
            self.place[s as usize] = self.list.len() as u32;
            self.members += 1;
        }
    }

    /// Takes a storage out; does nothing if it is no member.
    pub fn remove(&mut self, s: StorageId) {
        let place = std::mem::take(&mut self.place[s as usize]);
        if place == 0 {
            return;
        }
        self.list[place as usize - 1] = HOLE;
        self.members -= 1;
        if self.list.len() > 2 * self.members + 16 {
            self.list.retain(|&s| s != HOLE);
            for (i, &s) in self.list.iter().enumerate() {
                self.place[s as usize] = i as u32 + 1;
            }
        }
    }

    /// True if the storage may be evicted.
    pub fn contains(&self, s: StorageId) -> bool {
        self.place[s as usize] != 0
    }

    /// The members in order.
    pub fn iter(&self) -> impl Iterator<Item = StorageId> + '_ {
        self.list.iter().copied().filter(|&s| s != HOLE)
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.members
    }

    /// True if nothing may be evicted.
    pub fn is_empty(&self) -> bool {
        self.members == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_list(ops in prop::collection::vec((any::<bool>(), 0u32..40), 0..400)) {
            let mut pool = Pool::new(40);
            let mut list: Vec<u32> = Vec::new();
            for (push, s) in ops {
                if push {
                    if !list.contains(&s) {
                        list.push(s);
                    }
                    pool.push(s);
                } else {
                    list.retain(|&x| x != s);
                    pool.remove(s);
                }
                prop_assert_eq!(pool.iter().collect::<Vec<_>>(), list.clone());
                prop_assert_eq!(pool.len(), list.len());
                prop_assert!((0..40).all(|s| pool.contains(s) == list.contains(&s)));
            }
        }
    }
}
