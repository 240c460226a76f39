//! `perf record`: perf's own, on the events that this program knows.

use std::{
    ffi::OsString,
    io::ErrorKind,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use tensortier::{
    observe::usdt::{PROBES, PROVIDER},
    source::format::tracefs,
};

/// Records every migration with perf: the armed probes and the kernel's migrate:mm_migrate_pages. Needs root.
///
/// Reads as `perf script -i FILE` afterwards; `tensortier perf list` says what arg1 and so on are. The exit code is perf's.
#[derive(clap::Args)]
pub struct Args {
    /// The file to write.
    #[arg(short, long, value_name = "FILE", default_value = "perf.data")]
    output: PathBuf,
    /// The perf to use.
    #[arg(long, value_name = "PATH", default_value = "perf")]
    perf: PathBuf,
    /// Records while this command runs, else until Ctrl-C.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Becomes perf.
pub fn run(args: &Args) -> Result<u8> {
    let tracefs = tracefs()?;
    let armed = events(tracefs);
    ensure!(!armed.is_empty(), "no probe is armed, or tracefs is closed to you: sudo tensortier perf setup");
    let mut perf = Command::new(&args.perf);
    perf.args(["record", "-a", "-N", "-o"]).arg(&args.output).args(["-e", &armed.join(",")]);
    if !args.command.is_empty() {
        perf.arg("--").args(&args.command);
    }
    let error = perf.exec();
    let hint = match error.kind() {
        ErrorKind::NotFound => ": apt install linux-perf (Debian), linux-tools-generic (Ubuntu)",
        _ => "",
    };
    Err(error).with_context(|| format!("cannot run {}{hint}", args.perf.display()))
}

/// The armed probes and the kernel's own event; none where no probe is armed.
fn events(tracefs: &Path) -> Vec<String> {
    let there = |path: &String| tracefs.join("events").join(path.replace(':', "/")).exists();
    let mut armed: Vec<String> =
        PROBES.iter().map(|probe| format!("sdt_{PROVIDER}:{}", probe.name)).filter(there).collect();
    if !armed.is_empty() {
        armed.extend(Some("migrate:mm_migrate_pages".to_owned()).filter(there));
    }
    armed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn armed_probes_are_recorded_with_the_kernels_event() {
        let tracefs = tempfile::tempdir().unwrap();
        let put = |event: &str| std::fs::create_dir_all(tracefs.path().join("events").join(event)).unwrap();
        put("migrate/mm_migrate_pages");
        assert!(events(tracefs.path()).is_empty());
        put("sdt_tensortier/promote");
        assert_eq!(events(tracefs.path()), ["sdt_tensortier:promote", "migrate:mm_migrate_pages"]);
    }
}
