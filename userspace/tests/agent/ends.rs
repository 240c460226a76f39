//! Beginnings and ends of the agent. Jobs never notice.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::net::UnixListener,
    process::Stdio,
    time::Duration,
};

use nix::sys::signal::{Signal, kill};

use crate::{Place, Sleeper, wait_for};

#[test]
fn run_starts_an_agent_where_none_is_and_that_ends_with_the_last_job() {
    let place = Place::new();
    let (code, _, err) = place.ran(&["run", "--require", "--", "true"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("sources"), "{err}");
    // The account came after the agent had given everything back.
    wait_for("the socket's end", || !place.path("agent.sock").exists());
    let mut first = place.command(&["run", "--require", "--", "sh", "-c", "echo up; sleep 2"]);
    let mut first = first.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let agent = place.status();
    assert_eq!(agent["until_idle"], true);
    assert_eq!(place.ran(&["run", "--require", "--", "true"]).0, 0);
    assert_eq!(place.status()["pid"], agent["pid"], "it goes on for the other job");
    assert!(first.wait().unwrap().success());
    wait_for("the agent's end", || place.ran(&["status"]).0 == 1);
    let (_, _, err) = place.ran(&["status"]);
    assert!(err.contains("no agent answers") && err.contains("tensortier agent"), "{err}");
}

#[test]
fn there_is_one_agent_at_a_time() {
    let place = Place::new();
    let agent = place.agent();
    let (code, _, err) = place.ran(&["agent"]);
    assert!(code == 1 && err.contains("one agent a machine"), "{err}");
    assert_eq!(place.status()["pid"], agent.child.id());
}

#[test]
fn sigterm_ends_it_at_once_and_jobs_go_on() {
    let place = Place::new();
    let agent = place.agent();
    let mut sleeper = Sleeper::start(4242);
    assert_eq!(place.ran(&["attach", &sleeper.pid()]).0, 0);
    let took = agent.end();
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(sleeper.lives() && !place.path("agent.sock").exists());
}

#[test]
fn a_killed_agent_costs_its_jobs_nothing_and_the_next_one_starts() {
    let place = Place::new();
    let agent = place.agent();
    let mut job = place.command(&["run", "--require", "--", "sh", "-c", "echo up; read word; exit 6"]);
    let mut job = job.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(job.stdout.take().unwrap()).read_line(&mut line).unwrap();
    kill(agent.pid(), Signal::SIGKILL).unwrap();
    drop(agent);
    assert!(place.path("agent.sock").exists(), "nobody was left to remove it");
    drop(job.stdin.take());
    let output = job.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{err}");
    assert!(err.contains("no account of the job") && err.contains("has gone"), "{err}");
    assert_eq!(place.ran(&["run", "--require", "--", "true"]).0, 0);
    let next = place.agent();
    assert_eq!(place.status()["pid"], next.child.id());
}

#[test]
fn a_job_has_its_account_from_an_agent_that_ends_and_the_next_one_watches_it() {
    let place = Place::new();
    let agent = place.agent();
    let begin = |name: &str| {
        let line = "sleep 60 & echo up; read word; kill $!; exit 6";
        let mut job = place.command(&["run", "--require", "--name", name, "--", "sh", "-c", line]);
        let mut job = job.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(job.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        job
    };
    let finish = |mut job: std::process::Child| {
        drop(job.stdin.take());
        let output = job.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(6));
        String::from_utf8(output.stderr).unwrap()
    };
    let (short, long) = (begin("short"), begin("long"));
    wait_for("both with all of theirs", || {
        let jobs = place.jobs();
        jobs.len() == 2 && jobs.iter().all(|job| job["pids"].as_array().unwrap().len() == 2)
    });
    agent.end();
    let err = finish(short);
    assert!(err.contains("sources") && err.contains("account ends with the agent"), "{err}");
    let _next = place.agent();
    wait_for("the job again", || {
        let jobs = place.jobs();
        jobs.len() == 1 && jobs[0]["name"] == "long" && jobs[0]["pids"].as_array().unwrap().len() == 2
    });
    let err = finish(long);
    assert!(err.contains("has gone") && err.contains("watched again") && err.contains("sources"), "{err}");
}

#[test]
fn a_killed_run_leaves_its_job_watched_to_its_end() {
    let place = Place::new();
    let _agent = place.agent();
    let mut run = place.command(&["run", "--require", "--", "sh", "-c", "echo $$; exec sleep 60"]);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let job: u32 = line.trim().parse().unwrap();
    run.kill().unwrap();
    run.wait().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(place.jobs()[0]["pids"], serde_json::json!([job]));
    assert_eq!(place.jobs()[0]["name"], "sh", "as its program was called when it began");
    kill(nix::unistd::Pid::from_raw(job as i32), Signal::SIGKILL).unwrap();
    wait_for("the job's end", || place.jobs().is_empty());
}

#[test]
fn an_agent_that_cannot_start_says_why_and_the_job_runs() {
    let place = Place::new();
    place.configure("[agent]\ngroup = \"no-such-group\"\n");
    let (code, out, err) = place.ran(&["run", "--", "echo", "ran"]);
    assert_eq!((code, out.as_str()), (0, "ran\n"));
    assert!(err.contains("the job runs unwatched") && err.contains("no-such-group"), "{err}");
    assert_eq!(place.ran(&["run", "--require", "--", "echo", "ran"]).0, 125);
    assert!(fs::read_to_string(place.path("agent.log")).unwrap().contains("no-such-group"));
}

#[test]
fn an_agent_that_does_not_answer_at_once_when_it_comes_is_asked_again() {
    let place = Place::new();
    let agent = place.agent();
    let mut job = place.command(&["run", "--require", "--", "sh", "-c", "echo up; read word; exit 6"]);
    let mut job = job.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(job.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    agent.end();
    let silent = UnixListener::bind(place.path("agent.sock")).unwrap();
    let (mut asks, _) = silent.accept().unwrap();
    // It hangs up when it has waited long enough: what it asked is all that there is to read.
    asks.read_to_end(&mut Vec::new()).unwrap();
    drop(silent);
    fs::remove_file(place.path("agent.sock")).unwrap();
    let _next = place.agent();
    wait_for("the job again", || place.jobs().len() == 1);
    drop(job.stdin.take());
    let err = String::from_utf8(job.wait_with_output().unwrap().stderr).unwrap();
    assert!(err.contains("watched again") && !err.contains("unwatched"), "{err}");
}
