//! The published placement: a table of extents in shared memory, written by the agent, read by the bridge.
//!
//! ```text
//! word 0 magic │ 1 version │ 2 records a buffer │ 3 generation last completed │ 4–7 zero
//! buffer 0     │ sequence │ generation │ published at │ count │ records…
//! buffer 1     │ the same
//! ```
//!
//! The writer fills the buffer that is not the latest, then names it the latest. So a writer that dies in the middle
//! leaves the older buffer whole and named. The sequence word is odd while its buffer is being written: a reader that
//! was overtaken by two publications sees it change and reads again, at most [`TRIES`] times; it never waits for the
//! writer. All words are atomic, in the order that H.-J. Boehm gives for sequence locks (MSPC 2012).
//!
//! The descriptor is a memfd with the seals `F_SEAL_SHRINK`, `F_SEAL_GROW`, `F_SEAL_FUTURE_WRITE` and `F_SEAL_SEAL`
//! (Linux 5.1): the agent keeps the writable mapping that it made before sealing, nobody gets another, and a reader
//! cannot be hit by SIGBUS through truncation.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::VERSION;

/// First word of the memory: `ttplace` in ASCII, low byte first, then zero.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ttplace\0");

/// How often a reader reads before it gives up and its caller keeps what it had.
pub const TRIES: u32 = 8;

/// Words before the first buffer: one cache line.
const HEADER: usize = 8;
/// Words of a buffer before its records.
const BUFFER_HEADER: usize = 4;
/// Words of a record.
const RECORD: usize = size_of::<Extent>() / 8;
/// No machine has so many extents worth naming; keeps sizes far from overflow.
const MAX_RECORDS: u64 = 1 << 24;

const W_MAGIC: usize = 0;
const W_VERSION: usize = 1;
const W_CAPACITY: usize = 2;
const W_GENERATION: usize = 3;

const B_SEQUENCE: usize = 0;
const B_GENERATION: usize = 1;
const B_PUBLISHED: usize = 2;
const B_COUNT: usize = 3;

/// What kind of memory an extent is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// The host's own memory.
    Dram = 1,
    /// Memory behind CXL.
    Cxl = 2,
}

/// Addresses of the process that lie on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Extent {
    /// First address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
    /// NUMA node.
    pub node: u32,
    /// Kind of memory.
    pub kind: Kind,
    /// What the node can deliver, MiB per second; 0 where the agent does not know.
    pub read_mib_per_sec: u32,
    /// Its read latency, nanoseconds; 0 where the agent does not know.
    pub latency_ns: u32,
}

const _: () = assert!(size_of::<Extent>() == 32 && align_of::<Extent>() == 8);

/// Why a placement cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementError {
    /// Not a placement at all.
    Magic {
        /// What its first word is.
        found: u64,
    },
    /// Written by an agent of another version.
    Version {
        /// Its version.
        found: u64,
    },
    /// The memory is smaller than its header says, or smaller than a header.
    Size {
        /// Words that the header asks for.
        need: u64,
        /// Words there are.
        have: u64,
    },
    /// More extents than a buffer holds.
    Full {
        /// Extents to be published.
        extents: usize,
        /// Extents that a buffer holds.
        capacity: usize,
    },
    /// Nothing has been published yet.
    Empty,
    /// The writer overtook every try: keep the last snapshot and come again.
    Busy,
    /// A whole buffer whose contents cannot be: an agent that is broken, or not an agent.
    Corrupt {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl std::fmt::Display for PlacementError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Magic { found } => write!(f, "no placement: begins with {found:#x}, not {MAGIC:#x}"),
            Self::Version { found } => write!(f, "placement of version {found}, this bridge reads {VERSION}"),
            Self::Size { need, have } => write!(f, "placement of {have} words, its header needs {need}"),
            Self::Full { extents, capacity } => write!(f, "{extents} extents, a buffer holds {capacity}"),
            Self::Empty => write!(f, "no placement has been published yet"),
            Self::Busy => write!(f, "placement overwritten during each of {TRIES} reads"),
            Self::Corrupt { field, value } => write!(f, "placement with {field} {value:#x}"),
        }
    }
}

impl std::error::Error for PlacementError {}

/// When a snapshot was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Counts publications from 1.
    pub generation: u64,
    /// `CLOCK_MONOTONIC` of the writer, nanoseconds. It grows old when the agent has died.
    pub published_ns: u64,
}

/// Words of a memory whose buffers hold `capacity` extents each.
pub const fn words(capacity: usize) -> usize {
    HEADER + 2 * buffer_words(capacity)
}

const fn buffer_words(capacity: usize) -> usize {
    BUFFER_HEADER + capacity * RECORD
}

/// The agent's end.
#[derive(Debug)]
pub struct Writer<'a> {
    words: &'a [AtomicU64],
    capacity: usize,
    generation: u64,
}

impl<'a> Writer<'a> {
    /// Lays out memory, zeroed or an earlier writer's, with as many records as fit. The magic goes in last: a reader
    /// sees none of it or all.
    ///
    /// # Errors
    /// [`PlacementError::Size`] where not one record fits.
    pub fn new(words: &'a [AtomicU64]) -> Result<Self, PlacementError> {
        let least = self::words(1);
        if words.len() < least {
            return Err(PlacementError::Size { need: least as u64, have: words.len() as u64 });
        }
        let fit = ((words.len() - HEADER) / 2 - BUFFER_HEADER) / RECORD;
        let capacity = fit.min(MAX_RECORDS as usize);
        words[W_VERSION].store(VERSION.into(), Ordering::Relaxed);
        words[W_CAPACITY].store(capacity as u64, Ordering::Relaxed);
        words[W_MAGIC].store(MAGIC, Ordering::Release);
        Ok(Self { words, capacity, generation: words[W_GENERATION].load(Ordering::Relaxed) })
    }

    /// Extents that one publication can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Publishes `extents`, which replace what was there; `now_ns` is `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    /// [`PlacementError::Full`]; what was published before stays.
    pub fn publish(&mut self, extents: &[Extent], now_ns: u64) -> Result<(), PlacementError> {
        if extents.len() > self.capacity {
            return Err(PlacementError::Full { extents: extents.len(), capacity: self.capacity });
        }
        let generation = self.generation.wrapping_add(1);
        let buffer = buffer(self.words, self.capacity, generation);
        let sequence = buffer[B_SEQUENCE].load(Ordering::Relaxed) | 1;
        buffer[B_SEQUENCE].store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        buffer[B_GENERATION].store(generation, Ordering::Relaxed);
        buffer[B_PUBLISHED].store(now_ns, Ordering::Relaxed);
        buffer[B_COUNT].store(extents.len() as u64, Ordering::Relaxed);
        for (slot, extent) in buffer[BUFFER_HEADER..].chunks_exact(RECORD).zip(extents) {
            for (word, value) in slot.iter().zip(pack(extent)) {
                word.store(value, Ordering::Relaxed);
            }
        }
        buffer[B_SEQUENCE].store(sequence.wrapping_add(1), Ordering::Release);
        self.words[W_GENERATION].store(generation, Ordering::Release);
        self.generation = generation;
        Ok(())
    }
}

/// The bridge's end.
#[derive(Debug)]
pub struct Reader<'a> {
    words: &'a [AtomicU64],
    capacity: usize,
}

impl<'a> Reader<'a> {
    /// Checks the header against the memory that there is. The capacity is read here, once: a header that changes
    /// later changes nothing.
    ///
    /// # Errors
    /// [`PlacementError::Magic`], [`PlacementError::Version`], [`PlacementError::Size`].
    pub fn new(words: &'a [AtomicU64]) -> Result<Self, PlacementError> {
        let have = words.len() as u64;
        if words.len() < HEADER {
            return Err(PlacementError::Size { need: HEADER as u64, have });
        }
        let found = words[W_MAGIC].load(Ordering::Acquire);
        if found != MAGIC {
            return Err(PlacementError::Magic { found });
        }
        let found = words[W_VERSION].load(Ordering::Relaxed);
        if found != u64::from(VERSION) {
            return Err(PlacementError::Version { found });
        }
        let capacity = words[W_CAPACITY].load(Ordering::Relaxed);
        if capacity > MAX_RECORDS || self::words(capacity as usize) as u64 > have {
            let need = capacity.saturating_mul(2 * RECORD as u64).saturating_add(self::words(0) as u64);
            return Err(PlacementError::Size { need, have });
        }
        Ok(Self { words, capacity: capacity as usize })
    }

    /// Counts publications: 0 before the first. One load, for those who look often.
    pub fn latest(&self) -> u64 {
        self.words[W_GENERATION].load(Ordering::Acquire)
    }

    /// Copies the latest whole snapshot into `extents`, which is left empty on an error.
    ///
    /// # Errors
    /// [`PlacementError::Empty`], [`PlacementError::Busy`], [`PlacementError::Corrupt`]: the caller goes on as if no
    /// placement were known, or with the one it had.
    pub fn read(&self, extents: &mut Vec<Extent>) -> Result<Stamp, PlacementError> {
        let mut result = Err(PlacementError::Busy);
        for _ in 0..TRIES {
            let latest = self.latest();
            if latest == 0 {
                result = Err(PlacementError::Empty);
                break;
            }
            result = self.copy(latest, extents);
            if result != Err(PlacementError::Busy) {
                break;
            }
        }
        if result.is_err() {
            extents.clear();
        }
        result
    }

    /// One try at one buffer.
    fn copy(&self, latest: u64, extents: &mut Vec<Extent>) -> Result<Stamp, PlacementError> {
        let buffer = buffer(self.words, self.capacity, latest);
        let before = buffer[B_SEQUENCE].load(Ordering::Acquire);
        let stamp = Stamp {
            generation: buffer[B_GENERATION].load(Ordering::Relaxed),
            published_ns: buffer[B_PUBLISHED].load(Ordering::Relaxed),
        };
        let count = buffer[B_COUNT].load(Ordering::Relaxed);
        let fits = usize::try_from(count).ok().filter(|&n| n <= self.capacity);
        extents.clear();
        let mut bad = None;
        for slot in buffer[BUFFER_HEADER..].chunks_exact(RECORD).take(fits.unwrap_or(0)) {
            match unpack(std::array::from_fn(|i| slot[i].load(Ordering::Relaxed))) {
                Ok(extent) => extents.push(extent),
                Err(error) => bad = Some(error),
            }
        }
        fence(Ordering::Acquire);
        let after = buffer[B_SEQUENCE].load(Ordering::Relaxed);
        // Contents are judged only once they are known to be whole.
        if before != after || before % 2 == 1 {
            return Err(PlacementError::Busy);
        }
        if fits.is_none() {
            return Err(PlacementError::Corrupt { field: "count", value: count });
        }
        bad.map_or(Ok(stamp), Err)
    }
}

fn buffer(words: &[AtomicU64], capacity: usize, generation: u64) -> &[AtomicU64] {
    let size = buffer_words(capacity);
    let start = HEADER + (generation % 2) as usize * size;
    &words[start..start + size]
}

fn pack(extent: &Extent) -> [u64; RECORD] {
    let &Extent { start, end, node, kind, read_mib_per_sec, latency_ns } = extent;
    let halves = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    [start, end, halves(node, kind as u32), halves(read_mib_per_sec, latency_ns)]
}

fn unpack([start, end, place, speed]: [u64; RECORD]) -> Result<Extent, PlacementError> {
    if start >= end {
        return Err(PlacementError::Corrupt { field: "end of an extent", value: end });
    }
    let kind = match place >> 32 {
        1 => Kind::Dram,
        2 => Kind::Cxl,
        value => return Err(PlacementError::Corrupt { field: "kind of memory", value }),
    };
    Ok(Extent {
        start,
        end,
        node: place as u32,
        kind,
        read_mib_per_sec: speed as u32,
        latency_ns: (speed >> 32) as u32,
    })
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
