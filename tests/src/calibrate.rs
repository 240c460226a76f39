//! What the emulated GPU delivers on this machine, with everything at work at once: copies both ways and kernels.
//!
//! A copy of `b` bytes takes `latency + b / rate`; both follow from the times of copies of two sizes. Tier 0 is registered
//! memory, which the engines reach directly; tier 1 is memory that the driver does not know, staged and paced, as on a
//! card that is slower than the link.
#![allow(unsafe_code)]

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tensortier_bridge::{
    device::{CudaDevice, Gpu, Slow},
    execute::{Program, Room, TierRoom},
    pipeline::{Completion, Copy, Direction, Limits, Pipeline, Tuning, flow::KERNELS, kernel::Kernel},
    pool::{Backing, HostMemory, Mapping, Registrar, Run, size::HUGE},
};
use tensortier_model::{Bytes, LinkProfile, Machine, Nanos, Profiles, RealClock, Tier, TierKind, TierProfile};

use crate::bench::median;

/// Rings and copy threads of the staged tier.
pub const LIMITS: Limits = Limits { ring: 16 << 20, threads: 2 };
/// Node of the tier that is paced; its bytes are on node 0 like all others.
const CARD: u32 = 1;
/// Sizes of copies that are timed.
const SIZES: [Bytes; 2] = [128 << 10, 2 << 20];
/// Copies of each size and direction, and rounds of them; medians count.
const COPIES: u64 = 5;
const ROUNDS: usize = 3;
/// Kernels that run meanwhile: what each reads and writes, and its time.
const KERNEL: (Bytes, Nanos) = (256 << 10, 2_000_000);
const BOTH: [Direction; 2] = [Direction::H2d, Direction::D2h];

/// The bridge on the emulated GPU.
pub type Bridge<'a> = Pipeline<Arc<RealClock>, CudaDevice<'a>>;

/// Memory of a program on the emulated GPU and its host.
pub struct Memory<'a> {
    gpu: &'a Gpu,
    host: HostMemory,
    tiers: Vec<Mapping>,
    registered: Option<u64>,
    /// For [`tensortier_bridge::execute::run`].
    pub room: Room,
}

impl<'a> Memory<'a> {
    /// `device` bytes and, for both tiers, `tiers` bytes; the first is registered.
    ///
    /// # Errors
    /// The driver's, the kernel's.
    pub fn new(gpu: &'a Gpu, device: Bytes, tiers: &[Bytes]) -> Result<Self> {
        let device = gpu.allocate(device.max(1))?;
        let room = Room { device, tiers: Vec::new() };
        let mut memory = Self { gpu, host: HostMemory::new(), tiers: Vec::new(), registered: None, room };
        for (tier, &bytes) in tiers.iter().enumerate() {
            let mapping = memory.host.map(&[Run { node: 0, bytes: bytes.max(1).next_multiple_of(HUGE) }], HUGE)?;
            let (address, registered) = (mapping.address(), tier == 0);
            if registered {
                let mut registrar = gpu;
                registrar.register(address, mapping.bytes()).map_err(anyhow::Error::msg)?;
                memory.registered = Some(address);
            }
            memory.tiers.push(mapping);
            memory.room.tiers.push(TierRoom { address, node: if registered { 0 } else { CARD }, registered });
        }
        Ok(memory)
    }

    /// Memory for a program.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn of(gpu: &'a Gpu, program: &Program) -> Result<Self> {
        Self::new(gpu, program.device_bytes(), program.tier_bytes())
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let mut registrar = self.gpu;
        if let Some(address) = self.registered {
            registrar.unregister(address, 0);
        }
        for mapping in self.tiers.drain(..) {
            self.host.unmap(mapping);
        }
        // An error leaves memory that ends with the process.
        let _ = self.gpu.free(self.room.device);
    }
}

/// A bridge with fresh rings; the card has `card` bytes per second for both directions.
///
/// # Errors
/// The driver's.
pub fn bridge(gpu: &Gpu, card: f64) -> Result<Bridge<'_>> {
    let clock = Arc::new(RealClock::new());
    // SAFETY: what this module and its users copy and compute lies in a `Memory`, which they keep until the bridge is
    // gone; programs give each byte to one task at a time.
    let device = unsafe { CudaDevice::new(gpu, Arc::clone(&clock), LIMITS, 0, Slow::from([(CARD, card)]))? };
    Ok(Pipeline::new(clock, device, LIMITS, Tuning::Adaptive))
}

/// A path: time of a copy is `latency + bytes / rate`.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Bytes per second.
    pub rate: f64,
    /// Nanoseconds.
    pub latency: f64,
}

impl Path {
    fn of(times: [f64; 2]) -> Self {
        let rate = (SIZES[1] - SIZES[0]) as f64 * 1e9 / (times[1] - times[0]).max(1.0);
        Self { rate, latency: (times[0] - SIZES[0] as f64 * 1e9 / rate).max(0.0) }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// Of each tier, in and out.
    pub tiers: [[Path; 2]; 2],
    /// What a kernel took beyond its time, nanoseconds.
    pub kernel: f64,
}

/// Bytes per second that a kernel reads and writes, while copies run both ways.
///
/// # Errors
/// The driver's.
pub fn crunching(gpu: &Gpu) -> Result<f64> {
    let bytes = 4 << 20;
    let memory = Memory::new(gpu, 4 * bytes, &[2 * bytes])?;
    let mut bridge = bridge(gpu, 1e9)?;
    let rates = (0..7).map(|_| {
        for lane in 0..2 {
            submit(&mut bridge, &memory.room, 0, BOTH[lane as usize], (lane * bytes, (2 + lane) * bytes), bytes);
        }
        let half = |at| vec![vec![(memory.room.device + at, bytes)]];
        let kernel = Kernel { reads: half(0), writes: half(bytes), ..Kernel::default() };
        for _ in 0..4 {
            bridge.launch(kernel.clone());
        }
        let ended = ended(&mut bridge)?;
        let kernels: Vec<Nanos> = ended.iter().filter(|end| end.stream == KERNELS).map(|end| end.ended).collect();
        let took = kernels.last().context("kernels")? - kernels.first().context("kernels")?;
        Ok::<_, anyhow::Error>(6.0 * bytes as f64 * 1e9 / took.max(1) as f64)
    });
    Ok(median(rates.collect::<Result<Vec<_>>>()?))
}

/// Measures the link that is set, and the card.
///
/// # Errors
/// The driver's.
pub fn calibrate(gpu: &Gpu, link: f64, card: f64) -> Result<Calibration> {
    let bytes = COPIES * SIZES[1];
    let memory = Memory::new(gpu, 2 * bytes + 2 * KERNEL.0, &[2 * bytes, 2 * bytes])?;
    let mut bridge = bridge(gpu, card)?;
    let mut kernels = Vec::new();
    let mut times: [[[Vec<f64>; 2]; 2]; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (k, size) in SIZES.into_iter().enumerate() {
            // Both ways at once over the link.
            busy(&mut bridge, &memory.room, 2.0 * COPIES as f64 * size as f64 / link);
            for i in 0..COPIES {
                for (lane, direction) in BOTH.into_iter().enumerate() {
                    let at = lane as u64 * bytes + i * size;
                    submit(&mut bridge, &memory.room, 0, direction, (at, at), size);
                }
            }
            let ends = ended(&mut bridge)?;
            for (lane, times) in times[0].iter_mut().enumerate() {
                let of_lane = |end: &&Completion| end.stream == lane as u64;
                let of: Vec<Nanos> = ends.iter().filter(of_lane).map(|end| end.ended).collect();
                times[k].extend(of.windows(2).map(|two| (two[1] - two[0]) as f64));
            }
            let of: Vec<Nanos> = ends.iter().filter(|end| end.stream == KERNELS).map(|end| end.ended).collect();
            kernels.extend(of.windows(2).map(|two| (two[1] - two[0]) as f64 - KERNEL.1 as f64));
            // One after the other from and to the card, while the link works the other way.
            for (lane, direction) in BOTH.into_iter().enumerate() {
                let seconds = COPIES as f64 * size as f64 / card.min(link);
                busy(&mut bridge, &memory.room, 1.5 * seconds);
                for i in 0..COPIES {
                    let at = (1 - lane as u64) * bytes + i * size;
                    submit(&mut bridge, &memory.room, 0, BOTH[1 - lane], (at, at), size);
                }
                for i in 0..COPIES {
                    let at = lane as u64 * bytes + i * size;
                    let began = bridge.now();
                    let id = submit(&mut bridge, &memory.room, 1, direction, (at, at), size);
                    bridge.wait(id);
                    times[1][lane][k].push((bridge.now() - began) as f64);
                }
                ended(&mut bridge)?;
            }
        }
    }
    let tiers = times.map(|tier| tier.map(|sizes| Path::of(sizes.map(median))));
    Ok(Calibration { tiers, kernel: median(kernels).max(0.0) })
}

/// Keeps the processor at work for so many seconds.
fn busy(bridge: &mut Bridge, room: &Room, seconds: f64) {
    let at = room.device + 2 * COPIES * SIZES[1];
    let (reads, writes) = (vec![vec![(at, KERNEL.0)]], vec![vec![(at + KERNEL.0, KERNEL.0)]]);
    let kernel = Kernel { seed: 1, time: KERNEL.1, reads, writes };
    let count = (seconds * 1e9 / KERNEL.1 as f64) as usize + 3;
    for _ in 0..count {
        bridge.launch(kernel.clone());
    }
}

fn submit(
    bridge: &mut Bridge,
    room: &Room,
    tier: usize,
    direction: Direction,
    (host, device): (u64, u64),
    bytes: Bytes,
) -> u64 {
    let TierRoom { address, node, registered } = room.tiers[tier];
    let (stream, host, device) = (direction as u64 + 2 * tier as u64, address + host, room.device + device);
    bridge.submit(Copy { stream, direction, host, device, bytes, node, registered })
}

fn ended(bridge: &mut Bridge) -> Result<Vec<Completion>> {
    bridge.wait_all();
    if let Some(error) = bridge.device().failure() {
        bail!("{error}");
    }
    Ok(std::iter::from_fn(|| bridge.completed()).collect())
}

/// The machine that was measured, with so much of its memories: device, registered DRAM, card.
///
/// # Errors
/// No GPU profile to begin with.
pub fn machine(found: &Calibration, hbm: Bytes, dram: Bytes, card: Bytes) -> Result<Machine> {
    let [[into, out], [from_card, to_card]] = found.tiers;
    let latency = into.latency.max(out.latency);
    let source = "calibrated in this run".to_owned();
    let tier = |name: &str, kind, [read, write]: [Path; 2], half_duplex| TierProfile {
        name: name.to_owned(),
        kind,
        read: read.rate,
        write: write.rate,
        latency_ns: (read.latency.max(write.latency) - latency).max(0.0) as Nanos,
        half_duplex,
        source: source.clone(),
    };
    let dram_profile = tier("dram", TierKind::Dram, [into, out], false);
    let card_profile = tier("card", TierKind::Cxl, [from_card, to_card], true);
    Ok(Machine {
        gpu: Profiles::builtin().gpu(crate::points::GPU)?.clone(),
        hbm,
        link: LinkProfile {
            name: "emulated".to_owned(),
            h2d: into.rate,
            d2h: out.rate,
            latency_ns: latency as Nanos,
            source: source.clone(),
        },
        tiers: vec![Tier { profile: dram_profile, capacity: dram }, Tier { profile: card_profile, capacity: card }],
    })
}
