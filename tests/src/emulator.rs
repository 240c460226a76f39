//! The emulated CUDA driver, for tests: put where a driver would be.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Copies the emulator that was built beside this program into a folder, under the driver's name; gives its path. A copy
/// and no link: the name that a process's mappings show is the file's.
///
/// # Errors
/// It has not been built, or cannot be copied.
pub fn install(folder: &Path) -> Result<PathBuf> {
    let this = env::current_exe().context("this program has no path")?;
    // Tests lie in deps/, beside which programs are; a dev-dependency's library is among the former.
    let places = this.ancestors().skip(1).take(2).map(|place| place.join("libtensortier_emulator.so"));
    let library = { places }.find(|place| place.exists());
    let library = library.context("libtensortier_emulator.so is missing: cargo build -p tensortier-emulator")?;
    let driver = folder.join("libcuda.so.1");
    let copied = Command::new("cp").args([&library, &driver]).status().context("cannot start cp")?;
    ensure!(copied.success(), "cannot copy {} to {}", library.display(), driver.display());
    Ok(driver)
}
