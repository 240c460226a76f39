//! The same run as perf sees it: our USDT probes, counted and recorded by perf itself.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use tensortier_tests::{perf, scenario::sibling};

const DONE: &str = "sdt_tensortier:migrate_done";

/// The probes, armed until this is dropped.
pub struct Perf {
    folder: PathBuf,
}

impl Perf {
    /// Arms the probes; `folder` is for what perf writes.
    pub fn arm(folder: &Path) -> Result<Self> {
        let status = Command::new(sibling("tensortier")).args(["perf", "setup"]).stdout(Stdio::null()).status();
        ensure!(status.context("cannot start tensortier")?.success(), "perf does not take the probes");
        Ok(Self { folder: folder.to_owned() })
    }

    /// The words before a command that have perf count and record while it runs.
    pub fn around(&self) -> Vec<String> {
        let (hits, record) = (self.file("hits.txt"), self.file("perf.data"));
        let stat = ["perf", "stat", "-a", "-e", "sdt_tensortier:*", "-o", &hits, "--"].map(str::to_owned);
        let tensortier = sibling("tensortier").display().to_string();
        let recorded = [&tensortier, "perf", "record", "-o", &record, "--"].map(str::to_owned);
        stat.into_iter().chain(recorded).collect()
    }

    /// Prints what perf saw of a command under `tensortier run`; gives the pages of all moves.
    pub fn show(&self, command: &str) -> Result<u64> {
        let hits = self.file("hits.txt");
        let hits = fs::read_to_string(&hits).with_context(|| format!("cannot read {hits}"))?;
        println!("# perf stat -a -e 'sdt_tensortier:*' -- tensortier run {command}");
        hits.lines().filter(|line| line.contains("sdt_tensortier:")).for_each(|line| println!("{}", line.trim_end()));

        let script =
            Command::new("perf").args(["script", "-i", &self.file("perf.data"), "-F", "comm,event,trace"]).output();
        let script = script.context("cannot start perf")?;
        ensure!(script.status.success(), "perf script: {}", String::from_utf8_lossy(&script.stderr));
        let script = String::from_utf8_lossy(&script.stdout);
        println!("# tensortier perf record -- tensortier run {command}");
        println!("# perf script -F comm,event,trace | grep migrate_done | head -3");
        perf::of_event(&script, DONE).take(3).for_each(|line| println!("{}", line.trim()));
        Ok(perf::sum(perf::of_event(&script, DONE), "arg2")?.0)
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        let status = Command::new(sibling("tensortier")).args(["perf", "teardown"]).stdout(Stdio::null()).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("the probes are still armed: tensortier perf teardown");
        }
    }
}
