//! `tensortier run --offload-activations`: the environment under which Python loads the hooks with torch.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// Names the folder that holds the package `tensortier_torch`.
const VARIABLE: &str = "TENSORTIER_PYTHON";
/// Where a package of the distribution puts it.
const INSTALLED: &str = "/usr/lib/tensortier/python";
/// Where it is in the source tree.
const IN_TREE: &str = "gpu-bridge/python";
/// The folder with `sitecustomize.py`, which Python runs before any script.
const SITE: &str = "tensortier_torch/site";

/// Puts the hooks' folder first on the job's `PYTHONPATH` and switches them on.
///
/// # Errors
/// The package is nowhere it is looked for.
pub(super) fn prepare(environment: &mut BTreeMap<OsString, OsString>) -> Result<()> {
    let named = env::var_os(VARIABLE).map(PathBuf::from);
    let own = env::current_exe().unwrap_or_default();
    let site = find(named.as_deref(), &own).with_context(|| {
        format!(
            "the Python package tensortier_torch is not in {INSTALLED} nor in {IN_TREE} above {}; \
             name its folder with {VARIABLE}",
            own.display()
        )
    })?;
    activate(environment, site);
    Ok(())
}

fn activate(environment: &mut BTreeMap<OsString, OsString>, site: PathBuf) {
    let before = environment.get(OsStr::new("PYTHONPATH")).filter(|path| !path.is_empty());
    let mut path = site.into_os_string();
    if let Some(before) = before {
        path.push(":");
        path.push(before);
    }
    environment.insert("PYTHONPATH".into(), path);
    environment.insert("TENSORTIER_OFFLOAD".into(), "1".into());
}

fn find(named: Option<&Path>, program: &Path) -> Option<PathBuf> {
    let above = program.ancestors().map(|folder| folder.join(IN_TREE));
    let folders = match named {
        Some(named) => vec![named.to_owned()],
        None => above.chain([INSTALLED.into()]).collect(),
    };
    folders.into_iter().map(|folder| folder.join(SITE)).find(|site| site.join("sitecustomize.py").is_file())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_package_is_found_above_the_program_or_where_it_is_named() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("target/release/tensortier");
        let site = root.path().join(IN_TREE).join(SITE);
        assert_eq!(find(None, &program).filter(|found| found.starts_with(root.path())), None);
        std::fs::create_dir_all(&site).unwrap();
        std::fs::write(site.join("sitecustomize.py"), "").unwrap();
        assert_eq!(find(None, &program), Some(site.clone()));
        assert_eq!(find(Some(&root.path().join(IN_TREE)), Path::new("/")), Some(site));
        assert_eq!(find(Some(root.path()), &program), None, "what is named is where it is looked for");
    }

    #[test]
    fn the_users_own_path_comes_after() {
        let mut environment = BTreeMap::from([("PYTHONPATH".into(), "/mine".into())]);
        activate(&mut environment, SITE.into());
        assert_eq!(environment[OsStr::new("PYTHONPATH")], "tensortier_torch/site:/mine");
        assert_eq!(environment[OsStr::new("TENSORTIER_OFFLOAD")], "1");
    }
}
