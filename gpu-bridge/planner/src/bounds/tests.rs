use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::{Machine, Profiles};

use super::*;
use crate::{
    graph::{GraphBuilder, NewOp, StorageKind, json, random},
    sim, swapadvisor,
};

fn machine(hbm: Bytes) -> Machine {
    let mut machine =
        Machine::new(&Profiles::builtin(), "v100-16g", hbm, "pcie4-x16", &[("dram", 1 << 40)]).expect("built in");
    machine.link.latency_ns = 0;
    machine.tiers[0].profile.latency_ns = 0;
    machine
}

/// A few operators, temporaries and results, no weights.
fn tiny(rng: &mut Xoshiro256PlusPlus) -> Graph {
    let mut to = GraphBuilder::new("tiny");
    let mut made = Vec::new();
    for at in 0..rng.random_range(3..=5) {
        let mut inputs = Vec::new();
        for _ in 0..if at == 0 { 0 } else { rng.random_range(0..=2) } {
            inputs.push(made[rng.random_range(0..made.len())]);
        }
        let bytes = 25_000 * rng.random_range(1..=4);
        let kind = if rng.random_bool(0.2) { StorageKind::Output } else { StorageKind::Temporary };
        let s = to.storage(bytes, kind);
        let t = to.tensor(s, bytes);
        to.op(NewOp { inputs, outputs: vec![t], time: 1000 * rng.random_range(0..=5), ..NewOp::default() })
            .expect("valid");
        made.push(t);
    }
    to.finish().expect("valid")
}

/// The optimum lies between the bound over all orders and what planners find; a plan in the
/// traced order is no faster than that order's bound.
#[test]
fn bounds_planners_and_the_optimum_agree() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(9);
    let (mut tight, mut compared) = (0, 0);
    for _ in 0..60 {
        let graph = tiny(&mut rng);
        let least = graph.largest_op();
        let machine = machine(rng.random_range(least..=graph.peak()));
        let free = order_free(&graph, &machine);
        let order = graph.traced_order();
        let fixed = order_fixed(&graph, &machine, &order);
        assert!(free <= fixed, "a bound over all orders is below that of one: {free} {fixed}");
        let plan = swapadvisor::global(&graph, &machine, &order).expect("fits");
        let found = sim::simulate(&graph, &machine, &plan).expect("fits").step_ns;
        assert!(fixed <= found, "{fixed} {found} {graph:?} {plan:?}");
        let Ok(best) = exact(&graph, &machine, 150_000) else { continue };
        let best = best.expect("the planner found one");
        assert!(free <= best && best <= found, "{free} {best} {found} {graph:#?} {plan:?}");
        compared += 1;
        tight += usize::from(free == best);
    }
    assert!(compared > 30 && tight > 8, "{compared} {tight}");
}

#[test]
fn no_plan_of_a_random_graph_beats_a_bound() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(10);
    for _ in 0..60 {
        let size = rng.random_range(1..60);
        let graph = random::graph(&mut rng, size);
        let machine = machine(rng.random_range(graph.largest_op()..=graph.peak().max(graph.largest_op())));
        let order = graph.traced_order();
        let plan = swapadvisor::global(&graph, &machine, &order).expect("fits");
        let report = sim::simulate(&graph, &machine, &plan).expect("fits");
        let (free, fixed) = (order_free(&graph, &machine), order_fixed(&graph, &machine, &order));
        assert!(free <= report.step_ns && fixed <= report.step_ns, "{free} {fixed} {}", report.step_ns);
    }
}

#[test]
fn with_enough_memory_the_bound_is_the_ideal_time() {
    let profiles = Profiles::builtin();
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/graphs/resnet50_b64.json.gz"));
    let graph = json::load(path, profiles.gpu("v100-16g").expect("built in")).expect("valid");
    let order = graph.traced_order();
    let enough = machine(graph.peak());
    assert_eq!(order_free(&graph, &enough), graph.ideal_time());
    assert_eq!(order_fixed(&graph, &enough, &order), graph.ideal_time());
    let half = machine(graph.peak() / 2);
    let (free, fixed) = (order_free(&graph, &half), order_fixed(&graph, &half, &order));
    let plan = swapadvisor::global(&graph, &half, &order).expect("fits");
    let found = sim::simulate(&graph, &half, &plan).expect("fits").step_ns;
    assert!(graph.ideal_time() < free && free <= fixed && fixed <= found, "{free} {fixed} {found}");
    assert!(found as f64 <= 1.15 * fixed as f64, "{fixed} {found}");
}
