//! Scattered hot pages in a guest: one in each 2 MiB of memory that is idle else.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tensortier_tests::{
    exerciser::Report,
    guest::{Guest, Profile, built},
};

const MIB: u64 = 1 << 20;

fn script() -> String {
    format!(
        r#"echo 0 >/proc/sys/kernel/numa_balancing; echo false >/sys/kernel/mm/numa/demotion_enabled
        cd $TENSORTIER_OUT
        {agent} run --require --policy auto --summary-json summary.json -- {exerciser} --hot 192M --hot-node 1 \
            --pattern scattered --lines-per-page 64 --thp never --seconds 40 --report report.json"#,
        agent = built("tensortier").display(),
        exerciser = built("exerciser").display(),
    )
}

#[test]
fn hot_pages_are_promoted_and_the_memory_around_them_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let guest = Guest::new(Profile::Numa, "6.12", out).dram("1G").slow("512M");
    let ran = guest.script(&script()).unwrap();
    let log = ran.kernel_log().unwrap();
    assert!(!log.contains("WARNING:") && !log.contains("BUG:"), "{log}");
    let report = Report::read(&out.join("report.json")).unwrap();
    let last = report.samples.last().unwrap().hot_dram;
    assert!(report.checksum_ok && last >= 0.95, "{last} of the 96 hot pages are in DRAM: {:?}", report.samples);
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(out.join("summary.json")).unwrap()).unwrap();
    let moved = summary["watched"]["moved"].as_array().unwrap();
    let bytes: u64 = moved.iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
    assert!(bytes <= 8 * MIB, "{bytes} bytes moved for 96 pages");
}
