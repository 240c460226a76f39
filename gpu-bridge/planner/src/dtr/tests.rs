use std::path::Path;

use proptest::prelude::*;

use super::*;

const HEURISTICS: [Heuristic; 5] =
    [Heuristic::Exact, Heuristic::Classes, Heuristic::Local, Heuristic::Lru, Heuristic::Largest];

fn parse(lines: &[&str]) -> Result<OpLog, String> {
    let start = r#"{"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"}"#;
    let text: Vec<&str> = [start].iter().chain(lines).copied().collect();
    OpLog::parse(&text.join("\n"), Path::new("a.log")).map_err(|e| e.to_string())
}

const CONSTANT: [&str; 2] =
    [r#"{"INSTRUCTION":"CONSTANT","NAME":"w"}"#, r#"{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"8"}"#];

fn call(result: &str, arg: &str, bytes: u64, time: u64) -> [String; 3] {
    [
        format!(r#"{{"INSTRUCTION":"CALL","NAME":"op","ARGS":["{arg}"],"RESULT":["{result}"],"TIME":"{time}"}}"#),
        format!(r#"{{"INSTRUCTION":"MEMORY","NAME":"{result}","MEMORY":"{bytes}"}}"#),
        format!(r#"{{"INSTRUCTION":"ALIAS","NAME":"{result}","ALIAS":"-1"}}"#),
    ]
}

/// w → a → b → c, where `use_again` is then read once more.
fn chain(use_again: &str) -> OpLog {
    let mut lines: Vec<String> = CONSTANT.iter().map(|l| (*l).to_owned()).collect();
    for (result, arg) in [("a", "w"), ("b", "a"), ("c", "b")] {
        lines.extend(call(result, arg, 100, 10));
    }
    lines.extend(call("d", use_again, 100, 10));
    for name in ["a", "b", "c"] {
        lines.push(format!(r#"{{"INSTRUCTION":"RELEASE","NAME":"{name}"}}"#));
    }
    parse(&lines.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
}

#[test]
fn what_was_evicted_is_computed_again() {
    let log = chain("a");
    assert_eq!((log.peak_bytes(), log.base_ns, log.constant_bytes()), (408, 40, 8));
    // Room for two results beside the constant: a goes for c, and comes back for d.
    let outcome = Runtime::new(&log, 208, Dtr::new(&log, Heuristic::Classes)).run();
    assert_eq!(outcome.stop, None);
    assert_eq!((outcome.remat_ns, outcome.time_ns), (10, 51));
    assert!(outcome.peak_bytes <= 208);
    let unlimited = Runtime::new(&log, u64::MAX, Dtr::new(&log, Heuristic::Classes)).run();
    assert_eq!((unlimited.remat_ns, unlimited.evictions, unlimited.peak_bytes), (0, 0, 408));
}

#[test]
fn too_little_memory_and_too_much_recomputation_end_the_run() {
    let log = chain("a");
    let outcome = Runtime::new(&log, 150, Dtr::new(&log, Heuristic::Local)).run();
    assert_eq!(outcome.stop, Some(Stop::OutOfMemory { wanted: 100, held: 108 }));
    assert_eq!(outcome.overhead(), None);
    let outcome = Runtime::new(&log, 208, Dtr::new(&log, Heuristic::Local)).remat_limit(9).run();
    assert_eq!(outcome.stop, Some(Stop::RematLimit));
}

#[test]
fn a_chain_as_long_as_the_log_needs_no_call_stack() {
    let mut lines: Vec<String> = CONSTANT.iter().map(|l| (*l).to_owned()).collect();
    for i in 0..20_000 {
        let arg = if i == 0 { "w".to_owned() } else { format!("t{}", i - 1) };
        lines.extend(call(&format!("t{i}"), &arg, 1, 1));
        if i > 0 && i < 19_999 {
            lines.push(format!(r#"{{"INSTRUCTION":"RELEASE","NAME":"t{}"}}"#, i - 1));
        }
    }
    lines.push(r#"{"INSTRUCTION":"COPY","DST":"keep","SRC":"t19998"}"#.to_owned());
    let log = parse(&lines.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    // Nothing but the last two fits, so t19998 is computed from the very start.
    let outcome = Runtime::new(&log, 10, Dtr::new(&log, Heuristic::Largest)).run();
    assert_eq!(outcome.stop, None);
}

#[test]
fn malformed_logs_are_named_by_line() {
    let bad = |lines: &[&str], at: &str, what: &str| {
        let error = parse(lines).expect_err(what);
        assert!(error.starts_with(at) && error.contains(what), "{error}");
    };
    bad(&["{"], "a.log:2:", "EOF");
    bad(&[r#"{"INSTRUCTION":"FLY","NAME":"x"}"#], "a.log:2:", "unknown variant");
    bad(&[r#"{"INSTRUCTION":"MEMORY","NAME":"x","MEMORY":"1"}"#], "a.log:2:", "about x");
    bad(&[r#"{"INSTRUCTION":"COPY","DST":"y","SRC":"x"}"#], "a.log:2:", "never defined");
    bad(&CONSTANT[..1], "a.log:2:", "MEMORY line of w");
    let with = |more: &[&'static str]| [&CONSTANT[..], more].concat();
    bad(&with(&CONSTANT), "a.log:5:", "second time");
    let release = r#"{"INSTRUCTION":"RELEASE","NAME":"w"}"#;
    bad(&with(&[release, release]), "a.log:5:", "more often");
    bad(&with(&[release, r#"{"INSTRUCTION":"COPY","DST":"y","SRC":"w"}"#]), "a.log:5:", "after its last");
    let none = r#"{"INSTRUCTION":"CALL","NAME":"f","ARGS":["w"],"RESULT":[],"TIME":"1"}"#;
    bad(&with(&[none]), "a.log:4:", "no result");
    let call = r#"{"INSTRUCTION":"CALL","NAME":"f","ARGS":["w"],"RESULT":["y"],"TIME":"1"}"#;
    let memory = r#"{"INSTRUCTION":"MEMORY","NAME":"y","MEMORY":"1"}"#;
    let alias = r#"{"INSTRUCTION":"ALIAS","NAME":"y","ALIAS":"7"}"#;
    bad(&with(&[call, memory, alias]), "a.log:6:", "aliases argument 7");
    let time = r#"{"INSTRUCTION":"CALL","NAME":"f","ARGS":["w"],"RESULT":["y"],"TIME":"-1"}"#;
    bad(&with(&[time]), "a.log:4:", "not a whole number");
    let mutate = r#"{"INSTRUCTION":"MUTATE","NAME":"f","ARGS":["w"],"MUTATE":["3"],"TIME":"1"}"#;
    bad(&with(&[mutate]), "a.log:4:", "cannot mutate argument");
    let huge = r#"{"INSTRUCTION":"MEMORY","NAME":"y","MEMORY":"18446744073709551615"}"#;
    bad(&with(&[call, huge, r#"{"INSTRUCTION":"ALIAS","NAME":"y","ALIAS":"-1"}"#]), "a.log:6:", "exceeds 2^63");
    let unstarted = OpLog::parse(CONSTANT[0], Path::new("a.log")).expect_err("no start").to_string();
    assert!(unstarted.contains("START"), "{unstarted}");
}

#[test]
fn files_that_are_missing_or_not_gzip_are_named() {
    let missing = OpLog::load(Path::new("/nonexistent/a.log")).expect_err("missing").to_string();
    assert!(missing.contains("/nonexistent/a.log"), "{missing}");
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let not_a_log = OpLog::load(&here).expect_err("not a log").to_string();
    assert!(not_a_log.contains("Cargo.toml"), "{not_a_log}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn runs_keep_their_budget_and_account_for_their_time(seed: u64, ops in 1usize..80, share in 0.05f64..1.2) {
        let log = random::log(seed, ops);
        let unlimited = Runtime::new(&log, u64::MAX, Dtr::new(&log, Heuristic::Local)).run();
        prop_assert_eq!(unlimited.time_ns, log.base_ns + 1);
        prop_assert!(unlimited.peak_bytes >= log.peak_bytes());
        for heuristic in HEURISTICS {
            let budget = (unlimited.peak_bytes as f64 * share) as u64;
            let outcome = Runtime::new(&log, budget, Dtr::new(&log, heuristic)).remat_limit(10 * log.base_ns).run();
            if outcome.stop.is_none() {
                prop_assert!(outcome.peak_bytes <= budget);
                prop_assert_eq!(outcome.time_ns, 1 + log.base_ns + outcome.remat_ns);
                prop_assert!(outcome.evictions > 0 || outcome.remat_ns == 0);
            }
            prop_assert!(share < 1.0 || outcome.remat_ns == 0);
        }
    }

    #[test]
    fn any_text_is_a_log_or_an_error(lines in prop::collection::vec(".{0,60}", 0..6)) {
        let text: Vec<&str> = lines.iter().map(String::as_str).collect();
        let _ = parse(&text);
    }
}
