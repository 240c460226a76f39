//! What the planner's benches share: the graphs, the machine, the limits, and a graph at another batch size; and what
//! every long bench needs, results that outlive an interrupted run.

use std::{
    collections::BTreeMap,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tensortier_model::{Bytes, GpuProfile, Machine, Nanos, Profiles};
use tensortier_planner::{
    graph::{self, Graph, GraphBuilder, NewOp, StorageId, StorageKind, json},
    traces,
};

/// The GPU profile of the planner's benches.
pub const GPU: &str = "v100-16g";

/// The six traced graphs with their names, in the order of the names.
///
/// # Errors
/// A file is missing or no graph.
pub fn graphs(profiles: &Profiles, only: &str) -> Result<Vec<(String, Graph)>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu-bridge/planner/tests/data/graphs"));
    let entries = fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().replace(".json.gz", "");
        if name.contains(only) {
            found.push((name, json::load(&path, profiles.gpu(GPU)?)?));
        }
    }
    Ok(found)
}

/// V100 and 1 TiB of DRAM over 25 GB/s each way.
///
/// # Errors
/// A profile is missing.
pub fn machine(profiles: &Profiles, hbm: Bytes) -> Result<Machine> {
    Ok(Machine::new(profiles, GPU, hbm, "pcie4-x16", &[("dram", 1 << 40)])?)
}

/// The memory limits by their part of the peak; the last is at least 1.1 times the largest operator.
pub fn limits(graph: &Graph) -> [(&'static str, Bytes); 4] {
    let (peak, largest) = (graph.peak(), graph.largest_op());
    [("2", peak / 2), ("4", peak / 4), ("8", peak / 8), ("12", (peak / 12).max(largest * 11 / 10))]
}

/// The folder of recorded inputs, if there is one.
pub fn recorded() -> Option<PathBuf> {
    traces::find(Path::new(env!("CARGO_MANIFEST_DIR")))
}

/// One planner's result on one graph and machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Step of the plan; none where there is no plan.
    pub step: Option<Nanos>,
    /// Seconds to plan.
    pub seconds: f64,
    /// Why the checker rejects the plan, or why there is none.
    pub problem: Option<String>,
    /// Seconds and best step after each improvement, for a search that tells.
    pub curve: Vec<(f64, Nanos)>,
}

impl Point {
    /// Best step that a search had after so many seconds.
    pub fn at(&self, seconds: f64) -> Option<Nanos> {
        self.curve.iter().take_while(|(at, _)| *at <= seconds).last().map(|&(_, step)| step)
    }
}

#[derive(Serialize, Deserialize)]
struct Line<P> {
    build: u64,
    key: String,
    point: P,
}

/// Results by key in a file of JSON lines, so that a bench goes on where it was interrupted. Only those of the same
/// build of the same program count.
pub struct Store<P = Point> {
    path: PathBuf,
    build: u64,
    points: BTreeMap<String, P>,
}

/// A number that stands for a build of a program.
///
/// # Errors
/// The program's path, where it cannot be read.
pub fn build_of(program: &Path) -> Result<u64> {
    let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Ok(hasher.finish())
}

impl<P: Clone + Serialize + DeserializeOwned> Store<P> {
    /// Opens or makes the file. Lines that do not parse, as after an interruption, are left out.
    ///
    /// # Errors
    /// The program's own file cannot be read, the store's folder cannot be made.
    pub fn open(path: &Path, fresh: bool) -> Result<Self> {
        let program = std::env::current_exe().context("this program's own file is not known")?;
        Self::of_build(path, fresh, build_of(&program)?)
    }

    /// As [`Store::open`], for results that depend on another build than this program's own.
    ///
    /// # Errors
    /// The store's folder cannot be made.
    pub fn of_build(path: &Path, fresh: bool, build: u64) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        if fresh && path.exists() {
            fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line<P>>(line).ok());
        let points = lines.filter(|line| line.build == build).map(|line| (line.key, line.point)).collect();
        Ok(Self { path: path.to_owned(), build, points })
    }

    /// The stored result of `key`.
    pub fn stored(&self, key: &str) -> Option<&P> {
        self.points.get(key)
    }

    /// The stored result of `key`, or else the one that `make` gives, stored.
    ///
    /// # Errors
    /// Those of `make`; the file cannot be written.
    pub fn get(&mut self, key: &str, make: impl FnOnce() -> Result<P>) -> Result<P> {
        if let Some(point) = self.points.get(key) {
            return Ok(point.clone());
        }
        let point = make()?;
        self.put(key, point.clone())?;
        Ok(point)
    }

    /// Stores the result of `key`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put(&mut self, key: &str, point: P) -> Result<()> {
        let line = Line { build: self.build, key: key.to_owned(), point };
        // Begins a line, whatever an interruption left of the last one.
        let text = format!("\n{}\n", serde_json::to_string(&line)?);
        let file = fs::OpenOptions::new().create(true).append(true).open(&self.path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.points.insert(line.key, line.point);
        Ok(())
    }
}

/// `graph` with `times` its batch, estimated: what is made in the step grows, weights, gradients and what has a
/// weight's size do not; operators get the roofline time of their share of growing bytes.
///
/// # Errors
/// Sizes or times whose sum no machine could hold.
pub fn scaled(graph: &Graph, gpu: &GpuProfile, times: u64) -> Result<Graph> {
    let mut fixed: Vec<Bytes> =
        graph.storages.iter().filter(|s| s.kind == StorageKind::Param).map(|s| s.bytes).collect();
    fixed.sort_unstable();
    let grows: Vec<bool> = graph
        .storages
        .iter()
        .map(|s| match s.kind {
            StorageKind::Temporary => fixed.binary_search(&s.bytes).is_err(),
            StorageKind::Input => true,
            _ => false,
        })
        .collect();
    let factor = |s: usize| if grows[s] { times } else { 1 };
    let work = |op: &graph::Op| {
        let before: Bytes = graph.bytes_of(&op.touches);
        let after: Bytes = op.touches.iter().map(|&s| graph.storages[s].bytes * factor(s)).sum();
        let growth = if before == 0 { 1.0 } else { after as f64 / before as f64 };
        let work = if op.touches.iter().any(|&s| grows[s]) { times } else { 1 };
        let bytes = (op.bytes as f64 * growth) as Bytes;
        // At its own batch an operator has its own time, measured or not.
        let time = |flops: u64, bytes: Bytes| gpu.op_time(flops as f64, bytes) as f64;
        let slower = time(op.flops * work, bytes) / time(op.flops, op.bytes).max(1.0);
        ((op.time as f64 * slower) as Nanos, op.flops * work, bytes)
    };
    rebuilt(graph, &format!("{} x{times}", graph.name), |s, bytes| bytes * factor(s), work)
}

/// `graph` with `1 / by` of its bytes and operators that take `slower` times as long. Sizes are rounded up to whole
/// cache lines.
///
/// # Errors
/// Times whose sum is too large.
pub fn shrunk(graph: &Graph, by: Bytes, slower: f64) -> Result<Graph> {
    let size = |bytes: Bytes| bytes.div_ceil(by).next_multiple_of(64);
    let work = |op: &graph::Op| ((op.time as f64 * slower) as Nanos, op.flops / by, op.bytes / by);
    rebuilt(graph, &format!("{} / {by}", graph.name), |_, bytes| size(bytes), work)
}

/// `graph` with `by` more for each operator that touches memory.
///
/// # Errors
/// Times whose sum is too large.
pub fn overhead(graph: &Graph, by: Nanos) -> Result<Graph> {
    let time = |op: &graph::Op| op.time + if op.touches.is_empty() { 0 } else { by };
    rebuilt(graph, &graph.name, |_, bytes| bytes, |op| (time(op), op.flops, op.bytes))
}

/// `graph` with other sizes (of a storage, and of its tensors) and with time, flops and bytes of operators by `work`.
fn rebuilt(
    graph: &Graph,
    name: &str,
    size: impl Fn(StorageId, Bytes) -> Bytes,
    work: impl Fn(&graph::Op) -> (Nanos, u64, Bytes),
) -> Result<Graph> {
    let mut to = GraphBuilder::new(name);
    for (s, storage) in graph.storages.iter().enumerate() {
        let kind = if storage.kind == StorageKind::Output { StorageKind::Temporary } else { storage.kind };
        let new = to.storage(size(s, storage.bytes), kind);
        if storage.kind == StorageKind::Output {
            to.mark_output(new);
        }
    }
    for tensor in &graph.tensors {
        to.tensor(tensor.storage, size(tensor.storage, tensor.bytes));
    }
    for op in &graph.ops {
        let (time, flops, bytes) = work(op);
        to.op(NewOp {
            name: op.name.clone(),
            kernel: op.kernel.clone(),
            kind: Some(op.kind),
            inputs: op.inputs.clone(),
            outputs: op.outputs.clone(),
            after: op.preds.clone(),
            time,
            flops,
            bytes,
        })?;
    }
    Ok(to.finish()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn point(step: Nanos) -> Point {
        Point { step: Some(step), seconds: 1.0, problem: None, curve: vec![(0.5, 9), (2.0, step)] }
    }

    #[test]
    fn results_outlive_an_interruption_and_not_a_new_build() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out/points.jsonl");
        let mut store = Store::of_build(&path, false, 1).unwrap();
        assert_eq!(store.get("a", || Ok(point(5))).unwrap(), point(5));
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"build\":1,\"ke").unwrap();
        let mut again = Store::<Point>::of_build(&path, false, 1).unwrap();
        assert_eq!(again.get("a", || unreachable!("it is there")).unwrap(), point(5));
        let mut other = Store::of_build(&path, false, 2).unwrap();
        assert_eq!(other.get("a", || Ok(point(6))).unwrap(), point(6));
        let mut fresh = Store::of_build(&path, true, 1).unwrap();
        assert_eq!(fresh.get("a", || Ok(point(7))).unwrap(), point(7));
    }

    #[test]
    fn a_curve_tells_what_was_known_when() {
        assert_eq!([0.1, 0.5, 1.9, 2.0].map(|at| point(5).at(at)), [None, Some(9), Some(9), Some(5)]);
    }

    #[test]
    fn a_graph_at_its_own_batch_is_itself_and_at_twice_has_up_to_twice_the_activations() {
        let profiles = Profiles::builtin();
        let (_, graph) = graphs(&profiles, "resnet50").unwrap().remove(0);
        let gpu = profiles.gpu(GPU).unwrap();
        let same = scaled(&graph, gpu, 1).unwrap();
        assert_eq!((same.peak(), same.ideal_time()), (graph.peak(), graph.ideal_time()));
        let twice = scaled(&graph, gpu, 2).unwrap();
        assert!(twice.peak() > graph.peak() * 3 / 2 && twice.peak() <= graph.peak() * 2);
        assert!(twice.ideal_time() > graph.ideal_time() * 3 / 2 && twice.ideal_time() <= graph.ideal_time() * 2);
        assert_eq!(twice.persistent_bytes() - graph.persistent_bytes(), inputs(&graph));
    }

    #[test]
    fn a_shrunk_graph_has_its_share_of_bytes_and_takes_so_much_longer() {
        let (_, graph) = graphs(&Profiles::builtin(), "resnet50").unwrap().remove(0);
        let small = shrunk(&graph, 16, 20.0).unwrap();
        assert_eq!(small.ideal_time(), graph.ideal_time() * 20);
        let share = graph.peak() as f64 / small.peak() as f64;
        assert!((15.5..=16.0).contains(&share), "{share}");
        let kinds = |graph: &Graph| graph.storages.iter().map(|s| s.kind).collect::<Vec<_>>();
        assert_eq!(kinds(&small), kinds(&graph));
    }

    fn inputs(graph: &Graph) -> Bytes {
        graph.storages.iter().filter(|s| s.kind == StorageKind::Input).map(|s| s.bytes).sum()
    }
}
