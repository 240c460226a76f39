use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::Profiles;

use super::*;
use crate::{check, graph::random, sim};

fn machine(hbm: u64, dram: u64) -> Machine {
    let tiers = [("dram", dram), ("cxl-asic", 1 << 40)];
    Machine::new(&Profiles::builtin(), "v100-16g", hbm, "pcie4-x16", &tiers).expect("built in")
}

/// Correct by the checker, in steps and in times; with room for the peak nothing moves.
fn judge(graph: &Graph, machine: &Machine, plan: &Plan) -> sim::Report {
    check::check(graph, machine, plan).unwrap_or_else(|e| panic!("{e}\n{plan:?}\n{graph:#?}"));
    let (report, spans) = sim::timeline(graph, machine, plan).expect("checked");
    check::check_timeline(graph, machine, plan, &spans).expect("possible");
    if machine.hbm >= graph.peak() {
        assert_eq!((report.copies, report.step_ns), (0, graph.ideal_time()), "{}", plan.planner);
    }
    report
}

#[test]
fn every_planner_makes_correct_plans() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(31);
    let (mut moved, mut again) = (0, 0);
    for _ in 0..300 {
        let size = rng.random_range(1..60);
        let graph = random::graph(&mut rng, size);
        let (least, peak) = (graph.largest_op(), graph.peak());
        let machine = machine(rng.random_range(least..=peak.max(least)), rng.random_range(0..200_000));
        let search = Search { population: 4, evaluations: 8, ..Search::default() };
        for planner in Planner::ALL {
            match planner.plan(&graph, &machine, search, |_| ControlFlow::Continue(())) {
                Ok(plan) => {
                    assert_eq!(plan.planner, planner.name());
                    let report = judge(&graph, &machine, &plan);
                    moved += usize::from(report.copies > 0);
                    again += usize::from(report.compute_ns > graph.ideal_time());
                    assert!(planner.recomputes() || report.compute_ns == graph.ideal_time());
                    assert!(!planner.keeps_order() || planner.recomputes() || plan.order().eq(graph.traced_order()));
                }
                // Fixed slots need more than the largest operator.
                Err(error) => assert_eq!(planner, Planner::SwapAdvisor, "{planner}: {error}"),
            }
        }
    }
    assert!(moved > 500 && again > 20, "{moved} plans move, {again} recompute");
}

/// Each way of DELTA alone, and without its knapsack or its look-ahead.
#[test]
fn every_part_of_delta_can_be_left_out() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(37);
    let mut recomputed_alone = 0;
    for _ in 0..200 {
        let size = rng.random_range(5..60);
        let graph = random::graph(&mut rng, size);
        let machine = machine((graph.peak() * 2 / 3).max(graph.largest_op()), 1 << 40);
        for switches in [
            Switches { recompute: false, ..Switches::ALL },
            Switches { knapsack: false, ..Switches::ALL },
            Switches { reload_ahead: false, ..Switches::ALL },
        ] {
            let plan = delta::plan(&graph, &machine, switches).expect("swapping has room");
            let report = judge(&graph, &machine, &plan);
            assert!(switches.recompute || report.compute_ns == graph.ideal_time());
        }
        // Results and what is changed in place cannot be computed again, so this may have no plan.
        if let Ok(plan) = delta::plan(&graph, &machine, Switches { swap: false, ..Switches::ALL }) {
            let report = judge(&graph, &machine, &plan);
            recomputed_alone += usize::from(report.compute_ns > graph.ideal_time());
        }
    }
    assert!(recomputed_alone > 5, "{recomputed_alone}");
}

#[test]
fn names_are_names() {
    for planner in Planner::ALL {
        assert_eq!(planner.name().parse(), Ok(planner));
    }
    let error = "belady2".parse::<Planner>().expect_err("unknown");
    assert!(error.contains("belady2") && error.contains("g10"), "{error}");
}
