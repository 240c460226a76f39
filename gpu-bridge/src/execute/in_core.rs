//! The step in plain memory, one operator after the other as traced: what every other way of running it must compute.

use tensortier_planner::graph::{Graph, Liveness, OpId, StorageId, StorageKind};

use crate::pipeline::kernel::{Checksum, Kernel, Output, key};

/// Seeds of what is there before the first step; operators have their numbers.
const BEFORE: u64 = 1 << 63;

/// Checksums of steps that ran with memory for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InCore {
    /// By step and operator: of each storage that it reads, in their order.
    reads: Vec<Vec<Vec<u64>>>,
    /// By step and storage: of weights, buffers, inputs and results at its end.
    ends: Vec<Vec<Option<u64>>>,
}

/// The kernel that fills a storage with what it holds before the first step, in its first output.
pub fn first(storage: StorageId) -> Kernel {
    Kernel { seed: BEFORE | storage as u64, ..Kernel::default() }
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = Checksum::default();
    sum.add(bytes);
    sum.finish()
}

impl InCore {
    /// Runs `steps` steps; takes the memory that the graph's peak says.
    pub fn run(graph: &Graph, steps: usize) -> Self {
        let live = Liveness::new(graph, &graph.traced_order());
        let kind = |s: StorageId| graph.storages[s].kind;
        let room = |s: StorageId| vec![0_u8; graph.storages[s].bytes as usize];
        let mut memory: Vec<Option<Vec<u8>>> = vec![None; graph.storages.len()];
        for s in (0..memory.len()).filter(|&s| kind(s).is_persistent()) {
            let bytes = memory[s].insert(room(s));
            Output::new(key(first(s).seed, &[]), 0).fill(bytes);
        }
        let mut found = Self::default();
        for _ in 0..steps {
            let mut reads = Vec::with_capacity(graph.ops.len());
            for (at, op) in graph.ops.iter().enumerate() {
                let sum = |s: &StorageId| memory[*s].as_deref().map_or(0, checksum);
                let sums: Vec<u64> = op.reads.iter().map(sum).collect();
                let key = key(at as u64, &sums);
                for (j, &s) in (0..).zip(&op.writes) {
                    Output::new(key, j).fill(memory[s].get_or_insert_with(|| room(s)));
                }
                reads.push(sums);
                for &s in &op.touches {
                    if kind(s) == StorageKind::Temporary && live.uses[s].last() == Some(&at) {
                        memory[s] = None;
                    }
                }
            }
            found.ends.push(memory.iter().map(|bytes| bytes.as_deref().map(checksum)).collect());
            found.reads.push(reads);
            (0..memory.len()).filter(|&s| !kind(s).is_persistent()).for_each(|s| memory[s] = None);
        }
        found
    }

    /// Steps that it has.
    pub fn steps(&self) -> usize {
        self.reads.len()
    }

    /// What an operator of a step reads.
    pub fn reads(&self, step: usize, op: OpId) -> &[u64] {
        &self.reads[step][op]
    }

    /// What a storage holds at the end of a step, if it is there then.
    pub fn end(&self, step: usize, storage: StorageId) -> Option<u64> {
        self.ends[step][storage]
    }
}
