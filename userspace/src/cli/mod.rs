//! The command line: one file a subcommand.

mod agent;
mod bridge;
mod config;
mod doctor;
mod drain;
mod gpu;
mod jobs;
mod offload;
mod perf;
mod place;
mod plan;
mod record;
mod replay;
mod run;
mod top;
mod topo;
mod version;

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    os::fd::RawFd,
};

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Moves the hot memory of training jobs to DRAM and the cold to CXL, and shows it.
#[derive(Parser)]
#[command(name = "tensortier", disable_version_flag = true, subcommand_required = false)]
struct Cli {
    /// Prints the version; with --json also the kernel features found.
    #[arg(short = 'V', long)]
    version: bool,
    /// With --version: as JSON.
    #[arg(long, requires = "version")]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Agent(agent::Args),
    Status(jobs::StatusArgs),
    Attach(jobs::AttachArgs),
    Detach(jobs::DetachArgs),
    Pause(jobs::PauseArgs),
    /// Moves pages of a job, or of all, again.
    Resume(jobs::PauseArgs),
    Drain(drain::Args),
    Top(top::Args),
    Topo(topo::Args),
    Plan(Box<plan::Args>),
    Record(record::Args),
    Replay(replay::Args),
    Doctor(doctor::Args),
    Config(config::Args),
    Perf(perf::Args),
    Bridge(bridge::Args),
}

/// Done.
pub const DONE: u8 = 0;
/// Failed.
pub const FAILED: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 2;
/// `run` itself failed, or was called wrongly: its job's codes leave it 125, as `env(1)` and `timeout(1)` have it.
pub const RUN_FAILED: u8 = 125;

/// Runs the command line and gives its exit code.
pub fn main(inherited: &[RawFd]) -> u8 {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let ran = arguments.get(1).is_some_and(|name| name == "run");
            // A message that cannot be printed has no other way out.
            let _ = error.print();
            return match error.use_stderr() {
                false => DONE,
                true if ran => RUN_FAILED,
                true => USAGE,
            };
        }
    };
    log();
    let outcome = match cli.command {
        Some(Command::Run(args)) => return run::run(args, inherited),
        Some(Command::Agent(args)) => agent::run(&args),
        Some(Command::Status(args)) => jobs::status(&args).map(|()| DONE),
        Some(Command::Attach(args)) => jobs::attach(&args).map(|()| DONE),
        Some(Command::Detach(args)) => jobs::detach(&args).map(|()| DONE),
        Some(Command::Pause(args)) => jobs::pause(&args).map(|()| DONE),
        Some(Command::Resume(args)) => jobs::resume(&args).map(|()| DONE),
        Some(Command::Drain(args)) => drain::run(&args).map(|()| DONE),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Config(args)) => config::run(&args).map(|()| DONE),
        Some(Command::Perf(args)) => perf::run(&args),
        Some(Command::Bridge(args)) => bridge::run(&args).map(|()| DONE),
        Some(Command::Top(args)) => top::run(&args).map(|()| DONE),
        Some(Command::Topo(args)) => topo::run(&args).map(|()| DONE),
        Some(Command::Plan(args)) => plan::run(&args).map(|()| DONE),
        Some(Command::Record(args)) => record::run(&args).map(|()| DONE),
        Some(Command::Replay(args)) => replay::run(&args).map(|()| DONE),
        None if cli.version => version::run(cli.json).map(|()| DONE),
        None => {
            // As above.
            let _ = Cli::command().print_help();
            return USAGE;
        }
    };
    outcome.unwrap_or_else(|error| match broken_pipe(&error) {
        true => DONE,
        false => {
            say(chain(&error));
            FAILED
        }
    })
}

/// Writes one message to stderr. A job's stderr may be closed: that is no reason to fail.
pub fn say(message: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "tensortier: {message}");
}

/// An error with its causes, those left out that it names already.
pub fn chain(error: &anyhow::Error) -> String {
    error
        .chain()
        .skip(1)
        .map(ToString::to_string)
        .fold(error.to_string(), |text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
}

/// Whether the reader of stdout has gone, as `| head` does. An error of the agent's socket is a cause within another
/// error, and is none of this.
fn broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Messages go to stderr, which is the job's too: only warnings unless `TENSORTIER_LOG` asks for more.
fn log() {
    let filter = EnvFilter::try_from_env("TENSORTIER_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours).without_time().init();
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use tensortier::control::client::ClientError;

    use super::*;

    #[test]
    fn a_closed_stdout_is_no_failure_and_a_closed_socket_is_one() {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        let stdout: anyhow::Result<()> = Err(closed()).context("cannot print");
        assert!(stdout.is_err_and(|error| broken_pipe(&error)));
        let gone = ClientError::Gone { path: "/run/a.sock".into(), source: closed() };
        assert!(!broken_pipe(&gone.into()));
    }
}
