//! `tensortier run --gpu`: the environment under which the job's CUDA programs have the bridge beneath them.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

/// Names the library's file.
const VARIABLE: &str = "TENSORTIER_PRELOAD";
/// Names the agent's socket, for `tensortier` and for the library.
const SOCKET: &str = "TENSORTIER_SOCKET";
const LIBRARY: &str = "libtensortier_preload.so";
/// Where a package of the distribution puts it.
const INSTALLED: &str = "/usr/lib/tensortier";
/// The dynamic linker's: the library says why it needs both.
const LISTS: [&str; 2] = ["LD_AUDIT", "LD_PRELOAD"];

/// Puts the library behind what the job has in its lists already, and says where the agent listens, whom it tells of copies.
///
/// # Errors
/// It is nowhere it is looked for, or the dynamic linker could not be told of its path.
pub(super) fn prepare(environment: &mut BTreeMap<OsString, OsString>, socket: &Path) -> Result<()> {
    let named = env::var_os(VARIABLE).map(PathBuf::from);
    let own = env::current_exe().unwrap_or_default();
    let library = find(named.as_deref(), &own).with_context(|| match &named {
        Some(named) => format!("{VARIABLE} names {}, which is no file", named.display()),
        None => format!(
            "{LIBRARY} is not in {INSTALLED} nor beside {} (cargo build builds it there); name it with {VARIABLE}",
            own.display()
        ),
    })?;
    let path = std::path::absolute(&library).with_context(|| format!("cannot find {}", library.display()))?;
    let socket = std::path::absolute(socket).with_context(|| format!("cannot find {}", socket.display()))?;
    environment.insert(SOCKET.into(), socket.into());
    activate(environment, &path)
}

fn find(named: Option<&Path>, program: &Path) -> Option<PathBuf> {
    let files = match named {
        Some(named) => vec![named.to_owned()],
        None => program.parent().into_iter().chain([Path::new(INSTALLED)]).map(|folder| folder.join(LIBRARY)).collect(),
    };
    files.into_iter().find(|file| file.is_file())
}

fn activate(environment: &mut BTreeMap<OsString, OsString>, library: &Path) -> Result<()> {
    // Colons and spaces separate, a dollar sign begins a variable of the linker's.
    let plain =
        library.as_os_str().as_bytes().iter().all(|byte| !matches!(byte, b':' | b'$') && byte.is_ascii_graphic());
    ensure!(
        plain,
        "the dynamic linker cannot be told of {library:?} (space, colon, dollar sign or the like in it): \
         name a copy elsewhere with {VARIABLE}"
    );
    for name in LISTS {
        let mut list = environment.get(OsStr::new(name)).filter(|list| !list.is_empty()).cloned().unwrap_or_default();
        if !list.is_empty() {
            list.push(":");
        }
        list.push(library);
        environment.insert(name.into(), list);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_users_own_libraries_come_first() {
        let mut environment =
            BTreeMap::from([("LD_PRELOAD".into(), "/a.so /b.so".into()), ("LD_AUDIT".into(), OsString::new())]);
        activate(&mut environment, Path::new("/x/ours.so")).unwrap();
        assert_eq!(environment[OsStr::new("LD_PRELOAD")], "/a.so /b.so:/x/ours.so");
        assert_eq!(environment[OsStr::new("LD_AUDIT")], "/x/ours.so");
    }

    #[test]
    fn a_path_that_the_linker_would_split_is_refused() {
        for path in ["/my libs/ours.so", "/a:b/ours.so", "/$ORIGIN/ours.so", "/tab\there.so"] {
            let mut environment = BTreeMap::new();
            let said = activate(&mut environment, Path::new(path)).unwrap_err().to_string();
            assert!(said.contains(VARIABLE) && environment.is_empty(), "{said}");
        }
    }

    #[test]
    fn the_library_is_beside_the_program_or_where_it_is_named() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("tensortier");
        let library = root.path().join(LIBRARY);
        assert_eq!(find(None, &program).filter(|found| found.starts_with(root.path())), None);
        std::fs::write(&library, "").unwrap();
        assert_eq!(find(None, &program), Some(library.clone()));
        assert_eq!(find(Some(&library), Path::new("/")), Some(library));
        assert_eq!(find(Some(root.path()), &program), None, "a folder is no library");
    }
}
