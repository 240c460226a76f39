//! Files with bytes changed, cut out and put in: each loader gives a value or an error, and what it gives can be used.

use std::{io::Write, path::Path};

use proptest::prelude::*;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::{Machine, Profiles};

use crate::{
    check,
    dtr::{Dtr, Heuristic, OpLog, Runtime},
    g10,
    graph::{Graph, random},
    plan::{Plan, Pools},
    sim::{
        self,
        demand::{Demand, Policy, realize},
    },
    swapadvisor,
};

/// Up to four edits of `text`.
fn edited(text: String) -> impl Strategy<Value = String> {
    let length = text.len();
    prop::collection::vec((0..length, 0..6u8, 0..length, any::<u8>()), 1..5).prop_map(move |edits| {
        let mut bytes = text.clone().into_bytes();
        for (at, how, span, byte) in edits {
            let at = at % bytes.len().max(1);
            let end = (at + span % 40).min(bytes.len());
            match how {
                // An earlier edit may have left nothing.
                0 => bytes.get_mut(at).into_iter().for_each(|old| *old = byte),
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, b'0' + byte % 10),
                3 => drop(bytes.drain(at..end)),
                // A piece from elsewhere: whole numbers and names change places.
                4 => {
                    let piece = bytes[at..end].to_vec();
                    let to = usize::from(byte) * bytes.len() / 256;
                    drop(bytes.splice(to..to, piece));
                }
                _ => {
                    // The next number grows far out of range.
                    let digit = bytes[at..].iter().position(u8::is_ascii_digit).map_or(at, |n| at + n);
                    drop(bytes.splice(digit..digit, b"9999999999999".iter().copied()));
                }
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn example() -> (Graph, Machine, Plan) {
    let graph = random::graph(&mut Xoshiro256PlusPlus::seed_from_u64(3), 20);
    let tiers = [("dram", 1 << 40), ("cxl-asic", 1 << 40)];
    let hbm = (graph.peak() / 2).max(graph.largest_op());
    let machine = Machine::new(&Profiles::builtin(), "v100-16g", hbm, "pcie4-x16", &tiers).expect("built in");
    let plan = swapadvisor::global(&graph, &machine, &graph.traced_order()).expect("fits");
    (graph, machine, plan)
}

fn plan_text(pools: bool) -> String {
    let (graph, _, mut plan) = example();
    let slots = Pools { sizes: vec![1024], counts: vec![4], class_of: vec![0; graph.storages.len()] };
    plan.pools = pools.then_some(slots);
    plan.to_json()
}

const LOG: &str = r#"{"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"}
{"INSTRUCTION":"CONSTANT","NAME":"w"}
{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"8"}
{"INSTRUCTION":"CALL","NAME":"op","ARGS":["w"],"RESULT":["a"],"TIME":"10"}
{"INSTRUCTION":"MEMORY","NAME":"a","MEMORY":"100"}
{"INSTRUCTION":"ALIAS","NAME":"a","ALIAS":"-1"}
{"INSTRUCTION":"CALL","NAME":"view","ARGS":["a"],"RESULT":["b"],"TIME":"10"}
{"INSTRUCTION":"MEMORY","NAME":"b","MEMORY":"0"}
{"INSTRUCTION":"ALIAS","NAME":"b","ALIAS":"0"}
{"INSTRUCTION":"MUTATE","NAME":"add_","ARGS":["b","w"],"MUTATE":["0"],"TIME":"3"}
{"INSTRUCTION":"COPY","DST":"c","SRC":"b"}
{"INSTRUCTION":"RELEASE","NAME":"a"}
{"INSTRUCTION":"RELEASE","NAME":"b"}"#;

const WORKLOAD: &str = r#"{"model":"m","batch":1,"hbm_bytes":4096,"host_bytes":8192,"pcie_gbps":15.754,"ssd_gbps":3.2,
"ssd_latency_us":16,"system_latency_us":45,"page_bytes":4096,"tensors":[{"id":0,"bytes":4096,"global":true},
{"id":1,"bytes":4096,"global":false}],"kernels":[{"name":"k","time_us":3.5,"inputs":[0],"outputs":[1],"workspace_bytes":0}]}"#;

#[test]
fn what_is_edited_is_valid() {
    let (graph, machine, plan) = example();
    check::check(&graph, &machine, &plan).expect("correct");
    Plan::from_json(plan_text(true).as_bytes()).expect("a plan");
    OpLog::parse(LOG, Path::new("a.log")).expect("a log");
    load_workload(WORKLOAD).expect("a workload");
}

fn load_workload(text: &str) -> Result<g10::Workload, g10::LoadError> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("written");
    g10::Workload::load(file.path())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn plans(text in any::<bool>().prop_flat_map(|pools| edited(plan_text(pools)))) {
        let (graph, machine, _) = example();
        if let Ok(plan) = Plan::from_json(text.as_bytes()) {
            let accepted = check::check(&graph, &machine, &plan).is_ok();
            let simulated = sim::timeline(&graph, &machine, &plan);
            prop_assert!(!accepted || simulated.is_ok(), "{:?}", simulated);
            if let Ok(made) = realize(&graph, &machine, &plan, Demand::odswap(Policy::Lru)) {
                prop_assert!(made.order().eq(plan.order()));
            }
        }
    }

    #[test]
    fn logs(text in edited(LOG.into())) {
        if let Ok(log) = OpLog::parse(&text, Path::new("a.log")) {
            let run = Runtime::new(&log, log.peak_bytes() / 2, Dtr::new(&log, Heuristic::Classes));
            let outcome = run.remat_limit(log.base_ns).run();
            prop_assert!(outcome.stop.is_some() || outcome.time_ns >= log.base_ns);
        }
    }

    #[test]
    fn workloads(text in edited(WORKLOAD.into())) {
        if let Ok(workload) = load_workload(&text) {
            prop_assert!(workload.ideal_us() >= 0.0);
            prop_assert!(workload.kernels.iter().all(|k| k.uses().all(|t| (t as usize) < workload.tensors.len())));
        }
    }
}
