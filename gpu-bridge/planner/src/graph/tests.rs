use std::{io::Write, path::Path, sync::LazyLock};

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use tensortier_model::{GpuProfile, Profiles};

use super::*;

fn gpu() -> &'static GpuProfile {
    static GPU: LazyLock<GpuProfile> = LazyLock::new(|| Profiles::builtin().gpu("a100-40g").expect("built in").clone());
    &GPU
}

fn graphs() -> Vec<Graph> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/graphs");
    let mut paths: Vec<_> = std::fs::read_dir(folder).expect("test data").map(|e| e.expect("entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| json::load(path, gpu()).expect("valid")).collect()
}

fn parse(text: &str) -> Result<Graph, GraphError> {
    json::parse(text.as_bytes(), Path::new("g.json"), gpu())
}

/// It goes into tables, messages and SVG, which admits no control characters at all.
#[test]
fn a_name_holds_no_control_characters() {
    let error = GraphBuilder::new("a\u{1b}[2J\nb").finish().expect_err("a graph without operators").to_string();
    assert!(error.contains("a\u{fffd}[2J\u{fffd}b"), "{error}");
}

/// Operators and parameter bytes as counted when the graphs were traced.
#[test]
fn the_six_graphs_are_what_was_traced() {
    let expected = [
        ("bert-large b8", 4455, 1_340_697_832),
        ("gpt2-large b4", 6208, 3_096_120_320),
        ("gpt2-xl b2", 8260, 6_230_444_800),
        ("resnet101 b64", 2055, 178_196_640),
        ("resnet50 b64", 1052, 102_228_128),
        ("vit_b_16 b32", 1584, 346_270_624),
    ];
    let graphs = graphs();
    assert_eq!(graphs.len(), expected.len());
    for (graph, (name, ops, params)) in graphs.iter().zip(expected) {
        assert_eq!((graph.name.as_str(), graph.ops.len()), (name, ops));
        let of_kind = |kind| graph.storages.iter().filter(move |s| s.kind == kind);
        assert_eq!(of_kind(StorageKind::Param).map(|s| s.bytes).sum::<u64>(), params, "{name}");
        // One gradient a parameter, of the same bytes.
        assert_eq!(of_kind(StorageKind::Output).map(|s| s.bytes).sum::<u64>(), params, "{name}");
        assert_eq!(of_kind(StorageKind::Output).count(), of_kind(StorageKind::Param).count(), "{name}");
    }
}

#[test]
fn edges_follow_contents() {
    // b = f(a); c = g(b); b *= 2 in place; d = h(b)
    let text = r#"{"model":"m","nodes":[
      {"id":0,"op":"input","name":"a","in":[],"out":[{"shape":[2],"dtype":"float32","bytes":8,"storage":7}],"flops":0},
      {"id":1,"op":"aten.relu.default","name":"b","in":[0],"out":[{"shape":[2],"dtype":"float32","bytes":8,"storage":8}],"flops":0},
      {"id":2,"op":"aten.exp.default","name":"c","in":[1],"out":[{"shape":[2],"dtype":"float32","bytes":8,"storage":9}],"flops":null},
      {"id":3,"op":"aten.mul_.Tensor","name":"b2","in":[1],"out":[{"shape":[2],"dtype":"float32","bytes":8,"storage":8}],"flops":0},
      {"id":4,"op":"aten.t.default","name":"v","in":[3],"out":[{"shape":[2],"dtype":"float32","bytes":8,"storage":8}],"flops":0},
      {"id":5,"op":"aten.add.Tensor","name":"d","in":[4,2],"out":[{"shape":[2],"dtype":"float32","bytes":8,"storage":10}],"flops":0}]}"#;
    let graph = parse(text).expect("valid");
    let preds: Vec<_> = graph.ops.iter().map(|op| op.preds.clone()).collect();
    assert_eq!(preds, [vec![], vec![0], vec![0, 1], vec![2], vec![1, 2, 3]]);
    assert_eq!(graph.ops[3].kind, OpKind::View);
    assert_eq!(graph.ops[3].time, 0);
    assert!(graph.ops[3].touches.is_empty());
    assert_eq!((graph.ops[2].reads.as_slice(), graph.ops[2].writes.as_slice()), (&[1][..], &[1][..]));
}

#[test]
fn parts_of_a_tuple_belong_to_the_call() {
    let text = r#"{"version":2,"model":"m","outputs":[3],"nodes":[
      {"id":0,"op":"param","name":"a","in":[],"out":[{"shape":[4],"dtype":"float16","bytes":8,"storage":0}],"flops":0},
      {"id":1,"op":"aten.native_layer_norm.default","name":"n","in":[0],"out":[],"flops":0,"time_ns":77},
      {"id":2,"op":"<built-in function getitem>","name":"x","in":[1],"out":[{"shape":[4],"dtype":"float16","bytes":8,"storage":1}],"flops":0},
      {"id":3,"op":"<built-in function getitem>","name":"y","in":[1],"out":[{"shape":[1],"dtype":"float32","bytes":4,"storage":2}],"flops":0}]}"#;
    let graph = parse(text).expect("valid");
    assert_eq!(graph.ops[0].writes, [1, 2]);
    assert_eq!(graph.ops[0].time, 77);
    assert_eq!(graph.ops[1].kind, OpKind::View);
    assert_eq!(graph.storages[2].kind, StorageKind::Output);
    assert_eq!(graph.storages[1].kind, StorageKind::Temporary);
}

#[test]
fn malformed_graphs_get_errors_that_name_the_place() {
    let node = |id: usize, inputs: &str, out: &str| {
        format!(r#"{{"id":{id},"op":"aten.f","name":"n","in":[{inputs}],"out":[{out}],"flops":0}}"#)
    };
    let file = |nodes: &str| format!(r#"{{"model":"m","nodes":[{nodes}]}}"#);
    let float = r#"{"shape":[2],"dtype":"float32","bytes":8,"storage":0}"#;
    for (text, says) in [
        (file(""), "no operator"),
        (file(&node(1, "", float)), "node 0 has id 1"),
        (file(&node(0, "0", float)), "takes node 0"),
        (file(&node(0, "18446744073709551615", float)), "takes node 18446744073709551615"),
        (file(&node(0, "", &float.replace("\"bytes\":8", "\"bytes\":9"))), "9 bytes are not [2]"),
        (file(&node(0, "", &float.replace("[2]", "[18446744073709551615,2]"))), "are not"),
        (
            file(&node(0, "", &float.replace("[2]", "[999999999999999]").replace(":8", ":3999999999999996"))),
            "sum to more",
        ),
        (format!(r#"{{"version":3,"model":"m","nodes":[{}]}}"#, node(0, "", float)), "versions 1 to 2"),
        (format!(r#"{{"version":2,"outputs":[9],"model":"m","nodes":[{}]}}"#, node(0, "", float)), "output 9"),
        ("{".into(), "EOF"),
        (r#"{"model":"m","nodes":[{"id":-1}]}"#.into(), "invalid value"),
    ] {
        let error = parse(&text).expect_err(&text).to_string();
        assert!(error.contains("g.json") && error.contains(says), "{text}\n{error}");
    }
    let error = json::load(Path::new("/nowhere/g.json"), gpu()).expect_err("missing").to_string();
    assert!(error.contains("/nowhere/g.json"), "{error}");
}

#[test]
fn a_bomb_stays_packed() {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    let zeros = vec![b' '; 1 << 20];
    for _ in 0..=json::MAX_UNPACKED >> 20 {
        packed.write_all(&zeros).expect("to memory");
    }
    let packed = packed.finish().expect("to memory");
    let error = json::parse(&packed, Path::new("bomb"), gpu()).expect_err("too large");
    assert!(matches!(error, GraphError::TooLarge { .. }), "{error}");
}

#[test]
fn outputs_live_to_the_end() {
    let mut to = GraphBuilder::new("g");
    let out = to.storage(10, StorageKind::Output);
    let temporary = to.storage(5, StorageKind::Temporary);
    let (t0, t1) = (to.tensor(out, 10), to.tensor(temporary, 5));
    to.op(NewOp { outputs: vec![t0], ..NewOp::default() }).expect("valid");
    to.op(NewOp { outputs: vec![t1], ..NewOp::default() }).expect("valid");
    let graph = to.finish().expect("valid");
    assert_eq!(Liveness::new(&graph, &[0, 1]).curve(&graph), [10, 15]);
    assert_eq!((graph.peak(), graph.largest_op()), (15, 10));
}

/// One byte of a valid file changed, cut or doubled.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let text: &[u8] = br#"{"version":2,"model":"m","batch":1,"outputs":[2],"nodes":[{"id":0,"op":"param","name":"a","in":[],"out":[{"shape":[4],"dtype":"float16","bytes":8,"storage":0}],"flops":0},{"id":1,"op":"aten.add_.T","name":"n","in":[0,0],"out":[{"shape":[4],"dtype":"float16","bytes":8,"storage":0}],"flops":0},{"id":2,"op":"getitem","name":"x","in":[1],"out":[{"shape":[4],"dtype":"int8","bytes":4,"storage":1}],"flops":9}]}"#;
    prop::collection::vec((0..text.len(), any::<u8>(), 0..3u8), 1..4).prop_map(move |edits| {
        let mut text = text.to_vec();
        for (at, byte, how) in edits {
            let at = at % text.len();
            match how {
                0 => text[at] = byte,
                1 => text.truncate(at.max(1)),
                _ => text.insert(at, b'0' + byte % 10),
            }
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_loader_survives_anything(raw in mutated()) {
        if let Ok(graph) = json::parse(&raw, Path::new("f"), gpu()) {
            prop_assert!(graph.ops.iter().enumerate().all(|(id, op)| op.preds.iter().all(|&p| p < id)));
        }
    }

    #[test]
    fn the_loader_survives_noise(raw in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(json::parse(&raw, Path::new("f"), gpu()).is_err());
    }
}
