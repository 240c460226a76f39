//! Where recorded inputs of other systems are: operator logs of DTR (`dtr/`) and kernel lists and plans of G10 (`g10/`).
//!
//! They are not part of the repository. Whoever needs them says so and names [`VARIABLE`] when they are absent.

use std::path::{Path, PathBuf};

/// Environment variable that names the folder.
pub const VARIABLE: &str = "TENSORTIER_TRACES";

/// The folder of recorded inputs: what [`VARIABLE`] names, or else the nearest `shared/traces` beside or above `start`.
pub fn find(start: &Path) -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let above = || start.ancestors().map(|dir| dir.join("shared/traces")).find(|dir| dir.is_dir());
    named.or_else(above)
}
