//! `tensortier drain`: moves a node's memory away.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use nix::unistd::geteuid;
use tensortier::{
    agent::{migrate_params, read_host},
    config::Config,
    control::{
        Answer, Request,
        client::{Client, ClientError},
    },
    migrate::drain::{Drained, evacuate},
    units::{NodeId, show_bytes},
};

use super::agent::Socket;

/// Moves everything that can move off a node, of every process, and lists what remains and whose it is.
///
/// A running agent moves nothing to or from the node from then on, until it reads its config again or ends.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    socket: Socket,
    /// The config: whether file pages move, and how fast [default: /etc/tensortier/config.toml, where it exists].
    #[arg(long, value_name = "FILE", env = "TENSORTIER_CONFIG")]
    config: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// The node's number.
    node: u32,
}

/// Drains the node and prints what came of it.
pub fn run(args: &Args) -> Result<()> {
    ensure!(geteuid().is_root(), "draining a node needs root: it moves the memory of every process");
    let config = Config::load(args.config.as_deref())?;
    let host = read_host(Path::new("/"), &config)?;
    let node = NodeId(args.node);
    match Client::connect(&args.socket.socket).and_then(|mut client| client.ask(&Request::Avoid { node })) {
        // Without an agent there is nobody to move anything there.
        Ok(Answer::Done { .. }) | Err(ClientError::NoAgent { .. }) => {}
        Ok(other) => anyhow::bail!("the agent answered something else: {}", serde_json::json!(other)),
        Err(error) => return Err(error.into()),
    }
    let drained = evacuate(&host, node, migrate_params(&config), config.migrate.file_pages)?;
    let mut out = io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&drained)?)?,
        false => write!(out, "{}", text(&drained))?,
    }
    Ok(())
}

fn text(drained: &Drained) -> String {
    let Drained { node, moved_bytes, failed_pages, remaining } = drained;
    let mut lines = Vec::new();
    lines.extend(moved_bytes.iter().map(|(to, bytes)| format!("moved {} to node {to}", show_bytes(*bytes))));
    lines.extend(failed_pages.iter().map(|(cause, pages)| format!("{pages} pages did not move: {cause:?}")));
    for process in remaining {
        let parts = process.bytes.iter().map(|(why, bytes)| format!("{} ({why:?})", show_bytes(*bytes)));
        let parts: Vec<_> = parts.collect();
        lines.push(format!("still there: pid {} ({}): {}", process.pid, process.name, parts.join(", ")));
    }
    if remaining.is_empty() {
        lines.push(format!("no process has memory on node {node} any more"));
    }
    lines.join("\n") + "\n"
}
