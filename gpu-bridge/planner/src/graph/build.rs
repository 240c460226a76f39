//! Builds a [`Graph`] operator by operator and derives its edges.

use tensortier_model::{Bytes, Nanos};

use super::{Flat, Graph, GraphError, Op, OpId, OpKind, Storage, StorageId, StorageKind, Tensor, TensorId};

/// No step moves more than this; it also keeps every sum of sizes far from overflow.
const MAX_BYTES: Bytes = 1 << 48;
/// A day: keeps sums of times far from overflow.
const MAX_TIME: Nanos = 86_400_000_000_000;

/// An operator to add.
#[derive(Debug, Clone, Default)]
pub struct NewOp {
    /// The trace's name of this call.
    pub name: String,
    /// What is called.
    pub kernel: String,
    /// What it does to memory; `None` is [`OpKind::Compute`].
    pub kind: Option<OpKind>,
    /// Tensors it takes.
    pub inputs: Vec<TensorId>,
    /// Tensors it makes.
    pub outputs: Vec<TensorId>,
    /// Further operators that must run before it.
    pub after: Vec<OpId>,
    /// Time on the device.
    pub time: Nanos,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: Bytes,
}

/// Collects storages, tensors and operators in the traced order.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    /// For each storage: who wrote it last, and who has read it since.
    writer: Vec<Option<OpId>>,
    readers: Vec<Vec<OpId>>,
    total: Bytes,
    time: Nanos,
}

impl GraphBuilder {
    /// An empty graph; `name` also stands in messages, tables and charts, so control characters of it are replaced.
    pub fn new(name: impl Into<String>) -> Self {
        let graph = Graph {
            name: name.into().replace(char::is_control, "\u{fffd}"),
            ops: Vec::new(),
            tensors: Vec::new(),
            storages: Vec::new(),
            flat: Flat::default(),
        };
        Self { graph, writer: Vec::new(), readers: Vec::new(), total: 0, time: 0 }
    }

    /// Adds a storage.
    pub fn storage(&mut self, bytes: Bytes, kind: StorageKind) -> StorageId {
        self.graph.storages.push(Storage { bytes, kind });
        self.writer.push(None);
        self.readers.push(Vec::new());
        self.graph.storages.len() - 1
    }

    /// Adds a tensor that is a view of `storage`.
    pub fn tensor(&mut self, storage: StorageId, bytes: Bytes) -> TensorId {
        self.graph.tensors.push(Tensor { storage, bytes, producer: None });
        self.graph.tensors.len() - 1
    }

    /// The storage of a tensor added before.
    pub fn storage_of(&self, tensor: TensorId) -> StorageId {
        self.graph.tensors[tensor].storage
    }

    /// Bytes of memory behind a tensor: an expanded view has no more than its storage.
    pub fn covered(&self, tensor: TensorId) -> Bytes {
        let t = &self.graph.tensors[tensor];
        t.bytes.min(self.graph.storages[t.storage].bytes)
    }

    /// Makes a temporary a result of the step. What is persistent stays so.
    pub fn mark_output(&mut self, storage: StorageId) {
        let kind = &mut self.graph.storages[storage].kind;
        if *kind == StorageKind::Temporary {
            *kind = StorageKind::Output;
        }
    }

    /// Adds the next operator of the traced order.
    ///
    /// # Errors
    /// A tensor, storage or operator that does not exist, a storage read before it was written.
    pub fn op(&mut self, new: NewOp) -> Result<OpId, GraphError> {
        let id = self.graph.ops.len();
        let kind = new.kind.unwrap_or(OpKind::Compute);
        let known = |t: &TensorId| *t < self.graph.tensors.len();
        if !new.inputs.iter().chain(&new.outputs).all(known) {
            return Err(self.invalid(format!("operator {id} `{}` names a tensor that does not exist", new.name)));
        }
        if let Some(after) = new.after.iter().find(|&&p| p >= id) {
            return Err(self.invalid(format!("operator {id} `{}` comes after operator {after}, a later one", new.name)));
        }
        let storages = |tensors: &[TensorId]| sorted(tensors.iter().map(|&t| self.graph.tensors[t].storage).collect());
        let (reads, writes) = match kind {
            OpKind::Compute => (storages(&new.inputs), storages(&new.outputs)),
            OpKind::Alloc => (Vec::new(), storages(&new.outputs)),
            OpKind::View => (Vec::new(), Vec::new()),
        };
        if let Some(s) = reads.iter().find(|&&s| !self.is_there(s)) {
            return Err(self.invalid(format!("operator {id} `{}` reads storage {s} before it is written", new.name)));
        }
        let mut preds = new.after;
        preds.extend(new.inputs.iter().filter_map(|&t| self.graph.tensors[t].producer));
        for &s in &reads {
            preds.extend(self.writer[s]);
            self.readers[s].push(id);
        }
        for &s in &writes {
            preds.extend(self.writer[s]);
            preds.append(&mut self.readers[s]);
            self.writer[s] = Some(id);
        }
        preds.retain(|&p| p != id);
        for &t in &new.outputs {
            self.graph.tensors[t].producer = Some(id);
        }
        self.time = self.time.saturating_add(new.time);
        let touches = sorted(reads.iter().chain(&writes).copied().collect());
        self.graph.ops.push(Op {
            name: new.name,
            kernel: new.kernel,
            kind,
            inputs: new.inputs,
            outputs: new.outputs,
            reads,
            writes,
            touches,
            preds: sorted(preds),
            time: new.time,
            flops: new.flops,
            bytes: new.bytes,
        });
        Ok(id)
    }

    /// The finished graph.
    ///
    /// # Errors
    /// No operator, or sizes or times whose sum no machine could hold.
    pub fn finish(mut self) -> Result<Graph, GraphError> {
        if self.graph.ops.is_empty() {
            return Err(self.invalid("has no operator".into()));
        }
        for s in &self.graph.storages {
            self.total = self.total.saturating_add(s.bytes);
        }
        if self.total > MAX_BYTES {
            return Err(self.invalid(format!("its storages sum to more than {MAX_BYTES} bytes")));
        }
        if self.time > MAX_TIME {
            return Err(self.invalid("a step takes more than a day".into()));
        }
        self.graph.flat = Flat::new(&self.graph.ops);
        Ok(self.graph)
    }

    fn is_there(&self, s: StorageId) -> bool {
        self.graph.storages[s].kind.is_persistent() || self.writer[s].is_some()
    }

    fn invalid(&self, what: String) -> GraphError {
        GraphError::Invalid { name: self.graph.name.clone(), what }
    }
}

fn sorted(mut ids: Vec<usize>) -> Vec<usize> {
    ids.sort_unstable();
    ids.dedup();
    ids
}
