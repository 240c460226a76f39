//! `tensortier agent`, and how `run` starts one.

use std::{
    fs::OpenOptions,
    io::{Read, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::SigSet,
    unistd::{dup2_stdout, geteuid, setsid},
};
use tensortier::{
    agent::{
        Agent,
        daemon::{Serving, readers, serve},
        read_host,
    },
    config::Config,
    control::{
        self,
        board::Board,
        client::{Client, ClientError},
        server::Server,
    },
};

use super::{
    DONE, FAILED, chain,
    place::{folder, log, take_turn},
    say,
};

/// An agent that ends is waited for this long by the next one.
const TURN: Duration = Duration::from_secs(10);
/// An agent is up within this time: the kernel checks its programs, which takes half a minute on an emulated machine.
const START: Duration = Duration::from_secs(120);
/// What an agent that `run` starts says on its stdout once it serves.
const READY: &str = "ready";

/// Where the agent is.
#[derive(clap::Args, Clone, Debug)]
pub struct Socket {
    /// The agent's socket.
    #[arg(long, value_name = "PATH", env = "TENSORTIER_SOCKET", default_value = control::SOCKET)]
    pub socket: PathBuf,
}

/// Serves this machine's jobs until SIGTERM: watches those that `run`, `attach` and the config bring, and moves their
/// hot memory to DRAM.
///
/// SIGHUP reads the config again. Jobs run on when it ends. One agent serves a socket; one a machine is meant, at the
/// default socket: of two on two sockets, DAMON has one owner, and each watches what it is asked to.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    socket: Socket,
    /// The config to use [default: /etc/tensortier/config.toml, where it exists].
    #[arg(long, value_name = "FILE", env = "TENSORTIER_CONFIG")]
    config: Option<PathBuf>,
    /// Ends with its last job, in a session of its own: how `run` starts it.
    #[arg(long)]
    until_idle: bool,
}

/// Serves, and gives the exit code.
pub fn run(args: &Args) -> Result<u8> {
    // Whoever started it may have blocked the signals that end it.
    SigSet::empty().thread_set_mask().context("cannot take over the signals of this process")?;
    if !args.until_idle {
        return serve_at(args, |socket| say(format_args!("serving at {}", socket.display()))).map(|()| DONE);
    }
    // A terminal's signals are the job's. It fails where this already leads a session, which is as good.
    let _ = setsid();
    std::env::set_current_dir("/")?;
    let served = serve_at(args, |_| ready(READY));
    if let Err(error) = served {
        // Read by `run` while it waits for the word; later it goes to the log.
        ready(&chain(&error));
        say(chain(&error));
        return Ok(FAILED);
    }
    Ok(DONE)
}

/// Tells whoever waits at the other end of stdout, and lets go of it.
fn ready(word: &str) {
    // Nobody may be there any more.
    let _ = writeln!(std::io::stdout(), "{word}");
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = dup2_stdout(&null);
    }
}

fn serve_at(args: &Args, ready: impl Fn(&Path)) -> Result<()> {
    let socket = &args.socket.socket;
    ensure!(geteuid().is_root(), "the agent needs root: it looks at other processes' memory and moves it");
    let config = Config::load(args.config.as_deref())?;
    readers(&config)?;
    let (scrape, rules) = (config.metrics, config.rules.clone());
    folder(socket)?;
    // One that `run` starts may come upon another one that is starting.
    let Some(_turn) = take_turn(socket, if args.until_idle { START } else { TURN })? else {
        ensure!(args.until_idle, "an agent serves at {} already; one agent a machine", socket.display());
        ready(socket);
        return Ok(());
    };
    let host = read_host(Path::new("/"), &config)?;
    let agent = Agent::new(config, host)?;
    let board = Arc::new(Board::default());
    let (tell, events) = mpsc::channel();
    let server = Server::start(socket, scrape, Arc::clone(&board), tell)?;
    ready(socket);
    let config = args.config.as_deref().map(std::path::absolute).transpose()?;
    let last = serve(agent, board, &events, Serving { config, rules, until_idle: args.until_idle });
    // Whoever has the last answer may start the next agent, which must not take this one for one that serves.
    server.withdraw();
    last.into_iter().for_each(|(reply, answer)| reply.send(answer));
    drop(server);
    Ok(())
}

/// Connects to the agent; where none runs and this is root, to one that is started for it and ends with its last job.
pub fn connect_or_start(socket: &Path, config: Option<&Path>) -> Result<Client> {
    match Client::connect(socket) {
        Err(ClientError::NoAgent { .. }) if geteuid().is_root() => start(socket, config)?,
        Err(ClientError::NoAgent { path, source }) => {
            bail!("no agent answers at {} ({source}), and starting one needs root", path.display())
        }
        other => return Ok(other?),
    }
    Ok(Client::connect(socket)?)
}

fn start(socket: &Path, config: Option<&Path>) -> Result<()> {
    let socket = std::path::absolute(socket)?;
    folder(&socket)?;
    let path = socket.with_extension("log");
    let log = log(&path)?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["agent", "--until-idle", "--socket"]).arg(&socket).env_remove("TENSORTIER_CONFIG");
    if let Some(config) = config {
        command.arg("--config").arg(std::path::absolute(config)?);
    }
    // Its streams are none of the job's: a pipe that waits for the job's end would wait for the agent's too.
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn()?;
    let mut said = child.stdout.take().context("the agent has no stdout")?;
    let wait = PollTimeout::try_from(START)?;
    ensure!(
        poll(&mut [PollFd::new(said.as_fd(), PollFlags::POLLIN)], wait)? > 0,
        "the agent did not start within {START:?}; see {}",
        path.display()
    );
    let mut word = String::new();
    said.read_to_string(&mut word)?;
    match word.trim() {
        READY => Ok(()),
        "" => bail!("the agent ended before it served; see {}", path.display()),
        why => bail!("{why}"),
    }
}
