//! Who moves the pages, and how each is started and ended in the guest.

use std::{env, fmt, fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::damos::{Damos, Goals};
use crate::{
    daemon::{self, Agent},
    scenario::{self, fix},
};

/// Who moves the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Nobody: pages stay where first touch put them.
    Nothing,
    /// The kernel: NUMA balancing promotes (`numa_balancing=2`), reclaim demotes (`demotion_enabled`).
    Kernel,
    /// DAMON's schemes, see [`super::damos`].
    Damos,
    /// This agent.
    Agent,
}

impl System {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Nothing, Self::Kernel, Self::Damos, Self::Agent];
    /// Those whom the agent is held against.
    pub const PEERS: [Self; 3] = [Self::Nothing, Self::Kernel, Self::Damos];

    /// Whether it is meant to move pages and is not the agent.
    pub fn moves(self) -> bool {
        matches!(self, Self::Kernel | Self::Damos)
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Kernel => "kernel",
            Self::Damos => "damos",
            Self::Agent => "agent",
        })
    }
}

/// A system at work in the guest.
pub enum Running {
    /// No system.
    Nothing,
    /// The kernel's.
    Kernel(Moves),
    /// DAMON's schemes.
    Damos(Damos),
    /// The agent, and where its job's account is written.
    Agent(Agent, PathBuf),
}

/// What a system says at its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Bytes up and down, where it counts them.
    pub moved: Option<(u64, u64)>,
    /// How it was set up.
    pub setup: String,
}

/// Pages that the kernel promoted and demoted up to some moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moves(u64, u64);

impl Moves {
    fn now() -> Result<Self> {
        let counters = super::watch::vmstat()?;
        let of = |prefix: &str| counters.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, n)| n).sum();
        Ok(Self(of("pgpromote_success"), of("pgdemote_")))
    }
}

impl Running {
    /// Starts it; `config` is the agent's.
    ///
    /// # Errors
    /// The kernel refuses a setting, or the agent does not start.
    pub fn start(system: System, config: &str) -> Result<Self> {
        Ok(match system {
            System::Nothing => Self::Nothing,
            System::Kernel => {
                fix("/proc/sys/kernel/numa_balancing", "2")?;
                fix("/sys/kernel/mm/numa/demotion_enabled", "true")?;
                Self::Kernel(Moves::now()?)
            }
            System::Damos => Self::Damos(Damos::start()?),
            System::Agent => {
                let path = env::temp_dir().join("peers.toml");
                fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
                let (agent, _) = Agent::start(&["--config", &path.display().to_string()])?;
                Self::Agent(agent, env::temp_dir().join("account.json"))
            }
        })
    }

    /// What its jobs are started by, where it wants to do that itself; the job's own command follows `--`.
    pub fn client(&self) -> Option<Command> {
        let Self::Agent(_, account) = self else { return None };
        let mut command = daemon::tensortier(&["run", "--require", "--summary-json"]);
        command.arg(account);
        Some(command)
    }

    /// Ends it, once the job has ended.
    ///
    /// # Errors
    /// It does not end, or does not tell.
    pub fn end(self) -> Result<Account> {
        Ok(match self {
            Self::Nothing => Account::default(),
            Self::Kernel(before) => {
                let after = Moves::now()?;
                scenario::fix_settings()?;
                let bytes = |pages: u64| pages * tensortier::units::PAGE;
                let moved = (bytes(after.0 - before.0), bytes(after.1 - before.1));
                Account { moved: Some(moved), setup: "numa_balancing=2, demotion on".into() }
            }
            Self::Damos(damos) => {
                let moved = damos.moved()?;
                let setup = match damos.goals {
                    Some(Goals::Temporal) => "goals of node 0, temporal",
                    Some(Goals::Consist) => "goals of node 0, consist",
                    None => "quotas alone",
                };
                damos.end()?;
                Account { moved: Some(moved), setup: setup.into() }
            }
            Self::Agent(agent, account) => {
                agent.end()?;
                let text = fs::read_to_string(&account).context("the agent left no account of the job")?;
                let account: serde_json::Value = serde_json::from_str(&text).context("the account is not JSON")?;
                let to = |node: u64| -> u64 {
                    let rows = account["watched"]["moved"].as_array().into_iter().flatten();
                    rows.filter(|row| row["to"] == node).filter_map(|row| row["bytes"].as_u64()).sum()
                };
                let notes = account["notes"].as_array().into_iter().flatten().filter_map(|note| note.as_str());
                Account { moved: Some((to(0), to(1))), setup: notes.collect::<Vec<_>>().join("; ") }
            }
        })
    }
}
