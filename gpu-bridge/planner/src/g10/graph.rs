//! G10's planning on a graph, as a [`Plan`] that the simulator and the checker take.
//!
//! Operators are the kernels, storages the tensors. The planner's own rates are those of the machine: the first tier is
//! the host, the last of several the far tier ([`Rules::Clean`]). What the plan leaves over, and what it gets wrong, is
//! done at run time by least-recently-used eviction ([`realize`]), with G10's cost of a fault.

use tensortier_model::{Bytes, Machine};

use super::{
    load::{Kernel, Tensor, Workload},
    plan::{Backing, plan},
    profile::{Profile, Rules},
};
use crate::{
    graph::{Graph, Liveness, StorageId},
    plan::{Plan, Step, deaths},
    sim::{
        SimError,
        demand::{Demand, Policy, realize},
    },
};

/// What a fault costs at run time, ns: G10's 45 µs.
const FAULT_NS: u64 = 45_000;

/// The plan for `graph` on `machine`, in traced order.
///
/// # Errors
/// An operator that does not fit alone, full tiers.
pub fn plan_graph(graph: &Graph, machine: &Machine) -> Result<Plan, SimError> {
    if graph.peak() <= machine.hbm {
        // Its own line is at 99 % of the memory.
        return Ok(Plan { planner: "g10".into(), ..Plan::unlimited(graph, &graph.traced_order()) });
    }
    let workload = workload(graph, machine);
    let moves = plan(&workload, &profile(&workload, machine)).moves;
    let length = graph.ops.len();
    let host = 0;
    let far = machine.tiers.len().saturating_sub(1);
    let mut leaves: Vec<Vec<(StorageId, usize)>> = vec![Vec::new(); length];
    let mut returns: Vec<Vec<StorageId>> = vec![Vec::new(); length];
    for m in &moves {
        let s = m.tensor as usize - 1;
        leaves[m.evict_at].push((s, if m.to == Backing::Far { far } else { host }));
        returns[m.prefetch_at].push(s);
    }
    let order = graph.traced_order();
    let live = Liveness::new(graph, &order);
    let dies = deaths(graph, &live, length);
    let mut base = Plan::new("g10", graph);
    base.initial = begin(graph, machine, &live);
    for (at, &op) in order.iter().enumerate() {
        for &(storage, tier) in &leaves[at] {
            base.steps.extend([Step::CopyOut { storage, tier }, Step::Drop(storage)]);
        }
        base.steps.extend(returns[at].iter().map(|&s| Step::CopyIn(s)));
        base.steps.push(Step::Run(op));
        base.steps.extend(dies[at].iter().map(|&s| Step::Drop(s)));
    }
    realize(graph, machine, &base, Demand { policy: Policy::Lru, fault_ns: FAULT_NS, prefetch: 0 })
}

/// Persistent storages, soonest used first, as far as they fit.
fn begin(graph: &Graph, machine: &Machine, live: &Liveness) -> Vec<StorageId> {
    let mut persistent: Vec<StorageId> =
        (0..graph.storages.len()).filter(|&s| graph.storages[s].kind.is_persistent()).collect();
    persistent.sort_by_key(|&s| live.uses[s].first().copied().unwrap_or(usize::MAX));
    let mut free = machine.hbm;
    let fits = |s: &StorageId| {
        let left: Option<Bytes> = free.checked_sub(graph.storages[*s].bytes);
        free = left.unwrap_or(free);
        left.is_some()
    };
    persistent.into_iter().filter(fits).collect()
}

/// Tensor 0 is empty, since G10's planner counts that one twice; storage `s` is tensor `s + 1`.
fn workload(graph: &Graph, machine: &Machine) -> Workload {
    let empty = Tensor { id: 0, bytes: 0, global: true };
    let tensor = |(s, storage): (usize, &crate::graph::Storage)| Tensor {
        id: s as u32 + 1,
        bytes: storage.bytes,
        global: storage.kind.is_persistent(),
    };
    let ids = |storages: &[StorageId]| storages.iter().map(|&s| s as u32 + 1).collect();
    let kernel = |op: &crate::graph::Op| Kernel {
        name: op.kernel.clone(),
        time_us: op.time as f64 / 1e3,
        inputs: ids(&op.reads),
        outputs: ids(&op.writes),
        workspace_bytes: 0,
    };
    let host = machine.tiers.first().map_or(0, |tier| tier.capacity);
    Workload {
        model: graph.name.clone(),
        batch: 0,
        hbm_bytes: machine.hbm,
        host_bytes: if machine.tiers.len() > 1 { host } else { 0 },
        pcie_gbps: machine.link.h2d.min(machine.link.d2h) / 1e9,
        ssd_gbps: 0.0,
        ssd_latency_us: 0.0,
        system_latency_us: machine.link.latency_ns as f64 / 1e3,
        page_bytes: 4096,
        tensors: std::iter::once(empty).chain(graph.storages.iter().enumerate().map(tensor)).collect(),
        kernels: graph.ops.iter().map(kernel).collect(),
    }
}

fn profile(w: &Workload, machine: &Machine) -> Profile {
    let far = machine.tiers.last().map(|tier| &tier.profile);
    Profile {
        link: w.pcie_gbps * 1e3,
        far: far.map_or(0.0, |far| far.read.min(far.write) / 1e6),
        far_latency_us: far.map_or(0.0, |far| far.latency_ns as f64 / 1e3),
        rules: Rules::Clean,
        ..Profile::g10(w)
    }
}
