//! The USDT probes of provider `tensortier`: what the agent decided and achieved, for perf and every other reader of
//! `.note.stapsdt`. A probe that nobody has armed is one `nop`.
//!
//! Each is called from where its fact arises, so this module stands beside the flow, as logging does. Names, order and
//! meaning of the arguments are kept for ever. Every probe has one function of its own that is never inlined: perf gives
//! each further call site a name of its own (`migrate_done_1`).

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde::Serialize;
use tensortier_replay::step::Step;

use crate::{
    migrate::Outcome,
    policy::{Move, Plan, Reason},
    units::{NodeId, PAGE, Pid},
};

/// The provider's name. perf calls its probes `sdt_tensortier:NAME`.
pub const PROVIDER: &str = "tensortier";

/// A probe, for those who list or arm it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// Its name.
    pub name: &'static str,
    /// When it fires.
    pub meaning: &'static str,
    /// Its arguments in order, all of them signed 64-bit integers; perf calls them `arg1` and so on.
    pub arguments: &'static [&'static str],
}

/// Every probe of this program.
pub const PROBES: [Probe; 9] = [
    Probe {
        name: "migrate_start",
        meaning: "a move begins",
        arguments: &["pid", "pages asked", "from node", "to node", "reason", "plan id"],
    },
    Probe {
        name: "migrate_done",
        meaning: "a move has ended; its duration is the time in system calls",
        arguments: &["pid", "pages moved", "pages failed", "from<<8 | to", "reason", "duration ns"],
    },
    Probe {
        name: "promote",
        meaning: "pages came to the top tier",
        arguments: &["pid", "pages moved", "from node", "to node", "heat in thousandths"],
    },
    Probe {
        name: "demote",
        meaning: "pages left the top tier",
        arguments: &["pid", "pages moved", "from node", "to node", "heat in thousandths"],
    },
    Probe {
        name: "plan_ready",
        meaning: "the policy decided on at least one move",
        arguments: &["plan id", "moves", "pages", "decide ns"],
    },
    Probe {
        name: "throttled",
        meaning: "the executor has waited for tokens, or (0 short) before it tries pages again",
        arguments: &["tokens short (pages)", "wait ns"],
    },
    Probe {
        name: "events_lost",
        meaning: "a source lost events since it was last asked",
        arguments: &["source id", "count"],
    },
    Probe {
        name: "step",
        meaning: "a step of a job began, by the period that was learned; the pid is the job's first",
        arguments: &["pid", "step number", "period ns", "confidence in thousandths"],
    },
    Probe {
        name: "gpu_transfer",
        meaning: "a job has copied to a GPU (direction 1) or from one (2); node -1: none known, 0 ns: not known",
        arguments: &["pid", "bytes", "node", "direction", "path", "duration ns"],
    },
];

/// The sources of `events_lost` by id, from 1; 0 is a source that has none.
pub const SOURCES: [&str; 9] =
    ["faults", "damon", "damon late", "job events", "migrations", "heat", "missed", "gpu", "hints"];

/// What is known of memory that was copied, by id, from 1, for `gpu_transfer` and the metrics: no registration of it was
/// seen (it is pageable, or was pinned before anybody looked); it was seen to be pinned; the GPU bridge said that it copied
/// it, by whatever way.
pub const PATHS: [&str; 3] = ["unregistered", "registered", "bridge"];

/// The reasons of `migrate_start` and `migrate_done` by id, from 1.
pub const REASONS: [&str; 6] = ["hot", "make_room", "headroom", "drain", "budget", "spread"];

/// How often each probe was reached, in the order of [`PROBES`].
static REACHED: [AtomicU64; PROBES.len()] = [const { AtomicU64::new(0) }; PROBES.len()];

/// How often each probe was reached since this program began, armed or not: what a reader's hits are held against.
pub fn reached() -> BTreeMap<String, u64> {
    let counts = REACHED.iter().map(|count| count.load(Ordering::Relaxed));
    PROBES.iter().map(|probe| probe.name.to_owned()).zip(counts).collect()
}

fn reach(name: &str) {
    if let Some(at) = PROBES.iter().position(|probe| probe.name == name) {
        REACHED[at].fetch_add(1, Ordering::Relaxed);
    }
}

/// A move begins.
#[inline(never)]
pub fn migrate_start(asked: &Move, plan: u64) {
    reach("migrate_start");
    let Move { pid, range, from, to, reason, .. } = asked;
    probe::probe!(tensortier, migrate_start, pid.0, range.pages(), from.0, to.0, *reason as u32, plan);
}

/// A move has ended: `migrate_done`, and `promote` or `demote` where pages moved for a reason that says which.
pub fn moved(outcome: &Outcome) {
    let heat = (outcome.asked.heat * 1000.0) as i64;
    migrate_done(outcome);
    match outcome.asked.reason {
        _ if outcome.moved == 0 => {}
        Reason::Hot => promote(outcome, heat),
        Reason::MakeRoom | Reason::Headroom | Reason::Budget | Reason::Spread => demote(outcome, heat),
        Reason::Drain => {}
    }
}

#[inline(never)]
fn migrate_done(outcome: &Outcome) {
    reach("migrate_done");
    let Move { pid, from, to, reason, .. } = &outcome.asked;
    let failed: u64 = outcome.failed.values().sum();
    let way = u64::from(from.0) << 8 | u64::from(to.0);
    probe::probe!(
        tensortier,
        migrate_done,
        pid.0,
        outcome.moved,
        failed,
        way,
        *reason as u32,
        outcome.in_calls.as_nanos()
    );
}

#[inline(never)]
fn promote(outcome: &Outcome, heat: i64) {
    reach("promote");
    let Move { pid, from, to, .. } = &outcome.asked;
    probe::probe!(tensortier, promote, pid.0, outcome.moved, from.0, to.0, heat);
}

#[inline(never)]
fn demote(outcome: &Outcome, heat: i64) {
    reach("demote");
    let Move { pid, from, to, .. } = &outcome.asked;
    probe::probe!(tensortier, demote, pid.0, outcome.moved, from.0, to.0, heat);
}

/// The policy decided on at least one move.
#[inline(never)]
pub fn plan_ready(plan: &Plan, decide: Duration) {
    reach("plan_ready");
    let pages = plan.moves.iter().map(|asked| asked.bytes).sum::<u64>() / PAGE;
    probe::probe!(tensortier, plan_ready, plan.id, plan.moves.len(), pages, decide.as_nanos());
}

/// The executor has waited, for want of so many bytes of tokens or for another reason.
#[inline(never)]
pub fn throttled(short_bytes: u64, wait: Duration) {
    reach("throttled");
    probe::probe!(tensortier, throttled, short_bytes.div_ceil(PAGE), wait.as_nanos());
}

#[inline(never)]
fn events_lost(source: usize, count: u64) {
    reach("events_lost");
    probe::probe!(tensortier, events_lost, source, count);
}

/// A step began, by the period that was learned. Counted from where that became known.
#[inline(never)]
pub fn step(pid: Pid, number: u64, step: Step) {
    reach("step");
    let confidence = (step.confidence * 1000.0) as i64;
    probe::probe!(tensortier, step, pid.0, number, step.period, confidence);
}

/// A job has copied; how long that took is not known. `node` has most of the host memory.
#[inline(never)]
pub fn gpu_transfer(pid: Pid, bytes: u64, node: Option<NodeId>, direction: u32, path: u32) {
    reach("gpu_transfer");
    let node = node.map_or(-1, |node| i64::from(node.0));
    probe::probe!(tensortier, gpu_transfer, pid.0, bytes, node, direction, path, 0);
}

/// Fires `events_lost` for what was lost since the last time.
#[derive(Debug, Default)]
pub struct EventsLost(BTreeMap<String, u64>);

impl EventsLost {
    /// `totals`: what each source lost so far.
    pub fn tell(&mut self, totals: BTreeMap<String, u64>) {
        for (source, count) in self.news(totals) {
            events_lost(source, count);
        }
    }

    /// Source and count of what is new; counters never fall, and one that does has begun anew.
    fn news(&mut self, totals: BTreeMap<String, u64>) -> Vec<(usize, u64)> {
        let before = std::mem::replace(&mut self.0, totals);
        let since = |(source, total): (&String, &u64)| {
            let id = SOURCES.iter().position(|name| name == source).map_or(0, |at| at + 1);
            (id, total.saturating_sub(before.get(source).copied().unwrap_or(0)))
        };
        self.0.iter().map(since).filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_once_and_by_source() {
        let totals = |pairs: &[(&str, u64)]| pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let mut lost = EventsLost::default();
        assert_eq!(lost.news(totals(&[("damon", 0), ("heat", 3)])), [(6, 3)]);
        assert_eq!(lost.news(totals(&[("damon", 5), ("heat", 3), ("other", 1)])), [(2, 5), (0, 1)]);
        assert_eq!(lost.news(totals(&[("damon", 5), ("heat", 1)])), []);
    }

    #[test]
    fn a_probe_that_is_reached_is_counted_under_its_name() {
        let before = reached();
        assert!(before.keys().eq(PROBES.iter().map(|probe| probe.name).collect::<std::collections::BTreeSet<_>>()));
        events_lost(0, 1);
        assert!(reached()["events_lost"] > before["events_lost"]);
    }

    #[test]
    fn reasons_are_named_by_their_numbers() {
        let all = [Reason::Hot, Reason::MakeRoom, Reason::Headroom, Reason::Drain, Reason::Budget, Reason::Spread];
        for (reason, at) in all.into_iter().zip(1..) {
            assert_eq!(serde_json::json!(reason), REASONS[at - 1]);
            assert_eq!(reason as usize, at);
        }
    }
}
