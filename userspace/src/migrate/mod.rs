//! Moving pages: the executor, which carries out a plan with `move_pages(2)` ([`crate::sys`]), and [`damos`], which has
//! DAMON do it. A job has one of the two.

mod bucket;
pub mod damos;
pub mod drain;
mod executor;
mod group;
mod kernel;
mod pace;
mod settle;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use executor::{Executor, Params};
pub use kernel::{Kernel, Pages};

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{policy::Move, units::Range};

/// Why pages of a move did not go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Not populated, or freed meanwhile (ENOENT, EFAULT).
    Absent,
    /// Already on the wanted node.
    AlreadyThere,
    /// The kernel could not isolate or migrate it now: pinned, under I/O, or a tail page of a large folio (EBUSY).
    Busy,
    /// Mapped by several processes, and only MPOL_MF_MOVE was asked (EACCES).
    Shared,
    /// The target node had no free memory (ENOMEM).
    NoMemory,
    /// The process ended, or its pid now names another one (ESRCH).
    ProcessGone,
    /// The job's cpuset or the caller's rights forbid it (EACCES, EPERM, ENODEV).
    Forbidden,
    /// On neither node when its turn came: the plan was older than the page's place.
    Elsewhere,
    /// The executor was stopped before this page's turn.
    Untried,
}

/// What came of one [`Move`].
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The plan it belongs to.
    pub plan: u64,
    /// What was asked.
    pub asked: Move,
    /// Base pages that moved.
    pub moved: u64,
    /// Base pages that did not, by cause.
    pub failed: BTreeMap<Cause, u64>,
    /// Ranges that failed in a way that says they are pinned for now; the ledger decides after how many tries they are
    /// called unmovable.
    pub stuck: Vec<Range>,
    /// `move_pages` calls made.
    pub calls: u32,
    /// The longest single call.
    pub longest_call: Duration,
    /// The longest that a thread of the job can have waited for a page of this move: one segment of a call, with a margin,
    /// in CPU time; a host so loaded that the executor itself is kept waiting makes it longer.
    pub longest_stall: Duration,
    /// Base pages tried in a lane whose single pages (huge ones, as a rule) take longer than the cap. The kernel moves a page
    /// whole, so such a page is moved beyond the cap or not at all; it is moved, and counted here.
    pub over_cap: u64,
    /// Time spent in the calls.
    pub in_calls: Duration,
    /// Time spent waiting for tokens.
    pub throttled: Duration,
}

impl Outcome {
    fn new(plan: u64, asked: Move) -> Self {
        Self {
            plan,
            asked,
            moved: 0,
            failed: BTreeMap::new(),
            stuck: Vec::new(),
            calls: 0,
            longest_call: Duration::ZERO,
            longest_stall: Duration::ZERO,
            over_cap: 0,
            in_calls: Duration::ZERO,
            throttled: Duration::ZERO,
        }
    }

    fn fail(&mut self, cause: Cause, pages: u64) {
        if pages > 0 {
            *self.failed.entry(cause).or_default() += pages;
        }
    }
}
