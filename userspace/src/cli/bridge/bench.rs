//! `bridge bench`: what each path between host memory and GPU delivers here.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use tensortier::{
    host::{Host, NodeKind},
    units::{NodeId, NodeSet, parse_bytes, show_bytes},
};
use tensortier_bridge::{
    device::Gpu,
    measure::{self, Rate},
};

use super::chart;

/// Most bytes of a copy: the host's memory takes twice as much on each node, one node at a time.
const MOST: u64 = 64 << 30;

/// Measures what each path between host memory and the GPU delivers: in, out, and both at once.
///
/// Each node's memory as programs have it (pageable, copied by blocking calls), registered with the driver, and pageable
/// through the bridge's staging ring, which is on the GPU's node. Bytes are copied for real; what is measured is this
/// host as it is now, with whatever else runs on it.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of a copy.
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = size)]
    size: u64,
    /// Copies that each figure is the mean of.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    copies: u32,
    /// The nodes whose memory to measure [default: all but a GPU's own].
    #[arg(long, value_name = "NODES")]
    nodes: Option<NodeSet>,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Draws the figures too, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// What was measured, and on what.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The GPU's name; an emulated one says so.
    pub device: String,
    /// The node that the GPU is attached to, where the kernel says.
    pub gpu_node: Option<NodeId>,
    /// The node of the staging rings.
    pub ring_node: NodeId,
    /// Bytes of a copy.
    pub bytes: u64,
    /// Copies of each figure.
    pub copies: u32,
    /// Bytes per second.
    pub rates: Vec<Rate>,
}

/// Measures and prints.
pub(super) fn run(args: &Args) -> Result<()> {
    let gpu = Gpu::open()?;
    let host = Host::read_without_symbols(Path::new("/"))?;
    let nodes = nodes(&host, args.nodes.as_ref())?;
    let address = gpu.pci_address()?;
    let gpu_node = host.gpus.iter().find(|gpu| gpu.address == address).and_then(|gpu| gpu.node);
    let first = host.top().0.first().copied().context("no node of this host has memory for programs")?;
    let ring_node = gpu_node.unwrap_or(first);
    let ids: Vec<u32> = nodes.iter().map(|node| node.0).collect();
    let rates = measure::paths(&gpu, &ids, ring_node.0, args.size, args.copies as usize)?;
    let device = gpu.name().to_owned();
    let report = Report { device, gpu_node, ring_node, bytes: args.size, copies: args.copies, rates };
    if let Some(path) = &args.plot {
        fs::write(path, chart::svg(&report)?)
            .with_context(|| format!("cannot write the plot to {}", path.display()))?;
    }
    let mut out = io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        false => write!(out, "{}", text(&report))?,
    }
    ensure!(report.rates.iter().any(|rate| rate.error.is_none()), "no path could be measured; each says why above");
    Ok(())
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if (1 << 16..=MOST).contains(&bytes) { Ok(bytes) } else { Err("must be 64KiB to 64GiB".to_owned()) }
}

/// The nodes asked for, or those with memory for programs. A GPU's own memory is no host memory, whoever asks.
fn nodes(host: &Host, asked: Option<&NodeSet>) -> Result<Vec<NodeId>> {
    let Some(asked) = asked else { return Ok(host.tier_nodes().collect()) };
    for node in &asked.0 {
        let kind = host.nodes.get(node).map_or(NodeKind::Empty, |node| node.kind);
        ensure!(kind != NodeKind::Empty, "--nodes: node {node} has no memory here; `tensortier topo` lists the nodes");
        ensure!(kind != NodeKind::Gpu, "--nodes: node {node} is a GPU's own memory; leave it out");
    }
    Ok(asked.0.iter().copied().collect())
}

fn text(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["node", "path", "to GPU GB/s", "from GPU GB/s", "both at once GB/s", ""]);
    for rate in &report.rates {
        let shown = |value: f64| if value.is_finite() { format!("{:.2}", value / 1e9) } else { "-".to_owned() };
        let far = report.gpu_node.is_some_and(|node| node.0 != rate.node);
        let note = match &rate.error {
            Some(error) => error.clone(),
            None if far => "not the GPU's node".to_owned(),
            None => String::new(),
        };
        table.add_row([
            rate.node.to_string(),
            rate.path.to_owned(),
            shown(rate.h2d),
            shown(rate.d2h),
            rate.both.map_or("-".to_owned(), shown),
            note,
        ]);
    }
    let near = report.gpu_node.map_or("node not known".to_owned(), |node| format!("node {node}"));
    format!(
        "{} ({near}), copies of {}, {} for each figure\n\n{table}\n",
        report.device,
        show_bytes(report.bytes),
        report.copies
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn recorded(name: &str) -> Host {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/host").join(name);
        Host::read_without_symbols(&root).unwrap()
    }

    #[test]
    fn nodes_are_those_with_memory_and_sparse_ids_are_kept() {
        let host = recorded("sparse-7.3");
        assert_eq!(nodes(&host, None).unwrap(), [NodeId(0), NodeId(2)]);
        assert_eq!(nodes(&host, Some(&"2".parse().unwrap())).unwrap(), [NodeId(2)]);
        let absent = nodes(&host, Some(&"0-1".parse().unwrap())).unwrap_err().to_string();
        assert!(absent.contains("node 1") && absent.contains("topo"), "{absent}");
    }

    #[test]
    fn a_gpus_own_memory_is_no_host_memory() {
        let mut host = recorded("sparse-7.3");
        host.nodes.get_mut(&NodeId(2)).unwrap().kind = NodeKind::Gpu;
        let refused = nodes(&host, Some(&"2".parse().unwrap())).unwrap_err().to_string();
        assert!(refused.contains("GPU's own memory"), "{refused}");
    }

    #[test]
    fn a_path_without_rates_says_why_and_a_far_node_is_named() {
        let rate = |node, error: Option<&str>| Rate {
            path: "registered",
            node,
            h2d: if error.is_some() { f64::NAN } else { 2.5e9 },
            d2h: f64::NAN,
            both: None,
            error: error.map(str::to_owned),
        };
        let report = Report {
            device: "a GPU".into(),
            gpu_node: Some(NodeId(0)),
            ring_node: NodeId(0),
            bytes: 1 << 20,
            copies: 1,
            rates: vec![rate(0, None), rate(2, None), rate(3, Some("node 3 is movable"))],
        };
        let text = text(&report);
        let line = |start: &str| text.lines().find(|line| line.trim_start().starts_with(start)).unwrap().to_owned();
        assert!(line("0").contains("2.50") && !line("0").contains("not the GPU's"), "{text}");
        assert!(line("2").contains("not the GPU's node"), "{text}");
        assert!(line("3").contains("node 3 is movable"), "{text}");
        let drawn = chart::svg(&report).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("a GPU"), "{drawn}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rates"][2]["h2d"], serde_json::Value::Null);
    }
}
