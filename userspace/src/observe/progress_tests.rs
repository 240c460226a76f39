//! Synthetic series: what is told from noise, and what is not.
#![allow(clippy::unwrap_used)]

use super::*;

/// A repeatable series around `mean`, `noise` of it either way.
fn series(mean: f64, noise: f64, count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64 * 2.0 - 1.0
    };
    (0..count).map(|_| mean * (1.0 + noise * next())).collect()
}

fn feed(tracker: &mut Tracker, rates: &[f64], moves: Moves) {
    rates.iter().for_each(|rate| tracker.add(*rate, moves));
}

/// Still at one rate, moving, still at another.
fn spell(tracker: &mut Tracker, before: f64, after: f64, noise: f64, seed: u64) {
    feed(tracker, &series(before, noise, 16, seed), Moves::None);
    feed(tracker, &series(before * 0.7, noise, 4, seed + 1), Moves::ForIt);
    feed(tracker, &series(after, noise, 12, seed + 2), Moves::None);
}

fn verdict(before: f64, after: f64, noise: f64, seed: u64) -> Option<Verdict> {
    let mut tracker = Tracker::default();
    spell(&mut tracker, before, after, noise, seed);
    tracker.progress().verdict
}

#[test]
fn faster_and_slower_are_told_and_the_ratio_is_that_of_the_step_times() {
    assert_eq!(verdict(100.0, 190.0, 0.1, 1), Some(Verdict::Faster));
    assert_eq!(verdict(100.0, 80.0, 0.1, 1), Some(Verdict::Slower));
    let mut tracker = Tracker::default();
    spell(&mut tracker, 100.0, 200.0, 0.0, 1);
    let progress = tracker.progress();
    assert_eq!((progress.step_time_ratio, progress.unknown), (Some(0.5), None));
    assert_eq!(progress.before.unwrap().per_second, 100.0);
}

#[test]
fn noise_is_no_difference_and_so_is_a_change_below_the_margin() {
    for noise in [0.05, 0.3] {
        let (mut tracker, mut told, mut stopped) = (Tracker::default(), 0, 0);
        for seed in 0..4000 {
            spell(&mut tracker, 100.0, 100.0, noise, seed * 3);
            told += u32::from(tracker.slower());
            if tracker.stops() {
                stopped += 1;
                tracker.restart();
            }
        }
        assert!(told < 160 && stopped < 12, "of 4000 spells {told} were called slower and {stopped} stopped");
    }
    assert_eq!(verdict(100.0, 97.0, 0.0, 1), Some(Verdict::NoDifference));
    assert_eq!(verdict(100.0, 94.0, 0.0, 1), Some(Verdict::Slower));
}

#[test]
fn a_checkpoint_after_the_moves_is_no_slower_job() {
    let mut tracker = Tracker::default();
    feed(&mut tracker, &series(100.0, 0.05, 16, 1), Moves::None);
    feed(&mut tracker, &[80.0; 3], Moves::ForIt);
    feed(&mut tracker, &[100.0, 99.0, 101.0, 0.0, 0.0, 100.0, 98.0, 102.0, 100.0, 99.0], Moves::None);
    assert_eq!((tracker.progress().verdict, tracker.slower()), (Some(Verdict::NoDifference), false));
}

#[test]
fn a_job_disturbed_just_after_the_moves_is_waited_for() {
    let mut tracker = Tracker::default();
    feed(&mut tracker, &series(100.0, 0.05, 16, 1), Moves::None);
    feed(&mut tracker, &[80.0; 3], Moves::ForIt);
    feed(&mut tracker, &[200.0, 60.0, 62.0, 61.0, 60.0, 200.0, 199.0, 201.0, 200.0, 202.0], Moves::None);
    assert_eq!(tracker.progress().verdict, None, "it rose by three");
    feed(&mut tracker, &series(200.0, 0.05, 12, 2), Moves::None);
    assert_eq!(tracker.progress().verdict, Some(Verdict::Faster));

    // One that never is steady is given up, and what comes then may be compared with what follows.
    feed(&mut tracker, &[80.0; 3], Moves::ForIt);
    feed(&mut tracker, &(0..40).map(|n| 100.0 * 1.2_f64.powi(n)).collect::<Vec<_>>(), Moves::None);
    let progress = tracker.progress();
    assert!(progress.verdict.is_none() && progress.unknown.unwrap().contains("no steady rate"));
}

#[test]
fn a_step_longer_than_a_sample_widens_the_notches_and_decides_nothing() {
    let phases = |high: f64| (0..16).map(|n| if n % 4 < 2 { high } else { 1.0 }).collect::<Vec<_>>();
    let mut tracker = Tracker::default();
    feed(&mut tracker, &phases(100.0), Moves::None);
    feed(&mut tracker, &[50.0; 3], Moves::ForIt);
    feed(&mut tracker, &phases(70.0), Moves::None);
    assert_eq!(tracker.progress().verdict, Some(Verdict::NoDifference));
    assert!(!tracker.slower());
}

#[test]
fn a_job_that_warms_up_or_moves_at_once_is_not_known() {
    let mut rising = Tracker::default();
    feed(&mut rising, &(1..17).map(|n| f64::from(n) * 10.0).collect::<Vec<_>>(), Moves::None);
    assert_eq!(rising.progress().before, None);
    feed(&mut rising, &[100.0; 3], Moves::ForIt);
    feed(&mut rising, &[80.0; 12], Moves::None);
    let progress = rising.progress();
    assert_eq!((progress.verdict, rising.slower()), (None, false));
    assert!(progress.unknown.unwrap().contains("before there was a steady rate"));

    let mut at_once = Tracker::default();
    feed(&mut at_once, &[100.0; 7], Moves::None);
    feed(&mut at_once, &[100.0; 3], Moves::ForIt);
    feed(&mut at_once, &[50.0; 12], Moves::None);
    assert_eq!(at_once.progress().verdict, None);
    // What came after is what the next moves are held against.
    feed(&mut at_once, &[50.0; 3], Moves::ForIt);
    feed(&mut at_once, &[60.0; 12], Moves::None);
    assert_eq!(at_once.progress().verdict, Some(Verdict::Faster));
}

#[test]
fn two_slower_spells_in_a_row_stop_and_one_does_not() {
    let mut tracker = Tracker::default();
    spell(&mut tracker, 100.0, 80.0, 0.05, 1);
    assert!(tracker.slower() && !tracker.stops());
    spell(&mut tracker, 80.0, 90.0, 0.05, 2);
    assert!(!tracker.slower(), "a faster one between");
    spell(&mut tracker, 90.0, 70.0, 0.05, 3);
    assert!(!tracker.stops());
    spell(&mut tracker, 70.0, 60.0, 0.05, 4);
    assert!(tracker.stops());
    assert!(tracker.figures().contains(", then "), "{}", tracker.figures());
    tracker.restart();
    assert!(!tracker.slower() && tracker.progress() == Progress::default());
}

#[test]
fn moves_that_never_end_are_judged_while_they_go_on() {
    let mut tracker = Tracker::default();
    feed(&mut tracker, &series(100.0, 0.05, 16, 1), Moves::None);
    feed(&mut tracker, &series(80.0, 0.05, DURING, 2), Moves::ForIt);
    assert!(tracker.slower() && !tracker.stops());
    feed(&mut tracker, &series(80.0, 0.05, DURING, 3), Moves::ForIt);
    assert!(tracker.stops());
}

#[test]
fn a_job_that_gives_room_to_others_is_told_and_not_stopped() {
    let mut tracker = Tracker::default();
    for _ in 0..3 {
        feed(&mut tracker, &[100.0; 16], Moves::None);
        feed(&mut tracker, &[70.0; 3], Moves::ForIt);
        feed(&mut tracker, &[70.0; 1], Moves::ForOthers);
        feed(&mut tracker, &[60.0; 12], Moves::None);
        assert_eq!((tracker.progress().verdict, tracker.slower()), (Some(Verdict::Slower), false));
    }
}

#[test]
fn a_fall_to_nothing_is_other_work_and_silence_is_no_rate() {
    assert_eq!(verdict(1000.0, 5.0, 0.05, 1), Some(Verdict::OtherWork));
    let mut tracker = Tracker::default();
    spell(&mut tracker, 1000.0, 5.0, 0.05, 1);
    assert!(!tracker.slower());
    assert_eq!(Rate::of(&[0.0; 16]), None);
    assert_eq!(verdict(0.0, 0.0, 0.0, 1), None);
    assert_eq!(verdict(100.0, 0.0, 0.0, 1), None);
}
