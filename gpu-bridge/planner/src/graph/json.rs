//! Graphs traced from PyTorch, as JSON, plain or gzipped.
//!
//! ```json
//! {"version": 2, "model": "resnet50", "batch": 64, "seq": 0, "torch": "1.13.0",
//!  "nodes": [{"id": 0, "op": "param", "name": "w", "in": [], "flops": 0,
//!             "out": [{"shape": [64, 3], "dtype": "float32", "bytes": 768, "storage": 0}]}],
//!  "outputs": [17, 21]}
//! ```
//!
//! - `nodes` are in traced order; `id` is the position, `in` holds ids of earlier nodes.
//! - `op` is `param`, `buffer`, `input`, or what is called. A node without `out` returns a tuple:
//!   its parts are the `getitem` nodes that take it.
//! - `out[].storage` names the memory: equal numbers are views of one storage.
//! - `flops` may be null; `time_ns`, optional, is a measured time and wins over the roofline.
//! - `outputs` (version 2) are ids of the nodes that the step returns. Version 1, which has no
//!   `version` field, leaves them out; there the gradients are the tensors that nothing reads and
//!   that have a parameter's shape, one for each parameter.

use std::{
    collections::{HashMap, HashSet},
    io::Read,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use tensortier_model::{GpuProfile, Nanos};

use super::{Graph, GraphBuilder, GraphError, NewOp, OpId, OpKind, StorageId, StorageKind, TensorId};

/// Newest version of the format.
pub const VERSION: u32 = 2;
/// Most bytes of unpacked JSON.
pub const MAX_UNPACKED: u64 = 256 << 20;
/// Most tensors that all operators together take: a few for each of a million nodes.
const MAX_TAKEN: usize = 16 << 20;

#[derive(Deserialize)]
struct File {
    #[serde(default = "first_version")]
    version: u32,
    model: String,
    #[serde(default)]
    batch: u64,
    nodes: Vec<Node>,
    #[serde(default)]
    outputs: Option<Vec<usize>>,
}

fn first_version() -> u32 {
    1
}

#[derive(Deserialize)]
struct Node {
    id: usize,
    op: String,
    name: String,
    #[serde(rename = "in")]
    inputs: Vec<usize>,
    out: Vec<Out>,
    flops: Option<u64>,
    time_ns: Option<Nanos>,
}

#[derive(Deserialize)]
struct Out {
    shape: Vec<u64>,
    dtype: String,
    bytes: u64,
    storage: u64,
}

/// Loads a graph; operators without a measured time get `gpu`'s roofline time.
///
/// # Errors
/// The file cannot be read, is too large, does not parse, or is no training step.
pub fn load(path: &Path, gpu: &GpuProfile) -> Result<Graph, GraphError> {
    let raw = std::fs::File::open(path)
        .and_then(|f| {
            let mut raw = Vec::new();
            f.take(MAX_UNPACKED + 1).read_to_end(&mut raw).map(|_| raw)
        })
        .map_err(|source| GraphError::Read { path: path.into(), source })?;
    parse(&raw, path, gpu)
}

/// As [`load`], from bytes; `path` is for messages.
///
/// # Errors
/// As [`load`].
pub fn parse(raw: &[u8], path: &Path, gpu: &GpuProfile) -> Result<Graph, GraphError> {
    let path = PathBuf::from(path);
    let unpacked;
    let text = if raw.starts_with(&[0x1f, 0x8b]) {
        let mut text = Vec::new();
        flate2::read::MultiGzDecoder::new(raw)
            .take(MAX_UNPACKED + 1)
            .read_to_end(&mut text)
            .map_err(|source| GraphError::Read { path: path.clone(), source })?;
        unpacked = text;
        &unpacked[..]
    } else {
        raw
    };
    if text.len() as u64 > MAX_UNPACKED {
        return Err(GraphError::TooLarge { path, limit: MAX_UNPACKED });
    }
    let file: File = serde_json::from_slice(text).map_err(|source| GraphError::Parse { path: path.clone(), source })?;
    if !(1..=VERSION).contains(&file.version) {
        return Err(GraphError::Version { path, found: file.version, newest: VERSION });
    }
    Reader::new(&path, &file, gpu).read()
}

/// Turns nodes into operators.
struct Reader<'a> {
    path: &'a Path,
    file: &'a File,
    gpu: &'a GpuProfile,
    to: GraphBuilder,
    /// Tensors and operator of each node; a tuple node's parts are added as they are met.
    tensors: Vec<Vec<TensorId>>,
    op_of: Vec<Option<OpId>>,
    /// The file's storage numbers to ours.
    storages: HashMap<u64, StorageId>,
    /// For each tuple node the `getitem` nodes that take its parts, and which nodes those are.
    parts: Vec<Vec<usize>>,
    is_part: Vec<bool>,
    /// Tensors taken so far by all operators.
    taken: usize,
}

impl<'a> Reader<'a> {
    fn new(path: &'a Path, file: &'a File, gpu: &'a GpuProfile) -> Self {
        let name = match file.batch {
            0 => file.model.clone(),
            batch => format!("{} b{batch}", file.model),
        };
        let count = file.nodes.len();
        Self {
            path,
            file,
            gpu,
            to: GraphBuilder::new(name),
            tensors: vec![Vec::new(); count],
            op_of: vec![None; count],
            storages: HashMap::new(),
            parts: vec![Vec::new(); count],
            is_part: vec![false; count],
            taken: 0,
        }
    }

    fn read(mut self) -> Result<Graph, GraphError> {
        let nodes = &self.file.nodes;
        for (id, node) in nodes.iter().enumerate() {
            self.check(id, node)?;
            if is_getitem(node)
                && let [tuple] = node.inputs[..]
                && nodes[tuple].out.is_empty()
            {
                self.parts[tuple].push(id);
                self.is_part[id] = true;
            }
        }
        let sizes = self.storage_sizes();
        for (id, node) in nodes.iter().enumerate() {
            match persistent_kind(&node.op) {
                Some(kind) => {
                    for out in &node.out {
                        let s = self.storage(out.storage, &sizes, kind);
                        let t = self.to.tensor(s, out.bytes);
                        self.tensors[id].push(t);
                    }
                }
                None => self.operator(id, node, &sizes)?,
            }
        }
        for id in self.outputs()? {
            for t in self.tensors[id].clone() {
                let s = self.to.storage_of(t);
                self.to.mark_output(s);
            }
        }
        self.to.finish().map_err(|error| match error {
            GraphError::Invalid { what, .. } => self::invalid(self.path, what),
            other => other,
        })
    }

    fn operator(&mut self, id: usize, node: &Node, sizes: &HashMap<u64, u64>) -> Result<(), GraphError> {
        // Parts of a tuple belong to the call that returned it; the getitem itself only names them.
        if self.is_part[id] && !self.tensors[id].is_empty() {
            let tuple = node.inputs[0];
            let after = self.op_of[tuple].into_iter().collect();
            let inputs = self.tensors[id].clone();
            self.op_of[id] = Some(self.to.op(NewOp { inputs, after, ..named(node, OpKind::View) })?);
            return Ok(());
        }
        self.taken += node.inputs.iter().map(|&i| self.tensors[i].len()).sum::<usize>();
        if self.taken > MAX_TAKEN {
            return Err(self.invalid(format!("its nodes take more than {MAX_TAKEN} tensors")));
        }
        let inputs: Vec<TensorId> = node.inputs.iter().flat_map(|&i| self.tensors[i].clone()).collect();
        let after = node.inputs.iter().filter_map(|&i| self.op_of[i]).collect();
        let read: HashSet<StorageId> = inputs.iter().map(|&t| self.to.storage_of(t)).collect();

        let own = node.out.iter().map(|out| (id, out));
        let of_parts = self.parts[id].iter().flat_map(|&p| self.file.nodes[p].out.iter().map(move |out| (p, out)));
        let made: Vec<(usize, &Out)> = own.chain(of_parts).collect();
        let mut outputs = Vec::new();
        let mut written = Vec::new();
        let mut all_alias = true;
        for (holder, out) in made {
            let s = self.storage(out.storage, sizes, StorageKind::Temporary);
            let t = self.to.tensor(s, out.bytes);
            self.tensors[holder].push(t);
            let alias = read.contains(&s);
            all_alias &= alias;
            outputs.push(t);
            if !alias || is_in_place(&node.op) {
                written.push(t);
            }
        }
        let kind = if !is_in_place(&node.op) && !outputs.is_empty() && all_alias || is_getitem(node) {
            OpKind::View
        } else if node.op.starts_with("aten.empty") || node.op.starts_with("aten.new_empty") {
            OpKind::Alloc
        } else {
            OpKind::Compute
        };
        let bytes = |of: &[TensorId], to: &GraphBuilder| of.iter().map(|&t| to.covered(t)).fold(0, u64::saturating_add);
        let moved = bytes(&inputs, &self.to).saturating_add(bytes(&written, &self.to));
        let flops = node.flops.unwrap_or(0);
        let time = match (kind, node.time_ns) {
            (_, Some(measured)) => measured,
            (OpKind::Compute, None) => self.gpu.op_time(flops as f64, moved),
            _ => 0,
        };
        let outputs = if kind == OpKind::View { outputs } else { written };
        let new = NewOp { inputs, outputs, after, time, flops, bytes: moved, ..named(node, kind) };
        self.op_of[id] = Some(self.to.op(new)?);
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<usize>, GraphError> {
        let nodes = &self.file.nodes;
        if let Some(ids) = &self.file.outputs {
            return match ids.iter().find(|&&id| id >= nodes.len()) {
                Some(id) => Err(self.invalid(format!("output {id} is no node"))),
                None => Ok(ids.clone()),
            };
        }
        let mut is_read = vec![false; nodes.len()];
        let mut wanted: HashMap<&[u64], usize> = HashMap::new();
        for node in nodes {
            for &i in &node.inputs {
                is_read[i] = true;
            }
            if node.op == "param" {
                for out in &node.out {
                    *wanted.entry(&out.shape).or_default() += 1;
                }
            }
        }
        let mut found = Vec::new();
        // Gradients come last, so where a shape is ambiguous the later tensors are taken.
        for (id, node) in nodes.iter().enumerate().rev() {
            if is_read[id] || persistent_kind(&node.op).is_some() {
                continue;
            }
            if let [out] = &node.out[..]
                && let Some(left) = wanted.get_mut(&out.shape[..])
                && *left > 0
            {
                *left -= 1;
                found.push(id);
            }
        }
        Ok(found)
    }

    fn storage_sizes(&self) -> HashMap<u64, u64> {
        let mut sizes = HashMap::new();
        for out in self.file.nodes.iter().flat_map(|node| &node.out) {
            // An expanded view covers more bytes than its storage has, so the first tensor,
            // which allocates the storage, decides; later ones may only be views of it.
            sizes.entry(out.storage).or_insert(out.bytes);
        }
        sizes
    }

    fn storage(&mut self, number: u64, sizes: &HashMap<u64, u64>, kind: StorageKind) -> StorageId {
        let to = &mut self.to;
        *self.storages.entry(number).or_insert_with(|| to.storage(sizes[&number], kind))
    }

    fn check(&self, id: usize, node: &Node) -> Result<(), GraphError> {
        if node.id != id {
            return Err(self.invalid(format!("node {id} has id {}; ids are positions", node.id)));
        }
        if let Some(input) = node.inputs.iter().find(|&&i| i >= id) {
            return Err(self.invalid(format!("node {id} `{}` takes node {input}, which is not before it", node.name)));
        }
        for out in &node.out {
            let elements = out.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
            let right = match (elements, element_size(&out.dtype)) {
                (Some(n), Some(size)) => n.checked_mul(size) == Some(out.bytes),
                (Some(_), None) => true,
                (None, _) => false,
            };
            if !right {
                let (shape, dtype) = (&out.shape, &out.dtype);
                return Err(self.invalid(format!("node {id}: {} bytes are not {shape:?} of {dtype}", out.bytes)));
            }
        }
        Ok(())
    }

    fn invalid(&self, what: String) -> GraphError {
        invalid(self.path, what)
    }
}

fn invalid(path: &Path, what: String) -> GraphError {
    GraphError::Invalid { name: path.display().to_string(), what }
}

fn named(node: &Node, kind: OpKind) -> NewOp {
    NewOp { name: node.name.clone(), kernel: node.op.clone(), kind: Some(kind), ..NewOp::default() }
}

fn is_getitem(node: &Node) -> bool {
    node.op.contains("getitem")
}

/// ATen's convention: the name before the overload ends in an underscore.
fn is_in_place(op: &str) -> bool {
    op.split('.').nth(1).is_some_and(|name| name.ends_with('_') && !name.ends_with("__"))
}

fn persistent_kind(op: &str) -> Option<StorageKind> {
    match op {
        "param" => Some(StorageKind::Param),
        "buffer" => Some(StorageKind::Buffer),
        "input" => Some(StorageKind::Input),
        _ => None,
    }
}

fn element_size(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "float64" | "int64" | "complex64" => 8,
        "float32" | "int32" => 4,
        "float16" | "bfloat16" | "int16" => 2,
        "int8" | "uint8" | "bool" => 1,
        _ => return None,
    })
}
