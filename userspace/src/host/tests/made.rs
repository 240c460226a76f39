//! A tree made file by file, for hosts that no machine at hand is.

use super::*;

pub(crate) const GIB: u64 = 1 << 30;
const BLOCK_BYTES: u64 = 128 << 20;

/// A root folder under construction.
pub(crate) struct Made(tempfile::TempDir);

impl Made {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap()).put("sys/devices/system/memory/block_size_bytes", "8000000\n")
    }

    /// Node 0 with CPUs and node 2 without, at distance 20.
    pub fn sparse() -> Self {
        Self::new().put("sys/devices/system/node/online", "0,2\n").node(0, "0-3", 8 * GIB, "10 20").node(
            2,
            "",
            4 * GIB,
            "20 10",
        )
    }

    pub fn put(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    pub fn node(self, id: u32, cpus: &str, bytes: u64, distance: &str) -> Self {
        let folder = format!("sys/devices/system/node/node{id}");
        let kib = bytes / 1024;
        self.put(
            &format!("{folder}/meminfo"),
            &format!("Node {id} MemTotal:  {kib} kB\nNode {id} MemFree:  {} kB\nNode {id} MemUsed:  0 kB\n", kib / 2),
        )
        .put(&format!("{folder}/cpulist"), &format!("{cpus}\n"))
        .put(&format!("{folder}/distance"), &format!("{distance}\n"))
    }

    /// Memory blocks of a node, by address.
    pub fn blocks(mut self, id: u32, range: std::ops::Range<u64>, state: &str) -> Self {
        for block in range.start / BLOCK_BYTES..range.end / BLOCK_BYTES {
            self = self
                .put(&format!("sys/devices/system/node/node{id}/memory{block}/state"), state)
                .put(&format!("sys/devices/system/memory/memory{block}/state"), state);
        }
        self
    }

    /// A DAMON context with these files, as somebody who made one kdamond leaves it.
    pub fn kdamond(mut self, state: &str, pid: &str, files: &[(&str, &str)]) -> Self {
        let kdamonds = "sys/kernel/mm/damon/admin/kdamonds";
        self = self
            .put(&format!("{kdamonds}/nr_kdamonds"), "1\n")
            .put(&format!("{kdamonds}/0/state"), state)
            .put(&format!("{kdamonds}/0/pid"), pid);
        for (file, text) in files {
            self = self.put(&format!("{kdamonds}/0/{file}"), text);
        }
        self
    }

    pub fn root(&self) -> &Path {
        self.0.path()
    }

    pub fn try_read(&self) -> Result<Host, HostError> {
        Host::read(self.root())
    }

    pub fn read(&self) -> Host {
        self.try_read().unwrap()
    }
}
