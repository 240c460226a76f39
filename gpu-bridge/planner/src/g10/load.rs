//! G10's kernel and tensor lists, and its plans.
//!
//! A workload is one JSON object (gzipped if the name ends in `.gz`): the machine (`hbm_bytes`, `host_bytes`,
//! `pcie_gbps`, `ssd_gbps`, `ssd_latency_us`, `system_latency_us`, `page_bytes`), `tensors` (`id`, `bytes`, `global`) and
//! `kernels` in execution order (`name`, `time_us`, `inputs`, `outputs`, `workspace_bytes`). A plan has `moves`
//! (`tensor`, `bytes`, `evict_at`, `to` = `ssd` or `host`, `prefetch_at`) and the estimated device bytes by kernel.
//! Other fields are ignored.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::plan::Plan;

/// Uncompressed bytes above which a file is refused.
const MAX_BYTES: u64 = 1 << 28;

/// Why a workload or a plan was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be opened or read.
    #[error("{path}: cannot read: {source}")]
    Read {
        /// File named by the caller.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// More than 256 MiB uncompressed.
    #[error("{path}: more than {MAX_BYTES} bytes uncompressed")]
    TooLarge {
        /// File named by the caller.
        path: PathBuf,
    },
    /// Not the JSON that was expected; the parser's message has line and column.
    #[error("{path}: {source}")]
    Json {
        /// File named by the caller.
        path: PathBuf,
        /// The parser's message.
        source: serde_json::Error,
    },
    /// JSON, but contradictory.
    #[error("{path}: {what}")]
    Invalid {
        /// File named by the caller.
        path: PathBuf,
        /// What is wrong, with the index at fault.
        what: String,
    },
}

/// One training iteration and the machine it was measured for.
#[derive(Clone, Debug, Deserialize)]
pub struct Workload {
    /// Name of the model.
    pub model: String,
    /// Samples an iteration.
    pub batch: u64,
    /// Device memory, bytes.
    pub hbm_bytes: u64,
    /// Host memory for evicted tensors, bytes.
    pub host_bytes: u64,
    /// Link between device and host, GB/s each way.
    pub pcie_gbps: f64,
    /// SSD, GB/s each way.
    pub ssd_gbps: f64,
    /// Added to each SSD transfer by the planner, µs.
    pub ssd_latency_us: f64,
    /// Page fault and system latency, µs.
    pub system_latency_us: f64,
    /// Page size, bytes.
    pub page_bytes: u64,
    /// By id.
    pub tensors: Vec<Tensor>,
    /// In execution order.
    pub kernels: Vec<Kernel>,
}

/// One tensor.
#[derive(Clone, Debug, Deserialize)]
pub struct Tensor {
    /// Its index.
    pub id: u32,
    /// Size, a whole number of pages.
    pub bytes: u64,
    /// Alive through the whole iteration and into the next: what G10 calls a global weight.
    pub global: bool,
}

/// One kernel launch.
#[derive(Clone, Debug, Deserialize)]
pub struct Kernel {
    /// Kernel type.
    pub name: String,
    /// Run time with all data on the device, µs.
    pub time_us: f64,
    /// Tensors read.
    pub inputs: Vec<u32>,
    /// Tensors written.
    pub outputs: Vec<u32>,
    /// Scratch memory of this kernel alone, bytes.
    pub workspace_bytes: u64,
}

impl Kernel {
    /// Tensors read or written, each once.
    pub fn uses(&self) -> impl Iterator<Item = u32> + '_ {
        self.inputs.iter().copied().chain(self.outputs.iter().copied().filter(|t| !self.inputs.contains(t)))
    }
}

impl Workload {
    /// Loads and checks a workload.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let workload: Workload = read_json(path)?;
        workload.check().map_err(|what| LoadError::Invalid { path: path.to_owned(), what })?;
        Ok(workload)
    }

    /// Time of an iteration with all data on the device, µs.
    pub fn ideal_us(&self) -> f64 {
        self.kernels.iter().map(|k| k.time_us).sum()
    }

    /// What every later step relies on: indices in range, finite non-negative times, sums that fit.
    fn check(&self) -> Result<(), String> {
        if self.kernels.is_empty() || self.kernels.len() > 1 << 20 || self.tensors.len() > 1 << 24 {
            return Err(format!("{} kernels and {} tensors: not a workload", self.kernels.len(), self.tensors.len()));
        }
        if self.page_bytes == 0 || !self.page_bytes.is_power_of_two() {
            return Err(format!("page_bytes {} is not a power of two", self.page_bytes));
        }
        let positive = [("pcie_gbps", self.pcie_gbps), ("ssd_gbps", self.ssd_gbps)];
        if let Some((name, value)) = positive.iter().find(|(_, v)| !v.is_finite() || *v <= 0.0) {
            return Err(format!("{name} {value} is not a rate"));
        }
        let latencies = [("ssd_latency_us", self.ssd_latency_us), ("system_latency_us", self.system_latency_us)];
        if let Some((name, value)) = latencies.iter().find(|(_, v)| !v.is_finite() || *v < 0.0) {
            return Err(format!("{name} {value} is not a latency"));
        }
        let mut total = 0u64;
        for (i, t) in self.tensors.iter().enumerate() {
            if t.id as usize != i {
                return Err(format!("tensor {i} has id {}", t.id));
            }
            total = total.checked_add(t.bytes).ok_or_else(|| format!("tensor {i}: the sum of sizes overflows"))?;
        }
        for (i, k) in self.kernels.iter().enumerate() {
            if !k.time_us.is_finite() || k.time_us < 0.0 {
                return Err(format!("kernel {i} takes {} µs", k.time_us));
            }
            if let Some(t) = k.inputs.iter().chain(&k.outputs).find(|&&t| t as usize >= self.tensors.len()) {
                return Err(format!("kernel {i} uses tensor {t}, but there are {}", self.tensors.len()));
            }
            total = total
                .checked_add(k.workspace_bytes)
                .filter(|&b| b <= i64::MAX as u64)
                .ok_or_else(|| format!("kernel {i}: the sum of sizes overflows"))?;
        }
        Ok(())
    }
}

impl Plan {
    /// Loads a plan made for `workload` and checks that it is one for it.
    pub fn load(path: &Path, workload: &Workload) -> Result<Self, LoadError> {
        let plan: Plan = read_json(path)?;
        let kernels = workload.kernels.len();
        for (i, m) in plan.moves.iter().enumerate() {
            let tensor = workload.tensors.get(m.tensor as usize);
            let what = match tensor {
                None => format!("move {i} is of tensor {}, which the workload lacks", m.tensor),
                Some(t) if t.bytes != m.bytes => format!("move {i} has {} B, tensor {} has {}", m.bytes, t.id, t.bytes),
                _ if m.evict_at >= kernels || m.prefetch_at >= kernels => {
                    format!("move {i} names kernel {} or {}, but there are {kernels}", m.evict_at, m.prefetch_at)
                }
                _ => continue,
            };
            return Err(LoadError::Invalid { path: path.to_owned(), what });
        }
        Ok(plan)
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, LoadError> {
    let read_error = |source| LoadError::Read { path: path.to_owned(), source };
    let file = BufReader::new(File::open(path).map_err(read_error)?);
    let mut text = Vec::new();
    if path.extension().is_some_and(|e| e == "gz") {
        MultiGzDecoder::new(file).take(MAX_BYTES + 1).read_to_end(&mut text)
    } else {
        file.take(MAX_BYTES + 1).read_to_end(&mut text)
    }
    .map_err(read_error)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }
    serde_json::from_slice(&text).map_err(|source| LoadError::Json { path: path.to_owned(), source })
}
