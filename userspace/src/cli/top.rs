//! `top`: the agent's state, again and again.

use std::{
    io::{self, IsTerminal, Write},
    thread,
    time::Duration,
};

use anyhow::{Result, bail};
use tensortier::control::{Answer, Request, client::Client};

use super::agent::Socket;

/// Shows the agent, its nodes and its jobs until Ctrl-C.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    socket: Socket,
    /// Seconds between two looks, a tenth at the least.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 2.0, value_parser = parse_delay)]
    delay: f64,
    /// Ends after so many looks.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

fn parse_delay(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    (0.1..=86_400.0).contains(&seconds).then_some(seconds).ok_or_else(|| "from 0.1 to 86400 seconds".to_owned())
}

/// Prints the state in place on a terminal, and one after another where the output is none.
pub fn run(args: &Args) -> Result<()> {
    // Home, and everything below cleared: what is shown does not flicker.
    let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
    let mut client = Client::connect(&args.socket.socket)?;
    for look in 1.. {
        let Answer::Status(status) = client.ask(&Request::Status {})? else {
            bail!("the agent answered something else than its status");
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{clear}{status}")?;
        out.flush()?;
        drop(out);
        if args.count == Some(look) {
            break;
        }
        thread::sleep(Duration::from_secs_f64(args.delay));
    }
    Ok(())
}
