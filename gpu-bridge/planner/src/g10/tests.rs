use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;

const MIB: u64 = 1 << 20;

/// A forward and a backward pass: each layer's result is read again on the way back, its weights are global.
fn training(layers: usize, bytes: u64, hbm_bytes: u64) -> Workload {
    let mut tensors = vec![Tensor { id: 0, bytes: MIB, global: false }];
    let mut kernels = Vec::new();
    let mut add = |bytes, global| {
        tensors.push(Tensor { id: tensors.len() as u32, bytes, global });
        tensors.len() as u32 - 1
    };
    let kernel = |name: &str, inputs: Vec<u32>, outputs: Vec<u32>| Kernel {
        name: name.to_owned(),
        time_us: 20_000.0,
        inputs,
        outputs,
        workspace_bytes: MIB,
    };
    let (mut last, mut saved) = (0, Vec::new());
    for _ in 0..layers {
        let (weight, result) = (add(MIB, true), add(bytes, false));
        kernels.push(kernel("forward", vec![last, weight], vec![result]));
        saved.push((last, weight));
        last = result;
    }
    let mut gradient = add(bytes, false);
    kernels.push(kernel("loss", vec![last], vec![gradient]));
    for (input, weight) in saved.into_iter().rev() {
        let next = add(bytes, false);
        kernels.push(kernel("backward", vec![gradient, input, weight], vec![next, weight]));
        gradient = next;
    }
    Workload {
        model: "training".to_owned(),
        batch: 1,
        hbm_bytes,
        host_bytes: 1 << 40,
        pcie_gbps: 15.754,
        ssd_gbps: 3.2,
        ssd_latency_us: 20.0,
        system_latency_us: 45.0,
        page_bytes: 4096,
        tensors,
        kernels,
    }
}

#[test]
fn what_fits_is_left_alone() {
    let w = training(20, 64 * MIB, 4 << 30);
    let plan = plan(&w, &Profile::g10(&w));
    assert_eq!(plan.moves, []);
    let run = simulate(&w, &plan, &Profile::g10_runtime(&w)).unwrap();
    assert!(run.ratio() > 0.99, "{run:?}");
    assert_eq!(run.out_bytes, (0, 0));
}

#[test]
fn a_plan_beats_eviction_at_run_time() {
    let w = training(20, 64 * MIB, 1 << 30);
    for (p, runtime) in [(Profile::g10(&w), Profile::g10_runtime(&w)), (Profile::cxl(&w), Profile::cxl(&w))] {
        let plan = plan(&w, &p);
        assert!(!plan.moves.is_empty());
        let with = simulate(&w, &plan, &runtime).unwrap();
        let without = simulate(&w, &Plan::default(), &runtime).unwrap();
        assert!(with.ratio() > without.ratio(), "{with:?} {without:?}");
        assert!(with.ratio() <= 1.0 + 1e-9);
    }
}

#[test]
fn a_full_host_sends_the_rest_to_the_far_tier() {
    let mut w = training(20, 64 * MIB, 1 << 30);
    w.host_bytes = 0;
    let plan = plan(&w, &Profile::g10(&w));
    assert_eq!(plan.bytes_to(Backing::Host), 0);
    let run = simulate(&w, &Plan::default(), &Profile::g10_runtime(&w)).unwrap();
    assert_eq!(run.out_bytes.1, 0);
    assert!(run.out_bytes.0 > 0);
}

#[test]
fn a_kernel_larger_than_the_device_is_refused() {
    let w = training(2, 64 * MIB, 100 * MIB);
    let error = simulate(&w, &Plan::default(), &Profile::g10_runtime(&w)).unwrap_err();
    assert!(matches!(error, SimulateError::TooLarge { kernel: 1, .. }), "{error}");
}

#[test]
fn idle_time_lies_between_uses_and_wraps_for_globals() {
    let w = training(2, MIB, 1 << 30);
    let starts = intervals::kernel_starts(&w);
    let found: Vec<_> = idle_intervals(&w, &starts).iter().map(|i| (i.tensor, i.start, i.end)).collect();
    // Tensors: 0 input, 1 and 3 weights, 2 and 4 results; kernels: two forward, the loss, two backward.
    assert_eq!(found, [(0, 1, 4), (1, 1, 4), (2, 2, 3), (3, 2, 3), (3, 4, 1)]);
    let lives = lifetimes(&w);
    assert_eq!(lives[2], Some(Lifetime { birth: 0, death: 4 }));
    assert_eq!(lives[1], None, "a global");
}

fn written(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

const HEAD: &str = r#""model":"m","batch":1,"hbm_bytes":1,"host_bytes":1,"pcie_gbps":1.0,"ssd_gbps":1.0,
    "ssd_latency_us":1.0,"system_latency_us":1.0,"page_bytes":4096"#;

#[test]
fn malformed_workloads_and_plans_are_named() {
    let bad = |body: &str, what: &str| {
        let file = written(&format!("{{{HEAD},{body}}}"));
        let error = Workload::load(file.path()).expect_err(what).to_string();
        assert!(error.contains(what) && error.contains(&file.path().display().to_string()), "{error}");
    };
    bad(r#""tensors":[]"#, "kernels");
    bad(r#""tensors":[],"kernels":[]"#, "not a workload");
    let kernel = |inputs: &str, time: &str| {
        format!(r#"{{"name":"k","time_us":{time},"inputs":[{inputs}],"outputs":[],"workspace_bytes":0}}"#)
    };
    bad(&format!(r#""tensors":[],"kernels":[{}]"#, kernel("0", "1")), "uses tensor 0");
    bad(&format!(r#""tensors":[],"kernels":[{}]"#, kernel("", "-1")), "takes -1");
    let tensor = r#"{"id":3,"bytes":1,"global":false}"#;
    bad(&format!(r#""tensors":[{tensor}],"kernels":[{}]"#, kernel("", "1")), "has id 3");
    let huge = r#"{"id":0,"bytes":18446744073709551615,"global":true},{"id":1,"bytes":1,"global":true}"#;
    bad(&format!(r#""tensors":[{huge}],"kernels":[{}]"#, kernel("", "1")), "overflows");

    let w = training(2, MIB, 1 << 30);
    let bad = |moves: &str, what: &str| {
        let file = written(&format!(r#"{{"moves":[{moves}]}}"#));
        let error = Plan::load(file.path(), &w).expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    };
    bad(r#"{"tensor":99,"bytes":1,"evict_at":0,"to":"ssd","prefetch_at":1}"#, "tensor 99");
    bad(r#"{"tensor":0,"bytes":1,"evict_at":0,"to":"ssd","prefetch_at":1}"#, "has 1 B");
    bad(r#"{"tensor":0,"bytes":1048576,"evict_at":0,"to":"ssd","prefetch_at":77}"#, "77");
    bad(r#"{"tensor":0,"bytes":1048576,"evict_at":0,"to":"tape","prefetch_at":1}"#, "tape");
    assert!(Workload::load(std::path::Path::new("/nonexistent.json")).is_err());
}

#[test]
fn a_comparison_tells_every_difference() {
    let m = |tensor, to, prefetch_at| Move { tensor, bytes: 10, evict_at: 1, to, prefetch_at };
    let plan = |moves: &[Move]| Plan { moves: moves.to_vec(), ..Plan::default() };
    let ours = plan(&[m(1, Backing::Far, 5), m(2, Backing::Far, 5), m(3, Backing::Host, 5), m(4, Backing::Far, 5)]);
    let theirs = plan(&[m(1, Backing::Far, 5), m(2, Backing::Host, 5), m(3, Backing::Host, 6), m(5, Backing::Far, 5)]);
    let found = compare(&ours, &theirs);
    assert_eq!((found.same, found.same_return), (2, 1));
    assert_eq!((found.far_bytes, found.host_bytes), ((30, 20), (10, 20)));
    assert_eq!(
        found.differences,
        [
            Difference::Tier(m(2, Backing::Far, 5), m(2, Backing::Host, 5)),
            Difference::Return(m(3, Backing::Host, 5), m(3, Backing::Host, 6)),
            Difference::OnlyOurs(m(4, Backing::Far, 5)),
            Difference::OnlyTheirs(m(5, Backing::Far, 5)),
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn plans_move_idle_tensors_and_runs_end(seed: u64, layers in 1usize..12, hbm in 200u64..1200, clean: bool) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut w = training(layers, 32 * MIB, hbm * MIB);
        w.kernels.iter_mut().for_each(|k| k.time_us = rng.random_range(0.0..30_000.0));
        let p = if clean { Profile::cxl(&w) } else { Profile::g10(&w) };
        let made = plan(&w, &p);
        let idle = idle_intervals(&w, &intervals::kernel_starts(&w));
        for m in &made.moves {
            let interval = idle.iter().find(|i| i.tensor == m.tensor && i.start == m.evict_at);
            prop_assert!(interval.is_some(), "{m:?} leaves while it is used");
        }
        prop_assert_eq!(made.gpu_bytes_before_moves.len(), w.kernels.len());
        let run = simulate(&w, &made, &p).unwrap();
        prop_assert!(run.iteration_us >= run.ideal_us * (1.0 - 1e-9));
    }
}
