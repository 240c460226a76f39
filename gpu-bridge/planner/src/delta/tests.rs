use proptest::prelude::*;

use super::*;
use crate::dtr::{Heuristic, Runtime, random};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn runs_keep_their_budget_and_account_for_their_time(
        seed: u64, ops in 1usize..80, share in 0.05f64..1.2, rate in 1e6f64..1e12, switches in 0u8..64, cxl: bool,
    ) {
        let log = random::log(seed, ops);
        let dtr = Runtime::new(&log, u64::MAX, crate::dtr::Dtr::new(&log, Heuristic::Local)).run();
        let budget = (dtr.peak_bytes as f64 * share) as u64;
        let on = |bit: u8| switches >> bit & 1 == 1;
        let mut config = Config::with_link(rate);
        config.switches = Switches {
            recompute: on(0) || !on(1),
            swap: on(1),
            knapsack: on(2),
            offload_ahead: on(3),
            reload_ahead: on(4),
            recompute_ahead: on(5),
        };
        if cxl {
            config.dram.bytes = 500;
            config.cxl = Some(Backing { bytes: 700, ..Backing::behind_link(rate / 2.0) });
        }
        let runtime = Runtime::new(&log, budget, Delta::new(&log, config)).remat_limit(10 * log.base_ns);
        let (outcome, policy) = runtime.run_with_policy();
        let counts = policy.counts();
        prop_assert!(outcome.peak_bytes <= budget, "{} of {budget}", outcome.peak_bytes);
        prop_assert!(policy.most_in_host().0 <= config.dram.bytes);
        prop_assert!(policy.most_in_host().1 <= config.cxl.map_or(0, |c| c.bytes));
        if outcome.stop.is_none() {
            let waited = counts.wait_in_ns + counts.wait_out_ns;
            prop_assert_eq!(outcome.time_ns, 1 + log.base_ns + outcome.remat_ns + waited);
        }
        if !config.switches.swap {
            prop_assert_eq!(counts.out_bytes, (0, 0));
        }
        if share >= 1.0 {
            prop_assert_eq!((outcome.stop, outcome.time_ns), (None, 1 + log.base_ns));
            prop_assert_eq!((counts.swaps, counts.drops), (0, 0));
        }
    }

    #[test]
    fn the_published_code_waits_for_every_transfer(seed: u64, ops in 1usize..80, share in 0.3f64..1.2) {
        let log = random::log(seed, ops);
        let budget = (log.peak_bytes() as f64 * share) as u64;
        let runtime = Runtime::new(&log, budget, AsReleased::new(&log, 12e9)).remat_limit(10 * log.base_ns);
        let (outcome, policy) = runtime.run_with_policy();
        if outcome.stop.is_none() {
            prop_assert_eq!(outcome.time_ns, 1 + log.base_ns + outcome.remat_ns + policy.transfer_ns);
        }
    }
}

#[test]
fn the_price_of_dram_rises_as_it_fills() {
    let mut config = Config::with_link(20e9);
    config.dram.bytes = 1000;
    config.cxl = Some(Backing::behind_link(10e9));
    let candidate = price::Candidate {
        bytes: 100,
        recompute_ns: u64::MAX >> 12,
        copy: None,
        out_queue_ns: 0,
        in_queue_ns: 0,
        idle_ns: Some(1_000_000_000),
    };
    let action = |dram| config.cheapest(&candidate, price::HostUse { dram, cxl: 0 }).map(|a| a.0);
    assert_eq!(action(0), Some(price::Action::Swap(price::Host::Dram)));
    assert_eq!(action(950), Some(price::Action::Swap(price::Host::Cxl)), "it would not fit");
    assert_eq!(action(899), Some(price::Action::Swap(price::Host::Cxl)), "the last of it is kept for dearer ones");
}
