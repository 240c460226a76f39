use std::ops::ControlFlow;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::{Machine, Profiles};

use super::{
    Ours,
    decode::Decoder,
    genes::{Facts, Genes},
    moves::{KINDS, small},
};
use crate::{
    check,
    graph::{Graph, random},
    sim,
    swapadvisor::{Progress, genes::is_valid_order},
};

fn machine(hbm: u64, dram: u64) -> Machine {
    let tiers = [("dram", dram), ("cxl-asic", 1 << 40)];
    Machine::new(&Profiles::builtin(), "v100-16g", hbm, "pcie4-x16", &tiers).expect("built in")
}

fn tight(graph: &Graph, rng: &mut Xoshiro256PlusPlus) -> Machine {
    let (least, peak) = (graph.largest_op(), graph.peak());
    machine(rng.random_range(least..=peak.max(least)), rng.random_range(0..200_000))
}

/// Whatever the genes, what is decoded is correct by the checker, in steps and in times.
#[test]
fn all_genes_decode_to_correct_plans() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
    let (mut again, mut swapped, mut other_order) = (0, 0, 0);
    for _ in 0..400 {
        let size = rng.random_range(5..60);
        let graph = random::graph(&mut rng, size);
        let machine = tight(&graph, &mut rng);
        let mut facts = Facts::new(&graph, &machine);
        // The graphs are tiny; let what a copy is too slow for take part.
        facts.movable = (0..graph.storages.len()).collect();
        let order = Genes::new(&graph).order;
        let forgettable: Vec<_> = facts.movable.iter().copied().filter(|&s| facts.can_forget(&order, s)).collect();
        let mut decoder = Decoder::new(&facts);
        let mut genes = Genes::new(&graph);
        for _ in 0..12 {
            for &s in &forgettable {
                genes.forget[s] = rng.random_bool(0.5);
            }
            for extend in &mut genes.extend {
                *extend = rng.random_bool(0.2);
            }
            for kind in KINDS {
                small(&facts, &mut genes, kind, &mut rng);
            }
            assert!(is_valid_order(&graph, &genes.order.ops));
            let Ok(plan) = decoder.decode(&genes) else { continue };
            check::check(&graph, &machine, &plan).unwrap_or_else(|e| panic!("{e}\n{plan:?}\n{graph:#?}"));
            let (report, spans) = sim::timeline(&graph, &machine, &plan).expect("checked");
            check::check_timeline(&graph, &machine, &plan, &spans).expect("possible");
            again += usize::from(report.compute_ns > graph.ideal_time());
            swapped += usize::from(report.copies > 0);
            other_order += usize::from(!plan.order().eq(graph.traced_order()));
        }
    }
    assert!(again > 200 && swapped > 200 && other_order > 200, "{again} {swapped} {other_order}");
}

#[test]
fn the_search_only_gets_better_and_repeats_itself() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(17);
    let mut better = 0;
    for seed in 0..30 {
        let size = rng.random_range(20..60);
        let graph = random::graph(&mut rng, size);
        let machine = tight(&graph, &mut rng);
        let search = Ours { seed, evaluations: 300, deadline: None };
        let [one, other] = [0, 1].map(|_| search.run(&graph, &machine, |_| ControlFlow::Continue(())).expect("room"));
        let steps = |found: &super::Found| found.curve.iter().map(|&(_, now)| now).collect::<Vec<Progress>>();
        assert_eq!((&one.plan, steps(&one)), (&other.plan, steps(&other)));
        assert!(one.curve.windows(2).all(|pair| pair[1].1.best <= pair[0].1.best));
        let longer = Ours { evaluations: 600, ..search }.run(&graph, &machine, |_| ControlFlow::Continue(()));
        let longer = longer.expect("room").curve;
        assert!(longer.len() >= one.curve.len() && longer.iter().zip(&one.curve).all(|(l, o)| l.1 == o.1));
        better += usize::from(one.curve.len() > 1 && one.curve[0].1.best > one.curve[one.curve.len() - 1].1.best);
    }
    assert!(better > 3, "{better}");
}

#[test]
fn a_search_ends_when_it_is_told() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(19);
    let graph = random::graph(&mut rng, 59);
    let machine = machine(graph.largest_op(), 1 << 40);
    let search = Ours { seed: 1, evaluations: 1 << 40, deadline: None };
    let found = search.run(&graph, &machine, |now| match now.evaluations {
        n if n >= 256 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(found.expect("room").evaluations <= 257);
}
