//! `topo`: what this machine is, and what about it should be known.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    path::PathBuf,
};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use tensortier::{
    config::Config,
    host::{self, Finding, Host, Node, Severity},
    units::show_bytes,
};

/// Shows nodes, tiers, CXL devices and DAMON, and what to mend.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// The config whose tiers to show [default: /etc/tensortier/config.toml, where it exists].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Reads a tree recorded by scripts/record-host instead of this machine.
    #[arg(long, value_name = "FOLDER", default_value = "/", hide = true)]
    root: PathBuf,
}

#[derive(Serialize)]
struct Report<'a> {
    host: &'a Host,
    findings: &'a [Finding],
}

/// Prints the host and its findings.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = Config::load(args.config.as_deref())?;
    let mut host = Host::read(&args.root)?;
    // Tiers that cannot be are among the findings; the host itself is still worth seeing.
    let _ = host.configure(&config);
    let findings = host::findings(&host, &config);
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&Report { host: &host, findings: &findings })?)?;
    } else {
        write!(out, "{}", text(&host, &findings))?;
    }
    Ok(())
}

fn text(host: &Host, findings: &[Finding]) -> String {
    let mut text = format!("{}\n\n{}\n", nodes(host), facts(host));
    for finding in findings {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{}", describe(finding));
    }
    text
}

fn nodes(host: &Host) -> Table {
    let mut table = plain_table();
    table.set_header([
        "node",
        "tier",
        "kind",
        "CPUs",
        "total",
        "free",
        "zones",
        "distance to",
        "read ns",
        "read GiB/s",
    ]);
    for node in host.nodes.values() {
        let access = node.access.unwrap_or_default();
        let tier = host.tier_of(node.id).map_or("-".to_owned(), |tier| tier.rank.to_string());
        table.add_row([
            node.id.to_string(),
            tier,
            word(&node.kind),
            if node.cpus.is_empty() { "-".to_owned() } else { node.cpus.len().to_string() },
            show_bytes(node.total_bytes),
            show_bytes(node.free_bytes),
            zones(node),
            distances(node),
            access.read_latency_ns.map_or("-".to_owned(), |ns| ns.to_string()),
            access.read_mib_per_sec.map_or("-".to_owned(), |rate| format!("{:.1}", f64::from(rate) / 1024.0)),
        ]);
    }
    table
}

fn zones(node: &Node) -> String {
    let names: Vec<&str> = node.zones.iter().map(|zone| zone.name.as_str()).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(" ") }
}

fn distances(node: &Node) -> String {
    let shown: Vec<String> = node.distances.iter().map(|(to, distance)| format!("{to}:{distance}")).collect();
    shown.join(" ")
}

fn facts(host: &Host) -> Table {
    let mut table = plain_table();
    let mut fact = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    for tier in &host.tiers {
        fact(&format!("tier {}", tier.rank), format!("node {}, by {}", tier.nodes, word(&tier.source)));
    }
    for node in host.lower().0 {
        if let Some(target) = host.nearest_top(node) {
            fact(&format!("node {node}"), format!("promotes to node {target}"));
        }
    }
    for memory in &host.cxl_memories {
        fact(&format!("CXL {}", memory.name), format!("{} volatile", show_bytes(memory.ram_bytes.unwrap_or(0))));
    }
    for region in &host.cxl_regions {
        let size = region.bytes.map_or("size unknown".to_owned(), show_bytes);
        fact(&format!("CXL {}", region.name), format!("{size}, dax: {}", list(&region.dax)));
    }
    for dax in &host.dax {
        let node = dax.target_node.map_or("no node".to_owned(), |node| format!("node {node}"));
        let size = dax.bytes.map_or("size unknown".to_owned(), show_bytes);
        fact(&dax.name, format!("{size}, {}, {node}", dax.driver.as_deref().unwrap_or("no driver")));
    }
    for gpu in &host.gpus {
        let near = gpu.node.map_or("no node".to_owned(), |node| format!("node {node}"));
        let own = gpu.memory_node.map_or(String::new(), |node| format!(", its memory is node {node}"));
        fact(&format!("GPU {}", gpu.address), format!("near {near}{own}"));
    }
    let ops = match &host.damon.ops {
        _ if !host.damon.sysfs => "not in this kernel".to_owned(),
        Some(ops) => list(&ops.iter().map(ToString::to_string).collect::<Vec<_>>()),
        None => "operations not shown".to_owned(),
    };
    let running = match host.denied.iter().any(|path| path.iter().any(|part| part == "kdamonds")) {
        true => "kept to root".to_owned(),
        false => host.damon.running().count().to_string(),
    };
    fact("DAMON", format!("{ops}; running: {running}"));
    let kernel = &host.kernel;
    let text = |value: &Option<String>| value.clone().unwrap_or("-".to_owned());
    fact("kernel", text(&kernel.release));
    fact("NUMA balancing", kernel.numa_balancing.map_or("-".to_owned(), |mode| mode.to_string()));
    fact("demotion", kernel.demotion.map_or("-".to_owned(), |on| if on { "on" } else { "off" }.to_owned()));
    fact("huge pages", format!("{}, defrag {}", text(&kernel.thp_enabled), text(&kernel.thp_defrag)));
    fact("onlining", text(&kernel.auto_online));
    fact("cgroups", word(&kernel.cgroup));
    table
}

/// A finding for people.
pub(super) fn describe(finding: &Finding) -> String {
    let Finding { id, severity, subject, what, consequence, fix_command } = finding;
    let severity = match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "info",
    };
    let fix = fix_command.as_ref().map(|fix| format!("    fix: {fix}\n")).unwrap_or_default();
    format!("{severity} [{id}] {subject}: {what}\n    {consequence}\n{fix}")
}

/// A value's name as JSON has it, so that the table and `--json` use one word for one thing.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "-".to_owned(),
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}
