use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::Profiles;

use super::genes::{Genes, child, is_valid_order, successors};
use super::*;
use crate::{check, graph::random, sim};

fn machine(hbm: u64, dram: u64) -> Machine {
    let tiers = [("dram", dram), ("cxl-asic", 1 << 40)];
    Machine::new(&Profiles::builtin(), "v100-16g", hbm, "pcie4-x16", &tiers).expect("built in")
}

#[test]
fn plans_of_random_graphs_are_correct() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let (mut planned, mut moved) = (0, 0);
    for _ in 0..1500 {
        let size = rng.random_range(1..60);
        let graph = random::graph(&mut rng, size);
        let (least, peak) = (graph.largest_op(), graph.peak());
        let hbm = rng.random_range(least..=peak.max(least));
        let machine = machine(hbm, rng.random_range(0..200_000));
        let plan = match global(&graph, &machine, &graph.traced_order()) {
            Ok(plan) => plan,
            Err(error) => panic!("{error}"),
        };
        check::check(&graph, &machine, &plan).unwrap_or_else(|e| panic!("{e}\n{plan:?}\n{graph:#?}"));
        let (report, spans) = sim::timeline(&graph, &machine, &plan).expect("checked");
        check::check_timeline(&graph, &machine, &plan, &spans).expect("possible");
        assert!(report.step_ns >= graph.ideal_time());
        if hbm >= peak {
            assert_eq!((report.copies, report.step_ns), (0, graph.ideal_time()));
        }
        planned += 1;
        moved += usize::from(report.copies > 0);
    }
    assert!(moved > planned / 4, "{moved} of {planned} plans copied anything");
}

/// Children of children of random parents keep every invariant, and their plans are correct.
#[test]
fn crossovers_keep_every_invariant() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(11);
    let mut with_pools = 0;
    for round in 0..150 {
        let size = rng.random_range(1..60);
        let graph = random::graph(&mut rng, size);
        let least = graph.largest_op();
        let machine = machine(rng.random_range(least..=graph.peak().max(least)) + 4096, 1 << 40);
        let sizes = Sizes::new(&graph, machine.hbm);
        let after = successors(&graph);
        let shapes = sizes.defaults();
        let shape = |at: usize| shapes.get(at % shapes.len().max(1)).cloned().filter(|_| round % 4 > 0);
        let mut parents = [0, 1].map(|at| Genes { order: graph.traced_order(), shape: shape(at) });
        let mut decoder = Decoder::new(&graph, &machine);
        for turn in 0..10 {
            let young = child(&graph, &after, &sizes, &parents[0], &parents[1], &mut rng);
            assert!(is_valid_order(&graph, &young.order));
            let pools = young.shape.as_ref().map(|shape| sizes.pools(shape));
            if let Some(pools) = &pools {
                assert!(pools.bytes() <= machine.hbm);
                assert!(
                    pools.class_of.iter().zip(&graph.storages).all(|(&c, s)| s.bytes <= pools.sizes[usize::from(c)])
                );
                with_pools += 1;
            }
            let plan = decoder.decode(&young.order, pools.as_ref()).unwrap_or_else(|e| panic!("{e} {pools:?}"));
            check::check(&graph, &machine, &plan).unwrap_or_else(|e| panic!("{e}\n{plan:?}\n{graph:#?}"));
            let (_, spans) = sim::timeline(&graph, &machine, &plan).expect("checked");
            check::check_timeline(&graph, &machine, &plan, &spans).expect("possible");
            parents[turn % 2] = young;
        }
    }
    assert!(with_pools > 400, "{with_pools}");
}

#[test]
fn a_search_repeats_and_never_gets_worse() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
    let graph = random::graph(&mut rng, 80);
    let machine = machine(graph.largest_op() + 16384, 1 << 40);
    for mode in [Mode::Classes, Mode::Global] {
        let search = Search { mode, seed: 42, population: 16, evaluations: 400, deadline: None };
        let go = |_| std::ops::ControlFlow::Continue(());
        let one = search.run(&graph, &machine, go).expect("feasible");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread");
        let other = pool.install(|| search.run(&graph, &machine, go)).expect("feasible");
        assert_eq!((&one.curve, &one.plan, &one.seeds), (&other.curve, &other.plan, &other.seeds));
        assert!(one.curve.windows(2).all(|pair| pair[1].best <= pair[0].best));
        assert!(one.curve.last().expect("some").best <= *one.seeds.iter().min().expect("some"));
        check::check(&graph, &machine, &one.plan).expect("correct");
        let different = Search { seed: 43, ..search }.run(&graph, &machine, go).expect("feasible");
        assert_ne!(one.curve, different.curve);
    }
}

#[test]
fn a_search_with_enough_memory_moves_nothing() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(6);
    let graph = random::graph(&mut rng, 50);
    let machine = machine(graph.peak(), 0);
    let found = Search::default().run(&graph, &machine, |_| std::ops::ControlFlow::Continue(())).expect("feasible");
    assert_eq!((found.report.copies, found.report.step_ns), (0, graph.ideal_time()));
}
