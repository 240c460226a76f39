//! `perf setup` and `perf teardown`: the USDT probes as events of perf, and their removal.

use std::{
    env,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;
use tensortier::{
    observe::arm::{Arms, JOURNAL},
    source::format::tracefs,
};

/// Arms the probes of this binary, so that perf knows them as sdt_tensortier:NAME. Needs root.
///
/// They stay armed until teardown or a restart; setup again after the binary was rebuilt.
#[derive(clap::Args)]
pub struct SetupArgs {
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// The perf to use.
    #[arg(long, value_name = "PATH", default_value = "perf")]
    perf: PathBuf,
}

/// Takes away what setup armed, also after a crash. Needs root.
#[derive(clap::Args)]
pub struct TeardownArgs {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Arms the probes.
pub fn setup(args: &SetupArgs) -> Result<()> {
    let binary = env::current_exe().context("cannot find this binary")?;
    let events = arms("setup", &args.perf)?.arm(&binary)?;
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::json!({ "binary": binary, "armed": events }))?;
        return Ok(());
    }
    writeln!(out, "armed in {}:", binary.display())?;
    events.iter().try_for_each(|event| writeln!(out, "  {event}"))?;
    writeln!(out, "count them: perf stat -a -e 'sdt_tensortier:*'; remove them: tensortier perf teardown")?;
    Ok(())
}

/// Takes the probes away.
pub fn teardown(args: &TeardownArgs) -> Result<()> {
    let events = arms("teardown", Path::new("perf"))?.disarm()?;
    let mut out = io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", serde_json::json!({ "removed": events }))?,
        false if events.is_empty() => writeln!(out, "nothing to remove")?,
        false => writeln!(out, "removed {}", events.join(" "))?,
    }
    Ok(())
}

fn arms(command: &str, perf: &Path) -> Result<Arms> {
    ensure!(geteuid().is_root(), "perf {command} writes to tracefs, which needs root: sudo tensortier perf {command}");
    let cache = Path::new(JOURNAL).with_file_name("buildid");
    Ok(Arms { tracefs: tracefs()?.to_owned(), journal: JOURNAL.into(), perf: perf.to_owned(), cache })
}
