//! The kernel's own account of migrations, by a histogram of its tracepoint, and settings fixed for the demo.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

const EVENT: &str = "/sys/kernel/tracing/events/migrate/mm_migrate_pages";
const HISTOGRAM: &str = "hist:keys=reason:vals=succeeded";
/// What the kernel calls moves by move_pages(2).
const SYSCALL: &str = "\"syscall_or_cpuset\"";

/// Pages that the kernel migrates from now on, by reason: counted by the kernel, not by tensortier's programs.
pub struct Migrations {
    syscall: u64,
}

impl Migrations {
    pub fn watch() -> Result<Self> {
        let format = fs::read_to_string(Path::new(EVENT).join("format"))
            .with_context(|| format!("cannot read {EVENT}/format; is tracefs mounted?"))?;
        let syscall = reason(&format, SYSCALL).context("the tracepoint does not name syscall_or_cpuset")?;
        let trigger = Path::new(EVENT).join("trigger");
        fs::write(&trigger, HISTOGRAM)
            .with_context(|| format!("cannot write {} (CONFIG_HIST_TRIGGERS)", trigger.display()))?;
        Ok(Self { syscall })
    }

    /// Base pages moved by move_pages(2) since.
    pub fn by_syscall(&self) -> Result<u64> {
        let path = Path::new(EVENT).join("hist");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(succeeded(&text, self.syscall))
    }
}

impl Drop for Migrations {
    fn drop(&mut self) {
        let _ = fs::write(Path::new(EVENT).join("trigger"), format!("!{HISTOGRAM}"));
    }
}

/// The number that stands beside a name in the format file: `{ 3, "syscall_or_cpuset" }`.
fn reason(format: &str, name: &str) -> Option<u64> {
    let before = format.split(name).next().filter(|before| before.len() < format.len())?;
    before.rsplit('{').next()?.trim().trim_end_matches(',').trim().parse().ok()
}

/// The sum beside a key: `{ reason:          3 } hitcount:         12  succeeded:       3072`.
fn succeeded(histogram: &str, reason: u64) -> u64 {
    let of_line = |line: &str| {
        let (key, values) = line.trim().strip_prefix('{')?.split_once('}')?;
        let key: u64 = key.trim().strip_prefix("reason:")?.trim().parse().ok()?;
        let pages: u64 = values.split("succeeded:").nth(1)?.split_whitespace().next()?.parse().ok()?;
        (key == reason).then_some(pages)
    };
    histogram.lines().find_map(of_line).unwrap_or(0)
}

/// A setting of the kernel that is put back when this is dropped.
pub struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    pub fn fix(path: &str, value: &str) -> Result<Self> {
        let path = PathBuf::from(path);
        let before = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        fs::write(&path, value).with_context(|| format!("cannot write {value} to {}", path.display()))?;
        Ok(Self { path, before })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, self.before.trim()) {
            eprintln!("cannot put {} back to {}: {error}", self.path.display(), self.before.trim());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
        let format = r#"print fmt: "reason=%s", __print_symbolic(REC->reason, { 0, "compaction" }, { 3, "syscall_or_cpuset" }, { 4, "mempolicy_mbind" })"#;
        assert_eq!((reason(format, SYSCALL), reason(format, "\"nothing\"")), (Some(3), None));
        let histogram = "# event histogram\n#\n\n{ reason:          0 } hitcount:          2  succeeded:         64\n\
                         { reason:          3 } hitcount:         12  succeeded:       3072\n\nTotals:\n    Hits: 14\n";
        assert_eq!((succeeded(histogram, 3), succeeded(histogram, 9)), (3072, 0));
    }
}
