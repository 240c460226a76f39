//! Exercises memory of exact hot, warm and cold sizes and reports where it lay. See `tensortier_tests::exerciser`.

use std::{fs, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use tensortier_tests::exerciser::{self, Options};

/// Exercises memory of exact hot, warm and cold sizes and reports, as JSON, where it lay.
///
/// Ends with 1 where a word of the memory was damaged.
#[derive(Parser)]
#[command(version)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<ExitCode> {
    let options = Line::parse().options;
    let report = exerciser::run(&options)?;
    let text = serde_json::to_string(&report)?;
    match &options.report {
        Some(path) => fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?,
        None => println!("{text}"),
    }
    Ok(if report.checksum_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
