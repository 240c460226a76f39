//! `bridge`: what the GPU bridge does on this host.

mod bench;
mod chart;

use clap::Subcommand;

/// The GPU bridge on this host.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(bench::Args),
}

/// Runs the subcommand.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Bench(args) => bench::run(args),
    }
}
