//! The work: five patterns of a training host, each larger than the DRAM it has.
//!
//! Sizes are small, since an emulated machine migrates 30 to 90 MB a second. Both nodes are equally fast there: what a
//! system gains is the share of accesses on DRAM, and times show only what it costs.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A pattern of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// 256 MiB hot beside 640 MiB cold, all begun on the slow node.
    Hotcold,
    /// 768 MiB swept in order again and again, begun where first touch puts them: no better placement exists.
    Sweep,
    /// 64 MiB of 512 hot, elsewhere every 20 s, all begun on the slow node.
    Phase,
    /// Weights of 128 MiB used four times a step, an optimizer of 512 MiB swept once, activations that grow to 192 MiB
    /// in 30 s, all begun where first touch puts them: the optimizer on DRAM.
    Mixed,
    /// One hot page in each 2 MiB of 768, all begun on the slow node.
    Scattered,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Hotcold, Self::Sweep, Self::Phase, Self::Mixed, Self::Scattered];

    /// Free DRAM when the job starts, in MiB.
    pub fn dram_mib(self) -> u64 {
        // Two hot sets and what is kept free: the third phase must make room.
        if self == Self::Phase { 224 } else { 512 }
    }

    /// Memory of the guest's two nodes, in MiB: for the job, the kernel and the programs. All of the job fits the slow
    /// one.
    pub fn guest_mib(self) -> (u64, u64) {
        (self.dram_mib() + 512, 1152)
    }

    /// Seconds after the start of the run, or of each phase, that are not judged.
    pub fn settle_seconds(self) -> f64 {
        if self == Self::Phase { 5.0 } else { 10.0 }
    }

    /// Seconds of a run that shows it.
    pub fn seconds(self) -> f64 {
        if self == Self::Phase { 100.0 } else { 60.0 }
    }

    /// The exerciser's arguments, without its length and report.
    pub fn exerciser(self, thp: &str) -> Vec<String> {
        let words = match self {
            Self::Hotcold => "--hot 256M --cold 640M --hot-node 1 --cold-node 1",
            Self::Sweep => "--hot 768M",
            Self::Phase => "--hot 64M --cold 448M --hot-node 1 --cold-node 1 --phase-seconds 20 --oracle-seconds 5",
            Self::Mixed => "--hot 128M --warm 512M --warm-every 4 --grow 192M --grow-seconds 30",
            Self::Scattered => "--hot 768M --hot-node 1 --pattern scattered --lines-per-page 64",
        };
        // A system may promote while the memory is filled.
        let words = format!("{words} --spill --thp {thp} --oracle-dram {}M", self.dram_mib());
        words.split_ascii_whitespace().map(str::to_owned).collect()
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hotcold => "hotcold",
            Self::Sweep => "sweep",
            Self::Phase => "phase",
            Self::Mixed => "mixed",
            Self::Scattered => "scattered",
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::exerciser::{Layout, Options};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn each_is_larger_than_its_dram_and_fits_the_slow_node() {
        for workload in Workload::ALL {
            let words = ["x".to_owned()].into_iter().chain(workload.exerciser("never"));
            let layout = Layout::new(&Line::parse_from(words).options).expect("a layout");
            let mib = layout.pieces.iter().map(|piece| piece.range.bytes() >> 20).sum::<u64>();
            assert!(mib > workload.dram_mib() && mib < workload.guest_mib().1, "{workload}: {mib} MiB");
        }
    }
}
