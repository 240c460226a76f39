#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::units::{NodeId, PAGE};

const JOB: Pid = Pid(9);

fn touch(start: u64, bytes: u64, weight: f32, at: Instant) -> Touch {
    Touch { pid: JOB, range: Range::new(start, start + bytes), kind: TouchKind::Access, weight, at }
}

fn of(kind: TouchKind, block: u64, at: Instant) -> Touch {
    Touch { kind, ..touch(block * BLOCK, BLOCK, 1.0, at) }
}

/// The heat map, a clock beside it, and the block numbers it is asked about.
struct Bench {
    map: HeatMap,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let map = HeatMap::new(Params::default());
        Self { map, now: Instant::now() }
    }

    fn wait(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
    }

    fn aggregations(&mut self, count: u32, weight: f32) {
        for _ in 0..count {
            self.wait(1.0);
            self.map.observe(&[touch(0, BLOCK, weight, self.now)]);
        }
    }

    fn block(&mut self, block: u64) -> Region {
        let range = Range::new(block * BLOCK, (block + 1) * BLOCK);
        let resident = Resident { pid: JOB, range, on: BTreeMap::from([(NodeId(0), BLOCK)]) };
        self.map.view(&[resident], &|_, _| 0, self.now).regions.remove(0)
    }
}

#[test]
fn heat_is_the_mean_at_first_and_halves_in_a_half_life() {
    let mut bench = Bench::new();
    bench.aggregations(1, 0.6);
    let first = bench.block(0);
    assert!((first.heat - 0.6).abs() < 1e-6 && first.seen == 1, "{first:?}");
    bench.aggregations(40, 1.0);
    bench.aggregations(3, 0.0);
    let cooled = bench.block(0);
    assert!((cooled.heat - 0.5).abs() < 0.01, "{cooled:?}");
    assert!((cooled.idle_s - 3.0).abs() < 0.01, "{cooled:?}");
}

#[test]
fn one_long_aggregation_weighs_as_much_as_many_short_ones() {
    let (mut long, mut short) = (Bench::new(), Bench::new());
    long.aggregations(20, 1.0);
    short.aggregations(20, 1.0);
    long.wait(3.0);
    long.map.observe(&[touch(0, BLOCK, 0.0, long.now)]);
    short.aggregations(3, 0.0);
    assert!((long.block(0).heat - short.block(0).heat).abs() < 1e-4);
}

#[test]
fn silence_is_not_idleness_for_a_while_and_is_after() {
    let mut bench = Bench::new();
    bench.aggregations(30, 1.0);
    bench.wait(8.0);
    assert!(bench.block(0).heat > 0.99, "a gap of monitoring keeps the heat");
    bench.aggregations(1, 1.0);
    assert!(bench.block(0).heat > 0.99);
    bench.wait(80.0);
    let silent = bench.block(0);
    assert!(silent.heat < 1e-4 && silent.idle_s > 79.0, "{silent:?}");
}

#[test]
fn silence_is_measured_by_how_far_apart_aggregations_come() {
    let mut bench = Bench::new();
    for _ in 0..5 {
        bench.wait(16.0);
        bench.map.observe(&[touch(0, BLOCK, 1.0, bench.now)]);
    }
    bench.wait(30.0);
    assert!(bench.block(0).heat > 0.99);
}

#[test]
fn written_once_then_idle_ends_cold() {
    let mut bench = Bench::new();
    bench.map.observe(&[of(TouchKind::Fault, 0, bench.now)]);
    let fresh = bench.block(0);
    assert!(fresh.heat > 0.0 && fresh.heat < 0.1 && fresh.seen == 0, "warm, not promoted, unproven: {fresh:?}");
    bench.aggregations(1, 1.0);
    bench.aggregations(40, 0.0);
    let idle = bench.block(0);
    assert!(idle.heat < 0.001 && (idle.idle_s - 40.0).abs() < 0.01, "{idle:?}");
}

#[test]
fn transfers_are_full_use_with_and_without_a_monitor() {
    let (mut watched, mut alone) = (Bench::new(), Bench::new());
    for _ in 0..20 {
        watched.map.observe(&[of(TouchKind::Transfer, 0, watched.now + Duration::from_millis(300))]);
        watched.aggregations(1, 0.0);
        alone.wait(2.0);
        alone.map.observe(&[of(TouchKind::Transfer, 0, alone.now)]);
    }
    assert!(watched.block(0).heat > 0.99, "{:?}", watched.block(0));
    assert!(alone.block(0).heat > 0.99, "{:?}", alone.block(0));
    watched.aggregations(40, 0.0);
    assert!(watched.block(0).heat < 0.001);
}

#[test]
fn unknown_ended_and_hostile() {
    let mut bench = Bench::new();
    let unknown = bench.block(5);
    assert_eq!((unknown.heat, unknown.seen, unknown.idle_s), (0.0, 0, 0.0));
    let now = bench.now;
    bench.map.observe(&[
        touch(0, BLOCK, f32::NAN, now),
        touch(0, BLOCK, -1.0, now),
        touch(0, u64::MAX, 0.5, now),
        touch(BLOCK, 0, 1.0, now),
    ]);
    assert_eq!(bench.map.stats().refused, 3);
    bench.aggregations(2, 7.0);
    assert_eq!(bench.block(0).heat, 1.0, "a weight over 1 counts as 1");
    bench.map.forget(JOB);
    assert_eq!((bench.block(0).seen, bench.map.stats().processes), (0, 0));
}

#[test]
fn a_block_costs_at_most_64_bytes_and_is_forgotten_when_nobody_speaks_of_it() {
    let mut bench = Bench::new();
    let now = bench.now;
    bench.map.observe(&[touch(0, 10_000 * BLOCK, 0.0, now)]);
    bench.block(0);
    let stats = bench.map.stats();
    assert!(stats.bytes <= 64 * 10_000, "{stats:?}");
    bench.wait(700.0);
    bench.aggregations(1, 0.0);
    bench.block(0);
    assert_eq!(bench.map.stats().blocks, CHUNK);
}

proptest! {
    /// Order does not matter, nor where a region is cut in two; heat stays within 0 and 1.
    #[test]
    fn an_aggregation_is_a_set_of_regions(
        regions in prop::collection::vec((0u64..4000, 1u64..3000, 0f32..1.2, 0u64..3000), 1..20),
        before in 0f32..1.0,
        turn in 0usize..20,
        pause in 0.1f64..100.0,
    ) {
        let (mut whole, mut cut) = (Bench::new(), Bench::new());
        cut.now = whole.now;
        cut.map.made = whole.map.made;
        for bench in [&mut whole, &mut cut] {
            bench.map.observe(&[touch(0, 2000 * PAGE, before, bench.now)]);
            bench.wait(pause);
        }
        let now = whole.now;
        let touches: Vec<Touch> =
            regions.iter().map(|(start, pages, weight, _)| touch(start * PAGE, pages * PAGE, *weight, now)).collect();
        let mut pieces: Vec<Touch> = (touches.iter().zip(&regions))
            .flat_map(|(touch, (.., at))| {
                let middle = (touch.range.start + at * PAGE).min(touch.range.end);
                [(touch.range.start, middle), (middle, touch.range.end)].map(|(start, end)| Touch { range: Range { start, end }, ..*touch })
            })
            .collect();
        let length = pieces.len();
        pieces.rotate_left(turn % length);
        whole.map.observe(&touches);
        for piece in &pieces {
            cut.map.observe(&[*piece]);
        }
        for block in 0..16 {
            let (a, b) = (whole.block(block), cut.block(block));
            prop_assert!((a.heat - b.heat).abs() < 1e-5, "{a:?} {b:?}");
            prop_assert_eq!((a.seen, a.idle_s), (b.seen, b.idle_s));
            prop_assert!((0.0..=1.0).contains(&a.heat));
        }
    }
}
