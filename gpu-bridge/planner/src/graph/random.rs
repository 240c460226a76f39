//! Random training steps, for property tests and for searches that need many small graphs.

use rand::{Rng, RngExt};

use super::{Graph, GraphBuilder, NewOp, OpKind, StorageKind, TensorId};

/// A random step of about `size` operators: a forward part, a backward part that reads what the
/// forward part made, gradients for the weights, views, and operators that work in place. Sizes
/// are 0 to 6 units of 1 KiB, times 0 to 50 us, so that ties and odd cases are frequent.
pub fn graph(rng: &mut impl Rng, size: usize) -> Graph {
    let mut to = GraphBuilder::new("random");
    let bytes = |rng: &mut dyn Rng| 1024 * rng.random_range(0..=6u64);
    let mut kept: Vec<TensorId> = Vec::new();
    let mut weights = Vec::new();
    for _ in 0..1 + size / 4 {
        let b = bytes(rng);
        let kind = if rng.random_bool(0.8) { StorageKind::Param } else { StorageKind::Buffer };
        let s = to.storage(b, kind);
        weights.push(to.tensor(s, b));
    }
    let input = to.storage(1024, StorageKind::Input);
    kept.push(to.tensor(input, 1024));
    for at in 0..size.max(1) {
        let backward = at > size / 2;
        let mut inputs = vec![match kept.len() {
            n if rng.random_bool(0.7) => kept[n - 1],
            n => kept[rng.random_range(0..n)],
        }];
        if rng.random_bool(0.6) {
            inputs.push(weights[rng.random_range(0..weights.len())]);
        }
        if backward {
            // The reverse of the forward part: the further on, the older what is read.
            let back = (2 * (size - at)).min(kept.len() - 1);
            inputs.push(kept[back]);
        }
        let time = 1000 * rng.random_range(0..=50u64);
        let (kind, outputs) = match rng.random_range(0..10) {
            0 => {
                let s = to.storage_of(inputs[0]);
                inputs.truncate(1);
                let t = to.tensor(s, 0);
                (OpKind::View, vec![t])
            }
            1 if at > 0 => {
                let s = to.storage_of(inputs[0]);
                (OpKind::Compute, vec![to.tensor(s, 0)])
            }
            _ => {
                let outputs = (0..rng.random_range(1..=2))
                    .map(|_| {
                        let b = bytes(rng);
                        let s = to.storage(b, StorageKind::Temporary);
                        to.tensor(s, b)
                    })
                    .collect();
                (OpKind::Compute, outputs)
            }
        };
        if kind == OpKind::Compute && backward && rng.random_bool(0.5) {
            let s = to.storage_of(outputs[0]);
            to.mark_output(s);
        }
        kept.extend(&outputs);
        let time = if kind == OpKind::View { 0 } else { time };
        let new = NewOp { name: format!("op{at}"), kind: Some(kind), inputs, outputs, time, ..NewOp::default() };
        if let Err(error) = to.op(new) {
            unreachable!("only tensors that exist are used: {error}");
        }
    }
    match to.finish() {
        Ok(graph) => graph,
        Err(error) => unreachable!("small sizes: {error}"),
    }
}
