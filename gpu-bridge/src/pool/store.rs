//! The pool itself: objects behind handles.

use std::{collections::BTreeMap, fmt};

use tensortier_model::Bytes;

use super::{
    backing::{Backing, BackingError},
    blocks::ExtentId,
    class::{self, Class, Lifetime, NodeSpec, Placement},
    extent::{Extents, Registrar},
    region::{Region, Spot},
    report::{NodeUsage, PoolError, Usage},
    size, stripe,
};

/// Idle extents are kept while what is mapped stays within this share above the most that was ever live.
const SLACK: f64 = 1.03;

/// Names an object for as long as it lives, wherever it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    slot: u32,
    generation: u32,
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// Where an object is, until it is unpinned or moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// First address.
    pub address: u64,
    /// Bytes asked for.
    pub bytes: Bytes,
    /// Its nodes.
    pub placement: Placement,
    /// Whether the copy engine may read it directly; otherwise it goes through the staging ring.
    pub registered: bool,
}

type RegionKey = (Placement, Lifetime);

#[derive(Debug)]
struct Object {
    spot: Spot,
    bytes: Bytes,
    class: Class,
    region: RegionKey,
    pins: u32,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    object: Option<Object>,
}

/// The pool. One owner at a time: share it behind a lock, whose holder never waits for a copy.
#[derive(Debug)]
pub struct Pool<B: Backing, R: Registrar> {
    extents: Extents<B, R>,
    regions: BTreeMap<RegionKey, Region>,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    usage: Usage,
}

impl<B: Backing, R: Registrar> Pool<B, R> {
    /// A pool over `nodes`. Nothing is mapped before the first object.
    ///
    /// # Errors
    /// [`PoolError::Movable`].
    pub fn new(nodes: Vec<NodeSpec>, backing: B, registrar: R) -> Result<Self, PoolError> {
        if let Some(spec) = nodes.iter().find(|n| n.register && n.movable) {
            return Err(PoolError::Movable { node: spec.node });
        }
        let (regions, slots, vacant, usage) = Default::default();
        Ok(Self { extents: Extents::new(nodes, backing, registrar), regions, slots, vacant, usage })
    }

    /// An object of `bytes`, on the best nodes for `class` that have room. Its contents are unspecified.
    ///
    /// # Errors
    /// [`PoolError::Size`], [`PoolError::Budget`], [`PoolError::Backing`].
    pub fn allocate(&mut self, bytes: Bytes, class: Class, lifetime: Lifetime) -> Result<Handle, PoolError> {
        if bytes == 0 || bytes > size::MAX {
            return Err(PoolError::Size { bytes });
        }
        let (region, spot) = self.find(bytes, class, lifetime)?;
        let object = Object { spot, bytes, class, region, pins: 0 };
        self.account(&object, true);
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, object: None });
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        entry.object = Some(object);
        Ok(Handle { slot, generation: entry.generation })
    }

    fn find(&mut self, bytes: Bytes, class: Class, lifetime: Lifetime) -> Result<(RegionKey, Spot), PoolError> {
        let specs: Vec<_> = self.extents.nodes.values().map(|n| n.spec.clone()).collect();
        let mut refused = None;
        for (rank, placement) in class::candidates(class, bytes, &specs).into_iter().enumerate() {
            match self.take(bytes, placement, lifetime) {
                Ok(Some(found)) => {
                    self.usage.spilled += u64::from(rank > 0);
                    return Ok(found);
                }
                Ok(None) => {}
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.map_or_else(|| self.no_room(bytes, class), PoolError::from))
    }

    /// Room at exactly `placement`: in its region, else in an idle extent, else in a new one.
    fn take(
        &mut self,
        bytes: Bytes,
        placement: Placement,
        lifetime: Lifetime,
    ) -> Result<Option<(RegionKey, Spot)>, BackingError> {
        let key = (placement, lifetime);
        let region = self.regions.entry(key.clone()).or_default();
        // A stripe's extent holds one object: parts of it would not lie as the weights say.
        if !key.0.is_striped()
            && let Some(spot) = region.take(bytes)
        {
            return Ok(Some((key, spot)));
        }
        let (need, mut want) = region.shortage(bytes);
        if key.0.is_striped() {
            want = need;
        }
        let mut added = self.extents.reuse(&key.0, need);
        if added.is_none() {
            added = self.grow(&key.0, want, need)?;
        }
        let Some((extent, length)) = added else { return Ok(None) };
        let region = self.regions.entry(key.clone()).or_default();
        if key.0.is_striped() {
            return Ok(Some((key, Spot { extent, offset: 0, bytes: length, slab: None })));
        }
        region.add(extent, length);
        Ok(region.take(bytes).map(|spot| (key, spot)))
    }

    /// A new extent of `want` bytes, or else `need`; idle ones go where a budget or [`SLACK`] asks for it.
    fn grow(
        &mut self,
        placement: &Placement,
        want: Bytes,
        need: Bytes,
    ) -> Result<Option<(ExtentId, Bytes)>, BackingError> {
        let live = self.usage.peak_live.max(self.usage.live + need) as f64;
        while (self.extents.reserved().0 + want) as f64 > live * SLACK && self.extents.release_one(placement) {}
        loop {
            for bytes in [want, need] {
                if let Ok(Some(extent)) = self.extents.map(placement, bytes) {
                    self.usage.peak_reserved = self.usage.peak_reserved.max(self.extents.reserved().0);
                    return Ok(Some(extent));
                }
            }
            if !self.extents.release_one(placement) {
                return self.extents.map(placement, need);
            }
        }
    }

    fn no_room(&self, bytes: Bytes, class: Class) -> PoolError {
        let nodes = self.extents.nodes.values();
        let nodes = nodes.map(|n| format!("node {} holds {} of {} bytes", n.spec.node, n.reserved, n.spec.budget));
        PoolError::Budget { bytes, class, nodes: nodes.collect::<Vec<_>>().join(", ") }
    }

    fn account(&mut self, object: &Object, born: bool) {
        let usage = &mut self.usage;
        if born {
            usage.live += object.bytes;
            usage.rounded += object.spot.bytes;
            usage.objects += 1;
            usage.peak_live = usage.peak_live.max(usage.live);
        } else {
            usage.live -= object.bytes;
            usage.rounded -= object.spot.bytes;
            usage.objects -= 1;
        }
    }

    /// Frees an object.
    ///
    /// # Errors
    /// [`PoolError::Stale`], [`PoolError::Pinned`].
    pub fn free(&mut self, handle: Handle) -> Result<(), PoolError> {
        if self.object(handle)?.pins > 0 {
            return Err(PoolError::Pinned(handle));
        }
        let slot = &mut self.slots[handle.slot as usize];
        slot.generation = slot.generation.wrapping_add(1);
        if let Some(object) = slot.object.take() {
            self.vacant.push(handle.slot);
            self.account(&object, false);
            self.give(&object.region, object.spot);
        }
        Ok(())
    }

    fn give(&mut self, key: &RegionKey, spot: Spot) {
        let empty = if key.0.is_striped() {
            Some(spot.extent)
        } else {
            self.regions.get_mut(key).and_then(|region| region.give(spot))
        };
        if let Some(extent) = empty {
            self.extents.retire(extent);
        }
    }

    /// Frees every unpinned object of `lifetime`; says how many.
    pub fn free_all(&mut self, lifetime: Lifetime) -> usize {
        let ending: Vec<_> = (0_u32..)
            .zip(&self.slots)
            .filter(|(_, s)| s.object.as_ref().is_some_and(|o| o.region.1 == lifetime && o.pins == 0))
            .map(|(slot, s)| Handle { slot, generation: s.generation })
            .collect();
        ending.into_iter().filter(|&handle| self.free(handle).is_ok()).count()
    }

    /// Moves an object to `placement`; its handle stays, its bytes too. A stripe below the least size for one goes to
    /// its first node.
    ///
    /// # Errors
    /// [`PoolError::Stale`], [`PoolError::Pinned`], [`PoolError::Budget`], [`PoolError::Backing`]; it then stays where
    /// it is.
    pub fn move_to(&mut self, handle: Handle, placement: Placement) -> Result<(), PoolError> {
        let &Object { bytes, class, pins, ref region, spot } = self.object(handle)?;
        let (old, lifetime) = (region.clone(), region.1);
        if pins > 0 {
            return Err(PoolError::Pinned(handle));
        }
        let placement = match placement.shares() {
            [(first, _), ..] if bytes < stripe::MIN_BYTES => Placement::on(*first),
            _ => placement,
        };
        if old.0 == placement {
            return Ok(());
        }
        let (new, target) = self.take(bytes, placement, lifetime)?.ok_or_else(|| self.no_room(bytes, class))?;
        self.extents.copy((spot.extent, spot.offset), (target.extent, target.offset), bytes);
        if let Some(object) = &mut self.slots[handle.slot as usize].object {
            (object.region, object.spot) = (new, target);
        }
        self.usage.rounded = self.usage.rounded + target.bytes - spot.bytes;
        self.usage.moved += 1;
        self.give(&old, spot);
        Ok(())
    }

    /// Keeps an object where it is for a copy, until [`Pool::unpin`]. Pins add up.
    ///
    /// # Errors
    /// [`PoolError::Stale`].
    pub fn pin(&mut self, handle: Handle) -> Result<View, PoolError> {
        self.object_mut(handle)?.pins += 1;
        self.view(handle)
    }

    /// Takes one pin off.
    ///
    /// # Errors
    /// [`PoolError::Stale`].
    pub fn unpin(&mut self, handle: Handle) -> Result<(), PoolError> {
        let object = self.object_mut(handle)?;
        object.pins = object.pins.saturating_sub(1);
        Ok(())
    }

    /// Where an object is now.
    ///
    /// # Errors
    /// [`PoolError::Stale`].
    pub fn view(&self, handle: Handle) -> Result<View, PoolError> {
        let object = self.object(handle)?;
        let extent = self.extents.get(object.spot.extent);
        Ok(View {
            address: extent.mapping.address() + object.spot.offset,
            bytes: object.bytes,
            placement: object.region.0.clone(),
            registered: extent.registered,
        })
    }

    /// The bytes of an object.
    ///
    /// # Errors
    /// [`PoolError::Stale`]; [`PoolError::Pinned`], since a copy engine may be writing them.
    pub fn bytes(&self, handle: Handle) -> Result<&[u8], PoolError> {
        let object = self.object(handle)?;
        if object.pins > 0 {
            return Err(PoolError::Pinned(handle));
        }
        Ok(self.extents.get(object.spot.extent).mapping.slice(object.spot.offset, object.bytes))
    }

    /// The bytes of an object, to write.
    ///
    /// # Errors
    /// As [`Pool::bytes`].
    pub fn bytes_mut(&mut self, handle: Handle) -> Result<&mut [u8], PoolError> {
        let &Object { spot, bytes, pins, .. } = self.object(handle)?;
        if pins > 0 {
            return Err(PoolError::Pinned(handle));
        }
        let extent = self.extents.get_mut(spot.extent).ok_or(PoolError::Stale(handle))?;
        Ok(extent.mapping.slice_mut(spot.offset, bytes))
    }

    /// What the pool holds and did.
    pub fn usage(&self) -> Usage {
        let (reserved, extents) = self.extents.reserved();
        let (registrations, registration_failures) = (self.extents.registrations, self.extents.registration_failures);
        Usage { reserved, extents, registrations, registration_failures, ..self.usage.clone() }
    }

    /// What each node holds.
    pub fn nodes(&self) -> BTreeMap<u32, NodeUsage> {
        let usage = |n: &super::extent::Node| NodeUsage { budget: n.spec.budget, reserved: n.reserved, peak: n.peak };
        self.extents.nodes.iter().map(|(&node, n)| (node, usage(n))).collect()
    }

    /// Share of the free bytes that its largest block is not, 0 to 1: how far freed room has fallen apart.
    pub fn external_fragmentation(&self) -> f64 {
        let (free, largest) =
            self.regions.values().map(Region::free).fold((0, 0), |sum, r| (sum.0 + r.0, sum.1.max(r.1)));
        if free == 0 { 0.0 } else { 1.0 - largest as f64 / free as f64 }
    }

    fn object(&self, handle: Handle) -> Result<&Object, PoolError> {
        let slot = self.slots.get(handle.slot as usize).filter(|slot| slot.generation == handle.generation);
        slot.and_then(|slot| slot.object.as_ref()).ok_or(PoolError::Stale(handle))
    }

    fn object_mut(&mut self, handle: Handle) -> Result<&mut Object, PoolError> {
        let slot = self.slots.get_mut(handle.slot as usize).filter(|slot| slot.generation == handle.generation);
        slot.and_then(|slot| slot.object.as_mut()).ok_or(PoolError::Stale(handle))
    }
}

impl<B: Backing, R: Registrar> Drop for Pool<B, R> {
    fn drop(&mut self) {
        self.extents.clear();
    }
}
