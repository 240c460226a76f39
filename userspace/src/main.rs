//! The one binary. Exit codes: 0 done, 1 failed, 2 wrong usage; `run` has its job's.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything is opened: what is open now is the job's to inherit, all else is not.
    let inherited = tensortier::job::launch::inherited();
    ExitCode::from(cli::main(&inherited))
}
