//! `tensortier agent` and the commands that speak to it: the real binary, as root, on one host. DAMON is off in these
//! tests: the host's own monitor is not theirs to touch.
#![allow(clippy::unwrap_used, missing_docs)]

mod ends;
mod hostile;
mod jobs;
mod link;
mod rights;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// A folder with a config, a socket and a copy of the program that any user may execute.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests need root, as the agent does");
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let place = Self { folder };
        place.configure("");
        place.copy(env!("CARGO_BIN_EXE_tensortier"), "tensortier");
        place
    }

    /// Copies a program, in a process of its own: a descriptor that writes it, inherited by what another test starts at
    /// that moment, would make it "busy".
    fn copy(&self, program: &str, name: &str) {
        assert!(Command::new("cp").arg(program).arg(self.path(name)).status().unwrap().success());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, more: &str) {
        fs::write(self.path("config.toml"), format!("[damon]\nops = \"off\"\n{more}")).unwrap();
    }

    /// `tensortier` with these words, with this place's socket and config.
    fn command(&self, words: &[&str]) -> Command {
        self.of_user(0, words)
    }

    fn of_user(&self, user: u32, words: &[&str]) -> Command {
        let mut command = match user {
            0 => Command::new(self.path("tensortier")),
            user => {
                let (user, mut command) = (user.to_string(), Command::new("setpriv"));
                command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(self.path("tensortier"));
                command
            }
        };
        command.args(words).env("TENSORTIER_SOCKET", self.path("agent.sock")).stdin(Stdio::null());
        command.env("TENSORTIER_CONFIG", self.path("config.toml"));
        for name in ["SUDO_UID", "SUDO_GID", "TENSORTIER_LOG"] {
            command.env_remove(name);
        }
        command
    }

    /// Exit code, stdout, stderr.
    fn ran(&self, words: &[&str]) -> (i32, String, String) {
        ran(&mut self.command(words))
    }

    fn agent(&self) -> Agent {
        let mut child = self.command(&["agent"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        // Warnings may come before it.
        while !said.contains("serving at") {
            assert!(stderr.read_line(&mut said).unwrap() > 0, "the agent has not started: {said}");
        }
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Agent { child }
    }

    fn status(&self) -> Value {
        let (code, out, err) = self.ran(&["status", "--json"]);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    }

    fn jobs(&self) -> Vec<Value> {
        self.status()["jobs"].as_array().unwrap().clone()
    }

    /// Says lines, and gives what comes back until the agent closes or is silent.
    fn say(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.path("agent.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The agent may close before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = BufReader::new(stream).read_line(&mut answer);
        answer
    }
}

/// A running agent, killed at the end of a test that failed before it ended it.
struct Agent {
    child: Child,
}

impl Agent {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Ends it, and gives the time that took.
    fn end(mut self) -> Duration {
        let start = Instant::now();
        kill(self.pid(), Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        start.elapsed()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that was there before it is watched.
struct Sleeper(Child);

impl Sleeper {
    fn start(user: u32) -> Self {
        let id = user.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-c", "sleep 60 & echo up; wait"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let below = format!("/proc/{0}/task/{0}/children", self.0.id());
        for pid in fs::read_to_string(below).unwrap_or_default().split_whitespace() {
            let _ = kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ran(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Waits for `happened`, at most 30 s: long enough for a loaded machine, and no test's usual time.
fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
