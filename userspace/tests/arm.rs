//! Arming the probes with a stand-in for perf and for tracefs: what is armed, what is taken away, and what is left alone.
//! The real ones are tests/tests/guest_perf.rs's.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tensortier::observe::{
    arm::{ArmError, Arms},
    notes,
    usdt::PROBES,
};

const BINARY: &str = env!("CARGO_BIN_EXE_tensortier");

struct Bed {
    folder: tempfile::TempDir,
    arms: Arms,
}

impl Bed {
    /// `spoil` is shell code that the stand-in runs for each probe, with its name in `$name` and its offset in `$offset`.
    fn new(spoil: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let notes = notes::read(Path::new(BINARY)).unwrap();
        let cases: String = notes.iter().map(|n| format!("{}) offset={:#x};;\n", n.name, n.perf_offset)).collect();
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --buildid-dir ] || exit 3\n\
             case $3 in\nbuildid-cache) : >\"$2/copy\"; exit;;\nesac\n\
             binary=$6; shift 6\nfor event; do\n[ $event = --add ] && continue\n\
             name=${{event#sdt_tensortier:}}\ncase $name in\n{cases}esac\n{spoil}\n\
             echo \"p:sdt_tensortier/$name $binary:$offset arg1=%di:s64\" >>{}\ndone\n",
            at("uprobe_events").display(),
        );
        fs::write(at("perf"), script).unwrap();
        fs::set_permissions(at("perf"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(at("uprobe_events"), "p:sdt_other/promote /bin/true:0x10\np:probe/x /bin/true:0x20\n").unwrap();
        let arms = Arms {
            tracefs: folder.path().to_owned(),
            journal: at("run/perf.json"),
            perf: at("perf"),
            cache: at("run/buildid"),
        };
        Self { folder, arms }
    }

    fn events(&self) -> String {
        fs::read_to_string(self.folder.path().join("uprobe_events")).unwrap()
    }

    /// The events that were taken away: lines that a real tracefs acts on.
    fn removed(&self) -> Vec<String> {
        self.events().lines().filter_map(|line| line.strip_prefix("-:")).map(str::to_owned).collect()
    }

    fn journal(&self, boot: &str, binary: &str, probes: &[&str]) {
        fs::create_dir_all(&self.arms.cache).unwrap();
        let cache = &self.arms.cache;
        let journal = serde_json::json!({ "boot": boot, "binary": binary, "cache": cache, "probes": probes });
        fs::write(&self.arms.journal, journal.to_string()).unwrap();
    }
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

#[test]
fn every_probe_is_armed_where_it_is_and_taken_away_again() {
    let bed = Bed::new("");
    let armed = bed.arms.arm(Path::new(BINARY)).unwrap();
    assert_eq!(armed.len(), PROBES.len());
    assert!(armed.contains(&"sdt_tensortier:migrate_done".to_owned()));
    assert!(!bed.arms.cache.exists(), "perf's copy is gone once it has served");
    assert_eq!(bed.arms.disarm().unwrap(), armed);
    assert_eq!(bed.removed().len(), PROBES.len());
    assert!(bed.removed().iter().all(|event| event.starts_with("sdt_tensortier/")));
    assert!(!bed.arms.journal.exists());
    assert_eq!(bed.arms.disarm().unwrap(), Vec::<String>::new(), "nothing is left to take away");
}

#[test]
fn a_failure_half_way_leaves_nothing() {
    let bed = Bed::new("[ $name = promote ] && { echo no luck >&2; exit 1; }");
    let error = bed.arms.arm(Path::new(BINARY)).unwrap_err();
    assert!(matches!(&error, ArmError::Perf { reason, .. } if reason == "no luck"), "{error}");
    assert!(error.to_string().contains("sdt_tensortier:promote"), "{error}");
    let armed = bed.events().lines().filter(|line| line.starts_with("p:sdt_tensortier/")).count();
    assert_eq!(bed.removed().len(), armed);
    assert!(armed > 0 && !bed.arms.journal.exists() && !bed.arms.cache.exists());
}

#[test]
fn a_probe_that_perf_puts_elsewhere_is_taken_away_at_once() {
    let bed = Bed::new("[ $name = demote ] && offset=0x1234");
    let error = bed.arms.arm(Path::new(BINARY)).unwrap_err();
    assert!(matches!(error, ArmError::Elsewhere { armed: 0x1234, .. }), "{error}");
    assert_eq!(bed.removed().len(), PROBES.len());
}

#[test]
fn what_a_crash_left_is_taken_away_by_the_journal_and_nothing_else() {
    let bed = Bed::new("");
    let events = "p:sdt_tensortier/promote /opt/tt:0x10(0x20) arg1=%di:s64\np:sdt_tensortier/demote /opt/other:0x10\n\
                  p:sdt_tensortier/throttled /opt/tt:0x30\n";
    fs::write(bed.folder.path().join("uprobe_events"), events).unwrap();
    bed.journal(&boot(), "/opt/tt", &["promote", "demote", "migrate_done"]);
    assert_eq!(bed.arms.disarm().unwrap(), ["sdt_tensortier:promote"]);
    assert_eq!(bed.removed(), ["sdt_tensortier/promote"]);
    assert!(!bed.arms.cache.exists());
}

#[test]
fn a_journal_of_another_boot_or_a_torn_one_names_nothing() {
    let bed = Bed::new("");
    fs::write(bed.folder.path().join("uprobe_events"), "p:sdt_tensortier/promote /opt/tt:0x10\n").unwrap();
    bed.journal("another boot", "/opt/tt", &["promote"]);
    assert!(bed.arms.disarm().unwrap().is_empty() && bed.removed().is_empty());
    bed.journal(&boot(), "/opt/tt", &["promote"]);
    fs::write(&bed.arms.journal, "{\"boot\":").unwrap();
    assert!(bed.arms.disarm().unwrap().is_empty() && !bed.arms.journal.exists());
}

#[test]
fn an_event_that_somebody_else_armed_is_left_and_said() {
    let bed = Bed::new("");
    fs::write(bed.folder.path().join("uprobe_events"), "p:sdt_tensortier/promote /opt/tt:0x10\n").unwrap();
    let error = bed.arms.arm(Path::new(BINARY)).unwrap_err().to_string();
    assert!(error.contains("perf probe -d 'sdt_tensortier:promote'"), "{error}");
    assert_eq!((bed.removed().len(), bed.events().lines().count()), (0, 1));
}

#[test]
fn what_cannot_be_armed_is_named() {
    let mut bed = Bed::new("");
    let error = bed.arms.arm(Path::new("/bin/true")).unwrap_err().to_string();
    assert!(error.contains("/bin/true: no probe migrate_start"), "{error}");
    bed.arms.perf = PathBuf::from("/nonexistent/perf");
    let error = bed.arms.arm(Path::new(BINARY)).unwrap_err().to_string();
    assert!(error.contains("apt install linux-perf"), "{error}");
    bed.arms.tracefs = PathBuf::from("/nonexistent");
    let error = bed.arms.arm(Path::new(BINARY)).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/uprobe_events"), "{error}");
}
