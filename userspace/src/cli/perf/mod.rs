//! `perf`: what migrates memory on this host, for perf and beside it.

mod list;
mod probes;
mod record;
mod stat;
mod table;

use clap::Subcommand;

use super::DONE;

/// Lists, arms, counts and records what migrates memory.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::Args),
    Setup(probes::SetupArgs),
    Teardown(probes::TeardownArgs),
    Stat(stat::Args),
    Record(record::Args),
}

/// Runs the subcommand and gives the exit code.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    match &args.command {
        Command::List(args) => list::run(args).map(|()| DONE),
        Command::Setup(args) => probes::setup(args).map(|()| DONE),
        Command::Teardown(args) => probes::teardown(args).map(|()| DONE),
        Command::Stat(args) => stat::run(args),
        Command::Record(args) => record::run(args),
    }
}
