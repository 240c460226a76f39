//! Jobs made up to have the access patterns of offloaded training, with all that happens known exactly.
//!
//! Each is the shape of a published system, at the scale of some GiB and tens of seconds a step: the sizes and rates
//! are ours. A generator is a function of its [`Spec`] alone: the same one gives the same workload.
//!
//! | generator | after | what makes it hard |
//! |---|---|---|
//! | `optimizer` | ZeRO-Offload (Ren et al., USENIX ATC '21) | swept once a step: recency keeps the wrong half |
//! | `fsdp` | FSDP CPU offload (Zhao et al., VLDB '23) | weights forwards and backwards, states once |
//! | `activations` | activation offload (Rhu et al., vDNN, MICRO '16) | regions that grow and die within a step |
//! | `embedding` | sparse embedding tables (Naumov et al., DLRM, 2019) | zipf over the table, hot rows never change |
//! | `experts-uniform`, `experts-zipf` | mixture of experts (Fedus et al., Switch, JMLR 2022) | routing at random |
//! | `rotating` | GUPS with shifting hot set (Raybuck et al., HeMem, SOSP '21) | the hot set changes every few steps |
//! | `evaluation` | training with a validation pass every few steps | the period breaks, and comes back |
//! | `jobs` | two jobs on one host | two periods at once |

mod offload;
mod routing;
mod timeline;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use timeline::Timeline;

use crate::workload::Workload;

/// What a generator is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// Seeds all that is random.
    pub seed: u64,
    /// Each step's length is its mean times a factor even in `1 - jitter` to `1 + jitter`.
    pub jitter: f64,
    /// Steps of the first job.
    pub steps: usize,
    /// Whether heat is that of 20 looks at random, as a monitor sees it, or their mean.
    pub sampled: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Self { seed: 1, jitter: 0.1, steps: 30, sampled: true }
    }
}

/// A generator.
#[derive(Clone, Copy)]
pub struct Generator {
    /// Its name.
    pub name: &'static str,
    /// Whether its steps repeat, so that a period can be learned.
    pub periodic: bool,
    /// Whether all it does is stream, so that its step time is what counts.
    pub streaming: bool,
    make: fn(&mut Maker),
}

impl Generator {
    /// The workload of that spec.
    pub fn make(&self, spec: &Spec) -> Workload {
        let mut maker =
            Maker { spec: *spec, random: Xoshiro256PlusPlus::seed_from_u64(spec.seed), timeline: Timeline::default() };
        (self.make)(&mut maker);
        maker.timeline.finish(self.name, spec.sampled.then_some(&mut maker.random))
    }
}

/// All generators.
pub const ALL: [Generator; 9] = [
    Generator { name: "optimizer", periodic: true, streaming: true, make: offload::optimizer },
    Generator { name: "fsdp", periodic: true, streaming: true, make: offload::fsdp },
    Generator { name: "activations", periodic: true, streaming: true, make: offload::activations },
    Generator { name: "evaluation", periodic: true, streaming: true, make: offload::evaluation },
    Generator { name: "jobs", periodic: true, streaming: false, make: offload::jobs },
    Generator { name: "embedding", periodic: false, streaming: false, make: routing::embedding },
    Generator { name: "experts-uniform", periodic: false, streaming: true, make: routing::experts_uniform },
    Generator { name: "experts-zipf", periodic: false, streaming: true, make: routing::experts_zipf },
    Generator { name: "rotating", periodic: false, streaming: false, make: routing::rotating },
];

/// The generator of that name.
pub fn find(name: &str) -> Option<&'static Generator> {
    ALL.iter().find(|generator| generator.name == name)
}

/// What a generator works with.
struct Maker {
    spec: Spec,
    random: Xoshiro256PlusPlus,
    timeline: Timeline,
}

impl Maker {
    /// The length of a step over its mean.
    fn factor(&mut self) -> f64 {
        let jitter = self.spec.jitter.clamp(0.0, 0.9);
        1.0 - jitter + 2.0 * jitter * self.random.random::<f64>()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
