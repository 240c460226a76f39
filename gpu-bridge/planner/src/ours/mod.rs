//! Our planner: order, recomputation, tier, prefetch and memory decided together.
//!
//! ```text
//! genes (order, forgotten, extended, rank, tier, lead) ─► sequence ─► decode ─► Plan ─► sim ─► cost
//!    ▲                                                                                       │
//!    └───────────── search: by groups, then in the small, anytime ◄─────────────────────────┘
//! ```
//!
//! **Rule.** A storage is idle between its forward and its backward uses. For each, the genes say
//! whether it is *forgotten* there (its operator runs again, with whatever that needs), and how
//! soon it leaves otherwise. From the genes follows one sequence of runs, second ones included
//! (`sequence`), and on that sequence memory is what Belady makes of it: where room is wanted,
//! what is used again last leaves, in the bucket after its last use, and comes back at the latest
//! safe time or earlier (`decode`, `arrive`). So forgetting relieves the link and swapping
//! relieves the operators, and one number prices both: the step time of the exact simulator.
//!
//! **Cost.** `step + 0.002 · recomputed + 0.001 · copied` (times): among plans of equal step the
//! one with more slack is the better start.
//!
//! **Search.** Storages that one kind of operator makes in one size form a group; layers repeat,
//! and so do good decisions. (1) Groups by the time to make a byte, cheapest first, are forgotten
//! one after the other; the best prefix is kept. (2) Groups, halves and alternate members are
//! flipped as long as that helps. (3) Simulated annealing over small changes: one storage, a run
//! of a group, an exchange within a group, ranks, tiers, the lead of copies in, the place of an
//! operator in the order. It restarts from the best. No other planner's plan is looked at.
//!
//! All of it is ours; recomputation by need is DTR's and DELTA's, leaving at the last use and
//! returning at the latest safe time are SwapAdvisor's and G10's, Belady's choice is Belady's.

mod decode;
mod genes;
mod moves;
mod search;
mod sequence;
#[cfg(test)]
mod tests;

pub use search::{Found, Ours};
