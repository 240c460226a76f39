//! Signals that other processes send to `run`.

use std::{
    os::unix::{net::UnixListener, process::CommandExt},
    process::{Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{Running, run, wait_for};

/// Says each signal it gets; TERM ends it with 7.
const COUNTER: &str = "for s in HUP INT QUIT USR1 USR2 CONT; do trap \"echo $s\" $s; done; trap 'echo TERM; exit 7' TERM; \
                       echo $$; while :; do sleep 0.02; done";

#[test]
fn each_signal_reaches_the_job_once() {
    let mut job = Running::start(run(&["--", "bash", "-c", COUNTER]).process_group(0));
    job.line();
    let run = Pid::from_raw(job.pid());
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGCONT] {
        kill(run, signal).unwrap();
        assert_eq!(job.line(), &signal.as_str()[3..]);
    }
    // Time for a second copy to show itself.
    std::thread::sleep(Duration::from_millis(200));
    kill(run, Signal::SIGTERM).unwrap();
    let (code, rest, summary) = job.end();
    assert_eq!((code, rest.as_str()), (7, "TERM\n"));
    assert!(summary.contains("exit code 7"), "{summary}");
}

#[test]
fn a_real_time_signal_reaches_the_job_too() {
    let words = "trap 'echo RT; exit 4' RTMIN+2; echo up; while :; do sleep 0.02; done";
    let mut job = Running::start(run(&["--", "bash", "-c", words]).process_group(0));
    job.line();
    let sent = Command::new("bash").args(["-c", &format!("kill -RTMIN+2 {}", job.pid())]).status().unwrap();
    assert!(sent.success());
    let (code, rest, _) = job.end();
    assert_eq!((code, rest.as_str()), (4, "RT\n"));
}

/// An agent that takes connections and says nothing: stopped, or in a kernel call that does not end.
#[test]
fn run_ends_at_once_by_a_signal_while_it_waits_for_the_agent() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, mark) = (folder.path().join("agent.sock"), folder.path().join("began"));
    let silent = UnixListener::bind(&socket).unwrap();
    let mut command = run(&["--", "touch", mark.to_str().unwrap()]);
    let job = Running::start(command.env("TENSORTIER_SOCKET", &socket).process_group(0));
    let asked = silent.accept().unwrap();
    kill(Pid::from_raw(job.pid()), Signal::SIGINT).unwrap();
    assert_eq!(job.end().0, 128 + 2);
    assert!(!mark.exists());
    drop(asked);
}

#[test]
fn a_job_that_takes_no_notice_is_ended_by_the_signals_own_way() {
    let mut job = Running::start(run(&["--", "sh", "-c", "echo up; exec sleep 60"]).process_group(0));
    job.line();
    kill(Pid::from_raw(job.pid()), Signal::SIGTERM).unwrap();
    assert_eq!(job.end().0, 128 + 15);
}

#[test]
fn the_job_outlives_a_killed_run() {
    let mut job = Running::start(run(&["--", "bash", "-c", COUNTER]).process_group(0));
    let pid = Pid::from_raw(job.line().parse().unwrap());
    job.child.kill().unwrap();
    job.child.wait().unwrap();
    kill(pid, Signal::SIGUSR1).unwrap();
    assert_eq!(job.line(), "USR1");
    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(job.line(), "TERM");
}

#[test]
fn a_signal_before_the_job_began_keeps_it_from_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("began");
    // Blocked from the start and pending before run looks: as if it had come while the agent was still loading.
    let line = format!(
        "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n\
         os.kill(os.getpid(), signal.SIGTERM)\nos.execv({run:?}, [{run:?}, 'run', '--', 'touch', {mark:?}])",
        run = env!("CARGO_BIN_EXE_tensortier")
    );
    let mut python = Command::new("/usr/bin/python3");
    python
        .args(["-c", &line])
        .env("TENSORTIER_CONFIG", crate::config())
        .env("TENSORTIER_SOCKET", crate::socket())
        .stdin(Stdio::null());
    assert_eq!(crate::ran(&mut python).0, 128 + 15);
    assert!(!mark.exists());
}

#[test]
fn run_ends_with_the_first_process_and_leaves_the_others() {
    let mut job = Running::start(&mut run(&["--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"]));
    let left = Pid::from_raw(job.line().parse().unwrap());
    assert_eq!(job.end().0, 0);
    kill(left, Signal::SIGTERM).unwrap();
    wait_for("the child that was left", || !std::path::Path::new(&format!("/proc/{left}/fd/0")).exists());
}
