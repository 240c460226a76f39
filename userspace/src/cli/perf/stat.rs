//! `perf stat`: counts what migrates memory, by whose work it is, reason and node.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, ErrorKind, Write},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tensortier::observe::counters::{Counters, Values, since};
use tokio::{
    process::{Child, Command},
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval_at},
};

use super::table::{Form, Interval};
use crate::cli::{DONE, say};

/// Counts migrations of the whole host, by whose work they are, by reason and by node.
///
/// Counts while COMMAND runs, which is started with the rights of this process, and gives its exit code (126: it cannot be
/// executed, 127: there is none); without one, until Ctrl-C. Pages by reason and events need root; the counters of
/// /proc/vmstat do not. Counters that are 0 on detail lines are left out of the table alone.
#[derive(clap::Args)]
pub struct Args {
    /// Prints the change in each so many milliseconds too.
    #[arg(short = 'I', long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..))]
    interval: Option<u64>,
    /// Prints fields separated by SEP: [time,]count,unit,event,node,whose.
    #[arg(short = 'x', long, value_name = "SEP", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    separator: Option<String>,
    /// Prints JSON, one object a line.
    #[arg(long, conflicts_with = "separator")]
    json: bool,
    /// Writes to FILE [default: stderr beside a command, else stdout].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Reads a recorded tree instead of this machine.
    #[arg(long, value_name = "FOLDER", default_value = "/", hide = true)]
    root: PathBuf,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Counts and gives the exit code.
pub fn run(args: &Args) -> Result<u8> {
    let out: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?),
        None if args.command.is_empty() => Box::new(io::stdout()),
        None => Box::new(io::stderr()),
    };
    let form = match (&args.separator, args.json) {
        (Some(separator), _) => Form::Separated(separator.clone()),
        (None, true) => Form::Json,
        (None, false) => Form::Table,
    };
    Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot wait for signals")?
        .block_on(count(args, form, out))
}

struct Count<'a> {
    counters: Counters<'a>,
    begin: Instant,
    first: Values,
    form: Form,
    out: Box<dyn Write>,
}

async fn count(args: &Args, form: Form, out: Box<dyn Write>) -> Result<u8> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut counters = Counters::open(&args.root);
    let first = counters.read();
    let mut count = Count { counters, begin: Instant::now(), first, form, out };
    let mut child = match start(&args.command) {
        Ok(child) => child,
        Err((code, why)) => {
            say(why);
            return Ok(code);
        }
    };
    let mut before = count.first.clone();
    let period = Duration::from_millis(args.interval.unwrap_or(u64::MAX >> 20));
    let mut ticks = interval_at(tokio::time::Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let status = loop {
        tokio::select! {
            status = wait(&mut child) => break Some(status.context("the command's end could not be learned")?),
            // The terminal sends it to the command too, whose end is then awaited.
            _ = interrupt.recv() => if child.is_none() { break None },
            _ = terminate.recv() => match child.as_ref().and_then(Child::id) {
                // Its end, if it has ended meanwhile, is what is waited for.
                Some(pid) => drop(kill(Pid::from_raw(pid as i32), Signal::SIGTERM)),
                None => break None,
            },
            _ = ticks.tick(), if args.interval.is_some() => before = count.print(&before, true)?,
        }
    };
    if args.interval.is_some() {
        count.print(&before, true)?;
    } else {
        let first = std::mem::take(&mut count.first);
        count.print(&first, false)?;
    }
    Ok(status.map_or(DONE, exit_code))
}

impl Count<'_> {
    /// Prints what was counted since `before`, and gives the reading.
    fn print(&mut self, before: &Values, timed: bool) -> Result<Values> {
        let now = self.counters.read();
        let interval = Interval {
            seconds: self.begin.elapsed().as_secs_f64(),
            timed,
            counts: &since(before, &now),
            missing: self.counters.missing(),
        };
        self.out.write_all(self.form.print(&interval)?.as_bytes())?;
        self.out.flush()?;
        Ok(now)
    }
}

/// Starts the command, if there is one; else the exit code and why.
fn start(command: &[OsString]) -> Result<Option<Child>, (u8, String)> {
    let Some((program, arguments)) = command.split_first() else { return Ok(None) };
    let failed = |error: io::Error| {
        let code = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
        (code, format!("cannot run {}: {error}", Path::new(program).display()))
    };
    Command::new(program).args(arguments).spawn().map(Some).map_err(failed)
}

async fn wait(child: &mut Option<Child>) -> io::Result<ExitStatus> {
    match child {
        Some(child) => child.wait().await,
        None => std::future::pending().await,
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.map_or(1, |code| code as u8)
}
