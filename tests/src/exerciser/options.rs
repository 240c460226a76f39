//! What the exerciser is asked to do.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tensortier::units::{NodeId, NodeSet};

use super::layout::Kind;

/// Command line of the exerciser; sizes are binary (`64M` = 64 MiB).
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct Options {
    /// Bytes touched all the time.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub hot: u64,
    /// Bytes touched once every --warm-every loops.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    pub warm: u64,
    /// Bytes touched once, at the start.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    pub cold: u64,
    /// Loops over the hot bytes between two over the warm ones.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub warm_every: u64,
    /// Bytes of which a growing part, from the first on, is touched once up and once down with each pass over the warm
    /// bytes, as activations are. They are not filled: a page comes with its first touch.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0", conflicts_with = "reserve")]
    pub grow: u64,
    /// Time in which that part becomes the whole.
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = seconds)]
    pub grow_seconds: f64,
    /// Node on which the hot bytes begin.
    #[arg(long, value_name = "NODE", value_parser = node)]
    pub hot_node: Option<NodeId>,
    /// Node on which the warm bytes begin.
    #[arg(long, value_name = "NODE", value_parser = node)]
    pub warm_node: Option<NodeId>,
    /// Node on which the cold bytes begin. They are placed first.
    #[arg(long, value_name = "NODE", value_parser = node)]
    pub cold_node: Option<NodeId>,
    /// Pins so much of the hot bytes once they are placed, as a device driver does.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    pub pin: u64,
    /// Accepts a start at which a node could not hold all that was meant for it.
    #[arg(long)]
    pub spill: bool,
    /// Nodes counted as DRAM (default: those with CPUs).
    #[arg(long, value_name = "LIST")]
    pub dram_nodes: Option<NodeSet>,
    /// Whether the arena asks for huge pages or refuses them.
    #[arg(long, value_enum, default_value_t = Thp::Always)]
    pub thp: Thp,
    /// Order of the hot stripes.
    #[arg(long, value_enum, default_value_t = Pattern::Sweep)]
    pub pattern: Pattern,
    /// DRAM that the job could have: also reports the share of touches that the best fixed set of its memory would have
    /// had there.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub oracle_dram: Option<u64>,
    /// Time for which that set is fixed; it also changes where the hot window moves.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub oracle_seconds: f64,
    /// Reserves this much address space and spreads the touched memory over it.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "vmas", conflicts_with = "phase_seconds")]
    pub reserve: Option<u64>,
    /// VMAs over which the touched memory is spread; the hot bytes are one of them.
    #[arg(long, value_name = "N", requires = "reserve")]
    pub vmas: Option<u64>,
    /// Moves the hot window to another place among hot and cold every S seconds.
    #[arg(long, value_name = "S")]
    pub phase_seconds: Option<f64>,
    /// Length of the run; SIGTERM and SIGINT end it earlier.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Cache lines touched in each 4 KiB page.
    #[arg(long, value_name = "LINES", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub lines_per_page: u64,
    /// Threads; each has its own stripes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub threads: u64,
    /// Writes the report to FILE instead of stdout.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Huge pages in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thp {
    /// `MADV_HUGEPAGE`.
    Always,
    /// `MADV_NOHUGEPAGE`.
    Never,
}

/// Order in which hot stripes are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// In address order.
    Sweep,
    /// Uniformly at random.
    Random,
    /// With probability 1/rank (Zipf's law, exponent 1); ranks are scattered over the hot bytes.
    Zipf,
    /// In address order, one page in each 2 MiB and nothing else.
    Scattered,
}

impl Options {
    /// Each kind with the node it is meant to begin on, in the order in which they are placed.
    pub fn start_nodes(&self) -> [(Kind, Option<NodeId>); 3] {
        [(Kind::Cold, self.cold_node), (Kind::Warm, self.warm_node), (Kind::Hot, self.hot_node)]
    }
}

/// Reads `4096`, `64K`, `64M`, `64MiB`, `2G`; all binary.
///
/// # Errors
/// The text, where it is something else or does not fit.
pub fn size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a size such as 64M or 2G");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| bad())?;
    let unit = text[digits..].strip_suffix("iB").unwrap_or(&text[digits..]);
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(bad()),
    };
    number.checked_mul(1 << shift).ok_or_else(bad)
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0);
    number.ok_or_else(|| format!("{text:?} is not a time above 0 in seconds"))
}

fn node(text: &str) -> Result<NodeId, String> {
    text.parse().map(NodeId).map_err(|_| format!("{text:?} is not a node's number"))
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_binary() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        for bad in ["", "M", "1.5G", "-1", "10MB", "99999999999G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
