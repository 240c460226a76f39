//! The pipeline on a virtual clock: nothing here depends on the machine that runs it.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use proptest::prelude::*;

use tensortier_model::{Bytes, Clock, Nanos, Profiles, VirtualClock};

use super::*;

const KIB: Bytes = 1 << 10;
const MIB: Bytes = 1 << 20;
const LIMITS: Limits = Limits { ring: 64 * MIB, threads: 8 };

fn host(link: &str, tiers: &[&str], thread: f64) -> VirtualHost {
    let profiles = Profiles::builtin();
    let tier = |name: &&str| profiles.tier(name).expect("built in").clone();
    VirtualHost {
        link: profiles.link(link).expect("built in").clone(),
        tiers: (0..).zip(tiers.iter().map(tier)).collect(),
        thread,
        thread_ns: 3_000,
        cores: 8,
        link_changes: Vec::new(),
    }
}

fn copy(direction: Direction, bytes: Bytes) -> Copy {
    Copy { stream: 0, direction, host: 0, device: 0, bytes, node: 0, registered: false }
}

fn pipeline(host: &VirtualHost, tuning: Tuning) -> (Arc<VirtualClock>, Pipeline<Arc<VirtualClock>, VirtualDevice>) {
    let clock = Arc::new(VirtualClock::default());
    let device = VirtualDevice::new(host.clone(), Arc::clone(&clock), None);
    (Arc::clone(&clock), Pipeline::new(clock, device, LIMITS, tuning))
}

/// What a job does with its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// Submits the next when the last is over.
    OneByOne,
    /// Keeps four queued.
    Queued,
    /// Submits four at a time when the last but one of those before is over.
    Bursts,
}

/// A job of equal copies.
#[derive(Clone, Debug)]
struct Job {
    host: VirtualHost,
    direction: Direction,
    bytes: Bytes,
    habit: Habit,
}

impl Job {
    /// Bytes per nanosecond over `count` copies that follow on `before` ones, and are followed by others.
    fn rate(&self, tuning: Tuning, before: usize, count: usize) -> f64 {
        let (_, mut pipeline) = pipeline(&self.host, tuning);
        let mut ids = Vec::new();
        for i in 0..before + count + 4 {
            // Disjoint host ranges, so that D2H copies of one stream may overlap.
            let host = i as u64 * self.bytes;
            ids.push(pipeline.submit(Copy { host, ..copy(self.direction, self.bytes) }));
            match (self.habit, &ids[..]) {
                (Habit::OneByOne, [.., id]) | (Habit::Queued, [.., id, _, _, _]) => pipeline.wait(*id),
                (Habit::Bursts, [.., id, _]) if i % 4 == 3 => pipeline.wait(*id),
                _ => {}
            }
        }
        pipeline.wait_all();
        let ended: Vec<_> = std::iter::from_fn(|| pipeline.completed()).map(|completion| completion.ended).collect();
        (self.bytes * count as u64) as f64 / (ended[before + count - 1] - ended[before - 1]) as f64
    }
}

/// The best fixed settings by search: a coarse grid, then the neighbours of its best.
fn best_fixed(rate: impl Fn(Tuning) -> f64) -> (f64, Settings) {
    let mut best = (0.0, Settings { chunk: 0, depth: 0, threads: 0 });
    let mut attempt = |settings: Settings| {
        let rate = rate(Tuning::Fixed(settings));
        if rate > best.0 {
            best = (rate, settings);
        }
        best.1
    };
    let mut found = Settings { chunk: 0, depth: 0, threads: 0 };
    for chunk in [64 * KIB, 256 * KIB, MIB, 4 * MIB] {
        for threads in [1, 2, 4, 8] {
            found = attempt(Settings { chunk, depth: threads + 4, threads });
        }
    }
    for chunk in [found.chunk / 2, found.chunk * 3 / 4, found.chunk * 3 / 2, found.chunk * 2] {
        for threads in [found.threads.max(2) - 1, found.threads, found.threads + 1] {
            for depth in [threads + 2, threads + 8] {
                attempt(Settings { chunk, depth, threads });
            }
        }
    }
    best
}

/// Adaptive ÷ best fixed over links, tiers, threads and sizes of copies, worst first.
fn shares(habits: &[(Direction, Habit)]) -> Vec<(f64, String)> {
    let mut shares = Vec::new();
    for link in ["pcie3-x16", "pcie4-x16", "pcie5-x16"] {
        for (tier, thread) in [("dram", 5e9), ("dram", 12e9), ("cxl-asic", 6e9), ("cxl-fpga", 6e9)] {
            let host = host(link, &[tier], thread);
            for (bytes, warm, count) in [(512 * KIB, 400, 24), (8 * MIB, 80, 12), (128 * MIB, 16, 4)] {
                for &(direction, habit) in habits {
                    let job = Job { host: host.clone(), direction, bytes, habit };
                    // A fixed setting does the same all the time: it needs no long run before.
                    let (fixed, settings) = best_fixed(|tuning| job.rate(tuning, 8, count));
                    let share = job.rate(Tuning::Adaptive, warm, count) / fixed;
                    let what = format!("{link} {tier} {thread:e} {bytes} {direction:?} {habit:?}: {settings:?}");
                    shares.push((share, what));
                }
            }
        }
    }
    shares.sort_by(|a, b| a.0.total_cmp(&b.0));
    shares
}

#[test]
fn adaptive_reaches_the_best_fixed_setting() {
    let [up, down] = [Direction::H2d, Direction::D2h];
    let habits = [Habit::OneByOne, Habit::Queued].map(|habit| [(up, habit), (down, habit)]);
    let shares = shares(habits.as_flattened());
    assert!(shares[0].0 >= 0.95, "{:.3?}", &shares[..5]);
}

/// What tune.rs says of bursts. The bound is what is reached, not what is wanted.
#[test]
fn bursts_reach_three_quarters_of_the_best_fixed_setting() {
    let shares = shares(&[(Direction::H2d, Habit::Bursts)]);
    assert!(shares[0].0 >= 0.75, "{:.3?}", &shares[..5]);
}

/// Rates of a job at each share of the link's rate, each held for 200 ms, of which the first half is for settling.
fn phases(job: &Job, tuning: Tuning, shares: &[f64]) -> Vec<f64> {
    const PHASE: Nanos = 200_000_000;
    let mut host = job.host.clone();
    host.link_changes = (0..).map(|i| i * PHASE).zip(shares.iter().copied()).collect();
    let (clock, mut pipeline) = pipeline(&host, tuning);
    let mut address = 0;
    let mut rates = Vec::new();
    for phase in 1..=shares.len() as u64 {
        let (mut moved, mut begin) = (0, None);
        while clock.now() < phase * PHASE {
            if begin.is_none() && clock.now() > phase * PHASE - PHASE / 2 {
                (moved, begin) = (0, Some(clock.now()));
            }
            let ids = [(); 4].map(|()| {
                address += job.bytes;
                pipeline.submit(Copy { host: address, ..copy(job.direction, job.bytes) })
            });
            ids.into_iter().for_each(|id| pipeline.wait(id));
            moved += 4 * job.bytes;
        }
        rates.push(moved as f64 / (clock.now() - begin.expect("a phase is long")) as f64);
    }
    rates
}

#[test]
fn a_link_that_changes_is_followed() {
    const SHARES: [f64; 4] = [1.0, 0.5, 1.5, 1.0];
    for direction in [Direction::H2d, Direction::D2h] {
        let job = Job { host: host("pcie4-x16", &["dram"], 6e9), direction, bytes: 8 * MIB, habit: Habit::Queued };
        let adaptive = phases(&job, Tuning::Adaptive, &SHARES);
        for (share, adaptive) in SHARES.into_iter().zip(adaptive) {
            let (fixed, settings) = best_fixed(|tuning| phases(&job, tuning, &[share])[0]);
            assert!(adaptive >= 0.9 * fixed, "{direction:?} at {share}: {adaptive} against {fixed} of {settings:?}");
        }
    }
}

#[test]
fn both_directions_run_at_once() {
    let host = host("pcie4-x16", &["dram"], 10e9);
    let run = |directions: &[Direction]| {
        let (clock, mut pipeline) = pipeline(&host, Tuning::Adaptive);
        for i in 0..32 {
            for (stream, &direction) in (0..).zip(directions) {
                pipeline.submit(Copy { stream, host: i * 16 * MIB, ..copy(direction, 16 * MIB) });
            }
        }
        pipeline.wait_all();
        (clock.now() as f64, pipeline.device().both_busy)
    };
    let alone = run(&[Direction::H2d]).0.max(run(&[Direction::D2h]).0);
    let (together, both_busy) = run(&[Direction::H2d, Direction::D2h]);
    assert!(together < 1.1 * alone, "{together} against {alone}");
    assert!(both_busy > 0.8 * together);
}

#[test]
fn registered_memory_needs_no_thread() {
    let host = host("pcie4-x16", &["cxl-asic"], 10e9);
    let (clock, mut pipeline) = pipeline(&host, Tuning::Adaptive);
    pipeline.submit(Copy { registered: true, ..copy(Direction::H2d, 256 * MIB) });
    pipeline.wait_all();
    assert_eq!(pipeline.device().most_threads, 0);
    let rate = (256 * MIB) as f64 / clock.now() as f64;
    assert!(rate > 0.99 * 22.0 && rate <= 22.0, "the tier's 22 GB/s, got {rate}");
}

/// A stream that waits on a slow card does not hold up another.
#[test]
fn streams_share_the_pipeline() {
    let host = host("pcie5-x16", &["dram", "cxl-fpga"], 8e9);
    let (clock, mut pipeline) = pipeline(&host, Tuning::Adaptive);
    let slow = pipeline.submit(Copy { stream: 1, node: 1, ..copy(Direction::H2d, 256 * MIB) });
    let fast = pipeline.submit(Copy { stream: 2, node: 0, ..copy(Direction::H2d, 64 * MIB) });
    pipeline.wait(fast);
    let fast_ended = clock.now();
    pipeline.wait(slow);
    assert!(fast_ended < clock.now() / 2, "{fast_ended} of {}", clock.now());
    let rate = (256 * MIB) as f64 / clock.now() as f64;
    assert!(rate > 0.9 * 5.1, "and the card is kept at work: {rate}");
}

/// Checks what a device is asked: no place of a ring twice, no more threads than allowed.
#[derive(Debug)]
struct Watch {
    device: VirtualDevice,
    threads: u32,
    used: Rc<RefCell<Vec<(usize, Bytes, Bytes)>>>,
    running: Vec<Op>,
}

impl Device for Watch {
    fn start(&mut self, op: Op) {
        let lane = |direction| if direction == Direction::H2d { 0 } else { 1 };
        let taken = match op.work {
            Work::Fill { ring, .. } => Some((0, ring)),
            Work::Staged { direction: Direction::D2h, ring, .. } => Some((lane(Direction::D2h), ring)),
            _ => None,
        };
        if let Some((lane, ring)) = taken {
            let mut used = self.used.borrow_mut();
            let meets = |&(l, start, bytes): &(usize, Bytes, Bytes)| {
                l == lane && start < ring + op.bytes && ring < start + bytes
            };
            assert!(!used.iter().any(meets), "ring overrun");
            used.push((lane, ring, op.bytes));
        }
        self.running.push(op);
        let threads = self.running.iter().filter(|op| matches!(op.work, Work::Fill { .. } | Work::Drain { .. }));
        assert!(threads.count() <= self.threads as usize);
        self.device.start(op);
    }

    fn next(&mut self, until: Option<Nanos>) -> Option<Done> {
        let done = self.device.next(until)?;
        let at = self.running.iter().position(|op| op.id == done.id).expect("started");
        let free = match self.running.swap_remove(at).work {
            Work::Drain { ring, .. } => Some((1, ring)),
            Work::Staged { direction: Direction::H2d, ring, .. } => Some((0, ring)),
            _ => None,
        };
        if let Some(place) = free {
            self.used.borrow_mut().retain(|&(lane, start, _)| (lane, start) != place);
        }
        Some(done)
    }

    fn launch(&mut self, id: u64, kernel: kernel::Kernel) {
        self.device.launch(id, kernel);
    }

    fn sums(&mut self, id: u64) -> Option<Vec<u64>> {
        self.device.sums(id)
    }
}

/// Bytes of each stream's own part of host and of device memory.
const PART: Bytes = 256 * KIB;

fn any_copy() -> impl Strategy<Value = Copy> {
    let place = || prop_oneof![Just(0), 0..PART];
    (0..3_u64, any::<bool>(), place(), place(), 0..PART, 0..2_u32, prop::bool::weighted(0.2)).prop_map(
        |(stream, down, host, device, bytes, node, registered)| {
            let direction = if down { Direction::D2h } else { Direction::H2d };
            let bytes = bytes.min(PART - host.max(device));
            let base = stream * PART;
            Copy { stream, direction, host: base + host, device: base + device, bytes, node, registered }
        },
    )
}

fn any_tuning() -> impl Strategy<Value = Tuning> {
    let fixed = (1..PART, 1..6_u32, 1..6_u32)
        .prop_map(|(chunk, depth, threads)| Tuning::Fixed(Settings { chunk, depth, threads }));
    prop_oneof![Just(Tuning::Adaptive), fixed]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    /// Whatever is asked in whatever settings: each stream's memory is as if its copies had run one after the other,
    /// they end in that order, and the ring is never overrun.
    #[test]
    fn bytes_and_order_are_as_asked(
        copies in prop::collection::vec((any_copy(), 0..4_u32), 1..30),
        tuning in any_tuning(),
        ring in prop_oneof![Just(64 * KIB), 64 * KIB..MIB],
        threads in 1..5_u32,
    ) {
        let noise = |seed: u64| (0..3 * PART).map(|i| ((i * 2_654_435_761 + seed) >> 13) as u8).collect::<Vec<_>>();
        let (mut host_bytes, mut device_bytes) = (noise(1), noise(2));
        let memories = Memories::new(host_bytes.clone(), device_bytes.clone());
        let clock = Arc::new(VirtualClock::default());
        let host = host("pcie4-x16", &["dram", "cxl-fpga"], 5e9);
        let device = VirtualDevice::new(host, Arc::clone(&clock), Some((memories, ring)));
        let used = Rc::default();
        let watch = Watch { device, threads, used: Rc::clone(&used), running: Vec::new() };
        let mut pipeline = Pipeline::new(Arc::clone(&clock), watch, Limits { ring, threads }, tuning);
        let mut submitted: [Vec<CopyId>; 3] = Default::default();
        for (copy, then) in copies {
            let id = pipeline.submit(copy);
            submitted[copy.stream as usize].push(id);
            let (h, d) = (copy.host as usize, copy.device as usize);
            let bytes = copy.bytes as usize;
            match copy.direction {
                Direction::H2d => device_bytes[d..d + bytes].copy_from_slice(&host_bytes[h..h + bytes]),
                Direction::D2h => host_bytes[h..h + bytes].copy_from_slice(&device_bytes[d..d + bytes]),
            }
            match then {
                0 => pipeline.wait(id),
                1 => pipeline.run_until(clock.now() + 20_000),
                _ => {}
            }
        }
        pipeline.wait_all();
        let mut ended: [Vec<CopyId>; 3] = Default::default();
        while let Some(completion) = pipeline.completed() {
            prop_assert!(completion.submitted <= completion.ended);
            ended[completion.stream as usize].push(completion.id);
        }
        prop_assert_eq!(ended, submitted);
        prop_assert!(used.borrow().is_empty(), "every place of the rings is free again");
        let memories = pipeline.device().device.memories().expect("given");
        prop_assert!(memories.host == host_bytes && memories.device == device_bytes, "bytes differ");
    }
}
