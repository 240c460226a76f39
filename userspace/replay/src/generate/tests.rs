use tensortier_model::{Bytes, Profiles};

use super::*;
use crate::{
    cost::{Costs, Level},
    workload::LINE,
};

fn small(seed: u64) -> Spec {
    Spec { seed, steps: 12, ..Spec::default() }
}

#[test]
fn a_spec_gives_one_workload_and_a_seed_another() {
    for generator in &ALL {
        let (one, again, other) = (generator.make(&small(1)), generator.make(&small(1)), generator.make(&small(2)));
        assert_eq!(one, again, "{}", generator.name);
        assert_ne!(one.touches, other.touches, "{}", generator.name);
        assert!(find(generator.name).is_some_and(|found| found.name == one.name));
    }
    assert!(find("nothing").is_none());
}

#[test]
fn touches_are_in_order_within_lives_and_memory_fits_into_the_time() {
    let costs = Costs::new(&Profiles::builtin(), "cxl-asic").expect("built in");
    for generator in &ALL {
        let workload = generator.make(&small(3));
        assert!(workload.intervals() > 100, "{}", generator.name);
        for (at, touches) in workload.touches.iter().enumerate() {
            assert!(touches.is_sorted_by(|a, b| a.region < b.region), "{} at {at}", generator.name);
            let mut busy = 0.0;
            for touch in touches {
                let region = workload.regions[touch.region];
                assert!((region.born..region.dies).contains(&at), "{}: {region:?} at {at}", generator.name);
                assert!((0.0..=1.0).contains(&touch.heat) && touch.lines() > 0);
                busy += costs.access_ns(Level::Top, region.pattern, touch.read as f64, touch.written as f64);
            }
            assert!(busy < workload.interval as f64, "{} at {at}: {busy} ns of memory time", generator.name);
        }
        assert!(workload.footprint() >= 8 << 30, "{}", generator.name);
    }
}

#[test]
fn steps_have_their_mean_and_jitter() {
    for (name, mean) in [("optimizer", 20.0), ("fsdp", 16.0), ("embedding", 10.0), ("rotating", 12.0)] {
        let generator = find(name).expect("listed");
        let lengths = |spec: &Spec| -> Vec<f64> {
            let starts = generator.make(spec).steps[0].clone();
            starts.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e9).collect()
        };
        let exact = lengths(&Spec { jitter: 0.0, ..small(1) });
        assert!(exact.iter().all(|length| (length - mean).abs() < 1e-6), "{name}: {exact:?}");
        let jittered = lengths(&Spec { steps: 50, ..Spec::default() });
        assert_eq!(jittered.len(), 50);
        let (least, most) =
            (jittered.iter().copied().fold(f64::MAX, f64::min), jittered.iter().copied().fold(0.0, f64::max));
        assert!(least >= 0.9 * mean && least < 0.93 * mean && most <= 1.1 * mean && most > 1.07 * mean, "{name}");
    }
}

#[test]
fn the_optimizer_sweeps_all_of_its_states_once_a_step() {
    let workload = find("optimizer").expect("listed").make(&Spec { steps: 4, ..Spec::default() });
    let lines = |region: usize| -> u64 { touches(&workload, region).map(|touch| touch.lines()).sum() };
    let region: Bytes = workload.regions[0].bytes / LINE;
    assert_eq!((lines(0), lines(8), lines(63)), (8 * region, 8 * region, 8 * region));
    assert_eq!(touches(&workload, 63).map(|touch| touch.written).sum::<u64>(), 4 * region);
}

#[test]
fn activations_grow_and_die_in_each_step_at_the_same_addresses() {
    let workload = find("activations").expect("listed").make(&Spec { steps: 3, ..Spec::default() });
    let born: Vec<_> = workload.regions.iter().filter(|region| region.dies < workload.intervals()).collect();
    assert_eq!(born.len(), 48);
    assert!(born.iter().zip(&born[16..]).all(|(first, next)| first.start == next.start && first.dies <= next.born + 1));
    assert!((24 << 28..=33 << 28).contains(&workload.footprint()));
}

#[test]
fn zipf_is_skewed_and_uniform_is_not() {
    let share_of_top_quarter = |name: &str| {
        let workload = find(name).expect("listed").make(&Spec::default());
        let mut lines: Vec<u64> =
            (0..64).map(|region| touches(&workload, region).map(|touch| touch.lines()).sum()).collect();
        lines.sort_unstable_by_key(|lines| std::cmp::Reverse(*lines));
        lines[..16].iter().sum::<u64>() as f64 / lines.iter().sum::<u64>() as f64
    };
    // The 16 first of 64 ranks have 0.71 of a zipf distribution.
    assert!((share_of_top_quarter("embedding") - 0.71).abs() < 0.02);
    assert!((share_of_top_quarter("experts-zipf") - 0.71).abs() < 0.04);
    assert!(share_of_top_quarter("experts-uniform") < 0.32);
}

#[test]
fn sampled_heat_has_the_expected_mean() {
    let generator = find("rotating").expect("listed");
    let mean = |sampled| {
        let workload = generator.make(&Spec { sampled, ..Spec::default() });
        let all: Vec<f64> = workload.touches.iter().flatten().map(|touch| f64::from(touch.heat)).collect();
        all.iter().sum::<f64>() / all.len() as f64
    };
    assert!((mean(true) - mean(false)).abs() < 0.01);
}

fn touches(workload: &Workload, region: usize) -> impl Iterator<Item = &crate::workload::Touch> {
    workload.touches.iter().flatten().filter(move |touch| touch.region == region)
}
