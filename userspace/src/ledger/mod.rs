//! Each move and what came of it.
//!
//! The ledger counts what users see (the `tensortier_*` counters of migration), learns which ranges cannot move, and
//! tells the policy what moved lately. That last word, [`Recent`], is the only way back in the flow.

mod summary;
mod unmovable;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
pub use summary::{CallTimes, Failed, LedgerSummary, Migrated, Unmovable};
use unmovable::Stuck;

use crate::{
    migrate::{Cause, Outcome},
    policy::{LastMove, Reason, Recent},
    units::{BLOCK, NodeId, PAGE, Pid, Range},
};

/// What the histogram of calls reaches to: ten minutes in microseconds. Longer calls count as that.
const LONGEST_CALL_US: u64 = 600_000_000;

/// When the ledger calls memory unmovable and a return a ping-pong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Tries after which a stuck range is called unmovable.
    pub tries: u32,
    /// Time before such a range is tried again; doubled by each further try.
    pub retry: Duration,
    /// The longest that it grows to.
    pub retry_limit: Duration,
    /// Time within which a return counts as a ping-pong, and is held back.
    pub pingpong_window: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            tries: 3,
            retry: Duration::from_secs(10),
            retry_limit: Duration::from_secs(640),
            pingpong_window: Recent::default().window,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    pid: Pid,
    from: NodeId,
    to: NodeId,
    reason: Reason,
}

/// All moves since it was made.
#[derive(Debug)]
pub struct Ledger {
    /// Pages moved.
    migrated: BTreeMap<Way, u64>,
    /// Pages that were not.
    failed: BTreeMap<(Pid, Cause), u64>,
    stuck: Stuck,
    recent: Recent,
    /// Pages that went back within the ping-pong window of coming.
    pingpong_pages: u64,
    moves: u64,
    calls: u64,
    /// Lengths of `move_pages` calls in microseconds.
    call_us: Histogram<u64>,
    longest_call: Duration,
    longest_stall: Duration,
    over_cap: u64,
    in_calls: Duration,
    throttled: Duration,
    swept: Option<Instant>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new(Rules::default())
    }
}

impl Ledger {
    /// An empty ledger.
    pub fn new(rules: Rules) -> Self {
        let call_us = Histogram::new_with_bounds(1, LONGEST_CALL_US, 2);
        let call_us = call_us.unwrap_or_else(|_| unreachable!("the bounds are constants in the allowed range"));
        Self {
            migrated: BTreeMap::new(),
            failed: BTreeMap::new(),
            stuck: Stuck::new(rules),
            recent: Recent { window: rules.pingpong_window, ..Recent::default() },
            pingpong_pages: 0,
            moves: 0,
            calls: 0,
            call_us,
            longest_call: Duration::ZERO,
            longest_stall: Duration::ZERO,
            over_cap: 0,
            in_calls: Duration::ZERO,
            throttled: Duration::ZERO,
            swept: None,
        }
    }

    /// Takes in what came of one move.
    pub fn record(&mut self, outcome: &Outcome, now: Instant) {
        let asked = &outcome.asked;
        self.moves += 1;
        if outcome.moved > 0 {
            let way = Way { pid: asked.pid, from: asked.from, to: asked.to, reason: asked.reason };
            *self.migrated.entry(way).or_default() += outcome.moved;
            self.remember(outcome, now);
        }
        for (cause, pages) in &outcome.failed {
            *self.failed.entry((asked.pid, *cause)).or_default() += pages;
        }
        self.stuck.record(outcome, now);
        self.time_calls(outcome);
        self.longest_stall = self.longest_stall.max(outcome.longest_stall);
        self.over_cap += outcome.over_cap;
        self.throttled += outcome.throttled;
        self.sweep(now);
        if outcome.failed.contains_key(&Cause::ProcessGone) {
            self.forget(asked.pid);
        }
    }

    /// Drops what is known of a process that has ended; its totals stay.
    pub fn forget(&mut self, pid: Pid) {
        self.stuck.forget(pid);
        self.recent.last.retain(|(of, _), _| *of != pid);
    }

    /// Pages moved for the reasons that `of` chooses.
    pub fn moved_pages(&self, of: impl Fn(Reason) -> bool) -> u64 {
        self.migrated.iter().filter(|(way, _)| of(way.reason)).map(|(_, pages)| pages).sum()
    }

    /// What moved lately, for the policy.
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Bytes of `range` that are not to be tried now.
    pub fn unmovable_bytes(&self, pid: Pid, range: Range, now: Instant) -> u64 {
        self.stuck.bytes(pid, range, now)
    }

    /// All counters.
    pub fn summary(&self) -> LedgerSummary {
        let migrated = self.migrated.iter().map(|(way, pages)| {
            let Way { pid, from, to, reason } = *way;
            Migrated { pid, from, to, reason, pages: *pages, bytes: pages * PAGE }
        });
        let failed = self.failed.iter().map(|((pid, cause), pages)| Failed { pid: *pid, cause: *cause, pages: *pages });
        // The quantiles of nothing would take a walk over all buckets.
        let within = |quantile| if self.calls == 0 { 0 } else { self.call_us.value_at_quantile(quantile) };
        let at = |quantile| Duration::from_micros(within(quantile)).as_secs_f64();
        LedgerSummary {
            moves: self.moves,
            migrated_pages: migrated.collect(),
            migrate_failed_pages: failed.collect(),
            unmovable_bytes: self.stuck.by_node(),
            pingpong_pages: self.pingpong_pages,
            migrate_call_seconds: CallTimes {
                calls: self.calls,
                sum: self.in_calls.as_secs_f64(),
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                longest: self.longest_call.as_secs_f64(),
            },
            longest_stall_seconds: self.longest_stall.as_secs_f64(),
            over_cap_pages: self.over_cap,
            throttled_seconds: self.throttled.as_secs_f64(),
        }
    }

    /// Calls that took at most so many seconds, for each bound.
    pub fn calls_within(&self, bounds: &[f64]) -> Vec<u64> {
        bounds.iter().map(|bound| self.call_us.count_between(0, (bound * 1e6) as u64)).collect()
    }

    /// Notes the move of each block. The outcome has one count for the whole range; it is spread evenly.
    fn remember(&mut self, outcome: &Outcome, now: Instant) {
        let asked = &outcome.asked;
        let mut back_bytes = 0u64;
        for block in asked.range.blocks() {
            let key = (asked.pid, block);
            let last = self.recent.last.get(&key);
            let back = last.filter(|last| last.from == asked.to && last.to == asked.from);
            let since = |last: &LastMove| now.saturating_duration_since(last.at);
            if back.is_some_and(|last| since(last) < self.recent.window) {
                let whole = Range::new(block * BLOCK, (block + 1).saturating_mul(BLOCK));
                back_bytes += asked.range.intersect(&whole).map_or(0, |part| part.bytes());
            }
            let offences = match (last, back) {
                (_, Some(last)) if since(last) < self.recent.soon(last.offences) => last.offences + 1,
                (Some(last), _) if since(last) < self.recent.forgiven(last.offences) => last.offences,
                _ => 0,
            };
            let heat = asked.heat;
            self.recent.last.insert(key, LastMove { at: now, from: asked.from, to: asked.to, heat, offences });
        }
        let share = back_bytes as f64 / asked.range.bytes().max(1) as f64;
        self.pingpong_pages += (outcome.moved as f64 * share).round() as u64;
    }

    /// An outcome has the number, the sum and the longest of its calls: the others count as equally long.
    fn time_calls(&mut self, outcome: &Outcome) {
        let Outcome { calls, longest_call, in_calls, .. } = *outcome;
        self.longest_call = self.longest_call.max(longest_call);
        self.in_calls += in_calls;
        self.calls += u64::from(calls);
        if calls > 0 {
            self.call_us.saturating_record(micros(longest_call));
        }
        if calls > 1 {
            let each = in_calls.saturating_sub(longest_call) / (calls - 1);
            self.call_us.saturating_record_n(micros(each), u64::from(calls - 1));
        }
    }

    fn sweep(&mut self, now: Instant) {
        let due = self.swept.is_none_or(|swept| now.saturating_duration_since(swept) > self.recent.window);
        if due {
            self.swept = Some(now);
            self.recent.sweep(now);
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
