//! Results of other systems that ours are held against.
//!
//! DTR: the authors' simulator, run on their own logs (`RuntimeV2EagerOptimized`): time over base time at budgets that
//! are fractions of the unrestricted peak, at most 2. G10: from its published results, at 1.2 GHz. Figures only; their
//! inputs are not part of this repository.

use tensortier_planner::dtr::Heuristic;

/// What DTR's authors' simulator prints for one log.
#[derive(Debug)]
pub struct Golden {
    /// Name of the log.
    pub log: &'static str,
    /// Unrestricted peak, base time in ns, constants, largest need of one operator; bytes.
    pub sizes: [u64; 4],
    /// By cost function: the ratios 0.9, 0.8 … 0.2; empty where nothing was printed.
    pub results: &'static [(Heuristic, [&'static str; 8])],
}

/// The golden table.
pub const DTR: &[Golden] = &[
    Golden {
        log: "resnet32",
        sizes: [10_061_179_152, 291_905_487, 35_584_920, 539_510_784],
        results: &[
            (Heuristic::Classes, ["1.0131", "1.0248", "1.0463", "1.0737", "1.1068", "1.1404", "1.1786", "1.3322"]),
            (Heuristic::Exact, ["1.0131", "1.0248", "1.0463", "1.0737", "1.1068", "1.1404", "1.1782", "1.3711"]),
            (Heuristic::Local, ["1.0131", "1.0413", "1.0675", "1.1333", "1.1965", ">2", "", ""]),
        ],
    },
    Golden {
        log: "unet",
        sizes: [8_415_764_640, 435_278_292, 93_386_276, 1_943_076_864],
        results: &[
            (Heuristic::Classes, ["1.0331", "1.0577", "1.0846", "1.1489", "1.1587", "OOM", "", ""]),
            (Heuristic::Local, ["1.0279", "1.0561", "1.0910", "1.1370", "1.8469", "OOM", "", ""]),
        ],
    },
    Golden {
        log: "inceptionv4",
        sizes: [11_245_348_984, 636_429_561, 239_640_948, 1_062_127_360],
        results: &[(Heuristic::Classes, ["1.0079", "1.0244", "1.0442", "1.0662", "1.0919", "1.1380", "1.2435", "OOM"])],
    },
];

/// Logs that the golden table has sizes for, but of which no copy is at hand.
pub const DTR_WITHOUT_LOG: &[&str] = &["transformer", "densenet121"];

/// A published result of G10.
#[derive(Debug)]
pub struct G10 {
    /// Name of the workload's file.
    pub name: &'static str,
    /// Ideal time over G10's.
    pub ratio: f64,
    /// G10's time, s.
    pub iteration_s: f64,
}

/// G10 with 40 GiB of device memory, 128 GiB of host memory, SSD 3.2 GB/s, PCIe 15.754 GB/s.
pub const G10_RESULTS: &[G10] = &[
    G10 { name: "BERT_Base_b256", ratio: 0.997, iteration_s: 7.311 },
    G10 { name: "VIT_b1280", ratio: 0.671, iteration_s: 5.540 },
];

/// How far a ratio to ideal may be from G10's.
pub const G10_TOLERANCE: f64 = 0.05;
