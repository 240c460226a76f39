//! One run of the training job, and what can be seen of it from outside.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tensortier::{
    sys::Process,
    units::{NodeId, PAGE, Pid},
};
use tensortier_tests::scenario::sibling;

use crate::{USED_WORDS, WORDS};

/// A run to come.
pub struct Job {
    pub root: PathBuf,
    pub folder: PathBuf,
    /// Where the table begins.
    pub slow: NodeId,
    pub steps: u32,
    /// The policy, where it is not the agent's default.
    pub policy: Option<String>,
    /// Where the agent's summary goes, and the words before `tensortier`; `None` runs the job without it.
    pub agent: Option<(PathBuf, Vec<String>)>,
}

/// What came of it.
pub struct Ran {
    /// The loss of each step, every bit of it.
    pub losses: Vec<String>,
    step_seconds: Vec<f64>,
    /// Where the table was when it was first seen, and last.
    pub first: Table,
    pub last: Table,
    /// From the first look until 95 % of the hot part was in DRAM.
    pub seconds_until_hot: Option<f64>,
}

/// Where the table of word vectors is.
#[derive(Clone, Copy, Default)]
pub struct Table {
    pub bytes: u64,
    pub slow_bytes: u64,
    /// The part that the texts use.
    pub hot_bytes: u64,
    hot_slow_bytes: u64,
}

impl Table {
    pub fn hot_share(&self) -> f64 {
        (self.hot_bytes - self.hot_slow_bytes) as f64 / self.hot_bytes as f64
    }
}

impl Ran {
    /// The median of the last quarter of the steps.
    pub fn late_step_seconds(&self) -> f64 {
        let mut late = self.step_seconds[self.step_seconds.len() * 3 / 4..].to_vec();
        late.sort_by(f64::total_cmp);
        late.get(late.len() / 2).copied().unwrap_or(f64::NAN)
    }

    pub fn longest_step_seconds(&self) -> f64 {
        self.step_seconds.iter().copied().fold(f64::NAN, f64::max)
    }
}

impl Job {
    /// Runs it to its end.
    pub fn run(&self) -> Result<Ran> {
        let ranges = self.folder.join("ranges.json");
        let _ = fs::remove_file(&ranges);
        let mut child = self.command(&ranges)?.stdout(Stdio::piped()).spawn().context("cannot start the job")?;
        let ended = Arc::new(AtomicBool::new(false));
        let observer = {
            let (ended, slow) = (Arc::clone(&ended), self.slow);
            thread::spawn(move || observe(&ranges, slow, &ended))
        };
        let (mut losses, mut step_seconds) = (Vec::new(), Vec::new());
        let out = BufReader::new(child.stdout.take().context("the job has no stdout")?);
        for line in out.lines() {
            let line = line.context("cannot read what the job says")?;
            let words: Vec<_> = line.split(' ').collect();
            let ["step", step, "loss", loss, "seconds", seconds] = words[..] else {
                println!("   {line}");
                continue;
            };
            losses.push(loss.to_owned());
            step_seconds.push(seconds.parse().with_context(|| format!("no time in {line:?}"))?);
            if step.parse().is_ok_and(|step: u32| step.is_multiple_of(10)) {
                println!("   {line}");
            }
        }
        let status = child.wait().context("cannot wait for the job")?;
        ended.store(true, Ordering::Relaxed);
        let (first, last, seconds_until_hot) = observer.join().ok().context("the observer failed")??;
        ensure!(status.success(), "the job ended with {status}");
        ensure!(losses.len() == self.steps as usize, "{} of {} steps were seen", losses.len(), self.steps);
        Ok(Ran { losses, step_seconds, first, last, seconds_until_hot })
    }

    fn command(&self, ranges: &Path) -> Result<Command> {
        let jobs = self.root.join("tests/jobs");
        // Debian's own Python: that is where its package of torch lives.
        let mut python = vec!["/usr/bin/python3".to_owned(), jobs.join("on-node.py").display().to_string()];
        python.extend(["--node".into(), self.slow.to_string(), "--ranges".into(), ranges.display().to_string()]);
        python.push(jobs.join("train.py").display().to_string());
        for (name, value) in [("--steps", u64::from(self.steps)), ("--words", WORDS), ("--used", USED_WORDS)] {
            python.extend([name.to_owned(), value.to_string()]);
        }
        let mut words = Vec::new();
        if let Some((summary, around)) = &self.agent {
            words.extend(around.iter().cloned());
            words.push(sibling("tensortier").display().to_string());
            words.extend(["run", "--require"].map(str::to_owned));
            words.extend(self.policy.iter().flat_map(|policy| ["--policy".to_owned(), policy.clone()]));
            words.extend(["--summary-json".to_owned(), summary.display().to_string(), "--".to_owned()]);
        }
        words.extend(python);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }
}

/// Looks at the table once a second, from when it is filled to the job's end.
fn observe(ranges: &Path, slow: NodeId, ended: &AtomicBool) -> Result<(Table, Table, Option<f64>)> {
    let (pid, addresses) = loop {
        if let Ok(text) = fs::read_to_string(ranges) {
            break placed(&text)?;
        }
        ensure!(!ended.load(Ordering::Relaxed), "the job ended before its table was filled");
        thread::sleep(Duration::from_millis(50));
    };
    let process = Process::open(pid)?;
    let begun = Instant::now();
    let (mut first, mut last, mut seconds_until_hot) = (None, Table::default(), None);
    while !ended.load(Ordering::Relaxed) {
        // The job may end, or give the table back, between two looks: then the one before was the last.
        let Ok(table) = look(&process, &addresses, slow) else { break };
        first.get_or_insert(table);
        if table.hot_share() >= 0.95 {
            seconds_until_hot.get_or_insert(begun.elapsed().as_secs_f64());
        }
        last = table;
        thread::sleep(Duration::from_secs(1));
    }
    Ok((first.context("the job ended before its table could be looked at")?, last, seconds_until_hot))
}

/// The process, and the addresses of the table's pages.
fn placed(text: &str) -> Result<(Pid, Vec<u64>)> {
    let json: serde_json::Value = serde_json::from_str(text).context("on-node.py wrote no JSON")?;
    let number = |value: &serde_json::Value| value.as_u64().context("on-node.py wrote no number");
    let (start, end) = (number(&json["ranges"][0][0])?, number(&json["ranges"][0][1])?);
    let pages = (start.next_multiple_of(PAGE)..end / PAGE * PAGE).step_by(PAGE as usize);
    Ok((Pid(u32::try_from(number(&json["pid"])?)?), pages.collect()))
}

fn look(process: &Process, addresses: &[u64], slow: NodeId) -> Result<Table> {
    let mut status = vec![0; addresses.len()];
    process.nodes(addresses, &mut status)?;
    // The interpreter gives the table back before it ends; a few pages that are nowhere are under way.
    let nowhere = status.iter().filter(|&&node| node < 0).count();
    ensure!(nowhere * 2 < status.len(), "the job has given its table back");
    // The words are numbered by frequency, so the used ones are the first rows.
    let hot_pages = addresses.len() as u64 * USED_WORDS / WORDS;
    let mut table = Table { bytes: addresses.len() as u64 * PAGE, hot_bytes: hot_pages * PAGE, ..Table::default() };
    for (at, &node) in status.iter().enumerate() {
        // A page that is under way is nowhere for a moment: it has not arrived.
        if node < 0 || node as u32 == slow.0 {
            table.slow_bytes += PAGE;
            table.hot_slow_bytes += if (at as u64) < hot_pages { PAGE } else { 0 };
        }
    }
    Ok(table)
}
