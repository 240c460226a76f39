use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use proptest::prelude::*;
use tensortier_model::Bytes;

use super::*;

const MIB: Bytes = 1 << 20;
const GIB: Bytes = 1 << 30;
const CLASSES: [Class; 4] = [Class::Optimizer, Class::Parameters, Class::Gradients, Class::Activations];
const LIFETIMES: [Lifetime; 3] = [Lifetime::Job, Lifetime::Step, Lifetime::Window];

/// A driver that knows what is registered, and objects to anything twice.
#[derive(Clone, Debug, Default)]
struct Driver {
    ranges: Rc<RefCell<BTreeMap<u64, Bytes>>>,
    refuses: bool,
}

impl Registrar for Driver {
    fn register(&mut self, address: u64, bytes: Bytes) -> Result<(), String> {
        if self.refuses {
            return Err("invalid argument".into());
        }
        let mut ranges = self.ranges.borrow_mut();
        let free = ranges.range(..address + bytes).next_back().is_none_or(|(start, length)| start + length <= address);
        assert!(free, "registered twice");
        ranges.insert(address, bytes);
        Ok(())
    }

    fn unregister(&mut self, address: u64, bytes: Bytes) {
        assert_eq!(self.ranges.borrow_mut().remove(&address), Some(bytes), "not what was registered");
    }
}

fn spec(node: u32, kind: NodeKind, distance: u32, budget: Bytes) -> NodeSpec {
    let weight = if node == 3 { 2 } else { 1 };
    NodeSpec { node, kind, distance, weight, budget, movable: false, register: true }
}

/// Two sockets, two cards on the GPU's and a third far away, each with `budget`.
fn machine(budget: Bytes) -> Vec<NodeSpec> {
    vec![
        spec(0, NodeKind::Dram, 10, budget),
        spec(1, NodeKind::Dram, 21, budget),
        spec(2, NodeKind::Cxl, 14, budget),
        spec(3, NodeKind::Cxl, 14, budget),
        spec(9, NodeKind::Cxl, 24, budget),
    ]
}

fn fake(room: Bytes) -> FakeNodes {
    FakeNodes { room: [0, 1, 2, 3, 9].map(|node| (node, room)).into(), ..FakeNodes::default() }
}

fn pool(budget: Bytes) -> Pool<FakeNodes, Driver> {
    Pool::new(machine(budget), fake(budget), Driver::default()).expect("no movable node")
}

fn nodes_of(pool: &Pool<FakeNodes, Driver>, handle: Handle) -> Vec<u32> {
    pool.view(handle).expect("live").placement.shares().iter().map(|share| share.0).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(Bytes, Class, Lifetime),
    Free(usize),
    FreeAll(Lifetime),
    Move(usize, usize),
    Pin(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![1..4 * 1024_u64, 1..64 * 1024_u64, 1..4 * MIB, 8 * MIB..40 * MIB];
    prop_oneof![
        6 => (bytes, 0..4_usize, 0..3_usize).prop_map(|(b, c, l)| Step::Allocate(b, CLASSES[c], LIFETIMES[l])),
        4 => any::<usize>().prop_map(Step::Free),
        1 => (1..3_usize).prop_map(|l| Step::FreeAll(LIFETIMES[l])),
        3 => (any::<usize>(), 0..6_usize).prop_map(|(i, to)| Step::Move(i, to)),
        1 => any::<usize>().prop_map(Step::Pin),
    ]
}

/// The test's own account of an object.
#[derive(Clone, Copy, Debug)]
struct Known {
    handle: Handle,
    bytes: Bytes,
    mark: u8,
    lifetime: Lifetime,
    pinned: Option<u64>,
}

/// Marks both ends: overlap and lost bytes show there first, and the middle of a large object stays untouched.
fn ends(bytes: &mut [u8]) -> impl Iterator<Item = &mut u8> {
    let (head, tail) = bytes.split_at_mut(bytes.len().div_ceil(2));
    let cut = tail.len().saturating_sub(2048);
    head.iter_mut().take(2048).chain(&mut tail[cut..])
}

fn check(pool: &mut Pool<FakeNodes, Driver>, known: &[Known], driver: &Driver) -> Result<(), TestCaseError> {
    let mut ranges = BTreeSet::new();
    for object in known {
        let view = pool.view(object.handle).expect("live");
        prop_assert_eq!(view.bytes, object.bytes);
        ranges.insert((view.address, view.address + view.bytes));
        match object.pinned {
            Some(address) => prop_assert_eq!(view.address, address, "a pinned object has moved"),
            None => {
                let bytes = pool.bytes_mut(object.handle).expect("not pinned");
                prop_assert!(ends(bytes).all(|byte| *byte == object.mark), "bytes of another object");
            }
        }
        let registered = driver.ranges.borrow();
        let (start, length) = registered.range(..=view.address).next_back().expect("registered");
        prop_assert!(view.address + view.bytes <= start + length, "crosses registrations");
    }
    prop_assert_eq!(ranges.len(), known.len());
    let sorted: Vec<_> = ranges.into_iter().collect();
    prop_assert!(sorted.windows(2).all(|pair| pair[0].1 <= pair[1].0), "objects overlap");

    let usage = pool.usage();
    prop_assert_eq!(usage.live, known.iter().map(|o| o.bytes).sum::<u64>());
    prop_assert_eq!(usage.objects, known.len());
    prop_assert_eq!(usage.extents, driver.ranges.borrow().len());
    prop_assert_eq!(usage.reserved, driver.ranges.borrow().values().sum::<u64>());
    prop_assert!(usage.rounded <= usage.reserved && usage.live <= usage.rounded);
    prop_assert!(pool.nodes().values().all(|n| n.peak <= n.budget && n.reserved <= n.peak));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn objects_keep_apart_and_keep_their_bytes(steps in prop::collection::vec(step(), 1..60)) {
        let driver = Driver::default();
        let mut pool = Pool::new(machine(96 * MIB), fake(96 * MIB), driver.clone()).expect("no movable node");
        let placements = [
            Placement::on(0),
            Placement::on(2),
            Placement::on(3),
            Placement::on(9),
            Placement::striped(vec![(2, 1), (3, 2)]),
            Placement::striped(vec![(0, 3), (9, 1)]),
        ];
        let mut known: Vec<Known> = Vec::new();
        for (mark, step) in (1..=255).cycle().zip(steps) {
            match step {
                Step::Allocate(bytes, class, lifetime) => match pool.allocate(bytes, class, lifetime) {
                    Ok(handle) => {
                        ends(pool.bytes_mut(handle).expect("live")).for_each(|byte| *byte = mark);
                        known.push(Known { handle, bytes, mark, lifetime, pinned: None });
                    }
                    Err(error) => prop_assert!(matches!(error, PoolError::Budget { .. }), "{error}"),
                },
                Step::Free(i) if !known.is_empty() => {
                    let at = i % known.len();
                    let freed = pool.free(known[at].handle);
                    if known[at].pinned.is_some() {
                        prop_assert!(matches!(freed, Err(PoolError::Pinned(_))));
                        pool.unpin(known[at].handle).expect("live");
                        known[at].pinned = None;
                    } else {
                        freed.expect("live");
                        let gone = known.swap_remove(at).handle;
                        prop_assert!(matches!(pool.free(gone), Err(PoolError::Stale(_))));
                        prop_assert!(pool.view(gone).is_err() && pool.pin(gone).is_err());
                    }
                }
                Step::FreeAll(lifetime) => {
                    let before = known.len();
                    known.retain(|object| object.lifetime != lifetime || object.pinned.is_some());
                    prop_assert_eq!(pool.free_all(lifetime), before - known.len());
                }
                Step::Move(i, to) if !known.is_empty() => {
                    let object = known[i % known.len()];
                    match pool.move_to(object.handle, placements[to].clone()) {
                        Err(PoolError::Pinned(_)) => prop_assert!(object.pinned.is_some()),
                        Err(error) => prop_assert!(matches!(error, PoolError::Budget { .. }), "{error}"),
                        Ok(()) => prop_assert_eq!(nodes_of(&pool, object.handle)[0], placements[to].shares()[0].0),
                    }
                }
                Step::Pin(i) if !known.is_empty() => {
                    let at = i % known.len();
                    let object = &mut known[at];
                    if object.pinned.is_none() {
                        object.pinned = Some(pool.pin(object.handle).expect("live").address);
                    }
                    prop_assert!(matches!(pool.bytes(object.handle), Err(PoolError::Pinned(_))));
                }
                _ => {}
            }
            check(&mut pool, &known, &driver)?;
        }
        drop(pool);
        prop_assert!(driver.ranges.borrow().is_empty(), "still registered after the pool's end");
    }
}

#[test]
fn freed_room_coalesces_and_is_registered_once() {
    let mut pool = pool(GIB);
    let parts: Vec<_> = (0..64).map(|_| pool.allocate(MIB, Class::Optimizer, Lifetime::Job).expect("room")).collect();
    let before = pool.usage();
    for (i, &part) in
        parts.iter().enumerate().filter(|(i, _)| i % 2 == 0).chain(parts.iter().enumerate().skip(1).step_by(2))
    {
        pool.free(part).unwrap_or_else(|error| panic!("part {i}: {error}"));
    }
    assert_eq!(pool.usage().live, 0);
    assert!(pool.external_fragmentation() < 1e-9, "all idle");
    for lifetime in LIFETIMES {
        let again: Vec<_> = (0..64).map(|_| pool.allocate(MIB, Class::Optimizer, lifetime).expect("room")).collect();
        again.into_iter().for_each(|handle| pool.free(handle).expect("live"));
    }
    let after = pool.usage();
    assert_eq!((after.registrations, after.reserved), (before.registrations, before.reserved), "extents are passed on");
}

#[test]
fn movable_nodes_are_refused_with_the_way_out() {
    let mut nodes = machine(GIB);
    nodes[2].movable = true;
    let error = Pool::new(nodes.clone(), fake(GIB), Driver::default()).expect_err("would pin in ZONE_MOVABLE");
    let text = error.to_string();
    assert!(text.contains("node 2") && text.contains("online_kernel") && text.contains("device-dax"), "{text}");

    nodes[2].register = false;
    let driver = Driver::default();
    let mut pool = Pool::new(nodes, fake(GIB), driver.clone()).expect("unregistered is fine");
    let object = pool.allocate(MIB, Class::Parameters, Lifetime::Job).expect("room");
    assert_eq!(nodes_of(&pool, object), [2]);
    assert!(!pool.view(object).expect("live").registered && driver.ranges.borrow().is_empty());
    let striped = pool.allocate(64 * MIB, Class::Parameters, Lifetime::Job).expect("room");
    assert_eq!(nodes_of(&pool, striped), [2, 3]);
    assert!(driver.ranges.borrow().is_empty(), "a stripe with a movable part is not registered either");
}

#[test]
fn a_driver_that_refuses_costs_the_registration_only() {
    let driver = Driver { refuses: true, ..Driver::default() };
    let mut pool = Pool::new(machine(GIB), fake(GIB), driver).expect("no movable node");
    let object = pool.allocate(MIB, Class::Optimizer, Lifetime::Job).expect("room");
    assert!(!pool.view(object).expect("live").registered);
    assert_eq!((pool.usage().registrations, pool.usage().registration_failures), (0, 1));
}

#[test]
fn a_full_node_spills_to_the_next_and_then_everything_is_named() {
    let mut pool = pool(64 * MIB);
    let nodes: Vec<_> = (0..10)
        .map(|_| {
            let handle = pool.allocate(32 * MIB, Class::Optimizer, Lifetime::Job).expect("room");
            nodes_of(&pool, handle)[0]
        })
        .collect();
    assert_eq!(nodes, [0, 0, 1, 1, 2, 2, 3, 3, 9, 9]);
    assert_eq!(pool.usage().spilled, 8);
    let error = pool.allocate(MIB, Class::Gradients, Lifetime::Step).expect_err("all full").to_string();
    assert!(error.contains("Gradients") && error.contains("node 9 holds 67108864 of 67108864"), "{error}");
    assert!(matches!(pool.allocate(0, Class::Gradients, Lifetime::Step), Err(PoolError::Size { .. })));
    assert!(matches!(pool.allocate(u64::MAX, Class::Gradients, Lifetime::Step), Err(PoolError::Size { .. })));
}

/// Budgets allow more than the machine has: the kernel's refusal is passed on and nothing is left behind.
#[test]
fn a_node_fuller_than_its_budget_says_is_passed_over() {
    let mut backing = fake(GIB);
    backing.room.insert(0, 10 * MIB);
    let mut pool = Pool::new(machine(GIB), backing, Driver::default()).expect("no movable node");
    let object = pool.allocate(20 * MIB, Class::Optimizer, Lifetime::Job).expect("node 1 has room");
    assert_eq!(nodes_of(&pool, object), [1]);
    assert_eq!(pool.nodes()[&0].reserved, 0);
    let small = pool.allocate(9 * MIB, Class::Optimizer, Lifetime::Job).expect("node 0 has this much");
    assert_eq!(nodes_of(&pool, small), [0]);

    let mut empty = Pool::new(machine(GIB), fake(0), Driver::default()).expect("no movable node");
    let error = empty.allocate(MIB, Class::Optimizer, Lifetime::Job).expect_err("no memory anywhere");
    assert!(matches!(error, PoolError::Backing(_)) && error.to_string().contains("budget"), "{error}");
    assert_eq!(empty.usage(), Usage::default());
}

#[test]
fn stripes_are_reused_whole() {
    let mut pool = pool(4 * GIB);
    let stripe = |pool: &mut Pool<FakeNodes, Driver>, bytes| {
        let handle = pool.allocate(bytes, Class::Activations, Lifetime::Step).expect("room");
        assert_eq!(nodes_of(pool, handle), [2, 3]);
        handle
    };
    let first = stripe(&mut pool, 300 * MIB);
    let shares = pool.nodes();
    let (two, three) = (shares[&2].reserved as f64, shares[&3].reserved as f64);
    assert!((three / two - 2.0).abs() < 0.02, "weights 1 and 2, got {two} and {three}");
    let address = pool.view(first).expect("live").address;
    pool.free(first).expect("live");
    let again = stripe(&mut pool, 299 * MIB);
    assert_eq!(pool.view(again).expect("live").address, address);
    let small = stripe(&mut pool, 20 * MIB);
    pool.free(again).expect("live");
    let other = stripe(&mut pool, 20 * MIB);
    assert_ne!(pool.view(other).expect("live").address, address, "a part of a stripe has other weights");
    assert_ne!(pool.view(small).expect("live").address, address);
}

/// Forward and backward passes of a transformer with odd sizes: what is mapped stays near what is live, and after the
/// first step nothing is registered any more.
#[test]
fn a_steady_job_wastes_little_and_registers_nothing() {
    let mut pool = pool(64 * GIB);
    let layers: u64 = 24;
    for i in 0..layers {
        for _ in 0..3 {
            pool.allocate(12 * 1600 * 1600 * 4 / 3 + i, Class::Optimizer, Lifetime::Job).expect("room");
        }
        pool.allocate(12 * 1600 * 1600 * 2 + i, Class::Parameters, Lifetime::Job).expect("room");
        for _ in 0..40 {
            pool.allocate(1600 * 4 + i, Class::Optimizer, Lifetime::Job).expect("room");
        }
    }
    let mut registered = Vec::new();
    for _ in 0..6 {
        let mut live = Vec::new();
        for i in 0..layers {
            for bytes in [13_107_200 + i * 512, 5_242_881, 3_276_801 + i * 4096, 70_001] {
                live.push(pool.allocate(bytes, Class::Activations, Lifetime::Step).expect("room"));
            }
            let scratch = pool.allocate(40_000_001 + i, Class::Activations, Lifetime::Window).expect("room");
            pool.free(scratch).expect("live");
        }
        while let Some(activation) = live.pop() {
            let gradient = pool.allocate(9_000_001, Class::Gradients, Lifetime::Window).expect("room");
            pool.free(activation).expect("live");
            pool.free(gradient).expect("live");
        }
        registered.push(pool.usage().registrations);
    }
    let usage = pool.usage();
    let waste = (usage.peak_reserved as f64 - usage.peak_live as f64) / usage.peak_live as f64;
    assert!(waste <= 0.05, "{waste}: {usage:?}");
    assert_eq!(registered[0], registered[5], "{registered:?}");
}

/// The real backing on the one node that every host has.
#[test]
fn this_host_gives_node_0() {
    let movable = movable_nodes(&std::fs::read_to_string("/proc/zoneinfo").expect("procfs")).contains(&0);
    let node = NodeSpec { movable, register: !movable, ..spec(0, NodeKind::Dram, 10, 64 * MIB) };
    let mut pool = Pool::new(vec![node], HostMemory::new(), NoRegistrar).expect("not movable");
    let large = pool.allocate(5 * MIB + 3, Class::Optimizer, Lifetime::Job).expect("room");
    let small = pool.allocate(100, Class::Parameters, Lifetime::Step).expect("room");
    pool.bytes_mut(large).expect("live").fill(7);
    pool.bytes_mut(small).expect("live").fill(8);
    assert!(pool.bytes(large).expect("live").iter().all(|&byte| byte == 7));
    assert!(!pool.view(large).expect("live").registered, "no driver here");
    assert!(pool.allocate(65 * MIB, Class::Optimizer, Lifetime::Job).is_err(), "over the budget");
}
