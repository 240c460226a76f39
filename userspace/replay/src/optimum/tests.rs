//! Against every schedule of tiny workloads, and against the simulation's own account.

use proptest::prelude::*;
use tensortier_model::Profiles;

use super::*;
use crate::{
    sim::run,
    workload::{LINE, Pattern, Region},
};

const SIZE: Bytes = 1 << 20;

fn costs() -> Costs {
    Costs::new(&Profiles::builtin(), "cxl-asic").expect("built in")
}

/// Up to 4 regions and 6 intervals; sizes in pages of `SIZE`, touches from nothing to some dozens of passes.
fn tiny(sizes: std::ops::RangeInclusive<u64>) -> impl Strategy<Value = (Workload, Bytes)> {
    let life = (0usize..6, 1usize..=6, sizes, any::<bool>());
    let accesses = prop::collection::vec(prop_oneof![2 => Just(0u64), 3 => 1u64..40], 24);
    (prop::collection::vec(life, 1..=4), accesses, 1u64..=6).prop_map(|(lives, accesses, capacity)| {
        let region = |(born, length, size, random): (usize, usize, u64, bool)| Region {
            start: 0,
            bytes: size * SIZE,
            job: 0,
            pattern: if random { Pattern::Random } else { Pattern::Stream },
            born,
            dies: (born + length).min(6),
        };
        let regions: Vec<Region> = lives.into_iter().map(region).collect();
        let touch = |at: usize, region: usize| Touch {
            region,
            read: accesses[at * 4 + region] * regions[region].bytes / LINE,
            written: accesses[at * 4 + region] * 100,
            heat: 0.5,
        };
        let used = |at: usize, region: &usize| {
            accesses[at * 4 + region] > 0 && (regions[*region].born..regions[*region].dies).contains(&at)
        };
        let touches = (0..6)
            .map(|at| (0..regions.len()).filter(|region| used(at, region)).map(|region| touch(at, region)).collect())
            .collect();
        let workload = Workload { name: "tiny".into(), interval: 1 << 30, regions, touches, steps: vec![] };
        (workload, capacity * SIZE)
    })
}

/// The least cost over all sequences of sets of whole regions, by going through the sets of each interval in turn.
fn brute_force(workload: &Workload, costs: &Costs, capacity: Bytes) -> f64 {
    let count = workload.regions.len();
    let lives = |region: usize, at: usize| (workload.regions[region].born..workload.regions[region].dies).contains(&at);
    let mut best: Vec<(usize, f64)> = Vec::new();
    for at in 0..workload.intervals() {
        let mut now = Vec::new();
        for set in 0..1usize << count {
            let on_top = |region: usize| set >> region & 1 == 1;
            let bytes: Bytes = (0..count).filter(|r| on_top(*r)).map(|r| workload.regions[r].bytes).sum();
            if bytes > capacity || (0..count).any(|region| on_top(region) && !lives(region, at)) {
                continue;
            }
            let price = |touch: &Touch| {
                let level = if on_top(touch.region) { Level::Top } else { Level::Lower };
                let pattern = workload.regions[touch.region].pattern;
                costs.access_ns(level, pattern, touch.read as f64, touch.written as f64)
            };
            let access: f64 = workload.touches[at].iter().map(price).sum();
            let moved = |before: usize| -> f64 {
                let change = |region: usize| {
                    let stays = lives(region, at) && at > 0 && lives(region, at - 1);
                    let (was, is) = (before >> region & 1 == 1, on_top(region));
                    let to = if is { Level::Top } else { Level::Lower };
                    if stays && was != is { costs.move_ns(workload.regions[region].bytes, to) } else { 0.0 }
                };
                (0..count).map(change).sum()
            };
            let before = best.iter().map(|(before, cost)| cost + moved(*before)).min_by(f64::total_cmp);
            now.push((set, before.unwrap_or(0.0) + access));
        }
        best = now;
    }
    best.into_iter().map(|(_, cost)| cost).min_by(f64::total_cmp).unwrap_or(0.0)
}

/// The least cost over all sets that never change, whole regions only.
fn brute_fixed(workload: &Workload, costs: &Costs, capacity: Bytes) -> f64 {
    let count = workload.regions.len();
    let cost = |set: usize| {
        let top = |r: usize| if set >> r & 1 == 1 { workload.regions[r].bytes } else { 0 };
        let lives = |r: usize, at: usize| (workload.regions[r].born..workload.regions[r].dies).contains(&at);
        let fits = |at| (0..count).filter(|r| lives(*r, at)).map(top).sum::<Bytes>() <= capacity;
        let steps = (0..count).map(|r| vec![(workload.regions[r].born, top(r))]).collect();
        let mut fixed = Schedule::new("set", workload.intervals(), steps);
        (0..workload.intervals()).all(fits).then(|| run(workload, costs, capacity, &mut fixed).totals(0).cost_ns)
    };
    (0..1usize << count).filter_map(cost).min_by(f64::total_cmp).unwrap_or(0.0)
}

fn cost_of(workload: &Workload, capacity: Bytes, mut schedule: Schedule) -> f64 {
    let run = run(workload, &costs(), capacity, &mut schedule);
    assert_eq!(run.intervals.iter().map(|interval| interval.refused).sum::<u64>(), 0, "the schedule fits");
    run.totals(0).cost_ns
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.max(b) + 1.0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn with_equal_regions_the_flow_is_the_best_of_all_schedules((workload, capacity) in tiny(1..=1)) {
        let found = cost_of(&workload, capacity, optimum(&workload, &costs(), capacity));
        let best = brute_force(&workload, &costs(), capacity);
        prop_assert!(close(found, best), "{found} against {best}");
    }

    #[test]
    fn with_regions_of_any_size_it_is_a_bound((workload, capacity) in tiny(1..=4)) {
        let found = cost_of(&workload, capacity, optimum(&workload, &costs(), capacity));
        let best = brute_force(&workload, &costs(), capacity);
        prop_assert!(found <= best * (1.0 + 1e-9) + 1.0, "{found} over {best}");
    }

    #[test]
    fn cutting_regions_into_equal_parts_changes_nothing((workload, capacity) in tiny(1..=4)) {
        let whole = cost_of(&workload, capacity, optimum(&workload, &costs(), capacity));
        let parts = cut(&workload);
        let cut = cost_of(&parts, capacity, optimum(&parts, &costs(), capacity));
        prop_assert!((whole - cut).abs() <= 1e-6 * whole + 100.0, "{whole} whole, {cut} cut");
    }

    #[test]
    fn the_best_fixed_set_is_the_best_of_all_sets((workload, capacity) in tiny(1..=1)) {
        let found = cost_of(&workload, capacity, best_fixed(&workload, &costs(), capacity));
        let best = brute_fixed(&workload, &costs(), capacity);
        prop_assert!(close(found, best), "{found} against {best}");
    }
}

/// Each region as parts of `SIZE` that share its accesses.
fn cut(workload: &Workload) -> Workload {
    let mut out = Workload { regions: Vec::new(), touches: vec![Vec::new(); workload.intervals()], ..workload.clone() };
    for (index, region) in workload.regions.iter().enumerate() {
        let parts = region.bytes / SIZE;
        for part in 0..parts {
            let new = out.regions.len();
            out.regions.push(Region { bytes: SIZE, ..*region });
            for (at, touches) in workload.touches.iter().enumerate() {
                let share = |lines: u64| lines * (part + 1) / parts - lines * part / parts;
                let own = touches.iter().filter(|touch| touch.region == index).map(|touch| Touch {
                    region: new,
                    read: share(touch.read),
                    written: share(touch.written),
                    heat: touch.heat,
                });
                out.touches[at].extend(own);
            }
        }
    }
    out
}

#[test]
fn it_promotes_for_many_uses_and_stays_for_few() {
    let region = |born| Region { start: 0, bytes: SIZE, job: 0, pattern: Pattern::Random, born, dies: 9 };
    let touch = |region, passes: u64| Touch { region, read: passes * SIZE / LINE, written: 0, heat: 1.0 };
    let work = |late: u64| Workload {
        name: "turn".into(),
        interval: 1 << 30,
        regions: vec![region(0), region(0)],
        touches: (0..9).map(|at| vec![touch(usize::from(at > 2), late)]).collect(),
        steps: vec![],
    };
    let moved = |work: &Workload| run(work, &costs(), SIZE, &mut optimum(work, &costs(), SIZE)).totals(0).moved;
    assert_eq!(moved(&work(100)), 2 * SIZE, "the used region takes the place of the unused one");
    assert_eq!(moved(&work(1)), 0, "six passes do not pay for two moves");
}
