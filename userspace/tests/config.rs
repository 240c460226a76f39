//! `tensortier config`, through the real binary.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{fs, process::Command};

/// Exit code, stdout, stderr.
fn config(words: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensortier"));
    let out = command.arg("config").args(words).env_remove("TENSORTIER_CONFIG").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

#[test]
fn a_config_that_cannot_work_fails_with_its_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let file = path.to_str().unwrap();
    for (text, said) in [
        ("[migrate]\nmax_retries = 3\nretries = 3\n", "retries"),
        ("[policy]\nheadroom_percent = 200.0\n", "line 2: policy.headroom_percent"),
        ("[agent]\ngroup = \"no such group\"\n", "no such group"),
        ("[[job]]\n", "job"),
    ] {
        fs::write(&path, text).unwrap();
        for command in ["check", "show"] {
            let (code, out, err) = config(&[command, file]);
            assert!(code == 1 && out.is_empty() && err.contains(said), "{text}: {code} {out}{err}");
        }
    }
    assert_eq!(config(&["check", "/nonexistent.toml"]).0, 1);
    assert_eq!(config(&["check", file, "more"]).0, 2);
}

#[test]
fn what_is_shown_is_what_is_written_over_the_defaults_and_reads_as_a_config() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    fs::write(&path, "[damon]\nops = \"off\"\n[[job]]\nname = \"train\"\ncomm = \"python3\"\n").unwrap();
    let file = path.to_str().unwrap();
    let (code, out, err) = config(&["check", file]);
    assert!(code == 0 && out.contains("rules for jobs: 1"), "{out}{err}");
    let (code, shown, err) = config(&["show", file, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((code, &json["damon"]["ops"], &json["damon"]["max_regions"]), (0, &"off".into(), &2000.into()), "{err}");
    assert_eq!((&json["job"][0]["comm"], &json["migrate"]["stall_cap_ms"]), (&"python3".into(), &20.into()));
    let (_, shown, _) = config(&["show", file]);
    fs::write(&path, &shown).unwrap();
    assert_eq!(config(&["show", file]).1, shown, "the same again");
    let (code, defaults, _) = config(&["show", "--default"]);
    fs::write(&path, &defaults).unwrap();
    assert!(code == 0 && defaults.contains("# What moves pages"));
    assert_eq!(config(&["check", file]).0, 0);
}
