#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::policy::Move;

const A: NodeId = NodeId(2);
const B: NodeId = NodeId(0);

fn outcome(first: u64, blocks: u64, from: NodeId, to: NodeId) -> Outcome {
    let range = Range::new(first * BLOCK, (first + blocks) * BLOCK);
    let reason = if to == B { Reason::Hot } else { Reason::MakeRoom };
    Outcome {
        plan: 1,
        asked: Move { pid: Pid(7), range, from, to, bytes: range.bytes(), reason, heat: 0.5 },
        moved: range.pages(),
        failed: BTreeMap::new(),
        stuck: Vec::new(),
        calls: 4,
        longest_call: Duration::from_millis(8),
        longest_stall: Duration::from_millis(6),
        over_cap: 1,
        in_calls: Duration::from_millis(14),
        throttled: Duration::from_millis(500),
    }
}

fn stuck(first: u64, blocks: u64, stuck: &[Range]) -> Outcome {
    let pages: u64 = stuck.iter().map(Range::pages).sum();
    let all = outcome(first, blocks, A, B);
    Outcome { moved: all.moved - pages, failed: BTreeMap::from([(Cause::Busy, pages)]), stuck: stuck.to_vec(), ..all }
}

fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

#[test]
fn totals_are_kept_by_way_and_reason_and_calls_by_time() {
    let mut ledger = Ledger::default();
    let now = Instant::now();
    ledger.record(&outcome(0, 4, A, B), now);
    ledger.record(&outcome(8, 2, A, B), now);
    ledger.record(&outcome(20, 1, B, A), now);
    let summary = ledger.summary();
    assert_eq!(summary.moved_bytes(Reason::Hot), 6 * BLOCK);
    assert_eq!(summary.moved_bytes(Reason::MakeRoom), BLOCK);
    assert_eq!(summary.migrated_pages.len(), 2);
    let calls = summary.migrate_call_seconds;
    assert_eq!((calls.calls, calls.longest), (12, 0.008));
    assert_eq!((summary.longest_stall_seconds, summary.over_cap_pages), (0.006, 3));
    assert!((calls.p50 - 0.002).abs() < 1e-4 && (calls.p99 - 0.008).abs() < 2e-4, "{calls:?}");
    assert!((summary.throttled_seconds - 1.5).abs() < 1e-9);
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(json["migrated_pages"][0]["reason"], "make_room");
}

#[test]
fn a_range_stuck_three_times_is_unmovable_until_its_pause_ends() {
    let mut ledger = Ledger::default();
    let pinned = Range::new(BLOCK, BLOCK + 3 * PAGE);
    let block = Range::new(BLOCK, 2 * BLOCK);
    let mut now = Instant::now();
    for tries in 1..=3 {
        assert_eq!(ledger.unmovable_bytes(Pid(7), block, now), 0, "after {} tries", tries - 1);
        ledger.record(&stuck(0, 4, &[pinned]), now);
    }
    assert_eq!(ledger.unmovable_bytes(Pid(7), block, now), 3 * PAGE);
    assert_eq!(ledger.unmovable_bytes(Pid(8), block, now), 0);
    now += seconds(10);
    assert_eq!(ledger.unmovable_bytes(Pid(7), block, now), 0, "due for a try");
    assert_eq!(ledger.summary().unmovable_bytes[0].bytes, 3 * PAGE, "and still counted");
    ledger.record(&stuck(0, 4, &[pinned]), now);
    assert_eq!(ledger.unmovable_bytes(Pid(7), block, now + seconds(19)), 3 * PAGE, "the pause has doubled");
    // Stuck on fewer pages: the others moved.
    ledger.record(&stuck(0, 4, &[Range::new(BLOCK, BLOCK + PAGE)]), now + seconds(20));
    assert_eq!(ledger.summary().unmovable_bytes[0].bytes, PAGE);
    ledger.record(&outcome(0, 4, A, B), now + seconds(60));
    assert!(ledger.summary().unmovable_bytes.is_empty());
}

#[test]
fn a_call_that_was_cut_short_frees_nothing() {
    let mut ledger = Ledger::default();
    let now = Instant::now();
    let pinned = Range::new(BLOCK, 2 * BLOCK);
    (0..3).for_each(|_| ledger.record(&stuck(0, 4, &[pinned]), now));
    let untried = BTreeMap::from([(Cause::Untried, 2048)]);
    ledger.record(&Outcome { moved: 0, failed: untried, ..outcome(0, 4, A, B) }, now);
    assert_eq!(ledger.unmovable_bytes(Pid(7), pinned, now), BLOCK);
}

#[test]
fn an_ended_process_is_forgotten_but_its_totals_are_not() {
    let mut ledger = Ledger::default();
    let now = Instant::now();
    (0..3).for_each(|_| ledger.record(&stuck(0, 2, &[Range::new(0, BLOCK)]), now));
    let gone = BTreeMap::from([(Cause::ProcessGone, 1024)]);
    ledger.record(&Outcome { moved: 0, failed: gone, ..outcome(0, 2, A, B) }, now);
    assert_eq!(ledger.unmovable_bytes(Pid(7), Range::new(0, BLOCK), now), 0);
    assert!(ledger.recent().last(Pid(7), Range::new(0, BLOCK)).is_none());
    assert_eq!(ledger.summary().moved_bytes(Reason::Hot), 3 * BLOCK);
}

#[test]
fn going_back_soon_is_counted_and_held_against_the_block() {
    let mut ledger = Ledger::default();
    let start = Instant::now();
    ledger.record(&outcome(0, 4, A, B), start);
    ledger.record(&outcome(2, 4, B, A), start + seconds(9));
    assert_eq!(ledger.summary().pingpong_pages, 2 * BLOCK / PAGE, "blocks 2 and 3 of 2 to 5");
    let offences = |ledger: &Ledger, block: u64| {
        ledger.recent().last(Pid(7), Range::new(block * BLOCK, (block + 1) * BLOCK)).map(|last| last.offences)
    };
    assert_eq!((offences(&ledger, 0), offences(&ledger, 2), offences(&ledger, 5)), (Some(0), Some(1), Some(0)));
    // 25 s after: no ping-pong by the count, but soon for a block that is held 20 s.
    ledger.record(&outcome(2, 1, A, B), start + seconds(34));
    assert_eq!(ledger.summary().pingpong_pages, 2 * BLOCK / PAGE);
    assert_eq!(offences(&ledger, 2), Some(2));
    // Long after, all is forgotten.
    ledger.record(&outcome(100, 1, A, B), start + seconds(1000));
    assert_eq!((offences(&ledger, 2), offences(&ledger, 3)), (None, None));
}

proptest! {
    /// Whatever is stuck and whenever: no byte is counted twice, and none outside what was asked.
    #[test]
    fn unmovable_bytes_are_bounded_and_add_up(
        records in prop::collection::vec((0u64..8, 1u64..4, prop::collection::vec((0u64..1200, 1u64..700), 0..4)), 1..40),
    ) {
        let mut ledger = Ledger::new(Rules { tries: 1, ..Rules::default() });
        let now = Instant::now();
        for (first, blocks, ranges) in records {
            let ranges: Vec<Range> = ranges
                .iter()
                .map(|(start, pages)| Range::new(first * BLOCK + start * PAGE, first * BLOCK + (start + pages) * PAGE))
                .collect();
            let mut result = outcome(first, blocks, A, B);
            result.stuck = ranges;
            ledger.record(&result, now);
            let all = ledger.unmovable_bytes(Pid(7), Range::new(0, 100 * BLOCK), now);
            let by_block: Vec<u64> = (0..100)
                .map(|block| ledger.unmovable_bytes(Pid(7), Range::new(block * BLOCK, (block + 1) * BLOCK), now))
                .collect();
            prop_assert!(by_block.iter().all(|bytes| *bytes <= BLOCK));
            prop_assert_eq!(by_block.iter().sum::<u64>(), all);
            prop_assert_eq!(ledger.summary().unmovable_bytes.iter().map(|row| row.bytes).sum::<u64>(), all);
            prop_assert!(by_block[11..].iter().all(|bytes| *bytes == 0));
        }
    }
}
