//! Plans on the virtual device: its bytes are real, its time is not.

use std::{ops::ControlFlow, sync::Arc};

use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::{Bytes, Machine, Nanos, Profiles, VirtualClock};
use tensortier_planner::{
    graph::{Graph, GraphBuilder, NewOp, StorageKind, random},
    plan::Step,
    planners::Planner,
    sim,
    swapadvisor::Search,
};

use super::*;
use crate::pipeline::{
    Device, Done, Limits, Memories, Op, Pipeline, Tuning, VirtualDevice, VirtualHost, kernel::Kernel,
};

const LIMITS: Limits = Limits { ring: 1 << 20, threads: 2 };
/// What lies before the program's memory on host and device, and must stay as it is.
const BEFORE: u64 = 56;
const STEPS: usize = 3;

fn machine(hbm: Bytes, dram: Bytes, cxl: &str) -> Machine {
    let tiers = [("dram", dram), (cxl, 1 << 40)];
    Machine::new(&Profiles::builtin(), "v100-16g", hbm, "pcie4-x16", &tiers).expect("built in")
}

/// Loses the bytes of one operation.
struct Lossy {
    device: VirtualDevice,
    until: Option<usize>,
}

impl Device for Lossy {
    fn start(&mut self, op: Op) {
        let lost = self.until == Some(0);
        self.until = self.until.and_then(|until| until.checked_sub(1));
        self.device.start(if lost { Op { bytes: 0, ..op } } else { op });
    }

    fn next(&mut self, until: Option<Nanos>) -> Option<Done> {
        self.device.next(until)
    }

    fn launch(&mut self, id: u64, kernel: Kernel) {
        self.device.launch(id, kernel);
    }

    fn sums(&mut self, id: u64) -> Option<Vec<u64>> {
        self.device.sums(id)
    }
}

/// Runs a program; the operation `lost` of the pipeline's is lost. Staged memory is that of the second tier.
fn execute(graph: &Graph, machine: &Machine, program: &Program, staged: bool, lost: Option<usize>) -> Outcome {
    let clock = Arc::new(VirtualClock::default());
    let tiers = (0..).zip(machine.tiers.iter().map(|tier| tier.profile.clone())).collect();
    let host = VirtualHost {
        link: machine.link.clone(),
        tiers,
        thread: 1e12,
        thread_ns: 0,
        cores: 4,
        link_changes: Vec::new(),
    };
    let sizes = program.tier_bytes();
    let memories = Memories::new(
        vec![0xa5; (BEFORE + sizes.iter().sum::<Bytes>()) as usize],
        vec![0x5a; (BEFORE + program.device_bytes()) as usize],
    );
    let device = VirtualDevice::new(host, Arc::clone(&clock), Some((memories, LIMITS.ring)));
    let mut pipeline = Pipeline::new(clock, Lossy { device, until: lost }, LIMITS, Tuning::Adaptive);
    let mut address = BEFORE;
    let room = |(node, bytes): (u32, &Bytes)| {
        address += bytes;
        TierRoom { address: address - bytes, node, registered: !(staged && node == 1) }
    };
    let room = Room { device: BEFORE, tiers: (0..).zip(sizes).map(room).collect() };
    let expected = InCore::run(graph, STEPS);
    let outcome = run(&mut pipeline, graph, program, &room, &expected).expect("runs");
    let memories = pipeline.device().device.memories().expect("kept");
    let kept = |bytes: &[u8], with: u8| bytes[..BEFORE as usize].iter().all(|b| *b == with);
    assert!(kept(&memories.host, 0xa5) && kept(&memories.device, 0x5a), "bytes of others");
    outcome
}

/// A random graph and a machine on which something has to move.
fn tight(rng: &mut impl Rng, size: usize) -> (Graph, Machine) {
    let graph = random::graph(rng, size);
    let (least, peak) = (graph.largest_op(), graph.peak());
    let cxl = if rng.random_bool(0.5) { "cxl-asic" } else { "cxl-fpga" };
    let hbm = rng.random_range(least..=(least + peak) / 2);
    (graph, machine(hbm, rng.random_range(0..60_000), cxl))
}

fn plan(planner: Planner, graph: &Graph, machine: &Machine) -> Option<Plan> {
    let search = Search { population: 4, evaluations: 8, ..Search::default() };
    planner.plan(graph, machine, search, |_| ControlFlow::Continue(())).ok()
}

#[test]
fn every_planners_plans_compute_what_the_step_in_core_does() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(41);
    let (mut ran, mut copies, mut again, mut slots, mut split, mut faults) = (0, 0, 0, 0, 0, 0);
    for _ in 0..60 {
        let size = rng.random_range(1..40);
        let (graph, machine) = tight(&mut rng, size);
        for planner in Planner::ALL {
            let Some(plan) = plan(planner, &graph, &machine) else { continue };
            let program = prepare(&graph, &machine, &plan, STEPS).unwrap_or_else(|e| panic!("{e}\n{plan:?}"));
            assert!(program.device_bytes() <= machine.hbm);
            let (all, parts) = program.copies_and_parts();
            let outcome = execute(&graph, &machine, &program, rng.random_bool(0.3), None);
            assert_eq!(outcome.wrong, [], "{planner}: {plan:?}\n{graph:#?}");
            let reads: usize = plan.order().map(|op| graph.ops[op].reads.len()).sum();
            assert!(outcome.checked >= STEPS * reads, "{} of {reads}", outcome.checked);
            assert_eq!(outcome.copies, all);
            (ran, copies, split) = (ran + 1, copies + all, split + usize::from(parts > all));
            again += usize::from(plan.order().count() > graph.ops.len());
            slots += usize::from(plan.pools.is_some());
            faults += usize::from(plan.steps.iter().any(|step| matches!(step, Step::Fault(_))));
        }
    }
    println!("{ran} plans, {copies} copies, {again} recompute, {slots} with slots, {split} split, {faults} faults");
    assert!(ran > 400 && copies > 10_000 && again > 10 && slots > 20 && split > 20 && faults > 20);
}

/// Copies without a fixed cost, so that blocks in several parts take no longer: the device does what the simulator says.
#[test]
fn the_simulated_time_is_the_devices() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(43);
    let (mut simulated, mut measured, mut compared) = (0, 0, 0);
    for _ in 0..60 {
        let (graph, mut machine) = tight(&mut rng, 30);
        machine.link.latency_ns = 0;
        machine.tiers.iter_mut().for_each(|tier| tier.profile.latency_ns = 0);
        for planner in [Planner::OdswapLru, Planner::Belady, Planner::Delta, Planner::Ours] {
            let Some(plan) = plan(planner, &graph, &machine) else { continue };
            let report = sim::simulate(&graph, &machine, &plan).expect("checked");
            let program = prepare(&graph, &machine, &plan, STEPS).expect("correct");
            if report.steady {
                let outcome = execute(&graph, &machine, &program, false, None);
                let period = *outcome.periods().last().expect("two steps");
                let ratio = period as f64 / report.step_ns.max(1) as f64;
                assert!((0.8..1.25).contains(&ratio), "{planner}: {period} of {}", report.step_ns);
                (simulated, measured, compared) = (simulated + report.step_ns, measured + period, compared + 1);
            }
        }
    }
    let ratio = measured as f64 / simulated as f64;
    println!("{compared} plans: {ratio:.4} of the simulated time");
    assert!(compared > 150 && (0.99..1.01).contains(&ratio), "{compared} plans, {ratio}");
}

/// `a` is made, copied out, changed in place, and comes back: as it is or as it was.
fn changed_in_place(stale: bool) -> (Graph, Machine, Plan) {
    let mut to = GraphBuilder::new("in place");
    let w = to.storage(1000, StorageKind::Param);
    let w = to.tensor(w, 1000);
    let a = to.storage(500, StorageKind::Temporary);
    let (a, changed) = (to.tensor(a, 500), to.tensor(a, 500));
    let result = to.storage(300, StorageKind::Output);
    let result = to.tensor(result, 300);
    let mut op = |inputs: &[usize], outputs: &[usize]| {
        let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
        to.op(NewOp { inputs, outputs, time: 1000, ..NewOp::default() }).expect("valid");
    };
    op(&[w], &[a]);
    op(&[a], &[changed]);
    op(&[w, changed], &[result]);
    let graph = to.finish().expect("a step");
    let mut plan = Plan::new("by hand", &graph);
    plan.initial = vec![0];
    let out = Step::CopyOut { storage: 1, tier: 0 };
    plan.steps =
        vec![Step::Run(0), Step::Run(1), Step::Drop(1), Step::CopyIn(1), Step::Run(2), Step::Drop(1), Step::Drop(2)];
    plan.steps.insert(if stale { 1 } else { 2 }, out);
    let machine = machine(2000, 1 << 20, "cxl-asic");
    (graph, machine, plan)
}

#[test]
fn stale_data_is_refused_and_seen_where_nobody_refuses_it() {
    let (graph, machine, plan) = changed_in_place(false);
    let program = prepare(&graph, &machine, &plan, STEPS).expect("correct");
    assert_eq!(execute(&graph, &machine, &program, false, None).wrong, []);
    let (graph, machine, plan) = changed_in_place(true);
    let error = prepare(&graph, &machine, &plan, STEPS).expect_err("stale").to_string();
    assert!(error.contains("by hand") && error.contains("reads storage 1 in the wrong state"), "{error}");
    let program = Program::new(&graph, &machine, &plan, STEPS).expect("the simulator looks at no contents");
    let wrong = execute(&graph, &machine, &program, false, None).wrong;
    // In each step its reader, and the result computed from it, of which there is one copy.
    let expected =
        (0..STEPS).flat_map(|step| [Wrong { step, op: Some(2), storage: 1 }, Wrong { step, op: None, storage: 2 }]);
    assert_eq!(wrong, expected.collect::<Vec<_>>());
}

#[test]
fn a_plan_that_reads_absent_data_is_refused_before_anything_runs() {
    let (graph, machine, mut plan) = changed_in_place(false);
    plan.steps.retain(|step| *step != Step::CopyIn(1));
    let error = prepare(&graph, &machine, &plan, STEPS).expect_err("absent").to_string();
    assert!(error.contains("storage 1 is not on the device"), "{error}");
    assert!(Program::new(&graph, &machine, &plan, STEPS).is_err(), "not even the tasks can be made");
}

/// A correct plan with a step moved or an operator run once more: those that the checker finds to read other contents
/// compute other bytes.
#[test]
fn plans_that_read_other_contents_have_other_checksums() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(47);
    let mut seen = 0;
    for _ in 0..150 {
        let (graph, machine) = tight(&mut rng, 25);
        let Some(plan) = plan(Planner::Belady, &graph, &machine) else { continue };
        for _ in 0..40 {
            let mut other = plan.clone();
            let from = rng.random_range(0..plan.steps.len());
            let step = if rng.random_bool(0.3) { other.steps.remove(from) } else { plan.steps[from] };
            other.steps.insert((from + rng.random_range(0..8)).min(other.steps.len()), step);
            let violation = check::check(&graph, &machine, &other).err();
            let Some(Violation::WrongContents { storage, .. }) = violation else { continue };
            let Ok(program) = Program::new(&graph, &machine, &other, STEPS) else { continue };
            if graph.storages[storage].bytes > 0 {
                let outcome = execute(&graph, &machine, &program, false, None);
                assert!(!outcome.wrong.is_empty(), "{violation:?}\n{other:?}\n{graph:#?}");
                seen += 1;
            }
        }
    }
    println!("{seen} wrong plans");
    assert!(seen > 30, "{seen}");
}

/// A copy that carries no bytes is seen, unless the place held the same bytes already.
#[test]
fn a_lost_copy_changes_checksums() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(53);
    let (mut lost, mut seen) = (0, 0);
    for _ in 0..30 {
        let (graph, machine) = tight(&mut rng, 25);
        let Some(plan) = plan(Planner::Belady, &graph, &machine) else { continue };
        let program = prepare(&graph, &machine, &plan, STEPS).expect("correct");
        let parts = program.copies_and_parts().1;
        if parts > 0 {
            let before = plan.home.len();
            let which = before + rng.random_range(0..parts);
            let outcome = execute(&graph, &machine, &program, false, Some(which));
            (lost, seen) = (lost + 1, seen + usize::from(!outcome.wrong.is_empty()));
        }
    }
    println!("{seen} of {lost} lost copies are seen");
    assert!(lost > 20 && seen * 2 > lost, "{seen} of {lost}");
}
