//! Every event of this host that says something of migration, with its meaning, and why those that cannot be used cannot.

use std::path::Path;

use serde::Serialize;

use super::{
    Whose, pmu,
    tracepoints::{KERNEL, NOT_ARMED},
    vmstat::{self, FIELDS},
};
use crate::{
    observe::usdt::{PATHS, PROBES, PROVIDER, REASONS, SOURCES},
    source::ebpf,
};

/// Where an event is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A USDT probe of this program.
    Probe,
    /// Summed by our eBPF program.
    Ebpf,
    /// A tracepoint of the kernel.
    Tracepoint,
    /// A field of /proc/vmstat or of a node's.
    Vmstat,
    /// A CXL device's own counter.
    CxlPmu,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its name, as `perf stat -e` or `tensortier perf stat` takes or prints it.
    pub event: String,
    /// Where it is counted.
    pub kind: Kind,
    /// Whose work it shows.
    pub whose: Whose,
    /// What it means.
    pub meaning: String,
    /// The arguments in order; perf calls them `arg1` and so on.
    pub arguments: Vec<&'static str>,
    /// Why it cannot be used now, and what mends that.
    pub unusable: Option<String>,
}

/// All events, ours first.
pub fn catalogue(root: &Path) -> Vec<Entry> {
    let entry = |event: String, kind, whose, meaning: &str, unusable| Entry {
        event,
        kind,
        whose,
        meaning: meaning.to_owned(),
        arguments: Vec::new(),
        unusable,
    };
    let mut entries = Vec::new();
    for probe in &PROBES {
        let event = format!("sdt_{PROVIDER}:{}", probe.name);
        let unusable = unusable_tracepoint(root, &event);
        let meaning = with_numbers(probe.meaning, probe.arguments);
        entries.push(Entry {
            arguments: probe.arguments.to_vec(),
            ..entry(event, Kind::Probe, Whose::Agent, &meaning, unusable)
        });
    }
    let loads = ebpf::built().err().map(|error| error.to_string());
    let loads = loads.or_else(|| unusable_tracepoint(root, "migrate:mm_migrate_pages"));
    for (event, whose, meaning) in [
        ("migrated:syscall_or_cpuset", Whose::Agent, "pages moved by an agent, and apart from these by other programs"),
        ("migrated:numa_misplaced", Whose::NumaBalancing, "pages migrated by NUMA balancing"),
        ("migrated:demotion", Whose::Demotion, "pages demoted by reclaim"),
        ("migrated:damon", Whose::Damon, "pages migrated by DAMON's schemes"),
        ("migrated:compaction", Whose::Kernel, "pages migrated to bring free memory together"),
        ("migrated:*", Whose::Kernel, "every other reason that this kernel names, and not-migrated:* for failures"),
    ] {
        entries.push(entry(event.to_owned(), Kind::Ebpf, whose, meaning, loads.clone()));
    }
    for (event, whose, meaning) in KERNEL {
        entries.push(entry(event.to_owned(), Kind::Tracepoint, whose, meaning, unusable_tracepoint(root, event)));
    }
    let missing = vmstat::missing(root);
    for field in &FIELDS {
        let why = missing.iter().find(|one| one.event == field.name).map(|one| one.why.clone());
        entries.push(entry(field.name.to_owned(), Kind::Vmstat, field.whose, field.meaning, why));
    }
    let pmus = pmu::discover(root);
    if pmus.is_empty() {
        let why = "no CXL device with a performance unit here (Linux 6.5, CONFIG_CXL_PMU)".to_owned();
        let meaning = "requests that reach a CXL memory device";
        entries.push(entry("cxl_pmu_mem*/…/".to_owned(), Kind::CxlPmu, Whose::Cxl, meaning, Some(why)));
    }
    for (pmu, event) in pmus.iter().flat_map(|pmu| pmu.events.iter().map(move |event| (pmu, event))) {
        let name = format!("{}/{event}/", pmu.name);
        let meaning = format!("{} of a CXL memory device", event.replace('_', " "));
        entries.push(entry(name, Kind::CxlPmu, Whose::Cxl, &meaning, None));
    }
    entries
}

/// The numbers that stand for words among a probe's arguments.
fn with_numbers(meaning: &str, arguments: &[&str]) -> String {
    let list = |words: &[&str]| {
        let numbered: Vec<_> = words.iter().zip(1..).map(|(word, number)| format!("{number} {word}")).collect();
        numbered.join(", ")
    };
    match arguments {
        _ if arguments.contains(&"reason") => format!("{meaning} (reason: {})", list(&REASONS)),
        _ if arguments.contains(&"path") => format!("{meaning} (path: {})", list(&PATHS)),
        _ if arguments.contains(&"source id") => format!("{meaning} (source: {})", list(&SOURCES)),
        _ => meaning.to_owned(),
    }
}

fn unusable_tracepoint(root: &Path, event: &str) -> Option<String> {
    let places = ["sys/kernel/tracing", "sys/kernel/debug/tracing"].map(|place| root.join(place));
    let path = event.replace(':', "/");
    let there = |place: &std::path::PathBuf| place.join("events").join(&path).try_exists();
    match places.iter().map(there).reduce(|first, second| Ok(first? || second?)) {
        Some(Ok(true)) => None,
        Some(Err(_)) => Some("needs root: tracefs is closed to others".to_owned()),
        _ if event.starts_with("sdt_") => Some(NOT_ARMED.to_owned()),
        _ => Some("this kernel has no such tracepoint, or tracefs is not mounted".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn find(entries: &[Entry], event: &str) -> Entry {
        entries.iter().find(|entry| entry.event == event).unwrap_or_else(|| panic!("no {event}")).clone()
    }

    #[test]
    fn an_empty_host_can_use_nothing_and_says_why() {
        let root = tempfile::tempdir().unwrap();
        let entries = catalogue(root.path());
        assert!(entries.iter().all(|entry| entry.unusable.is_some()), "{entries:#?}");
        let probe = find(&entries, "sdt_tensortier:migrate_done");
        assert_eq!(probe.arguments[3], "from<<8 | to");
        assert!(probe.meaning.contains("2 make_room") && probe.unusable.unwrap().contains("perf setup"));
        assert!(find(&entries, "pgdemote_proactive").unusable.unwrap().contains("6.16"));
    }

    #[test]
    fn what_is_there_can_be_used() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "sys/kernel/tracing/events/sdt_tensortier/promote/id", "1");
        put(root.path(), "sys/kernel/debug/tracing/events/damon/damon_aggregated/id", "2");
        put(root.path(), "proc/vmstat", "pgmigrate_success 1\n");
        put(root.path(), "sys/bus/event_source/devices/cxl_pmu_mem3.0/events/ddr_rd", "vid=1");
        let entries = catalogue(root.path());
        let usable: Vec<_> = entries.iter().filter(|entry| entry.unusable.is_none()).collect();
        let names: Vec<_> = usable.iter().map(|entry| entry.event.as_str()).collect();
        let expected =
            ["sdt_tensortier:promote", "damon:damon_aggregated", "pgmigrate_success", "cxl_pmu_mem3.0/ddr_rd/"];
        assert_eq!(names, expected);
    }
}
