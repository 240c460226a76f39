//! `perf list`: the events of this host that say something of migration.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use tensortier::observe::counters::{Entry, Kind, catalogue};

/// Lists the events that show migration, what their arguments mean, and why some cannot be used here.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Reads a recorded tree instead of this machine.
    #[arg(long, value_name = "FOLDER", default_value = "/", hide = true)]
    root: PathBuf,
}

/// Prints the events.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let entries = catalogue(&args.root);
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&entries)?)?;
        return Ok(());
    }
    let mut kind = None;
    for entry in &entries {
        if kind.replace(entry.kind) != Some(entry.kind) {
            writeln!(out, "{}{}", if entry.kind == Kind::Probe { "" } else { "\n" }, title(entry.kind))?;
        }
        write!(out, "{}", text(entry))?;
    }
    Ok(())
}

fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Probe => "USDT probes of tensortier (perf stat -e EVENT, perf record -e EVENT)",
        Kind::Ebpf => "Pages by reason, summed by an eBPF program (tensortier perf stat)",
        Kind::Tracepoint => "Tracepoints of the kernel (perf stat -e EVENT; batches and regions, not pages)",
        Kind::Vmstat => "Counters of /proc/vmstat and of the nodes (tensortier perf stat)",
        Kind::CxlPmu => "CXL performance units (perf stat -a -e EVENT)",
    }
}

fn text(entry: &Entry) -> String {
    let mut text = format!("  {:<32} {} [{}]\n", entry.event, entry.meaning, entry.whose.word());
    if !entry.arguments.is_empty() {
        let numbered: Vec<String> =
            entry.arguments.iter().zip(1..).map(|(name, number)| format!("arg{number} {name}")).collect();
        text += &format!("  {:<32} {}\n", "", numbered.join(", "));
    }
    if let Some(why) = &entry.unusable {
        text += &format!("  {:<32} not usable: {why}\n", "");
    }
    text
}
