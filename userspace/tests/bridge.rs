//! `tensortier bridge bench`, through the real binary: on the emulated driver, and without one.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
};

fn bench(libraries: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensortier"));
    command.args(["bridge", "bench"]).args(arguments).env("LD_LIBRARY_PATH", libraries).output().unwrap()
}

/// A folder in which the emulator is the driver.
fn emulated() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libtensortier_emulator.so");
    assert!(library.exists(), "{}: built as a dev-dependency", library.display());
    for name in ["libcuda.so", "libcuda.so.1"] {
        symlink(&library, folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn every_path_of_a_node_has_rates_and_the_name_says_emulator() {
    let driver = emulated();
    let plot = driver.path().join("rates.svg");
    let small = ["--size", "2MiB", "--copies", "2", "--nodes", "0"];
    let out = bench(driver.path(), &[&small[..], &["--json", "--plot", plot.to_str().unwrap()]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(report["device"].as_str().unwrap().contains("emulator"));
    let rates = report["rates"].as_array().unwrap();
    let paths: Vec<_> = rates.iter().map(|rate| rate["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["pageable", "registered", "bridge"]);
    for rate in rates {
        // Above nothing, and not above what the emulator's engine is told to deliver.
        for way in ["h2d", "d2h"] {
            let value = rate[way].as_f64().unwrap_or_else(|| panic!("{rate}"));
            assert!(value > 1e6 && value <= 2.1e9, "{rate}");
        }
    }
    assert!(std::fs::read_to_string(&plot).unwrap().contains("node 0, bridge"));

    let out = bench(driver.path(), &small);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("emulator") && text.contains("registered") && text.contains("2.0 MiB"), "{text}");
}

#[test]
fn without_a_driver_it_fails_and_names_the_way_out() {
    // Files that are no libraries, under the names of the driver's: this host may have a driver.
    let none = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(none.path().join(name), "").unwrap();
    }
    let out = bench(none.path(), &[]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("libcuda.so.1") && said.contains("scripts/emulator"), "{said}");
}

#[test]
fn wrong_arguments_are_refused() {
    let driver = emulated();
    for (arguments, code, part) in [
        (&["--copies", "0"][..], 2, "copies"),
        (&["--size", "many"], 2, "not a size"),
        (&["--nodes", "a"], 2, "a"),
        (&["--size", "1KiB"], 2, "64KiB"),
        (&["--nodes", "999"], 1, "node 999"),
        (&["--size", "64KiB", "--copies", "1", "--plot", "/nonexistent/x.svg"], 1, "/nonexistent/x.svg"),
    ] {
        let out = bench(driver.path(), arguments);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}
