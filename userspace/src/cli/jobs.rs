//! `status`, `attach`, `detach`, `pause`, `resume`: what people ask the agent.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use anyhow::{Result, bail};
use clap::builder::NonEmptyStringValueParser;
use tensortier::{
    control::{Actuator, Answer, Limits, Mode, PolicyKind, Request, Target, Terms, client::Client},
    units::{Pid, parse_bytes},
};

use super::agent::Socket;

/// Shows the agent, its nodes and its jobs.
#[derive(clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    socket: Socket,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// What a job may have.
#[derive(clap::Args, Clone, Debug)]
pub struct LimitArgs {
    /// What to call the job [default: the name of its program].
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,
    /// The most of its memory that DRAM holds, such as 8GiB; the rest is demoted.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    dram_budget: Option<u64>,
    /// The most of its memory that is demoted to CXL.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    cxl_budget: Option<u64>,
    /// Who is served first where jobs want the same DRAM, -20 to 20; above 0 for root.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = parse_priority)]
    priority: i32,
    /// What moves its pages, move_pages or damos [default: that of the agent's config]. Where damos cannot serve the
    /// job, move_pages does and `status` says why.
    #[arg(long, value_name = "NAME", value_parser = parse_actuator)]
    actuator: Option<Actuator>,
    /// What decides on where its pages belong: auto, hotness, step, bandwidth or balance [default: that of the agent's
    /// config].
    #[arg(long, value_name = "NAME", value_parser = parse_policy)]
    policy: Option<PolicyKind>,
}

/// By the names that the config has.
fn parse_actuator(name: &str) -> Result<Actuator, String> {
    serde_json::from_value(name.into()).map_err(|_| "it is move_pages or damos".to_owned())
}

fn parse_policy(name: &str) -> Result<PolicyKind, String> {
    serde_json::from_value(name.into()).map_err(|_| "it is auto, hotness, step, bandwidth or balance".to_owned())
}

fn parse_name(name: &str) -> Result<String, String> {
    Limits::default().check(name).map(|()| name.to_owned())
}

fn parse_priority(text: &str) -> Result<i32, String> {
    let priority = text.parse().map_err(|error| format!("{error}"))?;
    Limits { priority, ..Limits::default() }.check("job").map(|()| priority)
}

impl LimitArgs {
    /// The terms of a job.
    pub fn terms(&self, mode: Mode) -> Terms {
        let Self { name, dram_budget, cxl_budget, priority, actuator, policy } = self.clone();
        let limits = Limits { dram_bytes: dram_budget, cxl_bytes: cxl_budget, priority };
        Terms { name, mode, actuator, policy, limits }
    }
}

/// Watches processes that run already: a process with all below it, or a control group.
#[derive(clap::Args)]
pub struct AttachArgs {
    #[command(flatten)]
    socket: Socket,
    #[command(flatten)]
    limits: LimitArgs,
    /// Watches and reports, and plans nothing.
    #[arg(long)]
    no_migrate: bool,
    /// A pid, or the folder of a control group or its path below the mount.
    #[arg(value_name = "PID|CGROUP", value_parser = NonEmptyStringValueParser::new())]
    target: String,
}

/// Watches a job no more and prints its account; its processes run on.
#[derive(clap::Args)]
pub struct DetachArgs {
    #[command(flatten)]
    socket: Socket,
    /// The account as JSON.
    #[arg(long)]
    json: bool,
    /// The job: its name, its number or the pid of one of its processes.
    job: String,
}

/// Moves nothing of a job, or of any, until `resume`; it is watched on.
#[derive(clap::Args)]
pub struct PauseArgs {
    #[command(flatten)]
    socket: Socket,
    /// The job: its name, its number or the pid of one of its processes; all where it is left out.
    job: Option<String>,
}

/// Prints the agent's state.
pub fn status(args: &StatusArgs) -> Result<()> {
    let mut out = io::stdout().lock();
    match Client::connect(&args.socket.socket)?.ask(&Request::Status {})? {
        Answer::Status(status) if args.json => writeln!(out, "{}", serde_json::to_string_pretty(&status)?)?,
        Answer::Status(status) => writeln!(out, "{status}")?,
        other => unexpected(&other)?,
    }
    Ok(())
}

/// Has the agent watch what runs.
pub fn attach(args: &AttachArgs) -> Result<()> {
    let target = match args.target.parse() {
        Ok(pid) => Target::Pid(Pid(pid)),
        Err(_) => Target::Cgroup(PathBuf::from(&args.target)),
    };
    let mode = if args.no_migrate { Mode::Watch } else { Mode::Migrate };
    let request = Request::Attach { target, terms: args.limits.terms(mode) };
    match Client::connect(&args.socket.socket)?.ask(&request)? {
        Answer::Watching { job, name, .. } => writeln!(io::stdout(), "job {job} ({name}) is watched")?,
        other => unexpected(&other)?,
    }
    Ok(())
}

/// Has the agent let a job go.
pub fn detach(args: &DetachArgs) -> Result<()> {
    let mut out = io::stdout().lock();
    match Client::connect(&args.socket.socket)?.ask(&Request::Detach { job: args.job.clone() })? {
        Answer::Left(left) if args.json => writeln!(out, "{}", serde_json::to_string_pretty(&left)?)?,
        Answer::Left(left) => writeln!(out, "{left}")?,
        other => unexpected(&other)?,
    }
    Ok(())
}

/// Has the agent move nothing for a while.
pub fn pause(args: &PauseArgs) -> Result<()> {
    done(&args.socket, Request::Pause { job: args.job.clone() })
}

/// Has the agent move again.
pub fn resume(args: &PauseArgs) -> Result<()> {
    done(&args.socket, Request::Resume { job: args.job.clone() })
}

fn done(socket: &Socket, request: Request) -> Result<()> {
    match Client::connect(&socket.socket)?.ask(&request)? {
        Answer::Done { said } => writeln!(io::stdout(), "{said}")?,
        other => unexpected(&other)?,
    }
    Ok(())
}

fn unexpected(answer: &Answer) -> Result<()> {
    bail!("the agent answered something else than was asked: {}", serde_json::json!(answer))
}
