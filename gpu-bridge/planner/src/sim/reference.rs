//! A slow simulator for tests: an event loop over time with explicit dependencies, as unlike the
//! fast one as it can be. Tiers are taken to have room.

use tensortier_model::{Machine, Nanos};

use super::Span;
use crate::{
    graph::Graph,
    plan::{Plan, Step},
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Compute,
    In,
    Out,
    None,
}

struct Job {
    stream: Stream,
    took: Nanos,
    after: Vec<usize>,
    /// (pool, units, allocates)
    memory: Vec<(usize, u64, bool)>,
    tier: Option<usize>,
    start: Option<Nanos>,
}

/// When each step of `iterations` repetitions runs.
pub(super) fn spans(graph: &Graph, machine: &Machine, plan: &Plan, iterations: usize) -> Vec<Span> {
    let mut jobs = jobs(graph, machine, plan, iterations);
    let capacity: Vec<u64> = match &plan.pools {
        Some(pools) => pools.counts.iter().map(|&n| n.into()).collect(),
        None => vec![machine.hbm],
    };
    let mut held = vec![0; capacity.len()];
    plan.initial.iter().map(|&s| share(graph, plan, s)).for_each(|(pool, units)| held[pool] += units);
    let mut now = 0;
    loop {
        let mut changed = true;
        while changed {
            changed = false;
            for at in 0..jobs.len() {
                if jobs[at].start.is_none() && can_start(&jobs, at, now, &capacity, &held, machine) {
                    jobs[at].start = Some(now);
                    changed = true;
                }
            }
        }
        let ends = jobs.iter().filter_map(|job| Some(job.start? + job.took)).filter(|&end| end > now);
        match ends.min() {
            Some(next) => now = next,
            None => break,
        }
    }
    let count = plan.steps.len();
    let span = |(at, job): (usize, &Job)| {
        let start = job.start.expect("the plan fits");
        let end = start + job.took;
        let fault = matches!(plan.steps[at % count], Step::Fault(_));
        Span { iteration: at / count, step: at % count, start: if fault { end } else { start }, end }
    };
    jobs.iter().enumerate().map(span).collect()
}

fn done(job: &Job, now: Nanos) -> bool {
    job.start.is_some_and(|start| start + job.took <= now)
}

fn can_start(jobs: &[Job], at: usize, now: Nanos, capacity: &[u64], held: &[u64], machine: &Machine) -> bool {
    let job = &jobs[at];
    let is_free = |other: &Job| {
        let same = job.stream != Stream::None && other.stream == job.stream;
        let half = |tier: usize| machine.tiers[tier].profile.half_duplex && other.tier == Some(tier);
        !(same || job.tier.is_some_and(half)) || done(other, now)
    };
    job.after.iter().all(|&other| done(&jobs[other], now))
        && jobs[..at].iter().all(is_free)
        // Memory in issue order: this and all earlier allocations against all earlier frees so far.
        && job.memory.iter().filter(|m| m.2).all(|&(pool, ..)| {
            (0..=at).filter(|&upto| jobs[upto].memory.iter().any(|m| m.2 && m.0 == pool)).all(|upto| {
                let of = |n: usize, allocates: bool| {
                    jobs[n].memory.iter().filter(move |m| m.0 == pool && m.2 == allocates).map(|m| m.1).sum::<u64>()
                };
                let taken: u64 = (0..=upto).map(|n| of(n, true)).sum();
                let freed: u64 = (0..upto).filter(|&n| done(&jobs[n], now)).map(|n| of(n, false)).sum();
                held[pool] + taken <= capacity[pool] + freed
            })
        })
}

fn share(graph: &Graph, plan: &Plan, s: usize) -> (usize, u64) {
    match &plan.pools {
        Some(pools) => (pools.class_of[s].into(), 1),
        None => (0, graph.storages[s].bytes),
    }
}

fn jobs(graph: &Graph, machine: &Machine, plan: &Plan, iterations: usize) -> Vec<Job> {
    let n = graph.storages.len();
    let mut jobs: Vec<Job> = Vec::new();
    let mut resident = vec![false; n];
    plan.initial.iter().for_each(|&s| resident[s] = true);
    let mut tier: Vec<usize> = vec![0; n];
    plan.home.iter().rev().for_each(|&(s, t)| tier[s] = t);
    // Steps since the storage came to the device, and copies of it to and from the host.
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut contents: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut outs: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut copies: Vec<Vec<usize>> = vec![Vec::new(); n];
    let (mut faults, mut runs) = (Vec::new(), Vec::new());
    for at in 0..iterations * plan.steps.len() {
        let mut job =
            Job { stream: Stream::None, took: 0, after: Vec::new(), memory: Vec::new(), tier: None, start: None };
        match plan.steps[at % plan.steps.len()] {
            Step::Run(op) => {
                let of = &graph.ops[op];
                (job.stream, job.took) = (Stream::Compute, of.time);
                for &s in &of.touches {
                    if !resident[s] {
                        let (pool, units) = share(graph, plan, s);
                        job.memory.push((pool, units, true));
                        (users[s], contents[s], outs[s]) = (Vec::new(), Vec::new(), Vec::new());
                        resident[s] = true;
                    }
                    job.after.extend(&contents[s]);
                    if of.writes.contains(&s) {
                        job.after.extend(&outs[s]);
                        contents[s].push(at);
                    }
                    users[s].push(at);
                }
                runs.push(at);
            }
            Step::CopyOut { storage: s, tier: to } => {
                (job.stream, job.took) = (Stream::Out, machine.d2h(graph.storages[s].bytes, to));
                job.after = [&contents[s][..], &copies[s], &faults].concat();
                tier[s] = to;
                job.tier = Some(to);
                [&mut users[s], &mut outs[s], &mut copies[s]].into_iter().for_each(|list| list.push(at));
            }
            Step::CopyIn(s) => {
                (job.stream, job.took) = (Stream::In, machine.h2d(graph.storages[s].bytes, tier[s]));
                job.after = [&copies[s][..], &faults].concat();
                job.tier = Some(tier[s]);
                let (pool, units) = share(graph, plan, s);
                job.memory.push((pool, units, true));
                resident[s] = true;
                (users[s], contents[s], outs[s]) = (vec![at], vec![at], Vec::new());
                copies[s].push(at);
            }
            Step::Drop(s) => {
                job.after = users[s].clone();
                let (pool, units) = share(graph, plan, s);
                job.memory.push((pool, units, false));
                resident[s] = false;
            }
            Step::Fault(ns) => {
                job.took = ns;
                job.after = runs.clone();
                faults.push(at);
            }
        }
        jobs.push(job);
    }
    jobs
}
