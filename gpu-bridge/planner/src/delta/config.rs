//! What DELTA may use, and which of its parts are on.

/// Host memory that takes what leaves the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backing {
    /// Bytes it may hold.
    pub bytes: u64,
    /// Bytes/s toward it.
    pub write: f64,
    /// Bytes/s from it.
    pub read: f64,
    /// Added to each transfer, ns.
    pub latency_ns: u64,
}

impl Backing {
    /// Memory that keeps up with a link of `rate` bytes/s, without end, 10 µs for the launch of a copy.
    pub fn behind_link(rate: f64) -> Self {
        Backing { bytes: u64::MAX, write: rate, read: rate, latency_ns: 10_000 }
    }

    /// Time for bytes to leave, ns.
    pub fn out_ns(&self, bytes: u64) -> u64 {
        self.latency_ns + (bytes as f64 * 1e9 / self.write) as u64
    }

    /// Time for bytes to return, ns.
    pub fn in_ns(&self, bytes: u64) -> u64 {
        self.latency_ns + (bytes as f64 * 1e9 / self.read) as u64
    }
}

/// The parts of DELTA, each of which can be left out to see what it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Release by recomputation.
    pub recompute: bool,
    /// Release by swapping.
    pub swap: bool,
    /// Choose by the covering knapsack; otherwise the cheapest tensor by itself, again and again.
    pub knapsack: bool,
    /// Copy out ahead of need, so that a later release costs nothing.
    pub offload_ahead: bool,
    /// Bring swapped tensors back ahead of their use.
    pub reload_ahead: bool,
    /// Recompute ahead of use while the device waits for a transfer.
    pub recompute_ahead: bool,
}

impl Switches {
    /// Everything on.
    pub const ALL: Switches = Switches {
        recompute: true,
        swap: true,
        knapsack: true,
        offload_ahead: true,
        reload_ahead: true,
        recompute_ahead: true,
    };
}

/// Host memory and switches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// DRAM behind the device's link.
    pub dram: Backing,
    /// CXL memory behind the same link, if there is any.
    pub cxl: Option<Backing>,
    /// Which parts are on.
    pub switches: Switches,
    /// Size of the knapsack scheme's subsets; see [`crate::knapsack::cover`].
    pub knapsack_k: usize,
    /// Operators to look ahead when bringing tensors back.
    pub window: usize,
}

impl Config {
    /// Everything on, DRAM without end behind a link of `rate` bytes/s.
    pub fn with_link(rate: f64) -> Self {
        Config { dram: Backing::behind_link(rate), cxl: None, switches: Switches::ALL, knapsack_k: 1, window: 64 }
    }
}
