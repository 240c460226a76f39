//! ZeRO-Infinity on drives, as DeepSpeed's source and documentation have it (deepspeedai/DeepSpeed, August 2026).
//!
//! Weights: 5 pinned buffers for each rank; 1e9 elements of each rank stay in CPU memory; fetches to the GPU run ahead
//! by `prefetch_bucket_size`, 5e7 elements. Optimizer: sub-groups of `sub_group_size`, 1e9 elements; the next is read and
//! the last is written while one is updated; gradients go to the drives. Checkpoints: to CPU memory, back in when their
//! layer is computed again. Without binding, buffers are on either socket: DeepSpeed issue 1576 measured 4 to 12 GB/s so,
//! 24 GB/s with it. [`Settings::tuned`] is what one who reads all that would set: a harder baseline.

use tensortier_model::Bytes;

use super::{
    host::{Host, Place},
    step::{Ahead, Plan, Tile},
    workload::{STATE, WEIGHT, Workload},
};

/// What a user of ZeRO-Infinity sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `prefetch_bucket_size`, elements.
    pub bucket: u64,
    /// `sub_group_size`, elements.
    pub sub_group: u64,
    /// `buffer_count`, of `buffer_size` elements each.
    pub buffers: usize,
    /// `buffer_size`, elements.
    pub buffer: u64,
    /// `max_in_cpu`, elements of each rank.
    pub in_cpu: u64,
    /// `--bind_cores_to_rank`.
    pub bound: bool,
}

impl Settings {
    /// The defaults.
    pub fn documented() -> Self {
        Self {
            bucket: 50_000_000,
            sub_group: 1_000_000_000,
            buffers: 5,
            buffer: 100_000_000,
            in_cpu: 1_000_000_000,
            bound: false,
        }
    }

    /// Ranks bound to their sockets, tiles small enough to overlap, fetches far enough ahead.
    pub fn tuned() -> Self {
        Self { bucket: 500_000_000, sub_group: 100_000_000, buffers: 16, bound: true, ..Self::documented() }
    }
}

/// Its plan of a step.
pub fn plan(host: &Host, work: &Workload, settings: &Settings) -> Plan {
    let matrices = work.matrices();
    let gpus = host.gpus as u64;
    // Which socket a buffer is on is chance without binding: in turn, as good as any.
    let buffer = |gpu: usize, matrix: usize| match settings.bound {
        true => host.socket(gpu),
        false => (gpu + matrix) % host.profile.sockets,
    };
    let buffers: Vec<Vec<_>> =
        (0..host.gpus).map(|gpu| (0..matrices.len()).map(|matrix| buffer(gpu, matrix)).collect()).collect();
    let weights = |gpu: usize| {
        let mut kept = 0;
        let place = |(matrix, elements): (usize, &u64)| {
            kept += elements / gpus;
            if kept <= settings.in_cpu { Place::Dram(buffers[gpu][matrix]) } else { Place::Ssd }
        };
        matrices.iter().enumerate().map(place).collect()
    };
    let mine = work.parameters() as f64 / gpus as f64;
    let tiles = (mine / settings.sub_group as f64).ceil().max(1.0);
    let tiles_of = |gpu: usize| {
        let tile = Tile { elements: mine / tiles, home: Place::Ssd, socket: host.socket(gpu), staged: true };
        vec![tile; tiles as usize]
    };
    Plan {
        weights: (0..host.gpus).map(weights).collect(),
        checkpoints: (0..host.gpus).map(|gpu| Place::Dram(buffers[gpu][0])).collect(),
        buffers,
        checkpoints_ahead: false,
        gradients_to_ssd: true,
        ahead: Ahead::Elements(settings.bucket),
        read_ahead: settings.buffers,
        tiles: (0..host.gpus).map(tiles_of).collect(),
    }
}

/// Bytes of DRAM that a step takes, with pinned buffers of a power of two (pytorch issue 95823), and bytes of drives.
pub fn needs(host: &Host, work: &Workload, settings: &Settings) -> (Bytes, Bytes) {
    let gpus = host.gpus as u64;
    let mine = work.parameters() / gpus;
    // A buffer holds a rank's part of the largest matrix at least.
    let largest = (4 * work.hidden * work.hidden / gpus).max(settings.buffer);
    let weights = settings.buffers as u64 * (WEIGHT * largest).next_power_of_two();
    // Parameter, gradient, momentum and variance of three tiles: read, updated, written.
    let tile = (4 * settings.sub_group.min(mine)).next_power_of_two();
    let kept = WEIGHT * settings.in_cpu.min(mine);
    let checkpoints = work.layers * work.checkpoint();
    (gpus * (weights + 12 * tile + kept + checkpoints), (STATE + WEIGHT) * work.parameters())
}
