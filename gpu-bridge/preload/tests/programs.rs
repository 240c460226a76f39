//! The C program in its three forms, unmodified, with and without the library under it, on the emulated driver.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// A library that cargo has built beside this test.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("known");
    let path = test.parent().expect("target/PROFILE/deps").join(name);
    assert!(path.exists(), "{}", path.display());
    path
}

/// Its answers, and the library's counters (none: it is not there).
fn run(program: &Path, folder: &Path, variables: &[&str], arguments: [&str; 3]) -> (String, Vec<u64>) {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", folder).env("TENSORTIER_EMULATOR", folder.join("fast.toml"));
    command.envs(variables.iter().map(|name| (name, library("libtensortier_preload.so"))));
    let output = command.output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing is said into the program's output");
    let (answers, counters) = text.split_once("counters").expect("the last line");
    (answers.to_owned(), counters.split_whitespace().map(|count| count.parse().expect("a number")).collect())
}

fn form(form: &str) {
    let folder = std::env::temp_dir().join(format!("tensortier-preload-{form}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("temporary folder");
    let driver = folder.join("libcuda.so.1");
    std::os::unix::fs::symlink(library("libtensortier_emulator.so"), &driver).expect("a link");
    let fast = include_str!("../../emulator/profile.toml").replace("2.0e9", "1.0e13").replace("10000", "0");
    std::fs::write(folder.join("fast.toml"), fast).expect("temporary folder");
    let program = folder.join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program.c");
    let mut cc = Command::new("cc");
    cc.args([format!("-D{form}").as_ref(), "-O1".as_ref(), "-o".as_ref(), program.as_os_str(), source.as_os_str()]);
    cc.args(if form == "LINKED" { vec![driver.as_os_str()] } else { vec!["-ldl".as_ref()] });
    assert!(cc.status().expect("a C compiler is part of the toolchain").success());

    let sequences = ["sequences", "1", "300"];
    let (alone, none) = run(&program, &folder, &[], sequences);
    assert_eq!((alone.lines().count(), none.len()), (300, 0));
    let (with, counters) = run(&program, &folder, &["LD_AUDIT", "LD_PRELOAD"], sequences);
    let differs = alone.lines().zip(with.lines()).find(|(alone, with)| alone != with);
    assert_eq!(differs, None, "the first sequence with another answer");
    assert_eq!(alone, with);
    let [staged, bytes, .., panics] = counters[..] else { panic!("{counters:?}") };
    assert!(staged > 50 && bytes >= staged << 20 && panics == 0, "{counters:?}");
    let [pooled, _, _, given, _, _] = counters[9..] else { panic!("{counters:?}") };
    assert!(pooled > 50, "{counters:?}");
    assert_eq!(given > 0, form == "PROC", "{counters:?}");
    // Half of it is no harm: opened programs need the auditor, linked ones the names.
    for half in ["LD_AUDIT", "LD_PRELOAD"] {
        let (with, counters) = run(&program, &folder, &[half], ["sequences", "1", "20"]);
        assert!(alone.starts_with(&with), "{half}");
        let reached = counters.get(9).is_some_and(|pooled| *pooled > 0);
        assert_eq!(reached, half == "LD_PRELOAD" && form == "LINKED", "{half}: {counters:?}");
    }
    std::fs::remove_dir_all(&folder).expect("remove");
}

#[test]
fn a_program_that_links_the_driver() {
    form("LINKED");
}

#[test]
fn a_program_that_opens_the_driver() {
    form("OPENED");
}

#[test]
fn a_program_that_asks_for_addresses() {
    form("PROC");
}
