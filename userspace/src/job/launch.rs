//! Starts a job as the user who called, and holds it before its first instruction until it is watched.

use std::{
    ffi::{CString, OsStr, OsString},
    io,
    os::{fd::RawFd, unix::ffi::OsStrExt},
};

use nix::{errno::Errno, sys::wait::waitpid, unistd::Pid};

use super::{
    caller::Caller,
    place::Place,
    signals::Signals,
    spawn::{self, Recipe, Step},
};
use crate::units;

/// Why a job did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No such command in the user's PATH.
    #[error("cannot find {command:?} (PATH of the user: {path})")]
    NotFound {
        /// As it was given.
        command: OsString,
        /// Where it was looked for.
        path: String,
    },
    /// The command is there, and the kernel refuses to run it for this user.
    #[error("cannot execute {command:?}: {source}")]
    NotExecutable {
        /// As it was given.
        command: OsString,
        /// The refusal.
        source: io::Error,
    },
    /// A step before it failed.
    #[error("cannot start {command:?}: {step}: {source}")]
    Step {
        /// As it was given.
        command: OsString,
        /// The step.
        step: &'static str,
        /// The refusal.
        source: io::Error,
    },
    /// No command was given, or an argument or a variable holds a NUL byte.
    #[error("cannot start a job: {0}")]
    Usage(&'static str),
}

impl LaunchError {
    /// The exit code that `env(1)` and `timeout(1)` give for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::Step { .. } | Self::Usage(_) => 125,
        }
    }
}

/// A job that exists and has not begun.
pub struct Waiting {
    child: spawn::Child,
    command: OsString,
    path: String,
}

/// Makes the job's process and holds it before its `execve`. Dropping what is returned ends the process.
///
/// `inherited` are the descriptors that the job shall have ([`inherited`]).
///
/// # Errors
/// The command cannot be passed to the kernel, or no process can be made.
pub fn launch(
    command: &[OsString],
    caller: &Caller,
    place: Option<&Place>,
    signals: &Signals,
    inherited: &[RawFd],
) -> Result<Waiting, LaunchError> {
    let name = command.first().filter(|name| !name.is_empty()).ok_or(LaunchError::Usage("no command was given"))?;
    let nul = |_| LaunchError::Usage("an argument or variable holds a NUL byte");
    let path = caller.variable("PATH").unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let recipe = Recipe {
        candidates: candidates(name, path).into_iter().map(CString::new).collect::<Result<_, _>>().map_err(nul)?,
        argv: command
            .iter()
            .map(|argument| CString::new(argument.as_bytes()))
            .collect::<Result<_, _>>()
            .map_err(nul)?,
        envp: caller
            .environment
            .iter()
            .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()))
            .collect::<Result<_, _>>()
            .map_err(nul)?,
        ids: caller.ids.as_ref().map(|ids| (ids.user, ids.group, ids.groups.clone())),
        umask: caller.umask,
        mempolicy: place.map(|place| place.policy().arguments()),
        mask: signals.original(),
        keep: inherited.to_vec(),
        ignore_child: signals.child_was_ignored(),
    };
    let child = spawn::spawn(&recipe).map_err(|source| LaunchError::Step {
        command: name.clone(),
        step: "no process could be made",
        source,
    })?;
    Ok(Waiting { child, command: name.clone(), path: path.to_string_lossy().into_owned() })
}

impl Waiting {
    /// The job's process id.
    pub fn pid(&self) -> units::Pid {
        units::Pid(self.child.pid.as_raw() as u32)
    }

    /// Lets the job run its command.
    ///
    /// # Errors
    /// The command was not found or not executed, or the user's identity or the place could not be taken on.
    pub fn release(self) -> Result<Pid, LaunchError> {
        let Self { child, command, path } = self;
        let pid = child.pid;
        let failed = match child.release() {
            Ok(Ok(())) => return Ok(pid),
            Ok(Err(failed)) => failed,
            Err(source) => (Step::Exec, source),
        };
        // It has ended; its status says nothing more.
        let _ = waitpid(pid, None);
        let (step, source) = failed;
        let step = match step {
            Step::Groups => "the user's groups could not be taken on",
            Step::Group => "the user's group could not be taken on",
            Step::User => "the user's identity could not be taken on",
            Step::Mempolicy if source.raw_os_error() == Some(Errno::EINVAL as i32) => {
                "the kernel refused --place (weighted-interleave needs Linux 6.9, and a cpuset must allow the nodes)"
            }
            Step::Mempolicy => "the kernel refused --place",
            Step::Exec if source.kind() == io::ErrorKind::NotFound => {
                return Err(LaunchError::NotFound { command, path });
            }
            Step::Exec => return Err(LaunchError::NotExecutable { command, source }),
        };
        Err(LaunchError::Step { command, step, source })
    }
}

/// The descriptors that this process was started with. Call it before anything is opened.
pub fn inherited() -> Vec<RawFd> {
    let open = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let fds: Vec<RawFd> = entries.filter_map(open).collect();
    // The folder's own descriptor is in the listing, and closed by now.
    fds.into_iter().filter(|fd| std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok()).collect()
}

/// The paths at which `execvp` would look for `name`.
fn candidates(name: &OsStr, path: &OsStr) -> Vec<Vec<u8>> {
    let name = name.as_bytes();
    if name.contains(&b'/') {
        return vec![name.to_vec()];
    }
    let folders = path.as_bytes().split(|&byte| byte == b':');
    // An empty entry is the working directory.
    folders.map(|folder| if folder.is_empty() { name.to_vec() } else { [folder, b"/", name].concat() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_searched_in_order_and_a_slash_ends_the_search() {
        let at = |name: &str, path: &str| candidates(OsStr::new(name), OsStr::new(path));
        assert_eq!(at("python", "/a::/b"), [b"/a/python".to_vec(), b"python".to_vec(), b"/b/python".to_vec()]);
        assert_eq!(at("./x", "/a"), [b"./x".to_vec()]);
    }
}
