//! Recorded jobs in a file: version 1 of the format.
//!
//! ```text
//! file     = "ttrace\r\n"  version: u16  block*           integers of fixed size are little-endian
//! block    = kind: u8  stored: u32  plain: u32  crc: u32  payload
//! ```
//!
//! The payload is a raw deflate stream (RFC 1951) of `stored` bytes that inflates to `plain` bytes; `crc` is the CRC-32
//! of the block's first nine bytes and its payload. The first block is a header, then come intervals, and one end; a
//! file without its end was cut short. A reader refuses kinds and versions that it does not know: nothing is skipped.
//!
//! | kind | payload |
//! |---|---|
//! | 1 header | JSON of [`Header`] |
//! | 2 intervals | any number of intervals, one after the other |
//! | 3 end | varints: intervals and samples in the whole file |
//!
//! ```text
//! interval = time  processes  born  died  samples
//! time     = nanoseconds since the last interval, or since the start
//! processes= n  n × (pid, length of the name, the name in UTF-8)          numbered from 0 in the order of the file
//! born     = n  n × (process, pattern, start, bytes)                      regions, numbered alike
//! died     = n  n × id                                                    ascending
//! samples  = n  n × id  n × heat  n × read  n × written                   ascending ids; column by column
//! ```
//!
//! All are varints: seven bits a byte, lowest first, the top bit says that more follow. Ids are the gap to the one
//! before (the first counts from 0): `id - before - 1`. A start is the difference to the end of the region listed
//! before it, a heat that to the region's last one, both signed (zigzag: `2·n`, or `-2·n - 1` for negative `n`). A
//! pattern is 0 where accesses are at random or unknown, 1 for a stream. A heat is in thousandths. `read` and `written`
//! are cache lines of 64 bytes, 0 in both where the recorder only knows the heat.

mod convert;
mod read;
mod varint;
mod write;

use std::path::PathBuf;

pub use convert::{read_file, read_workload, write_workload};
pub use read::Reader;
use serde::{Deserialize, Serialize};
use tensortier_model::{Bytes, Nanos};
pub use write::Writer;

use crate::workload::Pattern;

const MAGIC: &[u8; 8] = b"ttrace\r\n";
/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;
/// The most that a block may inflate to: an interval of some millions of regions.
const MOST_PLAIN: usize = 32 << 20;
/// The most regions of a file.
pub const MOST_REGIONS: usize = 1 << 22;
/// The most processes of a file.
pub const MOST_PROCESSES: usize = 1 << 20;
/// Heat is stored in thousandths.
const HEAT: u16 = 1000;

/// What is known before the first interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// What was recorded, for people.
    pub name: String,
    /// The recording's start, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Nominal length of an interval.
    pub interval_ns: Nanos,
    /// The machine's memory.
    pub nodes: Vec<Node>,
}

/// A NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its id.
    pub id: u32,
    /// Whether it is of the top tier.
    pub top: bool,
    /// Its memory.
    pub bytes: Bytes,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

/// A range of addresses that begins to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Born {
    /// Number of the process, in the order of the file.
    pub process: u32,
    /// First address.
    pub start: u64,
    /// Size.
    pub bytes: Bytes,
    /// How it is accessed, where that is known.
    pub pattern: Pattern,
}

/// What was seen of a region in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Number of the region, in the order of the file.
    pub region: usize,
    /// Share of looks that found it accessed, thousandths.
    pub heat: u16,
    /// Lines read, if counted.
    pub read: u64,
    /// Lines written, if counted.
    pub written: u64,
}

/// One interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// When it ended, since the start of the recording.
    pub at: Nanos,
    /// Processes first seen in it.
    pub processes: Vec<Process>,
    /// Regions first seen in it.
    pub born: Vec<Born>,
    /// Regions that are there no more, ascending.
    pub died: Vec<usize>,
    /// What was seen, by ascending region.
    pub samples: Vec<Sample>,
}

/// What can be wrong with a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Reading or writing failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file does not begin as a trace does.
    #[error("not a trace: it does not begin with \"ttrace\"; `tensortier record` writes them")]
    NotATrace,
    /// Another version.
    #[error(
        "version {found} of the trace format, this program reads version {VERSION}: \
         record it again, or use the program that wrote it"
    )]
    Version {
        /// The file's version.
        found: u16,
    },
    /// The file ends early.
    #[error("cut short at byte {at}: the recording was interrupted or the file not copied whole")]
    Truncated {
        /// Length of what is there.
        at: u64,
    },
    /// A block's checksum does not match.
    #[error("the block at byte {at} is damaged: checksum {found:08x}, should be {stored:08x}")]
    Checksum {
        /// The block's place.
        at: u64,
        /// Of what was read.
        found: u32,
        /// That of the file.
        stored: u32,
    },
    /// A block that does not follow the format, its checksum notwithstanding.
    #[error("the block at byte {at} is not as the format says: {what}")]
    Corrupt {
        /// The block's place.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// More than this program takes.
    #[error("{found} {what}, more than the {most} that are taken")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How many.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// What is to be written does not follow the format.
    #[error("cannot be written: {0}")]
    Invalid(&'static str),
    /// In that file.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<TraceError>,
    },
}

/// What a block contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Header = 1,
    Intervals = 2,
    End = 3,
}

/// Size of a block without its payload.
const BLOCK_HEAD: usize = 13;

/// The checksum of a block whose first nine bytes are `head`.
fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(head);
    crc.update(payload);
    crc.finalize()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
