#![allow(clippy::unwrap_used)]

use super::*;
use crate::hotness::Outlook;

const JOB: Pid = Pid(7);
const TOP: NodeId = NodeId(0);
const LOW: NodeId = NodeId(1);

fn block(n: u64, heat: f32, idle_s: f32, on: NodeId) -> Region {
    Region {
        pid: JOB,
        range: Range::new(n * BLOCK, (n + 1) * BLOCK),
        heat,
        seen: 9,
        idle_s,
        on: [(on, BLOCK)].into(),
        unmovable: 0,
        outlook: Outlook::default(),
        expected: false,
        pages: None,
    }
}

fn begin(scattered: &mut Scattered, regions: Vec<Region>, now: Instant) -> Vec<(Pid, Range)> {
    let view = HeatView { at: now, regions };
    scattered.begin(&view, |node| node == LOW, 3.0, || true, now).to_vec()
}

/// Blocks on the lower tier, of which the first `spoken` were hit a moment ago.
fn suspects(all: u64, spoken: u64) -> Vec<Region> {
    (0..all).map(|n| if n < spoken { block(n, 0.002, 1.0, LOW) } else { block(n, 0.0, 99.0, LOW) }).collect()
}

fn page(n: usize) -> PageBits {
    let mut pages = [0; 8];
    pages[n / 64] = 1 << (n % 64);
    pages
}

/// A whole look in which each block's pages were as given in both rounds; where the second begins.
fn look(scattered: &mut Scattered, first: &[(u64, PageBits)], second: &[(u64, PageBits)], start: Instant) -> Instant {
    let map = |of: &[(u64, PageBits)]| of.iter().map(|(n, pages)| ((JOB, *n), *pages)).collect::<BTreeMap<_, _>>();
    assert!(scattered.due(start).is_none(), "the bits were taken away just now");
    let then = start + ROUND;
    assert!(scattered.due(then).is_some());
    assert!(!scattered.seen(map(first), Duration::ZERO, then).is_empty(), "a second round");
    let end = then + ROUND;
    assert!(scattered.due(end).is_some());
    assert_eq!(scattered.seen(map(second), Duration::ZERO, end), []);
    end
}

/// Of a job that has had its memory for a while.
fn settled() -> Scattered {
    Scattered { blocks: 1000, ..Scattered::default() }
}

/// All are looked at from the first look on.
fn thorough() -> Scattered {
    Scattered { reach: Reach::All, ..settled() }
}

/// A look at a few, in which each block's pages were as given; its end.
fn trial(scattered: &mut Scattered, seen: &[(u64, PageBits)], start: Instant) -> Instant {
    let end = start + ROUND;
    assert!(scattered.due(end).is_some());
    let seen = seen.iter().map(|(n, pages)| ((JOB, *n), *pages)).collect();
    assert_eq!(scattered.seen(seen, Duration::ZERO, end), [], "one round");
    end
}

#[test]
fn hits_here_and_there_have_a_few_and_then_all_that_is_not_hot_below_looked_at() {
    let (mut scattered, now) = (settled(), Instant::now());
    assert_eq!(begin(&mut scattered, suspects(500, 3), now), [], "too few to say anything");
    assert_eq!(begin(&mut scattered, suspects(900, 8), now), [], "less than a hundredth");
    let mut regions = suspects(20, 4);
    regions.extend([block(20, 0.5, 0.0, LOW), block(21, 0.002, 0.0, TOP), block(22, 0.0, 99.0, LOW)]);
    let whole = |from, to| (JOB, Range::new(from * BLOCK, to * BLOCK));
    assert_eq!(begin(&mut scattered, regions.clone(), now), [whole(0, 4)], "those that spoke");
    assert_eq!(begin(&mut scattered, regions.clone(), now), [], "one look at a time");
    let end = trial(&mut scattered, &[(2, page(9)), (3, [u64::MAX; 8])], now);
    assert_eq!(scattered.count(), 0, "it only says where to look");
    assert_eq!(begin(&mut scattered, regions.clone(), end), [whole(0, 20), whole(22, 23)], "at once");
    let end = look(&mut scattered, &[(3, page(9))], &[(3, page(9))], end);
    assert_eq!(scattered.count(), 1);
    assert_eq!(begin(&mut scattered, regions.clone(), end + PAUSE), [], "not enough have spoken that are not known");
    regions[5..9].iter_mut().for_each(|region| (region.heat, region.idle_s) = (0.002, 1.0));
    assert_eq!(begin(&mut scattered, regions, end + PAUSE), [whole(0, 20), whole(22, 23)], "the last look found some");
}

#[test]
fn a_job_that_fills_its_memory_is_not_looked_at() {
    let (mut scattered, mut now) = (Scattered::default(), Instant::now());
    for blocks in [100, 120, 140, 160] {
        now += SETTLED;
        assert_eq!(begin(&mut scattered, suspects(blocks, 20), now), [], "{blocks} blocks");
    }
    // What a step takes and gives back is no growth.
    for blocks in [110, 160] {
        let later = now + SETTLED - Duration::from_millis(1);
        assert_eq!(begin(&mut scattered, suspects(blocks, 20), later), []);
    }
    assert_ne!(begin(&mut scattered, suspects(165, 20), now + SETTLED), []);
    // A job that grows on, slowly: each such part ends the pauses of looks in vain.
    now = trial(&mut scattered, &[], now + SETTLED);
    for _ in 0..3 {
        now += scattered.pause;
        assert_ne!(begin(&mut scattered, suspects(165, 20), now), []);
        now = trial(&mut scattered, &[], now);
    }
    assert!(scattered.pause > FIRST * 8);
    assert_eq!(begin(&mut scattered, suspects(180, 20), now), []);
    assert_ne!(begin(&mut scattered, suspects(180, 20), now + SETTLED), []);
}

#[test]
fn a_first_look_is_at_a_few_of_many() {
    let (mut scattered, now) = (settled(), Instant::now());
    let blocks: Vec<u64> = begin(&mut scattered, suspects(400, 100), now)
        .iter()
        .map(|(_, range)| {
            assert_eq!(range.bytes(), BLOCK);
            range.start / BLOCK
        })
        .collect();
    assert!(blocks.len() == 20 && blocks.first() == Some(&0) && blocks.last() == Some(&95), "{blocks:?}");
    // Nothing, and a sweep that passes.
    let swept = [(0, [u64::MAX; 8]), (5, [u64::MAX; 8]), (10, page(0))];
    let mut end = now;
    for (seen, pause) in [(&[][..], 2), (&swept, 4), (&[], 8)] {
        end = trial(&mut scattered, seen, end);
        let due = end + Duration::from_secs(pause);
        assert_eq!(begin(&mut scattered, suspects(400, 100), due - Duration::from_millis(1)), []);
        let again = begin(&mut scattered, suspects(400, 100), due).len();
        assert!(again == 20, "{again}");
        end = due;
    }
}

#[test]
fn old_hits_pinned_blocks_and_those_hardly_known_say_nothing() {
    let (now, hit) = (Instant::now(), |n| block(n, 0.002, 1.0, LOW));
    for regions in [
        (0..9).map(|n| Region { idle_s: 4.0, ..hit(n) }).collect::<Vec<_>>(),
        (0..9).map(|n| Region { unmovable: 4096, ..hit(n) }).collect(),
        (0..9).map(|n| Region { seen: 2, ..hit(n) }).collect(),
        (0..9).map(|n| Region { heat: 0.0, ..hit(n) }).collect(),
    ] {
        assert_eq!(begin(&mut settled(), regions, now), []);
    }
}

#[test]
fn a_page_is_hot_that_both_rounds_saw_in_a_block_hardly_used() {
    let (mut scattered, now) = (thorough(), Instant::now());
    begin(&mut scattered, suspects(9, 5), now);
    let mut dense = [0; 8];
    dense[..2].fill(u64::MAX);
    let two: PageBits = std::array::from_fn(|word| page(3)[word] | page(500)[word]);
    look(
        &mut scattered,
        &[(0, two), (1, page(9)), (2, dense), (3, page(7))],
        &[(0, two), (1, page(8)), (2, dense)],
        now,
    );
    let marked: Vec<_> = (0..9).map(|n| scattered.pages(JOB, n)).collect();
    assert_eq!(marked[0], Some(two));
    assert!(marked[1..].iter().all(Option::is_none), "{marked:?}");
    assert_eq!(scattered.count(), 2);
}

#[test]
fn what_was_asked_for_is_not_asked_again_until_it_goes_down() {
    let (mut scattered, now) = (thorough(), Instant::now());
    begin(&mut scattered, suspects(9, 5), now);
    look(&mut scattered, &[(2, page(511))], &[(2, page(511))], now);
    let hot = runs(2, &scattered.pages(JOB, 2).unwrap(), Range::new(0, 9 * BLOCK));
    assert_eq!(hot, [Range::new(3 * BLOCK - PAGE, 3 * BLOCK)]);
    scattered.moves(JOB, hot[0], true);
    assert_eq!(scattered.pages(JOB, 2), Some([0; 8]), "still marked");
    scattered.moves(JOB, Range::new(2 * BLOCK, 3 * BLOCK), false);
    assert_eq!(scattered.pages(JOB, 2), Some(page(511)));
    scattered.forget(JOB);
    assert_eq!(scattered.pages(JOB, 2), None);
}

#[test]
fn marked_blocks_cause_no_look_and_looks_in_vain_come_ever_more_rarely() {
    let (mut scattered, now) = (thorough(), Instant::now());
    begin(&mut scattered, suspects(8, 8), now);
    let all: Vec<_> = (0..8).map(|n| (n, page(n as usize))).collect();
    let end = look(&mut scattered, &all, &all, now);
    assert_eq!(begin(&mut scattered, suspects(8, 8), end + LONGEST), [], "all are known");
    let later = end + KEEP;
    assert!(!begin(&mut scattered, suspects(8, 8), later).is_empty(), "but not for ever");
    let mut end = look(&mut scattered, &[], &[], later);
    for pause in [6, 12, 24, 48, 96, 192, 300, 300].map(Duration::from_secs) {
        assert_eq!(begin(&mut scattered, suspects(8, 8), end + pause - Duration::from_millis(1)), []);
        assert!(!begin(&mut scattered, suspects(8, 8), end + pause).is_empty(), "{pause:?}");
        end = trial(&mut scattered, &[], end + pause);
    }
}

#[test]
fn a_large_job_is_looked_at_in_turn() {
    let (mut scattered, now) = (thorough(), Instant::now());
    let blocks = LOOK_BYTES / BLOCK;
    let whole = |from, to| (JOB, Range::new(from * BLOCK, to * BLOCK));
    assert_eq!(begin(&mut scattered, suspects(blocks + 9, blocks), now), [whole(0, blocks)]);
    let end = look(&mut scattered, &[(1, page(1))], &[(1, page(1))], now);
    let second = begin(&mut scattered, suspects(blocks + 9, blocks), end + LONGEST);
    assert_eq!(second, [whole(0, blocks - 9), whole(blocks, blocks + 9)]);
}

#[test]
fn runs_are_joined_and_stay_in_their_range() {
    let pages = [0b0111, 0, 0, 0, 0, 0, 0, 1 << 63];
    let at = |page: u64| BLOCK + page * PAGE;
    assert_eq!(runs(1, &pages, Range::new(0, 9 * BLOCK)), [Range::new(at(0), at(3)), Range::new(at(511), at(512))]);
    assert_eq!(runs(1, &pages, Range::new(at(1), at(2))), [Range::new(at(1), at(2))]);
    assert_eq!(runs(1, &pages, Range::new(9 * BLOCK, 10 * BLOCK)), []);
}
