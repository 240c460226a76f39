//! Hot bytes reach DRAM: forward, reverse, and 64 MiB hidden in 160 GiB of address space.
//!
//! In a guest under emulation: shares and counts mean something, times only within one run.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use tensortier::units::NodeId;
use tensortier_tests::{
    bench::{Bench, GuestArgs, Op},
    exerciser::report::Report,
    scenario::{self, Scenario, Seen, name},
};

const DRAM: NodeId = NodeId(0);
const SLOW: NodeId = NodeId(1);
const MIB: f64 = (1 << 20) as f64;
/// What the agent keeps free of a node of these sizes: the default of `policy.headroom_bytes`.
const HEADROOM: f64 = 64.0 * MIB;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    guests: GuestArgs,
    /// Huge pages, in turn.
    #[arg(long, value_delimiter = ',', default_value = "always,never")]
    thp: Vec<String>,
    /// Cases, in turn.
    #[arg(long, value_delimiter = ',', default_value = "forward,reverse,hidden")]
    case: Vec<Case>,
    /// The policy, as `tensortier run --policy` has it.
    #[arg(long)]
    policy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Case {
    /// Everything began on the slow node, DRAM is free.
    Forward,
    /// DRAM is full of cold bytes, the hot ones began on the slow node.
    Reverse,
    /// 64 MiB hot inside 1.2 GiB touched inside 160 GiB reserved, in 50 mappings.
    Hidden,
}

impl Case {
    fn hot_mib(self) -> u64 {
        if self == Self::Hidden { 64 } else { 256 }
    }

    /// Seconds by which the share must be reached, and the share.
    fn target(self) -> (f64, f64) {
        match self {
            Self::Forward => (30.0, 0.95),
            Self::Reverse => (60.0, 0.95),
            Self::Hidden => (30.0, 0.90),
        }
    }

    fn scenario(self, kernel: &str, thp: &str, policy: Option<&str>) -> Scenario {
        let hot = format!("{}M", self.hot_mib());
        let words: &[&str] = match self {
            Self::Forward => &["--cold", "640M", "--hot-node", "1", "--cold-node", "1"],
            Self::Reverse => &["--cold", "640M", "--hot-node", "1", "--cold-node", "0", "--spill"],
            Self::Hidden => {
                &["--cold", "1136M", "--reserve", "160G", "--vmas", "50", "--hot-node", "1", "--cold-node", "1"]
            }
        };
        let sizes = ["--thp", thp, "--hot", &hot];
        let words = words.iter().chain(&sizes).map(|word| (*word).to_owned());
        Scenario {
            name: name(&[kernel, thp, &format!("{self:?}").to_lowercase()], policy),
            kernel: kernel.to_owned(),
            guest_mib: (1280, if self == Self::Hidden { 1536 } else { 1280 }),
            free_dram_mib: 512,
            policy: policy.map(str::to_owned),
            exerciser: words.collect(),
            seconds: self.target().0 + 5.0,
            alone_seconds: 10.0,
        }
    }

    fn judge(self, bench: &mut Bench, name: &str, seen: &Seen) {
        let (within, share) = self.target();
        let hot = self.hot_mib() as f64 * MIB;
        let reached = seen.under.samples.iter().filter(|sample| sample.at <= within).map(|sample| sample.hot_dram);
        let (up, down) = (seen.moved_to(DRAM) as f64, seen.moved_to(SLOW) as f64);
        bench.bar(&format!("{name}.hot_dram_share"), reached.fold(f64::NAN, f64::max), Op::AtLeast, share);
        bench.figure(&format!("{name}.reached_s"), seen.under.hot_dram_reached(share).unwrap_or(f64::NAN));
        if self == Self::Hidden {
            bench.figure(&format!("{name}.promoted_over_hot"), up / hot);
        } else {
            bench.bar(&format!("{name}.promoted_over_hot"), up / hot, Op::AtMost, 1.3);
        }
        bench.figure(&format!("{name}.demoted_mib"), down / MIB);
        if self == Self::Reverse {
            bench.bar(&format!("{name}.demoted_over_allowed"), down / (up + HEADROOM), Op::AtMost, 1.0);
        }
        stalls(bench, name, seen);
        bench.bar(&format!("{name}.checksum_intact"), f64::from(seen.under.checksum_ok), Op::Exactly, 1.0);
        bench.figure(&format!("{name}.agent_cpu_s"), seen.number("watched.cost.agent_cpu_seconds"));
        bench.figure(&format!("{name}.kdamond_cpu_s"), seen.number("watched.cost.kdamond_cpu_seconds"));
    }
}

/// What the agent added to the exerciser's units of work.
fn stalls(bench: &mut Bench, name: &str, seen: &Seen) {
    let ms = |report: &Report| report.stalls_ns.p99 as f64 / 1e6;
    let alone = seen.alone.as_ref().map_or(f64::NAN, ms);
    bench.bar(&format!("{name}.p99_added_ms"), ms(&seen.under) - alone, Op::AtMost, 20.0);
    bench.figure(&format!("{name}.longest_stall_ms"), seen.under.stalls_ns.max as f64 / 1e6);
    bench.figure(&format!("{name}.loop_p99_ms"), seen.under.loops_ns.p99 as f64 / 1e6);
}

fn main() -> Result<ExitCode> {
    if let Some(result) = scenario::inside() {
        return result.map(|()| ExitCode::SUCCESS);
    }
    let args = Args::parse();
    scenario::build()?;
    let mut bench = Bench::new("hotcold", &args.guests.bench);
    bench.environment("guest", "numa profile under emulation; numa_balancing=0, demotion=0");
    for kernel in &args.guests.kernel {
        for thp in &args.thp {
            for case in &args.case {
                let scenario = case.scenario(kernel, thp, args.policy.as_deref());
                let seen = scenario.run(&std::env::current_exe()?)?;
                case.judge(&mut bench, &scenario.name, &seen);
            }
        }
    }
    bench.finish()
}
