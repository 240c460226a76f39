//! Benches on the emulated CUDA driver: a process finds its driver when it starts, so they start again with it.

use std::{os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result, ensure};

/// Says that the emulated driver is in the library path.
const EMULATED: &str = "TENSORTIER_BENCH_EMULATED";

/// Returns in a process that has the emulated driver in its library path; the first call replaces the process.
///
/// # Errors
/// The emulator cannot be built, the program not started again.
pub fn ensure_emulated() -> Result<()> {
    if std::env::var_os(EMULATED).is_some() {
        return Ok(());
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/emulator");
    let output = Command::new(script).output().with_context(|| script.to_owned())?;
    ensure!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    let folder = String::from_utf8(output.stdout)?;
    let mut again = Command::new(std::env::current_exe()?);
    again.args(std::env::args_os().skip(1)).env(EMULATED, "1").env("LD_LIBRARY_PATH", folder.trim());
    Err(again.exec()).context("running with the emulated driver")
}
