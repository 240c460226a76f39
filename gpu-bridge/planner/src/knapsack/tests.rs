use proptest::prelude::*;

use super::*;

/// The cheapest cover, by trying all.
fn brute_force(items: &[Item], need: u64) -> Option<f64> {
    (0u32..1 << items.len())
        .filter_map(|mask| {
            let chosen: Vec<usize> = (0..items.len()).filter(|i| mask >> i & 1 == 1).collect();
            let cover = Cover::of(items, chosen);
            (cover.bytes >= need).then_some(cover.cost)
        })
        .min_by(f64::total_cmp)
}

fn items(most: usize) -> impl Strategy<Value = Vec<Item>> {
    // Whole costs, so that sums compare exactly.
    let item = (0u64..200, 0u32..100).prop_map(|(bytes, cost)| Item { bytes, cost: cost.into() });
    prop::collection::vec(item, 0..most)
}

fn total_cost(items: &[Item]) -> f64 {
    items.iter().map(|i| i.cost).sum()
}

proptest! {
    #[test]
    fn exact_is_the_best(items in items(11), need in 0u64..900) {
        let exact = cover_exact(&items, need, 1);
        prop_assert_eq!(exact.as_ref().map(|c| c.cost), brute_force(&items, need));
        if let Some(c) = exact {
            prop_assert!(c.bytes >= need);
            prop_assert_eq!(Cover::of(&items, c.items.clone()), c);
        }
    }

    #[test]
    fn cover_suffices_and_keeps_its_bound(items in items(40), need in 0u64..4000, k in 0usize..3) {
        let found = cover_all(&items, need, k);
        let exact = cover_exact(&items, need, 1);
        prop_assert_eq!(found.is_some(), exact.is_some());
        if let (Some(found), Some(exact)) = (found, exact) {
            prop_assert!(found.bytes >= need);
            prop_assert!(found.cost >= exact.cost);
            let (kept, best) = (total_cost(&items) - found.cost, total_cost(&items) - exact.cost);
            prop_assert!(kept >= best * k as f64 / (k + 1) as f64, "kept {kept} of {best}");
        }
    }

    #[test]
    fn filtering_never_loses_feasibility(items in items(60), need in 0u64..6000) {
        let all: u64 = items.iter().map(|i| i.bytes).sum();
        let found = cover(&items, need, 1);
        prop_assert_eq!(found.is_some(), all >= need);
        if let Some(found) = found {
            prop_assert!(found.bytes >= need);
        }
    }

    #[test]
    fn coarse_units_still_suffice(items in items(20), need in 0u64..900, unit in 1u64..40) {
        if let Some(c) = cover_exact(&items, need, unit) {
            prop_assert!(c.bytes >= need);
        }
    }
}

#[test]
fn more_items_than_are_considered() {
    let items: Vec<Item> = (0..2000).map(|i| Item { bytes: 1000, cost: f64::from(i % 700) }).collect();
    let found = cover(&items, 600_000, 1).unwrap();
    assert!(found.bytes >= 600_000, "600 of them are needed, which is more than the cap");
    let few = cover(&items, 3_000, 1).unwrap();
    assert_eq!((few.items.len(), few.cost), (3, 0.0), "three cost nothing");
}

#[test]
fn an_exact_cover_that_greed_misses() {
    let item = |bytes, cost| Item { bytes, cost };
    let items = [item(60, 60.0), item(50, 51.0), item(50, 51.0), item(100, 103.0)];
    let found = cover(&items, 100, 1).unwrap();
    assert_eq!(found.items, [1, 2], "not the one that is cheapest per byte");
}

#[test]
fn units_of_zero_and_tables_too_large_are_refused() {
    let items = [Item { bytes: 1 << 40, cost: 1.0 }];
    assert_eq!(cover_exact(&items, 1, 0), None);
    assert_eq!(cover_exact(&items, 1 << 40, 1), None);
    assert_eq!(cover_exact(&items, 1 << 40, 1 << 20).map(|c| c.cost), Some(1.0));
}
