#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::{
    hotness::Outlook,
    policy::{Evidence, LastMove, Node, Speed, Speeds, Spread},
    units::PAGE,
};

const TOP: [NodeId; 2] = [NodeId(0), NodeId(3)];
const LOW: [NodeId; 2] = [NodeId(2), NodeId(5)];
const GPU: NodeId = NodeId(9);

fn block(n: u64, heat: f32, on: &[(NodeId, u64)]) -> Region {
    let range = Range::new(n * BLOCK, (n + 1) * BLOCK);
    Region {
        pid: Pid(1),
        range,
        heat,
        seen: 9,
        idle_s: 1.0,
        on: on.iter().copied().collect(),
        unmovable: 0,
        outlook: Outlook::default(),
        expected: false,
        pages: None,
    }
}

fn whole(n: u64, heat: f32, on: NodeId) -> Region {
    block(n, heat, &[(on, BLOCK)])
}

/// Blocks free over a headroom of one block on each node: top 0, top 3, lower 2, lower 5.
fn tiers(free: [u64; 4]) -> Tiers {
    let node = |id, free| Node { id, total: 1 << 40, free: (free + 1) * BLOCK, headroom: BLOCK };
    let distance = [(0, 3, 21), (3, 0, 21), (0, 2, 14), (0, 5, 24), (3, 2, 24), (3, 5, 14), (2, 0, 14), (2, 3, 24)];
    Tiers {
        top: vec![node(TOP[0], free[0]), node(TOP[1], free[1])],
        lower: vec![node(LOW[0], free[2]), node(LOW[1], free[3])],
        distance: distance.into_iter().map(|(a, b, far)| ((NodeId(a), NodeId(b)), far)).collect(),
        ..Tiers::default()
    }
}

fn plan(regions: Vec<Region>, tiers: &Tiers, memory: &Recent) -> Plan {
    plan_by(&Rule::default(), regions, tiers, memory)
}

fn plan_by(rule: &Rule, regions: Vec<Region>, tiers: &Tiers, memory: &Recent) -> Plan {
    rule.decide(&HeatView { at: Instant::now(), regions }, tiers, &Budget { plan: 1, bytes: 1 << 40 }, memory)
}

fn brief(plan: &Plan) -> Vec<(u64, u64, u32, u32, Reason)> {
    let row = |step: &Move| (step.range.start / BLOCK, step.range.bytes() / BLOCK, step.from.0, step.to.0, step.reason);
    plan.moves.iter().map(row).collect()
}

#[test]
fn the_hottest_take_the_free_room_and_neighbours_join() {
    let regions = vec![whole(4, 0.9, LOW[0]), whole(5, 0.9, LOW[0]), whole(6, 0.05, LOW[0]), whole(8, 0.5, LOW[0])];
    let plan = plan(regions, &tiers([2, 0, 9, 9]), &Recent::default());
    assert_eq!(brief(&plan), [(4, 2, 2, 0, Reason::Hot)]);
    assert_eq!(plan.held_back, BTreeMap::from([(HeldBack::NoRoom, BLOCK)]));
}

#[test]
fn a_victim_leaves_before_its_place_is_taken_and_only_if_colder_by_the_margin() {
    let regions = vec![whole(0, 0.02, TOP[0]), whole(1, 0.75, TOP[0]), whole(8, 0.9, LOW[0]), whole(9, 0.85, LOW[0])];
    let plan = plan(regions, &tiers([0, 0, 9, 9]), &Recent::default());
    assert_eq!(brief(&plan), [(0, 1, 0, 2, Reason::MakeRoom), (8, 1, 2, 0, Reason::Hot)]);
    assert_eq!(plan.held_back[&HeldBack::NoRoom], BLOCK, "0.85 does not displace 0.75");
}

#[test]
fn the_preferred_and_then_the_nearest_top_node_with_room_is_used() {
    let hot = || vec![whole(8, 0.9, LOW[0])];
    let none = Recent::default();
    assert_eq!(plan(hot(), &tiers([5, 5, 9, 9]), &none).moves[0].to, TOP[0]);
    let mut preferring = tiers([5, 5, 9, 9]);
    preferring.preferred.insert(Pid(1), TOP[1]);
    assert_eq!(plan(hot(), &preferring, &none).moves[0].to, TOP[1]);
    assert_eq!(plan(hot(), &tiers([0, 5, 9, 9]), &none).moves[0].to, TOP[1]);
}

#[test]
fn a_swap_goes_through_little_room_when_the_lower_tier_is_full() {
    let regions = (0..6).map(|n| whole(n, 0.0, TOP[0])).chain((10..16).map(|n| whole(n, 0.9, LOW[0]))).collect();
    let plan = plan(regions, &tiers([1, 0, 0, 0]), &Recent::default());
    let promoted: u64 = plan.moves.iter().filter(|step| step.reason == Reason::Hot).map(|step| step.bytes).sum();
    assert_eq!(promoted, 6 * BLOCK);
}

#[test]
fn headroom_waits_while_the_job_fills_its_memory() {
    let mut short = tiers([0, 0, 99, 99]);
    short.top[0] = Node { free: 0, headroom: BLOCK, ..short.top[0] };
    let young = Rule::default().young_seen - 1;
    let with_young = |count| {
        let seen = |n| if n < count { young } else { 9 };
        (0..100).map(|n| Region { seen: seen(n), ..whole(n, n as f32 / 2000.0, TOP[0]) }).collect()
    };
    let filling = plan(with_young(6), &short, &Recent::default());
    assert_eq!((brief(&filling), filling.held_back), (vec![], [(HeldBack::Unproven, BLOCK)].into()));
    assert_eq!(brief(&plan(with_young(5), &short, &Recent::default())), [(0, 2, 0, 2, Reason::Headroom)]);
}

#[test]
fn headroom_is_restored_by_the_coldest_and_never_by_the_hot() {
    let mut short = tiers([0, 0, 9, 9]);
    short.top[0] = Node { free: 0, headroom: 8 * BLOCK, ..short.top[0] };
    let regions: Vec<Region> = (0..20).map(|n| whole(n, n as f32 / 100.0, TOP[0])).collect();
    let moves = plan(regions.clone(), &short, &Recent::default());
    assert_eq!(brief(&moves), [(0, 9, 0, 2, Reason::Headroom)]);
    let hot = regions.into_iter().map(|region| Region { heat: region.heat + 0.095, ..region }).collect();
    assert_eq!(brief(&plan(hot, &short, &Recent::default())), [(0, 1, 0, 2, Reason::Headroom)]);
}

#[test]
fn what_is_about_to_be_copied_makes_room_for_nothing() {
    let regions = |expected| {
        let cold = Region { expected, ..whole(1, 0.0, TOP[0]) };
        vec![cold, whole(8, 0.9, LOW[0])]
    };
    let full = tiers([0, 0, 9, 9]);
    let moves = |expected| plan(regions(expected), &full, &Recent::default());
    assert_eq!(moves(false).moves.len(), 2, "a victim and what takes its place");
    let held = moves(true);
    assert_eq!((held.moves, held.held_back), (vec![], [(HeldBack::NoRoom, BLOCK)].into()));
    let mut short = tiers([0, 0, 9, 9]);
    short.top[0] = Node { free: 0, headroom: BLOCK, ..short.top[0] };
    assert_eq!(brief(&plan(regions(true)[..1].to_vec(), &short, &Recent::default())), []);

    // Its word keeps nothing from others: where its job must give back, it leaves too, as the last.
    short.top[0].headroom = BLOCK / 2;
    let over = Rule { gives_back: true, ..Rule::default() };
    let left = |regions: Vec<Region>| brief(&plan_by(&over, regions, &short, &Recent::default()));
    let cold = Region { expected: true, ..whole(1, 0.0, TOP[0]) };
    assert_eq!(left(vec![cold.clone()]), [(1, 1, 0, 2, Reason::Headroom)]);
    assert_eq!(left(vec![cold, whole(3, 0.9, TOP[0])]), [(3, 1, 0, 2, Reason::Headroom)]);
}

#[test]
fn what_is_pinned_unproven_or_on_a_gpu_stays() {
    let mut pinned = whole(1, 0.9, LOW[0]);
    pinned.unmovable = 4096;
    let mut fresh = whole(2, 0.9, LOW[0]);
    fresh.seen = 1;
    let regions = vec![pinned, fresh, whole(3, 0.9, GPU)];
    let plan = plan(regions, &tiers([9, 9, 9, 9]), &Recent::default());
    assert!(plan.moves.is_empty());
    assert_eq!(plan.held_back, BTreeMap::from([(HeldBack::Unmovable, BLOCK), (HeldBack::Unproven, BLOCK)]));
}

#[test]
fn a_block_does_not_go_back_soon_unless_its_heat_changed_decisively() {
    let now = Instant::now();
    let demoted = |seconds, heat, offences| {
        let at = now - Duration::from_secs(seconds);
        let last = LastMove { at, from: TOP[0], to: LOW[0], heat, offences };
        Recent { last: BTreeMap::from([((Pid(1), 8), last)]), ..Recent::default() }
    };
    let moves = |heat, memory: Recent| {
        let view = HeatView { at: now, regions: vec![whole(8, heat, LOW[0])] };
        Rule::default().decide(&view, &tiers([9, 9, 9, 9]), &Budget { plan: 1, bytes: 1 << 30 }, &memory).moves.len()
    };
    assert_eq!(moves(0.4, demoted(5, 0.1, 0)), 0);
    assert_eq!(moves(0.4, demoted(11, 0.1, 0)), 1, "after the hold");
    assert_eq!(moves(0.4, demoted(11, 0.1, 1)), 0, "the hold doubles");
    assert_eq!(moves(0.7, demoted(5, 0.1, 0)), 1, "decisive");
    assert_eq!(moves(0.4, demoted(5000, 0.1, 4)), 0, "an offender must gain more");
}

fn sure(used: f32, stay_s: f32) -> Outlook {
    Outlook { used, doubt: 0.0, stay_s, ..Outlook::default() }
}

fn used(n: u64, outlook: Outlook, on: NodeId) -> Region {
    Region { outlook, ..whole(n, 0.0, on) }
}

const STEPS: Rule = Rule { evidence: Evidence::Usage, ..RULE };
const RULE: Rule = Rule {
    evidence: Evidence::Heat,
    spread: Spread::None,
    promote_heat: 0.1,
    gives_back: false,
    min_seen: 2,
    young_seen: 5,
    young_share: 0.05,
    margin: 0.25,
    stay_s: 10.0,
    move_cost_s: 0.5,
    decisive: 0.5,
};
const SPEEDS: Speeds = Speeds {
    top: Speed { bytes_per_s: 0.8e9, latency_ns: 100.0 },
    lower: Speed { bytes_per_s: 0.2e9, latency_ns: 250.0 },
    looks_per_s: 20.0,
};

#[test]
fn by_use_over_steps_a_little_more_use_for_long_is_worth_a_move_and_what_is_in_doubt_is_not() {
    let none = Recent::default();
    // 0.002 of the time for half an hour is 3.6 s of use; a swap costs one.
    let above = |outlook| used(0, outlook, TOP[0]);
    let moves = |outlook| {
        let regions = vec![above(sure(0.001, 1800.0)), used(8, outlook, LOW[0])];
        brief(&plan_by(&STEPS, regions, &tiers([0, 0, 9, 9]), &none))
    };
    let swap = [(0, 1, 0, 2, Reason::MakeRoom), (8, 1, 2, 0, Reason::Hot)];
    assert_eq!(moves(sure(0.003, 1800.0)), swap);
    assert_eq!(moves(sure(0.003, 400.0)), [], "it does not last");
    assert_eq!(moves(sure(0.0011, 1800.0)), [], "it is within the margin");
    assert_eq!(moves(Outlook { doubt: 1e-6, ..sure(0.003, 1800.0) }), [], "two deviations are all of it");
    assert_eq!(moves(Outlook::default()), [], "nothing is known of it");
    let by_heat = vec![whole(0, 0.02, TOP[0]), used(8, sure(0.9, 1800.0), LOW[0])];
    assert_eq!(brief(&plan_by(&STEPS, by_heat, &tiers([0, 0, 9, 9]), &none)), swap, "a victim is cold by its heat");
}

#[test]
fn a_victim_of_which_little_is_known_does_not_keep_the_next_one() {
    let doubtful = Outlook { doubt: 0.25, ..sure(0.1, 60.0) };
    let hot = used(8, sure(0.8, 60.0), LOW[0]);
    let regions = vec![used(0, doubtful, TOP[0]), used(1, sure(0.3, 60.0), TOP[0]), hot];
    let swap = [(1, 1, 0, 2, Reason::MakeRoom), (8, 1, 2, 0, Reason::Hot)];
    assert_eq!(brief(&plan_by(&STEPS, regions, &tiers([0, 0, 9, 9]), &Recent::default())), swap);
}

#[test]
fn among_many_a_difference_by_chance_moves_nothing() {
    let none = Recent::default();
    let spread = |n: u64, deviations: f32| {
        let outlook = Outlook { doubt: 1e-4, ..sure(0.05 + 0.01 * deviations, 1800.0) };
        used(n, outlook, if n < 500 { TOP[0] } else { LOW[0] })
    };
    let regions: Vec<Region> = (0..1000).map(|n| spread(n, (n % 7) as f32 - 3.0)).collect();
    assert_eq!(brief(&plan_by(&STEPS, regions, &tiers([0, 0, 99, 99]), &none)), []);
    let two = vec![spread(0, -3.0), spread(500, 3.0)];
    assert_eq!(plan_by(&STEPS, two, &tiers([0, 0, 9, 9]), &none).moves.len(), 2, "of two blocks it is no chance");
}

#[test]
fn what_is_used_once_a_step_takes_only_room_that_lasts() {
    let none = Recent::default();
    let regions = || vec![used(8, sure(0.01, 1800.0), LOW[0]), used(20, sure(0.5, 1800.0), LOW[0])];
    let mut short = tiers([5, 0, 9, 9]);
    short.lasting = BTreeMap::from([(TOP[0], BLOCK)]);
    assert_eq!(brief(&plan_by(&STEPS, regions(), &short, &none)), [(20, 1, 2, 0, Reason::Hot)]);
    short.lasting = BTreeMap::from([(TOP[0], 9 * BLOCK)]);
    assert_eq!(plan_by(&STEPS, regions(), &short, &none).moves.len(), 2);
}

#[test]
fn a_loaded_top_tier_gives_up_the_fewest_bytes_that_balance_it_and_takes_no_more() {
    let none = Recent::default();
    // 20 looks a second that find a half used are 13.9 passes: 29 MB a second of a block.
    let regions: Vec<Region> = (0..30).map(|n| Region { heat: 0.5, ..used(n, sure(0.5, 99.0), TOP[0]) }).collect();
    let mut loaded = tiers([9, 0, 99, 99]);
    loaded.speeds = Some(SPEEDS);
    let rule = |spread| Rule { spread, ..STEPS };
    let plan = plan_by(&rule(Spread::Bandwidth), regions.clone(), &loaded, &none);
    let left: u64 = plan.moves.iter().filter(|step| step.reason == Reason::Spread).map(|step| step.bytes / BLOCK).sum();
    assert!(
        (3..=6).contains(&left) && plan.moves.len() == 1,
        "a fifth is too much, a tenth of the rest is left: {plan:?}"
    );
    assert_eq!(brief(&plan_by(&rule(Spread::None), regions.clone(), &loaded, &none)), []);
    let few = regions[..9].to_vec();
    assert_eq!(brief(&plan_by(&rule(Spread::Loaded), few, &loaded, &none)), [], "under half of its rate");
    let mut below = regions;
    below.push(Region { heat: 0.5, ..used(50, sure(0.5, 99.0), LOW[0]) });
    let plan = plan_by(&rule(Spread::Loaded), below, &loaded, &none);
    assert!(plan.held_back.contains_key(&HeldBack::Spread) && plan.moves.iter().all(|step| step.reason != Reason::Hot));
}

/// Heat, aggregations seen, pages by node, and 0 for one pinned page.
type Made = (f32, u32, Vec<(usize, u64)>, u64);

fn regions() -> impl Strategy<Value = Vec<Region>> {
    let nodes = [TOP[0], TOP[1], LOW[0], LOW[1], GPU];
    let split = prop::collection::vec((0usize..5, 1u64..=512), 1..3);
    let one = (0f32..=1.0, 0u32..5, split, 0u64..8);
    prop::collection::vec(one, 1..120).prop_map(move |blocks| {
        let region = |(n, (heat, seen, parts, pinned)): (usize, Made)| {
            let share = parts.len() as u64;
            let on: Vec<(NodeId, u64)> =
                parts.into_iter().map(|(node, pages)| (nodes[node], pages.div_ceil(share) * 4096)).collect();
            let outlook = if pinned == 7 { Outlook::default() } else { sure(heat, 100.0) };
            Region { seen, unmovable: if pinned == 0 { 4096 } else { 0 }, outlook, ..block(n as u64, heat, &on) }
        };
        blocks.into_iter().enumerate().map(region).collect()
    })
}

proptest! {
    /// Carried out in order, no plan exceeds the room of a node at any step, its budget, or what is movable where the
    /// view says it is; no block moves twice; and no GPU node is touched.
    #[test]
    fn every_plan_can_be_carried_out(
        regions in regions(),
        free in prop::array::uniform4(0u64..40),
        headroom in 0u64..12,
        budget in 0u64..200,
        evidence in prop::sample::select(vec![Evidence::Heat, Evidence::Usage]),
        spread in prop::sample::select(vec![Spread::None, Spread::Loaded, Spread::Bandwidth, Spread::Latency]),
    ) {
        let mut tiers = tiers(free);
        tiers.top[0].headroom = headroom * BLOCK;
        let view = HeatView { at: Instant::now(), regions };
        tiers.speeds = Some(SPEEDS);
        let rule = Rule { evidence, spread, ..Rule::default() };
        let plan = rule.decide(&view, &tiers, &Budget { plan: 4, bytes: budget * BLOCK }, &Recent::default());
        prop_assert!(plan.moves.iter().map(|step| step.bytes).sum::<u64>() <= budget * BLOCK);
        let nodes = tiers.top.iter().chain(&tiers.lower);
        let mut room: BTreeMap<NodeId, i64> =
            nodes.map(|node| (node.id, node.free as i64 - node.headroom as i64)).collect();
        let mut moved = BTreeSet::new();
        for step in &plan.moves {
            let inside = |region: &&Region| step.range.intersect(&region.range).is_some();
            let covered: Vec<&Region> = view.regions.iter().filter(inside).collect();
            let told = |region: &Region| evidence == Evidence::Usage && region.outlook.is_known();
            prop_assert!(covered.iter().all(|region| region.unmovable == 0 && (region.seen >= 2 || told(region))));
            let there: u64 = covered.iter().map(|region| region.on[&step.from]).sum();
            prop_assert_eq!(there, step.bytes);
            for region in covered {
                prop_assert!(moved.insert(region.range), "{} moves twice", region.range);
            }
            prop_assert_eq!(tiers.is_top(step.from), step.reason != Reason::Hot);
            prop_assert_eq!(tiers.is_top(step.to), step.reason == Reason::Hot);
            let bytes = step.bytes as i64;
            *room.get_mut(&step.from).unwrap() += bytes;
            *room.get_mut(&step.to).unwrap() -= bytes;
            prop_assert!(room[&step.to] >= 0, "node {} has no room for {step}", step.to);
        }
    }
}

/// A block on the lower tier whose first and last page are hot.
fn with_hot_pages(n: u64, on: &[(NodeId, u64)]) -> Region {
    Region { pages: Some(Box::new([1, 0, 0, 0, 0, 0, 0, 1 << 63])), ..block(n, 0.9, on) }
}

#[test]
fn single_hot_pages_go_up_without_their_block_and_may_take_half_the_headroom() {
    let regions = || vec![whole(0, 0.5, TOP[0]), with_hot_pages(3, &[(LOW[0], BLOCK)])];
    let at = |page: u64| Range::new(3 * BLOCK + page * PAGE, 3 * BLOCK + (page + 1) * PAGE);
    let full = plan(regions(), &tiers([0, 0, 9, 9]), &Recent::default());
    let moves: Vec<_> = full.moves.iter().map(|step| (step.range, step.bytes, step.to, step.reason)).collect();
    assert_eq!(moves, [at(0), at(511)].map(|range| (range, PAGE, TOP[0], Reason::Hot)));
    let mut short = tiers([0, 0, 9, 9]);
    short.top.iter_mut().for_each(|node| node.free = node.headroom / 2);
    let waits = plan(regions(), &short, &Recent::default());
    assert_eq!((brief(&waits), waits.held_back[&HeldBack::NoRoom]), (vec![], 2 * PAGE), "0.5 makes no room");
}

#[test]
fn a_block_with_hot_pages_moves_neither_up_nor_by_those_down() {
    let none = |n, on: &[(NodeId, u64)]| Region { pages: Some(Box::new([0; 8])), ..block(n, 0.02, on) };
    let moved = [(TOP[0], 8 * PAGE), (LOW[0], BLOCK - 8 * PAGE)];
    let hot = |n| whole(n, 0.9, LOW[0]);
    let regions = vec![none(0, &moved), Region { heat: 0.9, ..none(1, &moved) }, hot(5), hot(6)];
    let all = plan(regions.clone(), &tiers([1, 0, 9, 9]), &Recent::default());
    assert_eq!(brief(&all), [(5, 1, 2, 0, Reason::Hot)], "no room for 6 is made by the pages of 0");
    let above = plan(vec![none(0, &[(TOP[0], BLOCK)]), hot(5)], &tiers([0, 0, 9, 9]), &Recent::default());
    assert_eq!(brief(&above), [(0, 1, 0, 2, Reason::MakeRoom), (5, 1, 2, 0, Reason::Hot)]);
}
