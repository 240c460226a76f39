//! Who may ask what.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use crate::{Place, Sleeper, ran, wait_for};

const USER: u32 = 4242;
const OTHER: u32 = 4243;

#[test]
fn a_user_has_rights_over_their_own_jobs_and_no_others() {
    let place = Place::new();
    let _agent = place.agent();
    let (own, others) = (Sleeper::start(USER), Sleeper::start(OTHER));
    let (own_pid, others_pid) = (own.pid(), others.pid());
    let by = |words: &[&str]| ran(&mut place.of_user(USER, words));

    let (code, _, err) = by(&["status"]);
    assert!(code == 1 && err.contains("may not read") && err.contains("agent.group"), "{err}");
    let (code, _, err) = by(&["attach", &others_pid]);
    assert!(code == 1 && err.contains(&OTHER.to_string()), "{err}");
    let (code, _, err) = by(&["attach", "--priority", "1", &own_pid]);
    assert!(code == 1 && err.contains("priority"), "{err}");
    let (code, _, err) = by(&["attach", "/"]);
    assert!(code == 1 && err.contains("for root"), "{err}");
    assert!(place.jobs().is_empty());

    let (code, _, err) = by(&["attach", "--name", "own", &own_pid]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(place.ran(&["attach", "--name", "others", &others_pid]).0, 0);
    for words in [["detach", "others"], ["pause", "others"]] {
        let (code, _, err) = by(&words);
        assert!(code == 1 && err.contains("may not change"), "{words:?}: {err}");
    }
    assert_eq!(by(&["pause"]).0, 1, "all jobs are not one user's");
    assert_eq!(by(&["pause", "own"]).0, 0);
    assert_eq!(by(&["detach", "own"]).0, 0);
    assert_eq!(place.jobs().len(), 1);
}

#[test]
fn the_group_of_the_config_may_read() {
    let place = Place::new();
    // Every Debian and Ubuntu has it; the peer's own group counts.
    place.configure("[agent]\ngroup = \"games\"\n");
    let _agent = place.agent();
    let group = nix::unistd::Group::from_name("games").unwrap().unwrap().gid.to_string();
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", "4242", "--regid", &group, "--clear-groups"]).arg(place.path("tensortier"));
    let (code, out, err) = ran(command.arg("status").env("TENSORTIER_SOCKET", place.path("agent.sock")));
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("no jobs"), "{out}");
    assert_eq!(ran(&mut place.of_user(USER, &["status"])).0, 1);
}

#[test]
fn who_may_not_connect_is_not_told_that_there_is_no_agent() {
    let place = Place::new();
    let _agent = place.agent();
    fs::set_permissions(place.path("agent.sock"), fs::Permissions::from_mode(0o600)).unwrap();
    for words in [&["pause"][..], &["resume"], &["detach", "x"], &["run", "--require", "--", "true"]] {
        let (code, _, err) = ran(&mut place.of_user(USER, words));
        assert!(code != 0 && err.contains("closed to this user") && !err.contains("no agent"), "{words:?}: {err}");
    }
}

#[test]
fn a_group_that_is_not_there_is_said() {
    let place = Place::new();
    place.configure("[agent]\ngroup = \"no-such-group\"\n");
    let (code, _, err) = place.ran(&["agent"]);
    assert!(code == 1 && err.contains("agent.group") && err.contains("no-such-group"), "{err}");
}

#[test]
fn run_of_a_user_is_watched_by_the_agent_of_root() {
    let place = Place::new();
    let _agent = place.agent();
    let (code, out, err) = ran(&mut place.of_user(USER, &["run", "--require", "--", "id", "-u"]));
    assert_eq!((code, out.as_str()), (0, "4242\n"), "{err}");
    assert!(err.contains("sources"), "the account came: {err}");
}

#[test]
fn a_job_of_root_is_left_by_no_user_and_a_users_own_by_that_user() {
    let place = Place::new();
    let _agent = place.agent();
    let program = place.path("tensortier");
    let program = program.to_str().unwrap();
    let id = USER.to_string();
    let words = ["run", "--require", "--name", "outer", "--", "setpriv", "--reuid", &id, "--regid", &id];
    let inner = ["--clear-groups", program, "run", "--require", "--name", "inner", "--", "true"];
    let (code, _, err) = place.ran(&[&words[..], &inner].concat());
    assert!(code == 125 && err.contains("watched already") && err.contains("of user 0"), "{code}: {err}");
    let own = ["run", "--require", "--", program, "run", "--require", "--name", "inner", "--", "true"];
    let (code, _, err) = ran(&mut place.of_user(USER, &own));
    assert_eq!(code, 0, "{err}");
}

#[test]
fn what_runs_as_another_user_is_left_out_of_a_users_job_and_that_is_said() {
    let place = Place::new();
    let _agent = place.agent();
    let sleep = place.path("sleep");
    place.copy("/bin/sleep", "sleep");
    fs::set_permissions(&sleep, fs::Permissions::from_mode(0o4755)).unwrap();
    let line = format!("{} 60 & echo up; read word; {0} 60 & sleep 60 & wait", sleep.display());
    let id = USER.to_string();
    let mut shell = Command::new("setpriv");
    shell.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--pdeathsig", "KILL", "sh", "-c", &line]);
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut up = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut up).unwrap();
    wait_for("the program of root", || children(shell.id()).iter().any(|pid| user_of(pid) == 0));
    let (code, _, err) = ran(&mut place.of_user(USER, &["attach", "--name", "own", &shell.id().to_string()]));
    assert_eq!(code, 0, "{err}");
    assert_eq!(place.jobs()[0]["pids"], serde_json::json!([shell.id()]));
    assert!(place.jobs()[0]["notes"].to_string().contains("another user than 4242 were left out: 1"));

    // One that is made now, and one that is the user's own.
    shell.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    wait_for("both to be seen", || {
        let job = &place.jobs()[0];
        job["pids"].as_array().unwrap().len() == 2 && job["notes"].to_string().contains("were left out: 2")
    });
    for pid in children(shell.id()) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.parse().unwrap()), nix::sys::signal::Signal::SIGKILL)
            .unwrap();
    }
    shell.wait().unwrap();
}

fn children(pid: u32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// The effective user.
fn user_of(pid: &str) -> u32 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("Uid:")).unwrap();
    line.split_whitespace().nth(2).unwrap().parse().unwrap()
}
