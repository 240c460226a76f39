//! Pages migrated by reason, summed by our eBPF program on `migrate:mm_migrate_pages`.

use super::{Counter, Missing, Unit, Values, Whose};
use crate::source::migrations::MigrationProgram;

/// The name in [`Missing`] where the program does not run.
const ALL: &str = "migrated:*";

/// The loaded program.
pub(super) struct Reasons {
    program: MigrationProgram,
}

impl Reasons {
    /// Loads the program. Agents are told apart from other programs, whenever they start.
    pub fn open(missing: &mut Vec<Missing>) -> Option<Self> {
        match MigrationProgram::load() {
            Ok(program) => Some(Self { program }),
            Err(error) => {
                missing.push(Missing { event: ALL.to_owned(), why: error.to_string() });
                None
            }
        }
    }

    pub fn read(&self) -> Values {
        let mut values = Values::new();
        let mut add = |whose, event: String, detail, pages| {
            let counter = Counter { whose, event, node: None, unit: Unit::Pages, detail };
            *values.entry(counter).or_default() += pages;
        };
        // Reasons that have not come up yet are there and 0.
        for reason in self.program.sums.reasons().iter().filter(|reason| !reason.starts_with("reason_")) {
            add(whose(reason, false), format!("migrated:{reason}"), false, 0);
            if whose(reason, false) == Whose::Programs {
                add(Whose::Agent, format!("migrated:{reason}"), reason != "syscall_or_cpuset", 0);
            }
        }
        for sums in self.program.sums.totals().unwrap_or_default() {
            let whose = whose(&sums.reason, sums.by_agent);
            add(whose, format!("migrated:{}", sums.reason), false, sums.succeeded);
            add(whose, format!("not-migrated:{}", sums.reason), true, sums.failed);
        }
        values
    }
}

/// Whose work a migration for `reason` is; the kernel may migrate for itself while the agent's thread allocates.
fn whose(reason: &str, by_agent: bool) -> Whose {
    match reason {
        "syscall_or_cpuset" | "syscall" | "mempolicy_mbind" if by_agent => Whose::Agent,
        "syscall_or_cpuset" | "syscall" | "mempolicy_mbind" => Whose::Programs,
        "numa_misplaced" => Whose::NumaBalancing,
        "demotion" => Whose::Demotion,
        "damon" => Whose::Damon,
        _ => Whose::Kernel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_one_owner() {
        for (reason, by_agent, owner) in [
            ("syscall_or_cpuset", true, Whose::Agent),
            ("syscall_or_cpuset", false, Whose::Programs),
            ("numa_misplaced", true, Whose::NumaBalancing),
            ("demotion", true, Whose::Demotion),
            ("damon", false, Whose::Damon),
            ("compaction", true, Whose::Kernel),
            ("reason_12", false, Whose::Kernel),
        ] {
            assert_eq!(whose(reason, by_agent), owner, "{reason}");
        }
    }
}
