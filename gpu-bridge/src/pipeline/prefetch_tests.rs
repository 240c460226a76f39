use std::{collections::BTreeMap, sync::Arc};

use tensortier_link::placement::Kind;
use tensortier_model::{Clock, Profiles, VirtualClock};

use super::*;
use crate::pipeline::{Copy, CopyId, Direction, Limits, Pipeline, Tuning, VirtualDevice, VirtualHost};

const LAYERS: u64 = 24;
const BYTES: Bytes = 48 << 20;
const COMPUTE: Nanos = 3_000_000;

fn extent(start: u64, end: u64, node: u32, read_mib_per_sec: u32) -> Extent {
    let kind = if node == 0 { Kind::Dram } else { Kind::Cxl };
    Extent { start, end, node, kind, read_mib_per_sec, latency_ns: 300 }
}

#[test]
fn a_range_is_where_most_of_it_is() {
    let places = Places::new(vec![extent(200, 400, 1, 0), extent(0, 100, 0, 0)]);
    let node = |start, bytes| places.find(start, bytes).map(|extent| extent.node);
    assert_eq!(node(0, 100), Some(0));
    assert_eq!(node(90, 200), Some(1));
    assert_eq!(node(50, 160), Some(0));
    assert_eq!((node(100, 100), node(400, 5), node(u64::MAX, 5)), (None, None, None));
}

/// How a job learns of its objects' places.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Copies begin when the job waits for them.
    OnDemand,
    /// Ahead, as if all were in DRAM.
    Blind,
    /// Ahead, by the published placement.
    Placed,
}

struct Job {
    clock: Arc<VirtualClock>,
    pipeline: Pipeline<Arc<VirtualClock>, VirtualDevice>,
    prefetch: Prefetch,
    copies: BTreeMap<CopyId, u64>,
}

impl Job {
    fn new(way: Way, room: Bytes) -> Self {
        let profiles = Profiles::builtin();
        let tier = |name| profiles.tier(name).expect("built in").clone();
        let link = profiles.link("pcie4-x16").expect("built in").clone();
        let mut prefetch = Prefetch::new(link.h2d, room);
        // Every fourth layer is on a slow card.
        let places = Places::new(
            (0..LAYERS)
                .map(|i| {
                    let (node, rate) = if i % 4 == 3 { (1, 4_864) } else { (0, 190_000) };
                    extent(i * BYTES, (i + 1) * BYTES, node, rate)
                })
                .collect(),
        );
        for layer in 0..LAYERS {
            let place = places.find(layer * BYTES, BYTES).filter(|_| way == Way::Placed);
            prefetch.declare(layer, BYTES, place);
        }
        let tiers = [(0, tier("dram")), (1, tier("cxl-fpga"))].into();
        let host = VirtualHost { link, tiers, thread: 8e9, thread_ns: 3_000, cores: 8, link_changes: vec![] };
        let clock = Arc::new(VirtualClock::default());
        let device = VirtualDevice::new(host, Arc::clone(&clock), None);
        let limits = Limits { ring: 64 << 20, threads: 8 };
        let pipeline = Pipeline::new(Arc::clone(&clock), device, limits, Tuning::Adaptive);
        Self { clock, pipeline, prefetch, copies: BTreeMap::new() }
    }

    fn submit(&mut self, layer: u64) {
        let node = u32::from(layer % 4 == 3);
        let (host, direction) = (layer * BYTES, Direction::H2d);
        let copy = Copy { stream: layer, direction, host, device: 0, bytes: BYTES, node, registered: false };
        self.copies.insert(self.pipeline.submit(copy), layer);
    }

    /// Lets virtual time go on by a little, in which copies end and others become due.
    fn tick(&mut self, way: Way) {
        let now = self.clock.now();
        if way != Way::OnDemand {
            for layer in self.prefetch.due(now) {
                self.submit(layer);
            }
        }
        self.pipeline.run_until(now + 50_000);
        while let Some(completion) = self.pipeline.completed() {
            if let Some(layer) = self.copies.remove(&completion.id) {
                self.prefetch.arrived(layer, completion.ended);
            }
        }
    }

    /// One step; the time that the job waited.
    fn step(&mut self, way: Way) -> Nanos {
        let mut waited = 0;
        for layer in 0..LAYERS {
            let begin = self.clock.now();
            let mut here = self.prefetch.wanted(layer, begin);
            while !here {
                if self.prefetch.begin(layer, self.clock.now()) {
                    self.submit(layer);
                }
                self.tick(way);
                here = self.prefetch.is_here(layer);
            }
            let stall = self.clock.now() - begin;
            self.prefetch.waited(stall);
            waited += stall;
            let end = self.clock.now() + COMPUTE;
            while self.clock.now() < end {
                self.tick(way);
            }
            self.prefetch.released(layer);
        }
        waited
    }
}

/// Time that the job waited in its sixth to tenth step.
fn stall(way: Way, room: Bytes) -> Nanos {
    let mut job = Job::new(way, room);
    let steps: Vec<_> = (0..10).map(|_| job.step(way)).collect();
    steps[5..].iter().sum()
}

#[test]
fn placement_known_stalls_less_than_blind_and_both_less_than_on_demand() {
    let compute = 5 * LAYERS * COMPUTE;
    let [demand, blind, placed] =
        [Way::OnDemand, Way::Blind, Way::Placed].map(|way| stall(way, 5 * BYTES) as f64 / compute as f64);
    assert!(placed < 0.08, "{placed}");
    assert!(placed < 0.7 * blind && blind < 0.2 * demand, "{demand} {blind} {placed}");
}

#[test]
fn room_is_never_overdrawn() {
    let mut job = Job::new(Way::Placed, 3 * BYTES);
    for _ in 0..4 {
        for layer in 0..LAYERS {
            job.prefetch.wanted(layer, job.clock.now());
            job.clock.advance(COMPUTE);
            for due in job.prefetch.due(job.clock.now()) {
                job.prefetch.arrived(due, job.clock.now());
            }
            let here = (0..LAYERS).filter(|&layer| job.prefetch.is_here(layer)).count();
            assert!(here <= 3, "{here}");
            job.prefetch.released(layer);
        }
    }
    assert!(!job.prefetch.begin(99, 0), "never declared");
}

#[test]
fn an_object_that_moved_is_started_by_its_new_place() {
    let mut prefetch = Prefetch::new(16e9, 9 * BYTES);
    let (near, far) = (extent(0, BYTES, 0, 190_000), extent(0, BYTES, 1, 2_000));
    prefetch.declare(0, BYTES, Some(&near));
    prefetch.declare(1, BYTES, Some(&near));
    let mut now = 0;
    let step = |prefetch: &mut Prefetch, now: &mut Nanos| {
        for object in 0..2 {
            prefetch.wanted(object, *now);
            *now += 100_000_000;
        }
    };
    (0..3).for_each(|_| step(&mut prefetch, &mut now));
    // The next use of 0 is now; that of 1 in 100 ms, for which 3 ms suffice from DRAM and 25 ms do not.
    let last = now - 100_000_000;
    assert_eq!(prefetch.due(last + 170_000_000), [0], "1 has time");
    prefetch.relocate(1, Some(&far));
    assert_eq!((prefetch.node(1), prefetch.due(last + 176_000_000)), (Some(1), vec![1]), "from the card it has none");
    prefetch.relocate(1, Some(&near));
    assert_eq!(prefetch.node(1), Some(1), "its copy is under way");
    prefetch.arrived(1, now);
    prefetch.relocate(1, Some(&near));
    assert!(prefetch.node(1) == Some(0) && prefetch.is_here(1));
    prefetch.relocate(77, Some(&near));
    assert_eq!(prefetch.node(77), None);
}
