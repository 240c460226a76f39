//! The probes in the built binary: the ones that are documented, each once, where perf looks for them.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;

use tensortier::observe::{
    notes::{self, Note},
    usdt::{PROBES, PROVIDER},
};

fn probes() -> Vec<Note> {
    notes::read(Path::new(env!("CARGO_BIN_EXE_tensortier"))).unwrap()
}

#[test]
fn each_documented_probe_is_there_once_with_its_arguments() {
    let mut found: Vec<_> =
        probes().iter().filter(|note| note.provider == PROVIDER).map(|n| (n.name.clone(), n.arguments.len())).collect();
    let mut documented: Vec<_> = PROBES.iter().map(|probe| (probe.name.to_owned(), probe.arguments.len())).collect();
    found.sort();
    documented.sort();
    assert_eq!(found, documented);
}

#[test]
fn names_and_arguments_are_such_as_perf_takes() {
    for note in probes() {
        assert!(note.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{note:?}");
        // Signed, eight bytes, in a register or a constant: what the documentation says of every argument.
        assert!(note.arguments.iter().all(|argument| argument.starts_with("-8@")), "{note:?}");
        assert!(note.arguments.len() <= 6, "{note:?}");
    }
}

#[test]
fn perf_finds_each_probe_where_it_is() {
    for note in probes() {
        assert!(note.perf_agrees(), "linked by rust-lld? see .cargo/config.toml: {note:#x?}");
    }
}

#[test]
fn each_probe_is_the_nop_that_perf_replaces() {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_tensortier")).unwrap();
    for note in probes() {
        let at = usize::try_from(note.perf_offset).unwrap();
        assert_eq!(binary[at], 0x90, "{note:#x?}");
        // A semaphore would be written to by the kernel; none of ours has one.
        assert_eq!(note.semaphore, 0, "{note:#x?}");
    }
}
