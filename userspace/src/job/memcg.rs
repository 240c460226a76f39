//! The memory control group that is a job's alone: what DAMON's schemes can tell its pages by.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::running::Facts;
use crate::units::Pid;

/// The path, below its mount, of the memory control group that all of `pids` are in and nobody else. The program that
/// started one of them and waits in the group with it is let pass.
///
/// # Errors
/// Why there is none, with the way out.
pub fn own(root: &Path, pids: &BTreeSet<Pid>) -> Result<String, String> {
    let way_out = "start it in one of its own, with `systemd-run --scope`, or attach a control group";
    let proc = root.join("proc");
    let mut groups = pids.iter().filter_map(|pid| Some((*pid, of(&proc, *pid)?)));
    let (_, group) = groups.next().ok_or("no memory control group of it can be read")?;
    if let Some((pid, other)) = groups.find(|(_, other)| *other != group) {
        return Err(format!("process {pid} is in control group {} and others are in {}", other.path, group.path));
    }
    if group.path == "/" {
        return Err(format!("it is in the root control group, with everybody; {way_out}"));
    }
    let folder = group.folder(root).ok_or_else(|| {
        format!(
            "control group {} does not account memory; echo +memory > cgroup.subtree_control of the one above",
            group.path
        )
    })?;
    let path = folder.join("cgroup.procs");
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let started = |pid: Pid| pids.iter().any(|of| Facts::read(&proc, *of).is_some_and(|facts| facts.parent == pid));
    let others = text.lines().filter_map(|line| line.trim().parse().ok().map(Pid)).filter(|pid| !pids.contains(pid));
    match others.into_iter().find(|pid| !started(*pid)) {
        Some(pid) => {
            Err(format!("process {pid}, which is not the job's, is in control group {} too; {way_out}", group.path))
        }
        None => Ok(group.path),
    }
}

/// A memory control group.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    path: String,
    /// Whether version 1 accounts memory.
    old: bool,
}

impl Group {
    /// Its folder; `None` where memory is not accounted to it.
    fn folder(&self, root: &Path) -> Option<PathBuf> {
        let mounts: &[&str] = if self.old { &["memory"] } else { &["", "unified"] };
        // Files that only an accounted group has.
        let file = if self.old { "memory.usage_in_bytes" } else { "memory.current" };
        let below = self.path.trim_start_matches('/');
        let folders = mounts.iter().map(|mount| root.join("sys/fs/cgroup").join(mount).join(below));
        folders.into_iter().find(|folder| folder.join(file).exists())
    }
}

/// The group that memory of a process is accounted to: that of version 1's memory controller, where it is mounted.
fn of(proc: &Path, pid: Pid) -> Option<Group> {
    let text = fs::read_to_string(proc.join(pid.to_string()).join("cgroup")).ok()?;
    let lines = || text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let old = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let found = old.or_else(|| lines().find(|(controllers, _)| controllers.is_empty()))?;
    Some(Group { path: found.1.to_owned(), old: old.is_some() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn put(self, path: &str, text: &str) -> Self {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn process(self, pid: u32, parent: u32, groups: &str) -> Self {
            let status = format!("Name:\tx\nPPid:\t{parent}\nUid:\t0 0 0 0\n");
            self.put(&format!("proc/{pid}/cgroup"), groups).put(&format!("proc/{pid}/status"), &status)
        }

        fn own(&self, pids: &[u32]) -> Result<String, String> {
            own(self.0.path(), &pids.iter().copied().map(Pid).collect())
        }
    }

    #[test]
    fn a_group_of_its_own_is_found_in_either_version() {
        let tree = Tree::new().process(7, 1, "0::/train/a\n").process(8, 7, "0::/train/a\n");
        let tree =
            tree.put("sys/fs/cgroup/train/a/memory.current", "0").put("sys/fs/cgroup/train/a/cgroup.procs", "7\n8\n");
        assert_eq!(tree.own(&[7, 8]).unwrap(), "/train/a");
        let tree = Tree::new().process(7, 1, "9:name=systemd:/\n4:cpu,memory:/b\n0::/\n");
        let tree = tree
            .put("sys/fs/cgroup/memory/b/memory.usage_in_bytes", "0")
            .put("sys/fs/cgroup/memory/b/cgroup.procs", "7\n");
        assert_eq!(tree.own(&[7]).unwrap(), "/b");
    }

    #[test]
    fn a_group_that_others_share_or_that_accounts_nothing_is_refused_with_the_way_out() {
        let tree = Tree::new()
            .process(7, 6, "0::/a\n")
            .process(8, 1, "0::/a\n")
            .process(9, 1, "0::/b\n")
            .process(5, 1, "0::/\n");
        let said = tree.own(&[7]).unwrap_err();
        assert!(said.contains("/a") && said.contains("+memory"), "{said}");
        let tree = tree.put("sys/fs/cgroup/a/memory.current", "0").put("sys/fs/cgroup/a/cgroup.procs", "6\n7\n8\n");
        let said = tree.own(&[7]).unwrap_err();
        assert!(said.contains("process 8") && said.contains("systemd-run --scope"), "{said}");
        assert_eq!(tree.own(&[7, 8]).unwrap(), "/a", "6 started 7");
        assert!(tree.own(&[7, 9]).unwrap_err().contains("/b"));
        assert!(tree.own(&[5]).unwrap_err().contains("root control group"));
        assert!(tree.own(&[4]).is_err());
    }
}
