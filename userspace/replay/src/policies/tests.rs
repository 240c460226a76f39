use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::{Bytes, Profiles};

use super::*;
use crate::{
    baseline::{FirstTouch, Lru2q, Tpp},
    generate::{self, Spec},
    policy::{Load, Move, Seen, View},
    score,
    sim::Totals,
    workload::Workload,
};

/// Steps before anything is counted.
const WARM_UP: usize = 10;

fn costs() -> Costs {
    Costs::new(&Profiles::builtin(), "cxl-asic").expect("built in")
}

/// A generator's workload with half of its memory on the top tier.
struct Case(Workload, Costs);

impl Case {
    fn new(name: &str, seed: u64) -> Self {
        Self::of(name, &Spec { seed, ..Spec::default() })
    }

    fn of(name: &str, spec: &Spec) -> Self {
        Self(generate::find(name).expect("listed").make(spec), costs())
    }

    fn case(&self) -> score::Case<'_> {
        score::Case::new(&self.0, &self.1, self.0.footprint() / 2, self.0.after_steps(WARM_UP))
    }

    fn run(&self, policy: &mut dyn Policy) -> Totals {
        self.case().totals(policy)
    }

    fn ours(&self, rules: Rules) -> Totals {
        self.run(&mut Resident::new(&self.1, rules))
    }
}

#[test]
fn periodic_jobs_cost_at_most_a_tenth_over_the_optimum_and_move_next_to_nothing() {
    for generator in generate::ALL.iter().filter(|generator| generator.periodic) {
        for (seed, rules) in [(1, Rules::AUTO), (2, Rules::AUTO), (3, Rules::STEP)] {
            let case = Case::new(generator.name, seed);
            let (found, best) = (case.ours(rules), case.case().optimum());
            let name = format!("{} seed {seed}", generator.name);
            assert!(found.cost_ns <= 1.10 * best.cost_ns, "{name}: {} over the optimum", found.cost_ns / best.cost_ns);
            let accessed = case.case().accessed();
            assert!(found.moved as f64 <= 0.01 * accessed as f64, "{name}: moved {} of {accessed}", found.moved);
        }
    }
}

#[test]
fn the_optimizer_sweep_is_left_alone_where_recency_moves_it_again_and_again() {
    let case = Case::new("optimizer", 1);
    let ours = case.ours(Rules::STEP);
    assert_eq!(ours.moved, 0);
    let lru = case.run(&mut Lru2q::new(case.0.regions.len()));
    assert!(lru.cost_ns > 3.0 * ours.cost_ns, "{} against {}", lru.cost_ns, ours.cost_ns);
    let numab = case.run(&mut Tpp::numab(case.0.regions.len()));
    assert!(numab.cost_ns > 1.05 * ours.cost_ns, "{} against {}", numab.cost_ns, ours.cost_ns);
}

#[test]
fn streams_end_sooner_split_over_both_tiers_than_placed_whole() {
    for name in ["optimizer", "evaluation"] {
        let case = Case::new(name, 1);
        let (whole, split) = (case.ours(Rules::STEP), case.ours(Rules::AUTO));
        assert!(split.time_ns < whole.time_ns, "{name}: {} against {}", split.time_ns, whole.time_ns);
    }
}

#[test]
fn what_is_hot_is_found_under_what_was_there_first() {
    let case = Case::new("jobs", 2);
    let mut auto = Resident::new(&costs(), Rules::AUTO);
    let (found, before) = (case.run(&mut auto), case.run(&mut FirstTouch));
    assert!(found.cost_ns < 0.9 * before.cost_ns, "{} against {}", found.cost_ns, before.cost_ns);
    let told = [auto.step(0), auto.step(1)].map(|step| step.map(|step| step.period / 1_000_000_000));
    assert!(matches!(told, [Some(18..=22), Some(11..=13)]), "{told:?}");
}

#[test]
fn a_table_gets_near_the_best_fixed_set() {
    for seed in 1..=3 {
        // A move of a whole part is two per cent of what 20 steps cost: it takes longer to be earned back.
        let case = Case::of("embedding", &Spec { seed, steps: 100, ..Spec::default() });
        let (found, fixed) = (case.ours(Rules::AUTO).cost_ns, case.case().best_fixed().cost_ns);
        assert!(found <= 1.05 * fixed, "seed {seed}: {}", found / fixed);
    }
}

#[test]
fn a_moving_hot_set_is_followed() {
    for seed in 1..=3 {
        let case = Case::new("rotating", seed);
        let (found, best) = (case.ours(Rules::AUTO).cost_ns, case.case().optimum().cost_ns);
        assert!(found <= 1.10 * best, "seed {seed}: {} over the optimum", found / best);
        assert!(found < 0.9 * case.case().best_fixed().cost_ns, "seed {seed}");
    }
}

#[test]
fn experts_routed_to_at_random_are_not_chased() {
    for seed in 1..=3 {
        let case = Case::new("experts-uniform", seed);
        let ours = case.ours(Rules::AUTO);
        assert!(ours.moved <= case.0.footprint() / 2, "seed {seed}: {} MiB", ours.moved >> 20);
        let lru = case.run(&mut Lru2q::new(case.0.regions.len()));
        assert!(ours.cost_ns < 0.5 * lru.cost_ns, "seed {seed}");
    }
}

/// Intervals of a second in which the regions do what they say; the moves made.
fn seconds(policy: &mut Resident, count: u64, capacity: Bytes, regions: &mut [Seen]) -> Vec<Move> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.extend(second(policy, capacity, regions));
    }
    all
}

fn second(policy: &mut Resident, capacity: Bytes, regions: &mut [Seen]) -> Vec<Move> {
    let now = policy.now() + 1_000_000_000;
    let view = View { now, interval: 1_000_000_000, capacity, regions, tiers: [Load::default(); 2] };
    let moves = policy.decide(&view);
    moves.iter().for_each(|step| regions[step.region].top = step.top);
    moves
}

fn region(start: u64, top: Bytes, lines: u64) -> Seen {
    Seen { alive: true, start, bytes: 1 << 20, top, heat: if lines > 0 { 0.5 } else { 0.0 }, lines, job: 0 }
}

#[test]
fn a_new_region_that_is_worth_less_than_what_is_there_starts_below() {
    let mut policy = Resident::new(&costs(), Rules::AUTO);
    let new = |start| Seen { alive: true, start, bytes: 1 << 20, ..Seen::default() };
    assert_eq!(policy.place(0, &new(1 << 30), 1 << 30), 1 << 20, "unknown: first touch");
    let mut regions = vec![region(0, 1 << 20, 60_000), region(1 << 30, 0, 100), region(2 << 30, 0, 90_000)];
    seconds(&mut policy, 30, 1 << 20, &mut regions);
    regions[1] = Seen::default();
    regions[2] = Seen::default();
    seconds(&mut policy, 2, 1 << 20, &mut regions);
    assert_eq!(policy.place(1, &new(1 << 30), 1 << 20), 1 << 20, "all fits now");
    regions.push(region(3 << 30, 0, 0));
    seconds(&mut policy, 2, 1 << 20, &mut regions);
    assert_eq!(policy.place(1, &new(1 << 30), 1 << 20), 0);
    assert_eq!(policy.place(2, &new(2 << 30), 1 << 20), 1 << 20);
}

#[test]
fn the_hot_take_the_place_of_the_idle_and_only_as_much_as_they_need() {
    let mut policy = Resident::new(&costs(), Rules::AUTO);
    let mut regions = vec![region(0, 1 << 20, 0), region(1 << 30, 1 << 20, 5_000), region(2 << 30, 0, 20_000)];
    regions[2].bytes = 1 << 19;
    let moves = seconds(&mut policy, 60, 2 << 20, &mut regions);
    assert_eq!(moves, [Move { region: 0, top: 1 << 19 }, Move { region: 2, top: 1 << 19 }]);
}

#[test]
fn names_find_policies_and_others_nothing() {
    for name in NAMES {
        assert_eq!(find(name, &costs()).expect("listed").name(), name);
    }
    assert!(find("lru", &costs()).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_plan_fits_in_its_order_whatever_the_regions_do(
        seed in any::<u64>(),
        capacity in 0u64..64,
        count in 1usize..40,
        rules in prop::sample::select(vec![Rules::AUTO, Rules::STEP, Rules::HOTNESS, Rules::BANDWIDTH]),
    ) {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut policy = Resident::new(&costs(), rules);
        let capacity = capacity << 20;
        let mut regions = vec![Seen::default(); count];
        let hot: Vec<u64> = (0..count).map(|_| 10u64.pow(random.random_range(0..7))).collect();
        for second in 1..120u64 {
            let used: Bytes = regions.iter().map(|region| region.top).sum();
            let mut free = capacity - used;
            for (index, seen) in regions.iter_mut().enumerate() {
                if random.random_bool(0.02) {
                    free += seen.top;
                    *seen = Seen::default();
                } else if !seen.alive && random.random_bool(0.5) {
                    let bytes = random.random_range(0..8u64) << 18;
                    let start = random.random_range(0..count as u64) << 32 | index as u64;
                    *seen = Seen { alive: true, start, bytes, job: index as u32 % 3, ..Seen::default() };
                    seen.top = policy.place(index, seen, free).min(bytes).min(free);
                    free -= seen.top;
                }
                let used = seen.alive && random.random_bool(0.5);
                seen.lines = if used { random.random_range(0..hot[index]) } else { 0 };
                seen.heat = if used { random.random() } else { 0.0 };
            }
            let view = View {
                now: second * 1_000_000_000,
                interval: 1_000_000_000,
                capacity,
                regions: &regions,
                tiers: [Load::default(); 2],
            };
            let mut after = regions.clone();
            for step in policy.decide(&view) {
                prop_assert!(after[step.region].alive && step.top <= after[step.region].bytes, "{step:?}");
                after[step.region].top = step.top;
                let used: Bytes = after.iter().map(|region| region.top).sum();
                prop_assert!(used <= capacity, "{used} of {capacity}");
            }
            regions = after;
        }
    }
}
