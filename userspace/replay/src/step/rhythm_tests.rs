use super::super::{Learner, Step, hash};

/// Regions of the job, in eight groups.
const REGIONS: u64 = 128;

/// The group in use in each 24th of a step: three passes, each in another order.
fn group(part: usize) -> usize {
    [part % 8, 7 - part % 8, part * 3 % 8][part / 8 % 3]
}

/// What a learner says after each interval of steps of such lengths. The group in use is found by chance half of the
/// time, any other region a tenth of it.
fn learned(learner: &mut Learner, lengths: &[usize], group: impl Fn(usize) -> usize) -> Vec<Option<Step>> {
    let parts = lengths.iter().flat_map(|length| (0..*length).map(move |at| at * 24 / length));
    let mut now = (learner.now as u64).max(1);
    let says = parts.map(|part| {
        now += 1;
        let touched = (0..REGIONS).filter(|region| {
            let often = if (region * 8 / REGIONS) as usize == group(part) { 50 } else { 10 };
            hash(now << 8 | region) % 100 < often
        });
        learner.observe(now * 1_000_000_000, 1_000_000_000, touched);
        learner.step()
    });
    says.collect()
}

/// Lengths of steps, within a tenth of their mean.
fn lengths(mean: usize, steps: u64, seed: u64) -> Vec<usize> {
    let jitter = |step| (hash(seed << 32 | step) as usize) % (mean / 5 + 1);
    (0..steps).map(|step| mean * 9 / 10 + jitter(step)).collect()
}

fn seconds(says: &[Option<Step>]) -> Option<f64> {
    says.last().copied().flatten().map(|step| step.period as f64 / 1e9)
}

#[test]
fn memory_that_is_used_again_and_again_in_a_step_tells_it_too() {
    for (mean, seed) in [(60, 1), (60, 2), (60, 3), (60, 4), (400, 1), (400, 2), (400, 3), (400, 4)] {
        let mut learner = Learner::default();
        let steps = lengths(mean, 20, seed);
        let says = learned(&mut learner, &steps, group);
        let ratio = seconds(&says).expect("learned") * 20.0 / steps.iter().sum::<usize>() as f64;
        assert!((ratio - 1.0).abs() <= 0.03, "{mean}, seed {seed}: {ratio}");
        assert!(!learner.told, "onsets tell nothing of such a job");
        let confidence = learner.step().expect("learned").confidence;
        assert!((0.1..=1.0).contains(&confidence), "{confidence}");
        // Without what it did before, too.
        let wrong = says.iter().flatten().filter(|says| (says.period as f64 / 1e9 / mean as f64 - 1.0).abs() > 0.3);
        assert!(wrong.count() <= says.len() / 4, "{mean}, seed {seed}");
    }
}

#[test]
fn loading_before_the_first_step_is_left_behind() {
    let mut learner = Learner::default();
    // One group after the other, each once, as long as five steps.
    learned(&mut learner, &[300], |part| part / 3);
    let steps = lengths(60, 9, 5);
    let ratio =
        seconds(&learned(&mut learner, &steps, group)).expect("learned") * 9.0 / steps.iter().sum::<usize>() as f64;
    assert!((ratio - 1.0).abs() <= 0.05, "{ratio}");
}

#[test]
fn groups_used_by_chance_have_no_step_and_a_step_that_ends_is_told_no_more() {
    let chance = |seed: u64| move |part: usize| (hash(seed << 40 | part as u64) % 8) as usize;
    for seed in 1..=4 {
        // Parts of one very long step, none like another.
        let mut learner = Learner::default();
        let by_chance = |learner: &mut Learner, salt: u64| {
            let mut says = Vec::new();
            for turn in 0..60 {
                says.extend(learned(learner, &[24], chance(seed * 1000 + salt + turn)));
            }
            says
        };
        assert!(by_chance(&mut learner, 0).iter().all(Option::is_none), "seed {seed}");
        learned(&mut learner, &lengths(60, 14, seed), group);
        let told = learner.step();
        assert!(told.is_some(), "seed {seed}");
        assert_eq!(by_chance(&mut learner, 500).last(), Some(&None), "seed {seed}: {told:?}");
    }
}

#[test]
fn memory_that_is_used_all_the_time_has_no_step_whatever_the_monitor_misses() {
    for seed in 1..=20 {
        let mut learner = Learner::default();
        for second in 1..=1000_u64 {
            let seen = (0..16_u64).filter(|region| hash(seed << 50 | second << 8 | region) % 100 < 90);
            learner.observe(second * 1_000_000_000, 1_000_000_000, seen);
            assert_eq!(learner.step(), None, "seed {seed}, after {second} s");
        }
    }
}

#[test]
fn a_job_that_is_not_heard_of_for_long_is_learned_anew() {
    let mut learner = Learner::default();
    learned(&mut learner, &lengths(60, 14, 1), group);
    let then = learner.now as u64 + 1000;
    learner.observe(then * 1_000_000_000, 1_000_000_000, 0..REGIONS);
    assert_eq!(learner.step(), None);
}
