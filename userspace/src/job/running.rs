//! Processes that run already: whose they are, what they are called, which belong together.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use crate::units::{NodeSet, Pid, parse_list, printable, read_text};

/// What `/proc/PID/status` says of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The first 15 bytes of its program's name, fit for a terminal.
    pub name: String,
    /// Its parent.
    pub parent: Pid,
    /// Its user, where real, effective, saved and file system user are one; none for a program that changed its user.
    pub user: Option<u32>,
    /// The nodes that its cpuset allows.
    pub nodes: NodeSet,
    /// The CPUs that it may run on.
    pub cpus: Vec<u32>,
    /// Whether it is a kernel thread or a zombie: it has no memory.
    pub empty: bool,
}

impl Facts {
    /// Reads a process under `proc`; `None` where there is none.
    pub fn read(proc: &Path, pid: Pid) -> Option<Self> {
        Self::parse(&read_text(proc.join(pid.to_string()).join("status")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let users: Vec<u32> = field("Uid")?.split_whitespace().filter_map(|user| user.parse().ok()).collect();
        Some(Self {
            name: printable(field("Name")?),
            parent: Pid(field("PPid")?.parse().ok()?),
            user: users.first().copied().filter(|first| users.len() == 4 && users.iter().all(|user| user == first)),
            nodes: field("Mems_allowed_list").and_then(|nodes| nodes.parse().ok()).unwrap_or_default(),
            cpus: field("Cpus_allowed_list").and_then(|cpus| parse_list(cpus).ok()).unwrap_or_default(),
            empty: field("VmSize").is_none(),
        })
    }
}

/// All processes under `proc`.
pub fn all(proc: &Path) -> BTreeMap<Pid, Facts> {
    let Ok(entries) = fs::read_dir(proc) else { return BTreeMap::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid));
    pids.filter_map(|pid| Some((pid, Facts::read(proc, pid)?))).collect()
}

/// The processes below `roots` that are not yet among them; what does not `belong`, and all below that, is left out.
pub fn below(
    roots: &BTreeSet<Pid>,
    processes: &BTreeMap<Pid, Facts>,
    belongs: impl Fn(&Facts) -> bool,
) -> BTreeSet<Pid> {
    let mut found = roots.clone();
    loop {
        let more: Vec<Pid> = processes
            .iter()
            .filter(|(pid, facts)| !found.contains(pid) && found.contains(&facts.parent) && !facts.empty)
            .filter(|(_, facts)| belongs(facts))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return found.difference(roots).copied().collect();
        }
        found.extend(more);
    }
}

/// The processes of a control group and of those below it, of either version.
///
/// # Errors
/// It is no control group, or cannot be read.
pub fn of_cgroup(folder: &Path) -> io::Result<BTreeSet<Pid>> {
    let text = fs::read_to_string(folder.join("cgroup.procs"))?;
    let mut pids: BTreeSet<Pid> = text.lines().filter_map(|line| line.trim().parse().ok().map(Pid)).collect();
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // One that has just been removed has no processes.
            pids.extend(of_cgroup(&entry.path()).unwrap_or_default());
        }
    }
    // 0 stands for a process of another pid namespace.
    pids.remove(&Pid(0));
    Ok(pids)
}

/// The folder of a control group: as given where that is one, else under the places where they are mounted.
pub fn cgroup_folder(root: &Path, name: &Path) -> Option<PathBuf> {
    let relative = name.strip_prefix("/").unwrap_or(name);
    // Nothing named is not the root of all groups.
    if name.as_os_str().is_empty() || relative.components().any(|part| part.as_os_str() == "..") {
        return None;
    }
    let mounts = ["", "sys/fs/cgroup", "sys/fs/cgroup/unified", "sys/fs/cgroup/memory", "sys/fs/cgroup/systemd"];
    let folders = mounts.iter().map(|mount| root.join(mount).join(relative));
    folders.into_iter().find(|folder| folder.join("cgroup.procs").is_file())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MASKS: &str = "Cpus_allowed_list:\t4-5,9\nMems_allowed_list:\t0,2\n";

    fn process(proc: &Path, pid: u32, parent: u32, users: &str) {
        let folder = proc.join(pid.to_string());
        fs::create_dir(&folder).unwrap();
        let text = format!("Name:\tpy thon\nPPid:\t{parent}\nUid:\t{users}\nVmSize:\t  100 kB\n{MASKS}");
        fs::write(folder.join("status"), text).unwrap();
    }

    #[test]
    fn facts_are_read_and_a_program_that_changes_its_user_has_none() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 5, 1, "7\t7\t7\t7");
        process(proc.path(), 6, 1, "7\t0\t0\t0");
        let facts = Facts::read(proc.path(), Pid(5)).unwrap();
        assert_eq!((facts.name.as_str(), facts.parent, facts.user), ("py thon", Pid(1), Some(7)));
        assert_eq!((facts.nodes.to_string().as_str(), facts.cpus.as_slice()), ("0,2", [4, 5, 9].as_slice()));
        assert_eq!(Facts::read(proc.path(), Pid(6)).unwrap().user, None);
        assert_eq!(Facts::read(proc.path(), Pid(7)), None);
        let kernel_thread = Facts::parse("Name:\tkswapd0\nPPid:\t2\nUid:\t0\t0\t0\t0\n").unwrap();
        assert!(kernel_thread.empty);
    }

    #[test]
    fn a_name_is_bytes_and_is_made_fit_for_a_terminal() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 5, 1, "7\t7\t7\t7");
        // The kernel cuts a name at 15 bytes, in the middle of a character if it falls so.
        let name = [b"Name:\ta\x1b[2J".as_slice(), "学ロ".as_bytes().split_last().unwrap().1, b"\n"].concat();
        let rest = fs::read(proc.path().join("5/status")).unwrap();
        fs::write(proc.path().join("5/status"), [name, rest[b"Name:\tpy thon\n".len()..].to_vec()].concat()).unwrap();
        assert_eq!(Facts::read(proc.path(), Pid(5)).unwrap().name, "a\\u{1b}[2J学\u{fffd}");
        assert_eq!(printable("a\"b\\c'é \u{202e}"), "a\"b\\c'é \\u{202e}");
    }

    #[test]
    fn the_tree_below_is_found_whatever_the_order() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, parent) in [(9, 30), (30, 20), (20, 10), (10, 1), (40, 1)] {
            process(proc.path(), pid, parent, "0\t0\t0\t0");
        }
        let tree = below(&[Pid(10)].into(), &all(proc.path()), |_| true);
        assert_eq!(tree, [Pid(9), Pid(20), Pid(30)].into());
    }

    #[test]
    fn what_does_not_belong_is_left_out_with_all_below_it() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, parent, user) in [(10, 1, 7), (20, 10, 7), (30, 10, 0), (40, 30, 7)] {
            process(proc.path(), pid, parent, &format!("{user}\t{user}\t{user}\t{user}"));
        }
        process(proc.path(), 50, 10, "7\t0\t0\t0");
        let tree = below(&[Pid(10)].into(), &all(proc.path()), |facts| facts.user == Some(7));
        assert_eq!(tree, [Pid(20)].into(), "30 and 50 changed their user, and 40 is theirs");
    }

    #[test]
    fn a_group_has_those_of_its_subgroups_too() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/fs/cgroup/memory/train");
        fs::create_dir_all(folder.join("rank0")).unwrap();
        fs::write(folder.join("cgroup.procs"), "12\n0\n").unwrap();
        fs::write(folder.join("rank0/cgroup.procs"), "13\n").unwrap();
        let found = cgroup_folder(root.path(), Path::new("/train")).unwrap();
        assert_eq!(of_cgroup(&found).unwrap(), [Pid(12), Pid(13)].into());
        assert_eq!(cgroup_folder(root.path(), Path::new("../train")), None);
        assert_eq!(cgroup_folder(root.path(), Path::new("/nothing")), None);
        fs::write(root.path().join("sys/fs/cgroup/memory/cgroup.procs"), "").unwrap();
        assert!(cgroup_folder(root.path(), Path::new("/")).is_some());
        assert_eq!(cgroup_folder(root.path(), Path::new("")), None);
    }
}
