//! Tasks that wait for each other, and flows that share what they cross.
//!
//! A flow moves bytes over several resources at once (a card, a memory controller, a link, an engine). Rates are max-min
//! fair: all flows rise together until a resource is full; those that cross it stay, the others rise on. They change
//! whenever a flow begins or ends. Between two such moments everything is linear, so the simulation is exact for the
//! model.

use std::{cmp::Reverse, collections::BinaryHeap};

use tensortier_model::Nanos;

/// Names a task; they count up from 0.
pub type TaskId = usize;
/// Names a resource.
pub type ResourceId = usize;

/// What a task does.
#[derive(Clone, Debug)]
pub enum Work {
    /// Takes its time, whatever else happens.
    Time(Nanos),
    /// Moves bytes.
    Flow {
        /// How many; 0 ends after the latency.
        bytes: f64,
        /// Before the first byte.
        latency: Nanos,
        /// What it crosses, and what share of its rate each of them sees.
        crosses: Vec<(ResourceId, f64)>,
    },
}

#[derive(Clone, Debug)]
struct Task {
    work: Work,
    after: Vec<TaskId>,
}

/// When a task ran.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// When all that it waits for had ended, nanoseconds.
    pub began: f64,
    /// When it was over.
    pub ended: f64,
}

/// Tasks and resources.
#[derive(Clone, Debug, Default)]
pub struct Fluid {
    /// Bytes per nanosecond of each resource.
    capacity: Vec<f64>,
    tasks: Vec<Task>,
}

/// A moment, ordered for a heap.
#[derive(Clone, Copy, Debug, PartialEq)]
struct At(f64, TaskId);

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

#[derive(Clone, Copy, Debug)]
struct Flowing {
    task: TaskId,
    left: f64,
    rate: f64,
}

impl Fluid {
    /// A resource of `rate` bytes per second.
    pub fn resource(&mut self, rate: f64) -> ResourceId {
        self.capacity.push(rate / 1e9);
        self.capacity.len() - 1
    }

    /// A task that begins when all of `after` have ended.
    ///
    /// # Panics
    /// If `after` names a task that is not there yet: so no task waits for itself.
    pub fn task(&mut self, work: Work, after: Vec<TaskId>) -> TaskId {
        assert!(after.iter().all(|id| *id < self.tasks.len()), "a task waits for earlier ones");
        self.tasks.push(Task { work, after });
        self.tasks.len() - 1
    }

    /// Bytes that cross each resource.
    pub fn loads(&self) -> Vec<f64> {
        let mut loads = vec![0.0; self.capacity.len()];
        for task in &self.tasks {
            if let Work::Flow { bytes, crosses, .. } = &task.work {
                crosses.iter().for_each(|&(resource, share)| loads[resource] += bytes * share);
            }
        }
        loads
    }

    /// Least time that any order of these tasks takes: the busiest resource's.
    pub fn bound(&self) -> f64 {
        self.loads().iter().zip(&self.capacity).map(|(load, rate)| load / rate).fold(0.0, f64::max)
    }

    /// Runs everything; the times of each task.
    pub fn run(&self) -> Vec<Span> {
        let mut spans = vec![Span::default(); self.tasks.len()];
        let mut waits: Vec<usize> = self.tasks.iter().map(|task| task.after.len()).collect();
        let mut next = vec![Vec::new(); self.tasks.len()];
        for (id, task) in self.tasks.iter().enumerate() {
            task.after.iter().for_each(|&before| next[before].push(id));
        }
        let mut timers = BinaryHeap::new();
        let mut flows: Vec<Flowing> = Vec::new();
        let mut ready: Vec<TaskId> = (0..self.tasks.len()).filter(|&id| waits[id] == 0).collect();
        let mut latent = vec![true; self.tasks.len()];
        let mut now = 0.0_f64;
        let mut stale = false;
        loop {
            while let Some(id) = ready.pop() {
                spans[id].began = now;
                let wait = match self.tasks[id].work {
                    Work::Time(time) => time,
                    Work::Flow { latency, .. } => latency,
                };
                timers.push(Reverse(At(now + wait as f64, id)));
            }
            if std::mem::take(&mut stale) {
                self.share(&mut flows);
            }
            let flowed = flows.iter().map(|flow| now + flow.left / flow.rate).fold(f64::INFINITY, f64::min);
            let timed = timers.peek().map_or(f64::INFINITY, |Reverse(At(at, _))| *at);
            let at = flowed.min(timed);
            if at.is_infinite() {
                return spans;
            }
            flows.iter_mut().for_each(|flow| flow.left -= flow.rate * (at - now));
            now = at;
            let mut over = Vec::new();
            while let Some(Reverse(At(at, id))) = timers.peek().copied().filter(|Reverse(At(at, _))| *at <= now) {
                timers.pop();
                debug_assert!(at <= now);
                match self.tasks[id].work {
                    Work::Flow { bytes, .. } if bytes > 0.0 && std::mem::take(&mut latent[id]) => {
                        flows.push(Flowing { task: id, left: bytes, rate: 0.0 });
                        stale = true;
                    }
                    _ => over.push(id),
                }
            }
            flows.retain(|flow| {
                // Below a byte, or nearer than a thousandth of a nanosecond: rounding.
                let done = flow.rate > 0.0 && (flow.left < 1e-3 || flow.left / flow.rate < 1e-3);
                if done {
                    over.push(flow.task);
                    stale = true;
                }
                !done
            });
            for id in over {
                spans[id].ended = now;
                for &later in &next[id] {
                    waits[later] -= 1;
                    if waits[later] == 0 {
                        ready.push(later);
                    }
                }
            }
        }
    }

    /// Max-min fair rates.
    fn share(&self, flows: &mut [Flowing]) {
        let mut room = self.capacity.clone();
        let mut open: Vec<usize> = (0..flows.len()).collect();
        let crosses = |task: TaskId| match &self.tasks[task].work {
            Work::Flow { crosses, .. } => crosses.as_slice(),
            Work::Time(_) => &[],
        };
        while !open.is_empty() {
            let mut weight = vec![0.0; room.len()];
            for &flow in &open {
                crosses(flows[flow].task).iter().for_each(|&(resource, share)| weight[resource] += share);
            }
            let full = (0..room.len()).filter(|&r| weight[r] > 0.0).min_by(|&a, &b| {
                let level = |r: usize| room[r] / weight[r];
                level(a).total_cmp(&level(b))
            });
            let Some(full) = full else {
                // Nothing in the way: as good as at once.
                open.drain(..).for_each(|flow| flows[flow].rate = 1e6);
                return;
            };
            let level = (room[full] / weight[full]).max(1e-9);
            open.retain(|&flow| {
                let path = crosses(flows[flow].task);
                let stays = !path.iter().any(|&(resource, share)| resource == full && share > 0.0);
                if !stays {
                    flows[flow].rate = level;
                    path.iter()
                        .for_each(|&(resource, share)| room[resource] = (room[resource] - level * share).max(0.0));
                }
                stays
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flow(bytes: f64, crosses: &[ResourceId]) -> Work {
        Work::Flow { bytes, latency: 0, crosses: crosses.iter().map(|r| (*r, 1.0)).collect() }
    }

    #[test]
    fn flows_share_and_then_have_all() {
        let mut fluid = Fluid::default();
        let link = fluid.resource(10e9);
        let card = fluid.resource(2e9);
        let slow = fluid.task(flow(4_000.0, &[link, card]), vec![]);
        let fast = fluid.task(flow(16_000.0, &[link]), vec![]);
        let last = fluid.task(flow(10_000.0, &[link]), vec![fast]);
        let spans = fluid.run();
        assert_eq!((spans[slow].ended.round(), spans[fast].ended.round()), (2000.0, 2000.0));
        assert_eq!(spans[last], Span { began: spans[fast].ended, ended: spans[fast].ended + 1000.0 });
    }

    #[test]
    fn latency_comes_first_and_shares_count() {
        let mut fluid = Fluid::default();
        let cards = [fluid.resource(1e9), fluid.resource(1e9)];
        let crosses = cards.iter().map(|card| (*card, 0.5)).collect();
        let striped = fluid.task(Work::Flow { bytes: 2000.0, latency: 100, crosses }, vec![]);
        assert!((fluid.run()[striped].ended - 1100.0).abs() < 1e-6);
    }

    proptest! {
        /// No task before those that it waits for; never faster than the busiest resource; a lone chain adds up.
        #[test]
        fn times_are_possible(
            tasks in prop::collection::vec((0_u32..2000, 0_u64..50, 0_usize..3, 0_usize..3, any::<[u8; 2]>()), 1..40)
        ) {
            let mut fluid = Fluid::default();
            let resources: Vec<_> = [1e9, 3e9, 7e9].into_iter().map(|rate| fluid.resource(rate)).collect();
            let mut before = Vec::new();
            for (id, (bytes, latency, a, b, after)) in tasks.into_iter().enumerate() {
                let mut crosses = vec![(resources[a], 1.0)];
                if a != b {
                    crosses.push((resources[b], 0.5));
                }
                let after: Vec<_> = after.iter().map(|x| *x as usize).filter(|x| *x < id).collect();
                before.push(after.clone());
                fluid.task(Work::Flow { bytes: bytes.into(), latency, crosses }, after);
            }
            let spans = fluid.run();
            for (id, after) in before.iter().enumerate() {
                prop_assert!(spans[id].ended >= spans[id].began);
                prop_assert!(after.iter().all(|x| spans[*x].ended <= spans[id].began));
            }
            let end = spans.iter().map(|span| span.ended).fold(0.0, f64::max);
            prop_assert!(end >= fluid.bound() - 0.1, "{end} {}", fluid.bound());
        }
    }
}
