//! `tests/jobs/gpu.py`, a CUDA program that copies what it is told to.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
};

use anyhow::{Context, Result};

/// The program. Dropping it kills it.
pub struct Copier {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Copier {
    /// The program and its argument.
    pub const WORDS: [&'static str; 2] = ["/usr/bin/python3", concat!(env!("CARGO_MANIFEST_DIR"), "/jobs/gpu.py")];

    /// The program alone.
    pub fn command() -> Command {
        let mut command = Command::new(Self::WORDS[0]);
        command.arg(Self::WORDS[1]);
        command
    }

    /// Starts a command that ends in [`Copier::WORDS`].
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start gpu.py")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.context("gpu.py has no pipes")?;
        Ok(Self { child, input: Some(input), output: BufReader::new(output) })
    }

    /// Tells it a command, and waits for the result.
    ///
    /// # Errors
    /// As [`Copier::say`] and [`Copier::answer`].
    pub fn tell(&mut self, line: &str) -> Result<u64> {
        self.say(line)?;
        self.answer().with_context(|| line.to_owned())
    }

    /// Tells it a command.
    ///
    /// # Errors
    /// It has ended.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("gpu.py was told to end")?;
        writeln!(input, "{line}").with_context(|| format!("gpu.py does not take {line:?}"))
    }

    /// Waits for the result of a command.
    ///
    /// # Errors
    /// It has ended, or says what is no result.
    pub fn answer(&mut self) -> Result<u64> {
        let mut answer = String::new();
        self.output.read_line(&mut answer).context("gpu.py does not answer")?;
        answer.trim().parse().with_context(|| format!("gpu.py answers {answer:?}"))
    }

    /// Its number, or that of the command before it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Says no more, and waits for its end.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn end(mut self) -> Result<ExitStatus> {
        self.input = None;
        self.child.wait().context("cannot wait for gpu.py")
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // Both fail where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
