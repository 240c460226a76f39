//! The bridge on the emulated CUDA driver: real threads, real time, real bytes.
//!
//! A process finds its driver when it starts, so each test runs itself again with the emulator in its library path.
#![allow(unsafe_code)]

use std::{ops::ControlFlow, process::Command, sync::Arc};

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use tensortier_bridge::{
    device::{CudaDevice, Gpu, Slow},
    execute::{self, InCore, Room, TierRoom},
    measure,
    pipeline::{Copy, Direction, Limits, Pipeline, Settings, Tuning},
    pool::{Class, HostMemory, Lifetime, NodeKind, NodeSpec, Pool, Registrar, movable_nodes},
};
use tensortier_model::{Machine, Profiles, RealClock};
use tensortier_planner::{graph::random, planners::Planner, swapadvisor::Search};

const MIB: u64 = 1 << 20;

/// Runs `test`, an ignored one of this file, with the emulator as the driver.
fn emulated(test: &str) {
    let this = std::env::current_exe().expect("known");
    let library = this.parent().expect("target/PROFILE/deps").join("libtensortier_emulator.so");
    assert!(library.exists(), "{}: built as a dev-dependency", library.display());
    let folder = std::env::temp_dir().join(format!("tensortier-bridge-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("temporary folder");
    std::os::unix::fs::symlink(library, folder.join("libcuda.so.1")).expect("a link");
    let mut again = Command::new(this);
    let output = again.args(["--ignored", "--exact", test]).env("LD_LIBRARY_PATH", &folder).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    std::fs::remove_dir_all(&folder).expect("remove");
}

#[test]
fn bytes_arrive_both_ways_at_once() {
    emulated("inner_bytes");
}

#[test]
fn the_pools_memory_is_registered_and_copied_directly() {
    emulated("inner_pool");
}

#[test]
fn a_plan_computes_what_the_step_in_core_does() {
    emulated("inner_plan");
}

#[test]
fn every_path_is_measured() {
    emulated("inner_paths");
}

fn noise(bytes: u64, seed: u64) -> Vec<u8> {
    (0..bytes).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 37) as u8).collect()
}

#[test]
#[ignore = "run by bytes_arrive_both_ways_at_once with the emulator"]
fn inner_bytes() {
    let gpu = Gpu::open().expect("the emulator");
    assert!(gpu.name().contains("emulator"));
    assert!(gpu.set_emulated_link(8e9, 8e9));
    let bytes = 5 * MIB + 321;
    for tuning in [Tuning::Adaptive, Tuning::Fixed(Settings { chunk: 70_000, depth: 3, threads: 2 })] {
        let (source, kept) = (noise(bytes, 1), noise(bytes, 2));
        let mut out = vec![0_u8; bytes as usize];
        let (to, from) = (gpu.allocate(bytes).expect("room"), gpu.allocate(bytes).expect("room"));
        gpu.write(from, &kept).expect("copies");
        let clock = Arc::new(RealClock::new());
        let limits = Limits { ring: 2 * MIB, threads: 2 };
        // SAFETY: vectors and device memory outlive the pipeline; each copy has its own.
        let device = unsafe { CudaDevice::new(&gpu, Arc::clone(&clock), limits, 0, Slow::new()) }.expect("rings");
        let mut pipeline = Pipeline::new(clock, device, limits, tuning);
        let copy = |stream, direction, host, device| Copy {
            stream,
            direction,
            host,
            device,
            bytes,
            node: 0,
            registered: false,
        };
        pipeline.submit(copy(1, Direction::H2d, source.as_ptr() as u64, to));
        pipeline.submit(copy(2, Direction::D2h, out.as_mut_ptr() as u64, from));
        pipeline.wait_all();
        assert!(pipeline.device().failure().is_none());
        assert!(out == kept, "{tuning:?}");
        gpu.read(to, &mut out).expect("copies");
        assert!(out == source, "{tuning:?}");
        // Outside of what is allocated: the driver refuses, the pipeline goes on and says so.
        pipeline.submit(copy(1, Direction::H2d, source.as_ptr() as u64, to + bytes));
        pipeline.wait_all();
        let failure = pipeline.device().failure().expect("refused").to_string();
        assert!(failure.contains("INVALID_VALUE"), "{failure}");
        drop(pipeline);
        gpu.free(to).and_then(|()| gpu.free(from)).expect("ours");
    }
}

#[test]
#[ignore = "run by the_pools_memory_is_registered_and_copied_directly with the emulator"]
fn inner_pool() {
    let gpu = Gpu::open().expect("the emulator");
    let zones = std::fs::read_to_string("/proc/zoneinfo").expect("procfs");
    assert!(!movable_nodes(&zones).contains(&0), "node 0 has movable memory alone: this test cannot run here");
    let node = NodeSpec {
        node: 0,
        kind: NodeKind::Dram,
        distance: 10,
        weight: 1,
        budget: 64 * MIB,
        movable: false,
        register: true,
    };
    let mut pool = Pool::new(vec![node], HostMemory::new(), &gpu).expect("not movable");
    let object = pool.allocate(3 * MIB, Class::Parameters, Lifetime::Job).expect("room");
    pool.bytes_mut(object).expect("not pinned").copy_from_slice(&noise(3 * MIB, 3));
    let view = pool.pin(object).expect("live");
    assert!(view.registered);
    let device = gpu.allocate(3 * MIB).expect("room");
    let clock = Arc::new(RealClock::new());
    let limits = Limits { ring: 2 * MIB, threads: 1 };
    // SAFETY: the object is pinned until the pipeline is gone.
    let cuda = unsafe { CudaDevice::new(&gpu, Arc::clone(&clock), limits, 0, Slow::new()) }.expect("rings");
    let mut pipeline = Pipeline::new(clock, cuda, limits, Tuning::Adaptive);
    let (host, bytes) = (view.address, view.bytes);
    pipeline.submit(Copy { stream: 0, direction: Direction::H2d, host, device, bytes, node: 0, registered: true });
    pipeline.wait_all();
    drop(pipeline);
    pool.unpin(object).expect("live");
    let mut back = vec![0; 3 * MIB as usize];
    gpu.read(device, &mut back).expect("copies");
    assert!(back == noise(3 * MIB, 3));
    drop(pool);
    gpu.free(device).expect("ours");
}

#[test]
#[ignore = "run by a_plan_computes_what_the_step_in_core_does with the emulator"]
fn inner_plan() {
    let gpu = Gpu::open().expect("the emulator");
    assert!(gpu.set_emulated_link(2e9, 2e9));
    let graph = random::graph(&mut Xoshiro256PlusPlus::seed_from_u64(9), 80);
    let tiers = [("dram", graph.peak() / 6), ("cxl-asic", 1 << 30)];
    let hbm = graph.largest_op().max(graph.peak() / 2);
    let machine = Machine::new(&Profiles::builtin(), "v100-16g", hbm, "pcie4-x16", &tiers).expect("built in");
    let steps = 3;
    let expected = InCore::run(&graph, steps);
    let mut used = [0; 2];
    for planner in [Planner::Ours, Planner::Delta, Planner::OdswapLru] {
        let search = Search { population: 4, evaluations: 200, ..Search::default() };
        let plan = planner.plan(&graph, &machine, search, |_| ControlFlow::Continue(())).expect("room");
        let program = execute::prepare(&graph, &machine, &plan, steps).expect("correct");
        used.iter_mut().zip(program.tier_bytes()).for_each(|(used, bytes)| *used += bytes);
        let mut memory: Vec<Vec<u8>> = program.tier_bytes().iter().map(|bytes| vec![0; *bytes as usize + 1]).collect();
        let device = gpu.allocate(program.device_bytes()).expect("room");
        let mut registrar = &gpu;
        registrar.register(memory[0].as_ptr() as u64, memory[0].len() as u64).expect("within RLIMIT_MEMLOCK");
        let mut address = |tier: usize| memory[tier].as_mut_ptr() as u64;
        let tier = |(tier, registered)| TierRoom { address: address(tier), node: tier as u32, registered };
        let room = Room { device, tiers: [(0, true), (1, false)].map(tier).into() };
        let clock = Arc::new(RealClock::new());
        let limits = Limits { ring: 2 * MIB, threads: 2 };
        // SAFETY: vectors and device memory outlive the pipeline; a program gives each byte to one task at a time.
        let cuda = unsafe { CudaDevice::new(&gpu, Arc::clone(&clock), limits, 0, Slow::from([(1, 1e9)])) };
        let mut pipeline = Pipeline::new(clock, cuda.expect("rings"), limits, Tuning::Adaptive);
        let outcome = execute::run(&mut pipeline, &graph, &program, &room, &expected).expect("runs");
        assert!(pipeline.device().failure().is_none());
        drop(pipeline);
        registrar.unregister(room.tiers[0].address, memory[0].len() as u64);
        gpu.free(device).expect("ours");
        assert_eq!(outcome.wrong, [], "{planner}");
        assert!(outcome.copies > 30 && outcome.checked > 200, "{planner}: {outcome:?}");
    }
    assert!(used.iter().all(|bytes| *bytes > 0), "staged memory, and what the engines reach: {used:?}");
}

#[test]
#[ignore = "run by every_path_is_measured with the emulator"]
fn inner_paths() {
    let gpu = Gpu::open().expect("the emulator");
    let rates = measure::paths(&gpu, &[0, 999], 0, 2 * MIB, 2).expect("room");
    assert_eq!(rates.len(), 6);
    for rate in rates {
        let bad = rate.node == 999;
        assert_eq!(rate.error.is_some(), bad, "{rate:?}");
        assert!(bad || rate.h2d > 1e6 && rate.d2h > 1e6, "{rate:?}");
        assert_eq!(rate.both.is_some(), !bad && rate.path != "pageable");
    }
}
