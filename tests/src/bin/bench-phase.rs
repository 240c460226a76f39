//! A hot set that moves: 64 MiB of 512 MiB, elsewhere every 20 seconds.
//!
//! In a guest under emulation: shares and counts mean something, times only within one run.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use tensortier::units::{NodeId, PAGE};
use tensortier_tests::{
    bench::{Bench, GuestArgs, Op},
    scenario::{self, Scenario, name},
};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    guests: GuestArgs,
    /// Huge pages, in turn.
    #[arg(long, value_delimiter = ',', default_value = "always,never")]
    thp: Vec<String>,
    /// The policy, as `tensortier run --policy` has it.
    #[arg(long)]
    policy: Option<String>,
}

fn scenario(kernel: &str, thp: &str, policy: Option<&str>) -> Scenario {
    let words = ["--hot", "64M", "--cold", "448M", "--phase-seconds", "20", "--hot-node", "1", "--cold-node", "1"];
    Scenario {
        name: name(&[kernel, thp], policy),
        kernel: kernel.to_owned(),
        guest_mib: (1024, 1024),
        // Room for two hot sets and the headroom: the third phase must make room.
        free_dram_mib: 224,
        policy: policy.map(str::to_owned),
        exerciser: words.into_iter().chain(["--thp", thp]).map(str::to_owned).collect(),
        seconds: 100.0,
        alone_seconds: 0.0,
    }
}

fn main() -> Result<ExitCode> {
    if let Some(result) = scenario::inside() {
        return result.map(|()| ExitCode::SUCCESS);
    }
    let args = Args::parse();
    scenario::build()?;
    let mut bench = Bench::new("phase", &args.guests.bench);
    bench.environment("guest", "numa profile under emulation; numa_balancing=0, demotion=0");
    for kernel in &args.guests.kernel {
        for thp in &args.thp {
            let scenario = scenario(kernel, thp, args.policy.as_deref());
            let seen = scenario.run(&std::env::current_exe()?)?;
            let name = &scenario.name;
            let (up, down) = (seen.moved_to(NodeId(0)) as f64, seen.moved_to(NodeId(1)) as f64);
            let back = seen.number("watched.pingpong_pages") * PAGE as f64;
            let settled = seen.under.settled_access_dram().unwrap_or(f64::NAN);
            bench.bar(&format!("{name}.settled_access_dram"), settled, Op::AtLeast, 0.9);
            bench.bar(&format!("{name}.moved_back_share"), back / (up + down), Op::AtMost, 0.02);
            bench.bar(&format!("{name}.checksum_intact"), f64::from(seen.under.checksum_ok), Op::Exactly, 1.0);
            bench.figure(&format!("{name}.promoted_mib"), up / (1 << 20) as f64);
            bench.figure(&format!("{name}.demoted_mib"), down / (1 << 20) as f64);
            bench.figure(&format!("{name}.longest_stall_ms"), seen.under.stalls_ns.max as f64 / 1e6);
        }
    }
    bench.finish()
}
