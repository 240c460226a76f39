//! Where extents get their memory: this host's nodes and devices, or a machine of any number of nodes for tests.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use tensortier_model::Bytes;

use super::{
    blocks::Blocks,
    memory::Mapping,
    size::{ALIGN_ABOVE, HUGE},
};

/// Bytes on one node; an extent is a row of them in address order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// NUMA node.
    pub node: u32,
    /// Its bytes.
    pub bytes: Bytes,
}

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BackingError {
    /// A system call failed.
    #[error("{call} of {bytes} bytes for node {node}: {source}{}", way_out(source))]
    Call {
        /// The call.
        call: &'static str,
        /// The node; of a stripe, its first.
        node: u32,
        /// Bytes asked for.
        bytes: Bytes,
        /// Why.
        source: io::Error,
    },
    /// The kernel put pages on other nodes: this one is full.
    #[error(
        "node {node} has no room: {elsewhere} of {pages} pages came from other nodes; lower the pool's budget there"
    )]
    Elsewhere {
        /// The node.
        node: u32,
        /// Pages asked for.
        pages: u64,
        /// Pages that are not on it.
        elsewhere: u64,
    },
    /// The device has no range that long.
    #[error("{path}: no free range of {bytes} bytes; lower the pool's budget for it")]
    DeviceFull {
        /// The device.
        path: PathBuf,
        /// Bytes asked for.
        bytes: Bytes,
    },
    /// The device could not be opened.
    #[error("{path}: {source}; it must be a device-dax file that this user may read and write")]
    Device {
        /// The device.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn way_out(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => " (a container's seccomp profile refuses it: allow mbind and move_pages, or CAP_SYS_NICE)",
        _ => "",
    }
}

/// Gives memory on nodes.
pub trait Backing {
    /// Maps `runs` one after the other; the first begins at a multiple of `align`. The pages are there on return, each on
    /// its run's node. They are not cleared: a device's hold what was there.
    ///
    /// # Errors
    /// [`BackingError`]; nothing stays mapped.
    fn map(&mut self, runs: &[Run], align: Bytes) -> Result<Mapping, BackingError>;

    /// Takes back what [`Backing::map`] gave.
    fn unmap(&mut self, mapping: Mapping);
}

/// A device-dax file and the ranges of it that are free.
#[derive(Debug)]
pub struct DaxDevice {
    path: PathBuf,
    file: File,
    free: Blocks,
}

impl DaxDevice {
    /// Opens `path`, of which the pool may use the first `bytes` (down to a multiple of 2 MiB, the usual granule; a
    /// device with a larger one refuses the mapping).
    ///
    /// # Errors
    /// [`BackingError::Device`].
    pub fn open(path: &Path, bytes: Bytes) -> Result<Self, BackingError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|source| BackingError::Device { path: path.into(), source })?;
        let mut free = Blocks::default();
        if bytes >= HUGE {
            free.give(0, 0, bytes / HUGE * HUGE);
        }
        Ok(Self { path: path.into(), file, free })
    }
}

/// This host's nodes by `mmap`, `mbind` and touch, and its device-dax files.
#[derive(Debug, Default)]
pub struct HostMemory {
    devices: BTreeMap<u32, DaxDevice>,
    /// Ranges of devices in use: by the mapping's address, (node, offset, bytes).
    used: BTreeMap<u64, Vec<(u32, Bytes, Bytes)>>,
}

impl HostMemory {
    /// The host's nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves `node` from `device`.
    pub fn with_device(mut self, node: u32, device: DaxDevice) -> Self {
        self.devices.insert(node, device);
        self
    }

    fn place(&mut self, mapping: &mut Mapping, runs: &[Run]) -> Result<(), BackingError> {
        let mut offset = 0;
        for &Run { node, bytes } in runs {
            let call = |call| move |source| BackingError::Call { call, node, bytes, source };
            if let Some(device) = self.devices.get_mut(&node) {
                let taken = bytes.next_multiple_of(HUGE);
                let full = || BackingError::DeviceFull { path: device.path.clone(), bytes };
                let (_, from) = device.free.take(taken, HUGE).ok_or_else(full)?;
                self.used.entry(mapping.address()).or_default().push((node, from, taken));
                mapping.overlay(offset, bytes, &device.file, from).map_err(call("mmap"))?;
            } else {
                mapping.prefer(offset, bytes, node).map_err(call("mbind"))?;
            }
            offset += bytes;
        }
        Ok(())
    }

    /// Whether each page is where its run says; pages of devices are, having no other place.
    fn check(&self, mapping: &Mapping, runs: &[Run]) -> Result<(), BackingError> {
        let mut offset = 0;
        for &Run { node, bytes } in runs {
            if !self.devices.contains_key(&node) {
                let call = |source| BackingError::Call { call: "move_pages", node, bytes, source };
                let found = mapping.pages_by_node(offset, bytes).map_err(call)?;
                let pages: u64 = found.values().sum();
                let here = i32::try_from(node).ok().and_then(|node| found.get(&node)).copied().unwrap_or(0);
                if here < pages {
                    return Err(BackingError::Elsewhere { node, pages, elsewhere: pages - here });
                }
            }
            offset += bytes;
        }
        Ok(())
    }

    fn give_back(&mut self, address: u64) {
        for (node, offset, bytes) in self.used.remove(&address).into_iter().flatten() {
            if let Some(device) = self.devices.get_mut(&node) {
                device.free.give(0, offset, bytes);
            }
        }
    }
}

impl Backing for HostMemory {
    fn map(&mut self, runs: &[Run], align: Bytes) -> Result<Mapping, BackingError> {
        let bytes = runs.iter().map(|run| run.bytes).sum();
        let node = runs.first().map_or(0, |run| run.node);
        let call = |call| move |source| BackingError::Call { call, node, bytes, source };
        let mut mapping = Mapping::anonymous(bytes, align).map_err(call("mmap"))?;
        if bytes > ALIGN_ABOVE {
            mapping.prefer_huge();
        }
        let placed = self
            .place(&mut mapping, runs)
            .and_then(|()| mapping.populate().map_err(call("populating")))
            .and_then(|()| self.check(&mapping, runs));
        if let Err(error) = placed {
            self.unmap(mapping);
            return Err(error);
        }
        Ok(mapping)
    }

    fn unmap(&mut self, mapping: Mapping) {
        let address = mapping.address();
        drop(mapping);
        self.give_back(address);
    }
}

/// Nodes that are only numbers: memory of this process, wherever it lies, with a limit a node. For tests and for
/// simulation on a host with fewer nodes.
#[derive(Debug, Default)]
pub struct FakeNodes {
    /// Bytes left on each node; a node that is not here is full.
    pub room: BTreeMap<u32, Bytes>,
    /// What is mapped, by address.
    pub mapped: BTreeMap<u64, Vec<Run>>,
}

impl Backing for FakeNodes {
    fn map(&mut self, runs: &[Run], align: Bytes) -> Result<Mapping, BackingError> {
        let mut room = self.room.clone();
        for run in runs {
            let left = room.entry(run.node).or_default();
            let short = BackingError::Elsewhere { node: run.node, pages: run.bytes / 4096, elsewhere: 1 };
            *left = left.checked_sub(run.bytes).ok_or(short)?;
        }
        let (node, bytes) = (runs.first().map_or(0, |run| run.node), runs.iter().map(|run| run.bytes).sum());
        let mapping = Mapping::anonymous(bytes, align).map_err(|source| BackingError::Call {
            call: "mmap",
            node,
            bytes,
            source,
        })?;
        self.room = room;
        self.mapped.insert(mapping.address(), runs.to_vec());
        Ok(mapping)
    }

    fn unmap(&mut self, mapping: Mapping) {
        for run in self.mapped.remove(&mapping.address()).unwrap_or_default() {
            *self.room.entry(run.node).or_default() += run.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_0_gives_pages_on_node_0() {
        let mut host = HostMemory::new();
        let mapping = host.map(&[Run { node: 0, bytes: 4 << 20 }], HUGE).expect("room");
        assert_eq!(mapping.address() % HUGE, 0);
        assert_eq!(mapping.pages_by_node(0, 4 << 20).expect("allowed"), BTreeMap::from([(0, 1024)]));
        host.unmap(mapping);
    }

    #[test]
    fn a_node_that_is_not_there_is_named() {
        let error = HostMemory::new().map(&[Run { node: 999, bytes: 4096 }], 4096).expect_err("no node 999");
        assert!(error.to_string().contains("node 999"), "{error}");
    }

    /// An ordinary file stands for the device: the same mapping calls, the same bookkeeping.
    #[test]
    fn a_device_gives_each_range_once_and_takes_it_back() {
        let path = std::env::temp_dir().join(format!("tensortier-dax-{}", std::process::id()));
        File::create(&path).and_then(|file| file.set_len(8 << 20)).expect("temporary file");
        let mut host = HostMemory::new().with_device(7, DaxDevice::open(&path, 7 << 20).expect("opens"));
        let run = |bytes| [Run { node: 7, bytes }];
        let mut first = host.map(&run(4 << 20), HUGE).expect("room");
        let mut second = host.map(&[Run { node: 0, bytes: HUGE }, run(HUGE)[0]], HUGE).expect("a stripe");
        first.slice_mut(0, 4 << 20).fill(1);
        second.slice_mut(0, 2 * HUGE).fill(2);
        let error = host.map(&run(4096), HUGE).expect_err("6 MiB are used, the seventh is no whole granule");
        assert!(error.to_string().contains(path.to_str().expect("text")), "{error}");
        assert!(first.slice(0, 4 << 20).iter().all(|&byte| byte == 1));
        let file = std::fs::read(&path).expect("still there");
        assert_eq!(file.iter().filter(|&&byte| byte == 1).count(), 4 << 20);
        assert_eq!(file.iter().filter(|&&byte| byte == 2).count(), 2 << 20, "node 0's part is not in the file");
        host.unmap(first);
        host.unmap(second);
        let whole = host.map(&run(6 << 20), HUGE).expect("all free ranges are one again");
        host.unmap(whole);
        std::fs::remove_file(&path).expect("remove");
        let error = DaxDevice::open(&path, HUGE).expect_err("gone").to_string();
        assert!(error.contains("device-dax"), "{error}");
    }
}
