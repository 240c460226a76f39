//! The summary as text: what a reader wants first stands first, and what did not happen is left out.

use std::{
    collections::BTreeMap,
    fmt::{Formatter, Result, Write},
};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::summary::{Account, Job, Kernel, Left, OnNode, SchemeMoved, Summary};
use crate::units::{NodeId, show_bytes};

const COLUMNS: usize = 96;

pub(super) fn summary(summary: &Account, f: &mut Formatter<'_>) -> Result {
    job(&summary.job, f)?;
    for text in &summary.notes {
        note(f, "", text)?;
    }
    summary.watched.as_ref().map_or(Ok(()), |watched| watched_job(watched, f))
}

/// The account of a job that was watched for a while.
pub(super) fn left(left: &Left, f: &mut Formatter<'_>) -> Result {
    write!(f, "{} was watched for {:.1} s", left.name, left.seconds)?;
    for text in &left.notes {
        note(f, "", text)?;
    }
    watched_job(&left.watched, f)
}

fn job(job: &Job, f: &mut Formatter<'_>) -> Result {
    let mut command = job.command.join(" ");
    if let Some((cut, _)) = command.char_indices().nth(50) {
        command.truncate(cut);
        command.push('…');
    }
    write!(f, "{command} ran {:.1} s, ", job.seconds)?;
    match &job.signal {
        Some(signal) => write!(f, "ended by {signal}"),
        None => write!(f, "exit code {}", job.exit_code),
    }
}

fn watched_job(watched: &Summary, f: &mut Formatter<'_>) -> Result {
    if watched.unmovable_bytes() > 0 {
        let each = watched.nodes.iter().filter(|(_, on)| on.unmovable_bytes > 0);
        let each = each.map(|(node, on)| format!("{} on node {node}", show_bytes(on.unmovable_bytes)));
        note(f, "unmovable", &format!("{} (pinned; `run --place` chooses their node at start)", list(each)))?;
    }
    write!(f, "\n{}", nodes(&watched.nodes))?;
    for (at, moved) in watched.moved.iter().enumerate() {
        let label = if at == 0 { "moved" } else { "" };
        let (from, to, reason, bytes) = (moved.from, moved.to, name(&moved.reason), show_bytes(moved.bytes));
        note(f, label, &format!("node {from} to {to}, {reason}: {bytes} ({} pages)", moved.pages))?;
    }
    for (at, moved) in watched.schemes.iter().enumerate() {
        let label = if at == 0 { "by DAMON" } else { "" };
        let SchemeMoved { action, from, to, tried_bytes, pages, bytes } = moved;
        let (bytes, tried) = (show_bytes(*bytes), show_bytes(*tried_bytes));
        note(f, label, &format!("node {from} to {to}, {action}: {bytes} ({pages} pages) in {tried} of regions tried"))?;
    }
    if watched.moved.is_empty() && watched.schemes.is_empty() {
        note(f, "moved", "nothing")?;
    }
    note(f, "progress", &watched.progress.to_string())?;
    note(f, "steps", &watched.step.as_ref().map(ToString::to_string).unwrap_or_default())?;
    let failed = watched.failed_pages.iter().map(|(cause, pages)| format!("{} {pages} pages", name(cause)));
    note(f, "could not", &list(failed))?;
    let held = watched.held_back_bytes.iter().map(|(cause, bytes)| format!("{} {}", name(cause), show_bytes(*bytes)));
    note(f, "held back", &list(held))?;
    note(f, "stalls", &stalls(watched))?;
    note(f, "kernel", &kernel(&watched.kernel))?;
    note(
        f,
        "sources",
        &list(watched.sources.iter().filter(|source| source.unusable.is_none()).map(|source| &source.name)),
    )?;
    for source in &watched.sources {
        if let Some(why) = &source.unusable {
            note(f, "not used", &format!("{}: {why}", source.name))?;
        }
    }
    let lost = watched.events_lost.iter().map(|(source, count)| format!("{source} {count}"));
    note(f, "lost", &list(lost))?;
    let cost = &watched.cost;
    note(
        f,
        "cost",
        &format!(
            "agent {:.2} s of CPU, {:.2} s of it moving pages, {} resident; kdamond {:.2} s of CPU; eBPF maps {}",
            cost.agent_cpu_seconds,
            cost.moving_cpu_seconds,
            show_bytes(cost.agent_rss_bytes),
            cost.kdamond_cpu_seconds,
            show_bytes(cost.bpf_map_bytes)
        ),
    )
}

fn nodes(nodes: &BTreeMap<NodeId, OnNode>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["  node", "tier", "resident", "hot", "unmovable", "faults"]);
    for (node, on) in nodes {
        let tier = on.tier.map_or_else(|| "-".to_owned(), |tier| tier.to_string());
        table.add_row([
            format!("  {node}"),
            format!("{tier} {}", on.kind),
            show_bytes(on.resident_bytes),
            show_bytes(on.hot_bytes),
            show_bytes(on.unmovable_bytes),
            list(on.faults.iter().map(|(kind, count)| format!("{} {count}", words(kind)))),
        ]);
    }
    for column in 2..5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn stalls(watched: &Summary) -> String {
    let mut parts = Vec::new();
    if watched.longest_stall_seconds > 0.0 {
        parts.push(format!("longest {:.1} ms", watched.longest_stall_seconds * 1e3));
    }
    if watched.pingpong_pages > 0 {
        parts.push(format!("{} pages moved back soon after", watched.pingpong_pages));
    }
    let throttled = watched.throttled_seconds.iter().filter(|(_, seconds)| **seconds > 0.0);
    parts.extend(throttled.map(|(cause, seconds)| format!("moves waited {seconds:.1} s for {}", words(cause))));
    list(parts)
}

/// The kernel's own account: what it moved for the agent and what for others.
fn kernel(kernel: &Kernel) -> String {
    let moved = kernel.migrated.iter().filter(|(_, pages)| pages.succeeded + pages.failed > 0);
    let mut parts: Vec<_> = moved
        .map(|(reason, pages)| {
            let ours = if pages.ours > 0 { format!(", ours {}", pages.ours) } else { String::new() };
            let failed = if pages.failed > 0 { format!(", failed {}", pages.failed) } else { String::new() };
            format!("{reason} {} pages{ours}{failed}", pages.succeeded)
        })
        .collect();
    parts.extend(kernel.pgmigrate_success.map(|pages| format!("pgmigrate_success +{pages}")));
    parts.join("; ")
}

/// One labelled line, wrapped; nothing where there is nothing to say.
fn note(f: &mut Formatter<'_>, label: &str, text: &str) -> Result {
    if text.is_empty() {
        return Ok(());
    }
    let indent = 13;
    let mut width = indent;
    write!(f, "\n  {label:<11}")?;
    for (at, word) in text.split_whitespace().enumerate() {
        let length = word.chars().count();
        if at > 0 && width + 1 + length > COLUMNS {
            write!(f, "\n{:indent$}", "")?;
            width = indent;
        } else if at > 0 {
            f.write_char(' ')?;
            width += 1;
        }
        f.write_str(word)?;
        width += length;
    }
    Ok(())
}

fn list<T: ToString>(parts: impl IntoIterator<Item = T>) -> String {
    parts.into_iter().map(|part| part.to_string()).collect::<Vec<_>>().join(", ")
}

/// The name that the JSON has, as words.
fn name(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(words)).unwrap_or_default()
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        migrate::Cause,
        observe::{
            progress::{Progress, Rate, Verdict, Work},
            summary::{Cost, LearnedStep, Migrated, Moved, Source},
        },
        policy::{HeldBack, Reason},
    };

    fn full() -> Summary {
        let on = |tier, kind: &str, resident_bytes, hot_bytes, unmovable_bytes| OnNode {
            tier: Some(tier),
            kind: kind.into(),
            resident_bytes,
            hot_bytes,
            unmovable_bytes,
            faults: [("first_touch".into(), 123_456), ("major".into(), 7)].into(),
        };
        let (dram, cxl) = (NodeId(0), NodeId(2));
        Summary {
            nodes: [(dram, on(0, "DRAM", 3 << 30, 2 << 30, 0)), (cxl, on(1, "CXL", 9 << 30, 0, 1 << 30))].into(),
            moved: vec![
                Moved { from: cxl, to: dram, reason: Reason::Hot, pages: 524_288, bytes: 2 << 30 },
                Moved { from: dram, to: cxl, reason: Reason::MakeRoom, pages: 512, bytes: 2 << 20 },
            ],
            schemes: vec![SchemeMoved {
                action: "migrate_hot".into(),
                from: cxl,
                to: dram,
                tried_bytes: 6 << 20,
                pages: 512,
                bytes: 2 << 20,
            }],
            failed_pages: [(Cause::Busy, 12), (Cause::NoMemory, 3)].into(),
            held_back_bytes: [(HeldBack::PingPong, 4 << 20)].into(),
            pingpong_pages: 5,
            longest_stall_seconds: 0.0123,
            throttled_seconds: [("tokens".into(), 1.5)].into(),
            events_lost: [("faults".into(), 0), ("damon".into(), 2)].into(),
            progress: Progress {
                work: Some(Work::Instructions),
                before: Some(Rate { per_second: 12.34e9, low: 12e9, high: 13e9 }),
                after: Some(Rate { per_second: 24.68e9, low: 24e9, high: 25e9 }),
                verdict: Some(Verdict::Faster),
                step_time_ratio: Some(0.5),
                ..Progress::default()
            },
            step: Some(LearnedStep { seconds: 12.34, confidence: 0.876, number: 5, uses: 1.96, phases: vec![0.1; 10] }),
            sources: vec![
                Source { name: "damon fvaddr".into(), unusable: None },
                Source { name: "page faults".into(), unusable: None },
                Source { name: "vma iterator".into(), unusable: Some("the kernel has no BTF; ".repeat(8)) },
            ],
            cost: Cost { agent_cpu_seconds: 1.25, agent_rss_bytes: 32 << 20, ..Cost::default() },
            kernel: Kernel {
                migrated: [
                    ("syscall_or_cpuset".into(), Migrated { succeeded: 524_800, failed: 15, ours: 524_800 }),
                    ("compaction".into(), Migrated::default()),
                ]
                .into(),
                pgmigrate_success: Some(524_900),
            },
        }
    }

    fn account(watched: Option<Summary>) -> Account {
        let job = Job { command: vec!["python".into(), "train.py".into()], seconds: 12.34, ..Job::default() };
        Account { job, watched, notes: vec!["a word first".into()] }
    }

    #[test]
    fn what_matters_first_stands_first_and_lines_fit() {
        let text = account(Some(full())).to_string();
        let order = [
            "python train.py ran 12.3 s, exit code 0",
            "a word first",
            "unmovable  1.0 GiB on node 2",
            "2     1 CXL",
            "node 2 to 0, hot: 2.0 GiB (524288 pages)",
            "node 0 to 2, make room",
            "by DAMON   node 2 to 0, migrate_hot: 2.0 MiB (512 pages) in 6.0 MiB of regions tried",
            "12.3 G instructions a second before the moves, 24.7 G after them: faster",
            "steps      one every 12.3 s (confidence 0.88), 5 since that is known; a block is used 2.0",
            "times in one, % by tenths: 10 10 10 10 10 10 10 10 10 10",
            "busy 12 pages, no memory 3 pages",
            "ping pong 4.0 MiB",
            "longest 12.3 ms, 5 pages moved back soon after, moves waited 1.5 s for tokens",
            "syscall_or_cpuset 524800 pages, ours 524800, failed 15; pgmigrate_success +524900",
            "damon fvaddr, page faults",
            "vma iterator: the kernel has no BTF",
            "damon 2",
            "agent 1.25 s of CPU",
        ];
        let mut rest = text.as_str();
        for part in order {
            let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is not in its place:\n{text}"));
            rest = &rest[at..];
        }
        assert!(!text.contains("compaction"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100 && line.trim_end() == line), "{text}");
    }

    #[test]
    fn a_job_that_nothing_watched_has_two_lines() {
        assert_eq!(account(None).to_string(), "python train.py ran 12.3 s, exit code 0\n             a word first");
    }
}
