//! `--gpu`: the library is under the job, and under nothing else.

use std::path::PathBuf;

use crate::{ran, run};

/// The library that cargo has built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join("libtensortier_preload.so");
    assert!(path.exists(), "{}: built as a dev-dependency", path.display());
    path
}

const SHOW: &str = "echo \"$LD_AUDIT|$LD_PRELOAD\"; grep -c libtensortier_preload /proc/$$/maps";

#[test]
fn the_job_alone_has_the_library_and_runs_as_before() {
    let library = library();
    let (code, out, _) = ran(run(&["--gpu", "--", "sh", "-c", SHOW]).env("TENSORTIER_PRELOAD", &library));
    let path = library.to_str().unwrap();
    let (lists, mapped) = out.split_once('\n').unwrap();
    assert_eq!((code, lists), (0, format!("{path}|{path}").as_str()));
    assert!(mapped.trim().parse::<u32>().unwrap() > 0, "the dynamic linker took it: {out}");

    let (code, out, _) = ran(&mut run(&["--", "sh", "-c", SHOW]));
    assert_eq!((code, out.as_str()), (1, "|\n0\n"), "without --gpu nothing is there, and grep says so");
}

#[test]
fn a_library_that_is_not_there_is_named_before_the_job_starts() {
    let (code, out, err) = ran(run(&["--gpu", "--", "echo", "started"]).env("TENSORTIER_PRELOAD", "/nonexistent.so"));
    assert_eq!((code, out.as_str()), (125, ""));
    assert!(err.contains("TENSORTIER_PRELOAD") && err.contains("/nonexistent.so"), "{err}");
}
