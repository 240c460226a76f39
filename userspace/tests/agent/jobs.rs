//! Many jobs of one agent, and how they come and go.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::Stdio,
};

use crate::{Agent, Place, Sleeper, ran, wait_for};

#[test]
fn jobs_of_run_share_one_agent_and_each_has_its_account() {
    let place = Place::new();
    let agent = place.agent();
    let job = |name: &str, code: u32| {
        let go = place.path(&format!("{name}.go"));
        assert!(std::process::Command::new("mkfifo").arg(&go).status().unwrap().success());
        let line = format!("exec 3<{}; read line <&3; exit {code}", go.display());
        let summary = place.path(&format!("{name}.json"));
        let words = ["run", "--require", "--name", name, "--summary-json", summary.to_str().unwrap(), "--"];
        place.command(&words).args(["sh", "-c", &line]).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut jobs = [job("one", 3), job("two", 4)];
    wait_for("two jobs", || place.jobs().len() == 2);
    let status = place.status();
    assert_eq!(status["pid"], agent.child.id());
    for job in status["jobs"].as_array().unwrap() {
        assert_eq!((job["user"].as_u64(), job["origin"].as_str()), (Some(0), Some("run")));
        assert_eq!(job["pids"].as_array().unwrap().len(), 1, "{job}");
        assert!(!job["watched"]["sources"].as_array().unwrap().is_empty());
    }
    // Opening waits for the reader.
    let go = |name: &str| std::fs::OpenOptions::new().write(true).open(place.path(name)).unwrap();
    drop([go("one.go"), go("two.go")]);
    let codes: Vec<_> = jobs.iter_mut().map(|job| job.wait().unwrap().code().unwrap()).collect();
    assert_eq!(codes, [3, 4]);
    for name in ["one", "two"] {
        let text = std::fs::read_to_string(place.path(&format!("{name}.json"))).unwrap();
        let account: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(account["watched"]["cost"]["agent_cpu_seconds"].as_f64().unwrap() >= 0.0, "{account}");
    }
    assert!(place.jobs().is_empty());
    agent.end();
    assert!(!place.path("agent.sock").exists());
}

#[test]
fn what_runs_already_is_attached_with_all_below_it_and_runs_on_when_it_is_let_go() {
    let place = Place::new();
    let _agent = place.agent();
    let mut sleeper = Sleeper::start(4242);
    let (code, out, err) = place.ran(&["attach", "--name", "sleeper", &sleeper.pid()]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("(sleeper)"), "{out}");
    let job = &place.jobs()[0];
    assert_eq!(job["pids"].as_array().unwrap().len(), 2, "the shell and its child: {job}");
    assert_eq!(job["user"], 4242);
    let (code, _, err) = place.ran(&["attach", &sleeper.pid()]);
    assert_eq!(code, 1);
    assert!(err.contains("watched already"), "{err}");

    for (word, state) in [("pause", "paused"), ("resume", "migrating")] {
        assert_eq!(place.ran(&[word, &sleeper.pid()]).0, 0);
        assert_eq!(place.jobs()[0]["state"], state);
    }
    let (code, out, err) = place.ran(&["detach", "sleeper"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("sleeper was watched for"), "{out}");
    assert!(place.jobs().is_empty() && sleeper.lives());
    let (code, _, err) = place.ran(&["detach", "sleeper"]);
    assert!(code == 1 && err.contains("no job") && err.contains("status"), "{err}");
}

#[test]
fn an_attached_job_is_over_when_its_last_process_is() {
    let place = Place::new();
    let _agent = place.agent();
    let sleeper = Sleeper::start(4242);
    assert_eq!(place.ran(&["attach", "--no-migrate", &sleeper.pid()]).0, 0);
    assert_eq!(place.jobs()[0]["state"], "watching");
    drop(sleeper);
    wait_for("the job's end", || place.jobs().is_empty());
}

#[test]
fn run_within_a_job_is_a_job_of_its_own() {
    let place = Place::new();
    let _agent = place.agent();
    let program = place.path("tensortier");
    let inner = |name: &str| format!("{} run --require --name {name} -- sh -c 'echo up; read line'", program.display());
    let outer = ["run", "--require", "--name", "outer", "--dram-budget", "64MiB", "--", "sh", "-c", &inner("inner")];
    let mut outer = place.command(&outer).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let line = format!("read line; {}", inner("below"));
    let mut shell = std::process::Command::new("sh");
    shell.env("TENSORTIER_SOCKET", place.path("agent.sock")).env("TENSORTIER_CONFIG", place.path("config.toml"));
    let mut shell = shell.args(["-c", &line]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(place.ran(&["attach", "--name", "shell", &shell.id().to_string()]).0, 0);
    shell.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    for child in [&mut outer, &mut shell] {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
    }
    // Events of the processes' making wait for the agent's next look.
    let since = place.status()["seconds"].as_f64().unwrap();
    wait_for("some looks", || place.status()["seconds"].as_f64().unwrap() > since + 2.0);
    let jobs = place.jobs();
    let find = |name: &str| jobs.iter().find(|job| job["name"] == name).unwrap();
    for (name, budget) in [("inner", None), ("below", None), ("outer", Some(64 << 20))] {
        let job = find(name);
        let pids = job["pids"].as_array().unwrap();
        assert!(!pids.is_empty() && job["limits"]["dram_bytes"].as_u64() == budget, "{name}: {jobs:#?}");
    }
    let pid = |name: &str| find(name)["pids"][0].clone();
    for (whose, inner) in [("outer", "inner"), ("shell", "below")] {
        assert!(!find(whose)["pids"].as_array().unwrap().contains(&pid(inner)), "{whose}: {jobs:#?}");
    }
    drop((outer.stdin.take(), shell.stdin.take()));
    assert!(outer.wait().unwrap().code().is_some() && shell.wait().unwrap().code().is_some());
    wait_for("the end of all", || place.jobs().is_empty());
}

#[test]
fn a_process_that_is_gone_or_is_no_job_is_refused_with_the_reason() {
    let place = Place::new();
    let agent = place.agent();
    let sleeper = Sleeper::start(4242);
    let gone = sleeper.pid();
    drop(sleeper);
    for (target, says) in [
        (gone.as_str(), "no process"),
        ("2", "no memory"),
        (&agent.child.id().to_string(), "the agent itself"),
        ("/no/such/group", "no control group"),
        ("../../etc", "no control group"),
    ] {
        let (code, _, err) = place.ran(&["attach", target]);
        assert!(code == 1 && err.contains(says), "{target}: {err}");
    }
    assert!(place.jobs().is_empty());
}

#[test]
fn what_is_unusual_is_seen_in_status_and_in_accounts() {
    let place = Place::new();
    place.configure("[tiers]\nnodes = [[0], [4000]]\nmissing_node = \"degrade\"\n");
    let log = place.path("log");
    let mut agent = place.command(&["agent"]);
    agent.env("TENSORTIER_LOG", "info").stderr(std::fs::File::create(&log).unwrap());
    let _agent = Agent { child: agent.spawn().unwrap() };
    let log = || std::fs::read_to_string(&log).unwrap();
    wait_for("service", || log().contains("serving at"));
    assert!(log().contains("missing=4000"), "{}", log());
    assert!(place.ran(&["status"]).1.contains("node 4000: named in the config"));
    let (code, looks, _) = place.ran(&["top", "-n", "2", "-d", "0.1"]);
    assert_eq!((code, looks.matches("node 4000: named in the config").count()), (0, 2), "{looks}");
    assert_eq!(place.ran(&["top", "-d", "0"]).0, 2);
    let answer = place.say(b"{\"avoid\":{\"node\":4294967295}}\n");
    assert!(answer.contains("refused") && answer.contains("no node 4294967295"), "{answer}");

    assert_eq!(place.ran(&["pause"]).0, 0);
    assert!(place.ran(&["status"]).1.contains("paused: nothing moves"), "with no jobs");
    let (code, _, err) = place.ran(&["run", "--require", "--", "true"]);
    assert!(code == 0 && err.contains("said `tensortier pause`") && err.contains("4000"), "{err}");
    assert_eq!(place.ran(&["resume"]).0, 0);
    assert_eq!(place.status()["paused"], false);

    let sleeper = Sleeper::start(4242);
    assert_eq!(place.ran(&["attach", "--name", "sleeper", &sleeper.pid()]).0, 0);
    drop(sleeper);
    wait_for("its end", || place.jobs().is_empty());
    wait_for("its account", || log().contains("sleeper was watched for"));
}

#[test]
fn a_rule_whose_group_is_not_there_is_said() {
    let place = Place::new();
    place.configure("[[job]]\nname = \"a\"\ncgroup = \"/no-such-group-here\"\n");
    let agent = place.command(&["agent"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut agent = Agent { child: agent };
    let mut lines = BufReader::new(agent.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("/no-such-group-here") && line.contains("fits nothing")));
}

#[test]
fn a_control_group_is_attached() {
    // The group that this test itself runs in, whatever the version: nothing of it is changed.
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let paths = text.lines().filter_map(|line| line.rsplit(':').next());
    let place = Place::new();
    let _agent = place.agent();
    let mut seen = String::new();
    for path in paths {
        let (code, out, err) = place.ran(&["attach", "--no-migrate", "--name", "group", path]);
        seen += &(out + &err);
        if code == 0 {
            let job = &place.jobs()[0];
            assert!(job["origin"].as_str().unwrap().contains("cgroup"), "{job}");
            assert!(!job["pids"].as_array().unwrap().is_empty());
            assert_eq!(place.ran(&["detach", "group"]).0, 0);
            return;
        }
    }
    panic!("none of this process's groups could be attached: {seen}\n{text}");
}

#[test]
fn a_job_in_a_pid_namespace_of_its_own_is_found() {
    let place = Place::new();
    let _agent = place.agent();
    let mut command = std::process::Command::new("unshare");
    let inside = "echo $$; sleep 60";
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(place.path("tensortier"));
    command.args(["run", "--require", "--name", "inside", "--", "sh", "-c", inside]);
    command.env("TENSORTIER_SOCKET", place.path("agent.sock")).env_remove("SUDO_UID").env_remove("TENSORTIER_CONFIG");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the job", || place.jobs().len() == 1);
    wait_for("its program", || {
        let pid = place.jobs()[0]["pids"][0].as_u64().unwrap();
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == "sh"
    });
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("its end", || place.jobs().is_empty());
}

#[test]
fn budgets_and_priorities_are_shown_and_checked() {
    let place = Place::new();
    let _agent = place.agent();
    let sleeper = Sleeper::start(4242);
    let words = ["attach", "--dram-budget", "64MiB", "--cxl-budget", "1G", "--priority", "-3", "--policy", "step"];
    assert_eq!(place.ran(&[&words[..], &[sleeper.pid().as_str()]].concat()).0, 0);
    assert_eq!(place.jobs()[0]["policy"], "step");
    let limits = &place.jobs()[0]["limits"];
    assert_eq!(*limits, serde_json::json!({"dram_bytes": 64 << 20, "cxl_bytes": 1 << 30, "priority": -3}));
    let (code, _, err) = place.ran(&["attach", "--actuator", "both", &sleeper.pid()]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("move_pages or damos"), "{err}");
    let (code, _, err) = place.ran(&["attach", "--policy", "best", &sleeper.pid()]);
    assert!(code == 2 && err.contains("bandwidth or balance"), "{err}");
    let (code, _, err) = place.ran(&["attach", "--priority", "21", &Sleeper::start(4242).pid()]);
    assert!(code == 2 && err.contains("-20 and 20"), "{err}");
    assert_eq!(place.ran(&["attach", ""]).0, 2, "not the whole machine");
    let (code, _, err) = ran(place.command(&["attach", "--dram-budget", "much", "1"]).env("COLUMNS", "200"));
    assert!(code == 2 && err.contains("not a size"), "{err}");
}

/// The first line of the answer's head, and its body.
fn get(port: u16, request: &str) -> (String, String) {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[test]
fn prometheus_reads_the_state_under_the_label_workload() {
    let place = Place::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    place.configure(&format!("[prometheus]\nlisten = \"127.0.0.1:{port}\"\n"));
    let _agent = place.agent();
    let sleeper = Sleeper::start(4242);
    assert_eq!(place.ran(&["attach", "--name", "sleeper", &sleeper.pid()]).0, 0);
    wait_for("a look at its memory", || {
        let (head, body) = get(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(head, "HTTP/1.1 200 OK");
        assert!(body.contains("tensortier_agent_cpu_seconds_total ") && body.ends_with("# EOF\n"), "{body}");
        body.lines().any(|line| {
            let value = line.strip_prefix("tensortier_resident_bytes{workload=\"sleeper\",node=\"0\"} ");
            value.is_some_and(|value| value.parse::<f64>().unwrap() > 0.0)
        })
    });
    assert_eq!(get(port, "GET / HTTP/1.1\r\n\r\n").0, "HTTP/1.1 404 Not Found");
    assert_eq!(get(port, "POST /metrics HTTP/1.1\r\n\r\n").0, "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(get(port, "\r\n\r\n").0, "HTTP/1.1 405 Method Not Allowed");
    let mut long = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let _ = long.write_all(&[b'a'; 9 << 10]);
    let mut answer = Vec::new();
    let _ = long.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn a_rule_makes_jobs_of_what_fits_and_a_reload_brings_a_rule() {
    let place = Place::new();
    let agent = place.agent();
    // A user that nothing else on this host runs as.
    let sleeper = Sleeper::start(54321);
    let rule = "[[job]]\nname = \"ruled\"\ncomm = \"sh\"\nuser = \"54321\"\nmode = \"watch\"\ndram_bytes = \"1GiB\"\n";
    place.configure(rule);
    nix::sys::signal::kill(agent.pid(), nix::sys::signal::Signal::SIGHUP).unwrap();
    wait_for("the rule's job", || place.jobs().len() == 1);
    let job = &place.jobs()[0];
    assert_eq!((job["name"].as_str(), job["origin"].as_str()), (Some("ruled"), Some("rule ruled")));
    assert_eq!((job["state"].as_str(), job["user"].as_u64()), (Some("watching"), Some(54321)));
    assert_eq!(job["pids"].as_array().unwrap().len(), 2, "with what is below it: {job}");
    assert_eq!(job["limits"]["dram_bytes"], 1 << 30);
    assert_eq!(place.ran(&["detach", "ruled"]).0, 0);
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert!(place.jobs().is_empty(), "what was detached is not taken again");
    drop(sleeper);

    place.configure("[agent]\ntick_ms = 1\n");
    let answer = place.say(b"{\"reload\":{}}\n");
    assert!(answer.contains("agent.tick_ms") && answer.contains("refused"), "{answer}");
    place.configure("max_regions = 3000\n");
    let answer = place.say(b"{\"reload\":{}}\n");
    assert!(answer.contains("in force") && answer.contains("damon.max_regions"), "{answer}");
}
