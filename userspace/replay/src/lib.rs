//! Jobs as traces, tiering policies on a virtual clock, and how far each is from the best that could be.
//!
//! ```text
//! generate/ ─▶ Workload ─▶ sim::run(costs, capacity, policy) ─▶ Run: cost, time, bytes moved, share of DRAM
//!                 │                              ▲
//!                 └─▶ optimum/ ── Schedule ──────┘   any schedule is a policy as well
//! ```
//!
//! A [`workload::Workload`] is what a job does: regions with lifetimes, and how many lines of each are accessed in each
//! interval. [`sim::run`] drives a [`policy::Policy`] over it at the prices of [`cost::Costs`]. [`optimum`] finds the
//! schedule that costs least in hindsight. [`trace`] keeps a workload in a file, [`baseline`] has the rules of other
//! systems, [`step`] learns the training step from what is touched, [`policies`] has our own rules. Nothing here needs
//! root or a kernel feature.

pub mod baseline;
pub mod cost;
pub mod generate;
pub mod optimum;
pub mod policies;
pub mod policy;
pub mod score;
pub mod sim;
pub mod step;
pub mod trace;
pub mod workload;
