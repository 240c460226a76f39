//! Exit codes, descriptors and streams.

use std::{fs, io::Write, process::Stdio};

use crate::{config, ran, run, socket};

#[test]
fn the_jobs_code_is_runs_code() {
    for code in [0, 1, 3, 125, 255] {
        assert_eq!(ran(&mut run(&["--", "sh", "-c", &format!("exit {code}")])).0, code);
    }
    let (code, _, summary) = ran(&mut run(&["sh", "-c", "kill -SEGV $$"]));
    assert_eq!(code, 128 + 11);
    assert!(summary.contains("ended by SIGSEGV"), "{summary}");
    let (code, _, summary) = ran(&mut run(&["bash", "-c", "kill -RTMIN+6 $$"]));
    assert_eq!(code, 128 + nix::libc::SIGRTMIN() + 6);
    assert!(summary.contains("ended by SIGRTMIN+6"), "{summary}");
}

#[test]
fn runs_own_failures_are_those_of_env() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    fs::write(&plain, "no program").unwrap();
    let plain = plain.to_str().unwrap();

    let (code, out, err) = ran(&mut run(&["--", "no-such-command-here"]));
    assert_eq!((code, out.as_str()), (127, ""));
    assert!(err.contains("no-such-command-here") && err.contains("PATH"), "{err}");
    assert_eq!(ran(&mut run(&["--", "/no/such/command"])).0, 127);

    let (code, _, err) = ran(&mut run(&["--", plain]));
    assert_eq!(code, 126);
    assert!(err.contains(plain) && err.contains("Permission denied"), "{err}");
    // A folder of PATH where the name cannot be executed does not end the search, and counts where nothing else is found.
    let mut shadowed = run(&["--", "plain"]);
    assert_eq!(ran(shadowed.env("PATH", folder.path())).0, 126);

    let usage = [&[][..], &["--no-such-option", "true"], &["--place", "near=0", "true"], &["--", ""]];
    // What the agent would refuse, the job need not begin for.
    let terms = [["--priority", "21", "true"], ["--name", "123", "true"], ["--name", " ", "true"]];
    for wrong in usage.into_iter().chain(terms.iter().map(|words| &words[..])) {
        assert_eq!(ran(&mut run(wrong)).0, 125, "{wrong:?}");
    }
    let (code, _, err) = ran(&mut run(&["--place", "prefer=4000", "--", "true"]));
    assert_eq!(code, 125);
    assert!(err.contains("node 4000"), "{err}");
    assert_eq!(ran(&mut run(&["--summary-json", "/no/such/folder/f", "--", "touch", plain])).0, 125);
    assert_eq!(ran(&mut run(&["--config", "/no/such/config", "--", "true"])).0, 125);
}

#[test]
fn a_script_without_an_interpreter_line_is_run_by_the_shell() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    fs::write(&script, "echo shell: $1\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(ran(&mut run(&["--", script.to_str().unwrap(), "one"])).1, "shell: one\n");
}

#[test]
fn the_job_gets_what_run_was_given_and_none_of_runs_own_descriptors() {
    // What this test itself was given is the job's too: the same line without run says what that is.
    for given in ["", "exec 7</dev/null;"] {
        let shown = |command: &str| {
            let mut shell = std::process::Command::new("bash");
            shell.args(["-c", &format!("{given} {command} ls /proc/self/fd")]);
            ran(shell.env("TENSORTIER_CONFIG", config()).env("TENSORTIER_SOCKET", socket()).stdin(Stdio::null())).1
        };
        let (without, with) = (shown("command"), shown(&format!("{} run --", env!("CARGO_BIN_EXE_tensortier"))));
        assert_eq!(without, with);
        assert_eq!(with.lines().any(|fd| fd == "7"), !given.is_empty());
    }
}

#[test]
fn stdin_reaches_the_job() {
    let mut child = run(&["--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through and through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"through and through");
}

#[test]
fn dispositions_and_mask_are_those_that_run_had() {
    let signals = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    let mut shell = std::process::Command::new("bash");
    let tensortier = env!("CARGO_BIN_EXE_tensortier");
    // HUP ignored is how nohup protects a job; CHLD ignored would have the kernel reap it under run's feet.
    let line = format!("trap '' HUP; trap '' CHLD; {signals}; {tensortier} run -- {signals}; echo code $?");
    let (_, out, _) = ran(shell
        .args(["-c", &line])
        .env("TENSORTIER_CONFIG", config())
        .env("TENSORTIER_SOCKET", socket())
        .stdin(Stdio::null()));
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[..2], lines[2..4], "{out}");
    assert!(u64::from_str_radix(lines[1].rsplit('\t').next().unwrap(), 16).unwrap() & 1 == 1, "{out}");
    assert_eq!(lines[4], "code 0");
}

#[test]
fn the_place_holds_for_the_job_and_its_children() {
    let line = "sh -c 'grep -c prefer:0 /proc/self/numa_maps'; true";
    let count: u32 = ran(&mut run(&["--place", "prefer=0", "--", "sh", "-c", line])).1.trim().parse().unwrap();
    assert!(count > 0);
}

#[test]
fn a_hundred_quick_jobs() {
    for number in 0..100 {
        let (code, out, _) = ran(&mut run(&["--", "sh", "-c", &format!("echo {number}; exit {number}")]));
        assert_eq!((code, out), (number, format!("{number}\n")));
    }
}

#[test]
fn the_summary_is_json_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("summary.json");
    let (code, _, text) = ran(&mut run(&["--summary-json", path.to_str().unwrap(), "--", "sh", "-c", "exit 4"]));
    assert_eq!(code, 4);
    assert!(text.contains("exit code 4"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(json["job"]["exit_code"], 4);
    assert_eq!(json["job"]["command"], serde_json::json!(["sh", "-c", "exit 4"]));
}
