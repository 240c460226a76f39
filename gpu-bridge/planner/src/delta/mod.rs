//! DELTA: choosing for each tensor whether to recompute it or to swap it, and to where.
//!
//! DELTA (ACM TACO 21(4), 2024; arXiv 2203.15980) extends DTR: a *filter* names the tensors to release and a *director*
//! says how each is released. Its abstract speaks of a 0/1 knapsack with a polynomial heuristic and of bidirectional
//! prefetching; its code was published only in an earlier form, without either. So there are two policies for the DTR
//! runtime ([`crate::dtr::Runtime`]):
//!
//! - [`Delta`], the system as intended, built after the abstract: candidates weighed by what releasing them costs under
//!   overlap, a covering knapsack over them, transfers and recomputation ahead of need. What the abstract leaves open is
//!   ours and marked so.
//! - [`AsReleased`], what the published code does, with its mistakes, for comparison. Reconstructed from reading it.
//!
//! [`plan`](fn@plan) makes the same choices on a graph, ahead of time.
//!
//! Host memory is DRAM and CXL; [`Backing`] gives each its size and rate.

mod ahead;
mod config;
mod graph;
mod policy;
mod price;
mod released;
mod uses;

pub use config::{Backing, Config, Switches};
pub use graph::plan;
pub use policy::{Counts, Delta};
pub use released::AsReleased;

#[cfg(test)]
mod tests;
