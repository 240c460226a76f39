//! Training that offloads, simulated: ZeRO-Infinity on drives against the bridge on DRAM and CXL cards.
//!
//! ```text
//! workload.rs   a transformer: matrices, bytes, times          host.rs   sockets, GPUs, cards, drives, their paths
//! infinity.rs   the baseline's plan, after DeepSpeed           tiered.rs the bridge's plan, and its ablations
//!          └────────── step.rs: a plan as tasks ── fluid.rs: tasks and fair shares of what they cross ──────────┘
//! ```
//!
//! *Published* (abstract only, see [crate]): on 8 GPUs with Type-3 cards up to 72.7 % more throughput, 62.9 % less latency
//! and 1.14 times larger models than ZeRO-Infinity on SSDs. Models, GPUs, cards, batch and what "latency" is are not
//! known, so this does not try to arrive at those figures: both systems run on one cost model whose figures are in data
//! files with their sources, and what comes out is shown beside them.

pub mod fluid;
pub mod host;
pub mod infinity;
pub mod step;
pub mod tiered;
pub mod workload;

#[cfg(test)]
mod tests;
