//! `tensortier replay`: a recorded job under a placement policy, on modelled tiers and a virtual clock.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::ArgGroup;
use comfy_table::{Table, presets};
use serde::Serialize;
use tensortier::{
    observe::damo,
    units::{parse_bytes, printable, show_bytes},
};
use tensortier_model::{Profiles, TierKind, TierProfile};
use tensortier_replay::{
    baseline,
    cost::Costs,
    generate::{self, Spec},
    policies,
    policy::Policy,
    score::{Case, steps},
    sim::Totals,
    trace,
    workload::Workload,
};

/// The most samples of a trace that are taken: about a gigabyte of them.
const MOST_SAMPLES: u64 = 1 << 25;
/// The most that all regions of a trace may have together, so that sums of them fit: 64 PiB.
const MOST_BYTES: u128 = 1 << 56;
/// What `--policy` takes for every one there is.
const ALL: &str = "all";

/// Replays a recorded job under a placement policy, on modelled tiers.
///
/// Needs no root and no second tier. Costs are what accesses and moves take, one after the other; the time is modelled
/// with both tiers at work at once. `record` writes traces, userspace/replay/src/trace has their format.
#[derive(clap::Args)]
#[command(group = ArgGroup::new("job").required(true).args(["trace", "generate"]))]
pub struct Args {
    /// The trace, or what `damo record` wrote as JSON, deflated or plain.
    trace: Option<PathBuf>,
    /// A made-up job instead: optimizer, fsdp, activations, evaluation, jobs, embedding, experts-uniform, experts-zipf or
    /// rotating.
    #[arg(long, value_name = "NAME", value_parser = known_job)]
    generate: Option<String>,
    /// auto, step, hotness, bandwidth, balance; those of others: first-touch, weighted-interleave, lru-2q, numa-balancing,
    /// tpp, memtis, memtierd-heat, damos-goals, colloid; or all.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = known_policy)]
    policy: String,
    /// DRAM [default: half of the most memory that the job has at once].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    dram: Option<u64>,
    /// The lower tier: asic, fpga, remote, or a file with one [[tier]] of kind cxl, and dram where that differs.
    #[arg(long, value_name = "NAME|FILE", default_value = "asic")]
    profile: String,
    /// Counts from this second on; policies learn before.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    from: u64,
    /// Adds the best fixed set and the offline optimum. They take time and memory with samples and DRAM.
    #[arg(long)]
    optimum: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    job: String,
    seconds: f64,
    regions: usize,
    footprint_bytes: u64,
    dram_bytes: u64,
    profile: String,
    counted_from_s: u64,
    /// Steps as learned from the touches alone, by job.
    steps: Vec<FoundStep>,
    policies: Vec<Line>,
}

#[derive(Serialize)]
struct FoundStep {
    job: u32,
    seconds: f64,
    confidence: f64,
}

#[derive(Serialize)]
struct Line {
    policy: String,
    /// Accesses and moves, one after the other.
    cost_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    over_optimum: Option<f64>,
    /// Modelled time, beside that with all memory in DRAM.
    time_s: f64,
    all_dram_s: f64,
    moved_bytes: u64,
    /// Of the lines accessed.
    dram_share: f64,
}

/// Replays, and prints what it came to.
pub fn run(args: &Args) -> Result<()> {
    let (costs, profile) = costs(&args.profile)?;
    let policies = named(&args.policy, &costs)?;
    let workload = workload(args)?;
    let report = report(args, &workload, &costs, profile, policies)?;
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        writeln!(out, "{}", text(&report))?;
    }
    Ok(())
}

fn workload(args: &Args) -> Result<Workload> {
    if let Some(path) = &args.trace {
        let workload = recorded(path)?;
        let bytes: u128 = workload.regions.iter().map(|region| u128::from(region.bytes)).sum();
        if bytes > MOST_BYTES {
            bail!("{}: regions of {bytes} bytes in all, more than any machine has: it is damaged", path.display());
        }
        return Ok(workload);
    }
    let generator = generate::find(args.generate.as_deref().unwrap_or_default()).context("no trace and no job")?;
    Ok(generator.make(&Spec::default()))
}

/// A recorded job: a trace of ours, or what damo wrote.
fn recorded(path: &Path) -> Result<Workload> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut file = BufReader::new(file);
    let start = file.fill_buf().with_context(|| format!("cannot read {}", path.display()))?;
    if !damo::is_damo(start) {
        return Ok(trace::read_file(path, MOST_SAMPLES)?);
    }
    let name = path.file_name().map(|name| printable(&name.to_string_lossy())).unwrap_or_default();
    damo::read(file, &name, MOST_SAMPLES).with_context(|| path.display().to_string())
}

fn known_job(name: &str) -> Result<String, String> {
    let known = || generate::ALL.map(|generator| generator.name).join(", ");
    generate::find(name).map(|_| name.to_owned()).ok_or_else(|| format!("none is known, but {}", known()))
}

fn known_policy(name: &str) -> Result<String, String> {
    let (costs, _) = costs("asic").map_err(|error| format!("{error:#}"))?;
    named(name, &costs).map(|_| name.to_owned()).map_err(|error| error.to_string())
}

/// Costs with the lower tier of that name or file, and what it is called.
fn costs(profile: &str) -> Result<(Costs, String)> {
    let mut profiles = Profiles::builtin();
    let name = match profile {
        "asic" => "cxl-asic",
        "fpga" => "cxl-fpga",
        "remote" => "cxl-remote-numa",
        file => {
            let path = Path::new(file);
            if !path.exists() {
                bail!("--profile {file}: neither asic, fpga or remote nor a file");
            }
            profiles.extend_from_file(path)?;
            let mut own = Profiles::default();
            own.extend_from_file(path)?;
            let mut lower = own.tiers.iter().filter(|tier| tier.kind == TierKind::Cxl);
            let (Some(TierProfile { name, .. }), None) = (lower.next(), lower.next()) else {
                bail!("--profile {file}: it should have one [[tier]] of kind \"cxl\"");
            };
            return Ok((Costs::new(&profiles, name)?, format!("{name} of {file}")));
        }
    };
    Ok((Costs::new(&profiles, name)?, name.to_owned()))
}

type Maker = Box<dyn FnOnce(usize) -> Box<dyn Policy>>;

/// The policies of that name, to be made for so many regions.
fn named(name: &str, costs: &Costs) -> Result<Vec<Maker>> {
    let names: Vec<String> = (policies::NAMES.iter().map(|name| (*name).to_owned()))
        .chain(baseline::all(costs, 0).iter().map(|policy| slug(policy.name())))
        .collect();
    let wanted: Vec<String> = names.iter().filter(|known| name == ALL || *known == name).cloned().collect();
    if wanted.is_empty() {
        bail!("no policy {name} is known, but {}, {ALL}", names.join(", "));
    }
    let make = |name: String| -> Maker {
        let costs = costs.clone();
        Box::new(move |regions| {
            let ours = policies::find(&name, &costs);
            let theirs = || baseline::all(&costs, regions).into_iter().find(|policy| slug(policy.name()) == name);
            // One of the two lists has it: the names come from them.
            ours.or_else(theirs).unwrap_or_else(|| Box::new(baseline::FirstTouch))
        })
    };
    Ok(wanted.into_iter().map(make).collect())
}

fn slug(name: String) -> String {
    name.to_lowercase().replace(' ', "-")
}

fn report(args: &Args, workload: &Workload, costs: &Costs, profile: String, policies: Vec<Maker>) -> Result<Report> {
    let (footprint, interval) = (workload.footprint(), workload.interval.max(1));
    let dram = args.dram.unwrap_or(footprint / 2);
    let seconds = workload.intervals() as f64 * interval as f64 / 1e9;
    let from = (args.from.saturating_mul(1_000_000_000) / interval) as usize;
    if from >= workload.intervals() {
        bail!("--from {}: {} lasts {seconds:.0} s", args.from, workload.name);
    }
    let case = Case::new(workload, costs, dram, from);
    let best = args.optimum.then(|| case.optimum());
    let line = |policy: String, totals: Totals| Line {
        policy,
        cost_s: totals.cost_ns / 1e9,
        over_optimum: best.map(|best| totals.cost_ns / best.cost_ns),
        time_s: totals.time_ns / 1e9,
        all_dram_s: case.recorded() as f64 / 1e9,
        moved_bytes: totals.moved,
        dram_share: totals.top_share,
    };
    let mut lines: Vec<Line> = policies
        .into_iter()
        .map(|make| {
            let mut policy = make(workload.regions.len());
            line(policy.name(), case.totals(policy.as_mut()))
        })
        .collect();
    if let Some(best) = best {
        lines.push(line("best fixed set".into(), case.best_fixed()));
        lines.push(line("optimum".into(), best));
    }
    let found = steps(workload).into_iter().map(|(job, step)| FoundStep {
        job,
        seconds: step.period as f64 / 1e9,
        confidence: step.confidence,
    });
    Ok(Report {
        job: workload.name.clone(),
        seconds,
        regions: workload.regions.len(),
        footprint_bytes: footprint,
        dram_bytes: dram,
        profile,
        counted_from_s: args.from,
        steps: found.collect(),
        policies: lines,
    })
}

fn text(report: &Report) -> String {
    let Report { job, seconds, regions, footprint_bytes, dram_bytes, profile, .. } = report;
    let (footprint, dram) = (show_bytes(*footprint_bytes), show_bytes(*dram_bytes));
    let mut text =
        format!("{job}: {seconds:.0} s, {regions} regions, {footprint} at most; {dram} of DRAM over {profile}\n");
    for step in &report.steps {
        text += &format!("job {}: a step every {:.1} s, confidence {:.2}\n", step.job, step.seconds, step.confidence);
    }
    let mut table = Table::new();
    let optimum = report.policies.iter().any(|line| line.over_optimum.is_some());
    let header = ["policy", "cost s", "time s", "all in DRAM s", "moved", "DRAM share"].into_iter();
    table.load_style(presets::NOTHING).set_header(header.chain(optimum.then_some("over optimum")));
    for line in &report.policies {
        let cells = [
            line.policy.clone(),
            format!("{:.3}", line.cost_s),
            format!("{:.3}", line.time_s),
            format!("{:.3}", line.all_dram_s),
            show_bytes(line.moved_bytes),
            format!("{:.1} %", 100.0 * line.dram_share),
        ];
        table.add_row(cells.into_iter().chain(line.over_optimum.map(|over| format!("{over:.3}"))));
    }
    text + &table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_found_by_its_name_and_others_are_refused() {
        let (costs, _) = costs("asic").expect("built in");
        assert_eq!(named(ALL, &costs).expect("known").len(), 14);
        for name in ["auto", "lru-2q", "numa-balancing", "memtierd-heat", "balance"] {
            let policies = named(name, &costs).expect(name);
            let policy = policies.into_iter().map(|make| make(3)).next().expect("one");
            assert_eq!(slug(policy.name()), name);
        }
        let error = named("lru", &costs).err().expect("unknown").to_string();
        assert!(error.contains("lru-2q") && error.contains("auto"), "{error}");
    }

    #[test]
    fn a_profile_is_a_name_or_a_file_with_one_lower_tier() {
        assert!(costs("cxl").err().is_some_and(|error| error.to_string().contains("nor a file")));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mine.toml");
        let tier = |name: &str, kind: &str| {
            format!(
                "[[tier]]\nname = \"{name}\"\nkind = \"{kind}\"\nread = 1e9\nwrite = 1e9\nlatency_ns = 400\nsource = \"mine\"\n"
            )
        };
        let read = |text: String| {
            std::fs::write(&path, text).expect("written");
            costs(path.to_str().expect("UTF-8"))
        };
        let (found, name) = read(tier("mine", "cxl")).expect("a profile");
        assert_eq!((found.lower.latency_ns, found.top.latency_ns), (400, 100));
        assert!(name.starts_with("mine of "));
        assert!(read(tier("a", "cxl") + &tier("b", "cxl")).is_err() && read(tier("a", "ssd")).is_err());
        assert!(read("nothing".into()).is_err());
    }
}
