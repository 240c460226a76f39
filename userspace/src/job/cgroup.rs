//! The memory limits of the control groups that a process is in, version 2, its own group and all above it.
//!
//! A group is charged for a page wherever that lies: memory on CXL counts as memory in DRAM does, and a page that moves
//! between them neither frees nor takes any of the limit (`mem_cgroup_migrate` in mm/memcontrol.c hands the charge over).
//! So a limit bounds what a job can have of all nodes together; and near it nothing that the agent moves helps.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::units::{Pid, read_text};

/// Where version 2 is mounted: alone, or beside version 1.
const MOUNTS: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];

/// A limit of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The file that holds it: `memory.max`, at which the kernel ends processes, or `memory.high`, at which it slows them.
    pub file: PathBuf,
    /// Bytes that the group may have.
    pub bytes: u64,
    /// Bytes that it has and the kernel cannot take back for the asking: without the page cache of files and slabs.
    pub held_bytes: u64,
}

impl Limit {
    /// Bytes that are left.
    pub fn room(&self) -> u64 {
        self.bytes.saturating_sub(self.held_bytes)
    }

    /// Whether the kernel ends processes at it.
    pub fn is_hard(&self) -> bool {
        self.file.ends_with("memory.max")
    }
}

/// A group, as a folder below its mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    mount: PathBuf,
    folder: PathBuf,
}

impl Group {
    /// The limits of the group and of those above it; none where nothing limits them.
    pub fn limits(&self) -> Vec<Limit> {
        self.folder.ancestors().take_while(|folder| folder.starts_with(&self.mount)).flat_map(of_folder).collect()
    }

    /// Processes that the OOM killer ended in the group and in those below it since it was made; `None` where memory is
    /// not counted.
    pub fn oom_kills(&self) -> Option<u64> {
        field(&read_text(self.folder.join("memory.events")).ok()?, "oom_kill")
    }
}

/// The group of a process of the host under `root`; `None` where version 2 is not mounted.
pub fn of_process(root: &Path, pid: Pid) -> Option<Group> {
    let text = read_text(root.join(format!("proc/{pid}/cgroup"))).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // Of a group above the agent's own cgroup namespace nothing is mounted here.
    if Path::new(path).components().any(|part| part.as_os_str() == "..") {
        return None;
    }
    let mount = MOUNTS.iter().map(|mount| root.join(mount)).find(|mount| mount.join("cgroup.controllers").is_file())?;
    Some(Group { folder: mount.join(path), mount })
}

fn of_folder(folder: &Path) -> Vec<Limit> {
    let number = |name: &str| read_text(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // The root has none, and "max" is no number.
    let set = ["memory.max", "memory.high"].map(|name| Some((folder.join(name), number(name)?)));
    if set.iter().all(Option::is_none) {
        return Vec::new();
    }
    let Some(current) = number("memory.current") else { return Vec::new() };
    let stat = read_text(folder.join("memory.stat")).unwrap_or_default();
    let given_back = ["active_file", "inactive_file", "slab_reclaimable"].map(|name| field(&stat, name).unwrap_or(0));
    let held_bytes = given_back.into_iter().fold(current, u64::saturating_sub);
    set.into_iter().flatten().map(|(file, bytes)| Limit { file, bytes, held_bytes }).collect()
}

/// A line `NAME VALUE` of one of the group's files.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn limits(root: &Path, pid: Pid) -> Vec<Limit> {
        of_process(root, pid).map(|group| group.limits()).unwrap_or_default()
    }

    /// A host with process 7 in /slice/train.
    fn host(mount: &str, files: &[(&str, String)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put(root.path().join("proc/7/cgroup"), "4:memory:/other\n0::/slice/train\n");
        put(root.path().join(mount).join("cgroup.controllers"), "memory\n");
        for (file, text) in files {
            put(root.path().join(mount).join(file), text);
        }
        root
    }

    fn stat(file: u64) -> String {
        format!("anon 99\nfile 5\ninactive_file {file}\nactive_file 0\nslab_reclaimable {}\n", GIB / 4)
    }

    #[test]
    fn the_groups_own_limit_and_those_above_it_are_read_with_what_is_left() {
        let files = [
            ("slice/train/memory.max", format!("{}\n", 8 * GIB)),
            ("slice/train/memory.high", "max\n".to_owned()),
            ("slice/train/memory.current", format!("{}\n", 7 * GIB)),
            ("slice/train/memory.stat", stat(2 * GIB)),
            ("slice/memory.max", "max\n".to_owned()),
            ("slice/memory.high", format!("{}\n", 10 * GIB)),
            ("slice/memory.current", format!("{}\n", 9 * GIB)),
        ];
        for mount in MOUNTS {
            let root = host(mount, &files);
            // Above the mount nothing is a group.
            let above = root.path().join(mount).parent().unwrap().to_owned();
            ["memory.max", "memory.current"].iter().for_each(|file| fs::write(above.join(file), "1\n").unwrap());
            let limits = limits(root.path(), Pid(7));
            let [own, above] = limits.as_slice() else { panic!("{limits:?}") };
            assert!(own.is_hard() && own.file.ends_with("slice/train/memory.max"));
            assert_eq!((own.bytes, own.held_bytes, own.room()), (8 * GIB, 7 * GIB - 9 * GIB / 4, 13 * GIB / 4));
            assert!(!above.is_hard() && above.file.ends_with("slice/memory.high"));
            assert_eq!((above.bytes, above.room()), (10 * GIB, GIB), "without a memory.stat everything is held");
        }
    }

    #[test]
    fn where_nothing_limits_or_nothing_is_told_there_is_no_limit() {
        let current = ("slice/train/memory.current", "5\n".to_owned());
        let none = host(MOUNTS[0], &[("slice/train/memory.max", "max\n".to_owned()), current.clone()]);
        assert!(limits(none.path(), Pid(7)).is_empty() && limits(none.path(), Pid(8)).is_empty());
        let torn = host(MOUNTS[0], &[("slice/train/memory.max", "9\n".to_owned())]);
        assert!(limits(torn.path(), Pid(7)).is_empty(), "a limit without what is used says nothing");
        let above = host(MOUNTS[0], &[("slice/train/memory.max", "9\n".to_owned()), current]);
        fs::write(above.path().join("proc/7/cgroup"), "0::/../slice/train\n").unwrap();
        assert!(limits(above.path(), Pid(7)).is_empty());
        fs::write(above.path().join("proc/7/cgroup"), "4:memory:/slice/train\n").unwrap();
        assert!(limits(above.path(), Pid(7)).is_empty(), "version 1");
    }

    #[test]
    fn a_limit_that_is_over_full_has_no_room() {
        let file = PathBuf::from("/sys/fs/cgroup/a/memory.max");
        assert_eq!(Limit { file, bytes: 5, held_bytes: 7 }.room(), 0);
    }

    #[test]
    fn ended_processes_are_counted() {
        let events = "low 0\nhigh 3\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n".to_owned();
        let root = host(MOUNTS[0], &[("slice/train/memory.events", events)]);
        assert_eq!(of_process(root.path(), Pid(7)).unwrap().oom_kills(), Some(1));
        assert_eq!(of_process(host(MOUNTS[0], &[]).path(), Pid(7)).unwrap().oom_kills(), None);
    }
}
