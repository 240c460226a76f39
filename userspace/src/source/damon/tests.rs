//! Schemes on trees as kernels make them. What the kernel does with a write is not here: a state stays.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Duration,
};

use super::{
    Grid, Intervals, Target,
    layout::SPARES,
    movers::{Gain, Movers, Round, Work},
    owner::Owner,
    schemes::{Action, Scheme, Stats},
    sysfs::Sysfs,
};
use crate::units::{BLOCK, NodeId, Pid, Range};

/// The files of a scheme with three filters on 6.12, all that may be written.
const SCHEME: [&str; 30] = [
    "action",
    "target_nid",
    "access_pattern/sz/min",
    "access_pattern/sz/max",
    "access_pattern/nr_accesses/min",
    "access_pattern/nr_accesses/max",
    "access_pattern/age/min",
    "access_pattern/age/max",
    "quotas/ms",
    "quotas/bytes",
    "quotas/reset_interval_ms",
    "quotas/weights/sz_permil",
    "quotas/weights/nr_accesses_permil",
    "quotas/weights/age_permil",
    "filters/nr_filters",
    "filters/0/type",
    "filters/0/matching",
    "filters/0/memcg_path",
    "filters/1/type",
    "filters/1/matching",
    "filters/1/memcg_path",
    "filters/2/type",
    "filters/2/matching",
    "filters/2/memcg_path",
    "stats/nr_tried",
    "stats/sz_tried",
    "stats/nr_applied",
    "stats/sz_applied",
    "stats/qt_exceeds",
    "apply_interval_us",
];

struct Tree(tempfile::TempDir);

impl Tree {
    /// `kdamonds` kdamonds with a context and a scheme each, as a kernel that has `files` of [`SCHEME`] shows them.
    fn new(kdamonds: usize, ops: &str, has: impl Fn(&str) -> bool) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.put("kdamonds/nr_kdamonds", "0");
        for number in 0..kdamonds {
            let at = |file: &str| format!("kdamonds/{number}/{file}");
            tree.put(&at("state"), "off");
            tree.put(&at("pid"), &(77 + number).to_string());
            tree.put(&at("contexts/nr_contexts"), "0");
            let context = |file: &str| at(&format!("contexts/0/{file}"));
            tree.put(&context("avail_operations"), ops);
            for file in ["operations", "schemes/nr_schemes", "targets/nr_targets"] {
                tree.put(&context(file), "0");
            }
            for file in
                ["intervals/sample_us", "intervals/aggr_us", "intervals/update_us", "nr_regions/min", "nr_regions/max"]
            {
                tree.put(&context(&format!("monitoring_attrs/{file}")), "0");
            }
            for target in 0..=SPARES {
                let of = |file: &str| context(&format!("targets/{target}/{file}"));
                tree.put(&of("pid_target"), "0");
                tree.put(&of("regions/nr_regions"), "0");
                for region in 0..8 {
                    ["start", "end"].iter().for_each(|file| tree.put(&of(&format!("regions/{region}/{file}")), "0"));
                }
            }
            for file in SCHEME.into_iter().filter(|file| has(file)) {
                tree.put(&context(&format!("schemes/0/{file}")), "0");
            }
        }
        tree
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.0.path().join(path)).unwrap()
    }

    fn files(&self) -> BTreeSet<PathBuf> {
        fn below(folder: &Path, found: &mut BTreeSet<PathBuf>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { below(&path, found) } else { found.extend([path]) }
            }
        }
        let mut found = BTreeSet::new();
        below(self.0.path(), &mut found);
        found
    }

    fn open(&self) -> Sysfs {
        Sysfs::open(self.0.path(), None, &[NodeId(0), NodeId(2)]).unwrap()
    }
}

#[test]
fn kernels_whose_schemes_do_not_migrate_are_refused_with_the_floor_and_monitor_on() {
    let old = |ops, has: fn(&str) -> bool| {
        let tree = Tree::new(1, ops, has);
        let sysfs = tree.open();
        assert!(sysfs.movers.is_empty());
        assert_eq!(
            (tree.text("kdamonds/nr_kdamonds"), tree.text("kdamonds/0/contexts/0/operations")),
            ("1".into(), "vaddr".into())
        );
        assert_eq!(tree.text("kdamonds/0/contexts/0/schemes/nr_schemes"), "0");
        sysfs.no_movers.unwrap().to_string()
    };
    // 6.1 has neither filters nor a target, 6.6 no target.
    let said = old("vaddr\npaddr\n", |file| file != "target_nid" && !file.starts_with("filters"));
    assert!(said.contains("target_nid") && said.contains("6.11") && said.contains("CONFIG_DAMON_PADDR"), "{said}");
    assert!(old("vaddr\npaddr\n", |file| file != "target_nid").contains("6.11"));
    let said = old("vaddr\n", |_| true);
    assert!(said.contains("no paddr"), "{said}");
}

#[test]
fn nothing_is_made_where_nothing_is_to_migrate() {
    let tree = Tree::new(1, "fvaddr\n", |_| true);
    let sysfs = Sysfs::open(tree.0.path(), None, &[]).unwrap();
    assert!(sysfs.movers.is_empty() && sysfs.no_movers.is_none());
    assert_eq!(tree.text("kdamonds/nr_kdamonds"), "1");
}

fn work(action: Action, bytes: u64) -> Work {
    let (node, target) = if action == Action::MigrateHot { (2, 0) } else { (0, 2) };
    let scheme = Scheme {
        job: 5,
        group: "/train".into(),
        file_pages: false,
        action,
        target: NodeId(target),
        accesses: (1, 20),
        age: 3,
        bytes,
        time: Duration::from_millis(200),
    };
    let intervals = Intervals { sampling: Duration::from_millis(50), aggregation: Duration::from_secs(1) };
    let ranges = vec![Range::new(0, 4 << 20)];
    Work { node: NodeId(node), ranges, intervals, max_regions: 100, schemes: vec![scheme] }
}

struct Playing {
    tree: Tree,
    sysfs: Sysfs,
    owner: Owner,
    movers: Movers,
}

impl Playing {
    fn new() -> Self {
        let tree = Tree::new(3, "vaddr\nfvaddr\npaddr\n", |_| true);
        let owner = Owner::take(tree.0.path(), &tree.0.path().join("journal"), 3).unwrap();
        let sysfs = tree.open();
        Self { tree, sysfs, owner, movers: Movers::default() }
    }

    /// A round after which the kdamond of node 2 is as it was; gives the command that it got.
    fn step(&mut self, works: Vec<Work>) -> (Round, String) {
        let round = self.movers.step(&mut self.sysfs.movers, &mut self.owner, works, &AtomicBool::new(false));
        assert!(round.failed.is_empty(), "{:?}", round.failed);
        let command = self.tree.text("kdamonds/2/state");
        if command != "off" {
            self.tree.put("kdamonds/2/state", "on");
        }
        (round, command)
    }

    fn scheme(&self, file: &str) -> String {
        self.tree.text(&format!("kdamonds/2/contexts/0/schemes/0/{file}"))
    }
}

#[test]
fn schemes_are_started_counted_committed_and_ended() {
    let mut playing = Playing::new();
    assert_eq!(playing.tree.text("kdamonds/nr_kdamonds"), "3");
    let files = playing.tree.files();
    let (round, command) = playing.step(vec![work(Action::MigrateHot, 8 << 20)]);
    assert_eq!((round.kdamonds, command.as_str()), ([(NodeId(2), 79)].into(), "on"));
    assert_eq!((playing.scheme("action"), playing.scheme("target_nid")), ("migrate_hot".into(), "0".into()));
    assert_eq!(
        (playing.scheme("quotas/bytes"), playing.scheme("access_pattern/sz/min")),
        ((8 << 20).to_string(), "0".into())
    );
    assert_eq!((playing.scheme("filters/0/type"), playing.scheme("filters/0/matching")), ("memcg".into(), "N".into()));
    assert_eq!(
        (playing.scheme("filters/0/memcg_path"), playing.scheme("filters/1/type")),
        ("/train".into(), "anon".into())
    );
    assert_eq!(playing.scheme("filters/nr_filters"), "2");
    assert_eq!(playing.tree.text("kdamonds/2/contexts/0/operations"), "paddr");
    assert!(playing.tree.text("journal").contains("\"2\":79"), "{}", playing.tree.text("journal"));

    playing.tree.put("kdamonds/2/contexts/0/schemes/0/stats/sz_tried", "12288\n");
    playing.tree.put("kdamonds/2/contexts/0/schemes/0/stats/sz_applied", "8192\n");
    let (round, command) = playing.step(vec![work(Action::MigrateHot, 8 << 20)]);
    let stats = Stats { tried: 12288, applied: 8192, quota_exceeded: 0 };
    let gain = Gain { job: 5, from: NodeId(2), to: NodeId(0), action: Action::MigrateHot, stats };
    assert_eq!((round.gains, command.as_str()), (vec![gain], "update_schemes_stats"));

    // At rest it fits no region; the quota is no limit at 0.
    let (round, command) = playing.step(vec![work(Action::MigrateHot, 0)]);
    assert_eq!((round.gains, command.as_str()), (Vec::new(), "commit"));
    assert_eq!(
        (playing.scheme("quotas/bytes"), playing.scheme("access_pattern/sz/min")),
        ("1".into(), u64::MAX.to_string())
    );

    playing.tree.put("kdamonds/2/contexts/0/schemes/0/stats/sz_applied", "12288\n");
    let (round, command) = playing.step(Vec::new());
    assert_eq!((round.gains[0].stats.applied, command.as_str()), (4096, "update_schemes_stats"), "what it did last");
    assert!(round.kdamonds.is_empty());
    assert_eq!(playing.tree.files(), files, "no file but the kernel's was written");
    playing.sysfs.remove().unwrap();
    assert_eq!(playing.tree.text("kdamonds/nr_kdamonds"), "0");
}

#[test]
fn another_scheme_is_another_start_and_cold_pages_in_use_stay() {
    let mut playing = Playing::new();
    playing.step(vec![work(Action::MigrateHot, 8 << 20)]);
    let mut other = work(Action::MigrateHot, 8 << 20);
    other.schemes[0].action = Action::MigrateCold;
    let (_, command) = playing.step(vec![other]);
    assert_eq!((command.as_str(), playing.scheme("action")), ("on", "migrate_cold".into()));
    assert_eq!((playing.scheme("filters/2/type"), playing.scheme("filters/2/matching")), ("young".into(), "Y".into()));
}

#[test]
fn a_kdamond_that_is_gone_is_started_anew_and_the_end_interrupts_a_round() {
    let mut playing = Playing::new();
    playing.step(vec![work(Action::MigrateHot, 8 << 20)]);
    playing.tree.put("kdamonds/2/state", "off");
    assert_eq!(playing.step(vec![work(Action::MigrateHot, 8 << 20)]).1, "on");
    let works = vec![work(Action::MigrateCold, 8 << 20)];
    let stopped = AtomicBool::new(true);
    playing.movers.step(&mut playing.sysfs.movers, &mut playing.owner, works, &stopped);
    assert_eq!(playing.tree.text("kdamonds/1/state"), "off");
}

#[test]
fn regions_that_stand_in_the_files_are_not_written_again() {
    let tree = Tree::new(1, "fvaddr\n", |_| true);
    let mut monitor = tree.open().monitor;
    let intervals = |ms| Intervals { sampling: Duration::from_millis(ms), aggregation: Duration::from_secs(1) };
    let start = |region: u32| format!("kdamonds/0/contexts/0/targets/0/regions/{region}/start");
    let grid = |blocks: &[(u64, u64)]| {
        let ranges = blocks.iter().map(|(start, end)| Range::new(start * BLOCK, end * BLOCK)).collect();
        Grid::plan(&[Target { pid: Some(Pid(7)), ranges }], 100)
    };
    monitor.configure(&grid(&[(0, 2), (8, 9)]), &intervals(50)).unwrap();
    let written = |tree: &Tree| [0, 1, 2].map(|region| tree.text(&start(region)));
    assert_eq!(written(&tree), [0, BLOCK, 8 * BLOCK].map(|address| address.to_string()));

    // What is written again loses the mark.
    let mark = |tree: &Tree| (0..3).for_each(|region| tree.put(&start(region), "mark"));
    mark(&tree);
    monitor.configure(&grid(&[(0, 2), (8, 9)]), &intervals(100)).unwrap();
    assert_eq!(written(&tree), ["mark"; 3]);
    assert_eq!(tree.text("kdamonds/0/contexts/0/monitoring_attrs/intervals/sample_us"), "100000");
    // What is more goes into an empty target; what is gone takes its target's files along, and the rest takes their place.
    monitor.configure(&grid(&[(0, 2), (8, 10)]), &intervals(100)).unwrap();
    let more = |tree: &Tree| tree.text("kdamonds/0/contexts/0/targets/1/regions/0/start");
    assert_eq!((written(&tree), more(&tree)), (["mark"; 3].map(String::from), (9 * BLOCK).to_string()));
    monitor.configure(&grid(&[(0, 2)]), &intervals(100)).unwrap();
    assert_eq!(written(&tree), ["0".into(), BLOCK.to_string(), "mark".into()]);
    assert_eq!(tree.text("kdamonds/0/contexts/0/targets/nr_targets"), (1 + SPARES).to_string());
}
