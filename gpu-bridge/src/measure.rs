//! What this host's paths between host memory and GPU deliver.
//!
//! Pageable memory by blocking calls of the driver, as a program without a bridge copies; registered memory of each node,
//! and pageable memory of each node through the bridge, each in, out, and both at once.
#![allow(unsafe_code)]

use std::{sync::Arc, time::Instant};

use tensortier_model::{Bytes, RealClock};

use crate::{
    device::{CudaDevice, CudaError, Gpu, Slow},
    pipeline::{Copy, Direction, Limits, Pipeline, Tuning},
    pool::{Backing, BackingError, HostMemory, Mapping, PoolError, Registrar, Run, movable_nodes, size},
};

/// Rings and threads of the measurement.
const LIMITS: Limits = Limits { ring: 64 << 20, threads: 4 };
/// Copies before those that count.
const WARM: usize = 2;

/// What one path delivered.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Rate {
    /// `pageable`, `registered` or `bridge`.
    pub path: &'static str,
    /// Node of the host memory.
    pub node: u32,
    /// To the device, bytes per second.
    pub h2d: f64,
    /// From the device.
    pub d2h: f64,
    /// To and from the device at once: the sum. `None` where blocking calls cannot.
    pub both: Option<f64>,
    /// Why this path has no rates.
    pub error: Option<String>,
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The driver's.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The node's.
    #[error(transparent)]
    Memory(#[from] BackingError),
    /// Registering there would move the memory to another node.
    #[error(transparent)]
    Movable(#[from] PoolError),
}

/// Measures every path with `copies` copies of `bytes`, over the memory of each node. The bridge's staging rings are on
/// node `ring`, the GPU's.
///
/// # Errors
/// The driver gives no device memory. What only one path lacks is in its [`Rate::error`].
pub fn paths(gpu: &Gpu, nodes: &[u32], ring: u32, bytes: Bytes, copies: usize) -> Result<Vec<Rate>, MeasureError> {
    let device = gpu.allocate(2 * bytes)?;
    let mut rates = Vec::new();
    for &node in nodes {
        for path in ["pageable", "registered", "bridge"] {
            rates.push(rate(gpu, path, (node, ring), device, bytes, copies).unwrap_or_else(|error| Rate {
                path,
                node,
                h2d: f64::NAN,
                d2h: f64::NAN,
                both: None,
                error: Some(error.to_string()),
            }));
        }
    }
    gpu.free(device)?;
    Ok(rates)
}

fn rate(
    gpu: &Gpu,
    path: &'static str,
    (node, ring): (u32, u32),
    device: u64,
    bytes: Bytes,
    copies: usize,
) -> Result<Rate, MeasureError> {
    // A file that cannot be read names no node: registering is then at worst a copy of other memory.
    let zones = std::fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
    if path == "registered" && movable_nodes(&zones).contains(&node) {
        return Err(PoolError::Movable { node }.into());
    }
    let mut memory = HostMemory::new();
    let mut host = memory.map(&[Run { node, bytes: 2 * bytes }], size::HUGE)?;
    let rated = match path {
        "pageable" => blocking(gpu, &mut host, device, bytes, copies),
        _ => piped(gpu, &host, (node, ring), device, bytes, copies, path == "registered"),
    };
    memory.unmap(host);
    let (h2d, d2h, both) = rated?;
    Ok(Rate { path, node, h2d, d2h, both, error: None })
}

type Rates = (f64, f64, Option<f64>);

fn blocking(gpu: &Gpu, host: &mut Mapping, device: u64, bytes: Bytes, copies: usize) -> Result<Rates, CudaError> {
    let mut times = [0.0; 2];
    for count in 0..WARM + copies {
        let began = Instant::now();
        gpu.write(device, host.slice(0, bytes))?;
        let between = Instant::now();
        gpu.read(device, host.slice_mut(bytes, bytes))?;
        if count >= WARM {
            times[0] += (between - began).as_secs_f64();
            times[1] += between.elapsed().as_secs_f64();
        }
    }
    let moved = (copies as u64 * bytes) as f64;
    Ok((moved / times[0], moved / times[1], None))
}

fn piped(
    gpu: &Gpu,
    host: &Mapping,
    (node, ring): (u32, u32),
    device: u64,
    bytes: Bytes,
    copies: usize,
    registered: bool,
) -> Result<Rates, CudaError> {
    let mut registrar = gpu;
    if registered {
        let refused = |name| CudaError::Refused { call: "cuMemHostRegister", name };
        registrar.register(host.address(), host.bytes()).map_err(refused)?;
    }
    let clock = Arc::new(RealClock::new());
    // SAFETY: the mapping and the device memory outlive the pipeline, whose copies alone use them; each direction has a
    // half of its own.
    let cuda = unsafe { CudaDevice::new(gpu, Arc::clone(&clock), LIMITS, ring, Slow::new()) };
    let measured = cuda.and_then(|cuda| {
        let mut pipeline = Pipeline::new(clock, cuda, LIMITS, Tuning::Adaptive);
        let mut run = |ways: &[Direction]| {
            let mut began = Instant::now();
            for count in 0..WARM + copies {
                if count == WARM {
                    pipeline.wait_all();
                    began = Instant::now();
                }
                for &direction in ways {
                    let at = direction as u64 * bytes;
                    let (host, device) = (host.address() + at, device + at);
                    let stream = direction as u64;
                    pipeline.submit(Copy { stream, direction, host, device, bytes, node, registered });
                }
            }
            pipeline.wait_all();
            let rate = (copies * ways.len()) as f64 * bytes as f64 / began.elapsed().as_secs_f64();
            pipeline.device().failure().map_or(Ok(rate), Err)
        };
        let (h2d, d2h) = (run(&[Direction::H2d])?, run(&[Direction::D2h])?);
        Ok((h2d, d2h, Some(run(&[Direction::H2d, Direction::D2h])?)))
    });
    if registered {
        registrar.unregister(host.address(), host.bytes());
    }
    measured
}
