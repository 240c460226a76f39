//! The executor's rules against the fake kernel.
#![allow(clippy::unwrap_used)]
use std::{sync::atomic::AtomicBool, time::Duration};

use proptest::prelude::*;

use super::{
    fake::{Fake, Trouble},
    *,
};
use crate::{
    policy::{Plan, Reason},
    units::{BLOCK, NodeId, PAGE, Pid},
};

const BASE: u64 = 64 << 30;
const BLOCK_PAGES: u64 = BLOCK / PAGE;

fn page(n: u64) -> u64 {
    BASE + n * PAGE
}

fn pages(first: u64, count: u64) -> Range {
    Range::new(page(first), page(first + count))
}

fn plan(ranges: &[Range]) -> Plan {
    let moves = ranges.iter().map(|range| Move {
        pid: Pid(7),
        range: *range,
        from: NodeId(1),
        to: NodeId(0),
        bytes: range.bytes(),
        reason: Reason::Hot,
        heat: 1.0,
    });
    Plan { id: 3, moves: moves.collect(), ..Plan::default() }
}

fn run(fake: Fake, ranges: &[Range]) -> (Vec<Outcome>, Fake) {
    run_with(fake, ranges, Params::default())
}

fn run_with(fake: Fake, ranges: &[Range], params: Params) -> (Vec<Outcome>, Fake) {
    let mut executor = Executor::over(fake, params);
    let outcomes = executor.run(&plan(ranges), &AtomicBool::new(false));
    assert_eq!(outcomes.len(), ranges.len());
    for (outcome, range) in outcomes.iter().zip(ranges) {
        assert_eq!(outcome.asked.range, *range);
        assert_eq!(outcome.moved + outcome.failed.values().sum::<u64>(), range.pages(), "{outcome:?}");
    }
    (outcomes, std::mem::take(executor.pages()))
}

#[test]
fn resident_pages_on_the_node_move_and_the_rest_is_counted() {
    let mut fake = Fake::default();
    fake.fill(pages(0, 700), 1);
    fake.fill(pages(700, 20), 0);
    fake.fill(pages(720, 5), 2);
    fake.trouble(page(3), Trouble::Shared);
    let (outcomes, fake) = run(fake, &[pages(0, 1000)]);
    assert_eq!(outcomes[0].moved, 699);
    let failed = [(Cause::Absent, 275), (Cause::AlreadyThere, 20), (Cause::Elsewhere, 5), (Cause::Shared, 1)];
    assert_eq!(outcomes[0].failed, failed.into());
    assert_eq!(fake.on(pages(0, 720), 0), 719);
    assert_eq!((outcomes[0].plan, outcomes[0].stuck.len()), (3, 0));
}

#[test]
fn a_pinned_page_is_stuck_after_its_tries_and_its_neighbours_move() {
    let mut fake = Fake::default();
    fake.fill(pages(0, 400), 1);
    for pinned in [100, 101, 102, 250] {
        fake.trouble(page(pinned), Trouble::Pinned);
    }
    let (outcomes, fake) = run(fake, &[pages(0, 400)]);
    assert_eq!((outcomes[0].moved, outcomes[0].failed[&Cause::Busy]), (396, 4));
    assert_eq!(outcomes[0].stuck, [pages(100, 3), pages(250, 1)]);
    assert_eq!(fake.tried[&page(100)], Params::default().max_tries);
    assert!(fake.tried.iter().all(|(address, tries)| *tries == 1 || [100, 101, 102, 250].map(page).contains(address)));
}

#[test]
fn what_is_busy_for_a_moment_moves_on_a_later_try() {
    let mut fake = Fake::default();
    fake.fill(pages(0, 64), 1);
    fake.trouble(page(5), Trouble::Slow(2));
    fake.trouble(page(9), Trouble::OffList(1));
    let (outcomes, fake) = run(fake, &[pages(0, 64)]);
    assert_eq!((outcomes[0].moved, outcomes[0].failed.len()), (64, 0));
    assert!(fake.slept >= Params::default().retry_pause);
}

#[test]
fn a_huge_page_is_asked_for_once_and_counted_whole() {
    let mut fake = Fake::default();
    let blocks = Range::new(BASE, BASE + 4 * BLOCK);
    fake.fill_huge(blocks, 1);
    let (outcomes, fake) = run(fake, &[blocks]);
    assert_eq!(outcomes[0].moved, 4 * BLOCK_PAGES);
    assert_eq!(fake.tried.len(), 4);
    assert!(fake.tried.values().all(|tries| *tries == 1));
}

#[test]
fn tails_of_a_folio_that_no_page_table_shows_count_as_moved() {
    // A range that ends inside a huge page: its pages are asked for one by one and all but the first are tails.
    let mut fake = Fake::default();
    fake.fill_huge(Range::new(BASE, BASE + BLOCK), 1);
    let (outcomes, _) = run(fake, &[pages(0, 100)]);
    assert_eq!((outcomes[0].moved, outcomes[0].failed.len(), outcomes[0].stuck.len()), (100, 0, 0));
}

#[test]
fn a_huge_page_split_under_way_is_finished_page_by_page() {
    let mut fake = Fake { splits_in: Some(1), ..Fake::default() };
    let blocks = Range::new(BASE, BASE + 2 * BLOCK);
    fake.fill_huge(blocks, 1);
    fake.trouble(page(40), Trouble::Pinned);
    let (outcomes, fake) = run(fake, &[blocks]);
    assert_eq!((outcomes[0].moved, outcomes[0].failed[&Cause::Busy]), (2 * BLOCK_PAGES - 1, 1));
    assert_eq!(outcomes[0].stuck, [pages(40, 1)]);
    assert_eq!(fake.on(blocks, 0), 2 * BLOCK_PAGES - 1);
}

#[test]
fn a_full_node_ends_the_move_with_what_fitted() {
    let mut fake = Fake { room: 100, ..Fake::default() };
    fake.fill(pages(0, 600), 1);
    let (outcomes, fake) = run(fake, &[pages(0, 300), pages(300, 300)]);
    let moved: u64 = outcomes.iter().map(|outcome| outcome.moved).sum();
    assert_eq!((moved, fake.on(pages(0, 600), 0)), (100, 100));
    assert_eq!(outcomes[1].failed, [(Cause::NoMemory, 300)].into());
    assert!(fake.calls < 10, "a full node is not asked again and again: {}", fake.calls);
}

#[test]
fn a_process_that_ends_takes_the_rest_of_its_moves_with_it() {
    let mut fake = Fake { dies_in: Some(2), ..Fake::default() };
    fake.fill(pages(0, 600), 1);
    let (outcomes, fake) = run(fake, &[pages(0, 300), pages(300, 300)]);
    assert_eq!(fake.calls, 2);
    assert!(outcomes[0].moved > 0 && outcomes[1].failed == [(Cause::ProcessGone, 300)].into());
    let (outcomes, _) = run(Fake { dead: true, ..Fake::default() }, &[pages(0, 10)]);
    assert_eq!(outcomes[0].failed, [(Cause::ProcessGone, 10)].into());
}

#[test]
fn a_forbidden_node_is_asked_for_once() {
    for errno in [libc::EACCES, libc::EPERM, libc::ENODEV] {
        let mut fake = Fake { errors: [(1, errno)].into(), ..Fake::default() };
        fake.fill(pages(0, 600), 1);
        let (outcomes, fake) = run(fake, &[pages(0, 600)]);
        assert_eq!((outcomes[0].failed.clone(), fake.calls), ([(Cause::Forbidden, 600)].into(), 1));
    }
}

#[test]
fn a_stop_ends_after_the_call_under_way_and_loses_no_count() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let mut fake = Fake { stops_in: Some((2, &STOP)), ..Fake::default() };
    fake.fill(pages(0, 4000), 1);
    let mut executor = Executor::over(fake, Params::default());
    let outcomes = executor.run(&plan(&[pages(0, 2000), pages(2000, 2000)]), &STOP);
    assert_eq!(executor.pages().calls, 2);
    assert_eq!(outcomes[0].moved + outcomes[0].failed[&Cause::Untried], 2000);
    assert_eq!(outcomes[1].failed, [(Cause::Untried, 2000)].into());
}

#[test]
fn segments_stay_under_the_cap_and_calls_grow() {
    let fixed = Duration::from_millis(10);
    let mut fake = Fake { fixed, each: Duration::from_micros(100), ..Fake::default() };
    fake.fill(pages(0, 20_000), 1);
    let (outcomes, fake) = run(fake, &[pages(0, 20_000)]);
    let cap = Params::default().stall_cap;
    assert_eq!(outcomes[0].moved, 20_000);
    assert!(fake.longest <= outcomes[0].longest_stall && outcomes[0].longest_stall <= cap, "{:?}", fake.longest);
    assert!(fake.largest > 1000 && outcomes[0].over_cap == 0, "{}", fake.largest);
    // 20,000 pages of 100 µs are 2 s; the calls' own cost adds less than a sixth.
    assert!(outcomes[0].in_calls < Duration::from_millis(2300), "{:?}", outcomes[0].in_calls);
}

#[test]
fn huge_pages_dearer_than_the_cap_move_one_a_call_and_are_counted() {
    let mut fake = Fake { each: Duration::from_millis(2), ..Fake::default() };
    let blocks = Range::new(BASE, BASE + 3 * BLOCK);
    fake.fill_huge(blocks, 1);
    let (outcomes, fake) = run(fake, &[blocks]);
    assert_eq!((outcomes[0].moved, outcomes[0].over_cap), (3 * BLOCK_PAGES, 3 * BLOCK_PAGES));
    assert_eq!((outcomes[0].calls, fake.slept), (3, Duration::ZERO));
}

#[test]
fn the_rate_holds_and_a_move_larger_than_the_burst_goes_through() {
    let mut fake = Fake { each: Duration::from_micros(1), ..Fake::default() };
    fake.fill(pages(0, 2560), 1);
    let params = Params {
        rate_bytes_per_sec: Some(4 << 20),
        burst_bytes: PAGE,
        largest_call_bytes: 32 * PAGE,
        ..Params::default()
    };
    let (outcomes, fake) = run_with(fake, &[pages(0, 2560)], params);
    assert_eq!(outcomes[0].moved, 2560);
    assert!(fake.slept > Duration::from_secs(2) && fake.slept < Duration::from_secs(3), "{:?}", fake.slept);
    assert_eq!(outcomes[0].throttled, fake.slept);
}

#[test]
fn neighbouring_moves_share_calls() {
    let ranges: Vec<Range> = (0..32).map(|n| pages(n * 16, 16)).collect();
    let mut fake = Fake::default();
    fake.fill(pages(0, 512), 1);
    let (outcomes, fake) = run(fake, &ranges);
    assert!(outcomes.iter().all(|outcome| outcome.moved == 16));
    assert!(fake.calls < 10, "{}", fake.calls);
    assert_eq!(outcomes.iter().map(|outcome| outcome.calls).sum::<u32>(), fake.calls);
}

fn trouble() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        6 => Just(Trouble::No),
        1 => Just(Trouble::Pinned),
        1 => (1u32..5).prop_map(Trouble::Slow),
        1 => (1u32..5).prop_map(Trouble::OffList),
        1 => Just(Trouble::Shared),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn whatever_goes_wrong_every_page_is_counted_once_and_no_page_is_tried_too_often(
        layout in prop::collection::vec((0u8..4, 0u32..3, prop::collection::vec((0u64..512, trouble()), 0..12)), 1..5),
        errors in prop::collection::hash_map(1u32..20, prop::sample::select(vec![
            libc::EINTR, libc::EAGAIN, libc::EFAULT, libc::ENOENT, libc::ENOMEM, libc::EACCES, libc::ENODEV,
        ]), 0..3),
        room in prop_oneof![3 => Just(u64::MAX), 1 => 0u64..1500],
        dies_in in prop::option::weighted(0.2, 1u32..10),
        splits_in in prop::option::weighted(0.2, 1u32..5),
        max_tries in 1u32..5,
        cut in 0u64..600,
    ) {
        let quiet = errors.is_empty();
        let mut fake = Fake { room, dies_in, splits_in, errors, ..Fake::default() };
        for (block, (kind, node, troubles)) in layout.iter().enumerate() {
            let first = block as u64 * BLOCK_PAGES;
            match kind {
                0 => {}
                1 => fake.fill(pages(first, 300), *node),
                2 => fake.fill(pages(first, BLOCK_PAGES), *node),
                _ => fake.fill_huge(pages(first, BLOCK_PAGES), *node),
            }
            troubles.iter().for_each(|(at, trouble)| fake.trouble(page(first + at), *trouble));
        }
        let all = pages(0, layout.len() as u64 * BLOCK_PAGES);
        let cut = cut.min(all.pages() - 1);
        let ranges = [pages(0, cut), pages(cut, all.pages() - cut)];
        let target_before = fake.on(all, 0);
        let through = fake.huge.contains(&(page(cut) / BLOCK * BLOCK)) && !page(cut).is_multiple_of(BLOCK);
        let params = Params { max_tries, ..Params::default() };
        let (outcomes, fake) = run_with(fake, &ranges, params);
        // A huge page that the cut runs through belongs to two moves, and each has its tries.
        let tries = (max_tries + 1) * if through { 2 } else { 1 };
        prop_assert!(fake.tried.values().all(|tried| *tried <= tries), "{:?}", fake.tried);
        prop_assert!(fake.calls < 200 + 100 * max_tries, "{}", fake.calls);
        if !fake.dead {
            let moved: u64 = outcomes.iter().map(|outcome| outcome.moved).sum();
            let change = fake.on(all, 0) - target_before;
            // A huge page that the cut runs through may move after its first pages were given up as busy.
            prop_assert!(moved == change || (through && moved < change), "{moved} counted, {change} moved");
            let pinned = fake.pages.values().filter(|p| p.trouble == Trouble::Pinned && p.node.0 == 1).count();
            let stuck: u64 = outcomes.iter().flat_map(|outcome| &outcome.stuck).map(Range::pages).sum();
            if quiet && room == u64::MAX && splits_in.is_none() && fake.huge.is_empty() {
                prop_assert!(stuck >= pinned as u64);
            }
        }
    }
}
