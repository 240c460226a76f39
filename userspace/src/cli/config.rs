//! `config`: whether a config can work, and every key with the value that it gives.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use tensortier::{
    agent::daemon::readers,
    config::{Config, DEFAULT_PATH, DEFAULT_TOML},
};
use toml::{Table, Value};

/// Checks a config before an agent has to, or shows what holds under it.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Says whether an agent could start under the config, and the line and key where it could not.
    Check(File),
    /// Prints every key with the value that holds, as TOML.
    Show {
        #[command(flatten)]
        file: File,
        /// As JSON.
        #[arg(long)]
        json: bool,
        /// The defaults with what each key means, to start a config from.
        #[arg(long, conflicts_with_all = ["json", "config"])]
        default: bool,
    },
}

#[derive(clap::Args)]
struct File {
    /// The config [default: /etc/tensortier/config.toml, where it exists].
    #[arg(value_name = "FILE", env = "TENSORTIER_CONFIG")]
    config: Option<PathBuf>,
}

/// Checks or shows.
pub fn run(args: &Args) -> Result<()> {
    let mut out = io::stdout().lock();
    match &args.command {
        Command::Check(file) => {
            let config = checked(file)?;
            let rules = config.rules.len();
            match file.present() {
                Some(path) => writeln!(out, "{} can work; rules for jobs: {rules}", path.display())?,
                None => writeln!(out, "there is no {DEFAULT_PATH}: the defaults hold")?,
            }
        }
        Command::Show { default: true, .. } => write!(out, "{DEFAULT_TOML}")?,
        Command::Show { file, json, .. } => {
            checked(file)?;
            let table = in_force(file.present())?;
            match json {
                true => writeln!(out, "{}", serde_json::to_string_pretty(&table)?)?,
                false => write!(out, "{}", toml::to_string_pretty(&table)?)?,
            }
        }
    }
    Ok(())
}

impl File {
    /// The file that is read; none where none is named and none is there.
    fn present(&self) -> Option<&Path> {
        let default = Path::new(DEFAULT_PATH);
        self.config.as_deref().or_else(|| default.exists().then_some(default))
    }
}

/// What an agent checks of its config alone before it starts.
fn checked(file: &File) -> Result<Config> {
    let config = Config::load(file.config.as_deref())?;
    readers(&config)?;
    Ok(config)
}

/// The written keys over the defaults.
fn in_force(file: Option<&Path>) -> Result<Table> {
    let mut table: Table = DEFAULT_TOML.parse()?;
    let Some(path) = file else { return Ok(table) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    for (name, written) in text.parse::<Table>()? {
        match (table.get_mut(&name), written) {
            (Some(Value::Table(defaults)), Value::Table(written)) => defaults.extend(written),
            (_, written) => {
                table.insert(name, written);
            }
        }
    }
    Ok(table)
}
