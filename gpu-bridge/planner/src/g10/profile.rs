//! The machine a plan is made for.

use super::load::Workload;

/// Which planner's rules, where G10's source has accidents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// As G10's source has it, so that its plans come out.
    G10,
    /// Ours: the far tier gets what is left of the link, benefits are what they say, and planning ends when no interval
    /// has one.
    Clean,
}

/// Capacities, rates and latencies of the planner's model.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Device memory, bytes.
    pub device_bytes: u64,
    /// Share of the device memory the planner fills.
    pub line: f64,
    /// Host memory for evicted tensors, bytes.
    pub host_bytes: u64,
    /// Link between device and host, bytes/µs each way. Far traffic passes over it too.
    pub link: f64,
    /// Far tier, bytes/µs each way.
    pub far: f64,
    /// Added to each far transfer, µs.
    pub far_latency_us: f64,
    /// Added to every transfer, µs: fault handling, or the launch of a copy.
    pub system_latency_us: f64,
    /// Slack in the time a round trip must fit into, as a share of one way (G10's delta).
    pub slack: f64,
    /// Time a result's memory is taken before the kernel that writes it, µs a byte.
    pub alloc_us_per_byte: f64,
    /// Whose rules.
    pub rules: Rules,
    /// Page size, bytes.
    pub page_bytes: u64,
    /// Pages a fault brings in at once.
    pub fault_batch: u64,
}

/// G10 counts a GB of its rates as 2^30 bytes in the planner.
const GIB_PER_US: f64 = (1u64 << 30) as f64 / 1e6;

impl Profile {
    /// G10's base configuration: A100 with 40 GiB, host memory over PCIe, an SSD.
    pub fn g10(w: &Workload) -> Self {
        Profile {
            device_bytes: w.hbm_bytes,
            line: 0.99,
            host_bytes: w.host_bytes,
            link: w.pcie_gbps * GIB_PER_US,
            far: w.ssd_gbps * GIB_PER_US,
            far_latency_us: w.ssd_latency_us,
            system_latency_us: w.system_latency_us,
            slack: 0.5,
            alloc_us_per_byte: 0.000_000_814,
            rules: Rules::G10,
            page_bytes: w.page_bytes,
            fault_batch: 50,
        }
    }

    /// [`Profile::g10`] as G10's simulator has it, which counts a GB of its rates as 10^9 bytes.
    pub fn g10_runtime(w: &Workload) -> Self {
        Profile { link: w.pcie_gbps * 1e3, far: w.ssd_gbps * 1e3, ..Profile::g10(w) }
    }

    /// The same machine with a CXL card in place of the SSD (ours): 22 GB/s and 1 µs for the card, 10 µs for the
    /// launch of a copy in place of G10's 45 µs for a fault. Far traffic still passes over the GPU's link.
    pub fn cxl(w: &Workload) -> Self {
        Profile { far: 22e3, far_latency_us: 1.0, system_latency_us: 10.0, rules: Rules::Clean, ..Profile::g10(w) }
    }

    /// Bytes up to which the planner fills the device.
    pub fn line_bytes(&self) -> u64 {
        (self.device_bytes as f64 * self.line) as u64
    }

    /// Time of one transfer to or from the far tier on an idle link, µs.
    pub fn far_us(&self, bytes: u64) -> f64 {
        self.far_latency_us + self.system_latency_us + bytes as f64 / self.far.min(self.link)
    }

    /// Time of one transfer to or from the host on an idle link, µs.
    pub fn host_us(&self, bytes: u64) -> f64 {
        self.system_latency_us + bytes as f64 / self.link
    }

    /// Idle time that a round trip of `one_way_us` each way needs, µs.
    pub fn round_trip_us(&self, one_way_us: f64) -> f64 {
        one_way_us * (2.0 + self.slack)
    }
}
