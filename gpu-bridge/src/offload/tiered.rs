//! The bridge on DRAM and CXL cards, and what it is without each of its three parts. Ours.
//!
//! **Placement.** Optimizer state goes to DRAM of the GPU's socket, and of sockets without a GPU, whose CPUs then update
//! it; what does not fit lies on their cards and is brought to DRAM tile by tile. Weights and checkpoints, which only copy engines touch, go to cards of the same socket as far as the
//! cards can deliver them within the time that the GPUs compute, or DRAM has no room; the rest to DRAM. A socket without
//! a card uses another's only for what its DRAM cannot hold.
//!
//! **Pipelining.** Fetches run ahead by a number of matrices that doubles from step to step while the GPUs wait more than
//! 2 % of their time and GPU memory has room, as the abstract's "adaptive" is understood here.
//!
//! **Pool.** Objects take their size, rounded by the pool's rule; without it, a power of two.

use tensortier_model::Bytes;

use super::{
    host::{Host, Place},
    step::{Ahead, Outcome, Plan, Tile, simulate},
    workload::{MATRICES, STATE, WEIGHT, Workload},
};
use crate::pool::size;

/// Elements of a tile of optimizer state.
const TILE: f64 = 1e8;
/// Share of GPU memory that fetched weights may take.
const GPU_ROOM: f64 = 0.5;
/// Share of the GPUs' time that they may wait before fetches run further ahead.
const STALL: f64 = 0.02;
/// DRAM of each socket that is not for tensors: staging rings and the system.
const RESERVE: Bytes = 8 << 30;

/// Which of the three parts are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Placement by what touches an object; otherwise all is interleaved over all nodes.
    pub numa: bool,
    /// Fetches run ahead as far as they must; otherwise by one matrix.
    pub dap: bool,
    /// Objects take their size; otherwise a power of two.
    pub pool: bool,
}

impl Parts {
    /// All of them.
    pub const ALL: Self = Self { numa: true, dap: true, pool: true };
}

fn rounded(bytes: Bytes, pool: bool) -> Bytes {
    if pool { size::rounded(bytes) } else { bytes.next_power_of_two() }
}

/// Bytes that each GPU has in host memory.
#[derive(Clone, Copy, Debug)]
struct Needs {
    state: f64,
    /// Its parts of the weights, and its checkpoints.
    streamed: f64,
    /// The gradients that a step leaves to the update, fp16.
    gradients: f64,
}

fn needs_of_gpu(host: &Host, work: &Workload, pool: bool) -> Needs {
    let gpus = host.gpus as u64;
    let sum = |each: u64| -> f64 {
        let layer: u64 = MATRICES.iter().map(|m| rounded(each * m * work.hidden * work.hidden / gpus, pool)).sum();
        (work.layers * layer) as f64
    };
    let checkpoints = (work.layers * rounded(work.checkpoint(), pool)) as f64;
    // Four arrays of four bytes.
    Needs { state: 4.0 * sum(STATE / 4), streamed: sum(WEIGHT) + checkpoints, gradients: sum(WEIGHT) }
}

/// Whether host memory holds the model.
pub fn fits(host: &Host, work: &Workload, pool: bool) -> bool {
    let needs = needs_of_gpu(host, work, pool);
    let each = needs.state + needs.streamed + needs.gradients;
    let sockets = host.profile.sockets as u64;
    let room = sockets * (host.profile.dram_bytes - RESERVE) + host.cards as u64 * host.profile.card_bytes;
    let mut dram = vec![(host.profile.dram_bytes - RESERVE) as f64; host.profile.sockets];
    // Gradients have to be in DRAM.
    for gpu in 0..host.gpus {
        dram[host.socket(gpu)] -= needs.gradients;
    }
    each * host.gpus as f64 <= room as f64 && dram.iter().all(|left| *left >= 0.0)
}

/// The plan of a step that fetches `ahead` matrices ahead.
fn plan(host: &Host, work: &Workload, parts: Parts, ahead: usize) -> Plan {
    let matrices = work.matrices().len();
    let needs = needs_of_gpu(host, work, parts.pool);
    let gpus_on = |socket: usize| (0..host.gpus).filter(|&gpu| host.socket(gpu) == socket).count().max(1) as f64;
    let (mut weights, mut checkpoints, mut tiles) = (Vec::new(), Vec::new(), Vec::new());
    let mine = work.parameters() as f64 / host.gpus as f64;
    for gpu in 0..host.gpus {
        let socket = host.socket(gpu);
        let count = (mine / TILE).ceil().max(2.0);
        if !parts.numa {
            weights.push(vec![Place::Everywhere; matrices]);
            checkpoints.push(Place::Everywhere);
            let tile = Tile { elements: mine / count, home: Place::Everywhere, socket, staged: false };
            tiles.push(vec![tile; count as usize]);
            continue;
        }
        let near = host.cards_of(socket);
        let any = if near.is_empty() { (0..host.cards).collect() } else { near.clone() };
        let sharing = gpus_on(socket);
        // Its own socket and those that no GPU is on.
        let mut serving = vec![socket];
        serving.extend((0..host.profile.sockets).filter(|&s| (0..host.gpus).all(|gpu| host.socket(gpu) != s)));
        let dram = (host.profile.dram_bytes - RESERVE) as f64 / sharing;
        let state = needs.state / serving.len() as f64;
        let fits = |s: usize| ((dram - if s == socket { needs.gradients } else { 0.0 }) / state).clamp(0.0, 1.0);
        let left = (dram - needs.gradients - state).max(0.0);
        // Cards carry what they can within the time of computing, at nine tenths of their rate; and what DRAM cannot.
        let compute: u64 =
            work.matrices().iter().map(|&m| work.forward(&host.gpu, m) + work.backward(&host.gpu, m)).sum();
        let carried = 0.9 * near.len() as f64 * host.card.read / sharing * compute as f64 / 1e9;
        let moved = 2.0 * WEIGHT as f64 * mine + (work.layers * work.checkpoint()) as f64;
        let forced = 1.0 - (left / needs.streamed).min(1.0);
        let on_cards = if any.is_empty() { 0.0 } else { (carried / moved).min(1.0).max(forced) };
        // Spread evenly over the order of use.
        let place = |i: usize| {
            let before = (i as f64 * on_cards).floor();
            let card = ((i + 1) as f64 * on_cards).floor() > before;
            if card { Place::Cards(any.clone()) } else { Place::Dram(socket) }
        };
        weights.push((0..matrices).map(place).collect());
        checkpoints.push(if on_cards > 0.5 { Place::Cards(any.clone()) } else { Place::Dram(socket) });
        let tile = |i: usize| {
            let on = serving[i % serving.len()];
            let in_dram = any.is_empty() || (i as f64 + 0.5) / count < fits(on);
            let cards = Some(host.cards_of(on)).filter(|cards| !cards.is_empty()).unwrap_or_else(|| any.clone());
            let home = if in_dram { Place::Dram(on) } else { Place::Cards(cards) };
            Tile { elements: mine / count, home, socket: on, staged: !in_dram }
        };
        tiles.push((0..count as usize).map(tile).collect());
    }
    Plan {
        buffers: (0..host.gpus).map(|gpu| vec![host.socket(gpu); matrices]).collect(),
        weights,
        checkpoints,
        checkpoints_ahead: parts.dap,
        gradients_to_ssd: false,
        ahead: Ahead::Matrices(ahead),
        read_ahead: 1,
        tiles,
    }
}

/// The step that the bridge settles at, and how many matrices its fetches run ahead.
pub fn settle(host: &Host, work: &Workload, parts: Parts) -> (Outcome, usize) {
    let largest = (4 * work.hidden * work.hidden * WEIGHT) as f64;
    let room = ((host.gpu.memory_bytes as f64 * GPU_ROOM / largest) as usize).max(2);
    let mut best = (simulate(host, work, &plan(host, work, parts, 1)), 1);
    while parts.dap && best.0.passes - best.0.compute > STALL * best.0.passes && best.1 < room {
        let ahead = (best.1 * 2).min(room);
        let next = simulate(host, work, &plan(host, work, parts, ahead));
        if next.step >= best.0.step {
            break;
        }
        best = (next, ahead);
    }
    best
}
