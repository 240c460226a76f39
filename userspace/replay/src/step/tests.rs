use super::{
    judge::{learned, median, ratios},
    *,
};
use crate::generate::{self, Spec};

#[test]
fn the_period_is_within_2_percent_on_every_periodic_generator_with_10_percent_jitter() {
    for generator in generate::ALL.iter().filter(|generator| generator.periodic) {
        for seed in 1..=8 {
            let workload = generator.make(&Spec { seed, steps: 20, ..Spec::default() });
            for job in 0..workload.steps.len() {
                let ratios = ratios(&workload, job as u32);
                let known: Vec<f64> = ratios[4..15].iter().flatten().copied().collect();
                let middle = median(known.iter().copied()).expect("known in some");
                let name = format!("{} seed {seed} job {job}", generator.name);
                assert!(known.len() >= 9, "{name}: not known in {} of 11 steps", 11 - known.len());
                assert!((middle - 1.0).abs() <= 0.02, "{name}: {middle}");
                assert!(known.iter().all(|ratio| (ratio - 1.0).abs() < 0.08), "{name}: {known:?}");
            }
        }
    }
}

#[test]
fn without_jitter_it_is_exact() {
    for (name, period) in [("optimizer", 20.0), ("fsdp", 16.0)] {
        let workload = generate::find(name).expect("listed").make(&Spec { jitter: 0.0, ..Spec::default() });
        let says = learned(&workload, 0).last().copied().flatten().expect("learned");
        let found = says.period as f64 / 1e9;
        assert!((found / period - 1.0).abs() < 0.01 && says.confidence > 0.7, "{name}: {found} {}", says.confidence);
    }
}

#[test]
fn random_routing_and_a_steady_hot_set_have_no_step() {
    for name in ["embedding", "experts-uniform", "experts-zipf", "rotating"] {
        for seed in 1..=4 {
            let workload = generate::find(name).expect("listed").make(&Spec { seed, ..Spec::default() });
            assert!(learned(&workload, 0).iter().all(Option::is_none), "{name} seed {seed}");
        }
    }
}

/// Touches of 16 regions one after the other in each step of so many seconds.
fn sweeps(lengths: &[u64]) -> (Vec<Option<Step>>, Learner) {
    let mut learner = Learner::default();
    let (mut says, mut now) = (Vec::new(), 0);
    for &length in lengths {
        for second in 0..length {
            now += 1;
            let touched = (0..16).filter(|region| region * length / 16 == second);
            learner.observe(now * 1_000_000_000, 1_000_000_000, touched);
        }
        says.push(learner.step());
    }
    (says, learner)
}

#[test]
fn a_slow_warm_up_is_left_behind_and_a_growing_batch_followed() {
    let period = |says: &[Option<Step>]| says.last().copied().flatten().map(|says| says.period as f64 / 1e9);
    let warm_up = [&[50, 40, 30][..], &[20; 7]].concat();
    let found = period(&sweeps(&warm_up).0).expect("learned");
    assert!((found - 20.0).abs() < 0.4, "{found}");
    let growing: Vec<u64> = (0..40).map(|step| 20 + step / 2).collect();
    let found = period(&sweeps(&growing).0).expect("learned");
    assert!((34.0..=40.0).contains(&found), "{found}, now 39 s");
}

#[test]
fn regions_of_a_sweep_are_used_once_a_step_each_at_its_own_time() {
    let (_, learner) = sweeps(&[20; 10]);
    let pattern = learner.pattern(0).expect("a step is known");
    assert!((pattern.uses - 1.0).abs() < 1e-9, "{pattern:?}");
    // 16 regions over 20 s, and what is touched within a second is known at its end.
    assert!(pattern.phases.iter().all(|share| (0.06..=0.13).contains(share)), "{pattern:?}");
    assert!((pattern.phases.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{pattern:?}");

    // All of them at once, twice a step.
    let mut learner = Learner::default();
    for second in 1..=200_u64 {
        let touched = (0..16).filter(|_| matches!(second % 20, 3 | 9));
        learner.observe(second * 1_000_000_000, 1_000_000_000, touched);
    }
    let pattern = learner.pattern(0).expect("a step is known");
    let expected: [f64; PARTS] = std::array::from_fn(|part| if matches!(part, 1 | 4) { 0.5 } else { 0.0 });
    assert_eq!((pattern.uses, pattern.phases), (2.0, expected));
    let (_, unknown) = sweeps(&[20]);
    assert_eq!(unknown.pattern(0), None);
}

#[test]
fn a_job_that_rests_is_told_by_what_it_did_before() {
    let (_, mut learner) = sweeps(&[20; 10]);
    let busy = learner.pattern(0).expect("a step is known");
    for second in 201..=230 {
        learner.observe(second * 1_000_000_000, 1_000_000_000, std::iter::empty());
    }
    let resting = learner.pattern(0).expect("the step is still known");
    assert_eq!(resting.uses, 1.0, "{resting:?}");
    assert_eq!(resting.phases, busy.phases);
}

fn rounded(says: Step) -> u64 {
    (says.period + 500_000_000) / 1_000_000_000
}

#[test]
fn a_first_interval_that_is_long_does_not_hide_short_steps() {
    let mut learner = Learner::by(100_000_000);
    learner.observe(1_000_000_000, 1_000_000_000, 0..16);
    for tenth in 1..=400_u64 {
        let touched = (0..16).filter(|region| region * 20 / 16 == tenth % 20);
        learner.observe(1_000_000_000 + tenth * 100_000_000, 100_000_000, touched);
    }
    let period = learner.step().map(|says| says.period);
    assert!(period.is_some_and(|period| period.abs_diff(2_000_000_000) < 50_000_000), "{period:?}");
}

#[test]
fn another_job_at_the_same_addresses_is_unlearned_and_learned_anew() {
    let (says, mut learner) = sweeps(&[[20; 10], [33; 10]].concat());
    let periods: Vec<Option<u64>> = says.iter().map(|says| says.map(rounded)).collect();
    assert_eq!(periods[9], Some(20));
    assert!(periods[13..].iter().all(|period| *period != Some(20)), "{periods:?}");
    assert!(periods[16..].iter().all(|period| matches!(period, Some(32 | 33))), "{periods:?}");
    // Then it does something else altogether: all of its memory, all the time.
    let mut now = 530;
    for _ in 0..330 {
        now += 1;
        let odd = (0..16).filter(|region| (now * 7 + region * 13) % 11 < 5 && (now / 3 + region) % 5 < 2);
        learner.observe(now * 1_000_000_000, 1_000_000_000, odd);
    }
    let left = learner.step().map(rounded);
    assert!(!matches!(left, Some(20 | 32 | 33)), "{left:?}");
}

#[test]
fn an_idle_job_keeps_no_regions_for_ever() {
    let (_, mut learner) = sweeps(&[20; 10]);
    assert_eq!(learner.trains.len(), 16);
    for second in 0..600 {
        learner.observe((201 + second) * 1_000_000_000, 1_000_000_000, std::iter::once(99));
    }
    assert!(learner.trains.len() <= 1, "{}", learner.trains.len());
}
