//! Which bytes are hot, warm and cold, and where in the address space they lie.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use tensortier::units::{BLOCK, Range};

use super::{
    memory,
    options::{Options, Pattern},
};

/// Bytes of one unit of work.
pub const STRIPE: u64 = 64 << 10;

/// How often bytes are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// All the time.
    Hot,
    /// Every few loops.
    Warm,
    /// A growing part of them every few loops; the rest is not there yet.
    Growing,
    /// Once, at the start (with phases: while the hot window lies on them).
    Cold,
}

/// A range of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// How often it is touched.
    pub kind: Kind,
    /// Its addresses.
    pub range: Range,
}

/// The arena.
#[derive(Clone, Debug)]
pub struct Layout {
    /// What was reserved, in which the pieces lie.
    pub reserved: Range,
    /// The touched memory in address order.
    pub pieces: Vec<Piece>,
    /// Hot range of each phase.
    pub windows: Vec<Range>,
}

impl Layout {
    /// Reserves the address space and places the pieces in it.
    ///
    /// # Errors
    /// Sizes that are not whole stripes, or that do not fit the reserved space; no address space.
    pub fn new(options: &Options) -> Result<Self> {
        let sizes = [options.hot, options.warm, options.cold, options.grow];
        ensure!(options.hot > 0, "--hot is 0: nothing to do");
        ensure!(sizes.iter().all(|size| size % STRIPE == 0), "sizes are multiples of 64 KiB");
        if options.pattern == Pattern::Scattered {
            let hot_alone = options.warm + options.grow == 0 && options.phase_seconds.is_none();
            ensure!(
                hot_alone && options.hot.is_multiple_of(BLOCK),
                "scattered pages are one in each 2 MiB of hot bytes alone"
            );
        }
        let chunks = chunks(options)?;
        let slot = match options.reserve {
            None => 0,
            Some(reserve) => reserve / chunks.len() as u64 / BLOCK * BLOCK,
        };
        let length = chunks.iter().map(|(_, bytes)| bytes.next_multiple_of(BLOCK).max(slot)).sum();
        if let Some(reserve) = options.reserve {
            // A gap of a block at least keeps neighbours two VMAs.
            let fits = chunks.iter().all(|(_, bytes)| bytes + BLOCK <= slot);
            ensure!(fits, "{reserve} reserved bytes do not hold {} VMAs of these sizes apart", chunks.len());
        }
        let reserved = memory::reserve(length)?;
        let mut at = reserved.start;
        let mut pieces = Vec::new();
        for (kind, bytes) in chunks {
            pieces.push(Piece { kind, range: Range::new(at, at + bytes) });
            // Without a reservation hot and cold touch each other, so that a window may lie across both.
            at += if slot > 0 { slot } else { bytes };
        }
        let windows = windows(options, &pieces);
        Ok(Self { reserved, pieces, windows })
    }

    /// Bytes of a kind.
    pub fn bytes(&self, kind: Kind) -> u64 {
        self.ranges(kind).map(|range| range.bytes()).sum()
    }

    /// Ranges of a kind.
    pub fn ranges(&self, kind: Kind) -> impl Iterator<Item = Range> + '_ {
        self.pieces.iter().filter(move |piece| piece.kind == kind).map(|piece| piece.range)
    }
}

/// Kind and bytes of each piece, in address order.
fn chunks(options: &Options) -> Result<Vec<(Kind, u64)>> {
    let Some(vmas) = options.vmas else {
        let all = [
            (Kind::Hot, options.hot),
            (Kind::Cold, options.cold),
            (Kind::Warm, options.warm),
            (Kind::Growing, options.grow),
        ];
        return Ok(all.into_iter().filter(|(_, bytes)| *bytes > 0).collect());
    };
    let others = vmas.saturating_sub(1 + u64::from(options.warm > 0));
    ensure!(others >= 1 && options.cold / STRIPE >= others, "--cold does not fill the other {others} VMAs");
    let (share, rest) = (options.cold / STRIPE / others, options.cold / STRIPE % others);
    let mut chunks: Vec<_> = (0..others).map(|n| (Kind::Cold, (share + u64::from(n < rest)) * STRIPE)).collect();
    if options.warm > 0 {
        chunks.insert(chunks.len() / 4, (Kind::Warm, options.warm));
    }
    chunks.insert(chunks.len() / 2, (Kind::Hot, options.hot));
    Ok(chunks)
}

/// The hot range of each phase: all of hot and cold in windows of the hot size, no two neighbours in a row.
fn windows(options: &Options, pieces: &[Piece]) -> Vec<Range> {
    let hot: Vec<Range> = pieces.iter().filter(|piece| piece.kind == Kind::Hot).map(|piece| piece.range).collect();
    if options.phase_seconds.is_none() {
        return hot;
    }
    let start = hot[0].start;
    let count = (options.hot + options.cold) / options.hot;
    let stride = (count / 2 + 1..).find(|stride| gcd(*stride, count) == 1).unwrap_or(1);
    (0..count).map(|n| start + n * stride % count * options.hot).map(|at| Range::new(at, at + options.hot)).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn layout(line: &str) -> Result<Layout> {
        Layout::new(&Line::parse_from(format!("x {line}").split_whitespace()).options)
    }

    #[test]
    fn phases_visit_every_window_once_and_no_neighbour_next() {
        let layout = layout("--hot 64M --cold 448M --phase-seconds 20").expect("a layout");
        let mut starts: Vec<u64> = layout.windows.iter().map(|window| window.start).collect();
        assert_eq!(starts.len(), 8);
        assert!(starts.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 64 << 20), "{starts:x?}");
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), 8);
        assert_eq!(starts[0], layout.pieces[0].range.start);
    }

    #[test]
    fn a_reservation_spreads_exact_sizes_over_exactly_n_ranges() {
        let layout = layout("--hot 64M --cold 1100M --warm 4M --reserve 160G --vmas 50").expect("a layout");
        assert_eq!(layout.pieces.len(), 50);
        assert_eq!(layout.bytes(Kind::Hot), 64 << 20);
        assert_eq!(layout.bytes(Kind::Warm), 4 << 20);
        assert_eq!(layout.bytes(Kind::Cold), 1100 << 20);
        assert!(layout.pieces.windows(2).all(|pair| pair[0].range.end + BLOCK <= pair[1].range.start));
        assert!(layout.pieces.iter().all(|piece| piece.range.start % BLOCK == 0));
        assert!(layout.pieces[49].range.end <= layout.reserved.end);
        assert!(layout.reserved.bytes() > 159 << 30);
    }

    #[test]
    fn contradictions_are_refused() {
        assert!(layout("--hot 100").is_err());
        assert!(layout("--hot 0").is_err());
        assert!(layout("--hot 64M --cold 64K --reserve 1G --vmas 50").is_err());
        assert!(layout("--hot 600M --cold 64M --reserve 1G --vmas 4").is_err());
        assert!(layout("--hot 64M --warm 2M --pattern scattered").is_err());
        assert!(layout("--hot 3M --pattern scattered").is_err());
    }
}
