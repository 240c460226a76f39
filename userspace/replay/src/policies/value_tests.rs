use super::*;

const SWAP: f32 = 0.6;

/// So many intervals of a second with these gains; what ended in them.
fn after(value: &mut Value, from: u32, gains: impl IntoIterator<Item = f32>, step: Option<f32>) -> (f64, Vec<f32>) {
    let (mut now, mut ended) = (f64::from(from), Vec::new());
    let of = Common { step, ..Common::default() };
    for gain in gains {
        now += 1.0;
        ended.extend(value.observe(now, 1.0, gain, &of, SWAP));
    }
    (now, ended)
}

#[test]
fn over_whole_steps_it_does_not_matter_when_a_region_is_used() {
    let value = |at: usize| {
        let mut value = Value::default();
        value.born(0.0);
        after(&mut value, 0, (0..200).map(|second| if second % 20 == at { 0.1 } else { 0.0 }), Some(20.0));
        (value.mean, value.doubt(&Common::default()))
    };
    assert_eq!(value(0), value(19));
    assert!((value(7).0 - 0.005).abs() < 1e-7 && value(7).1 < 1e-12, "{:?}", value(7));
}

#[test]
fn a_change_shows_when_it_comes_to_a_move_and_starts_a_new_stay() {
    let mut value = Value::default();
    value.born(0.0);
    let (now, _) = after(&mut value, 0, [0.0; 100], None);
    assert_eq!((value.mean, value.stay(now, 0.0)), (0.0, STAY));
    let (now, _) = after(&mut value, 100, [0.2], None);
    assert_eq!(value.mean, 0.0, "0.2 is less than a move");
    let (now, _) = after(&mut value, now as u32, [0.2], None);
    assert!((value.mean - 0.2).abs() < 1e-6, "{}", value.mean);
    assert_eq!((value.stay(now, 0.0), value.stay(now, 60.0), value.doubt(&Common::default())), (2.0, 58.0, 0.0));
    let (now, ended) = after(&mut value, now as u32, [0.2, 0.0, 0.0], None);
    assert!(value.mean < 1e-6 && value.stay(now, 0.0) == 2.0, "and back: {value:?}");
    assert_eq!(ended, [3.0], "used for three seconds");
}

#[test]
fn noise_is_doubted_and_three_windows_are_the_least() {
    let mut value = Value::default();
    value.born(0.0);
    after(&mut value, 0, [0.01; 20], None);
    assert!(value.is_known() && value.doubt(&Common::default()).is_infinite());
    after(&mut value, 20, (0..200).map(|second| if second / 10 % 2 == 0 { 0.02 } else { 0.0 }), None);
    assert!((value.mean - 0.01).abs() < 0.002, "{}", value.mean);
    let deviation = value.doubt(&Common::default()).sqrt();
    assert!((0.001..0.005).contains(&deviation), "{deviation}");
}

#[test]
fn what_was_never_used_is_doubted_where_its_job_is_used_at_random() {
    let mut value = Value::default();
    value.born(0.0);
    after(&mut value, 0, [0.0; 40], None);
    assert_eq!(value.doubt(&Common::default()), 0.0);
    let random = Common { dispersion: 0.02, ..Common::default() };
    let one_event = 0.02 / 4.0;
    assert!((value.doubt(&random).sqrt() / (one_event * 1.5) - 1.0).abs() < 1e-5, "{}", value.doubt(&random).sqrt());
}

#[test]
fn a_share_of_samples_is_in_doubt_by_how_few_they_are() {
    let of = Common { samples: 20.0, ..Common::default() };
    let mut value = Value::default();
    value.born(0.0);
    let mut now = 0.0;
    let mut ended = 0;
    let mut observe = |value: &mut Value, gain: f32| {
        now += 1.0;
        ended += u32::from(value.observe(now, 1.0, gain, &of, SWAP).is_some());
    };
    (0..30).for_each(|_| observe(&mut value, 0.0));
    assert!(value.doubt(&of) < 1e-5, "none of 600: {}", value.doubt(&of));
    // It is used from now on: half of the samples find it, some seconds more than others.
    (0..6).for_each(|_| observe(&mut value, 0.8));
    let first = value.doubt(&of);
    assert!((value.mean - 0.8).abs() < 1e-6 && first >= 0.16 / 20.0 / 6.0, "{value:?} {first}");
    (0..200).for_each(|second| observe(&mut value, if second % 3 == 0 { 0.7 } else { 0.4 }));
    assert!((value.mean - 0.5).abs() < 0.05 && value.doubt(&of) < first / 4.0, "{value:?} {}", value.doubt(&of));
    assert_eq!(ended, 0, "such differences are no changes");
}

#[test]
fn no_stay_is_longer_than_a_life() {
    let mut value = Value::default();
    for life in 0..5 {
        let from = life * 20;
        value.born(f64::from(from));
        after(&mut value, from, [0.01; 8], None);
        value.died(f64::from(from) + 8.0);
    }
    value.born(100.0);
    assert!((value.stay(103.0, 0.0) - 5.0).abs() < 1e-5, "{}", value.stay(103.0, 0.0));
    assert_eq!(value.stay(120.0, 0.0), 0.0);
}
