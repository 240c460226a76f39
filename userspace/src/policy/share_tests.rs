use std::time::Instant;

use super::*;
use crate::{
    hotness::{Outlook, Region},
    policy::{Budget, HeldBack, Recent, Rule},
    units::{NodeSet, Pid, Range},
};

const DRAM: NodeId = NodeId(0);
const CXL: NodeId = NodeId(2);
const HOT: f32 = 0.1;

/// Blocks of one heat on one node.
fn blocks(pid: u32, at: u64, count: u64, heat: f32, node: NodeId) -> Vec<Region> {
    let region = |number: u64| Region {
        pid: Pid(pid),
        range: Range::new((at + number) * BLOCK, (at + number + 1) * BLOCK),
        heat,
        seen: 9,
        idle_s: 0.0,
        on: [(node, BLOCK)].into(),
        unmovable: 0,
        outlook: Outlook::default(),
        expected: false,
        pages: None,
    };
    (0..count).map(region).collect()
}

fn view(parts: impl IntoIterator<Item = Vec<Region>>) -> HeatView {
    HeatView { at: Instant::now(), regions: parts.into_iter().flatten().collect() }
}

/// Free and headroom of DRAM in blocks.
fn tiers(free: u64, headroom: u64) -> Tiers {
    let node =
        |id, free: u64, headroom: u64| Node { id, total: 4096 * BLOCK, free: free * BLOCK, headroom: headroom * BLOCK };
    Tiers { top: vec![node(DRAM, free, headroom)], lower: vec![node(CXL, 4000, 0)], ..Tiers::default() }
}

fn limits(dram_blocks: Option<u64>, priority: i32) -> Limits {
    Limits { dram_bytes: dram_blocks.map(|blocks| blocks * BLOCK), cxl_bytes: None, priority }
}

fn shares(jobs: &[(&HeatView, &Limits)], tiers: &Tiers) -> Vec<u64> {
    let claims: Vec<Claim> =
        jobs.iter().map(|(view, limits)| Claim { view, limits, allowed: None, ceiling: None }).collect();
    split(&claims, tiers, HOT, 0.25).into_iter().map(|bytes| bytes / BLOCK).collect()
}

#[test]
fn one_job_gets_all_and_a_budget_bounds_it() {
    let job = view([blocks(1, 0, 30, 0.0, DRAM), blocks(1, 100, 50, 0.9, CXL)]);
    assert_eq!(shares(&[(&job, &limits(None, 0))], &tiers(40, 10)), [60]);
    assert_eq!(shares(&[(&job, &limits(Some(25), 0))], &tiers(40, 10)), [25]);
}

#[test]
fn the_hottest_blocks_win_within_a_priority() {
    let (mild, hot) = (view([blocks(1, 0, 50, 0.3, CXL)]), view([blocks(2, 0, 50, 0.9, CXL)]));
    assert_eq!(shares(&[(&mild, &limits(None, 0)), (&hot, &limits(None, 0))], &tiers(60, 0)), [10, 50]);
}

#[test]
fn a_higher_priority_is_served_first_however_mild() {
    let (mild, hot) = (view([blocks(1, 0, 50, 0.3, CXL)]), view([blocks(2, 0, 50, 0.9, CXL)]));
    assert_eq!(shares(&[(&mild, &limits(None, 1)), (&hot, &limits(None, 0))], &tiers(60, 0)), [50, 10]);
}

#[test]
fn a_priority_is_no_reason_to_keep_cold_memory_from_hot() {
    let (cold, hot) = (view([blocks(1, 0, 50, 0.0, DRAM)]), view([blocks(2, 0, 50, 0.9, CXL)]));
    assert_eq!(shares(&[(&cold, &limits(None, 9)), (&hot, &limits(None, 0))], &tiers(0, 0)), [0, 50]);
}

#[test]
fn noise_takes_nothing_away() {
    let (here, there) = (view([blocks(1, 0, 50, 0.5, DRAM)]), view([blocks(2, 0, 50, 0.6, CXL)]));
    assert_eq!(shares(&[(&here, &limits(None, 0)), (&there, &limits(None, 0))], &tiers(0, 0)), [50, 0]);
    let there = view([blocks(2, 0, 50, 0.7, CXL)]);
    assert_eq!(shares(&[(&here, &limits(None, 0)), (&there, &limits(None, 0))], &tiers(0, 0)), [0, 50]);
}

#[test]
fn what_is_short_of_the_headroom_comes_from_who_is_served_last() {
    let (first, last) = (view([blocks(1, 0, 50, 0.0, DRAM)]), view([blocks(2, 0, 50, 0.0, DRAM)]));
    assert_eq!(shares(&[(&last, &limits(None, 0)), (&first, &limits(None, 5))], &tiers(4, 10)), [44, 50]);
}

/// What a decision for one job within its share leaves on DRAM, in blocks.
fn left_after(job: &HeatView, limits: &Limits, tiers: &Tiers) -> u64 {
    let claim = Claim { view: job, limits, allowed: None, ceiling: None };
    let share = split(&[claim], tiers, HOT, 0.25)[0];
    let claim = Claim { view: job, limits, allowed: None, ceiling: None };
    let over = is_over(&claim, share, tiers);
    let rule = Rule { promote_heat: if over { f32::INFINITY } else { HOT }, ..Rule::default() };
    let budget = Budget { plan: 1, bytes: u64::MAX };
    let plan = rule.decide(job, &tiers_of(&claim, share, tiers), &budget, &Recent::default());
    let bytes = |to| plan.moves.iter().filter(|step| step.to == to).map(|step| step.bytes).sum::<u64>();
    (bytes_on(job, &tiers.top) + bytes(DRAM) - bytes(CXL)) / BLOCK
}

#[test]
fn a_job_over_its_budget_gives_back_even_hot_blocks_and_one_under_it_fills_it() {
    let all_hot = view([blocks(1, 0, 300, 0.9, DRAM)]);
    let left = left_after(&all_hot, &limits(Some(200), 0), &tiers(1000, 10));
    assert!((196..=200).contains(&left), "{left}");
    let below = view([blocks(1, 0, 300, 0.9, CXL)]);
    assert_eq!(left_after(&below, &limits(Some(200), 0), &tiers(1000, 10)), 200);
}

#[test]
fn what_control_groups_never_let_a_job_have_is_left_to_others() {
    let (first, second) = (view([blocks(1, 0, 20, 0.5, DRAM)]), view([blocks(2, 0, 30, 0.5, DRAM)]));
    let limits = [limits(None, 1), limits(None, 0)];
    let split = |ceiling| {
        let first = Claim { view: &first, limits: &limits[0], allowed: None, ceiling };
        let second = Claim { view: &second, limits: &limits[1], allowed: None, ceiling: None };
        split(&[first, second], &tiers(100, 0), HOT, 0.25).into_iter().map(|bytes| bytes / BLOCK).collect::<Vec<_>>()
    };
    assert_eq!(split(None), [120, 30], "what is free goes to the higher priority");
    assert_eq!(split(Some(25 * BLOCK)), [25, 125]);
}

/// The job holds 40 blocks of DRAM that are pinned, 20 that are not, and may have 50.
#[test]
fn pinned_memory_counts_in_the_budget_and_only_the_rest_is_given_back() {
    let mut pinned = blocks(1, 0, 40, 0.0, DRAM);
    pinned.iter_mut().for_each(|region| region.unmovable = BLOCK);
    let job = view([pinned, blocks(1, 100, 20, 0.9, DRAM), blocks(1, 200, 30, 0.9, CXL)]);
    let limits = limits(Some(50), 0);
    let claim = Claim { view: &job, limits: &limits, allowed: None, ceiling: None };
    let tiers = tiers(1000, 10);
    let share = split(&[claim], &tiers, HOT, 0.25)[0];
    assert_eq!(share / BLOCK, 50);
    let claim = Claim { view: &job, limits: &limits, allowed: None, ceiling: None };
    assert_eq!(excess(&claim, share, &tiers) / BLOCK, 10, "what cannot move is held all the same");
    let rule = Rule { promote_heat: f32::INFINITY, ..Rule::default() };
    let plan =
        rule.decide(&job, &tiers_of(&claim, share, &tiers), &Budget { plan: 1, bytes: u64::MAX }, &Recent::default());
    assert!(plan.moves.iter().all(|step| step.range.start >= 100 * BLOCK && step.to == CXL), "{:?}", plan.moves);
    assert_eq!(left_after(&job, &limits, &tiers), 50);
}

#[test]
fn a_limit_below_and_a_cpuset_bound_where_memory_goes() {
    let job = view([blocks(1, 0, 30, 0.0, DRAM), blocks(1, 100, 30, 0.0, CXL)]);
    let limits = Limits { dram_bytes: Some(0), cxl_bytes: Some(35 * BLOCK), priority: 0 };
    let claim = Claim { view: &job, limits: &limits, allowed: None, ceiling: None };
    let own = tiers_of(&claim, 0, &tiers(0, 0));
    assert_eq!(own.lower[0].free / BLOCK, 5);
    let plan = Rule { promote_heat: f32::INFINITY, ..Rule::default() };
    let plan = plan.decide(&job, &own, &Budget { plan: 1, bytes: u64::MAX }, &Recent::default());
    assert_eq!(plan.moves.iter().map(|step| step.bytes / BLOCK).sum::<u64>(), 5);
    assert!(plan.held_back.contains_key(&HeldBack::NoRoom));
    let allowed: NodeSet = [DRAM].into_iter().collect();
    let claim = Claim { allowed: Some(&allowed), ..claim };
    assert!(tiers_of(&claim, 0, &tiers(0, 0)).lower.is_empty());
}
