//! The emulated CUDA driver, for tests and demos: put where a driver would be.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// The library of a crate of this workspace, as it was built beside this program.
///
/// # Errors
/// It has not been built.
pub fn library(krate: &str) -> Result<PathBuf> {
    let this = env::current_exe().context("this program has no path")?;
    let name = format!("lib{}.so", krate.replace('-', "_"));
    // Tests lie in deps/, and so do the libraries of dependencies; programs lie beside that folder.
    let folders = this.ancestors().skip(1).take(2).flat_map(|folder| [folder.to_owned(), folder.join("deps")]);
    let library = { folders }.map(|folder| folder.join(&name)).find(|library| library.exists());
    library.with_context(|| format!("{name} is missing: cargo build -p {krate}"))
}

/// Copies the emulator that was built beside this program into a folder, under the driver's name; gives its path. A copy
/// and no link: the name that a process's mappings show is the file's.
///
/// # Errors
/// It has not been built, or cannot be copied.
pub fn install(folder: &Path) -> Result<PathBuf> {
    let library = library("tensortier-emulator")?;
    let driver = folder.join("libcuda.so.1");
    let copied = Command::new("cp").args([&library, &driver]).status().context("cannot start cp")?;
    ensure!(copied.success(), "cannot copy {} to {}", library.display(), driver.display());
    Ok(driver)
}
