//! Both systems on small models: what must hold whatever the figures are.

use super::{
    host::Host,
    infinity::{self, Settings},
    step::{Outcome, simulate},
    tiered::{self, Parts},
    workload::Workload,
};

const MODEL: Workload = Workload { layers: 8, hidden: 4096, tokens: 4096 };

fn host(gpus: usize, cards: usize, drives: usize) -> Host {
    Host::builtin(gpus, cards, drives).expect("built in")
}

fn drives(gpus: usize, drives: usize, settings: &Settings) -> Outcome {
    let host = host(gpus, 0, drives);
    simulate(&host, &MODEL, &infinity::plan(&host, &MODEL, settings))
}

#[test]
fn no_step_is_faster_than_its_copies_or_its_computing() {
    for gpus in [1, 2, 8] {
        let tiered = |cards| tiered::settle(&host(gpus, cards, 1), &MODEL, Parts::ALL).0;
        for outcome in [drives(gpus, 1, &Settings::documented()), tiered(0), tiered(1), tiered(4)] {
            assert!(outcome.step >= outcome.bound * (1.0 - 1e-9), "{outcome:?}");
            assert!(outcome.step >= outcome.passes && outcome.passes >= outcome.compute, "{outcome:?}");
            let waited = outcome.stall * 2.0 * MODEL.matrices().len() as f64;
            assert!((outcome.passes - outcome.compute - waited).abs() < 1e-6, "{outcome:?}");
        }
    }
}

#[test]
fn more_drives_and_better_settings_help_the_baseline() {
    let one = drives(8, 1, &Settings::documented());
    let four = drives(8, 4, &Settings::documented());
    let tuned = drives(8, 4, &Settings::tuned());
    assert!(four.step < one.step && tuned.step < four.step, "{one:?} {four:?} {tuned:?}");
}

#[test]
fn each_part_of_the_bridge_helps_or_does_nothing() {
    let work = Workload { layers: 24, ..MODEL };
    for gpus in [1, 8] {
        let host = host(gpus, 2, 1);
        let all = tiered::settle(&host, &work, Parts::ALL).0.step;
        for parts in [
            Parts { numa: false, ..Parts::ALL },
            Parts { dap: false, ..Parts::ALL },
            Parts { pool: false, ..Parts::ALL },
        ] {
            let without = tiered::settle(&host, &work, parts).0.step;
            assert!(all <= without * 1.001, "{gpus} GPUs, {parts:?}: {all} against {without}");
        }
    }
}

#[test]
fn rounding_to_powers_of_two_leaves_room_for_less() {
    let host = host(8, 2, 1);
    let most = |pool| {
        let fits = |layers: &u64| tiered::fits(&host, &Workload { layers: *layers, hidden: 5120, tokens: 8192 }, pool);
        (1..4096).take_while(fits).last().expect("one layer fits")
    };
    assert!(most(true) as f64 > 1.2 * most(false) as f64, "{} {}", most(true), most(false));
}
