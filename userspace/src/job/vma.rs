//! The mappings of a process, and which of them may be moved.
//!
//! Read from /proc/PID/maps where the BPF iterator cannot be used; that walks no page tables. The iterator knows the
//! kinds; here they are told by name, so a file on a tmpfs other than /dev/shm counts as a file.

use std::fs;

use serde::Serialize;

use crate::units::{Pid, Range};

/// What backs a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Private anonymous memory: heaps, stacks, arenas.
    Anon,
    /// Shared memory: memfd, /dev/shm, SysV, shared anonymous.
    Shmem,
    /// Pages of a file.
    File,
    /// hugetlbfs. Never moved: its pools are reserved per node.
    Hugetlb,
    /// The vdso, device memory and other mappings without ordinary pages. Never moved.
    Special,
}

impl Kind {
    /// Whether pages of this kind may be moved. Files only where the user opted in: the file system's own migration code
    /// runs then, and out-of-tree ones have crashed on it.
    pub fn movable(self, file_pages: bool) -> bool {
        match self {
            Kind::Anon | Kind::Shmem => true,
            Kind::File => file_pages,
            Kind::Hugetlb | Kind::Special => false,
        }
    }
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vma {
    /// The addresses.
    pub range: Range,
    /// What backs it.
    pub kind: Kind,
    /// Its pages may be written.
    pub writable: bool,
    /// Its pages may be executed.
    pub executable: bool,
    /// Changes are seen by every process that maps it (MAP_SHARED).
    pub shared: bool,
}

/// Why the mappings of a process could not be read.
#[derive(Debug, thiserror::Error)]
pub enum VmaError {
    /// The file cannot be read.
    #[error("{path}: {source} (the process has ended, or root is needed)")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A line has another form than proc(5) gives it.
    #[error("{path}: not a mapping: {line:?}")]
    Line {
        /// The file.
        path: String,
        /// The line.
        line: String,
    },
}

/// The mappings of a process, by address.
///
/// # Errors
/// The process has ended or may not be looked at.
pub fn of_process(pid: Pid) -> Result<Vec<Vma>, VmaError> {
    let path = format!("/proc/{pid}/maps");
    // Names are bytes, not text.
    let bytes = fs::read(&path).map_err(|source| VmaError::Read { path: path.clone(), source })?;
    parse(&String::from_utf8_lossy(&bytes), &path)
}

/// Reads the text of a maps file; `path` is for the error.
///
/// # Errors
/// A line that is not a mapping.
pub fn parse(text: &str, path: &str) -> Result<Vec<Vma>, VmaError> {
    let bad = |line: &str| VmaError::Line { path: path.to_owned(), line: line.to_owned() };
    text.lines().map(|line| parse_line(line).ok_or_else(|| bad(line))).collect()
}

fn parse_line(line: &str) -> Option<Vma> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let &[_, write, execute, share] = fields.next()?.as_bytes() else { return None };
    let (_offset, device, _inode) = (fields.next()?, fields.next()?, fields.next()?);
    if start >= end {
        return None;
    }
    let shared = share == b's';
    // The name is padded to a column, and may hold spaces itself.
    let kind = kind(fields.next().unwrap_or("").trim_start_matches(' '), device, shared);
    Some(Vma { range: Range { start, end }, kind, writable: write == b'w', executable: execute == b'x', shared })
}

fn kind(name: &str, device: &str, shared: bool) -> Kind {
    let path = name.strip_suffix(" (deleted)").unwrap_or(name);
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| path.starts_with(prefix));
    match path {
        "" if device == "00:00" => Kind::Anon,
        // What mmap(MAP_SHARED | MAP_ANONYMOUS) makes is called so.
        "/dev/zero" if shared => Kind::Shmem,
        "[heap]" | "[stack]" | "/dev/zero" => Kind::Anon,
        "/anon_hugepage" => Kind::Hugetlb,
        _ if starts(&["[anon_shmem:", "/memfd:", "/dev/shm/", "/SYSV"]) => Kind::Shmem,
        _ if starts(&["[anon:", "[stack:"]) => Kind::Anon,
        _ if starts(&["/dev/hugepages/"]) => Kind::Hugetlb,
        _ if starts(&["[", "/dev/", "anon_inode:"]) => Kind::Special,
        _ => Kind::File,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const MAPS: &str = "\
55d0a0a00000-55d0a0a21000 r-xp 00001000 fe:00 131                        /usr/bin/python3 (deleted)
55d0a1000000-55d0a1100000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f1000000000 ---p 00000000 00:00 0
7f1000000000-7f1000200000 rw-s 00000000 00:01 99                         /memfd:weights with a space (deleted)
7f1000200000-7f1000400000 rw-s 00000000 00:1a 5                          /dev/shm/torch_1_2
7f1000400000-7f1000600000 rw-s 00000000 00:01 7                          /dev/zero (deleted)
7f1000600000-7f1000800000 rw-s 00000000 00:0f 8                          /anon_hugepage (deleted)
7f1000800000-7f1000900000 rw-s 00000000 00:06 9                          /dev/nvidia-uvm
7f1000900000-7f1000a00000 rw-p 00000000 00:00 0                          [anon:arena]
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
7ffd00100000-7ffd00104000 r--p 00000000 00:00 0                          [vvar]
7ffd00104000-7ffd00106000 r-xp 00000000 00:00 0                          [vdso]
7ffd00106000-7ffd00107000 rw-s 00000000 00:0e 1                          anon_inode:[io_uring]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn every_kind_is_told() {
        use Kind::*;
        let vmas = parse(MAPS, "maps").unwrap();
        let kinds: Vec<_> = vmas.iter().map(|vma| vma.kind).collect();
        let expected =
            [File, Anon, Anon, Shmem, Shmem, Shmem, Hugetlb, Special, Anon, Anon, Special, Special, Special, Special];
        assert_eq!(kinds, expected);
        assert_eq!(vmas[2].range.bytes(), 64 << 30);
        assert!(vmas[0].executable && !vmas[0].writable && !vmas[0].shared && vmas[3].shared);
    }

    #[test]
    fn only_anonymous_and_shared_memory_moves_unless_files_are_opted_in() {
        let movable = |files| -> Vec<Kind> {
            let all = [Kind::Anon, Kind::Shmem, Kind::File, Kind::Hugetlb, Kind::Special];
            all.into_iter().filter(|kind| kind.movable(files)).collect()
        };
        assert_eq!(movable(false), [Kind::Anon, Kind::Shmem]);
        assert_eq!(movable(true), [Kind::Anon, Kind::Shmem, Kind::File]);
    }

    #[test]
    fn this_process_reads_itself() {
        let value = Box::new(7u8);
        let at = &raw const *value as u64;
        let vmas = of_process(Pid(std::process::id())).unwrap();
        let home = vmas.iter().find(|vma| vma.range.start <= at && at < vma.range.end).unwrap();
        assert!(home.kind == Kind::Anon && home.writable);
        let code = this_process_reads_itself as *const () as u64;
        let code = vmas.iter().find(|vma| vma.range.start <= code && code < vma.range.end).unwrap();
        assert!(code.kind == Kind::File && code.executable);
        assert!(vmas.is_sorted_by_key(|vma| vma.range.start));
    }

    proptest! {
        #[test]
        fn hostile_text_is_an_error_and_no_panic(text in "(?s).{0,200}") {
            for vma in parse(&text, "maps").unwrap_or_default() {
                prop_assert!(vma.range.start < vma.range.end);
            }
        }
    }
}
