//! `tensortier perf list` and `stat`, through the real binary. What writes to tracefs is tests/tests/guest_perf.rs's.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
    thread::sleep,
    time::Duration,
};

use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_tensortier");

fn perf(arguments: &[&str]) -> Output {
    Command::new(BINARY).arg("perf").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A host with two nodes and a CXL unit, and nothing else.
fn host() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("proc/vmstat", "pgmigrate_success 7\nnuma_pages_migrated 2\n"),
        ("sys/devices/system/node/node0/vmstat", "pgdemote_kswapd 9\n"),
        ("sys/devices/system/node/node2/vmstat", "pgpromote_success 5\npgdemote_kswapd 0\n"),
        ("sys/bus/event_source/devices/cxl_pmu_mem0.0/events/m2s_req_memrd", "vid=0x1e98,gid=0x4,mask=0x2\n"),
    ] {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

#[test]
fn the_list_names_probes_counters_and_cxl_units() {
    let root = host();
    let root = root.path().to_str().unwrap();
    let out = text(&perf(&["list", "--root", root]).stdout);
    for part in [
        "sdt_tensortier:migrate_done",
        "arg4 from<<8 | to",
        "not usable: not armed: sudo tensortier perf setup",
        "pgpromote_success",
        "cxl_pmu_mem0.0/m2s_req_memrd/",
        "damon:damon_aggregated",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let json: Value = serde_json::from_slice(&perf(&["list", "--json", "--root", root]).stdout).unwrap();
    let entry = |event: &str| json.as_array().unwrap().iter().find(|entry| entry["event"] == event).unwrap().clone();
    assert_eq!(entry("pgmigrate_success")["unusable"], Value::Null);
    assert_eq!(entry("sdt_tensortier:plan_ready")["arguments"][3], "decide ns");
    assert_eq!(entry("cxl_pmu_mem0.0/m2s_req_memrd/")["kind"], "cxl-pmu");
}

#[test]
fn counts_are_by_node_and_by_whose_work_they_are() {
    let root = host();
    let root = root.path().to_str().unwrap();
    // The counters change while the command runs.
    let change = format!(
        "echo pgmigrate_success 107 >{root}/proc/vmstat; \
         echo pgpromote_success 35 >{root}/sys/devices/system/node/node2/vmstat"
    );
    let out = perf(&["stat", "--root", root, "-x,", "--", "sh", "-c", &change]);
    let lines = text(&out.stderr);
    for line in ["100,pages,pgmigrate_success,,kernel", "30,pages,pgpromote_success,2,numa-balancing"] {
        assert!(lines.lines().any(|one| one == line), "{line}: {lines}");
    }
    assert_eq!(out.status.code(), Some(0));
    assert!(out.stdout.is_empty(), "stdout is the command's");
}

#[test]
fn the_commands_exit_code_is_passed_on() {
    let code = |command: &[&str]| perf(&[&["stat", "--root", "/nonexistent", "--"], command].concat()).status.code();
    assert_eq!(code(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["sh", "-c", "kill -9 $$"]), Some(128 + 9));
    assert_eq!(code(&["/nonexistent"]), Some(127));
    assert_eq!(code(&["/etc/passwd"]), Some(126));
    assert_eq!(perf(&["stat", "-I", "1"]).status.code(), Some(2), "wrong usage");
    assert_eq!(perf(&["stat", "-x,", "--json"]).status.code(), Some(2), "one form at a time");
    assert_eq!(perf(&["stat", "-o", "/nonexistent/file", "--", "true"]).status.code(), Some(1));
}

#[test]
fn intervals_are_printed_as_they_end_and_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let out = perf(&["stat", "-I", "50", "--json", "-o", file.to_str().unwrap(), "--", "sleep", "0.5"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let objects: Vec<Value> =
        fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seconds: Vec<f64> = objects.iter().map(|object| object["seconds"].as_f64().unwrap()).collect();
    assert!(objects.len() >= 3 && seconds.is_sorted(), "{seconds:?}");
    for object in &objects {
        let counters = object["counters"].as_array().unwrap();
        assert!(counters.iter().any(|counter| counter["event"] == "pgmigrate_success"), "{object}");
    }
}

#[test]
fn reasons_are_apart_or_the_cause_is_said() {
    let out = perf(&["stat", "--json", "--", "true"]);
    let object: Value = serde_json::from_str(text(&out.stderr).lines().last().unwrap()).unwrap();
    let has = |list: &str, event: &str| object[list].as_array().unwrap().iter().any(|one| one["event"] == event);
    for reason in ["migrated:compaction", "migrated:demotion", "migrated:numa_misplaced", "migrated:syscall_or_cpuset"]
    {
        assert!(has("counters", reason) != has("missing", "migrated:*"), "{reason}: {object}");
    }
    assert!(has("missing", "sdt_tensortier:*") || has("counters", "sdt_tensortier:promote"));
}

#[test]
fn without_root_the_rest_is_counted_and_the_need_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("tensortier");
    fs::copy(BINARY, &binary).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let unprivileged = |arguments: &[&str]| {
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        Command::new("setpriv").args(nobody).arg(&binary).arg("perf").args(arguments).output().unwrap()
    };
    let out = unprivileged(&["stat", "--", "true"]);
    let lines = text(&out.stderr);
    assert!(lines.contains("pgmigrate_success") && lines.contains("root"), "{lines}");
    assert_eq!(out.status.code(), Some(0));
    for command in ["setup", "teardown"] {
        let out = unprivileged(&[command]);
        assert!(text(&out.stderr).contains(&format!("sudo tensortier perf {command}")), "{out:?}");
        assert_eq!(out.status.code(), Some(1));
    }
    assert_eq!(unprivileged(&["record", "--", "true"]).status.code(), Some(1));
}

#[test]
fn an_interrupt_ends_the_count_and_prints_it() {
    let root = host();
    let child = Command::new(BINARY)
        .args(["perf", "stat", "--root", root.path().to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // SIGINT is caught from here on: the runtime's signal thread is what SigCgt shows.
    let caught = |pid: u32| {
        let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
        u64::from_str_radix(&mask, 16).unwrap() & 1 << 1 != 0
    };
    for _ in 0..500 {
        if caught(child.id()) {
            break;
        }
        sleep(Duration::from_millis(10));
    }
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert!(text(&out.stdout).contains(" seconds"), "{out:?}");
}
