//! What this process may do, as the kernel tells it, and what is lost where it may not.

use serde::Serialize;

use crate::host::{Finding, HostError, Severity, tree::Tree};

/// The rights of the process that reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rights {
    /// Effective user id; `None` where the kernel does not tell.
    pub user: Option<u32>,
    /// Effective capabilities, bit by bit.
    pub capabilities: Option<u64>,
    /// Whether a filter decides which system calls it may make.
    pub seccomp_filter: bool,
}

impl Rights {
    /// Whether the capability of that number is there; true where the kernel does not tell: the attempt will.
    pub fn has(&self, capability: u32) -> bool {
        self.capabilities.is_none_or(|bits| bits & 1 << capability != 0)
    }
}

pub(super) fn read(tree: &Tree<'_>) -> Result<Rights, HostError> {
    let name = "proc/self/status";
    let Some(text) = tree.text(name)? else { return Ok(Rights::default()) };
    let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    let capabilities = field("CapEff").map(|bits| u64::from_str_radix(bits, 16)).transpose();
    Ok(Rights {
        // Real, effective, saved and file system id.
        user: field("Uid").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok()),
        capabilities: capabilities.map_err(|_| tree.format(name, "CapEff: and a hexadecimal number", &text))?,
        seccomp_filter: field("Seccomp") == Some("2"),
    })
}

/// Capabilities that the agent uses: number, name, and what is lost without it.
const NEEDED: [(u32, &str, &str); 4] = [
    (39, "CAP_BPF", "no eBPF program loads"),
    (38, "CAP_PERFMON", "no tracepoint can be read"),
    (23, "CAP_SYS_NICE", "pages of other users' processes do not move"),
    (19, "CAP_SYS_PTRACE", "other users' processes cannot be looked at"),
];
/// CAP_SYS_ADMIN stands for the first two.
const SYS_ADMIN: u32 = 21;

pub(super) fn all(rights: &Rights, found: &mut Vec<Finding>) {
    capabilities(rights, found);
    seccomp(rights, found);
}

fn capabilities(rights: &Rights, found: &mut Vec<Finding>) {
    let has = |number: u32| rights.has(number) || (number >= 38 && rights.has(SYS_ADMIN));
    let missing: Vec<_> = NEEDED.iter().filter(|(number, ..)| !has(*number)).collect();
    if missing.is_empty() {
        return;
    }
    let names: Vec<&str> = missing.iter().map(|(_, name, _)| *name).collect();
    let losses: Vec<&str> = missing.iter().map(|(.., loss)| *loss).collect();
    // Root without them is root of a container.
    let fix = match rights.user {
        Some(0) => {
            let flags: Vec<String> =
                names.iter().map(|name| format!("--cap-add {}", name.trim_start_matches("CAP_"))).collect();
            format!("docker run {} …, or --privileged", flags.join(" "))
        }
        _ => "sudo tensortier …".to_owned(),
    };
    found.push(Finding {
        id: "capabilities",
        severity: Severity::Error,
        subject: "this process".to_owned(),
        what: format!("{} missing", names.join(", ")),
        consequence: losses.join("; "),
        fix_command: Some(fix),
    });
}

fn seccomp(rights: &Rights, found: &mut Vec<Finding>) {
    if rights.seccomp_filter {
        found.push(Finding {
            id: "seccomp",
            severity: Severity::Warning,
            subject: "this process".to_owned(),
            what: "a seccomp filter decides which system calls this process may make".to_owned(),
            consequence:
                "the filters of container runtimes refuse bpf, perf_event_open, move_pages and mbind by default"
                    .to_owned(),
            fix_command: Some(
                "docker run --security-opt seccomp=unconfined …, or run the agent on the host".to_owned(),
            ),
        });
    }
}
