use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::Profiles;

use super::*;
use crate::{
    graph::{GraphBuilder, NewOp, StorageKind, random},
    plan::{Pools, Step},
    sim, swapadvisor,
};

fn machine(hbm: Bytes) -> Machine {
    let tiers = [("dram", 1 << 30), ("cxl-asic", 1 << 30)];
    Machine::new(&Profiles::builtin(), "v100-16g", hbm, "pcie4-x16", &tiers).expect("built in")
}

/// Weight w, gradient g, temporaries x and y of 100 bytes: 0 makes x from w; 1 makes y; 2 changes
/// y in place from x; 3 makes g from y. With room for two of them.
fn example() -> (Graph, Plan) {
    let mut to = GraphBuilder::new("example");
    let [w, x, y, g] =
        [StorageKind::Param, StorageKind::Temporary, StorageKind::Temporary, StorageKind::Output].map(|kind| {
            let s = to.storage(100, kind);
            to.tensor(s, 100)
        });
    for (inputs, outputs) in [(vec![w], vec![x]), (vec![], vec![y]), (vec![x, y], vec![y]), (vec![y], vec![g])] {
        to.op(NewOp { inputs, outputs, time: 1000, ..NewOp::default() }).expect("valid");
    }
    let graph = to.finish().expect("valid");
    let mut plan = Plan::new("by hand", &graph);
    plan.home = vec![(0, 1)];
    plan.steps = vec![
        Step::CopyIn(0),
        Step::Run(0),
        Step::CopyOut { storage: 1, tier: 0 },
        Step::Drop(1),
        Step::Run(1),
        Step::Drop(0),
        Step::CopyIn(1),
        Step::Run(2),
        Step::Drop(1),
        Step::Run(3),
        Step::Drop(2),
        Step::Drop(3),
    ];
    (graph, plan)
}

#[test]
fn each_kind_of_broken_plan_is_rejected() {
    let (graph, good) = example();
    let small = machine(200);
    check(&graph, &small, &good).expect("correct");
    let without = |at: usize| {
        let mut plan = good.clone();
        plan.steps.remove(at);
        check(&graph, &small, &plan)
    };
    use Violation::*;
    assert_eq!(without(0), Err(Absent { step: 0, storage: 0 }));
    assert_eq!(without(1), Err(Absent { step: 1, storage: 1 }));
    assert_eq!(without(2), Err(NoHostCopy { step: 5, storage: 1 }));
    assert_eq!(without(3), Err(HbmFull { step: 3, bytes: 300, capacity: 200 }));
    assert_eq!(without(4), Err(Order { step: 6, op: 2, before: 1 }));
    assert_eq!(without(5), Err(HbmFull { step: 5, bytes: 300, capacity: 200 }));
    assert_eq!(without(6), Err(Absent { step: 6, storage: 1 }));
    assert_eq!(without(7), Err(Order { step: 8, op: 3, before: 2 }));
    assert_eq!(without(8), Err(HbmFull { step: 8, bytes: 300, capacity: 200 }));
    assert_eq!(without(9), Err(Absent { step: 10, storage: 3 }));
    assert_eq!(without(11), Err(NotCyclic(3)));
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        check(&graph, &small, &plan)
    };
    assert_eq!(with(&|p| p.steps.truncate(9)), Err(NeverRun(3)));
    assert_eq!(with(&|p| p.steps.insert(1, Step::CopyIn(0))), Err(Present { step: 1, storage: 0 }));
    assert_eq!(with(&|p| p.steps.insert(8, Step::Run(2))), Err(WrongContents { step: 8, op: 2, storage: 2 }));
    assert_eq!(with(&|p| p.steps.swap(9, 10)), Err(Absent { step: 10, storage: 2 }));
    assert_eq!(with(&|p| p.home.clear()), Err(NoHostCopy { step: 0, storage: 0 }));
    assert_eq!(with(&|p| p.initial.push(1)), Err(NotCyclic(1)));
    assert_eq!(
        with(&|p| {
            p.home.clear();
            p.initial.push(0);
            p.steps.remove(0);
        }),
        Err(Lost { step: 4, storage: 0 })
    );
    assert_eq!(with(&|p| p.steps[1] = Step::Run(9)), Err(Unknown { step: 1, what: "operator", index: 9 }));
    assert_eq!(with(&|p| p.steps[3] = Step::Drop(4)), Err(Unknown { step: 3, what: "storage", index: 4 }));
    let far = Step::CopyOut { storage: 1, tier: 2 };
    assert_eq!(with(&|p| p.steps[2] = far), Err(Unknown { step: 2, what: "tier", index: 2 }));
    let pools = |counts: Vec<u32>| Some(Pools { sizes: vec![100], counts, class_of: vec![0; 4] });
    assert_eq!(with(&|p| p.pools = pools(vec![2])), Ok(()));
    assert_eq!(with(&|p| p.pools = pools(vec![1])), Err(NoSlot { step: 1, storage: 1, class: 0 }));
    assert_eq!(with(&|p| p.pools = pools(vec![3])), Err(HbmFull { step: 0, bytes: 300, capacity: 200 }));
    let mut crowded = small.clone();
    crowded.tiers[0].capacity = 99;
    assert_eq!(check(&graph, &crowded, &good), Err(TierFull { step: 2, tier: 0, bytes: 100, capacity: 99 }));
    // The gradient may leave early only after it has been copied.
    let early = |copy: bool| {
        let mut plan = good.clone();
        plan.steps =
            vec![Step::CopyIn(0), Step::Run(0), Step::Drop(0), Step::Run(1), Step::Run(2), Step::Drop(1), Step::Run(3)];
        if copy {
            plan.steps.push(Step::CopyOut { storage: 3, tier: 1 });
        }
        plan.steps.push(Step::Drop(3));
        // A second run of the first operator, so that the step is not over yet.
        plan.steps.extend([Step::CopyIn(0), Step::Drop(2), Step::Run(0), Step::Drop(0), Step::Drop(1)]);
        check(&graph, &small, &plan)
    };
    assert_eq!(early(false), Err(Lost { step: 7, storage: 3 }));
    assert_eq!(early(true), Ok(()));
}

/// In the example every step starts as soon as something lets it: none may be any earlier. Operator 1 is left out: it
/// waits for memory only because grants are in issue order, which the times alone do not show.
#[test]
fn no_step_can_be_earlier_than_simulated() {
    let (graph, plan) = example();
    let machine = machine(200);
    let (_, spans) = sim::timeline(&graph, &machine, &plan).expect("fits");
    check_timeline(&graph, &machine, &plan, &spans).expect("possible");
    let mut rejected = 0;
    let waits = |at: &usize| spans[*at].start > 0 && plan.steps[spans[*at].step] != Step::Run(1);
    for at in (0..spans.len()).filter(waits) {
        let mut early = spans.clone();
        early[at].start -= 1;
        early[at].end -= 1;
        rejected += usize::from(check_timeline(&graph, &machine, &plan, &early).is_err());
        let mut short = spans.clone();
        short[at].end -= u64::from(short[at].end > short[at].start);
        if short != spans {
            assert!(check_timeline(&graph, &machine, &plan, &short).is_err(), "step {at} is too short");
        }
    }
    assert_eq!(rejected, (0..spans.len()).filter(waits).count());
}

/// A step left out of a plan that needs it is noticed, whatever the graph: runs and copies in
/// always, for nothing issues them without need.
#[test]
fn no_needed_step_can_be_left_out() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(23);
    let mut tried = 0;
    for _ in 0..150 {
        let size = rng.random_range(5..40);
        let graph = random::graph(&mut rng, size);
        let machine = machine((graph.peak() / 2).max(graph.largest_op()));
        let plan = swapadvisor::global(&graph, &machine, &graph.traced_order()).expect("fits");
        for at in 0..plan.steps.len() {
            if matches!(plan.steps[at], Step::Run(_) | Step::CopyIn(_)) {
                let mut broken = plan.clone();
                broken.steps.remove(at);
                assert!(check(&graph, &machine, &broken).is_err(), "step {at} of {plan:?}");
                tried += 1;
            }
        }
    }
    assert!(tried > 1000, "{tried}");
}
