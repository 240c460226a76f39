//! The loop of heat map, policy and ledger on a machine that exists in memory only: regions cut at random, one random
//! page of each sampled 20 times an aggregation as DAMON does, and moves that happen at once.

#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::{
    hotness::{HeatMap, Params, Usage},
    job::Resident,
    ledger::Ledger,
    migrate::Outcome,
    policy::{Budget, Evidence, Node, Reason, Rule, Tiers},
    source::{Touch, TouchKind},
    units::{BLOCK, NodeId, PAGE, Pid, Range},
};

const MIB: u64 = 1 << 20;
const PAGES: u64 = BLOCK / PAGE;
const DRAM: NodeId = NodeId(0);
const SLOW: NodeId = NodeId(2);
const JOB: Pid = Pid(42);
const HEADROOM: u64 = 16 * MIB;
const SAMPLES: u32 = 20;

/// splitmix64 (Steele, Lea and Flood, OOPSLA '14, figure 17).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

struct Machine {
    vmas: Vec<Range>,
    on: BTreeMap<u64, NodeId>,
    hot: BTreeSet<u64>,
    /// Chances in 1000 that a sample finds a hot page accessed, and a cold one.
    found: u64,
    noise: u64,
    dram: u64,
    random: Random,
    rule: Rule,
    heat: HeatMap,
    usage: Usage,
    ledger: Ledger,
    start: Instant,
    now: Instant,
    promoted: u64,
    demoted: u64,
    moves: Vec<(Instant, u64, bool)>,
}

impl Machine {
    /// `dram` bytes for the job over the headroom. Everything starts slow.
    fn new(vmas: Vec<Range>, dram: u64, evidence: Evidence, seed: u64) -> Self {
        let on = vmas.iter().flat_map(Range::blocks).map(|block| (block, SLOW)).collect();
        let heat = HeatMap::new(Params::default());
        let start = Instant::now();
        Self {
            vmas,
            on,
            hot: BTreeSet::new(),
            found: 1000,
            noise: 1,
            dram,
            random: Random(seed),
            rule: Rule { evidence, ..Rule::default() },
            heat,
            usage: Usage::new(start, Duration::from_secs(1)),
            ledger: Ledger::default(),
            start,
            now: start,
            promoted: 0,
            demoted: 0,
            moves: Vec::new(),
        }
    }

    fn second(&mut self) {
        self.now += Duration::from_secs(1);
        let touches = self.aggregation();
        self.heat.observe(&touches);
        self.usage.observe(&touches, self.now + Duration::from_millis(500));
        let residents: Vec<Resident> = (self.on.iter())
            .map(|(block, node)| Resident {
                pid: JOB,
                range: Range::new(block * BLOCK, (block + 1) * BLOCK),
                on: BTreeMap::from([(*node, BLOCK)]),
            })
            .collect();
        let now = self.now;
        let mut view = self.heat.view(&residents, &|pid, range| self.ledger.unmovable_bytes(pid, range, now), now);
        view.foresee(&self.usage);
        let used = self.bytes_in_dram();
        let total = self.dram + HEADROOM;
        let tiers = Tiers {
            top: vec![Node { id: DRAM, total, free: total - used, headroom: HEADROOM }],
            lower: vec![Node { id: SLOW, total: 8 << 30, free: 4 << 30, headroom: HEADROOM }],
            ..Tiers::default()
        };
        let budget = Budget { plan: 1, bytes: 128 * MIB };
        let plan = self.rule.decide(&view, &tiers, &budget, self.ledger.recent());
        for asked in plan.moves {
            let up = asked.to == DRAM;
            let total = if up { &mut self.promoted } else { &mut self.demoted };
            *total += asked.bytes / PAGE;
            for block in asked.range.blocks() {
                assert_eq!(self.on.insert(block, asked.to), Some(asked.from));
                self.moves.push((now, block, up));
            }
            assert!(asked.reason != Reason::Drain);
            let outcome = Outcome {
                plan: plan.id,
                moved: asked.bytes / PAGE,
                asked,
                failed: BTreeMap::new(),
                stuck: Vec::new(),
                calls: 1,
                longest_call: Duration::from_millis(1),
                longest_stall: Duration::from_millis(1),
                over_cap: 0,
                in_calls: Duration::from_millis(1),
                throttled: Duration::ZERO,
            };
            self.ledger.record(&outcome, now);
        }
        assert!(self.bytes_in_dram() <= self.dram);
    }

    fn seconds(&mut self, seconds: u64) {
        (0..seconds).for_each(|_| self.second());
    }

    /// Regions of 2 to 8 MiB with edges at any page.
    fn aggregation(&mut self) -> Vec<Touch> {
        let mut touches = Vec::new();
        for vma in self.vmas.clone() {
            let mut start = vma.start;
            while start < vma.end {
                let length = (PAGES + self.random.below(3 * PAGES)) * PAGE;
                let range = Range::new(start, (start + length).min(vma.end));
                let found = (0..SAMPLES).filter(|_| self.sample(range)).count();
                let weight = found as f32 / SAMPLES as f32;
                touches.push(Touch { pid: JOB, range, kind: TouchKind::Access, weight, at: self.now });
                start = range.end;
            }
        }
        touches
    }

    fn sample(&mut self, range: Range) -> bool {
        let page = range.start / PAGE + self.random.below(range.pages());
        let chance = if self.hot.contains(&(page / PAGES)) { self.found } else { self.noise };
        self.random.below(1000) < chance
    }

    fn bytes_in_dram(&self) -> u64 {
        self.on.values().filter(|node| **node == DRAM).count() as u64 * BLOCK
    }

    /// Share of the hot pages that is in DRAM.
    fn share(&self) -> f64 {
        self.hot.iter().filter(|block| self.on[block] == DRAM).count() as f64 / self.hot.len() as f64
    }

    fn hot_pages(&self) -> f64 {
        self.hot.len() as f64 * PAGES as f64
    }

    /// Pages that went back within 10 s, unless the hot set changed between at one of `changes` (seconds).
    fn moved_back(&self, changes: &[u64]) -> u64 {
        let mut last: BTreeMap<u64, (Instant, bool)> = BTreeMap::new();
        let mut back = 0;
        for (at, block, up) in &self.moves {
            if let Some((before, was_up)) = last.insert(*block, (*at, *up)) {
                let changed = changes.iter().any(|change| {
                    let change = self.start + Duration::from_secs(*change);
                    before <= change && change <= *at
                });
                if was_up != *up && *at - before < Duration::from_secs(10) && !changed {
                    back += PAGES;
                }
            }
        }
        back
    }
}

fn arena(start: u64, mib: u64) -> Range {
    Range::new(start, start + mib * MIB)
}

fn blocks(start: u64, mib: u64) -> BTreeSet<u64> {
    arena(start, mib).blocks().collect()
}

/// Each seed by each evidence.
fn cases(seeds: u64) -> impl Iterator<Item = (Evidence, u64)> {
    [Evidence::Heat, Evidence::Usage]
        .into_iter()
        .flat_map(move |evidence| (1..=seeds).map(move |seed| (evidence, seed)))
}

/// Where the arena of the tests starts; hot memory in its middle, so that it has borders on both sides.
const ARENA: u64 = 0x7f00_0000_0000;
const HOT: u64 = ARENA + 300 * MIB;

#[test]
fn all_slow_and_room_in_dram_the_hot_bytes_are_promoted_and_little_else() {
    for (evidence, seed) in cases(5) {
        let mut machine = Machine::new(vec![arena(ARENA, 896)], 512 * MIB, evidence, seed);
        machine.hot = blocks(HOT, 256);
        machine.seconds(8);
        assert!(machine.share() >= 0.95, "{evidence:?} {seed}: {} of the hot pages after 8 s", machine.share());
        machine.seconds(22);
        assert!(machine.share() >= 0.95, "{evidence:?} {seed}: {} of the hot pages", machine.share());
        let promoted = machine.promoted as f64 / machine.hot_pages();
        assert!(promoted <= 1.3, "{evidence:?} {seed}: promoted {promoted} times the hot pages");
        assert_eq!(machine.demoted, 0, "{evidence:?} {seed}");
    }
}

#[test]
fn dram_full_of_cold_gives_way() {
    for (evidence, seed) in cases(5) {
        let mut machine = Machine::new(vec![arena(ARENA, 896)], 512 * MIB, evidence, seed);
        machine.hot = blocks(HOT, 256);
        let cold: Vec<u64> = machine.on.keys().copied().filter(|block| !machine.hot.contains(block)).collect();
        for block in &cold[..256] {
            machine.on.insert(*block, DRAM);
        }
        machine.seconds(30);
        assert!(machine.share() >= 0.95, "{evidence:?} {seed}: {} of the hot pages", machine.share());
        let promoted = machine.promoted as f64 / machine.hot_pages();
        assert!(promoted <= 1.3, "{evidence:?} {seed}: promoted {promoted} times the hot pages");
        let (up, down) = (machine.promoted, machine.demoted);
        assert!(down <= up + HEADROOM / PAGE, "{evidence:?} {seed}: demoted {down} of {up} promoted pages");
    }
}

#[test]
fn a_moving_hot_set_is_followed_and_pages_do_not_bounce() {
    for (evidence, seed) in cases(3) {
        let mut machine = Machine::new(vec![arena(ARENA, 512)], 128 * MIB, evidence, seed);
        let changes: Vec<u64> = (0..12).map(|phase| phase * 20).collect();
        let mut late_share = Vec::new();
        for phase in 0..12 {
            machine.hot = blocks(ARENA + phase * 5 % 8 * 64 * MIB, 64);
            machine.seconds(6);
            assert!(machine.share() >= 0.9, "{evidence:?} {seed}, phase {phase}: {} after 6 s", machine.share());
            machine.seconds(4);
            for _ in 0..10 {
                machine.second();
                late_share.push(machine.share());
            }
        }
        let late = late_share.iter().sum::<f64>() / late_share.len() as f64;
        assert!(late >= 0.95, "{evidence:?} {seed}: {late} in the last half of the phases");
        let back = machine.moved_back(&changes) as f64 / (machine.promoted + machine.demoted) as f64;
        assert!(back <= 0.02, "{evidence:?} {seed}: {back} of the moved pages went back");
    }
}

#[test]
fn a_little_hot_memory_in_much_sparse_memory_is_found() {
    for (evidence, seed) in cases(3) {
        // 60 pieces of 20 MiB and some pages in 160 GiB, 16 of them with 4 MiB hot.
        let piece = |n: u64| ARENA + n * (8 << 30) / 3 + n % 7 * PAGE;
        let vmas: Vec<Range> = (0..60).map(|n| arena(piece(n), 20)).collect();
        let mut machine = Machine::new(vmas, 512 * MIB, evidence, seed);
        machine.hot = (0..16).flat_map(|n| blocks((piece(3 * n) + 8 * MIB) / BLOCK * BLOCK, 4)).collect();
        machine.seconds(30);
        assert_eq!(machine.hot.len(), 32);
        assert!(machine.share() >= 0.9, "{evidence:?} {seed}: {} of the hot pages", machine.share());
        // Regions are 5 MiB long in the mean: what shares them with a lone hot 4 MiB looks warm.
        let promoted = machine.promoted as f64 / machine.hot_pages();
        // By use over time, what is used a little for long is worth free room too.
        let most = if evidence == Evidence::Heat { 3.5 } else { 4.5 };
        assert!(promoted <= most, "{evidence:?} {seed}: promoted {promoted} times the hot pages");
    }
}

#[test]
fn an_idle_machine_is_left_alone() {
    for (evidence, seed) in cases(5) {
        let mut machine = Machine::new(vec![arena(ARENA, 896)], 512 * MIB, evidence, seed);
        machine.noise = 5;
        for block in machine.on.clone().keys().step_by(2).take(200) {
            machine.on.insert(*block, DRAM);
        }
        machine.seconds(60);
        assert_eq!(machine.demoted, 0, "{evidence:?} {seed}");
        // A page that is used every ten seconds for half an hour is worth room that nobody wants.
        let most = if evidence == Evidence::Heat { 0 } else { (512 - 400) * MIB / PAGE };
        assert!(machine.promoted <= most, "{evidence:?} {seed}: {}", machine.promoted);
    }
}

/// Memory that is swept once in a while, block after block, half of it in DRAM: the sampled heat of no block is that of
/// another one, and nothing is gained by moving any.
#[test]
fn a_sweep_through_twice_the_dram_moves_next_to_nothing_by_its_use_over_steps() {
    for seed in 1..=3 {
        let mut machine = Machine::new(vec![arena(ARENA, 512)], 256 * MIB, Evidence::Usage, seed);
        let all: Vec<u64> = machine.on.keys().copied().collect();
        machine.on.extend(all[..128].iter().map(|block| (*block, DRAM)));
        // Each page is used once while its block is swept: one look in twenty finds it.
        (machine.found, machine.noise) = (1000 / u64::from(SAMPLES), 0);
        for second in 0..400 {
            // 16 of 256 blocks a second: a step takes 16 s, with a tenth of jitter.
            let at = (second % 16 + machine.random.below(2)) * 16;
            machine.hot = all.iter().copied().skip(at as usize).take(16).collect();
            machine.second();
        }
        let moved = (machine.promoted + machine.demoted) * PAGE;
        let minutes = 400.0 / 60.0;
        assert!(moved as f64 <= 0.05 * minutes * (512 * MIB) as f64, "{seed}: {} MiB", moved / MIB);
    }
}

/// A job fills its memory block after block and then uses all of it alike: what came first was idle for a while.
#[test]
fn what_was_filled_first_is_not_taken_for_less_used() {
    for seed in 1..=3 {
        let mut machine = Machine::new(Vec::new(), 256 * MIB, Evidence::Usage, seed);
        machine.found = 600;
        for part in 0..16 {
            let filled = arena(ARENA + part * 32 * MIB, 32);
            machine.vmas.push(filled);
            machine.on.extend(filled.blocks().map(|block| (block, if part < 8 { DRAM } else { SLOW })));
            machine.second();
        }
        machine.hot = machine.on.keys().copied().collect();
        machine.seconds(90);
        let moved = (machine.promoted + machine.demoted) * PAGE;
        assert!(moved <= 512 * MIB / 20, "{seed}: {} MiB", moved / MIB);
    }
}

/// A step of 48 s whose halves use one half of the memory each, of which DRAM holds one: over whole steps both are used
/// alike, and nothing would move.
#[test]
fn in_long_steps_each_half_comes_up_for_its_turn() {
    for seed in 1..=3 {
        let mut machine = Machine::new(vec![arena(ARENA, 256)], 128 * MIB, Evidence::Usage, seed);
        let all: Vec<u64> = machine.on.keys().copied().collect();
        machine.on.extend(all[..64].iter().map(|block| (*block, DRAM)));
        let mut shares = Vec::new();
        for second in 0..14 * 48 {
            let turn = if second % 48 < 24 { &all[..64] } else { &all[64..] };
            machine.hot = turn.iter().copied().collect();
            machine.second();
            shares.push(machine.share());
        }
        let of = |steps: std::ops::Range<usize>| {
            let seconds = &shares[steps.start * 48..steps.end * 48];
            seconds.iter().sum::<f64>() / seconds.len() as f64
        };
        assert!(of(10..14) >= 0.8, "{seed}: {} of the hot pages, {} before", of(10..14), of(0..4));
        // All of both halves, twice in each of the fourteen steps.
        let most = 14.0 * 4.0 * 64.0 * PAGES as f64;
        assert!((machine.promoted + machine.demoted) as f64 <= 1.1 * most, "{seed}: {} pages moved", machine.promoted);
    }
}

/// A step as long whose blocks are each used for a moment, one after the other: none pays for coming up ahead of that.
#[test]
fn a_long_sweep_is_not_run_after() {
    let mut machine = Machine::new(vec![arena(ARENA, 256)], 128 * MIB, Evidence::Usage, 1);
    let all: Vec<u64> = machine.on.keys().copied().collect();
    machine.on.extend(all[..64].iter().map(|block| (*block, DRAM)));
    (machine.found, machine.noise) = (200, 0);
    for second in 0..14 * 48 {
        machine.hot = all.iter().copied().skip(second % 48 * 128 / 48).take(3).collect();
        machine.second();
    }
    let moved = (machine.promoted + machine.demoted) * PAGE;
    assert!(moved as f64 <= 0.05 * 11.2 * (256 * MIB) as f64, "{} MiB", moved / MIB);
}
