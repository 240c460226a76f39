//! How much of a job's traffic the top tier should serve, where that need not be all that fits.
//!
//! **Traffic** (ours). A look that found a page used stands for one pass over it or more since the look before, with
//! accesses spread evenly (as in [`tensortier_replay::workload::expected_heat`]):
//!
//! ```text
//! traffic = bytes · looks a second · -ln(1 - min(heat, 0.99))
//! ```
//!
//! It is a guess from accessed bits: more than 4.6 passes between two looks do not show.
//!
//! **Target.** With the rates `r` and latencies `l` of the tiers (the firmware's HMAT, or a model of them) and `T` all
//! the traffic, the top tier serves the share
//!
//! ```text
//! bandwidth   r_top / (r_top + r_lower)                                both tiers end together: weighted interleave
//! balance     p with l_top / (1 - p T / r_top) = l_lower / (1 - (1 - p) T / r_lower)       or 1 where DRAM is faster still
//! auto        as bandwidth where the top tier is asked for half of its rate or more, else 1
//! ```
//!
//! `balance` is Colloid's principle (Vuppalapati and Agarwal, SOSP '24, section 3), of latencies that a model of a queue
//! gives and not the processor's counters: no search by steps is needed then. A target of less than 1 holds promotions
//! back; where the top tier serves a tenth more than it should, blocks with the most traffic a byte leave.

use crate::hotness::{HeatView, Region};

use super::{Node, Tiers};

/// The most of a rate that is taken to be in use, so that latencies stay finite.
const FULL: f64 = 0.9;
/// Share of its rate from which the top tier counts as loaded.
const LOADED: f64 = 0.5;
/// Excess over the target that is left alone, as a share of it.
const LITTLE: f64 = 0.1;
/// Heat that says no more than "very often".
const MANY: f32 = 0.99;

/// What decides on the share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// The top tier serves all that fits.
    #[default]
    None,
    /// By bandwidth, where the top tier is loaded.
    Loaded,
    /// By bandwidth.
    Bandwidth,
    /// By latency.
    Latency,
}

/// What the tiers can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Of the top tier.
    pub top: Speed,
    /// Of the lower ones together.
    pub lower: Speed,
    /// Looks of the monitor at each region a second.
    pub looks_per_s: f64,
}

/// One tier's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Bytes read a second.
    pub bytes_per_s: f64,
    /// Nanoseconds of one read, nothing else being under way.
    pub latency_ns: f64,
}

/// The traffic of the top tier while a plan grows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Balance {
    looks_per_s: f64,
    /// Bytes a second that the top tier serves, and those that it should serve at the most.
    serves: f64,
    most: f64,
}

impl Balance {
    /// `None` where the top tier may serve all.
    pub fn new(spread: Spread, view: &HeatView, tiers: &Tiers) -> Option<Self> {
        let speeds = tiers.speeds.filter(|_| spread != Spread::None)?;
        let on = |nodes: &[Node]| -> f64 {
            let of = |region: &Region| nodes.iter().filter_map(|node| region.on.get(&node.id)).sum::<u64>();
            view.regions.iter().map(|region| traffic(region, of(region), speeds.looks_per_s)).sum()
        };
        let (serves, rest) = (on(&tiers.top), on(&tiers.lower));
        let share = speeds.share(spread, serves, rest);
        (share < 1.0).then_some(Self { looks_per_s: speeds.looks_per_s, serves, most: share * (serves + rest) })
    }

    /// Whether the top tier serves so much more than it should that something has to leave.
    pub fn is_over(&self) -> bool {
        self.serves > self.most * (1.0 + LITTLE)
    }

    /// Whether the top tier should serve this too.
    pub fn has_room(&self, region: &Region, bytes: u64) -> bool {
        self.serves + self.traffic(region, bytes) <= self.most
    }

    /// Whether it is no more than there is too much.
    pub fn may_leave(&self, region: &Region, bytes: u64) -> bool {
        self.serves - self.traffic(region, bytes) >= self.most
    }

    pub fn comes(&mut self, region: &Region, bytes: u64) {
        self.serves += self.traffic(region, bytes);
    }

    pub fn leaves(&mut self, region: &Region, bytes: u64) {
        self.serves -= self.traffic(region, bytes);
    }

    fn traffic(&self, region: &Region, bytes: u64) -> f64 {
        traffic(region, bytes, self.looks_per_s)
    }
}

impl Speeds {
    /// The share of the traffic that the top tier should serve.
    fn share(&self, spread: Spread, serves: f64, rest: f64) -> f64 {
        let (top, lower, all) = (self.top, self.lower, serves + rest);
        let balanced = top.bytes_per_s / (top.bytes_per_s + lower.bytes_per_s);
        match spread {
            Spread::None => 1.0,
            Spread::Loaded if serves < LOADED * top.bytes_per_s => 1.0,
            Spread::Loaded | Spread::Bandwidth => balanced,
            Spread::Latency => {
                let faster = |share: f64| top.loaded_ns(share * all) < lower.loaded_ns((1.0 - share) * all);
                if faster(1.0) {
                    return 1.0;
                }
                // Latencies rise with the load, so there is one share where they meet.
                let (mut low, mut high) = (0.0, 1.0);
                for _ in 0..30 {
                    let middle = (low + high) / 2.0;
                    if faster(middle) { low = middle } else { high = middle }
                }
                low
            }
        }
    }
}

impl Speed {
    /// Nanoseconds of one read beside so many bytes a second: the mean of an M/M/1 queue.
    fn loaded_ns(&self, bytes_per_s: f64) -> f64 {
        self.latency_ns / (1.0 - (bytes_per_s / self.bytes_per_s).min(FULL))
    }
}

/// Bytes a second of so many bytes of a region.
fn traffic(region: &Region, bytes: u64, looks_per_s: f64) -> f64 {
    // What nobody has looked at yet is used as its neighbours are.
    let heat = if region.seen == 0 { region.heat.max(region.outlook.used) } else { region.heat };
    bytes as f64 * looks_per_s * -f64::from(1.0 - heat.clamp(0.0, MANY)).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: f64 = 1e9;

    fn speeds() -> Speeds {
        let tier = |gigabytes: f64, latency_ns| Speed { bytes_per_s: gigabytes * GB, latency_ns };
        Speeds { top: tier(180.0, 100.0), lower: tier(20.0, 250.0), looks_per_s: 20.0 }
    }

    #[test]
    fn bandwidth_is_split_as_the_tiers_deliver_and_by_auto_only_under_load() {
        assert_eq!(speeds().share(Spread::Bandwidth, 1.0 * GB, 0.0), 0.9);
        assert_eq!(speeds().share(Spread::Loaded, 89.0 * GB, 30.0 * GB), 1.0);
        assert_eq!(speeds().share(Spread::Loaded, 91.0 * GB, 0.0), 0.9);
        assert_eq!(speeds().share(Spread::None, 999.0 * GB, 0.0), 1.0);
    }

    #[test]
    fn balance_leaves_all_on_dram_until_its_loaded_latency_is_that_of_the_other_tier() {
        let share = |gigabytes: f64| speeds().share(Spread::Latency, gigabytes * GB, 0.0);
        // 100 / (1 - u) reaches 250 at a load of 0.6, 108 GB/s.
        assert_eq!(share(107.0), 1.0);
        let loaded = share(150.0);
        let (top, lower) = (speeds().top.loaded_ns(loaded * 150e9), speeds().lower.loaded_ns((1.0 - loaded) * 150e9));
        assert!((top / lower - 1.0).abs() < 1e-3 && loaded > 0.7 && loaded < 1.0, "{loaded}: {top} and {lower}");
    }
}
