//! `tensortier agent` and its clients, as the benches use them inside a guest.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::scenario::sibling;

/// The kernel checks the agent's programs, which takes long on an emulated machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An agent that stays, until it is told to end.
pub struct Agent(Child);

impl Agent {
    /// Starts one with more arguments for `tensortier agent`; also how long it took to answer.
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub fn start(words: &[&str]) -> Result<(Self, Duration)> {
        let start = Instant::now();
        let mut command = tensortier(&["agent"]);
        let mut child = command.args(words).stderr(Stdio::null()).spawn().context("cannot start the agent")?;
        while status().is_err() {
            let ended = child.try_wait().context("cannot look after the agent")?;
            ensure!(ended.is_none() && start.elapsed() < PATIENCE, "the agent does not answer ({ended:?})");
            thread::sleep(Duration::from_millis(20));
        }
        Ok((Self(child), start.elapsed()))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(self.0.try_wait().context("cannot look after the agent")?.is_none())
    }

    /// Kills it and waits for its end.
    ///
    /// # Errors
    /// It has ended before.
    pub fn kill(mut self) -> Result<()> {
        tell(self.pid(), "KILL")?;
        self.0.wait().context("cannot wait for the agent")?;
        Ok(())
    }

    /// Ends it with SIGTERM; how long that took.
    ///
    /// # Errors
    /// It fails at its end.
    pub fn end(mut self) -> Result<Duration> {
        let start = Instant::now();
        tell(self.pid(), "TERM")?;
        let status = self.0.wait().context("cannot wait for the agent")?;
        ensure!(status.success(), "the agent failed at its end: {status}");
        Ok(start.elapsed())
    }
}

/// `tensortier` with arguments.
pub fn tensortier(words: &[&str]) -> Command {
    let mut command = Command::new(sibling("tensortier"));
    command.args(words).stdin(Stdio::null());
    command
}

/// What `tensortier status --json` says.
///
/// # Errors
/// No agent answers.
pub fn status() -> Result<serde_json::Value> {
    let output = tensortier(&["status", "--json"]).output().context("cannot start tensortier")?;
    serde_json::from_slice(&output.stdout).context("no agent answers")
}

/// Has a process watched as a job of that name.
///
/// # Errors
/// The agent refuses.
pub fn attach(pid: u32, name: &str, words: &[&str]) -> Result<()> {
    let mut command = tensortier(&["attach", "--name", name]);
    let status = command.args(words).arg(pid.to_string()).stdout(Stdio::null()).status();
    ensure!(status.context("cannot start tensortier")?.success(), "process {pid} could not be attached");
    Ok(())
}

/// What a process or kernel thread is called and what it has used so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Used {
    /// Its name, 15 bytes at the most.
    pub name: String,
    /// CPU seconds in its own code.
    pub user: f64,
    /// CPU seconds in the kernel.
    pub system: f64,
}

impl Used {
    /// Of a process by its pid.
    ///
    /// # Errors
    /// There is none.
    pub fn of(pid: &str) -> Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        Self::parse(&stat).with_context(|| format!("{path} holds {stat:?}"))
    }

    /// CPU seconds in all.
    pub fn cpu(&self) -> f64 {
        self.user + self.system
    }

    /// A line of /proc/PID/stat; a name may hold blanks and brackets.
    fn parse(stat: &str) -> Option<Self> {
        const TICKS_PER_SECOND: f64 = 100.0;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let mut fields = rest.split_ascii_whitespace().skip(11);
        let mut seconds = || Some(fields.next()?.parse::<u64>().ok()? as f64 / TICKS_PER_SECOND);
        Some(Self { name: name.to_owned(), user: seconds()?, system: seconds()? })
    }
}

/// Sends a signal, named as kill(1) has it.
///
/// # Errors
/// There is no such process.
pub fn tell(pid: u32, signal: &str) -> Result<()> {
    let told = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
    ensure!(told.context("cannot start kill")?.success(), "process {pid} could not be sent {signal}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Used;

    #[test]
    fn names_may_hold_anything_and_times_are_seconds() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 9 8 7 6 250 1075 5 4 20 0 1 0 99";
        let used = Used::parse(stat).expect("a line");
        assert_eq!((used.name.as_str(), used.user, used.system), ("a) b (c", 2.5, 10.75));
        assert!(Used::parse("7 (a S 1").is_none() && Used::parse("7 (a) S 1 2").is_none());
    }
}
