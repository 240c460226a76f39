//! The table of one kernel's cells, and the bars that hold the agent against its peers.
//!
//! | bar | of |
//! |---|---|
//! | share ≥ 0.95 of the oracle's | every workload |
//! | share ≥ the best peer's less 1 point | every workload |
//! | CPU of agent and kdamond ≤ half of what DAMOS's kdamonds use | every workload |
//! | moved ≤ 5 % of the job's bytes a minute, time of a step ≤ 1.02 of that without the agent | the sweep |
//! | moved ≤ the kernel's, where the kernel's share is no more than a point behind | the others |
//! | no word damaged, under any system | every workload |
//!
//! A cell that is missing fails the bars that need it.

use std::collections::BTreeMap;

use comfy_table::{Table, presets};

use super::{Cell, System, Workload};
use crate::bench::{Bench, Op};

const MIB: f64 = (1 << 20) as f64;

/// A cell, and what is to be known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// What was seen.
    pub cell: Cell,
    /// The agent's policy, and whether this is a long second run, since a peer moved nothing in the first.
    pub note: Option<String>,
}

/// The cells of one kernel.
pub type Cells = BTreeMap<(Workload, System), Seen>;

/// Holds the agent's cell of a workload against the others, behind `prefix`. Nothing where there is no agent's cell.
pub fn bars(bench: &mut Bench, prefix: &str, workload: Workload, cells: &Cells) {
    let cell = |system| cells.get(&(workload, system)).map(|seen| &seen.cell);
    let Some(agent) = cell(System::Agent) else { return };
    let mut bar = |name: &str, value: f64, op: Op, at: f64| bench.bar(&format!("{prefix}.{name}"), value, op, at);
    bar("share_over_oracle", agent.share / agent.oracle, Op::AtLeast, 0.95);
    // NaN where one is missing: the best is not known then.
    let best = System::PEERS.iter().map(|peer| cell(*peer).map_or(f64::NAN, |cell| cell.share));
    let best = best.reduce(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }).unwrap_or(f64::NAN);
    bar("points_over_best_peer", (agent.share - best) * 100.0, Op::AtLeast, -1.0);
    let damos = cell(System::Damos).map_or(f64::NAN, |damos| damos.watching_cpu());
    bar("cpu_over_damos", agent.watching_cpu() / damos, Op::AtMost, 0.5);
    if workload == Workload::Sweep {
        bar("moved_percent_of_job_a_minute", agent.moved_a_minute() * 100.0, Op::AtMost, 5.0);
        bar("time_over_alone", agent.slowdown, Op::AtMost, 1.02);
    } else {
        match cell(System::Kernel) {
            None => bar("moved_mib", f64::NAN, Op::AtMost, 1.0),
            Some(kernel) if kernel.share >= agent.share - 0.01 => {
                // In all: a second run of a peer and of the agent is longer, which is to our disadvantage.
                let mib = |cell: &Cell| cell.moved as f64 / MIB;
                bar("moved_mib", mib(agent), Op::AtMost, mib(kernel));
            }
            // It moves more and gains more.
            Some(_) => {}
        }
    }
    let intact = System::ALL.iter().filter_map(|system| cell(*system)).all(|cell| cell.intact);
    bar("checksums_intact", f64::from(intact), Op::Exactly, 1.0);
}

/// All cells as a Markdown table.
pub fn table(cells: &Cells) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header([
        "workload",
        "system",
        "share",
        "oracle",
        "moved MiB/min",
        "of that up / down",
        "time over alone",
        "stall p99 (alone), longest ms",
        "CPU % agent / kdamond / kswapd",
        "job in the kernel %",
        "intact",
    ]);
    for ((workload, system), Seen { cell, note }) in cells {
        let a_minute = |bytes: u64| format!("{:.0}", bytes as f64 / MIB / cell.seconds * 60.0);
        let percent = |name: &str| cell.cpu.get(name).map_or(0.0, |cpu| cpu / cell.seconds * 100.0);
        let ms = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
        table.add_row([
            workload.to_string(),
            note.as_ref().map_or(system.to_string(), |note| format!("{system} ({note})")),
            format!("{:.3}", cell.share),
            format!("{:.3}", cell.oracle),
            a_minute(cell.moved),
            cell.by_account.map_or("-".into(), |(up, down)| format!("{} / {}", a_minute(up), a_minute(down))),
            format!("{:.2}", cell.slowdown),
            format!("{} ({}), {}", ms(cell.stall_ns.0), ms(cell.stall_ns.2), ms(cell.stall_ns.1)),
            format!("{:.1} / {:.1} / {:.1}", percent("agent"), percent("kdamond"), percent("kswapd")),
            format!("{:.1}", percent("job_system")),
            if cell.intact { "yes" } else { "NO" }.into(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bench::{BenchArgs, Report};

    fn cell(share: f64, moved: u64, cpu: &[(&str, f64)]) -> Seen {
        let cell = Cell {
            share,
            oracle: 0.9,
            curve: Vec::new(),
            best: Vec::new(),
            seconds: 60.0,
            footprint: 100 << 20,
            moved: moved << 20,
            by_account: None,
            counters: BTreeMap::new(),
            cpu: cpu.iter().map(|(name, cpu)| ((*name).to_owned(), *cpu)).collect(),
            slowdown: 1.01,
            stall_ns: (1, 2, 1),
            step_ns: 5.0,
            intact: true,
            setup: String::new(),
        };
        Seen { cell, note: None }
    }

    fn judged(workload: Workload, cells: [Seen; 4]) -> BTreeMap<String, bool> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        let mut bench = Bench::new("peers", &BenchArgs { json: Some(path.clone()) });
        let cells = System::ALL.into_iter().map(|system| (workload, system)).zip(cells).collect();
        bars(&mut bench, "w", workload, &cells);
        bench.finish().unwrap();
        Report::read(&path).unwrap().bars.into_iter().map(|bar| (bar.name, bar.holds)).collect()
    }

    #[test]
    fn the_agent_is_held_against_the_oracle_the_best_peer_and_what_they_cost() {
        let damos = cell(0.88, 90, &[("kdamond", 20.0)]);
        let kernel = cell(0.5, 7, &[]);
        let agent = cell(0.875, 40, &[("agent", 2.0), ("kdamond", 8.0)]);
        let bars = judged(Workload::Mixed, [cell(0.1, 0, &[]), kernel.clone(), damos.clone(), agent]);
        assert!(bars.values().all(|holds| *holds) && bars.len() == 4, "the kernel's share is far behind: {bars:?}");
        let agent = cell(0.5, 40, &[("agent", 3.0), ("kdamond", 8.0)]);
        let bars = judged(Workload::Mixed, [cell(0.1, 0, &[]), kernel, damos, agent]);
        let missed: Vec<_> = bars.iter().filter(|(_, holds)| !**holds).map(|(name, _)| name.as_str()).collect();
        let all = ["w.cpu_over_damos", "w.moved_mib", "w.points_over_best_peer", "w.share_over_oracle"];
        assert_eq!(missed, all);
    }

    #[test]
    fn a_system_that_moved_before_the_run_has_moved() {
        let mut early = cell(0.9, 0, &[]).cell;
        assert!(!early.moved_at_all());
        early.by_account = Some((1 << 20, 0));
        assert!(early.moved_at_all());
    }

    #[test]
    fn on_the_sweep_moving_counts_by_itself() {
        let with = |moved| {
            let agent = cell(0.9, moved, &[("agent", 1.0)]);
            let bars =
                judged(Workload::Sweep, [cell(0.9, 0, &[]), agent.clone(), cell(0.9, 50, &[("kdamond", 9.0)]), agent]);
            bars["w.moved_percent_of_job_a_minute"]
        };
        assert!(with(5) && !with(6));
    }
}
