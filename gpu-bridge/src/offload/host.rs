//! The host that offloads: what its paths consist of.
//!
//! Sockets with DRAM, GPUs on them, cards behind them, drives behind the first. A copy between a GPU and memory of the
//! other socket crosses UPI and runs at what was measured for GPUs without NUMA affinity ([`Host::far`]).

use serde::Deserialize;
use tensortier_model::{Bytes, GpuProfile, LinkProfile, Nanos, ProfileError, Profiles, TierProfile};

use super::fluid::{Fluid, ResourceId, Work};

/// Figures of a host; see `host.toml` for their sources.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostProfile {
    /// Its name.
    pub name: String,
    /// CPU sockets.
    pub sockets: usize,
    /// Bytes of DRAM on each socket.
    pub dram_bytes: Bytes,
    /// Bytes of a card.
    pub card_bytes: Bytes,
    /// Bytes of a drive.
    pub ssd_bytes: Bytes,
    /// Between sockets, bytes per second each way.
    pub upi: f64,
    /// At which GPUs gather, bytes per second.
    pub gather: f64,
    /// Optimizer state that a socket reads and writes in DRAM, bytes per second.
    pub update: f64,
    /// How much slower that is on a card.
    pub update_on_cxl: f64,
    /// Where the figures are from.
    pub source: String,
}

/// A host with its devices.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its figures.
    pub profile: HostProfile,
    /// Each GPU.
    pub gpu: GpuProfile,
    /// A GPU's link to memory of its own socket.
    pub near: LinkProfile,
    /// The same to the other's.
    pub far: LinkProfile,
    /// A socket's DRAM; reads and writes share its rate.
    pub dram: TierProfile,
    /// A CXL card.
    pub card: TierProfile,
    /// A drive.
    pub ssd: TierProfile,
    /// GPUs.
    pub gpus: usize,
    /// Cards; card `i` is on socket `i % sockets`.
    pub cards: usize,
    /// Drives, striped.
    pub drives: usize,
}

impl Host {
    /// The built-in host with so many GPUs, cards and drives.
    ///
    /// # Errors
    /// A profile's, where the built-in files are wrong: a test loads them.
    pub fn builtin(gpus: usize, cards: usize, drives: usize) -> Result<Self, ProfileError> {
        let path = std::path::Path::new("built in");
        let parse = |source| ProfileError::Parse { path: path.into(), source: Box::new(source) };
        let profile: HostProfile = toml::from_str(include_str!("host.toml")).map_err(parse)?;
        let ours = Profiles::parse(include_str!("profiles.toml"), path)?;
        let model = Profiles::builtin();
        Ok(Self {
            profile,
            gpu: ours.gpu("a100-40g-bf16")?.clone(),
            near: model.link("pcie4-x16")?.clone(),
            far: model.link("pcie4-x16-far-numa")?.clone(),
            dram: model.tier("dram")?.clone(),
            card: model.tier("cxl-asic")?.clone(),
            ssd: ours.tier("nvme-gen4")?.clone(),
            gpus,
            cards,
            drives,
        })
    }

    /// The socket of a GPU: the first half on the first.
    pub fn socket(&self, gpu: usize) -> usize {
        gpu * self.profile.sockets / self.gpus.max(1)
    }

    /// The socket of a card.
    pub fn card_socket(&self, card: usize) -> usize {
        card % self.profile.sockets
    }

    /// Cards of a socket.
    pub fn cards_of(&self, socket: usize) -> Vec<usize> {
        (0..self.cards).filter(|&card| self.card_socket(card) == socket).collect()
    }
}

/// Where bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A socket's DRAM.
    Dram(usize),
    /// Cards, striped in equal parts.
    Cards(Vec<usize>),
    /// All sockets' DRAM and all cards, interleaved page by page.
    Everywhere,
    /// The drives.
    Ssd,
}

/// The resources of a host in a simulation.
#[derive(Clone, Debug)]
pub struct Paths {
    host: Host,
    dram: Vec<ResourceId>,
    /// By direction between sockets: from the first, to it.
    upi: [ResourceId; 2],
    /// By card: read, write.
    cards: Vec<[ResourceId; 2]>,
    ssd: [ResourceId; 2],
    /// By GPU: to it, from it.
    links: Vec<[ResourceId; 2]>,
    far: Vec<[ResourceId; 2]>,
    updates: Vec<ResourceId>,
}

impl Paths {
    /// The host's resources, added to `fluid`.
    pub fn new(host: &Host, fluid: &mut Fluid) -> Self {
        let sockets = 0..host.profile.sockets;
        let drives = host.drives.max(1) as f64;
        Self {
            dram: sockets.clone().map(|_| fluid.resource(host.dram.read)).collect(),
            upi: [fluid.resource(host.profile.upi), fluid.resource(host.profile.upi)],
            cards: (0..host.cards).map(|_| [fluid.resource(host.card.read), fluid.resource(host.card.write)]).collect(),
            ssd: [fluid.resource(host.ssd.read * drives), fluid.resource(host.ssd.write * drives)],
            links: (0..host.gpus).map(|_| [fluid.resource(host.near.h2d), fluid.resource(host.near.d2h)]).collect(),
            far: (0..host.gpus).map(|_| [fluid.resource(host.far.h2d), fluid.resource(host.far.d2h)]).collect(),
            updates: sockets.map(|_| fluid.resource(host.profile.update)).collect(),
            host: host.clone(),
        }
    }

    /// Memory that `place` consists of: resource to read or write it, its socket, and its share of the bytes.
    fn parts(&self, place: &Place, write: bool) -> Vec<(ResourceId, usize, f64)> {
        let card = |&card: &usize| (self.cards[card][usize::from(write)], self.host.card_socket(card));
        let parts: Vec<_> = match place {
            Place::Dram(socket) => vec![(self.dram[*socket], *socket)],
            Place::Cards(cards) => cards.iter().map(card).collect(),
            Place::Everywhere => {
                let dram = self.dram.iter().enumerate().map(|(socket, &resource)| (resource, socket));
                dram.chain((0..self.host.cards).map(|c| card(&c))).collect()
            }
            Place::Ssd => vec![(self.ssd[usize::from(write)], 0)],
        };
        let share = 1.0 / parts.len().max(1) as f64;
        parts.into_iter().map(|(resource, socket)| (resource, socket, share)).collect()
    }

    fn latency(&self, place: &Place) -> Nanos {
        match place {
            Place::Dram(_) => self.host.dram.latency_ns,
            Place::Cards(_) | Place::Everywhere => self.host.card.latency_ns,
            Place::Ssd => self.host.ssd.latency_ns,
        }
    }

    /// A copy between a GPU and host memory; `write`: from the GPU.
    pub fn copy(&self, gpu: usize, place: &Place, write: bool, bytes: f64) -> Work {
        let (here, way) = (self.host.socket(gpu), usize::from(write));
        let mut crosses = vec![(self.links[gpu][way], 1.0)];
        for (resource, socket, share) in self.parts(place, write) {
            crosses.push((resource, share));
            if socket != here {
                crosses.push((self.far[gpu][way], share));
                crosses.push((self.upi[usize::from((socket == 0) == write)], share));
            }
        }
        Work::Flow { bytes, latency: self.host.near.latency_ns + self.latency(place), crosses }
    }

    /// A copy between `place` and a socket's DRAM by the CPU or the drives' engine; `write`: from DRAM.
    pub fn stage(&self, socket: usize, place: &Place, write: bool, bytes: f64) -> Work {
        let mut crosses = vec![(self.dram[socket], 1.0)];
        for (resource, at, share) in self.parts(place, write) {
            crosses.push((resource, share));
            if at != socket && *place != Place::Ssd {
                crosses.push((self.upi[usize::from((at == 0) == write)], share));
            }
        }
        Work::Flow { bytes, latency: self.latency(place), crosses }
    }

    /// An update of optimizer state of `bytes`, read and written together, where it is.
    pub fn update(&self, socket: usize, place: &Place, bytes: f64) -> Work {
        let mut cost = 0.0;
        let mut crosses = Vec::new();
        for (resource, at, share) in self.parts(place, false) {
            let slow = if self.dram.contains(&resource) { 1.0 } else { self.host.profile.update_on_cxl };
            cost += share * slow;
            crosses.push((resource, share));
            if at != socket {
                crosses.push((self.upi[usize::from(at != 0)], share));
            }
        }
        crosses.push((self.updates[socket], cost));
        Work::Flow { bytes, latency: 0, crosses }
    }
}
