//! Clocks of the streams and the state of every storage while a plan runs.

use tensortier_model::{Bytes, Machine, Nanos};

use super::{Report, SimError, pool::Pool};
use crate::{
    graph::{Graph, OpId, StorageId, StorageKind},
    plan::{Plan, Step},
};

#[derive(Clone, Copy, Default)]
struct OnDevice {
    resident: bool,
    /// When its contents are complete.
    ready: Nanos,
    /// When the last step that uses it ends.
    busy: Nanos,
    /// When the last copy out of it ends.
    copied: Nanos,
}

#[derive(Clone, Copy)]
struct OnHost {
    tier: usize,
    ready: Nanos,
    /// When the last copy in from it ends.
    busy: Nanos,
}

pub(super) struct State<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    plan: &'a Plan,
    pools: Vec<Pool>,
    device: Vec<OnDevice>,
    host: Vec<Option<OnHost>>,
    /// For each storage the last step that names it or whose operator touches it.
    last_step: Vec<usize>,
    /// Room in each tier.
    tiers: Vec<Pool>,
    compute: Nanos,
    h2d: Nanos,
    d2h: Nanos,
    /// One clock a half-duplex tier.
    tier_clock: Vec<Nanos>,
    /// Copies may not start before this.
    fault: Nanos,
    hbm_used: Bytes,
    total: Report,
}

impl<'a> State<'a> {
    pub(super) fn new(graph: &'a Graph, machine: &'a Machine, plan: &'a Plan) -> Result<Self, SimError> {
        let pools = match &plan.pools {
            Some(pools) => {
                let need = pools.bytes();
                if need > machine.hbm {
                    return Err(SimError::HbmFull { step: 0, need: need - machine.hbm, capacity: machine.hbm });
                }
                pools.sizes.iter().zip(&pools.counts).map(|(&size, &n)| Pool::new(n.into(), size)).collect()
            }
            None => vec![Pool::new(machine.hbm, 1)],
        };
        let tiers = machine.tiers.len();
        let mut state = Self {
            graph,
            machine,
            plan,
            pools,
            device: vec![OnDevice::default(); graph.storages.len()],
            host: vec![None; graph.storages.len()],
            last_step: last_steps(graph, plan),
            tiers: machine.tiers.iter().map(|tier| Pool::new(tier.capacity, 1)).collect(),
            compute: 0,
            h2d: 0,
            d2h: 0,
            tier_clock: vec![0; tiers],
            fault: 0,
            hbm_used: 0,
            total: Report { tier_peak: vec![0; tiers], ..Report::default() },
        };
        for &(s, tier) in &plan.home {
            if state.host[s].is_none() {
                state.take_host(0, s, tier)?;
                state.host[s] = Some(OnHost { tier, ready: 0, busy: 0 });
            }
        }
        for &s in &plan.initial {
            if !graph.storages[s].kind.is_persistent() {
                return Err(SimError::NotCyclic { storage: s });
            }
            if state.device[s].resident {
                return Err(SimError::Present { step: 0, storage: s });
            }
            state.grant(0, s)?;
            state.device[s].resident = true;
        }
        Ok(state)
    }

    pub(super) fn compute_clock(&self) -> Nanos {
        self.compute
    }

    pub(super) fn begin_iteration(&mut self) {
        let tiers = self.machine.tiers.len();
        self.total.compute_ns = 0;
        self.total.copies = 0;
        self.total.bytes_in = vec![0; tiers];
        self.total.bytes_out = vec![0; tiers];
    }

    /// Residents must be the initial ones again; host copies of what the step made are forgotten.
    pub(super) fn end_iteration(&mut self, plan: &Plan) -> Result<(), SimError> {
        let mut expected = vec![false; self.device.len()];
        for &s in &plan.initial {
            expected[s] = true;
        }
        if let Some(storage) = (0..expected.len()).find(|&s| self.device[s].resident != expected[s]) {
            return Err(SimError::NotCyclic { storage });
        }
        for s in 0..self.host.len() {
            if !self.graph.storages[s].kind.is_persistent() {
                self.forget_host(s, self.compute);
            }
        }
        Ok(())
    }

    pub(super) fn report(self, step_ns: Nanos, first_ns: Nanos, steady: bool) -> Report {
        Report { step_ns, first_ns, steady, ..self.total }
    }

    pub(super) fn step(&mut self, at: usize, step: Step) -> Result<(Nanos, Nanos), SimError> {
        match step {
            Step::Run(op) => self.run(at, op),
            Step::CopyOut { storage, tier } => self.copy_out(at, storage, tier),
            Step::CopyIn(storage) => self.copy_in(at, storage),
            Step::Drop(storage) => {
                let span = self.drop(at, storage)?;
                if self.last_step[storage] == at && self.graph.storages[storage].kind == StorageKind::Temporary {
                    self.forget_host(storage, span.1);
                }
                Ok(span)
            }
            Step::Fault(ns) => {
                self.fault = self.fault.max(self.compute + ns);
                Ok((self.fault, self.fault))
            }
        }
    }

    fn run(&mut self, at: usize, op: OpId) -> Result<(Nanos, Nanos), SimError> {
        let flat = &self.graph.flat;
        let (touches, time) = (flat.of(op), flat.times[op]);
        let mut start = self.compute;
        for touch in touches.iter().filter(|touch| touch.reads) {
            let on = &self.device[touch.storage as usize];
            if !on.resident {
                return Err(SimError::Absent { step: at, storage: touch.storage as usize });
            }
            start = start.max(on.ready);
        }
        for touch in touches.iter().filter(|touch| touch.writes) {
            let s = touch.storage as usize;
            if self.device[s].resident {
                // The old contents must not change under a copy, nor be overtaken by one.
                start = start.max(self.device[s].copied).max(self.device[s].ready);
            } else {
                start = start.max(self.grant(at, s)?);
                self.device[s] = OnDevice { resident: true, ..OnDevice::default() };
            }
        }
        let end = start + time;
        for touch in touches {
            let on = &mut self.device[touch.storage as usize];
            on.busy = on.busy.max(end);
            if touch.writes {
                on.ready = end;
            }
        }
        self.compute = end;
        self.total.compute_ns += time;
        Ok((start, end))
    }

    fn copy_out(&mut self, at: usize, s: StorageId, tier: usize) -> Result<(Nanos, Nanos), SimError> {
        if !self.device[s].resident {
            return Err(SimError::Absent { step: at, storage: s });
        }
        let mut room = self.host[s].map_or(0, |host| host.busy);
        if self.host[s].is_none_or(|host| host.tier != tier) {
            self.forget_host(s, room);
            room = self.take_host(at, s, tier)?;
        }
        let bytes = self.graph.storages[s].bytes;
        let start = room.max(self.d2h).max(self.device[s].ready).max(self.fault).max(self.tier_free(tier));
        let end = start + self.machine.d2h(bytes, tier);
        self.d2h = end;
        self.tier_clock[tier] = end;
        self.device[s].copied = end;
        self.device[s].busy = self.device[s].busy.max(end);
        self.host[s] = Some(OnHost { tier, ready: end, busy: end });
        self.total.bytes_out[tier] += bytes;
        self.total.copies += 1;
        Ok((start, end))
    }

    fn copy_in(&mut self, at: usize, s: StorageId) -> Result<(Nanos, Nanos), SimError> {
        if self.device[s].resident {
            return Err(SimError::Present { step: at, storage: s });
        }
        let Some(host @ OnHost { tier, ready, .. }) = self.host[s] else {
            return Err(SimError::NoHostCopy { step: at, storage: s });
        };
        let bytes = self.graph.storages[s].bytes;
        let start = self.grant(at, s)?.max(self.h2d).max(ready).max(self.fault).max(self.tier_free(tier));
        let end = start + self.machine.h2d(bytes, tier);
        self.host[s] = Some(OnHost { busy: end, ..host });
        self.h2d = end;
        self.tier_clock[tier] = end;
        self.device[s] = OnDevice { resident: true, ready: end, busy: end, copied: 0 };
        self.total.bytes_in[tier] += bytes;
        self.total.copies += 1;
        Ok((start, end))
    }

    fn drop(&mut self, at: usize, s: StorageId) -> Result<(Nanos, Nanos), SimError> {
        if !self.device[s].resident {
            return Err(SimError::Absent { step: at, storage: s });
        }
        let time = self.device[s].busy;
        self.device[s].resident = false;
        let (pool, units) = self.share(s);
        self.pools[pool].free(time, units);
        self.hbm_used -= units * self.pools[pool].unit;
        Ok((time, time))
    }

    fn grant(&mut self, at: usize, s: StorageId) -> Result<Nanos, SimError> {
        let (index, units) = self.share(s);
        let pool = &mut self.pools[index];
        let granted =
            pool.grant(units).map_err(|need| SimError::HbmFull { step: at, need, capacity: pool.capacity })?;
        self.hbm_used += units * pool.unit;
        self.total.hbm_peak = self.total.hbm_peak.max(self.hbm_used);
        Ok(granted)
    }

    /// The pool of a storage and what it takes there.
    fn share(&self, s: StorageId) -> (usize, u64) {
        match &self.plan.pools {
            Some(pools) => (pools.class_of[s].into(), 1),
            None => (0, self.graph.storages[s].bytes),
        }
    }

    fn tier_free(&self, tier: usize) -> Nanos {
        if self.machine.tiers[tier].profile.half_duplex { self.tier_clock[tier] } else { 0 }
    }

    fn take_host(&mut self, at: usize, s: StorageId, tier: usize) -> Result<Nanos, SimError> {
        let room = self.tiers[tier].grant(self.graph.storages[s].bytes);
        let room = room.map_err(|_| SimError::TierFull { step: at, tier })?;
        self.total.tier_peak[tier] = self.total.tier_peak[tier].max(self.tiers[tier].taken());
        Ok(room)
    }

    fn forget_host(&mut self, s: StorageId, at: Nanos) {
        if let Some(host) = self.host[s].take() {
            self.tiers[host.tier].free(at.max(host.busy), self.graph.storages[s].bytes);
        }
    }
}

fn last_steps(graph: &Graph, plan: &Plan) -> Vec<usize> {
    let mut last = vec![0; graph.storages.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        match *step {
            Step::Run(op) => graph.flat.of(op).iter().for_each(|touch| last[touch.storage as usize] = at),
            Step::CopyOut { storage: s, .. } | Step::CopyIn(s) | Step::Drop(s) => last[s] = at,
            Step::Fault(_) => {}
        }
    }
    last
}
