//! What the machine counts while a job runs: the kernel's counters of migration, and who uses how much CPU.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, anyhow, ensure};

use crate::daemon::Used;

const PERIOD: Duration = Duration::from_secs(1);
/// Counters of /proc/vmstat that tell of migration, by how their names begin.
const COUNTERS: [&str; 6] =
    ["pgmigrate_", "pgpromote_", "pgdemote_", "numa_hint_faults", "numa_pte_updates", "thp_migration_"];

/// Counters and CPU seconds up to some moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    at: SystemTime,
    counters: BTreeMap<String, u64>,
    cpu: BTreeMap<String, f64>,
}

/// What was used between two moments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spent {
    /// The counters that changed, and by how much.
    pub counters: BTreeMap<String, u64>,
    /// CPU seconds by who used them.
    pub cpu: BTreeMap<String, f64>,
}

/// Looks once a second, until it is told to end.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Look>>>,
}

impl Watch {
    /// Starts looking.
    ///
    /// # Errors
    /// No thread.
    pub fn start() -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let watch = move || {
            let mut looks = Vec::new();
            // A thread that has ended keeps what it used.
            let mut processes = BTreeMap::new();
            loop {
                // The last look is of after the end.
                let last = stopped.load(Relaxed);
                looks.push(look(&mut processes)?);
                if last {
                    return Ok(looks);
                }
                thread::park_timeout(PERIOD);
            }
        };
        let thread = thread::Builder::new().name("watch".into()).spawn(watch).context("cannot start a thread")?;
        Ok(Self { stop, thread })
    }

    /// Looks a last time and gives all looks.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn end(self) -> Result<Vec<Look>> {
        self.stop.store(true, Relaxed);
        self.thread.thread().unpark();
        self.thread.join().map_err(|_| anyhow!("the watching thread panicked"))?
    }
}

/// What was used from `from` to `to`, by the looks nearest to them.
///
/// # Errors
/// There are no looks of that time.
pub fn between(looks: &[Look], from: SystemTime, to: SystemTime) -> Result<Spent> {
    let far = |look: &&Look, at: SystemTime| look.at.duration_since(at).unwrap_or_else(|error| error.duration());
    let nearest = |at: SystemTime| looks.iter().min_by_key(|look| far(look, at)).context("nothing was watched");
    let (first, last) = (nearest(from)?, nearest(to)?);
    ensure!(first.at < last.at, "the job was not watched");
    let counters = last.counters.iter().map(|(name, n)| (name.clone(), n - first.counters.get(name).unwrap_or(&0)));
    let cpu = last.cpu.iter().map(|(name, n)| (name.clone(), n - first.cpu.get(name).unwrap_or(&0.0)));
    Ok(Spent { counters: counters.filter(|(_, n)| *n > 0).collect(), cpu: cpu.collect() })
}

/// The kernel's counters of migration.
///
/// # Errors
/// /proc/vmstat cannot be read.
pub fn vmstat() -> Result<BTreeMap<String, u64>> {
    let text = fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?;
    let line = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        COUNTERS.iter().any(|counter| name.starts_with(counter)).then_some((name.to_owned(), value.parse().ok()?))
    };
    Ok(text.lines().filter_map(line).collect())
}

fn look(processes: &mut BTreeMap<u32, Used>) -> Result<Look> {
    for entry in fs::read_dir("/proc").context("cannot read /proc")? {
        let name = entry.context("cannot read /proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // One that has ended meanwhile.
        let Ok(used) = Used::of(&pid.to_string()) else { continue };
        if user(&used.name).is_some() {
            processes.insert(pid, used);
        }
    }
    let mut cpu = BTreeMap::new();
    for used in processes.values() {
        let Some(user) = user(&used.name) else { continue };
        *cpu.entry(user.to_owned()).or_default() += used.cpu();
        if user == "job" {
            *cpu.entry("job_system".to_owned()).or_default() += used.system;
        }
    }
    Ok(Look { at: SystemTime::now(), counters: vmstat()?, cpu })
}

/// Whom a process counts for.
fn user(name: &str) -> Option<&'static str> {
    match name {
        "tensortier" => Some("agent"),
        "exerciser" => Some("job"),
        _ if name.starts_with("kdamond") => Some("kdamond"),
        _ if name.starts_with("kswapd") => Some("kswapd"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(seconds: u64, pages: u64, agent: f64) -> Look {
        Look {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            counters: [("pgmigrate_success".to_owned(), pages), ("pgmigrate_fail".to_owned(), 3)].into(),
            cpu: [("agent".to_owned(), agent)].into(),
        }
    }

    #[test]
    fn what_was_before_and_after_does_not_count() {
        let looks = [look(1, 5, 1.0), look(2, 10, 2.0), look(3, 30, 2.5), look(4, 99, 9.0)];
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let used = between(&looks, at(2100), at(2900)).expect("watched");
        assert_eq!(used.counters, [("pgmigrate_success".to_owned(), 20)].into());
        assert_eq!(used.cpu["agent"], 0.5);
        assert!(between(&looks, at(9000), at(9500)).is_err());
    }

    #[test]
    fn only_those_who_move_pages_and_the_job_are_counted() {
        assert_eq!(["kdamond.1", "kswapd0"].map(user), [Some("kdamond"), Some("kswapd")]);
        assert_eq!(["tensortier", "exerciser", "bash"].map(user), [Some("agent"), Some("job"), None]);
    }
}
