//! Which ranges do not move.
//!
//! The kernel gives no errno for a pinned page, and a page under I/O looks the same: only trying again tells them
//! apart. A range that was stuck [`Rules::tries`] times in a row is called unmovable; it is tried again after a pause
//! that doubles each time, because pins end. A move that passes over it takes it off the list.

use std::{collections::BTreeMap, time::Instant};

use super::{Rules, summary::Unmovable};
use crate::{
    migrate::{Cause, Outcome},
    units::{NodeId, Pid, Range},
};

#[derive(Clone, Copy, Debug)]
struct Entry {
    end: u64,
    node: NodeId,
    tries: u32,
    /// Not to be tried before.
    until: Instant,
}

/// Stuck ranges by process and first address; they do not overlap.
#[derive(Debug)]
pub(super) struct Stuck {
    rules: Rules,
    ranges: BTreeMap<(Pid, u64), Entry>,
}

impl Stuck {
    pub fn new(rules: Rules) -> Self {
        Self { rules, ranges: BTreeMap::new() }
    }

    pub fn record(&mut self, outcome: &Outcome, now: Instant) {
        let asked = &outcome.asked;
        let stuck: Vec<Range> = outcome.stuck.iter().filter_map(|range| range.intersect(&asked.range)).collect();
        let old = self.cut_out(asked.pid, asked.range);
        if !reached_all(outcome) {
            for (range, entry) in &old {
                self.put_around(asked.pid, *range, *entry, &stuck);
            }
        }
        for range in stuck {
            // Ranges in one outcome that overlap would otherwise be counted twice.
            self.cut_out(asked.pid, range);
            let before = old.iter().filter(|(old, _)| old.intersect(&range).is_some()).map(|(_, entry)| entry.tries);
            let tries = before.max().unwrap_or(0).saturating_add(1);
            let doublings = tries.saturating_sub(self.rules.tries).min(16);
            let pause = self.rules.retry.saturating_mul(1 << doublings).min(self.rules.retry_limit);
            let until = if tries >= self.rules.tries { now + pause } else { now };
            self.ranges.insert((asked.pid, range.start), Entry { end: range.end, node: asked.from, tries, until });
        }
    }

    pub fn forget(&mut self, pid: Pid) {
        self.ranges.retain(|(of, _), _| *of != pid);
    }

    /// Bytes of `range` that are unmovable and not yet due for another try.
    pub fn bytes(&self, pid: Pid, range: Range, now: Instant) -> u64 {
        self.overlapping(pid, range)
            .filter(|(_, entry)| entry.tries >= self.rules.tries && now < entry.until)
            .filter_map(|(stuck, _)| stuck.intersect(&range))
            .map(|part| part.bytes())
            .sum()
    }

    /// All unmovable memory, due for a try or not.
    pub fn by_node(&self) -> Vec<Unmovable> {
        let mut sums: BTreeMap<(Pid, NodeId), (u64, u64)> = BTreeMap::new();
        for ((pid, start), entry) in self.ranges.iter().filter(|(_, entry)| entry.tries >= self.rules.tries) {
            let (bytes, ranges) = sums.entry((*pid, entry.node)).or_default();
            *bytes += entry.end - start;
            *ranges += 1;
        }
        let rows = sums.into_iter();
        rows.map(|((pid, node), (bytes, ranges))| Unmovable { pid, node, bytes, ranges }).collect()
    }

    /// Entries that overlap `range`. The first may begin before it; entries do not overlap, so none earlier can.
    fn overlapping(&self, pid: Pid, range: Range) -> impl Iterator<Item = (Range, Entry)> {
        let first = self.ranges.range((pid, 0)..=(pid, range.start)).next_back().map_or(range.start, |(key, _)| key.1);
        let found = self.ranges.range((pid, first)..(pid, range.end.max(first)));
        found
            .map(|((_, start), entry)| (Range::new(*start, entry.end), *entry))
            .filter(move |(stuck, _)| stuck.intersect(&range).is_some())
    }

    /// Takes everything within `range` out and returns it; what stands over at its ends stays.
    fn cut_out(&mut self, pid: Pid, range: Range) -> Vec<(Range, Entry)> {
        let found: Vec<(Range, Entry)> = self.overlapping(pid, range).collect();
        for (stuck, entry) in &found {
            self.ranges.remove(&(pid, stuck.start));
            self.put_around(pid, *stuck, *entry, &[range]);
        }
        found.into_iter().filter_map(|(stuck, entry)| Some((stuck.intersect(&range)?, entry))).collect()
    }

    /// Puts `range` back except for `holes`.
    fn put_around(&mut self, pid: Pid, range: Range, entry: Entry, holes: &[Range]) {
        let mut holes: Vec<Range> = holes.iter().filter_map(|hole| hole.intersect(&range)).collect();
        holes.sort();
        let mut start = range.start;
        for hole in holes.iter().chain(&[Range { start: range.end, end: range.end }]) {
            if start < hole.start {
                self.ranges.insert((pid, start), Entry { end: hole.start, ..entry });
            }
            start = start.max(hole.end);
        }
    }
}

/// Whether the kernel spoke of every page: only then is a page that was not stuck known to be free.
fn reached_all(outcome: &Outcome) -> bool {
    let cut_short = [Cause::Untried, Cause::NoMemory, Cause::ProcessGone, Cause::Forbidden];
    !cut_short.iter().any(|cause| outcome.failed.get(cause).is_some_and(|pages| *pages > 0))
}
