//! The executor on two real nodes: pages of both sizes, pinned ones, a full node, a process that ends.

#![allow(clippy::unwrap_used)]

use tempfile::TempDir;
use tensortier_tests::guest::{Guest, Profile};

fn moves_on(kernel: &str) {
    let out = TempDir::new().unwrap();
    let guest = Guest::new(Profile::Numa, kernel, out.path()).dram("2G").slow("512M");
    let ran = guest.run([env!("CARGO_BIN_EXE_guest-migrate")]).unwrap();
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.ends_with("all moved as counted\n"), "{}", ran.stdout);
}

#[test]
fn pages_move_as_counted_on_6_12() {
    moves_on("6.12");
}

#[test]
fn pages_move_as_counted_on_7_3() {
    moves_on("7.3");
}
