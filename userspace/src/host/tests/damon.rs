//! DAMON's shapes: what each kernel shows, and what is used where something is missing.

use std::collections::BTreeSet;

use super::*;
use crate::config::OpsChoice;

const VIRTUAL: &str = "vaddr\nfvaddr\npaddr\n";
const OPS: &str = "contexts/0/avail_operations";

fn ops(list: &[DamonOps]) -> Option<BTreeSet<DamonOps>> {
    Some(list.iter().copied().collect())
}

/// The files below a kdamond that a kernel has, beyond those of all kernels.
fn kernel(release: &str) -> Damon {
    let tried = ("contexts/0/schemes/0/tried_regions/total_bytes", "0\n");
    let newer = [
        tried,
        ("contexts/0/schemes/0/apply_interval_us", "0\n"),
        ("contexts/0/schemes/0/quotas/effective_bytes", "0\n"),
        ("contexts/0/schemes/0/target_nid", "-1\n"),
    ];
    let newest = [
        ("contexts/0/monitoring_attrs/intervals/intervals_goal/aggrs", "0\n"),
        ("refresh_ms", "0\n"),
        ("contexts/0/addr_unit", "1\n"),
    ];
    let made = Made::sparse();
    let made = match release {
        // debugfs alone.
        "5.15" => made.put("proc/kallsyms", "0 t damon_va_check_accesses\n"),
        "6.1" => made.kdamond("off\n", "-1\n", &[(OPS, VIRTUAL)]),
        "6.6" => made.kdamond("off\n", "-1\n", &[(OPS, VIRTUAL), tried]),
        "6.12" => made.kdamond("off\n", "-1\n", &[&[(OPS, VIRTUAL)], &newer[..]].concat()),
        "6.18 without vaddr" => made.kdamond("on\n", "71\n", &[&[(OPS, "paddr\n")], &newer[..], &newest[..]].concat()),
        other => panic!("{other}"),
    };
    made.read().damon
}

#[test]
fn features_are_found_by_their_files() {
    use DamonFeature::*;
    let features = |release| kernel(release).features.into_iter().collect::<Vec<_>>();
    assert_eq!(features("5.15"), []);
    assert_eq!(features("6.1"), []);
    assert_eq!(features("6.6"), [TriedRegions]);
    assert_eq!(features("6.12"), [TriedRegions, ApplyInterval, EffectiveBytes, TargetNode]);
    assert_eq!(features("6.18 without vaddr").len(), 7);
}

#[test]
fn what_is_missing_is_named_with_its_floor_and_something_else_is_used() {
    let pick = |release, choice| {
        let pick = kernel(release).pick(choice);
        (pick.ops, pick.shortfall.unwrap_or_default())
    };
    let (used, said) = pick("5.15", OpsChoice::Auto);
    assert!(used.is_none() && said.contains("5.18") && said.contains("CONFIG_DAMON_SYSFS"), "{said}");
    for release in ["6.1", "6.6", "6.12"] {
        assert_eq!(pick(release, OpsChoice::Auto), (Some(DamonOps::Fvaddr), String::new()));
        assert_eq!(pick(release, OpsChoice::Paddr), (Some(DamonOps::Paddr), String::new()));
    }
    let (used, said) = pick("6.18 without vaddr", OpsChoice::Auto);
    assert_eq!(used, Some(DamonOps::Paddr));
    assert!(said.contains("5.15") && said.contains("CONFIG_DAMON_VADDR"), "{said}");
    let (used, said) = pick("6.18 without vaddr", OpsChoice::Fvaddr);
    assert!(used == Some(DamonOps::Paddr) && said.contains("no fvaddr") && said.contains("5.19"), "{said}");
    assert_eq!(pick("6.18 without vaddr", OpsChoice::Off), (None, String::new()));
}

#[test]
fn without_a_context_the_symbol_table_tells() {
    let symbols = |text| {
        let made = Made::sparse().put("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n");
        made.put("proc/kallsyms", text).read().damon
    };
    let all =
        "0 t damon_va_check_accesses\n0 t damon_pa_check_accesses\n0 t avail_operations_show\n0 t target_nid_show\n";
    let damon = symbols(all);
    assert_eq!(damon.ops, ops(&[DamonOps::Vaddr, DamonOps::Fvaddr, DamonOps::Paddr]));
    assert!(damon.features.contains(&DamonFeature::TargetNode));
    assert_eq!(symbols("0 t damon_va_check_accesses\n").ops, ops(&[DamonOps::Vaddr]));
    assert_eq!(symbols("0 t damon_pa_check_accesses\n").pick(OpsChoice::Auto).ops, Some(DamonOps::Paddr));
    let made = Made::sparse().put("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n").put("proc/kallsyms", all);
    let without = Host::read_without_symbols(made.root()).unwrap();
    assert_eq!((without.damon.sysfs, without.damon.ops), (true, None));
    assert!(without.nodes.keys().eq(made.read().nodes.keys()));
    // What cannot be seen is tried.
    let unknown = symbols("");
    assert_eq!((unknown.ops.clone(), unknown.pick(OpsChoice::Auto).ops), (None, Some(DamonOps::Fvaddr)));
}

#[test]
fn operations_newer_than_this_program_are_no_error() {
    let damon = Made::sparse().kdamond("off\n", "-1\n", &[(OPS, "gaddr\npaddr\n")]).read().damon;
    assert_eq!(damon.ops, ops(&[DamonOps::Paddr]));
}

#[test]
fn other_users_are_seen_and_named() {
    let host = Made::sparse()
        .kdamond("on\n", "4711\n", &[(OPS, VIRTUAL)])
        .put("sys/module/damon_stat/parameters/enabled", "Y\n")
        .put("sys/module/damon_reclaim/parameters/enabled", "N\n")
        .read();
    let occupied = finding(&host, &Config::default(), "damon-occupied");
    assert!(occupied.what.contains("4711") && occupied.consequence.contains("left alone"));
    let module = finding(&host, &Config::default(), "damon-module-on");
    assert_eq!(module.subject, "damon_stat");
    assert_eq!(module.fix_command.unwrap(), "echo N > /sys/module/damon_stat/parameters/enabled");
    assert!(host.damon.module_on("damon_stat") && !host.damon.module_on("damon_reclaim"));
    let off = config("[damon]\nops = \"off\"");
    assert!(findings(&host, &off).iter().all(|finding| !finding.id.starts_with("damon")));
}
