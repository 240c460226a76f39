//! The ledger's counters as users read them; fields are named after the metrics.

use std::fmt;

use serde::Serialize;

use crate::{
    migrate::Cause,
    policy::Reason,
    units::{NodeId, Pid, show_bytes},
};

/// Pages that moved one way for one reason (`tensortier_migrated_pages_total`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Migrated {
    /// The process.
    pub pid: Pid,
    /// Where they were.
    pub from: NodeId,
    /// Where they went.
    pub to: NodeId,
    /// Why.
    pub reason: Reason,
    /// Base pages.
    pub pages: u64,
    /// The same in bytes.
    pub bytes: u64,
}

/// Pages that did not move (`tensortier_migrate_failed_pages_total`); a page tried twice counts twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// The process.
    pub pid: Pid,
    /// Why not.
    pub cause: Cause,
    /// Base pages.
    pub pages: u64,
}

/// Memory that is called unmovable (`tensortier_unmovable_bytes`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Unmovable {
    /// The process.
    pub pid: Pid,
    /// The node it stays on.
    pub node: NodeId,
    /// Bytes.
    pub bytes: u64,
    /// Ranges.
    pub ranges: u64,
}

/// Lengths of `move_pages` calls in seconds (`tensortier_migrate_call_seconds`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CallTimes {
    /// Calls made.
    pub calls: u64,
    /// All of them together.
    pub sum: f64,
    /// Half of the calls were shorter.
    pub p50: f64,
    /// Nine in ten were shorter.
    pub p90: f64,
    /// 99 in a hundred were shorter.
    pub p99: f64,
    /// The longest.
    pub longest: f64,
}

/// Everything the ledger counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LedgerSummary {
    /// Moves tried.
    pub moves: u64,
    /// Pages moved, by process, way and reason.
    pub migrated_pages: Vec<Migrated>,
    /// Pages not moved, by process and cause.
    pub migrate_failed_pages: Vec<Failed>,
    /// Unmovable memory, by process and node.
    pub unmovable_bytes: Vec<Unmovable>,
    /// Pages that went back soon after they came (`tensortier_pingpong_pages_total`).
    pub pingpong_pages: u64,
    /// How long the calls took.
    pub migrate_call_seconds: CallTimes,
    /// The longest that a thread of a job can have waited for a page that was moving.
    pub longest_stall_seconds: f64,
    /// Pages moved although a single one of them takes longer than the stall cap.
    pub over_cap_pages: u64,
    /// Time moves waited for tokens (`tensortier_throttled_seconds_total{cause="tokens"}`).
    pub throttled_seconds: f64,
}

impl LedgerSummary {
    /// Bytes moved for `reason`, all processes together.
    pub fn moved_bytes(&self, reason: Reason) -> u64 {
        self.migrated_pages.iter().filter(|row| row.reason == reason).map(|row| row.bytes).sum()
    }
}

impl fmt::Display for LedgerSummary {
    /// Unmovable memory first: it bounds what all the rest can do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Unmovable { pid, node, bytes, ranges } in &self.unmovable_bytes {
            writeln!(f, "unmovable: {} on node {node} in {ranges} ranges of pid {pid}", show_bytes(*bytes))?;
        }
        for Migrated { pid, from, to, reason, bytes, .. } in &self.migrated_pages {
            writeln!(f, "moved: {} from node {from} to node {to}, pid {pid}: {reason}", show_bytes(*bytes))?;
        }
        for Failed { pid, cause, pages } in &self.migrate_failed_pages {
            writeln!(f, "not moved: {pages} pages, pid {pid}: {cause:?}")?;
        }
        let calls = &self.migrate_call_seconds;
        writeln!(
            f,
            "{} moves, {} calls, p99 {:.1} ms, longest stall {:.1} ms, {:.1} s throttled, {} pages went back soon",
            self.moves,
            calls.calls,
            calls.p99 * 1e3,
            self.longest_stall_seconds * 1e3,
            self.throttled_seconds,
            self.pingpong_pages
        )
    }
}
