//! `tensortier record`: a trace of what a running job touches.

use std::{
    fs::File,
    io::BufWriter,
    os::fd::AsFd,
    path::PathBuf,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, bail};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::SignalFd,
    },
};
use tensortier::{
    control::{
        Answer, Looks, Request,
        client::{Client, ClientError},
    },
    observe::record::Recorder,
};
use tensortier_replay::trace::Header;

use super::{agent::Socket, say};

/// Records what a job of the agent touches, until Ctrl-C, the job's end or the time that was asked for.
///
/// The trace has addresses, sizes and how often they were found accessed, and nothing of what is in them. For root and the
/// job's user. `replay` reads it.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    socket: Socket,
    /// The job: its name, its number or the pid of one of its processes.
    job: String,
    /// Where the trace goes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Time from one look to the next.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// Ends after this time.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Option<Duration>,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if interval < Duration::from_millis(100) || interval > Duration::from_secs(60) {
        return Err("it should be from 100ms to 60s".into());
    }
    Ok(interval)
}

/// Records, and says what the file holds.
pub fn run(args: &Args) -> Result<()> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block().context("cannot take over the signals of this process")?;
    let end = SignalFd::new(&signals).context("cannot take over the signals of this process")?;
    let mut client = Client::connect(&args.socket.socket)?;
    let first = look(&mut client, &args.job)?;
    let name = args.output.display();
    let file = File::create(&args.output).with_context(|| format!("cannot write {name}"))?;
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let header = Header {
        name: first.name.clone(),
        started_unix_ns: u64::try_from(started.as_nanos()).unwrap_or(u64::MAX),
        interval_ns: u64::try_from(args.interval.as_nanos()).unwrap_or(u64::MAX),
        nodes: Vec::new(),
    };
    let written = || format!("cannot write {name}");
    let mut recorder = Recorder::new(BufWriter::new(file), &header).with_context(written)?;
    let since = first.since_ms;
    recorder.take(&Looks { since_ms: 0, ..first }).with_context(written)?;
    let (begun, mut intervals) = (Instant::now(), 0u32);
    let why = loop {
        intervals += 1;
        let due = begun + args.interval * intervals;
        if args.time.is_some_and(|time| begun.elapsed() >= time) {
            break "the time is up".to_owned();
        }
        if asked_to_end(&end, due)? {
            break "ended by a signal".to_owned();
        }
        let looks = match look(&mut client, &args.job) {
            Ok(looks) => looks,
            // The job or the agent has ended: what there is is whole.
            Err(error @ (ClientError::Refused(_) | ClientError::Gone { .. })) => break error.to_string(),
            Err(error) => bail!(error),
        };
        recorder.take(&Looks { since_ms: looks.since_ms.saturating_sub(since), ..looks }).with_context(written)?;
    };
    let regions = recorder.regions();
    recorder.finish().with_context(written)?;
    let seconds = begun.elapsed().as_secs();
    say(format_args!("{name}: {seconds} s of {}, {regions} regions ({why})", header.name));
    Ok(())
}

fn look(client: &mut Client, job: &str) -> Result<Looks, ClientError> {
    match client.ask(&Request::Looks { job: job.to_owned() })? {
        Answer::Looks(looks) => Ok(*looks),
        other => Err(ClientError::Refused(format!("the agent said something else: {other:?}"))),
    }
}

/// Waits until `due`. True where a signal came first.
fn asked_to_end(end: &SignalFd, due: Instant) -> Result<bool> {
    let mut fds = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
    let left = due.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    Ok(poll(&mut fds, timeout).context("cannot wait")? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(parse_interval("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["1ms", "2h", "soon"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }
}
