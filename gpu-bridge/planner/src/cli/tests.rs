use std::fmt::Write;

use clap::{Parser, error::ErrorKind};

use super::*;
use crate::plan::Plan;

#[derive(Parser)]
struct Wrapper {
    #[command(flatten)]
    args: PlanArgs,
}

fn parse(options: &[&str]) -> Result<PlanArgs, clap::Error> {
    Wrapper::try_parse_from([&["plan"], options].concat()).map(|wrapper| wrapper.args)
}

/// Eight operators forward, each 1 MiB from the last, and eight backward that read them in reverse.
fn graph(folder: &Path) -> PathBuf {
    let out = |id| format!(r#"{{"shape":[262144],"dtype":"float32","bytes":1048576,"storage":{id}}}"#);
    let mut nodes = format!(r#"{{"id":0,"op":"param","name":"w","in":[],"out":[{}],"flops":0}}"#, out(0));
    for id in 1..=16 {
        let saved = if id > 8 { format!(",{}", 17 - id) } else { String::new() };
        let last = id - 1;
        let node = format!(
            r#",{{"id":{id},"op":"aten.f","name":"n{id}","in":[{last}{saved}],"out":[{}],"flops":0,"time_ns":90000}}"#,
            out(id)
        );
        nodes.write_str(&node).expect("to memory");
    }
    let path = folder.join("g.json");
    let text = format!(r#"{{"version":2,"model":"chain","batch":1,"outputs":[16],"nodes":[{nodes}]}}"#);
    std::fs::write(&path, text).expect("written");
    path
}

#[test]
fn every_planner_prints_writes_and_draws() {
    let folder = tempfile::tempdir().expect("a folder");
    let graph = graph(folder.path());
    let (plan, svg, html) = (folder.path().join("p.json"), folder.path().join("t.svg"), folder.path().join("t.html"));
    let text = |path: &Path| path.to_str().expect("a plain name").to_owned();
    for planner in Planner::ALL {
        let (graph, plan_file, svg_file) = (text(&graph), text(&plan), text(&svg));
        let with = |more: &[&str]| {
            let common = [
                &graph,
                "--hbm",
                "5MiB",
                "--dram",
                "3MiB",
                "--cxl",
                "1GiB",
                "--planner",
                planner.name(),
                "--evaluations",
                "80",
            ];
            parse(&[&common, more].concat()).expect("valid")
        };
        let table = run(&with(&[])).expect("has a plan");
        for word in ["chain b1", planner.name(), "5.0 MiB of a peak of", "bound, any order", "CXL", "planned in"] {
            assert!(table.contains(word), "{planner}: {word}\n{table}");
        }
        let json = run(&with(&["--json", "--plan", &plan_file, "--timeline", &svg_file])).expect("has a plan");
        let figures: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let number = |name: &str| figures[name].as_u64().unwrap_or_else(|| panic!("{name} in {json}"));
        assert!(number("step_ns") >= number("ideal_ns") && number("copies") + number("compute_ns") > 0);
        assert_eq!(number("ideal_ns"), 16 * 90_000);
        let read = Plan::from_json(&std::fs::read(&plan).expect("written")).expect("a plan");
        assert_eq!((read.planner.as_str(), read.order().count() >= 16), (planner.name(), true));
        let drawn = std::fs::read_to_string(&svg).expect("drawn");
        assert!(drawn.starts_with("<svg") && drawn.contains("GPU memory") && drawn.contains("compute"));
        run(&with(&["--timeline", &text(&html)])).expect("has a plan");
        let page = std::fs::read_to_string(&html).expect("drawn");
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"));
    }
}

#[test]
fn errors_name_what_is_wrong_and_the_way_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let graph = graph(folder.path());
    let graph = graph.to_str().expect("a plain name");
    let fails = |options: &[&str], words: &[&str]| {
        let error = format!("{:#}", run(&parse(options).expect("valid")).expect_err("wrong"));
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    fails(&["/nowhere/g.json"], &["/nowhere/g.json"]);
    fails(&[graph, "--gpu", "a1000"], &["a1000", "a100-40g"]);
    fails(&[graph, "--link", "isa"], &["isa", "pcie4-x16"]);
    fails(&[graph, "--cxl", "1GiB", "--cxl-profile", "tape"], &["tape", "cxl-asic"]);
    fails(&[graph, "--profiles", "/nowhere/p.toml"], &["/nowhere/p.toml"]);
    fails(&[graph, "--hbm", "2MiB", "--planner", "belady"], &["belady", "2.0 MiB", "3.0 MiB", "--hbm"]);
    fails(&[graph, "--hbm", "5MiB", "--dram", "0", "--planner", "belady"], &["--dram"]);
    fails(&[graph, "--plan", "/nowhere/p.json"], &["cannot write /nowhere/p.json"]);
    let refused = |options: &[&str]| parse(options).expect_err("wrong usage").kind();
    assert_eq!(refused(&[]), ErrorKind::MissingRequiredArgument);
    assert_eq!(refused(&[graph, "--planner", "best"]), ErrorKind::ValueValidation);
    assert_eq!(refused(&[graph, "--hbm", "5 parsecs"]), ErrorKind::ValueValidation);
    assert_eq!(refused(&[graph, "--frobnicate"]), ErrorKind::UnknownArgument);
    let sizes = ["5242880", "5MiB", "5 MiB", "5242880B"];
    let parsed = sizes.map(|size| parse(&[graph, "--hbm", size]).expect("a size").hbm.expect("given").as_u64());
    assert_eq!(parsed, [5 << 20; 4]);
}
