//! What is accepted, what is refused, and what the refusal says.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::units::NodeId;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("t.toml"), text)
}

fn refusal(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    assert_eq!(parse(DEFAULT_TOML).unwrap(), Config::default());
    assert_eq!(parse("").unwrap(), Config::default());
}

#[test]
fn written_values_reach_the_config() {
    let config = parse(
        "tiers = { nodes = [[0, 1], [4]], missing_node = \"degrade\" }\n\
         damon = { ops = \"paddr\", sampling_interval_us = 20000, max_regions = 9000 }\n\
         migrate = { actuator = \"damos\", rate_bytes_per_sec = \"512MiB\", file_pages = true }\n\
         policy = { headroom_bytes = 4096, policy = \"auto\" }",
    )
    .unwrap();
    assert_eq!(config.tiers.nodes, [NodeSet::from_iter([NodeId(0), NodeId(1)]), NodeSet::from_iter([NodeId(4)])]);
    assert_eq!((config.damon.ops, config.damon.max_regions), (OpsChoice::Paddr, 9000));
    assert!(config.migrate.actuator == Actuator::Damos && config.wants_damos() && !Config::default().wants_damos());
    assert_eq!(config.policy.policy, PolicyKind::Auto);
    assert_eq!((config.migrate.rate_bytes_per_sec, config.policy.headroom_bytes), (512 << 20, 4096));
}

#[test]
fn a_scan_that_cannot_fit_the_sampling_interval_is_refused_with_its_cost() {
    let text = "[damon]\nsampling_interval_us = 5000\nmax_regions = 30000000\n";
    let said = refusal(text);
    for part in ["t.toml line 3", "damon.max_regions", "2µs a region (ours, measured)", "at most 2500", "60000000"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(refusal(&format!("policy.policy = \"auto\"\n{text}")).contains("damon.max_regions"), "by any policy");
    let sampling = "[damon]\nsampling_interval_us = 5000\n";
    assert!(parse(&format!("{sampling}max_regions = 2500\n")).is_ok());
    assert!(parse(&format!("{sampling}max_regions = 2501\n")).is_err());
    // The interval alone can be what does not fit.
    assert!(refusal("[damon]\nsampling_interval_us = 100\n").contains("line 2"));
}

#[test]
fn refusals_name_file_line_and_key() {
    for (text, parts) in [
        ("[damon]\nmax_region = 3", ["line 2", "max_region"]),
        ("[migrate]\n\nrate_bytes_per_sec = \"fast\"", ["line 3", "fast"]),
        ("[migrate]\nrate_bytes_per_sec = -1", ["line 2", "-1"]),
        ("[migrate]\nrate_bytes_per_sec = 1", ["line 2", "migrate.rate_bytes_per_sec"]),
        ("[hotness]\npromote_heat = nan", ["line 2", "hotness.promote_heat"]),
        ("[tiers]\nnodes = [[0], [0]]", ["line 2", "node 0 is named twice"]),
        ("[tiers]\nnodes = [[0], []]", ["line 2", "tiers.nodes"]),
        ("[damon]\naggregation_interval_ms = 5", ["line 2", "damon.aggregation_interval_ms"]),
        ("[agent]\ntick_ms = 0", ["line 2", "between 10 and 60000"]),
        ("[prometheus]\nlisten = \"9462\"", ["line 2", "prometheus.listen"]),
        ("[[job]]\nname = \"a\"", ["line 1", "every process"]),
        ("[[job]]\nname = \"a\"\ncomm = \"a-name-of-16-byte\"", ["line 1", "15 bytes"]),
        ("[[job]]\nname = \"a\"\ncomm = \"b\"\npriority = 21", ["line 1", "-20 and 20"]),
        ("[[job]]\ncomm = \"b\"", ["line 1", "name"]),
        ("[[job]]\nname = \"a\"\nuser = \"no-such-user-here\"", ["line 1", "no user"]),
        ("[[job]]\nname = \"a\"\nuser = \"\"", ["line 1", "no user"]),
        ("[[job]]\nname = \"a\"\ncgroup = \"\"", ["line 1", "whole machine"]),
        ("[[job]]\nname = \" \"\ncomm = \"b\"", ["line 1", "blanks"]),
        ("[[job]]\nname = \"a\\u202eb\"\ncomm = \"b\"", ["line 1", "formatting"]),
        ("[damon]\ncpu_percent = 2.0\nrest_cpu_percent = 2.5", ["line 3", "more than cpu_percent"]),
        ("[[job]]\nname = \"7\"\ncomm = \"b\"", ["line 1", "number"]),
        ("[[job]]\nname = \"a\"\ncomm = \"b\"\nbudget = 1", ["line 4", "budget"]),
        ("[migrate]\nactuator = \"both\"", ["line 2", "move_pages"]),
        ("[policy]\npolicy = \"best\"", ["line 2", "balance"]),
        ("[[job]]\nname = \"a\"\ncomm = \"b\"\nactuator = \"damos\"\ndram_bytes = 1", ["line 1", "budgets"]),
    ] {
        let said = refusal(text);
        assert!(parts.iter().all(|part| said.contains(part)) && said.contains("t.toml"), "{text:?}: {said}");
    }
}

#[test]
fn a_named_file_must_exist_and_the_default_one_need_not() {
    let absent = Path::new("/nonexistent/tensortier.toml");
    assert!(Config::load(Some(absent)).unwrap_err().to_string().contains("/nonexistent/tensortier.toml"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "[agent]\ntick_ms = 250\n").unwrap();
    assert_eq!(Config::load(Some(&file)).unwrap().agent.tick, Duration::from_millis(250));
}

#[test]
fn what_is_no_plain_file_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [pipe.as_path(), Path::new("/dev/zero"), folder.path()] {
        let error = Config::load(Some(path)).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("not a plain file"), "{error}");
    }
    let large = folder.path().join("large.toml");
    std::fs::File::create(&large).unwrap().set_len(LARGEST + 1).unwrap();
    assert!(Config::load(Some(&large)).unwrap_err().to_string().contains("larger"));
}

#[test]
fn what_rests_takes_no_more_than_what_works() {
    assert_eq!(parse("[damon]\ncpu_percent = 1.0\n").unwrap().damon.rest_cpu_percent, 1.0);
    assert!(parse("[damon]\ncpu_percent = 1.0\nrest_cpu_percent = 1.0\n").is_ok());
}

#[test]
fn rules_are_read() {
    let text = "[[job]]\nname = \"a\"\ncomm = \"python3\"\nuser = \"root\"\nmode = \"watch\"\ndram_bytes = \"2GiB\"\n\
                [[job]]\nname = \"b\"\ncgroup = \"/b.slice\"\npriority = -4\n\
                actuator = \"damos\"\n[prometheus]\nlisten = \"[::1]:9462\"\n";
    let config = parse(text).unwrap();
    let limits = Limits { dram_bytes: Some(2 << 30), cxl_bytes: None, priority: 0 };
    assert_eq!((config.rules[0].mode, &config.rules[0].limits), (Mode::Watch, &limits));
    assert_eq!((config.rules[0].actuator, config.rules[1].actuator), (None, Some(Actuator::Damos)));
    assert!(config.wants_damos(), "for one of them");
    assert_eq!((config.rules[1].limits.priority, config.rules[1].cgroup.is_some()), (-4, true));
    assert_eq!(config.metrics.unwrap().port(), 9462);
    assert!(refusal(&format!("{text}[[job]]\nname = \"a\"\nuser = \"4242\"\n")).contains("named twice"));
}

#[test]
fn headroom_is_the_larger_setting_and_leaves_half_the_node() {
    let policy = Policy { headroom_bytes: 100, headroom_percent: 2.0, ..Policy::default() };
    assert_eq!(policy.headroom(1000), 100);
    assert_eq!(policy.headroom(100_000), 2000);
    assert_eq!(policy.headroom(120), 60);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = parse(&text).map_err(|error| error.to_string());
    }

    #[test]
    fn what_is_accepted_fits(regions in 0u32.., interval in 0u64..20_000_000) {
        let text = format!("[damon]\nmax_regions = {regions}\nsampling_interval_us = {interval}\naggregation_interval_ms = 60000");
        if let Ok(config) = parse(&text) {
            prop_assert!(SCAN_COST_PER_REGION * config.damon.max_regions <= config.damon.sampling_interval);
        }
    }
}
