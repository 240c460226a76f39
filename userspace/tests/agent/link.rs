//! A process of a job and its link with the agent: placement out, hints in.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::Value;

use crate::{Place, wait_for};

/// `tests/jobs/gpu.py` of a user, told what to do.
struct Job {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Job {
    fn of_user(place: &Place, user: &str) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        Self::start(place, command)
    }

    /// Behind the words of a command.
    fn start(place: &Place, mut command: Command) -> Self {
        place.copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/jobs/gpu.py"), "gpu.py");
        command.arg("/usr/bin/python3").arg(place.path("gpu.py"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn tell(&mut self, line: &str) -> i64 {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().parse().unwrap_or_else(|_| panic!("{line}: {answer:?}"))
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hot(job: &Value) -> u64 {
    job["watched"]["nodes"]["0"]["hot_bytes"].as_u64().unwrap()
}

fn lost(place: &Place) -> u64 {
    place.status()["events_lost"]["hints"].as_u64().unwrap()
}

#[test]
fn a_job_hears_where_its_memory_is_and_says_what_a_gpu_reads_of_it() {
    let place = Place::new();
    let _agent = place.agent();
    let link = format!("link {}", place.path("agent.sock").display());
    let mut job = Job::of_user(&place, "4242");
    job.tell("arena a 8388608 -1");
    job.tell("arena b 8388608 -1");
    assert_eq!(job.tell(&link), 0, "nobody watches it");
    assert_eq!(place.ran(&["attach", "--name", "told", &job.pid()]).0, 0);
    assert_eq!(job.tell(&link), 1);
    wait_for("the placement", || job.tell("node a") == 0);
    assert_eq!((job.tell("node b"), hot(&place.jobs()[0])), (0, 0));

    wait_for("the arena to be hot", || {
        job.tell("hint 1 a 8388608 3");
        hot(&place.jobs()[0]) > 0
    });
    assert_eq!(hot(&place.jobs()[0]), 8 << 20, "what the GPU reads, and nothing else");
    let status = place.status();
    let [copied] = status["copied"].as_array().unwrap().as_slice() else { panic!("{status}") };
    let facts = (copied["to_device"].as_bool(), copied["node"].as_u64(), copied["path"].as_str());
    assert_eq!(facts, (Some(true), Some(0), Some("bridge")));
    assert_eq!(copied["bytes"].as_u64().unwrap() % (3 * (8 << 20)), 0, "{copied}");

    assert_eq!(job.tell("hint 4 b 8388608 1"), 0);
    let unmovable = |place: &Place| place.jobs()[0]["watched"]["nodes"]["0"]["unmovable_bytes"].as_u64().unwrap();
    wait_for("the pin", || unmovable(&place) == 8 << 20);
    assert_eq!(job.tell("hint 5 b 8388608 1"), 0);
    wait_for("its end", || unmovable(&place) == 0);
}

#[test]
fn what_is_no_message_or_of_no_job_is_counted_and_harms_nobody() {
    let place = Place::new();
    let _agent = place.agent();
    let link = format!("link {}", place.path("agent.sock").display());
    let mut job = Job::of_user(&place, "4242");
    job.tell("arena a 8388608 -1");
    assert_eq!(place.ran(&["attach", "--name", "noisy", &job.pid()]).0, 0);
    assert_eq!(job.tell(&link), 1);
    for (noise, so_far) in [("noise 1", 1), ("noise 40000", 2), ("noise 0", 3), ("hint 77 a 8388608 1", 4)] {
        job.tell(noise);
        wait_for(noise, || lost(&place) == so_far);
    }
    for odd in ["hint 1 a 72057594037927935 1", "hint 1 a 0 1", "hint 1 a 8388608 0"] {
        job.tell(odd);
    }
    wait_for("hints that cannot be", || lost(&place) == 7);
    let copied = |place: &Place| place.status()["copied"].as_array().unwrap().len();
    assert_eq!((hot(&place.jobs()[0]), copied(&place)), (0, 0));

    // Let go, it is of no job. Nobody has a link for another process.
    assert_eq!(place.ran(&["detach", "noisy"]).0, 0);
    assert_eq!(job.tell(&link), 0);
    assert!(place.say(b"{\"link\":{}}\n").contains("is not watched"));
    assert!(place.say(b"{\"link\":{\"pid\":1}}\n").contains("not a request"));
}

#[test]
fn the_library_under_a_program_tells_the_agent_what_it_copies() {
    let place = Place::new();
    let _agent = place.agent();
    let beside = std::env::current_exe().unwrap();
    let library = |name: &str| beside.with_file_name(name).display().to_string();
    place.copy(&library("libtensortier_emulator.so"), "libcuda.so.1");
    let mut run = place.command(&["run", "--gpu", "--require", "--name", "under", "--"]);
    run.env("TENSORTIER_PRELOAD", library("libtensortier_preload.so"));
    let mut job = Job::start(&place, run);
    assert_eq!(job.tell(&format!("load {}", place.path("libcuda.so.1").display())), 0);
    job.tell("arena a 8388608 -1");
    let told = |place: &Place| {
        let status = place.status();
        let rows = status["copied"].as_array().unwrap().clone();
        rows.into_iter()
            .find(|row| row["path"] == "bridge" && row["node"] == 0)
            .map(|row| row["bytes"].as_u64().unwrap())
    };
    wait_for("a hint", || {
        assert_eq!(job.tell("copy cuMemcpyHtoD_v2 a 0 8388608 1"), 0);
        told(&place).is_some()
    });
    assert_eq!(told(&place).unwrap() % (8 << 20), 0, "whole copies of its own memory");
    assert_eq!(lost(&place), 0);
}
