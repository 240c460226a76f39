//! What a job may have, and which jobs are watched without being asked for.

use std::{collections::BTreeSet, path::PathBuf};

use nix::unistd::User;
use serde::{Deserialize, Serialize};

use super::file;
use crate::units::shows;

/// What the agent does with its plans for a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Moves pages.
    #[default]
    Migrate,
    /// Tells the plans, with the reason of each move, and moves nothing.
    DryRun,
    /// Watches and reports.
    Watch,
}

/// What moves a job's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actuator {
    /// The agent, range by range, with `move_pages(2)`.
    #[default]
    MovePages,
    /// The kernel, by DAMON's schemes (Linux 6.11), for a job in a control group of its own.
    Damos,
}

/// What decides on where a job's pages belong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// By use over whole training steps; streams over both tiers where DRAM is loaded.
    #[default]
    Auto,
    /// By how hot memory is now.
    Hotness,
    /// By use over whole training steps.
    Step,
    /// As `step`, and both tiers serve as much as they can deliver.
    Bandwidth,
    /// As `step`, and both tiers answer equally soon (Colloid).
    Balance,
}

/// What a job may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The most bytes of its memory on the top tier; what is over it is demoted.
    pub dram_bytes: Option<u64>,
    /// The most bytes of its memory below; nothing is demoted beyond it.
    pub cxl_bytes: Option<u64>,
    /// Higher is served first.
    pub priority: i32,
}

impl Limits {
    /// The least and the greatest priority.
    pub const PRIORITIES: std::ops::RangeInclusive<i32> = -20..=20;
    /// The longest name of a job, in bytes.
    pub const NAME: usize = 64;

    /// Checks them and the name, which goes into tables, logs and labels.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, name: &str) -> Result<(), String> {
        let number = name.bytes().all(|byte| byte.is_ascii_digit());
        let blank = name.chars().all(char::is_whitespace);
        if number || blank || name.len() > Self::NAME || !name.chars().all(shows) {
            let most = Self::NAME;
            return Err(format!(
                "a job's name has 1 to {most} bytes, not blanks alone, no control or formatting characters, and is not a number"
            ));
        }
        let allowed = Self::PRIORITIES;
        if !allowed.contains(&self.priority) {
            let (least, most) = (allowed.start(), allowed.end());
            return Err(format!("priority {} is not between {least} and {most}", self.priority));
        }
        Ok(())
    }
}

/// Processes that are watched wherever they appear. All that is named must fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What their job is called.
    pub name: String,
    /// The name of their program, as `/proc/PID/comm` has it: 15 bytes at the most.
    pub comm: Option<String>,
    /// The user they belong to, by name or number.
    pub user: Option<String>,
    /// The control group they are in or below; all of them are one job then.
    pub cgroup: Option<PathBuf>,
    /// What is done with plans.
    pub mode: Mode,
    /// What moves its pages; that of `migrate.actuator` where it is not named.
    pub actuator: Option<Actuator>,
    /// What decides on where they belong; that of `policy.policy` where it is not named.
    pub policy: Option<PolicyKind>,
    /// What each job may have.
    pub limits: Limits,
}

pub(super) fn check(written: file::Job, taken: &mut BTreeSet<String>) -> Result<Rule, String> {
    let file::Job { name, comm, user, cgroup, mode, actuator, policy, dram_bytes, cxl_bytes, priority } = written;
    let limits =
        Limits { dram_bytes: dram_bytes.map(|bytes| bytes.0), cxl_bytes: cxl_bytes.map(|bytes| bytes.0), priority };
    limits.check(&name)?;
    if comm.is_none() && user.is_none() && cgroup.is_none() {
        return Err(format!("{name:?} would be every process of this host; name its comm, user or cgroup"));
    }
    if let Some(comm) = comm.as_ref().filter(|comm| comm.is_empty() || comm.len() > 15) {
        return Err(format!("comm {comm:?}: the kernel keeps 1 to 15 bytes of a program's name"));
    }
    if cgroup.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
        return Err(format!("{name:?}: an empty cgroup would be the whole machine; name its folder, or leave it out"));
    }
    if let Some(user) = user.as_ref().filter(|user| is_unknown(user)) {
        return Err(format!("{name:?}: this host has no user {user:?}"));
    }
    if actuator == Some(Actuator::Damos) && (limits.dram_bytes.is_some() || limits.cxl_bytes.is_some()) {
        return Err(format!("{name:?}: budgets are kept by actuator = \"move_pages\" alone"));
    }
    if !taken.insert(name.clone()) {
        return Err(format!("{name:?} is named twice"));
    }
    Ok(Rule { name, comm, user, cgroup, mode, actuator, policy, limits })
}

/// Whether there is surely no such user. A number is one, and where the accounts cannot be asked now there may be.
fn is_unknown(user: &str) -> bool {
    user.parse::<u32>().is_err() && (user.is_empty() || User::from_name(user).is_ok_and(|user| user.is_none()))
}
