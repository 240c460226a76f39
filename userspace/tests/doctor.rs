//! `tensortier doctor` on recorded hosts, through the real binary.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    fs,
    process::{Command, Output},
};

use serde_json::Value;

fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensortier")).arg("doctor").args(arguments).output().unwrap()
}

fn recorded(name: &str) -> String {
    format!("{}/../tests/fixtures/host/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A recorded host with more files over it.
fn with(name: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-r").arg(format!("{}/.", recorded(name))).arg(root.path()).status().unwrap();
    assert!(copied.success());
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn path(root: &tempfile::TempDir) -> &str {
    root.path().to_str().unwrap()
}

#[test]
fn a_fit_host_exits_0_and_each_finding_has_its_consequence() {
    let out = doctor(&["--root", &recorded("cxl-6.12")]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(0), "{text}");
    assert!(text.contains("warning [slow-tier-movable] node 1") && text.contains("fix: daxctl"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("errors: 0, "), "{text}");
}

#[test]
fn what_stops_tiering_exits_1_in_both_forms() {
    let files = [
        ("proc/4242/status", "Name:\tpython\nVmRSS:\t2097152 kB\nMems_allowed_list:\t1\n"),
        ("proc/4242/maps", "7f00-7f01 r-xp 0 00:00 1 /usr/lib/libcuda.so.1\n"),
    ];
    let root = with("cxl-6.12", &files);
    let out = doctor(&["--root", path(&root)]);
    assert!(String::from_utf8(out.stdout).unwrap().starts_with("error [cuda-membind] process 4242 (python)"));
    assert_eq!(out.status.code(), Some(1));
    let out = doctor(&["--json", "--root", path(&root)]);
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((json["stops"].as_bool(), out.status.code()), (Some(true), Some(1)));
    for finding in json["findings"].as_array().unwrap() {
        assert!(!finding["consequence"].as_str().unwrap().is_empty(), "{finding}");
    }
    let ids: Vec<&str> =
        json["findings"].as_array().unwrap().iter().map(|finding| finding["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"job-bound-to-slow"), "{ids:?}");
}

#[test]
fn wrong_usage_and_unreadable_hosts_are_told_apart() {
    assert_eq!(doctor(&["--frob"]).status.code(), Some(2));
    let out = doctor(&["--root", "/nonexistent"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8(out.stderr).unwrap().contains("/nonexistent/sys/devices/system/node"));
    let torn = with("numa-6.12", &[("proc/self/status", "CapEff:\tall\n")]);
    let out = doctor(&["--root", path(&torn)]);
    assert!(String::from_utf8(out.stderr).unwrap().contains("proc/self/status"));
}

#[test]
fn this_machine_is_examined_and_attempts_are_made() {
    let out = doctor(&["--json"]);
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    let errors = json["findings"].as_array().unwrap().iter().any(|finding| finding["severity"] == "error");
    assert_eq!((json["stops"].as_bool(), out.status.code()), (Some(errors), Some(i32::from(errors))));
    // What is found by an attempt is found here too.
    let refused = json["findings"].as_array().unwrap().iter().any(|finding| finding["id"] == "ebpf");
    assert_eq!(refused, tensortier::source::migrations::MigrationProgram::load().is_err());
}

/// The kernel cuts a name at 15 bytes, in the middle of a character if it falls so; and a name may hold escape codes.
#[test]
fn a_process_with_an_odd_name_is_found_and_shown_harmlessly() {
    let root = with("cxl-6.12", &[("proc/4242/maps", "7f00-7f01 r-xp 0 00:00 1 /usr/lib/libcuda.so.1\n")]);
    let name = [b"Name:\t\x1b[2J".as_slice(), &"学ロ".as_bytes()[..5]].concat();
    let status = [name, b"\nVmRSS:\t2097152 kB\nMems_allowed_list:\t1\n".to_vec()].concat();
    fs::write(root.path().join("proc/4242/status"), status).unwrap();
    let text = String::from_utf8(doctor(&["--root", path(&root)]).stdout).unwrap();
    assert!(text.starts_with("error [cuda-membind] process 4242 (\\u{1b}[2J学\u{fffd})"), "{text}");
}

#[test]
fn a_config_that_the_agent_refuses_is_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = held.local_addr().unwrap();
    let lines = format!("[agent]\ngroup = \"no such group\"\n[prometheus]\nlisten = \"{listen}\"\n");
    fs::write(&config, lines).unwrap();
    let out = doctor(&["--config", config.to_str().unwrap()]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("error [agent-group]") && text.contains("no such group"), "{text}");
    assert!(text.contains("error [prometheus-listen]") && text.contains(&listen.to_string()), "{text}");
    assert_eq!(out.status.code(), Some(1));
}
