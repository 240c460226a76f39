//! `tensortier plan`: which tensors of a training step leave GPU memory, where to and when.

use std::io::{self, Write};

pub use tensortier_planner::cli::PlanArgs as Args;

/// Plans, and prints the plan's figures.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let text = tensortier_planner::cli::run(args)?;
    write!(io::stdout().lock(), "{text}")?;
    Ok(())
}
