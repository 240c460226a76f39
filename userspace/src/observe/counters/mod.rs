//! Counters of everything that migrates memory on this host, side by side: the agent, other programs, NUMA balancing,
//! reclaim, DAMON, and the kernel for reasons of its own.
//!
//! Four places know them, and each knows something that the others do not: our eBPF program sums pages by reason,
//! `/proc/vmstat` and each node's `vmstat` have the kernel's own totals, tracepoints count events, and CXL devices may
//! count what reaches them. A counter that this host lacks is named with the reason, and never read as 0.

mod catalogue;
mod pmu;
mod reasons;
mod tracepoints;
mod vmstat;

use std::{collections::BTreeMap, path::Path};

pub use catalogue::{Entry, Kind, catalogue};
pub use pmu::{Pmu, discover};
use serde::Serialize;

use self::{pmu::PmuCounters, reasons::Reasons, tracepoints::Tracepoints};
use crate::units::NodeId;

/// Whose work a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    /// The tensortier agent.
    Agent,
    /// Other programs that call `move_pages`, `mbind` and their like.
    Programs,
    /// NUMA balancing (`kernel.numa_balancing`), tier promotion included.
    NumaBalancing,
    /// Demotion by reclaim.
    Demotion,
    /// DAMON and its schemes.
    Damon,
    /// The kernel for other reasons, such as compaction, and sums over all reasons.
    Kernel,
    /// A CXL device.
    Cxl,
}

impl Whose {
    /// As JSON has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Programs => "programs",
            Self::NumaBalancing => "numa-balancing",
            Self::Demotion => "demotion",
            Self::Damon => "damon",
            Self::Kernel => "kernel",
            Self::Cxl => "cxl",
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Pages of 4 KiB.
    Pages,
    /// Times that something happened.
    Events,
}

/// One counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Counter {
    /// Whose work.
    pub whose: Whose,
    /// Its name, as perf or the kernel writes it.
    pub event: String,
    /// The node that it is of, where it is of one.
    pub node: Option<NodeId>,
    /// What it counts.
    pub unit: Unit,
    /// Whether its being 0 goes without saying.
    #[serde(skip)]
    pub detail: bool,
}

/// A counter that is not to be had here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Its name.
    pub event: String,
    /// Why, and what would mend it.
    pub why: String,
}

/// Values by counter.
pub type Values = BTreeMap<Counter, u64>;

/// All counters that can be read here.
pub struct Counters<'a> {
    root: &'a Path,
    reasons: Option<Reasons>,
    tracepoints: Tracepoints,
    pmus: PmuCounters,
    missing: Vec<Missing>,
}

impl<'a> Counters<'a> {
    /// Opens what can be opened. Under a root other than `/`, a recorded host, files alone are read.
    pub fn open(root: &'a Path) -> Self {
        let mut missing = Vec::new();
        let live = root == Path::new("/");
        let reasons = if live { Reasons::open(&mut missing) } else { None };
        let tracepoints = if live { Tracepoints::open(&mut missing) } else { Tracepoints::default() };
        let pmus = if live { PmuCounters::open(&discover(root), &mut missing) } else { PmuCounters::default() };
        missing.extend(vmstat::missing(root));
        Self { root, reasons, tracepoints, pmus, missing }
    }

    /// What cannot be read here, and why.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// All values, counted from arbitrary beginnings: differences mean something.
    pub fn read(&mut self) -> Values {
        let mut values = vmstat::read(self.root);
        values.extend(self.reasons.iter().flat_map(Reasons::read));
        values.extend(self.tracepoints.read());
        values.extend(self.pmus.read());
        values
    }
}

/// What was counted between two readings. A counter that only the later one has began at 0.
pub fn since(before: &Values, now: &Values) -> Values {
    let change = |(counter, value): (&Counter, &u64)| {
        (counter.clone(), value.wrapping_sub(before.get(counter).copied().unwrap_or(0)))
    };
    now.iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_of_the_same_counter_and_wraps() {
        let counter = |event: &str, node| Counter {
            whose: Whose::Kernel,
            event: event.to_owned(),
            node,
            unit: Unit::Pages,
            detail: false,
        };
        let before = Values::from([(counter("a", None), u64::MAX), (counter("b", Some(NodeId(2))), 5)]);
        let now = Values::from([
            (counter("a", None), 1),
            (counter("b", Some(NodeId(0))), 9),
            (counter("b", Some(NodeId(2))), 7),
        ]);
        let changes: Vec<u64> = since(&before, &now).into_values().collect();
        assert_eq!(changes, [2, 9, 2]);
    }

    #[test]
    fn words_are_those_of_json() {
        for whose in [Whose::Agent, Whose::NumaBalancing, Whose::Cxl] {
            assert_eq!(serde_json::json!(whose), whose.word());
        }
    }
}
