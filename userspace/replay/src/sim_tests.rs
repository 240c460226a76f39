use tensortier_model::Profiles;

use super::*;
use crate::workload::{Pattern, Region};

const GIB: Bytes = 1 << 30;

/// Asks for what it is told to, interval by interval.
struct Script(std::vec::IntoIter<Vec<Move>>);

impl Policy for Script {
    fn name(&self) -> String {
        "script".into()
    }

    fn decide(&mut self, _: &View) -> Vec<Move> {
        self.0.next().unwrap_or_default()
    }
}

fn script(moves: Vec<Vec<Move>>) -> Script {
    Script(moves.into_iter())
}

fn costs() -> Costs {
    Costs::new(&Profiles::builtin(), "cxl-asic").expect("built in")
}

/// Two regions of 1 GiB, each read once an interval.
fn pair(intervals: usize) -> Workload {
    let region = |start| Region { start, bytes: GIB, job: 0, pattern: Pattern::Stream, born: 0, dies: intervals };
    let touch = |region| Touch { region, read: GIB / 64, written: 0, heat: 0.05 };
    Workload {
        name: "pair".into(),
        interval: 1_000_000_000,
        regions: vec![region(0), region(GIB)],
        touches: vec![vec![touch(0), touch(1)]; intervals],
        steps: vec![(0..=intervals as u64).map(|at| at * 1_000_000_000).collect()],
    }
}

#[test]
fn first_touch_fills_the_top_and_accesses_are_priced_where_they_are() {
    let run = run(&pair(2), &costs(), GIB, &mut script(vec![]));
    let bytes = GIB as f64;
    let expected = bytes / 200.0 + bytes / 22.0;
    let first = run.intervals[0];
    assert!((first.access_ns - expected).abs() < 1.0, "{first:?}");
    assert_eq!((first.move_ns, first.promoted, first.demoted), (0.0, 0, 0));
    let totals = run.totals(0);
    assert_eq!(totals.top_share, 0.5);
    assert!((totals.cost_ns - 2.0 * expected).abs() < 1.0);
    // Both tiers stream at once; with all in DRAM it would have been 2 GiB at 200 GB/s.
    assert!((first.time_ns - (1e9 - 2.0 * bytes / 200.0 + bytes / 22.0)).abs() < 1.0, "{first:?}");
    assert_eq!(run.totals(2), Totals { top_share: 1.0, ..Totals::default() });
}

#[test]
fn a_move_is_made_before_the_next_interval_and_is_cut_to_the_room() {
    let swap = vec![Move { region: 0, top: GIB / 4 }, Move { region: 1, top: GIB }];
    let run = run(&pair(2), &costs(), GIB, &mut script(vec![swap]));
    let (first, second) = (run.intervals[0], run.intervals[1]);
    assert_eq!(first.promoted + first.demoted, 0);
    assert_eq!((second.demoted, second.promoted, second.refused), (GIB / 4 * 3, GIB / 4 * 3, GIB / 4));
    let moved = costs().move_ns(GIB / 4 * 3, Level::Top) + costs().move_ns(GIB / 4 * 3, Level::Lower);
    assert!((second.move_ns - moved).abs() < 1.0);
    assert_eq!((first.top_lines, second.top_lines), ((GIB / 64) as f64, (GIB / 64) as f64));
    let steps = run.step_ns(&[0, 1_000_000_000, 2_000_000_000]);
    assert!((steps[0] - first.time_ns).abs() < 1.0 && (steps[1] - second.time_ns).abs() < 1.0);
    let half = run.step_ns(&[0, 500_000_000])[0];
    assert!((half - first.time_ns / 2.0).abs() < 1.0);
}

#[test]
fn the_dead_give_their_room_to_the_new_born() {
    let mut work = pair(3);
    work.regions[0].dies = 1;
    work.regions[1].born = 1;
    let run = run(&work, &costs(), GIB, &mut script(vec![vec![], vec![Move { region: 0, top: 1 }]]));
    let top: Vec<f64> = run.intervals.iter().map(|interval| interval.top_lines / interval.lines).collect();
    assert_eq!(top, [1.0, 1.0, 1.0], "touches of dead and unborn regions count nowhere");
    assert_eq!(run.totals(0).moved, 0, "a region that is not there does not move");
}

#[test]
fn the_same_work_on_a_slower_tier_takes_longer() {
    let profiles = Profiles::builtin();
    let time = |name| {
        let costs = Costs::new(&profiles, name).expect("built in");
        run(&pair(4), &costs, GIB, &mut script(vec![])).totals(0).time_ns
    };
    assert!(time("cxl-remote-numa") < time("cxl-asic") && time("cxl-asic") < time("cxl-fpga"));
    assert!(Costs::new(&profiles, "cxl").is_err());
}
