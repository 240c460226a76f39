//! `tensortier run`: starts a job and follows it to its end.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::ErrorKind,
    ops::ControlFlow,
    os::{fd::RawFd, unix::fs::fchown},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tensortier::{
    config::Config,
    control::{
        Answer, Left, Mode, Request,
        client::{Client, ClientError},
    },
    job::{
        caller::Caller,
        launch::{LaunchError, launch},
        place::Place,
        signals::Signals,
    },
    observe::summary::Account,
    units::{NodeSet, Pid},
};

use super::{
    RUN_FAILED,
    agent::{Socket, connect_or_start},
    chain, gpu,
    jobs::LimitArgs,
    offload, say,
};

/// How often plans of a dry run are looked for.
const PLANS: Duration = Duration::from_millis(250);
/// How often it is looked whether the agent has gone, and whether another one has come.
const LOOK: Duration = Duration::from_secs(2);
/// An agent that has just come is waited for no longer at first, since signals wait meanwhile. It has others to take in
/// too: each time twice as long, up to [`PATIENCE`].
const AGAIN: Duration = Duration::from_secs(1);
/// A job waits this long for an agent that runs and says nothing, which answers in milliseconds otherwise.
const PATIENCE: Duration = Duration::from_secs(15);
/// An agent that ends with its last job may do so while another one comes: how often a new one is tried.
const TRIES: u32 = 5;

/// Runs COMMAND with its hot memory kept in DRAM.
///
/// The exit code is the command's; 128 and the signal's number where a signal ended it; 125 where tensortier failed,
/// 126 where the command cannot be executed, 127 where there is none. Under sudo the command runs as the user who
/// called sudo, with that user's environment, groups, umask and working directory. It ends with its first process:
/// children that outlive that one go on, unwatched.
///
/// The agent of this machine watches the job; where none runs and the caller is root, one is started that ends with its
/// last job. Where the agent ends before the job, the job runs on, and the next agent watches it. `run` within a job
/// makes a job of its own, with limits of its own, where the outer job is the same user's or the caller is root.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    socket: Socket,
    #[command(flatten)]
    limits: LimitArgs,
    /// Memory policy of the job from its start: prefer=N, bind=N,M, interleave=N,M or weighted-interleave=N,M.
    #[arg(long, value_name = "POLICY")]
    place: Option<Place>,
    /// What PyTorch saves for the backward pass lies on the slow node meanwhile; for Python scripts, unmodified.
    #[arg(long)]
    offload_activations: bool,
    /// Puts the GPU bridge under the job's CUDA programs, unmodified: pinned host memory comes from its pool on the GPU's
    /// node, and large copies of pageable memory are pipelined. Programs without CUDA are not touched.
    #[arg(long)]
    gpu: bool,
    /// The config to use, where no agent runs yet [default: /etc/tensortier/config.toml, where it exists].
    #[arg(long, value_name = "FILE", env = "TENSORTIER_CONFIG")]
    config: Option<PathBuf>,
    /// Prints what would move, with the reason of each move, and moves nothing.
    #[arg(long, conflicts_with = "no_migrate")]
    dry_run: bool,
    /// Watches and reports, and plans nothing.
    #[arg(long)]
    no_migrate: bool,
    /// Refuses to start the job where the agent cannot run.
    #[arg(long)]
    require: bool,
    /// Writes the summary to FILE as JSON too.
    #[arg(long, value_name = "FILE")]
    summary_json: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the job and gives the exit code.
pub fn run(args: Args, inherited: &[RawFd]) -> u8 {
    // They live as long as the process: the agent is asked on a thread that a signal leaves behind.
    follow(Box::leak(Box::new(args)), inherited).unwrap_or_else(|error| {
        say(chain(&error));
        error.downcast_ref::<LaunchError>().map_or(RUN_FAILED, LaunchError::exit_code)
    })
}

fn follow(args: &'static Args, inherited: &[RawFd]) -> Result<u8> {
    let signals = Signals::take().context("cannot take over the signals of this process")?;
    let mut caller = Caller::find()?;
    for warning in &caller.warnings {
        say(warning);
    }
    // Checked here too: a config that cannot work should not start a job.
    Config::load(args.config.as_deref())?;
    if let Some(place) = &args.place {
        place.check(&nodes("has_memory")?, &nodes("has_cpu")?)?;
    }

    if args.offload_activations {
        offload::prepare(&mut caller.environment)?;
    }
    if args.gpu {
        gpu::prepare(&mut caller.environment, &args.socket.socket)?;
    }

    // Opened before the job starts: a wrong path should not cost the run.
    let json = args.summary_json.as_deref().map(|path| create(path, &caller)).transpose()?;

    let waiting = launch(&args.command, &caller, args.place.as_ref(), &signals, inherited)?;
    let user = caller.ids.as_ref().map(|ids| ids.user);
    // The job waits before its first instruction, so nothing of it is missed. A signal from the terminal so far reached
    // this process alone, and the job has no need to begin.
    let pid = waiting.pid();
    let watched = match signals.meanwhile(move || Session::begin(args, pid, user))? {
        ControlFlow::Continue(watched) => watched,
        ControlFlow::Break(signal) => return Ok(128 + signal as u8),
    };
    let (mut session, unwatched) = match watched {
        Ok(session) => (Some(session), None),
        Err(error) if args.require => return Err(error.context("the job was not started (--require)")),
        Err(error) => {
            let why = format!("the job runs unwatched: {}", chain(&error));
            say(&why);
            (None, Some(why))
        }
    };
    let started = Instant::now();
    let pid = match waiting.release() {
        Ok(pid) => pid,
        Err(error) => {
            // There is no job whose account could be of use.
            let _ = session.map(Session::end);
            return Err(error.into());
        }
    };
    let ended = signals
        .follow(pid, || session.as_mut().map_or(Duration::MAX, Session::hear))
        .context("the job's end could not be learned")?;

    let mut summary = Account::of_job(&args.command, ended, started.elapsed());
    summary.notes.extend(unwatched);
    if let Some(session) = session {
        let (left, notes) = session.end();
        match left {
            Ok(left) => (summary.watched, summary.notes) = (Some(left.watched), left.notes),
            Err(error) => summary.notes.push(format!("no account of the job: {}", chain(&error))),
        }
        summary.notes.extend(notes);
    }
    say(&summary);
    if let Some(json) = json
        && let Err(error) = serde_json::to_writer_pretty(json, &summary)
    {
        say(format_args!("cannot write the summary: {error}"));
    }
    Ok(ended.exit_code())
}

fn mode(args: &Args) -> Mode {
    match (args.dry_run, args.no_migrate) {
        (true, _) => Mode::DryRun,
        (_, true) => Mode::Watch,
        _ => Mode::Migrate,
    }
}

/// The job at the agent.
struct Session {
    args: &'static Args,
    pid: Pid,
    user: Option<u32>,
    /// The connection and the job's number; none while no agent watches.
    at: Result<(Client, u64), anyhow::Error>,
    /// Whether an agent that comes is asked to watch, and how long it is waited for.
    tries: bool,
    again: Duration,
    /// The account from an agent that ended.
    left: Option<Left>,
    notes: Vec<String>,
}

impl Session {
    /// Has the job watched. An agent that goes away meanwhile has ended with its last job: another one is started.
    fn begin(args: &'static Args, pid: Pid, user: Option<u32>) -> Result<Self> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut client = connect_or_start(&args.socket.socket, args.config.as_deref())?;
            client.patience(Some(PATIENCE))?;
            match client.ask(&request(args, pid, user, false)) {
                Ok(Answer::Watching { job, config, .. }) => {
                    let asked = args.config.as_deref().map(std::path::absolute).transpose()?;
                    let note = (asked.is_some() && asked != config).then(|| {
                        let theirs = config.map_or("the default config".into(), |path| path.display().to_string());
                        format!("the agent runs already, with {theirs}: --config was not used")
                    });
                    client.patience(None)?;
                    let (at, notes) = (Ok((client, job)), note.into_iter().collect());
                    return Ok(Self { args, pid, user, at, tries: true, again: AGAIN, left: None, notes });
                }
                Ok(other) => bail!("the agent answered something else: {}", serde_json::json!(other)),
                Err(ClientError::Gone { .. }) if tries < TRIES => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Prints what the agent told since; says when to look again.
    fn hear(&mut self) -> Duration {
        if self.at.is_err() {
            return self.go_on();
        }
        self.listen();
        if let Err(gone) = &self.at {
            say(format_args!("{gone}; the job runs on, and the next agent will watch it"));
        }
        if mode(self.args) == Mode::DryRun { PLANS } else { LOOK }
    }

    /// Takes what the agent said unasked.
    fn listen(&mut self) {
        let Ok((client, _)) = &mut self.at else { return };
        let left = &mut self.left;
        let heard = client.hear(|answer| match answer {
            Answer::Plan { text } => eprint!("{text}"),
            Answer::Left(account) => *left = Some(*account),
            _ => {}
        });
        if let Err(error) = heard {
            self.at = Err(error.into());
        }
    }

    /// Has an agent watch that has come since the last one went.
    fn go_on(&mut self) -> Duration {
        if !self.tries {
            return Duration::MAX;
        }
        let begun = Client::connect(&self.args.socket.socket).and_then(|mut client| {
            client.patience(Some(self.again))?;
            let answer = client.ask(&request(self.args, self.pid, self.user, true))?;
            client.patience(None)?;
            Ok((client, answer))
        });
        match begun {
            Ok((client, Answer::Watching { job, .. })) => {
                say("the job is watched again");
                let earlier = "an agent ended while the job ran: this is the account of the one after it";
                (self.at, self.left, self.again) = (Ok((client, job)), None, AGAIN);
                self.notes.push(earlier.to_owned());
            }
            Err(ClientError::NoAgent { .. }) => {}
            Err(ClientError::Silent { .. }) if self.again < PATIENCE => self.again = PATIENCE.min(self.again * 2),
            Ok(_) => self.tries = false,
            Err(error) => {
                say(format_args!("the job stays unwatched: {error}"));
                self.tries = false;
            }
        }
        LOOK
    }

    /// The account, and what is to be known of it.
    fn end(mut self) -> (Result<Left>, Vec<String>) {
        self.listen();
        let mut notes = self.notes;
        let left = self.at.and_then(|(mut client, job)| {
            match client.ask_and_hear(&Request::End { job }, |plan| eprint!("{plan}"))? {
                Answer::Left(left) => Ok(*left),
                other => bail!("the agent answered something else: {}", serde_json::json!(other)),
            }
        });
        match (left, self.left) {
            (Err(gone), Some(left)) => {
                notes.push(format!("the account ends with the agent, before the job: {}", chain(&gone)));
                (Ok(left), notes)
            }
            (left, _) => (left, notes),
        }
    }
}

fn request(args: &Args, pid: Pid, user: Option<u32>, again: bool) -> Request {
    let program = args.command.first().and_then(|program| Path::new(program).file_name());
    let program = program.map(|name| name.to_string_lossy().into_owned());
    Request::Watch { pid, user, program, again, terms: args.limits.terms(mode(args)) }
}

/// Opens `path` for the summary. A file that is new belongs to the caller, whoever this process is; one that was there
/// (`/dev/stdout`, say) keeps its owner.
fn create(path: &Path, caller: &Caller) -> Result<File> {
    let made = match File::create_new(path) {
        Ok(file) => match &caller.ids {
            Some(ids) => fchown(&file, Some(ids.user), Some(ids.group)).map(|()| file),
            None => Ok(file),
        },
        Err(error) if error.kind() == ErrorKind::AlreadyExists => File::create(path),
        Err(error) => Err(error),
    };
    made.with_context(|| format!("cannot write the summary to {}", path.display()))
}

fn nodes(which: &str) -> Result<NodeSet> {
    let path = format!("/sys/devices/system/node/{which}");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}, which --place needs"))?;
    text.parse().with_context(|| format!("cannot read {path}"))
}
