//! Whose the job is. Under `sudo` it belongs to the user who typed the command: their identity, groups, mask and
//! environment, which `env_reset` and `secure_path` replaced on the way here. The environment as it was is still with
//! the `sudo` process itself, in `/proc/PID/environ`.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use nix::unistd::{Gid, Uid, User, geteuid, getgrouplist};

use crate::units::read_text;

/// A user's identity for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// The user a job belongs to, and what of theirs it gets. The working directory is this process's own: `sudo` keeps it.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The identity to take on; `None` is this process's own.
    pub ids: Option<Ids>,
    /// The environment.
    pub environment: BTreeMap<OsString, OsString>,
    /// The file mode mask; `None` is this process's own.
    pub umask: Option<u32>,
    /// What could not be found out, for the user to read.
    pub warnings: Vec<String>,
}

/// Why the caller could not be found out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CallerError {
    /// `SUDO_UID` or `SUDO_GID` is no id.
    #[error("{name}={value:?} names no id, so the job's user is unknown; unset SUDO_UID to run it as root")]
    BadId {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
}

/// What `sudo` or PAM set in the environment of what it runs; everything else there was wanted by whoever called.
const SET_BY_SUDO: [&str; 12] =
    ["HOME", "LANG", "LANGUAGE", "LOGNAME", "MAIL", "OLDPWD", "PATH", "PWD", "SHELL", "TERM", "USER", "USERNAME"];

impl Caller {
    /// Finds the caller of this process.
    ///
    /// # Errors
    /// `SUDO_UID` or `SUDO_GID` is set and no number.
    pub fn find() -> Result<Self, CallerError> {
        let given = std::env::vars_os().collect();
        if !geteuid().is_root() {
            return Ok(Self { environment: given, ..Self::default() });
        }
        Self::behind_sudo(Path::new("/proc"), std::process::id(), given)
    }

    fn behind_sudo(proc: &Path, own: u32, given: BTreeMap<OsString, OsString>) -> Result<Self, CallerError> {
        let Some(user) = id(&given, "SUDO_UID")? else {
            return Ok(Self { environment: given, ..Self::default() });
        };
        let mut caller = Self::default();
        let account = User::from_uid(Uid::from_raw(user)).ok().flatten();
        let sudo = topmost_sudo(proc, own);
        let shell = sudo.and_then(|sudo| Status::read(proc, sudo)).and_then(|sudo| Status::read(proc, sudo.parent));
        // Only the user's own process speaks for the user: cron, say, calls sudo with another one's mask.
        let shell = shell.filter(|shell| shell.user == user);
        caller.umask = shell.as_ref().and_then(|shell| shell.umask);

        let group = id(&given, "SUDO_GID")?.or(account.as_ref().map(|account| account.gid.as_raw())).unwrap_or(user);
        let groups = match (shell, &account) {
            (Some(shell), _) => shell.groups,
            (None, Some(account)) => groups_of(&account.name, group),
            (None, None) => vec![group],
        };
        caller.ids = Some(Ids { user, group, groups });

        match sudo.and_then(|sudo| fs::read(proc.join(sudo.to_string()).join("environ")).ok()) {
            Some(environ) if !environ.is_empty() => {
                caller.environment = parse_environ(&environ);
                caller.environment.extend(given.into_iter().filter(|(name, _)| !set_by_sudo(name)));
            }
            _ => {
                caller.environment =
                    given.into_iter().filter(|(name, _)| !name.as_bytes().starts_with(b"SUDO_")).collect();
                caller.warnings.push(
                    "the sudo process is not in sight, so the job gets sudo's PATH and environment, not yours; \
                     `sudo env PATH=\"$PATH\" tensortier run …` brings the PATH over"
                        .to_owned(),
                );
                if let Some(account) = account {
                    let home = account.dir.into_os_string();
                    let shell = account.shell.into_os_string();
                    let own = [("HOME", home), ("SHELL", shell), ("USER", account.name.clone().into())];
                    caller.environment.extend(own.map(|(name, value)| (name.into(), value)));
                    caller.environment.insert("LOGNAME".into(), account.name.into());
                }
            }
        }
        Ok(caller)
    }

    /// A variable of the job's environment.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.get(OsStr::new(name)).map(OsString::as_os_str)
    }
}

fn id(environment: &BTreeMap<OsString, OsString>, name: &'static str) -> Result<Option<u32>, CallerError> {
    let Some(value) = environment.get(OsStr::new(name)) else { return Ok(None) };
    let number = value.to_str().and_then(|value| value.parse().ok());
    // The last id is no id: to setresuid(2) it means "leave as it is".
    let number = number.filter(|&number: &u32| number != u32::MAX);
    number.map(Some).ok_or_else(|| CallerError::BadId { name, value: value.to_string_lossy().into_owned() })
}

fn set_by_sudo(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    [b"SUDO_".as_slice(), b"LC_"].iter().any(|prefix| bytes.starts_with(prefix))
        || SET_BY_SUDO.iter().any(|set| bytes == set.as_bytes())
        || bytes == b"_"
        || bytes == b"SHLVL"
}

/// The `sudo` nearest above `own`, and from there the topmost in a row: with `use_pty` there are two.
fn topmost_sudo(proc: &Path, own: u32) -> Option<u32> {
    let mut found = None;
    let mut pid = Status::read(proc, own)?.parent;
    // A tree read while it changes could lead in a circle.
    for _ in 0..64 {
        let status = Status::read(proc, pid)?;
        match (matches!(status.name.as_str(), "sudo" | "sudo-rs"), found) {
            (true, _) => found = Some(pid),
            (false, Some(_)) => return found,
            (false, None) => {}
        }
        if status.parent == 0 {
            return found;
        }
        pid = status.parent;
    }
    found
}

/// The lines of `/proc/PID/status` that matter here.
struct Status {
    name: String,
    parent: u32,
    user: u32,
    umask: Option<u32>,
    groups: Vec<u32>,
}

impl Status {
    fn read(proc: &Path, pid: u32) -> Option<Self> {
        let path: PathBuf = proc.join(pid.to_string()).join("status");
        let text = read_text(path).ok()?;
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        Some(Self {
            name: field("Name")?.to_owned(),
            parent: field("PPid")?.parse().ok()?,
            user: field("Uid")?.split_whitespace().next()?.parse().ok()?,
            umask: field("Umask").and_then(|mask| u32::from_str_radix(mask, 8).ok()),
            groups: field("Groups")?.split_whitespace().filter_map(|group| group.parse().ok()).collect(),
        })
    }
}

fn groups_of(name: &str, group: u32) -> Vec<u32> {
    let groups = std::ffi::CString::new(name).ok().and_then(|name| getgrouplist(&name, Gid::from_raw(group)).ok());
    groups.map_or(vec![group], |groups| groups.into_iter().map(Gid::as_raw).collect())
}

fn parse_environ(bytes: &[u8]) -> BTreeMap<OsString, OsString> {
    let pair = |entry: &[u8]| {
        let equals = entry.iter().position(|&byte| byte == b'=').filter(|&at| at > 0)?;
        Some((OsString::from_vec(entry[..equals].to_vec()), OsString::from_vec(entry[equals + 1..].to_vec())))
    };
    bytes.split(|&byte| byte == 0).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn process(proc: &Path, pid: u32, name: &str, parent: u32, user: u32, environ: &str) {
        let folder = proc.join(pid.to_string());
        fs::create_dir(&folder).unwrap();
        let status = format!(
            "Name:\t{name}\nUmask:\t0027\nPPid:\t{parent}\nUid:\t{user}\t{user}\t{user}\t{user}\nGroups:\t{user} 27 44 \n"
        );
        fs::write(folder.join("status"), status).unwrap();
        fs::write(folder.join("environ"), environ.replace(' ', "\0")).unwrap();
    }

    fn given(pairs: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn the_users_environment_wins_and_what_was_given_to_sudo_is_kept() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        process(proc, 10, "bash", 1, 4242, "");
        process(proc, 11, "sudo", 10, 0, "PATH=/home/u/venv/bin:/bin HOME=/home/u VIRTUAL_ENV=/home/u/venv");
        process(proc, 12, "sudo", 11, 0, "PATH=/wrong");
        process(proc, 13, "env", 12, 0, "");
        process(proc, 14, "tensortier", 13, 0, "");
        let given = given(&[
            ("PATH", "/usr/sbin:/sbin"),
            ("HOME", "/root"),
            ("SUDO_UID", "4242"),
            ("SUDO_GID", "4242"),
            ("OMP_NUM_THREADS", "4"),
        ]);
        let caller = Caller::behind_sudo(proc, 14, given).unwrap();
        assert_eq!(caller.variable("PATH"), Some(OsStr::new("/home/u/venv/bin:/bin")));
        assert_eq!(caller.variable("HOME"), Some(OsStr::new("/home/u")));
        assert_eq!(caller.variable("VIRTUAL_ENV"), Some(OsStr::new("/home/u/venv")));
        assert_eq!(caller.variable("OMP_NUM_THREADS"), Some(OsStr::new("4")));
        assert_eq!(caller.variable("SUDO_UID"), None);
        assert_eq!(caller.umask, Some(0o27));
        assert_eq!(caller.ids, Some(Ids { user: 4242, group: 4242, groups: vec![4242, 27, 44] }));
        assert!(caller.warnings.is_empty());
    }

    #[test]
    fn without_sudo_in_sight_the_given_environment_serves_and_that_is_said() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 14, "tensortier", 0, 0, "");
        let given = given(&[("PATH", "/usr/bin"), ("SUDO_UID", "4242"), ("SUDO_GID", "4243")]);
        let caller = Caller::behind_sudo(proc.path(), 14, given).unwrap();
        assert_eq!(caller.variable("PATH"), Some(OsStr::new("/usr/bin")));
        assert_eq!(caller.ids.unwrap().group, 4243);
        assert_eq!(caller.warnings.len(), 1);
    }

    #[test]
    fn a_bad_id_is_refused() {
        for value in ["", "-1", "root", "4294967295"] {
            let refused = Caller::behind_sudo(Path::new("/nowhere"), 1, given(&[("SUDO_UID", value)]));
            assert!(matches!(refused, Err(CallerError::BadId { .. })), "{value}");
        }
    }
}
