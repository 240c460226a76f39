//! Every planner of graphs under one name each: what the command line and the benches offer.

#[cfg(test)]
mod tests;

use std::{fmt, ops::ControlFlow, str::FromStr};

use tensortier_model::Machine;

use crate::{
    delta::{self, Switches},
    g10,
    graph::Graph,
    ours::Ours,
    plan::Plan,
    sim::{
        SimError,
        demand::{Demand, Policy, realize},
    },
    swapadvisor::{self, Infeasible, Mode, Progress, Search},
};

/// A planner of graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planner {
    /// On demand, used longest ago leaves first.
    OdswapLru,
    /// On demand with the previous step's record, used again last leaves first.
    OdswapNaive,
    /// On demand with the record, nearest sufficient size.
    OdswapSize,
    /// Belady over all memory in the traced order, copies in hoisted.
    Belady,
    /// DELTA: a knapsack of what is recomputed and what is swapped.
    Delta,
    /// G10: idle intervals by benefit, the rest at run time.
    G10,
    /// SwapAdvisor: search over order, classes and counts.
    SwapAdvisor,
    /// SwapAdvisor's search over the order alone, Belady over all memory.
    SwapAdvisorGlobal,
    /// Ours: order, recomputation, tiers and copies searched together.
    Ours,
}

/// Why a planner has no plan.
#[derive(Debug, thiserror::Error)]
pub enum NoPlan {
    /// Nothing fits.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
    /// On-demand swapping got stuck.
    #[error(transparent)]
    Demand(#[from] SimError),
}

impl Planner {
    /// All of them, baselines first.
    pub const ALL: [Self; 9] = [
        Self::OdswapLru,
        Self::OdswapNaive,
        Self::OdswapSize,
        Self::Belady,
        Self::Delta,
        Self::G10,
        Self::SwapAdvisorGlobal,
        Self::SwapAdvisor,
        Self::Ours,
    ];

    /// Its name on the command line and in figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::OdswapLru => "odswap-lru",
            Self::OdswapNaive => "odswap-naive-history",
            Self::OdswapSize => "odswap-size-history",
            Self::Belady => "belady",
            Self::Delta => "delta",
            Self::G10 => "g10",
            Self::SwapAdvisor => "swapadvisor",
            Self::SwapAdvisorGlobal => "swapadvisor-global",
            Self::Ours => "ours",
        }
    }

    /// Whether its plans run operators a second time; the bounds do not hold for those.
    pub fn recomputes(self) -> bool {
        matches!(self, Self::Delta | Self::Ours)
    }

    /// Whether it keeps the traced order.
    pub fn keeps_order(self) -> bool {
        !matches!(self, Self::SwapAdvisor | Self::SwapAdvisorGlobal | Self::Ours)
    }

    /// Plans `graph` on `machine`. Searches run with `search`'s seed and budget, whatever its
    /// mode, and call `progress` after each generation.
    ///
    /// # Errors
    /// [`NoPlan`] where memory or the tiers are too small for this planner.
    pub fn plan(
        self,
        graph: &Graph,
        machine: &Machine,
        search: Search,
        progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Plan, NoPlan> {
        if self == Self::Ours {
            let Search { seed, evaluations, deadline, .. } = search;
            return Ok(Ours { seed, evaluations, deadline }.run(graph, machine, progress)?.plan);
        }
        let demand = |policy| {
            let base = Plan::unlimited(graph, &graph.traced_order());
            realize(graph, machine, &base, Demand::odswap(policy))
        };
        let searched = |mode| Search { mode, ..search }.run(graph, machine, progress).map(|found| found.plan);
        let mut plan = match self {
            Self::OdswapLru => demand(Policy::Lru)?,
            Self::OdswapNaive => demand(Policy::NaiveHistory)?,
            Self::OdswapSize => demand(Policy::SizeHistory)?,
            Self::Belady => swapadvisor::global(graph, machine, &graph.traced_order())?,
            Self::Delta => delta::plan(graph, machine, Switches::ALL)?,
            Self::G10 => g10::plan_graph(graph, machine)?,
            Self::SwapAdvisor => searched(Mode::Classes)?,
            Self::SwapAdvisorGlobal | Self::Ours => searched(Mode::Global)?,
        };
        plan.planner = self.name().into();
        Ok(plan)
    }
}

impl fmt::Display for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Planner {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|planner| planner.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no planner `{name}`; there are: {names}")
        })
    }
}
