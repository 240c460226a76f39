//! The planners on recorded inputs of the DTR and G10 papers, where these are at hand.
//!
//! They are not part of the repository. Where they are absent each test says that the comparison was not made, and runs
//! the same code on a small step of our own instead.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use tensortier_planner::delta::{AsReleased, Config, Delta};
use tensortier_planner::dtr::{Dtr, Heuristic, OpLog, Runtime};
use tensortier_planner::{g10, traces};

fn own_log() -> OpLog {
    OpLog::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/step.log")).unwrap()
}

/// A recorded file, or `None` with a word about it.
fn recorded(name: &str) -> Option<PathBuf> {
    let path = traces::find(Path::new(env!("CARGO_MANIFEST_DIR"))).map(|dir| dir.join(name)).filter(|p| p.is_file());
    if path.is_none() {
        println!("NOT COMPARED with recorded results: {name} is absent ({} names its folder)", traces::VARIABLE);
    }
    path
}

fn overheads(log: &OpLog, heuristic: Heuristic, ratios: &[f64]) -> Vec<String> {
    let run = |ratio: &f64| {
        let budget = (log.peak_bytes() as f64 * ratio) as u64;
        let outcome = Runtime::new(log, budget, Dtr::new(log, heuristic)).remat_limit(log.base_ns).run();
        outcome.overhead().map_or_else(|| "-".to_owned(), |o| format!("{o:.4}"))
    };
    ratios.iter().map(run).collect()
}

#[test]
fn our_own_step_costs_what_it_did() {
    let log = own_log();
    assert_eq!((log.peak_bytes(), log.base_ns), (203_423_748, 27_102_000));
    let ratios = [0.9, 0.7];
    for heuristic in [Heuristic::Exact, Heuristic::Classes] {
        let found = overheads(&log, heuristic, &ratios);
        assert!(found.iter().all(|o| o != "-"), "{} {found:?}", heuristic.name());
    }
    assert_eq!(overheads(&log, Heuristic::Local, &ratios), ["1.0395", "1.0849"]);
}

#[test]
fn dtr_prints_the_authors_digits() {
    let ratios = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2];
    let cases: [(&str, Heuristic, &[&str]); 4] = [
        (
            "resnet32",
            Heuristic::Classes,
            &["1.0131", "1.0248", "1.0463", "1.0737", "1.1068", "1.1404", "1.1786", "1.3322"],
        ),
        (
            "resnet32",
            Heuristic::Exact,
            &["1.0131", "1.0248", "1.0463", "1.0737", "1.1068", "1.1404", "1.1782", "1.3711"],
        ),
        ("unet", Heuristic::Classes, &["1.0331", "1.0577", "1.0846", "1.1489", "1.1587", "-"]),
        ("unet", Heuristic::Local, &["1.0279", "1.0561", "1.0910", "1.1370", "1.8469", "-"]),
    ];
    for (name, heuristic, expected) in cases {
        match recorded(&format!("dtr/{name}.log.gz")) {
            Some(path) => {
                let log = OpLog::load(&path).unwrap();
                assert_eq!(
                    overheads(&log, heuristic, &ratios[..expected.len()]),
                    expected,
                    "{name} {}",
                    heuristic.name()
                );
            }
            None => assert_eq!(overheads(&own_log(), heuristic, &[1.2]), ["1.0000"]),
        }
    }
}

#[test]
fn delta_takes_no_longer_than_dtr_and_the_published_code_swaps() {
    let log = recorded("dtr/resnet32.log.gz").map_or_else(own_log, |path| OpLog::load(&path).unwrap());
    let (mut logs, mut swaps, mut drops) = (0.0, 0, 0);
    let ratios = [0.9, 0.8, 0.7, 0.6, 0.5];
    for ratio in ratios {
        let budget = (log.peak_bytes() as f64 * ratio) as u64;
        let dtr = Runtime::new(&log, budget, Dtr::new(&log, Heuristic::Classes)).run();
        let delta = Runtime::new(&log, budget, Delta::new(&log, Config::with_link(12e9))).run();
        logs += (delta.overhead().unwrap() / dtr.overhead().unwrap()).ln();
        let (_, policy) = Runtime::new(&log, budget, AsReleased::new(&log, 12e9)).run_with_policy();
        swaps += policy.swaps;
        drops += policy.drops;
    }
    assert!(logs <= 0.0, "geometric mean {}", (logs / ratios.len() as f64).exp());
    assert!(swaps * 100 >= (swaps + drops) * 99, "{swaps} swaps, {drops} drops");
}

#[test]
fn g10s_own_plan_and_time_come_out() {
    let (Some(input), Some(plan)) =
        (recorded("g10/BERT_Base_b256.json.gz"), recorded("g10/plans/BERT_Base_b256.plan.json.gz"))
    else {
        return no_g10();
    };
    let w = g10::Workload::load(&input).unwrap();
    let theirs = g10::Plan::load(&plan, &w).unwrap();
    let ours = g10::plan(&w, &g10::Profile::g10(&w));
    let found = g10::compare(&ours, &theirs);
    assert_eq!((found.same, found.same_return, found.differences), (24, 24, vec![]));
    assert_eq!(ours.gpu_bytes_after_prefetch_advance, theirs.gpu_bytes_after_prefetch_advance);
    let run = g10::simulate(&w, &ours, &g10::Profile::g10_runtime(&w)).unwrap();
    assert!((run.ratio() - 0.997).abs() <= 0.05, "{run:?}");
}

/// The same steps on a workload of our own: eight kernels that write 1 GiB each and read it again in reverse.
fn no_g10() {
    let kernel = |i: usize| {
        let (inputs, outputs) = if i < 8 { (vec![], vec![i]) } else { (vec![15 - i], vec![]) };
        format!(r#"{{"name":"k","time_us":500000,"inputs":{inputs:?},"outputs":{outputs:?},"workspace_bytes":0}}"#)
    };
    let kernels: Vec<String> = (0..16).map(kernel).collect();
    let tensors: Vec<String> = (0..8).map(|i| format!(r#"{{"id":{i},"bytes":1073741824,"global":false}}"#)).collect();
    let text = format!(
        r#"{{"model":"own","batch":1,"hbm_bytes":6442450944,"host_bytes":137438953472,"pcie_gbps":15.754,"ssd_gbps":3.2,
        "ssd_latency_us":20,"system_latency_us":45,"page_bytes":4096,"tensors":[{}],"kernels":[{}]}}"#,
        tensors.join(","),
        kernels.join(",")
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let w = g10::Workload::load(file.path()).unwrap();
    let plan = g10::plan(&w, &g10::Profile::g10(&w));
    assert!(!plan.moves.is_empty());
    let run = g10::simulate(&w, &plan, &g10::Profile::g10_runtime(&w)).unwrap();
    assert!(run.ratio() > 0.9, "{run:?}");
}
