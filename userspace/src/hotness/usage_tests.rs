#![allow(clippy::unwrap_used)]

use tensortier_replay::{
    generate::{self, Spec},
    workload::Workload,
};

use super::*;
use crate::units::{BLOCK, Range};

const JOB: Pid = Pid(7);

struct Bench {
    usage: Usage,
    now: Instant,
    steps: u64,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        Self { usage: Usage::new(now, Duration::from_secs(1)), now, steps: 0 }
    }

    /// One aggregation a second later, with these weights of so many blocks.
    fn second(&mut self, weights: &[f32]) {
        self.now += Duration::from_secs(1);
        let touches: Vec<Touch> = (weights.iter().zip(0u64..))
            .map(|(&weight, block)| {
                let range = Range::new(block * BLOCK, (block + 1) * BLOCK);
                Touch { pid: JOB, range, kind: TouchKind::Access, weight, at: self.now }
            })
            .collect();
        // The events of one aggregation may come in two parts.
        let (early, late) = touches.split_at(touches.len() / 2);
        self.steps += self.usage.observe(early, self.now);
        self.steps += self.usage.observe(late, self.now + 2 * LATE);
    }

    fn outlook(&self, block: u64) -> Outlook {
        self.usage.outlook(JOB, block, self.now)
    }

    /// Sweeps over so many blocks, one after another, in steps of so many seconds.
    fn sweeps(&mut self, blocks: u64, lengths: &[u64]) {
        for &length in lengths {
            for second in 0..length {
                let swept = |block: u64| (block * length / blocks) == second;
                let weights: Vec<f32> = (0..blocks).map(|block| if swept(block) { 0.1 } else { 0.0 }).collect();
                self.second(&weights);
            }
        }
    }
}

#[test]
fn a_sweep_has_a_step_and_the_same_use_wherever_it_is() {
    let mut bench = Bench::new();
    bench.sweeps(40, &[10, 10, 11, 10, 9, 10, 10, 10, 11, 9, 10, 10]);
    let (number, step) = bench.usage.step().unwrap();
    assert!((9.6..10.4).contains(&(step.period as f64 / 1e9)) && step.confidence > 0.7, "{step:?}");
    assert!((5..=10).contains(&number) && number == bench.steps, "{number}");
    let (first, last) = (bench.outlook(0), bench.outlook(39));
    assert!(first.is_known() && last.is_known(), "{first:?} {last:?}");
    assert!((first.used - last.used).abs() < 0.15 * first.used && (0.008..0.012).contains(&first.used), "{first:?}");
}

#[test]
fn a_copy_is_one_sample_that_found_its_block_used_with_and_without_a_monitor() {
    let copies = |times: f32, at: Instant| Touch {
        pid: JOB,
        range: Range::new(BLOCK, BLOCK + BLOCK / 2),
        kind: TouchKind::Transfer,
        weight: times,
        at,
    };
    let mut watched = Bench::new();
    watched.usage.sampled(20.0);
    for _ in 0..40 {
        watched.usage.observe(&[copies(4.0, watched.now)], watched.now);
        watched.second(&[0.3, 0.0]);
    }
    let (other, copied) = (watched.outlook(0), watched.outlook(1));
    assert!((copied.used - 0.1).abs() < 0.01, "half of a block, four times, of twenty samples: {copied:?}");
    assert!(copied.is_known() && (other.used - 0.3).abs() < 0.01, "{copied:?} {other:?}");

    let mut alone = Bench::new();
    alone.usage.sampled(20.0);
    let seconds = |alone: &mut Bench, count: usize, touches: &dyn Fn(Instant) -> Vec<Touch>| {
        for _ in 0..count {
            alone.now += Duration::from_millis(1001);
            alone.usage.observe(&touches(alone.now), alone.now);
        }
    };
    seconds(&mut alone, 40, &|now| vec![copies(4.0, now)]);
    assert!(alone.outlook(1).is_known() && (alone.outlook(1).used - 0.1).abs() < 0.02, "{:?}", alone.outlook(1));
    assert!(!alone.outlook(0).is_known());
    seconds(&mut alone, 60, &|_| Vec::new());
    assert!(alone.outlook(1).used < 0.01, "no copies, no use: {:?}", alone.outlook(1));
}

#[test]
fn what_becomes_hot_or_cold_shows_within_seconds_and_its_stay_grows() {
    let mut bench = Bench::new();
    (0..40).for_each(|_| bench.second(&[0.0, 0.9]));
    assert!(bench.outlook(0).is_known() && bench.outlook(0).used == 0.0);
    assert!(bench.outlook(1).used > 0.8, "{:?}", bench.outlook(1));
    (0..3).for_each(|_| bench.second(&[0.9, 0.0]));
    let (hot, cold) = (bench.outlook(0), bench.outlook(1));
    assert!(hot.used > 0.8 && cold.used < 0.1 && hot.is_known() && cold.is_known(), "{hot:?} {cold:?}");
    assert!((2.0..=40.0).contains(&hot.stay_s), "{hot:?}");
}

#[test]
fn events_that_come_in_two_parts_and_a_monitor_that_is_aimed_anew_end_no_life() {
    let mut bench = Bench::new();
    for second in 0..60 {
        // Nobody looks for four seconds; and the two halves of what is seen then come far apart.
        bench.now += Duration::from_secs(if second % 10 == 9 { 4 } else { 1 });
        let touch = |block: u64, at: Instant| Touch {
            pid: JOB,
            range: Range::new(block * BLOCK, (block + 1) * BLOCK),
            kind: TouchKind::Access,
            weight: 0.5,
            at,
        };
        bench.usage.observe(&[touch(0, bench.now)], bench.now);
        let late = bench.now + Duration::from_millis(80);
        bench.usage.observe(&[touch(1, late)], late + 2 * LATE);
    }
    for block in [0, 1] {
        let outlook = bench.outlook(block);
        assert!((outlook.used - 0.5).abs() < 0.01 && outlook.stay_s > 60.0, "{block}: {outlook:?}");
    }
}

#[test]
fn nothing_is_known_of_what_nobody_looked_at_or_that_has_gone() {
    let mut bench = Bench::new();
    assert!(!bench.outlook(0).is_known());
    (0..60).for_each(|_| bench.second(&[0.0]));
    assert!(bench.outlook(0).is_known() && !bench.outlook(1).is_known());
    bench.usage.forget(JOB);
    assert!(!bench.outlook(0).is_known());
}

#[test]
fn page_faults_alone_have_a_step_too() {
    let (mut usage, start) = (Usage::new(Instant::now(), Duration::from_secs(1)), Instant::now());
    for second in 0..300u64 {
        let now = start + Duration::from_secs(second);
        let fault = |block: u64| Touch {
            pid: JOB,
            range: Range::new(block * BLOCK, (block + 1) * BLOCK),
            kind: TouchKind::Fault,
            weight: 3.0,
            at: now,
        };
        let faults: Vec<Touch> = (0..20).filter(|_| second % 20 < 4).map(fault).collect();
        usage.observe(&faults, now);
    }
    let (_, step) = usage.step().unwrap();
    assert!((19.0..21.0).contains(&(step.period as f64 / 1e9)), "{step:?}");
    assert!(!usage.outlook(JOB, 0, start).is_known(), "how much it is used they do not say");
}

#[test]
fn nonsense_is_left_out() {
    let (mut usage, now) = (Usage::new(Instant::now(), Duration::from_secs(1)), Instant::now());
    let touch = |start, end, weight, kind| Touch { pid: JOB, range: Range { start, end }, kind, weight, at: now };
    let touches = [
        touch(0, u64::MAX, 1.0, TouchKind::Access),
        touch(0, BLOCK, f32::NAN, TouchKind::Access),
        touch(0, BLOCK, -1.0, TouchKind::Fault),
        touch(BLOCK, BLOCK, 1.0, TouchKind::Access),
        touch(u64::MAX - 5, u64::MAX, f32::MAX, TouchKind::Access),
    ];
    usage.observe(&touches, now);
    usage.observe(&[], now + Duration::from_secs(1));
    assert_eq!(usage.blocks.len(), 1, "one of them is a place");
    assert!(usage.step().is_none());
}

/// What a usage says at the beginning of each step of a made job over the script's own mean: the sampled looks of the
/// generator are all that it is told.
fn ratios(workload: &Workload) -> Vec<f64> {
    let (start, mut ratios) = (Instant::now(), Vec::new());
    let mut usage = Usage::new(start, Duration::from_secs(1));
    let starts = &workload.steps[0];
    for (at, touches) in workload.touches.iter().enumerate() {
        let now = start + Duration::from_nanos((at as u64 + 1) * workload.interval);
        let touch = |touch: &tensortier_replay::workload::Touch| {
            let region = &workload.regions[touch.region];
            let range = Range::new(region.start, region.start + region.bytes);
            Touch { pid: JOB, range, kind: TouchKind::Access, weight: touch.heat, at: now }
        };
        let touches: Vec<Touch> = touches.iter().map(touch).collect();
        usage.observe(&touches, now + 2 * LATE);
        let ended = (at as u64 + 1) * workload.interval;
        let step = starts.iter().take_while(|begun| **begun <= ended).count();
        if (5..=15).contains(&step)
            && let Some((_, found)) = usage.step()
        {
            let mean = (starts[step - 1] - starts[0]) as f64 / (step - 1) as f64;
            ratios.push(found.period as f64 / mean);
        }
    }
    ratios
}

#[test]
fn the_period_of_an_optimizer_sweep_with_jitter_is_within_2_percent() {
    for seed in 1..=3 {
        let workload = generate::find("optimizer").unwrap().make(&Spec { seed, steps: 16, ..Spec::default() });
        let mut found = ratios(&workload);
        found.sort_by(f64::total_cmp);
        let middle = found[found.len() / 2];
        assert!((middle - 1.0).abs() <= 0.02, "seed {seed}: {middle}");
    }
}
