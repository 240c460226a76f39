//! C programs that link the driver, open it, or ask it for addresses, with the emulator in its place.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The library that cargo has built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("known");
    test.parent().expect("target/PROFILE/deps").join("libtensortier_emulator.so")
}

fn run(form: &str) -> String {
    let folder = std::env::temp_dir().join(format!("tensortier-emulator-{form}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("temporary folder");
    let driver = folder.join("libcuda.so.1");
    std::os::unix::fs::symlink(library(), &driver).expect("a link");
    let program = folder.join("copy");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/copy.c");
    let mut cc = Command::new("cc");
    cc.args([format!("-D{form}").as_ref(), "-o".as_ref(), program.as_os_str(), source.as_os_str()]);
    cc.args(if form == "LINKED" { vec![driver.as_os_str()] } else { vec!["-ldl".as_ref()] });
    assert!(cc.status().expect("a C compiler is part of the toolchain").success());
    let output = Command::new(&program).env("LD_LIBRARY_PATH", &folder).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{form}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_dir_all(&folder).expect("remove");
    text
}

#[test]
fn a_program_that_links_the_driver_finds_it_by_its_soname() {
    assert!(run("LINKED").contains("emulator"));
}

#[test]
fn a_program_that_opens_the_driver_finds_it() {
    assert!(run("OPENED").contains("emulator"));
}

#[test]
fn a_program_that_asks_for_addresses_gets_them() {
    assert!(run("PROC").contains("emulator"));
}
