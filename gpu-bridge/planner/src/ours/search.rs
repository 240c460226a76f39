//! The search: by groups first, then small changes under simulated annealing. Anytime; the same for
//! equal seeds, whatever ends it later.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_model::{Machine, Nanos};

use super::{
    decode::Decoder,
    genes::{Facts, Genes},
    moves::{self, KINDS},
};
use crate::{
    graph::{Graph, StorageId},
    plan::Plan,
    sim,
    swapadvisor::{Infeasible, Progress},
};

/// Iterations of the step for an evaluation.
const ITERATIONS: usize = 3;
/// Share of the cost that annealing accepts at first, falling to nothing over [`COOLING`] evaluations.
const WARM: f64 = 0.002;
/// Evaluations of one annealing; then it begins again from the best.
const COOLING: usize = 2000;
/// Cost of a nanosecond of recomputation and of copying that the step does not show.
const AGAIN: f64 = 0.002;
const COPIED: f64 = 0.001;
/// Evaluations that a deadline leaves time for: the final plan is decoded again and simulated until it is steady.
const FINAL: u32 = 5;
/// At most this share of a deadline is left, whatever the longest evaluation has taken.
const FINAL_SHARE: u32 = 20;
/// Evaluations between two calls of `progress`.
const REPORT: usize = 64;

/// Our planner: how long and from where.
#[derive(Debug, Clone, Copy)]
pub struct Ours {
    /// Start of the random stream.
    pub seed: u64,
    /// Plans to decode and simulate in all.
    pub evaluations: usize,
    /// Ends the search earlier, so that the plan is there by then. With it two runs may differ in where they end, not in
    /// their curve.
    pub deadline: Option<Duration>,
}

/// What the search found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The best plan.
    pub plan: Plan,
    /// Its simulation.
    pub report: sim::Report,
    /// Each improvement, with the time since the beginning.
    pub curve: Vec<(Duration, Progress)>,
    /// Plans evaluated.
    pub evaluations: usize,
}

impl Ours {
    /// Searches; `progress` is called now and then and may end it.
    ///
    /// # Errors
    /// [`Infeasible`] where not even swapping everything has room.
    pub fn run(
        &self,
        graph: &Graph,
        machine: &Machine,
        progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Found, Infeasible> {
        let began = Instant::now();
        if graph.peak() <= machine.hbm {
            let plan = Plan { planner: "ours".into(), ..Plan::unlimited(graph, &graph.traced_order()) };
            let report = sim::simulate(graph, machine, &plan).map_err(|_| Infeasible::Order)?;
            return Ok(Found { plan, report, curve: Vec::new(), evaluations: 0 });
        }
        let facts = Facts::new(graph, machine);
        let mut climb = Climb::new(self, &facts, progress, began);
        let first = Genes::new(graph);
        climb.decoder.decode(&first)?;
        let start = climb.constructed(first);
        let start = climb.by_groups(start);
        climb.anneal(start);
        let best = climb.best.take().ok_or(Infeasible::Order)?;
        let (curve, evaluations) = (std::mem::take(&mut climb.curve), climb.evaluations);
        let plan = Decoder::new(&facts).decode(&best.genes)?;
        let report = sim::simulate(graph, machine, &plan).map_err(|_| Infeasible::Order)?;
        Ok(Found { plan, report, curve, evaluations })
    }
}

#[derive(Clone)]
struct Scored {
    genes: Genes,
    step: Nanos,
    cost: f64,
}

struct Climb<'a, P> {
    limits: &'a Ours,
    facts: &'a Facts<'a>,
    decoder: Decoder<'a>,
    progress: P,
    began: Instant,
    /// The longest evaluation.
    longest: Duration,
    evaluations: usize,
    stopped: bool,
    best: Option<Scored>,
    curve: Vec<(Duration, Progress)>,
    rng: Xoshiro256PlusPlus,
}

impl<'a, P: FnMut(Progress) -> ControlFlow<()>> Climb<'a, P> {
    fn new(limits: &'a Ours, facts: &'a Facts<'a>, progress: P, began: Instant) -> Self {
        Self {
            limits,
            facts,
            decoder: Decoder::new(facts),
            progress,
            began,
            longest: Duration::ZERO,
            evaluations: 0,
            stopped: false,
            best: None,
            curve: Vec::new(),
            rng: Xoshiro256PlusPlus::seed_from_u64(limits.seed),
        }
    }

    fn is_over(&self) -> bool {
        let at_ideal = self.best.as_ref().is_some_and(|best| best.step <= self.facts.graph.ideal_time());
        self.stopped
            || at_ideal
            || self.evaluations >= self.limits.evaluations
            || self.limits.deadline.is_some_and(|limit| self.began.elapsed() + self.left(limit) >= limit)
    }

    /// What a deadline has to leave for the final plan.
    fn left(&self, limit: Duration) -> Duration {
        (self.longest * FINAL).min(limit / FINAL_SHARE)
    }

    /// Counts an evaluation, or a change that came to nothing.
    fn tick(&mut self) {
        self.evaluations += 1;
        if self.evaluations.is_multiple_of(REPORT) {
            let best = self.best.as_ref().map_or(Nanos::MAX, |best| best.step);
            self.stopped |= (self.progress)(Progress { evaluations: self.evaluations, best }).is_break();
        }
    }

    /// Step time and cost of `genes`; none where they have no plan.
    fn score(&mut self, genes: Genes) -> Option<Scored> {
        self.tick();
        let machine = self.facts.machine;
        let began = Instant::now();
        let report = self
            .decoder
            .decode(&genes)
            .ok()
            .and_then(|plan| sim::run(self.facts.graph, machine, &plan, ITERATIONS, None).ok());
        self.longest = self.longest.max(began.elapsed());
        let report = report?;
        let again = report.compute_ns.saturating_sub(self.facts.graph.ideal_time());
        let copied = report.moved() as f64 * 1e9 / machine.link.h2d;
        let cost = report.step_ns as f64 + AGAIN * again as f64 + COPIED * copied;
        let scored = Scored { genes, step: report.step_ns, cost };
        if self.best.as_ref().is_none_or(|best| scored.cost < best.cost) {
            let rises = self.best.as_ref().is_some_and(|best| scored.step > best.step);
            // The cost is for climbing; what is kept never has a longer step.
            if !rises {
                let now = Progress { evaluations: self.evaluations, best: scored.step };
                self.curve.push((self.began.elapsed(), now));
                self.best = Some(scored.clone());
            }
        }
        Some(scored)
    }

    /// Better of the two, in place.
    fn keep(&mut self, now: &mut Scored, genes: Genes) -> bool {
        match self.score(genes) {
            Some(new) if new.cost < now.cost => {
                *now = new;
                true
            }
            _ => false,
        }
    }

    /// Forgets group after group, cheapest first, and gives the best prefix.
    fn constructed(&mut self, first: Genes) -> Scored {
        let facts = self.facts;
        let nothing = Scored { genes: first.clone(), step: Nanos::MAX, cost: f64::INFINITY };
        let mut best = self.score(first.clone()).unwrap_or(nothing);
        let mut genes = first;
        for group in &facts.groups {
            if self.is_over() {
                break;
            }
            group.storages.iter().for_each(|&s| genes.forget[s] = true);
            self.keep(&mut best, genes.clone());
        }
        best
    }

    /// Flips groups, halves of them and every other member, as long as that helps.
    fn by_groups(&mut self, mut now: Scored) -> Scored {
        let facts = self.facts;
        loop {
            let before = now.cost;
            for group in &facts.groups {
                let members = &group.storages;
                let half = members.len() / 2;
                let parts: [Vec<StorageId>; 5] = [
                    members.clone(),
                    members[..half].to_vec(),
                    members[half..].to_vec(),
                    members.iter().copied().step_by(2).collect(),
                    members.iter().copied().skip(1).step_by(2).collect(),
                ];
                for (part, value) in parts.iter().flat_map(|part| [(part, true), (part, false)]) {
                    if self.is_over() {
                        return now;
                    }
                    if part.iter().all(|&s| now.genes.forget[s] == value) {
                        continue;
                    }
                    let mut genes = now.genes.clone();
                    part.iter().for_each(|&s| genes.forget[s] = value);
                    self.keep(&mut now, genes);
                }
            }
            for lead in [0, 2, 4, 8, 16, 32, 128] {
                if self.is_over() {
                    return now;
                }
                let genes = Genes { lead, ..now.genes.clone() };
                self.keep(&mut now, genes);
            }
            if now.cost > before * 0.999 {
                return now;
            }
        }
    }

    fn anneal(&mut self, start: Scored) {
        let mut now = start;
        let mut weights = [1.0f64; KINDS.len()];
        let mut since = 0;
        while !self.is_over() {
            let kind = self.choose(&weights);
            let mut genes = now.genes.clone();
            if !moves::small(self.facts, &mut genes, KINDS[kind], &mut self.rng) {
                self.tick();
                continue;
            }
            let warmth = WARM * (1.0 - since as f64 / COOLING as f64);
            let luck: f64 = self.rng.random::<f64>().max(1e-12);
            let most = now.cost * (1.0 - warmth * luck.ln());
            let mut helped = 0.0;
            if let Some(new) = self.score(genes)
                && new.cost <= most
            {
                helped = f64::from(u8::from(new.cost < now.cost));
                now = new;
            }
            weights[kind] = 0.99 * weights[kind] + 0.01 * helped;
            since += 1;
            if since >= COOLING {
                since = 0;
                now = self.best.clone().unwrap_or(now);
            }
        }
    }

    /// A kind of change, those that have helped more often; each has a fair chance.
    fn choose(&mut self, weights: &[f64]) -> usize {
        let floor = 0.02;
        let mut left = self.rng.random::<f64>() * weights.iter().map(|w| w + floor).sum::<f64>();
        weights
            .iter()
            .position(|w| {
                left -= w + floor;
                left < 0.0
            })
            .unwrap_or(0)
    }
}
