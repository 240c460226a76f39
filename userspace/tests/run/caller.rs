//! Under sudo the job is the user's. sudo itself needs accounts and a policy; a shell named `sudo` between a user's
//! process and root's looks the same to `run`.

use std::{
    fs,
    io::Read,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::{Command, Stdio},
};

use crate::{config, ran, socket};

const USER: u32 = 4242;

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/bash\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// What `probe` prints when it is run under a sudo that has reset environment and PATH.
fn under_sudo(folder: &Path, options: &str) -> String {
    assert!(nix::unistd::geteuid().is_root(), "these tests need root, as sudo gives it");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    for bin in ["users", "roots"] {
        fs::create_dir(folder.join(bin)).unwrap();
    }
    script(
        &folder.join("users/probe"),
        "echo probe=users; id -u; id -g; id -G; umask; pwd; echo \"$VIRTUAL_ENV|$HOME|$EXTRA|$SUDO_UID\"; \
         grep ^CapEff /proc/self/status",
    );
    script(&folder.join("roots/probe"), "echo probe=roots");
    fs::copy("/bin/bash", folder.join("sudo")).unwrap();
    script(
        &folder.join("as-root"),
        &format!(
            "export PATH={folder}/roots:/usr/bin:/bin HOME=/root SUDO_UID={USER} SUDO_GID={USER} EXTRA=given\n\
             unset VIRTUAL_ENV; umask 0077\n{tensortier} run {options} -- probe\nexit $?",
            folder = folder.display(),
            tensortier = env!("CARGO_BIN_EXE_tensortier")
        ),
    );
    // The user's shell starts sudo, then gives up root, which a real one never had.
    let shell = format!(
        "umask 0027; cd {folder}/users; (until grep -q '^Uid:.{USER}' /proc/$$/status; do sleep 0.02; done; \
         exec {folder}/sudo {folder}/as-root) & \
         exec setpriv --reuid {USER} --regid {USER} --groups {USER},27,44 sleep 60 >/dev/null 2>&1",
        folder = folder.display()
    );
    let mut user = Command::new("bash")
        .args(["-c", &shell])
        .env_clear()
        .env("PATH", format!("{}/users:/usr/bin:/bin", folder.display()))
        .env("HOME", "/home/u")
        .env("VIRTUAL_ENV", "/home/u/venv")
        .env("TENSORTIER_CONFIG", config())
        .env("TENSORTIER_SOCKET", socket())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = String::new();
    user.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    user.kill().unwrap();
    user.wait().unwrap();
    out
}

#[test]
fn the_job_is_the_users() {
    let folder = tempfile::tempdir().unwrap();
    let out = under_sudo(folder.path(), "");
    let lines: Vec<_> = out.lines().collect();
    let (users, id) = (folder.path().join("users").display().to_string(), USER.to_string());
    assert_eq!(lines[0], "probe=users", "{out}");
    assert_eq!(lines[1..3], [&id, &id]);
    assert_eq!(lines[3], format!("{USER} 27 44"));
    assert_eq!(lines[4], "0027");
    assert_eq!(lines[5], users);
    assert_eq!(lines[6], "/home/u/venv|/home/u|given|");
    assert_eq!(lines[7], "CapEff:\t0000000000000000");
}

#[test]
fn the_summary_file_is_the_users() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("summary.json");
    under_sudo(folder.path(), &format!("--summary-json {}", path.display()));
    let file = fs::metadata(&path).unwrap();
    assert_eq!((file.uid(), file.gid()), (USER, USER));
}

/// `run` as a user without rights, of a copy that such a user may execute.
fn as_user(options: &[&str]) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.path().join("tensortier");
    fs::copy(env!("CARGO_BIN_EXE_tensortier"), &copy).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "4242", "--regid", "4242", "--clear-groups"]).arg(copy).arg("run").args(options);
    ran(command
        .args(["--", "sh", "-c", "id -u; exit 9"])
        .env_remove("TENSORTIER_CONFIG")
        .env("TENSORTIER_SOCKET", "/nonexistent/agent.sock")
        .stdin(Stdio::null()))
}

#[test]
fn without_rights_the_job_runs_unwatched_and_one_line_says_why() {
    let (code, out, err) = as_user(&[]);
    assert_eq!((code, out.as_str()), (9, "4242\n"), "{err}");
    assert_eq!(err.lines().filter(|line| line.starts_with("tensortier: the job runs unwatched: ")).count(), 1, "{err}");
}

#[test]
fn a_job_that_requires_the_agent_is_refused_without_it() {
    let (code, out, err) = as_user(&["--require"]);
    assert_eq!((code, out.as_str()), (125, ""), "{err}");
    assert!(err.contains("--require"), "{err}");
}
