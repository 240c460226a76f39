use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::Profiles;

use super::{
    demand::{Demand, Policy, realize},
    *,
};
use crate::{
    check,
    graph::{GraphBuilder, NewOp, StorageKind, random},
};

/// 1 byte a nanosecond over the link, two tiers of plenty.
fn machine(hbm: Bytes) -> Machine {
    let mut machine =
        Machine::new(&Profiles::builtin(), "a100-40g", hbm, "pcie4-x16", &[("dram", 1 << 40), ("cxl-asic", 1 << 40)])
            .expect("built in");
    machine.link.h2d = 1e9;
    machine.link.d2h = 1e9;
    machine.link.latency_ns = 0;
    for tier in &mut machine.tiers {
        tier.profile.latency_ns = 0;
    }
    machine
}

/// a writes x; b writes y; c reads x. Each storage 100 bytes, each operator 50 ns.
fn three() -> Graph {
    let mut to = GraphBuilder::new("three");
    let x = to.storage(100, StorageKind::Temporary);
    let y = to.storage(100, StorageKind::Temporary);
    let (tx, ty) = (to.tensor(x, 100), to.tensor(y, 100));
    for (inputs, outputs) in [(vec![], vec![tx]), (vec![], vec![ty]), (vec![tx], vec![])] {
        to.op(NewOp { inputs, outputs, time: 50, ..NewOp::default() }).expect("valid");
    }
    to.finish().expect("valid")
}

#[test]
fn a_swap_waits_for_data_memory_and_stream() {
    let graph = three();
    let mut plan = Plan::new("by hand", &graph);
    plan.steps = vec![
        Step::Run(0),
        Step::CopyOut { storage: 0, tier: 0 },
        Step::Drop(0),
        Step::Run(1),
        Step::Drop(1),
        Step::CopyIn(0),
        Step::Run(2),
        Step::Drop(0),
    ];
    let (report, spans) = timeline(&graph, &machine(100), &plan).expect("fits");
    let first: Vec<_> = spans[..8].iter().map(|s| (s.start, s.end)).collect();
    // x is out at 150; y takes its place and is dropped at 200; x is back at 300.
    assert_eq!(first, [(0, 50), (50, 150), (150, 150), (150, 200), (200, 200), (200, 300), (300, 350), (350, 350)]);
    assert_eq!((report.step_ns, report.first_ns, report.steady), (350, 350, true));
    assert_eq!((report.moved(), report.copies, report.hbm_peak), (200, 2, 100));
    // With room for both nothing waits for memory: the copy back starts once the copy out has ended.
    let (report, spans) = timeline(&graph, &machine(200), &plan).expect("fits");
    assert_eq!((spans[3].start, spans[5].start), (50, 150));
    assert_eq!(report.step_ns, 300);
    check::check(&graph, &machine(100), &plan).expect("correct");
    check::check_timeline(&graph, &machine(200), &plan, &spans).expect("possible");
}

#[test]
fn both_directions_run_at_once_unless_the_tier_cannot() {
    let mut to = GraphBuilder::new("two");
    let w = to.storage(100, StorageKind::Param);
    let g = to.storage(100, StorageKind::Output);
    let (tw, tg) = (to.tensor(w, 100), to.tensor(g, 100));
    to.op(NewOp { outputs: vec![tg], time: 10, ..NewOp::default() }).expect("valid");
    to.op(NewOp { inputs: vec![tw], time: 10, ..NewOp::default() }).expect("valid");
    let graph = to.finish().expect("valid");
    let mut plan = Plan::new("by hand", &graph);
    plan.home = vec![(w, 1)];
    plan.steps = vec![
        Step::Run(0),
        Step::CopyOut { storage: g, tier: 1 },
        Step::Drop(g),
        Step::CopyIn(w),
        Step::Run(1),
        Step::Drop(w),
    ];
    let mut machine = machine(200);
    check::check(&graph, &machine, &plan).expect("correct");
    let duplex = simulate(&graph, &machine, &plan).expect("fits");
    assert_eq!(duplex.first_ns, 110);
    machine.tiers[1].profile.half_duplex = true;
    let half = simulate(&graph, &machine, &plan).expect("fits");
    assert_eq!(half.first_ns, 220);
}

#[test]
fn unlimited_plans_take_the_ideal_time_on_the_peak() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    for size in 1..200 {
        let graph = random::graph(&mut rng, size);
        let plan = Plan::unlimited(&graph, &graph.traced_order());
        let machine = machine(graph.peak());
        let (report, spans) = timeline(&graph, &machine, &plan).expect("fits");
        assert_eq!(report.step_ns, graph.ideal_time());
        assert_eq!((report.copies, report.hbm_peak), (0, graph.peak()));
        check::check(&graph, &machine, &plan).expect("correct");
        check::check_timeline(&graph, &machine, &plan, &spans).expect("possible");
        if graph.peak() > 0 {
            let smaller = self::machine(graph.peak() - 1);
            assert!(matches!(simulate(&graph, &smaller, &plan), Err(SimError::HbmFull { .. })));
            assert!(matches!(check::check(&graph, &smaller, &plan), Err(check::Violation::HbmFull { .. })));
        }
    }
}

/// Whatever the policy, what the run time does on demand is a correct plan.
#[test]
fn demand_makes_correct_plans() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut copied = 0;
    for round in 0..600 {
        let graph = random::graph(&mut rng, 1 + round % 50);
        let hbm = (graph.peak() * (round as u64 % 4 + 1) / 4).max(graph.largest_op());
        let machine = machine(hbm);
        let plan = Plan::unlimited(&graph, &graph.traced_order());
        for policy in [Policy::Lru, Policy::NaiveHistory, Policy::SizeHistory] {
            let made = realize(&graph, &machine, &plan, Demand { fault_ns: 7, ..Demand::odswap(policy) })
                .unwrap_or_else(|error| panic!("{policy:?} {error}\n{graph:#?}"));
            check::check(&graph, &machine, &made)
                .unwrap_or_else(|error| panic!("{policy:?} {error}\n{made:?}\n{graph:#?}"));
            let (report, spans) = timeline(&graph, &machine, &made).expect("checked");
            check::check_timeline(&graph, &machine, &made, &spans).expect("possible");
            if hbm >= graph.peak() {
                assert_eq!((report.copies, report.step_ns), (0, graph.ideal_time()));
            }
            copied += report.copies;
        }
    }
    assert!(copied > 300, "{copied}");
}

/// The fast simulator and the slow one agree on every start and end.
#[test]
fn the_event_loop_gives_the_same_times() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(17);
    let mut copied = 0;
    for round in 0..120 {
        let graph = random::graph(&mut rng, 1 + round % 14);
        let mut machine = machine((graph.peak() * 2 / 3).max(graph.largest_op()));
        machine.tiers[1].profile.half_duplex = round % 3 == 0;
        let order = graph.traced_order();
        let lru = Demand { fault_ns: 500, ..Demand::odswap(Policy::Lru) };
        let sizes = crate::swapadvisor::Sizes::new(&graph, machine.hbm);
        let pools = sizes.defaults().first().map(|shape| sizes.pools(shape));
        let plans = [
            realize(&graph, &machine, &Plan::unlimited(&graph, &order), lru).ok(),
            crate::swapadvisor::global(&graph, &machine, &order).ok(),
            pools
                .and_then(|pools| crate::swapadvisor::Decoder::new(&graph, &machine).decode(&order, Some(&pools)).ok()),
        ];
        for plan in plans.into_iter().flatten() {
            let mut spans = Vec::new();
            let report = run(&graph, &machine, &plan, 3, Some(&mut spans)).expect("fits");
            let iterations = spans.last().map_or(0, |span| span.iteration + 1);
            assert_eq!(spans, reference::spans(&graph, &machine, &plan, iterations), "{plan:?}");
            copied += report.copies;
        }
    }
    assert!(copied > 200, "{copied}");
}
