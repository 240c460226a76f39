//! The eBPF programs on the guest's kernels: the host's tests again, migrations between two nodes, DAMON's events.
#![allow(clippy::unwrap_used)]

/// Run by this test's own binary, in the guest.
#[path = "host_ebpf.rs"]
mod host;

use std::{env, ffi::OsStr};

use tempfile::TempDir;
use tensortier_tests::guest::{Guest, Profile};

fn run(kernel: &str, command: &[&OsStr], last: &str) {
    let out = TempDir::new().unwrap();
    // Each kernel entry flushes the emulator's TLB, which would hide accesses from DAMON.
    let guest = Guest::new(Profile::Numa, kernel, out.path()).dram("2G").slow("512M").append("pti=on");
    let ran = guest.run(command).unwrap();
    assert!(ran.code == 0 && ran.stdout.contains(last), "{}: {}{}", ran.code, ran.stdout, ran.stderr);
}

fn host_tests_on(kernel: &str) {
    let program = env::current_exe().unwrap();
    let command = [program.as_os_str(), "host::".as_ref(), "--test-threads".as_ref(), "1".as_ref()];
    run(kernel, &command, "test result: ok. 11 passed");
}

fn two_nodes_on(kernel: &str) {
    run(kernel, &[env!("CARGO_BIN_EXE_guest-ebpf").as_ref()], "all events as counted");
}

#[test]
fn counts_are_exact_on_6_12() {
    host_tests_on("6.12");
}

#[test]
fn counts_are_exact_on_7_3() {
    host_tests_on("7.3");
}

#[test]
fn migrations_and_damon_are_seen_on_6_12() {
    two_nodes_on("6.12");
}

#[test]
fn migrations_and_damon_are_seen_on_7_3() {
    two_nodes_on("7.3");
}
