//! `tensortier run` as its users and their shells see it: the real binary, as root, on one host.
//!
//! DAMON is off in these tests: the host's own monitor is not theirs to touch.
#![allow(clippy::unwrap_used, missing_docs)]

mod caller;
mod codes;
mod gpu;
mod signals;
mod terminal;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

/// `tensortier run` with `words` after it.
fn run(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensortier"));
    command
        .arg("run")
        .args(words)
        .env("TENSORTIER_CONFIG", config())
        .env("TENSORTIER_SOCKET", socket())
        .stdin(Stdio::null());
    for name in ["SUDO_UID", "SUDO_GID", "TENSORTIER_LOG"] {
        command.env_remove(name);
    }
    command
}

/// A config that leaves DAMON alone.
fn config() -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run.toml");
    if !path.exists() {
        fs::write(&path, "[damon]\nops = \"off\"\n").unwrap();
    }
    path.to_str().unwrap().to_owned()
}

/// Where the agent of these tests listens: theirs, and not the host's.
fn socket() -> String {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("run.sock").to_str().unwrap().to_owned()
}

/// Exit code, stdout, stderr.
fn ran(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A `run` under way whose stdout is read line by line.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Exit code, what was left of stdout, and stderr.
    fn end(mut self) -> (i32, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (self.child.wait().unwrap().code().unwrap(), out, err)
    }
}

/// Waits for `happened`, at most 20 s: long enough for a loaded machine, and no test's usual time.
fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
