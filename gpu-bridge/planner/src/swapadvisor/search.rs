//! The genetic search: seeded, parallel, and the same whatever the number of threads.
//!
//! Every child has its own random stream, derived from the seed, the generation and its place;
//! children are evaluated in parallel and taken in order. The best so far never gets worse.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rayon::prelude::*;
use tensortier_model::{Machine, Nanos};

use super::{
    Decoder, Infeasible,
    genes::{self, Genes},
    pools::Sizes,
};
use crate::{
    graph::{Graph, OpId},
    plan::Plan,
    sim,
};

/// Iterations of the step for an evaluation; enough for the period to settle in most plans.
const ITERATIONS: usize = 3;
/// Share of the population that survives as it is.
const ELITE: f64 = 0.1;
/// Selection pressure: a time this share above the best is chosen `e` times less often.
const SPREAD: f64 = 0.05;
/// Children a thread evaluates with one decoder.
const BATCH: usize = 8;

/// What the search runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Order, classes and counts; victims from the same class.
    Classes,
    /// Order only; Belady over all memory.
    Global,
}

/// How long and from where.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    /// What it runs over.
    pub mode: Mode,
    /// Start of every random stream.
    pub seed: u64,
    /// Candidates in a generation.
    pub population: usize,
    /// Plans to decode and simulate in all; the search ends with the generation that reaches it.
    pub evaluations: usize,
    /// Ends the search earlier. With it two runs may differ in where they end, not in their curve.
    pub deadline: Option<Duration>,
}

impl Default for Search {
    fn default() -> Self {
        Self { mode: Mode::Classes, seed: 1, population: 64, evaluations: 2000, deadline: None }
    }
}

/// Where a search stands after a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Plans evaluated.
    pub evaluations: usize,
    /// Best step time so far.
    pub best: Nanos,
}

/// What a search found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The best plan.
    pub plan: Plan,
    /// Its simulation.
    pub report: sim::Report,
    /// Step times of the candidates it began with: the traced order with each default layout, first.
    pub seeds: Vec<Nanos>,
    /// After each generation.
    pub curve: Vec<Progress>,
}

struct Scored {
    genes: Genes,
    time: Nanos,
}

impl Search {
    /// Searches; `progress` is called after each generation and may end it.
    ///
    /// # Errors
    /// [`Infeasible`] where no candidate of the first generation can be planned.
    pub fn run(
        &self,
        graph: &Graph,
        machine: &Machine,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Found, Infeasible> {
        let began = Instant::now();
        let order = graph.traced_order();
        if graph.peak() <= machine.hbm {
            return Ok(everything_fits(graph, machine, &order));
        }
        let sizes = Sizes::new(graph, machine.hbm);
        let successors = genes::successors(graph);
        let first = self.first_generation(graph, &sizes, &successors, &order)?;
        let mut population = self.evaluate(graph, machine, &sizes, first);
        let seeds: Vec<Nanos> = population.iter().map(|scored| scored.time).collect();
        let mut evaluations = population.len();
        let mut curve = Vec::new();
        for generation in 1u64.. {
            // Stable: among equals the earlier stays ahead.
            population.sort_by_key(|scored| scored.time);
            population.truncate(self.population.max(2));
            let now = Progress { evaluations, best: population[0].time };
            curve.push(now);
            let over = self.deadline.is_some_and(|limit| began.elapsed() >= limit);
            if progress(now).is_break() || evaluations >= self.evaluations || over {
                break;
            }
            let elite = ((self.population as f64 * ELITE) as usize).max(1).min(population.len());
            let weights = selection(&population);
            let children: Vec<Genes> = (elite..self.population.max(2))
                .into_par_iter()
                .map(|place| {
                    let mut rng = stream(self.seed, generation, place as u64);
                    let a = pick(&weights, rng.random());
                    let b = pick(&weights, rng.random());
                    genes::child(graph, &successors, &sizes, &population[a].genes, &population[b].genes, &mut rng)
                })
                .collect();
            let children = self.evaluate(graph, machine, &sizes, children);
            evaluations += children.len();
            // The weaker half makes room; selection by softmax keeps some of it in play until then.
            population.truncate(population.len().div_ceil(2).max(elite));
            population.extend(children);
        }
        let best = &population[0];
        if best.time == Nanos::MAX {
            return Err(self.why(graph, machine, &sizes, &best.genes));
        }
        let plan = self.decode(&mut Decoder::new(graph, machine), &sizes, &best.genes)?;
        let report = sim::simulate(graph, machine, &plan).map_err(|_| Infeasible::Order)?;
        Ok(Found { plan, report, seeds, curve })
    }

    fn first_generation(
        &self,
        graph: &Graph,
        sizes: &Sizes,
        successors: &[Vec<OpId>],
        order: &[OpId],
    ) -> Result<Vec<Genes>, Infeasible> {
        let shapes: Vec<Option<_>> = match self.mode {
            Mode::Global => vec![None],
            Mode::Classes => sizes.defaults().into_iter().map(Some).collect(),
        };
        if shapes.is_empty() {
            return Err(sizes.shortfall());
        }
        let mut first: Vec<Genes> =
            shapes.iter().map(|shape| Genes { order: order.to_vec(), shape: shape.clone() }).collect();
        for place in first.len()..self.population.max(2) {
            let mut rng = stream(self.seed, 0, place as u64);
            let mut order = order.to_vec();
            let p = [0.01, 0.05, 0.3, 1.0][place % 4];
            let to = order.len();
            genes::reschedule(graph, successors, &mut order, 0, to, p, &mut rng);
            first.push(Genes { order, shape: shapes[place % shapes.len()].clone() });
        }
        Ok(first)
    }

    fn evaluate(&self, graph: &Graph, machine: &Machine, sizes: &Sizes, genes: Vec<Genes>) -> Vec<Scored> {
        let times: Vec<Nanos> = genes
            .par_chunks(BATCH)
            .flat_map_iter(|batch| {
                let mut decoder = Decoder::new(graph, machine);
                let time = |genes: &Genes| {
                    let plan = self.decode(&mut decoder, sizes, genes).ok()?;
                    sim::run(graph, machine, &plan, ITERATIONS, None).ok().map(|report| report.step_ns)
                };
                batch.iter().map(time).map(|time| time.unwrap_or(Nanos::MAX)).collect::<Vec<_>>()
            })
            .collect();
        genes.into_iter().zip(times).map(|(genes, time)| Scored { genes, time }).collect()
    }

    fn decode(&self, decoder: &mut Decoder<'_>, sizes: &Sizes, genes: &Genes) -> Result<Plan, Infeasible> {
        let pools = genes.shape.as_ref().map(|shape| sizes.pools(shape));
        decoder.decode(&genes.order, pools.as_ref())
    }

    /// The error of a candidate that could not be planned.
    fn why(&self, graph: &Graph, machine: &Machine, sizes: &Sizes, genes: &Genes) -> Infeasible {
        match self.decode(&mut Decoder::new(graph, machine), sizes, genes) {
            Err(error) => error,
            Ok(_) => Infeasible::Order,
        }
    }
}

fn everything_fits(graph: &Graph, machine: &Machine, order: &[OpId]) -> Found {
    let mut plan = Plan::unlimited(graph, order);
    plan.planner = "swapadvisor".into();
    let ideal = graph.ideal_time();
    let report = sim::simulate(graph, machine, &plan).unwrap_or_default();
    Found { plan, report, seeds: vec![ideal], curve: vec![Progress { evaluations: 1, best: ideal }] }
}

/// Running sums of the weights: softmax over the times above the best.
fn selection(population: &[Scored]) -> Vec<f64> {
    let best = population[0].time.max(1) as f64;
    let mut sum = 0.0;
    let weight = |scored: &Scored| (-(scored.time as f64 / best - 1.0) / SPREAD).exp();
    population
        .iter()
        .map(|scored| {
            sum += weight(scored);
            sum
        })
        .collect()
}

fn pick(sums: &[f64], at: f64) -> usize {
    let total = sums[sums.len() - 1];
    sums.partition_point(|&sum| sum <= at * total).min(sums.len() - 1)
}

fn stream(seed: u64, generation: u64, place: u64) -> Xoshiro256PlusPlus {
    let mixed = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(generation.wrapping_mul(0xbf58_476d_1ce4_e5b9))
        .wrapping_add(place.wrapping_mul(0x94d0_49bb_1331_11eb));
    Xoshiro256PlusPlus::seed_from_u64(mixed)
}
