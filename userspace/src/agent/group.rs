//! A job's control group: what its limits leave it, and what it is told before they are reached.

use std::path::Path;

use crate::{
    job::cgroup::{self, Limit},
    units::{Pid, show_bytes},
};

/// The group of a job's first process.
#[derive(Debug, Default)]
pub(super) struct Group {
    group: Option<cgroup::Group>,
    limits: Vec<Limit>,
    /// Processes that the OOM killer had ended when the job began, and now.
    kills: Option<(u64, u64)>,
}

impl Group {
    /// Reads the group of a process. What was read of one that has been removed stays.
    pub fn read(&mut self, root: &Path, pid: Pid) {
        let Some(group) = cgroup::of_process(root, pid) else { return };
        self.limits = group.limits();
        if self.group.as_ref() != Some(&group) {
            (self.group, self.kills) = (Some(group), None);
        }
        self.read_kills();
    }

    /// Reads again what the OOM killer did: a process of the job has ended.
    pub fn read_kills(&mut self) {
        if let Some(now) = self.group.as_ref().and_then(cgroup::Group::oom_kills) {
            self.kills = Some((self.kills.map_or(now, |(before, _)| before), now));
        }
    }

    /// The limits, the group's own first.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The most that a job which holds so many bytes can ever have.
    pub fn ceiling(&self, held: u64) -> Option<u64> {
        self.limits.iter().map(Limit::room).min().map(|room| held.saturating_add(room))
    }

    /// What the reader should know; `headroom` is what should be left of a limit.
    pub fn notes(&self, headroom: impl Fn(u64) -> u64) -> Vec<String> {
        let near = self.limits.iter().filter(|limit| limit.room() < headroom(limit.bytes));
        let mut notes: Vec<String> = near.map(warning).collect();
        if let Some((before, now)) = self.kills.filter(|(before, now)| now > before) {
            let ended = now - before;
            notes.push(format!(
                "the OOM killer ended {ended} of the processes in the job's control group since it is watched"
            ));
        }
        notes
    }
}

fn warning(limit: &Limit) -> String {
    let (file, left, bytes) = (limit.file.display(), show_bytes(limit.room()), show_bytes(limit.bytes));
    let next = match limit.is_hard() {
        true => "swap and the OOM killer come next",
        false => "the kernel slows the job down there",
    };
    let more = limit.bytes.saturating_add(limit.bytes / 4);
    format!(
        "{left} are left of the {bytes} of {file}: {next}, and moving cannot help, since memory of every node counts \
         alike; echo {more} > {file} gives a quarter more"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A host whose process 7 is in a group that may have 1000 MiB and has `current`.
    fn host(current: u64, kills: u32) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "proc/7/cgroup", "0::/train\n");
        put(root.path(), "sys/fs/cgroup/cgroup.controllers", "memory\n");
        put(root.path(), "sys/fs/cgroup/train/memory.max", &(1000 * MIB).to_string());
        put(root.path(), "sys/fs/cgroup/train/memory.high", "max");
        put(root.path(), "sys/fs/cgroup/train/memory.current", &(current * MIB).to_string());
        put(root.path(), "sys/fs/cgroup/train/memory.events", &format!("oom_kill {kills}\n"));
        root
    }

    #[test]
    fn a_job_is_warned_before_the_oom_killer_comes_and_told_what_helps() {
        let (host, mut group) = (host(900, 0), Group::default());
        group.read(host.path(), Pid(7));
        assert_eq!(group.notes(|_| 64 * MIB), Vec::<String>::new());
        assert_eq!(group.ceiling(300 * MIB), Some(400 * MIB));
        put(host.path(), "sys/fs/cgroup/train/memory.current", &(960 * MIB).to_string());
        group.read(host.path(), Pid(7));
        let notes = group.notes(|_| 64 * MIB);
        assert_eq!(notes.len(), 1);
        for part in ["40.0 MiB are left of the 1000.0 MiB", "OOM killer", "moving cannot help", "echo 1310720000 > "] {
            assert!(notes[0].contains(part), "{part}: {}", notes[0]);
        }
    }

    #[test]
    fn page_cache_is_no_reason_for_alarm() {
        let host = host(999, 0);
        put(host.path(), "sys/fs/cgroup/train/memory.stat", &format!("inactive_file {}\n", 500 * MIB));
        let mut group = Group::default();
        group.read(host.path(), Pid(7));
        assert!(group.notes(|_| 64 * MIB).is_empty());
    }

    #[test]
    fn only_kills_since_the_job_began_are_told_and_a_removed_group_keeps_them() {
        let (host, mut group) = (host(10, 3), Group::default());
        group.read(host.path(), Pid(7));
        assert!(group.notes(|_| 0).is_empty());
        put(host.path(), "sys/fs/cgroup/train/memory.events", "oom_kill 4\n");
        group.read_kills();
        fs::remove_dir_all(host.path().join("sys/fs/cgroup/train")).unwrap();
        fs::remove_dir_all(host.path().join("proc/7")).unwrap();
        group.read_kills();
        group.read(host.path(), Pid(7));
        assert!(group.notes(|_| 0)[0].contains("ended 1 of the processes"));
        assert_eq!(group.limits().len(), 1);
    }

    #[test]
    fn without_limits_there_is_no_ceiling() {
        let mut group = Group::default();
        group.read(tempfile::tempdir().unwrap().path(), Pid(7));
        assert_eq!((group.ceiling(5), group.notes(|_| u64::MAX).len()), (None, 0));
    }
}
