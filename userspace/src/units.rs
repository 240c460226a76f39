//! The words every stage shares: nodes, processes, address ranges, bytes.

use std::{
    collections::BTreeSet,
    fmt, fs,
    io::{self, Read},
    path::Path,
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// Bytes of a base page. x86-64 and the arm64 kernels of the hosts named in the README both use 4 KiB.
pub const PAGE: u64 = 4096;
/// Bytes of a block: the grain of hotness and placement, one transparent huge page.
pub const BLOCK: u64 = 2 << 20;

/// A NUMA node's id. Ids are a set, never a range: hosts with nodes 0 and 2 exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A set of nodes, printed and parsed as the kernel does: `0,2-3`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeSet(pub BTreeSet<NodeId>);

impl NodeSet {
    /// Whether `node` is in the set.
    pub fn contains(&self, node: NodeId) -> bool {
        self.0.contains(&node)
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        Self(nodes.into_iter().collect())
    }
}

/// Why a list such as `0,2-3` could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a list of numbers such as 0,2-3: {0:?}")]
pub struct ListError(pub String);

/// Reads the kernel's list format (`0,2-3`; empty is the empty list).
pub fn parse_list(text: &str) -> Result<Vec<u32>, ListError> {
    let bad = || ListError(text.to_owned());
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.trim().parse().map_err(|_| bad())?;
        let last: u32 = last.trim().parse().map_err(|_| bad())?;
        // A hostile or corrupt list must not become gigabytes of numbers.
        if last < first || last - first > 1 << 16 {
            return Err(bad());
        }
        numbers.extend(first..=last);
    }
    Ok(numbers)
}

impl FromStr for NodeSet {
    type Err = ListError;

    fn from_str(text: &str) -> Result<Self, ListError> {
        Ok(parse_list(text)?.into_iter().map(NodeId).collect())
    }
}

impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.0.iter().map(|node| node.0).peekable();
        let mut separator = "";
        while let Some(first) = ids.next() {
            let mut last = first;
            while ids.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// A process (thread group) id in the agent's pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pid(pub u32);

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A half-open range of a process's virtual addresses, `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// First address past the range.
    pub end: u64,
}

impl Range {
    /// `start..end`; an inverted pair is the empty range at `start`.
    pub fn new(start: u64, end: u64) -> Self {
        Self { start, end: end.max(start) }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Base pages that the range touches.
    pub fn pages(&self) -> u64 {
        self.end.div_ceil(PAGE) - self.start / PAGE
    }

    /// The common part, if it is not empty.
    pub fn intersect(&self, other: &Range) -> Option<Range> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Range { start, end })
    }

    /// The blocks that the range touches, by number (`address / BLOCK`).
    pub fn blocks(&self) -> std::ops::Range<u64> {
        self.start / BLOCK..self.end.div_ceil(BLOCK)
    }
}

/// Joins ranges whose gap is at most `gap` bytes; they must ascend.
pub fn join(ranges: impl IntoIterator<Item = Range>, gap: u64) -> Vec<Range> {
    let mut joined: Vec<Range> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(gap) => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start, self.end)
    }
}

/// The text of a procfs or sysfs file, in as few system calls as can be: such a file does not know its length. Names in
/// it are bytes: what is no UTF-8 is replaced.
///
/// # Errors
/// It cannot be read.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(PAGE as usize);
    // A file of its own is asked for its length first.
    fs::File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// Whether a character shows itself and does nothing else to the text that it stands in: none that controls a
/// terminal, and none of Unicode's categories Cf, Zl and Zp, which turn text around, hide, or end lines.
pub fn shows(letter: char) -> bool {
    let formats = matches!(letter,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}');
    !formats && !letter.is_control()
}

/// A name that somebody else chose, fit for a terminal: characters that do not [show](shows) are spelt out.
pub fn printable(name: &str) -> String {
    name.chars().fold(String::new(), |mut text, each| {
        match shows(each) {
            true => text.push(each),
            false => text.extend(each.escape_unicode()),
        }
        text
    })
}

/// Bytes for people: `1.5 GiB`.
pub fn show_bytes(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}

/// Reads a size such as `512MiB`, `1.5G` or `4096`; suffixes are binary (`G` is GiB), as memory sizes are.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(format!("not a size: {text:?} (write 512MiB, 1.5G or a number of bytes)")),
    };
    let number: f64 = number.parse().map_err(|_| format!("not a size: {text:?}"))?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes >= u64::MAX as f64 { Err(format!("too large: {text:?}")) } else { Ok(bytes as u64) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lists_round_trip_and_bad_ones_are_refused() {
        for list in ["", "0", "0,2", "0-1,3,5-7"] {
            assert_eq!(list.parse::<NodeSet>().unwrap().to_string(), list);
        }
        for bad in ["a", "3-1", "0-4294967295", "1-"] {
            assert!(bad.parse::<NodeSet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(parse_bytes("1.5GiB").unwrap(), 3 << 29);
        assert_eq!(parse_bytes("512M").unwrap(), 512 << 20);
        assert_eq!(parse_bytes("4096").unwrap(), 4096);
        assert!(parse_bytes("12 parsecs").is_err());
        assert!(parse_bytes("99999999999T").is_err());
    }

    #[test]
    fn ranges_cover_whole_blocks_and_pages() {
        let range = Range::new(BLOCK - 1, BLOCK + 1);
        assert_eq!((range.blocks(), range.pages()), (0..2, 2));
        assert_eq!(range.intersect(&Range::new(BLOCK, 2 * BLOCK)), Some(Range::new(BLOCK, BLOCK + 1)));
        assert_eq!(range.intersect(&Range::new(0, 1)), None);
    }

    #[test]
    fn ranges_with_small_gaps_are_joined() {
        let ranges = [Range::new(0, 10), Range::new(12, 20), Range::new(40, 50)];
        assert_eq!(join(ranges, 5), vec![Range::new(0, 20), Range::new(40, 50)]);
    }
}
