//! What is trained: a transformer by layers and width.
//!
//! A layer has four matrices of 3, 1, 4 and 4 times `hidden²` elements, 12 in all; embeddings and attention scores are
//! left out. A step is one forward pass, one backward pass that computes the layer again from its checkpoint, and the
//! optimizer's update on the CPU. Bytes for each parameter: 2 of fp16 weights, and 16 of optimizer state (fp32 weights,
//! momentum, variance and gradient); the fp16 gradient is only under way.

use tensortier_model::{Bytes, GpuProfile, Nanos};

/// Elements of a layer's matrices, in units of `hidden²`, in the order of their use.
pub const MATRICES: [u64; 4] = [3, 1, 4, 4];
/// Bytes of a parameter in fp16.
pub const WEIGHT: u64 = 2;
/// Bytes of optimizer state for each parameter.
pub const STATE: u64 = 16;
/// Bytes of it that an update writes back: the fp32 gradient is only read.
pub const STATE_WRITTEN: u64 = 12;

/// A model and its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Transformer layers.
    pub layers: u64,
    /// Width.
    pub hidden: u64,
    /// Tokens of a step on each GPU.
    pub tokens: u64,
}

impl Workload {
    /// All parameters.
    pub fn parameters(&self) -> u64 {
        self.layers * 12 * self.hidden * self.hidden
    }

    /// Elements of each matrix of the model, in the order of the forward pass.
    pub fn matrices(&self) -> Vec<u64> {
        (0..self.layers).flat_map(|_| MATRICES.map(|unit| unit * self.hidden * self.hidden)).collect()
    }

    /// Bytes of a layer's checkpoint on each GPU.
    pub fn checkpoint(&self) -> Bytes {
        2 * self.tokens * self.hidden
    }

    /// Time of a matrix of `elements` in the forward pass: two operations for each element and token.
    pub fn forward(&self, gpu: &GpuProfile, elements: u64) -> Nanos {
        gpu.op_time(2.0 * elements as f64 * self.tokens as f64, WEIGHT * elements)
    }

    /// Time in the backward pass: the forward pass once more, and twice that for the two gradients.
    pub fn backward(&self, gpu: &GpuProfile, elements: u64) -> Nanos {
        3 * self.forward(gpu, elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_of_the_matrices() {
        let model = Workload { layers: 32, hidden: 4096, tokens: 8192 };
        assert_eq!(model.matrices().iter().sum::<u64>(), model.parameters());
        assert_eq!(model.parameters(), 6_442_450_944);
    }
}
