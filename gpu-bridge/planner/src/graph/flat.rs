//! The operators as flat arrays, made once: what simulating and decoding read in their inner loops.

use tensortier_model::Nanos;

use super::{Op, OpId};

/// What all operators touch, one after the other, and how long they take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Flat {
    /// Operator `o` touches `touches[starts[o]..starts[o + 1]]`.
    pub(crate) starts: Vec<u32>,
    pub(crate) touches: Vec<Touch>,
    pub(crate) times: Vec<Nanos>,
}

/// A storage that an operator reads, writes or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touch {
    pub(crate) storage: u32,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

impl Flat {
    pub(super) fn new(ops: &[Op]) -> Self {
        let mut flat = Self { starts: vec![0], touches: Vec::new(), times: ops.iter().map(|op| op.time).collect() };
        for op in ops {
            flat.touches.extend(op.touches.iter().map(|s| Touch {
                storage: *s as u32,
                reads: op.reads.binary_search(s).is_ok(),
                writes: op.writes.binary_search(s).is_ok(),
            }));
            flat.starts.push(flat.touches.len() as u32);
        }
        flat
    }

    /// In ascending order of the storages.
    pub(crate) fn of(&self, op: OpId) -> &[Touch] {
        &self.touches[self.starts[op] as usize..self.starts[op + 1] as usize]
    }
}
