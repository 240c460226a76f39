//! One of G10's workloads as a [`Graph`], for planners of graphs.
//!
//! Global tensors are weights. A local one that is read before anything writes it is born at its first use in G10;
//! here an allocation of no time stands before that use, which nobody can run again. A kernel's workspace is a
//! storage that only it touches.

use tensortier_model::Nanos;

use super::load::Workload;
use crate::graph::{Graph, GraphBuilder, GraphError, NewOp, OpKind, StorageKind, TensorId};

impl Workload {
    /// The iteration as a graph; times are G10's measured ones.
    ///
    /// # Errors
    /// Sizes or times whose sum no machine could hold.
    pub fn graph(&self) -> Result<Graph, GraphError> {
        let mut to = GraphBuilder::new(format!("{} b{}", self.model, self.batch));
        let mut born = vec![false; self.tensors.len()];
        let mut ids: Vec<TensorId> = Vec::with_capacity(self.tensors.len());
        for (tensor, born) in self.tensors.iter().zip(&mut born) {
            *born = tensor.global;
            let kind = if tensor.global { StorageKind::Param } else { StorageKind::Temporary };
            let storage = to.storage(tensor.bytes, kind);
            ids.push(to.tensor(storage, tensor.bytes));
        }
        for kernel in &self.kernels {
            let tensor = |&id: &u32| ids[id as usize];
            let unborn: Vec<TensorId> = kernel.inputs.iter().filter(|&&id| !born[id as usize]).map(tensor).collect();
            if !unborn.is_empty() {
                let name = format!("before {}", kernel.name);
                to.op(NewOp { name, kind: Some(OpKind::Alloc), outputs: unborn, ..NewOp::default() })?;
            }
            kernel.uses().for_each(|id| born[id as usize] = true);
            let mut outputs: Vec<TensorId> = kernel.outputs.iter().map(tensor).collect();
            if kernel.workspace_bytes > 0 {
                let storage = to.storage(kernel.workspace_bytes, StorageKind::Temporary);
                outputs.push(to.tensor(storage, kernel.workspace_bytes));
            }
            to.op(NewOp {
                name: kernel.name.clone(),
                kernel: kernel.name.clone(),
                inputs: kernel.inputs.iter().map(tensor).collect(),
                outputs,
                time: (kernel.time_us * 1e3).round() as Nanos,
                ..NewOp::default()
            })?;
        }
        to.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::g10::{Kernel, Tensor};

    #[test]
    fn locals_read_first_are_allocated_and_workspaces_die_at_once() {
        let tensor = |id: u32, global| Tensor { id, bytes: 4096 * (1 + u64::from(id)), global };
        let kernel = |inputs: &[u32], outputs: &[u32], workspace_bytes| Kernel {
            name: "k".into(),
            time_us: 1.5,
            inputs: inputs.into(),
            outputs: outputs.into(),
            workspace_bytes,
        };
        let workload = Workload {
            model: "m".into(),
            batch: 3,
            hbm_bytes: 1 << 20,
            host_bytes: 1 << 20,
            pcie_gbps: 1.0,
            ssd_gbps: 1.0,
            ssd_latency_us: 1.0,
            system_latency_us: 1.0,
            page_bytes: 4096,
            tensors: vec![tensor(0, true), tensor(1, false), tensor(2, false)],
            kernels: vec![kernel(&[0, 1], &[2], 8192), kernel(&[2], &[0], 0)],
        };
        let graph = workload.graph().expect("small");
        let kinds: Vec<_> = graph.ops.iter().map(|op| op.kind).collect();
        assert_eq!(kinds, [OpKind::Alloc, OpKind::Compute, OpKind::Compute]);
        assert_eq!(graph.ideal_time(), 3000);
        // The weight, the input, the result and the workspace at the first kernel.
        assert_eq!(graph.peak(), 4096 + 8192 + 12288 + 8192);
    }
}
