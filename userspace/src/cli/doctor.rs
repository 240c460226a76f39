//! `doctor`: what stands in the way here, and the command that mends it.

use std::{
    io::{self, Write as _},
    net::TcpListener,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process,
};

use serde::Serialize;
use tensortier::{
    agent::daemon::readers,
    config::Config,
    control, doctor,
    host::{Finding, Host, Severity},
    source::{ebpf::built, format::find_tracefs, migrations::MigrationProgram},
    sys,
    units::Pid,
};

use super::{DONE, FAILED, topo::describe};

/// Says what stands in the way of tiering here, with the consequence and the command that mends it.
///
/// Looks and changes nothing. The exit code is 1 where something stops tiering. Run it as the agent will run: what root
/// alone may see or do is otherwise missing.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// The config to examine the host under [default: /etc/tensortier/config.toml, where it exists].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Examines a tree recorded by scripts/record-host instead of this machine.
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
}

#[derive(Serialize)]
struct Report<'a> {
    stops: bool,
    findings: &'a [Finding],
}

/// Prints the findings and gives the exit code.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    let config = Config::load(args.config.as_deref())?;
    let mut host = Host::read(&args.root)?;
    // Tiers that cannot be are among the findings.
    let _ = host.configure(&config);
    let mut findings = doctor::examine(&args.root, &host, &config)?;
    if args.root == Path::new("/") {
        findings.extend(trials(&config));
        doctor::sort(&mut findings);
    }
    let stops = doctor::stops(&findings);
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&Report { stops, findings: &findings })?)?;
    } else {
        findings.iter().try_for_each(|finding| writeln!(out, "{}", describe(finding)))?;
        let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
        let (errors, warnings, info) = (count(Severity::Error), count(Severity::Warning), count(Severity::Info));
        writeln!(out, "errors: {errors}, warnings: {warnings}, to know: {info}")?;
    }
    Ok(if stops { FAILED } else { DONE })
}

/// What only an attempt tells: whether the kernel takes our programs, and lets us ask for the nodes of pages; whether the
/// agent can be read and scraped as the config says.
fn trials(config: &Config) -> Vec<Finding> {
    let error = |id, subject: &str, what: String, consequence: &str, fix: &str| Finding {
        id,
        severity: Severity::Error,
        subject: subject.to_owned(),
        what,
        consequence: consequence.to_owned(),
        fix_command: Some(fix.to_owned()),
    };
    // The agent mounts it; a look does not.
    let unmounted = matches!(find_tracefs(), Ok(None)).then(|| Finding {
        id: "tracefs",
        severity: Severity::Info,
        subject: "/sys/kernel/tracing".to_owned(),
        what: "tracefs is not mounted".to_owned(),
        consequence: "whether the kernel takes our programs was not tried; the agent mounts it".to_owned(),
        fix_command: Some("mount -t tracefs tracefs /sys/kernel/tracing".to_owned()),
    });
    let loaded = if unmounted.is_some() { None } else { MigrationProgram::load().err() };
    let loaded = loaded.map(|why| {
        let fix = if built().is_err() { "scripts/setup && cargo build --release" } else { "sudo tensortier doctor" };
        error(
            "ebpf",
            "eBPF",
            why.to_string(),
            "neither faults nor DAMON's reports are seen: the agent does not start",
            fix,
        )
    });
    let me = Pid(process::id());
    // Any address: what matters is whether the call is let through.
    let asked = sys::Process::open(me).and_then(|process| process.nodes(&[0], &mut [sys::UNWRITTEN]));
    let asked = asked.err().map(|why| {
        let fix = "docker run --security-opt seccomp=unconfined …, or run the agent on the host";
        error("move-pages", "move_pages(2)", why.to_string(), "no page can be moved", fix)
    });
    let group = readers(config).err().map(|why| {
        let fix = "groupadd --system NAME, or another agent.group in the config";
        error("agent-group", "agent.group", format!("{why:#}"), "the agent does not start", fix)
    });
    // Where an agent serves, the address is its own.
    let serves = UnixStream::connect(control::SOCKET).is_ok();
    let taken = config.metrics.filter(|_| !serves).and_then(|address| {
        let why = TcpListener::bind(address).err()?;
        let fix = format!("ss -ltnp 'sport = :{}'", address.port());
        let what = format!("{address} cannot be had: {why}");
        Some(error("prometheus-listen", "prometheus.listen", what, "the agent does not start", &fix))
    });
    [unmounted, loaded, asked, group, taken].into_iter().flatten().collect()
}
