//! One training step of a plan, as tasks: what waits for what.
//!
//! ```text
//! forward   fetch (drive → buffer → GPU, or memory → GPU) → gather → matrix, in order      checkpoint of each layer out
//! backward  the same in reverse, checkpoint in before its layer                            gradient of each matrix out
//! update    tile: read → update → write, three tiles under way
//! ```
//!
//! Weights are divided evenly over GPUs; each fetches its part and all gather. A matrix waits for the gather, which waits
//! for the slowest GPU. Updates begin when all gradients are there: clipping by their norm needs all.

use super::{
    fluid::{Fluid, TaskId, Work},
    host::{Host, Paths, Place},
    workload::{MATRICES, STATE, STATE_WRITTEN, WEIGHT, Workload},
};

/// How far fetches run ahead of the matrix that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// So many matrices.
    Matrices(usize),
    /// The following matrices until these have so many elements; one at least.
    Elements(u64),
}

/// Some of a GPU's optimizer state.
#[derive(Clone, Debug)]
pub struct Tile {
    /// Its parameters.
    pub elements: f64,
    /// Where it is between steps.
    pub home: Place,
    /// Whose CPUs update it.
    pub socket: usize,
    /// Whether it is updated in DRAM, and brought there and back; otherwise where it is.
    pub staged: bool,
}

/// Where everything is and how it is fetched.
#[derive(Clone, Debug)]
pub struct Plan {
    /// By GPU, by matrix: where its part of the weights is.
    pub weights: Vec<Vec<Place>>,
    /// Socket of a GPU's buffers for a matrix, for what comes from drives and for gradients.
    pub buffers: Vec<Vec<usize>>,
    /// By GPU: where its checkpoints go.
    pub checkpoints: Vec<Place>,
    /// Whether checkpoints are fetched ahead like weights; otherwise when the layer is at its turn.
    pub checkpoints_ahead: bool,
    /// Whether gradients go on to the drives, as fp32.
    pub gradients_to_ssd: bool,
    /// How far fetches run ahead.
    pub ahead: Ahead,
    /// Buffers between drive and GPU, a matrix each.
    pub read_ahead: usize,
    /// By GPU.
    pub tiles: Vec<Vec<Tile>>,
}

/// What a step took, seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// The whole.
    pub step: f64,
    /// The part in which GPUs compute or wait: forward and backward.
    pub passes: f64,
    /// Computing alone.
    pub compute: f64,
    /// What a matrix waits for its weights (or checkpoint) once the one before is done, in the mean.
    pub stall: f64,
    /// From the begin of a matrix's fetch, at the drive if it is there, to the GPU, in the mean.
    pub fetch: f64,
    /// Least that any schedule of these copies takes.
    pub bound: f64,
}

struct Builder<'a> {
    host: &'a Host,
    work: &'a Workload,
    plan: &'a Plan,
    fluid: Fluid,
    paths: Paths,
    /// Computing, in order, of all GPUs at once: they are alike and wait for each other at each gather.
    computed: Vec<TaskId>,
    gathers: Vec<TaskId>,
    /// By GPU: first task of each fetch and its last.
    fetches: Vec<Vec<(TaskId, TaskId)>>,
    /// By GPU: the last task of each engine.
    h2d: Vec<Option<TaskId>>,
    d2h: Vec<Option<TaskId>>,
    to_ssd: Vec<Option<TaskId>>,
    /// By GPU: copies to the GPU that freed a buffer.
    freed: Vec<Vec<TaskId>>,
}

/// Simulates a step.
pub fn simulate(host: &Host, work: &Workload, plan: &Plan) -> Outcome {
    let mut fluid = Fluid::default();
    let paths = Paths::new(host, &mut fluid);
    let gpus = host.gpus;
    let mut builder = Builder {
        host,
        work,
        plan,
        fluid,
        paths,
        computed: Vec::new(),
        gathers: Vec::new(),
        fetches: vec![Vec::new(); gpus],
        h2d: vec![None; gpus],
        d2h: vec![None; gpus],
        to_ssd: vec![None; gpus],
        freed: vec![Vec::new(); gpus],
    };
    let gradients = builder.passes();
    let passes = builder.fluid.run();
    let last = builder.computed.last().map_or(0.0, |&task| passes[task].ended);
    builder.update(&gradients);
    let bound = builder.fluid.bound() / 1e9;
    let spans = builder.fluid.run();
    let mut outcome = Outcome { passes: last / 1e9, bound, ..Outcome::default() };
    outcome.step = spans.iter().map(|span| span.ended).fold(0.0, f64::max) / 1e9;
    let mut before = 0.0;
    for &task in &builder.computed {
        outcome.compute += (spans[task].ended - spans[task].began) / 1e9;
        outcome.stall += (spans[task].began - before) / 1e9;
        before = spans[task].ended;
    }
    outcome.stall /= builder.computed.len() as f64;
    let fetches: Vec<_> = builder.fetches.iter().flatten().collect();
    let took = fetches.iter().map(|(first, last)| spans[*last].ended - spans[*first].began);
    outcome.fetch = took.sum::<f64>() / fetches.len() as f64 / 1e9;
    outcome
}

impl Builder<'_> {
    /// Forward and backward pass; by GPU, the tasks that end with a gradient in its place.
    fn passes(&mut self) -> Vec<Vec<TaskId>> {
        let forward = self.work.matrices();
        let layers = MATRICES.len();
        let mut gradients = vec![Vec::new(); self.host.gpus];
        let mut checkpoints: Vec<Vec<TaskId>> = Vec::new();
        for (matrix, &elements) in forward.iter().enumerate() {
            self.fetch(matrix, elements, &forward);
            let time = self.work.forward(&self.host.gpu, elements);
            self.compute(time, None);
            if matrix % layers == layers - 1 {
                let done = self.computed[matrix];
                let out = (0..self.host.gpus).map(|gpu| {
                    let work = self.paths.copy(gpu, &self.plan.checkpoints[gpu], true, self.work.checkpoint() as f64);
                    let task = self.fluid.task(work, after(&[Some(done), self.d2h[gpu]]));
                    self.d2h[gpu] = Some(task);
                    task
                });
                checkpoints.push(out.collect());
            }
        }
        let backward: Vec<_> = forward.iter().rev().copied().collect();
        let both: Vec<_> = forward.iter().chain(&backward).copied().collect();
        for (i, &elements) in backward.iter().enumerate() {
            let matrix = forward.len() - 1 - i;
            self.fetch(matrix, elements, &both);
            let back = (i % layers == 0).then(|| self.checkpoint_in(matrix / layers, &checkpoints, &both));
            let time = self.work.backward(&self.host.gpu, elements);
            self.compute(time, back);
            let done = self.computed[self.computed.len() - 1];
            for (gpu, gradients) in gradients.iter_mut().enumerate() {
                gradients.push(self.gradient(gpu, matrix, elements, done));
            }
        }
        gradients
    }

    /// The task of `computed` that a fetch for the next matrix to be planned waits for.
    fn issued_by(&self, elements: &[u64]) -> Option<TaskId> {
        let next = self.computed.len();
        let ahead = match self.plan.ahead {
            Ahead::Matrices(ahead) => ahead,
            Ahead::Elements(most) => {
                let mut sum = 0;
                let fits = elements[..next].iter().rev().take_while(|matrix| {
                    sum += **matrix;
                    sum < most
                });
                1 + fits.count()
            }
        };
        // It may be fetched while the matrix `ahead` before it computes: once the one before that is done.
        next.checked_sub(ahead + 1).map(|at| self.computed[at])
    }

    /// Brings a matrix to the GPUs and gathers it there.
    fn fetch(&mut self, matrix: usize, elements: u64, order: &[u64]) {
        let issued = self.issued_by(order);
        let bytes = (WEIGHT * elements) as f64 / self.host.gpus as f64;
        let mut arrived = Vec::new();
        for gpu in 0..self.host.gpus {
            let (place, buffer) = (&self.plan.weights[gpu][matrix], self.plan.buffers[gpu][matrix]);
            let mut waits = vec![issued, self.h2d[gpu]];
            let mut first = None;
            let mut source = place.clone();
            if *place == Place::Ssd {
                // Reads run ahead on their own, as far as there are buffers.
                let freed = self.freed[gpu].len().checked_sub(self.plan.read_ahead).map(|at| self.freed[gpu][at]);
                let read = self.fluid.task(self.paths.stage(buffer, place, false, bytes), after(&[freed]));
                (first, source) = (Some(read), Place::Dram(buffer));
                waits.push(first);
            }
            let copy = self.fluid.task(self.paths.copy(gpu, &source, false, bytes), after(&waits));
            if first.is_some() {
                self.freed[gpu].push(copy);
            }
            self.h2d[gpu] = Some(copy);
            self.fetches[gpu].push((first.unwrap_or(copy), copy));
            arrived.push(copy);
        }
        let missing = (self.host.gpus - 1) as f64 * bytes;
        arrived.extend(self.gathers.last());
        let time = (missing * 1e9 / self.host.profile.gather) as u64;
        let gather = self.fluid.task(Work::Time(time), arrived);
        self.gathers.push(gather);
    }

    /// Computes the matrix that was gathered last.
    fn compute(&mut self, time: u64, checkpoint: Option<Vec<TaskId>>) {
        let mut waits = after(&[self.gathers.last().copied(), self.computed.last().copied()]);
        waits.extend(checkpoint.into_iter().flatten());
        let task = self.fluid.task(Work::Time(time), waits);
        self.computed.push(task);
    }

    fn checkpoint_in(&mut self, layer: usize, out: &[Vec<TaskId>], order: &[u64]) -> Vec<TaskId> {
        let before = match self.plan.checkpoints_ahead {
            true => self.issued_by(order),
            false => self.computed.last().copied(),
        };
        let copy = |gpu: usize| {
            let work = self.paths.copy(gpu, &self.plan.checkpoints[gpu], false, self.work.checkpoint() as f64);
            let task = self.fluid.task(work, after(&[before, Some(out[layer][gpu]), self.h2d[gpu]]));
            self.h2d[gpu] = Some(task);
            task
        };
        (0..self.host.gpus).map(copy).collect()
    }

    fn gradient(&mut self, gpu: usize, matrix: usize, elements: u64, done: TaskId) -> TaskId {
        let part = elements as f64 / self.host.gpus as f64;
        let socket = self.plan.buffers[gpu][matrix];
        let work = self.paths.copy(gpu, &Place::Dram(socket), true, WEIGHT as f64 * part);
        let copy = self.fluid.task(work, after(&[Some(done), self.d2h[gpu]]));
        self.d2h[gpu] = Some(copy);
        if !self.plan.gradients_to_ssd {
            return copy;
        }
        let work = self.paths.stage(socket, &Place::Ssd, true, 4.0 * part);
        let write = self.fluid.task(work, after(&[Some(copy), self.to_ssd[gpu]]));
        self.to_ssd[gpu] = Some(write);
        write
    }

    /// Updates all tiles: of each GPU and socket at most one read, one update and one write under way.
    fn update(&mut self, gradients: &[Vec<TaskId>]) {
        let ready: Vec<_> = gradients.iter().flatten().copied().collect();
        let ready = self.fluid.task(Work::Time(0), ready);
        for gpu in 0..self.host.gpus {
            // By socket: its tiles follow one another.
            let mut chains = vec![(None, None, Vec::<TaskId>::new()); self.host.profile.sockets];
            for tile in &self.plan.tiles[gpu] {
                let bytes = |each: u64| each as f64 * tile.elements;
                let dram = Place::Dram(tile.socket);
                let (read, update, writes) = &mut chains[tile.socket];
                let mut ready = ready;
                if tile.socket != self.host.socket(gpu) {
                    // The gradients, from where the GPU has left them.
                    let from = Place::Dram(self.host.socket(gpu));
                    let work = self.paths.stage(tile.socket, &from, false, bytes(WEIGHT));
                    ready = self.fluid.task(work, vec![ready]);
                }
                let mut here = Some(ready);
                if tile.staged {
                    let room = writes.len().checked_sub(2).map(|at| writes[at]);
                    let work = self.paths.stage(tile.socket, &tile.home, false, bytes(STATE));
                    *read = Some(self.fluid.task(work, after(&[here, *read, room])));
                    here = *read;
                }
                let place = if tile.staged { &dram } else { &tile.home };
                let work = self.paths.update(tile.socket, place, bytes(STATE + STATE_WRITTEN));
                *update = Some(self.fluid.task(work, after(&[here, *update])));
                let back = if tile.staged { bytes(STATE_WRITTEN + WEIGHT) } else { bytes(WEIGHT) };
                let to = if tile.staged { &tile.home } else { &self.plan.weights[gpu][0] };
                if *to != dram {
                    let work = self.paths.stage(tile.socket, to, true, back);
                    writes.push(self.fluid.task(work, after(&[*update, writes.last().copied()])));
                }
            }
        }
    }
}

fn after(tasks: &[Option<TaskId>]) -> Vec<TaskId> {
    tasks.iter().flatten().copied().collect()
}
