//! DAMON: the main source of hotness. The kernel's access monitor looks at one page of every region of a job each
//! sampling interval and reports, once an aggregation, how often it found the region accessed.
//!
//! * [`grid`] decides which regions to ask for: what is populated, on a grid fine enough to find small hot blocks.
//! * `layout` spreads those over DAMON's targets, so that little is written when they change.
//! * [`sysfs`] writes that to `/sys/kernel/mm/damon/admin` and starts and stops the kernel's thread (*kdamond*).
//! * [`cadence`] decides how often to look: densely while things change, rarely at rest, never over a share of a CPU.
//! * [`snapshot`] turns the aggregations, which arrive through our eBPF program, into touches.
//! * [`schemes`] are what migrates by DAMON alone, and [`movers`] the kdamonds that run them.
//! * [`owner`] keeps to the rule that DAMON has one owner, and cleans what a killed agent left.
//!
//! Targets are changed by stopping kdamond and starting it anew rather than by `commit`: a commit waits for the end of
//! an aggregation, differs from kernel to kernel in what it keeps, and leaves events of both generations with the same
//! target numbers. A new kdamond has a new pid, and its pid is carried by every event: the generation comes for free.
//!
//! # Minimum kernel version
//! 5.18 for the sysfs interface; `fvaddr` from 5.19 (`vaddr` stands in for it before).

pub mod cadence;
pub mod grid;
pub mod kdamond;
mod layout;
pub mod movers;
pub mod owner;
pub mod schemes;
pub mod snapshot;
pub mod sysfs;
#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub use cadence::Intervals;
pub use grid::{Grid, Target};
pub use sysfs::{DamonError, Ops};

use self::{
    movers::{Movers, Round, Work},
    owner::Owner,
    sysfs::Sysfs,
};
use crate::units::NodeId;

/// A generation of monitoring: what one kdamond was told to look at.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The kernel thread; every event carries it.
    pub kdamond: u32,
    /// The targets, in the order of their numbers in the events.
    pub targets: Vec<Target>,
    /// How often it looks.
    pub intervals: Intervals,
    /// Regions it was started with.
    pub regions: u32,
    /// When it was started.
    pub since: Instant,
}

/// What the control thread is asked to do.
enum Ask {
    Watch(Vec<Target>, Intervals),
    Migrate(Vec<Work>),
    Rest,
    Stop,
}

/// The monitor: a thread that owns DAMON's sysfs, since writing there can wait for a sampling interval.
pub struct Damon {
    ask: mpsc::Sender<Ask>,
    told: mpsc::Receiver<Result<Generation, DamonError>>,
    rounds: mpsc::Receiver<Round>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// The operations set in use.
    pub ops: Ops,
    /// An answer to the last [`Damon::watch`] is still to come.
    pub busy: bool,
    /// A round of [`Damon::migrate`] is still to come.
    pub migrating: bool,
    /// The nodes whose pages schemes can migrate, or why there are none where some were wanted.
    pub movers: Result<Vec<NodeId>, DamonError>,
}

impl Damon {
    /// Takes DAMON, if nobody else has it, with a kdamond for the schemes of each of `nodes`. Nothing is monitored
    /// before the first [`Damon::watch`].
    ///
    /// # Errors
    /// DAMON is missing, lacks the operations set, or has another owner; the message says which and the way out.
    pub fn take(wanted: Option<Ops>, max_regions: u32, nodes: &[NodeId]) -> Result<Self, DamonError> {
        let owner = Owner::take(sysfs::ADMIN.as_ref(), owner::JOURNAL.as_ref(), 1 + nodes.len())?;
        let mut sysfs = Sysfs::open(sysfs::ADMIN.as_ref(), wanted, nodes)?;
        let ops = sysfs.ops;
        let movers = sysfs.no_movers.take().map_or_else(|| Ok(sysfs.movers.keys().copied().collect()), Err);
        let (ask, asked) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let (tell_round, rounds) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("tt-damon".into())
            .spawn(move || {
                control(sysfs, owner, max_regions, &stopped, &asked, &Tell { aims: tell, rounds: tell_round })
            })
            .map_err(|source| DamonError::Thread { source })?;
        Ok(Self { ask, told, rounds, stop, thread: Some(thread), ops, busy: false, migrating: false, movers })
    }

    /// Asks for `targets` to be monitored from now on, in place of all earlier ones. Does not wait.
    pub fn watch(&mut self, targets: Vec<Target>, intervals: Intervals) {
        // The thread ends only after `stop`, which consumes self.
        self.busy = self.ask.send(Ask::Watch(targets, intervals)).is_ok();
    }

    /// Monitors nothing until the next [`Damon::watch`]. Does not wait.
    pub fn rest(&mut self) {
        // As above; it has no answer.
        let _ = self.ask.send(Ask::Rest);
    }

    /// Has schemes do this from now on, and nothing else. Does not wait; [`Damon::round`] tells what came of it.
    pub fn migrate(&mut self, works: Vec<Work>) {
        // As in `watch`.
        self.migrating = self.ask.send(Ask::Migrate(works)).is_ok();
    }

    /// What the last [`Damon::migrate`] found. Waits for `patience` at most.
    pub fn round(&mut self, patience: Duration) -> Option<Round> {
        let round = self.rounds.recv_timeout(patience).ok();
        self.migrating &= round.is_none();
        round
    }

    /// The generation that the last [`Damon::watch`] started, once it runs. Does not wait.
    pub fn poll(&mut self) -> Option<Result<Generation, DamonError>> {
        let answer = self.told.try_recv().ok();
        self.busy &= answer.is_none();
        answer
    }
}

impl Drop for Damon {
    /// Stops our kdamonds and gives DAMON back; waits for a sampling interval each and for the command under way.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let asked = self.ask.send(Ask::Stop);
        if let Some(thread) = self.thread.take().filter(|_| asked.is_ok())
            && thread.join().is_err()
        {
            tracing::error!("the DAMON thread panicked; the next start cleans up after it");
        }
    }
}

/// Where the control thread answers.
struct Tell {
    aims: mpsc::Sender<Result<Generation, DamonError>>,
    rounds: mpsc::Sender<Round>,
}

fn control(
    mut sysfs: Sysfs,
    mut owner: Owner,
    max_regions: u32,
    stop: &AtomicBool,
    asked: &mpsc::Receiver<Ask>,
    tell: &Tell,
) {
    let mut movers = Movers::default();
    loop {
        match asked.recv() {
            Ok(Ask::Watch(targets, intervals)) => {
                let answer = restart(&mut sysfs, &mut owner, max_regions, targets, intervals);
                if tell.aims.send(answer).is_err() {
                    break;
                }
            }
            Ok(Ask::Migrate(works)) => {
                let round = movers.step(&mut sysfs.movers, &mut owner, works, stop);
                if tell.rounds.send(round).is_err() {
                    break;
                }
            }
            Ok(Ask::Rest) => {
                if let Err(error) = sysfs.monitor.stop() {
                    tracing::warn!(%error, "DAMON monitors on, with nobody to monitor for");
                }
            }
            Ok(Ask::Stop) | Err(mpsc::RecvError) => break,
        }
    }
    if let Err(error) = sysfs.stop().and_then(|()| owner.release(&mut sysfs)) {
        tracing::warn!(%error, "DAMON was not given back cleanly; the next start of tensortier does it");
    }
}

fn restart(
    sysfs: &mut Sysfs,
    owner: &mut Owner,
    max_regions: u32,
    targets: Vec<Target>,
    intervals: Intervals,
) -> Result<Generation, DamonError> {
    sysfs.monitor.stop()?;
    let grid = Grid::plan(&targets, max_regions);
    let targets = sysfs.monitor.configure(&grid, &intervals)?;
    let kdamond = owner.start(&mut sysfs.monitor)?;
    Ok(Generation { kdamond, targets, intervals, regions: grid.regions(), since: Instant::now() })
}

/// How long a change of targets may take: kdamond notices a stop once a sampling interval.
pub fn change_limit(intervals: &Intervals) -> Duration {
    intervals.sampling * 2 + Duration::from_secs(1)
}
