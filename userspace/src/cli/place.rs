//! The agent's folder and the files beside its socket, safe whatever the umask is and whoever else uses the machine.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    libc::O_NOFOLLOW,
};

/// Makes the socket's folder, which every user may enter and only root may write, and refuses one that others may write:
/// they could put their own files in the place of the agent's.
pub fn folder(socket: &Path) -> Result<()> {
    let folder = match socket.parent().context("the socket has no folder")? {
        folder if folder.as_os_str().is_empty() => Path::new("."),
        folder => folder,
    };
    if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above).with_context(|| format!("cannot make {}", above.display()))?;
    }
    match DirBuilder::new().mode(0o755).create(folder) {
        // The umask may have taken from it.
        Ok(()) => fs::set_permissions(folder, Permissions::from_mode(0o755)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
    .with_context(|| format!("cannot make {}", folder.display()))?;
    let there = fs::metadata(folder).with_context(|| format!("cannot look at {}", folder.display()))?;
    ensure!(
        there.uid() == 0 && there.mode() & 0o022 == 0,
        "{} can be written by others than root (owner {}, mode {:o}), who could take the agent's place; \
         use a folder of root's own with mode 755",
        folder.display(),
        there.uid(),
        there.mode() & 0o7777
    );
    Ok(())
}

/// The lock's path: the socket's whole name and more, so that it is never the socket's own nor that of another socket.
fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Takes the lock beside the socket, after an agent that is starting or ending there, within `patience`; `None` where
/// one serves. Only root may open it, so nobody else can hold it.
pub fn take_turn(socket: &Path, patience: Duration) -> Result<Option<Flock<File>>> {
    let path = lock_path(socket);
    let options =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).custom_flags(O_NOFOLLOW).clone();
    let mut file = options.open(&path).and_then(|file| {
        file.set_permissions(Permissions::from_mode(0o600))?;
        Ok(file)
    });
    let start = Instant::now();
    loop {
        let opened = file.with_context(|| format!("cannot open {}", path.display()))?;
        match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((again, Errno::EWOULDBLOCK)) => file = Ok(again),
            Err((_, errno)) => return Err(errno).with_context(|| format!("cannot lock {}", path.display())),
        }
        if UnixStream::connect(socket).is_ok() {
            return Ok(None);
        }
        if start.elapsed() > patience {
            bail!("a process holds {} and has served nobody for {patience:?}; `fuser` names it", path.display());
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The log of an agent that `run` starts.
pub fn log(path: &Path) -> Result<File> {
    let options = OpenOptions::new().create(true).append(true).mode(0o644).custom_flags(O_NOFOLLOW).clone();
    options.open(path).with_context(|| format!("cannot write the agent's log {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_lock_is_named_after_the_whole_socket() {
        let path = |socket: &str| lock_path(Path::new(socket));
        assert_eq!(path("/run/a.one"), Path::new("/run/a.one.lock"));
        assert_ne!(path("/run/a.one"), path("/run/a.two"));
        assert_ne!(path("/run/a.lock"), Path::new("/run/a.lock"));
    }

    #[test]
    fn a_lock_is_for_its_owner_alone_and_a_log_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a.sock");
        fs::write(lock_path(&socket), "").unwrap();
        fs::set_permissions(lock_path(&socket), Permissions::from_mode(0o666)).unwrap();
        let held = take_turn(&socket, Duration::ZERO).unwrap().unwrap();
        assert_eq!(held.metadata().unwrap().mode() & 0o777, 0o600, "what an older one left");
        let said = take_turn(&socket, Duration::ZERO).unwrap_err().to_string();
        assert!(said.contains("a.sock.lock") && said.contains("served nobody"), "{said}");

        let target = folder.path().join("target");
        std::os::unix::fs::symlink(&target, folder.path().join("a.log")).unwrap();
        assert!(log(&folder.path().join("a.log")).is_err() && !target.exists());
    }
}
