//! The executor's thread: plans in, outcomes out. Moving blocks for as long as pages take, and nothing else of the agent
//! waits for it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    migrate::{Executor, Outcome, Params},
    policy::Plan,
    sys,
    units::PAGE,
};

/// The first plan's bytes, before anything is known of how fast pages move here.
const FIRST_BUDGET: u64 = 16 << 20;
/// A plan never gets less: under two blocks nothing can be swapped.
const LEAST_BUDGET: u64 = 8 << 20;
/// A plan is cut to what moves in about this time, so that decisions stay fresh.
const HORIZON: Duration = Duration::from_secs(1);

enum Told {
    Outcome(Box<Outcome>),
    /// How long the plan took, and the thread's CPU time so far.
    Finished(Duration, Duration),
}

/// The thread, and what it showed of the speed of moving.
pub struct Mover {
    plans: Option<mpsc::Sender<Plan>>,
    told: mpsc::Receiver<Told>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    busy: bool,
    moved_bytes: u64,
    budget: u64,
    cpu: Duration,
}

impl Mover {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(params: Params) -> io::Result<Self> {
        let (plans, planned) = mpsc::channel::<Plan>();
        let (tell, told) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("tt-migrate".into()).spawn(move || {
            let mut executor = Executor::new(params);
            for plan in planned {
                let start = Instant::now();
                // A send fails only when the agent is gone, and then `stop` is set.
                executor.run_each(&plan, &stopped, |outcome| drop(tell.send(Told::Outcome(Box::new(outcome)))));
                drop(tell.send(Told::Finished(start.elapsed(), sys::thread_cpu_time())));
            }
        })?;
        let (plans, thread) = (Some(plans), Some(thread));
        Ok(Self { plans, told, stop, thread, busy: false, moved_bytes: 0, budget: FIRST_BUDGET, cpu: Duration::ZERO })
    }

    /// Whether a plan is being carried out.
    pub fn busy(&self) -> bool {
        self.busy
    }

    /// Bytes that the next plan should be cut to.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// CPU time of the finished plans: nearly all of it is the kernel's, copying pages.
    pub fn cpu(&self) -> Duration {
        self.cpu
    }

    /// Hands a plan over.
    pub fn carry_out(&mut self, plan: Plan) {
        self.moved_bytes = 0;
        self.busy = self.plans.as_ref().is_some_and(|plans| plans.send(plan).is_ok());
    }

    /// What came of moves since the last call. Does not wait.
    pub fn outcomes(&mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        while let Ok(told) = self.told.try_recv() {
            match told {
                Told::Outcome(outcome) => {
                    self.moved_bytes += outcome.moved * PAGE;
                    outcomes.push(*outcome);
                }
                Told::Finished(took, cpu) => {
                    (self.busy, self.cpu) = (false, cpu);
                    tracing::debug!(moved_bytes = self.moved_bytes, ?took, "plan carried out");
                    self.learn(took);
                }
            }
        }
        outcomes
    }

    fn learn(&mut self, took: Duration) {
        self.budget = next_budget(self.budget, self.moved_bytes, took);
    }
}

/// The budget follows the speed of the last plan, half of the way at a time; less after a short plan that was a small part
/// of it, whose time is that of a call and not of the pages.
fn next_budget(budget: u64, moved_bytes: u64, took: Duration) -> u64 {
    if moved_bytes == 0 {
        return budget;
    }
    let (last, moved) = (budget as f64, moved_bytes as f64);
    let in_horizon = moved * HORIZON.as_secs_f64() / took.as_secs_f64().max(1e-3);
    // A plan smaller than the budget says that this much can be moved, not that no more can.
    let weight = if took >= HORIZON { 0.5 } else { (moved / last).min(1.0) / 2.0 };
    ((last + weight * (in_horizon.min(2.0 * last) - last)) as u64).max(LEAST_BUDGET)
}

impl Mover {
    /// Ends it: waits for the call under way, which the stall cap bounds. What came of moves can still be taken.
    pub fn halt(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.plans = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the migration thread panicked");
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.halt();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_follows_plans_that_fill_it_and_hardly_one_of_a_few_pages() {
        let after = |moved: u64, ms: u64| next_budget(64 << 20, moved << 20, Duration::from_millis(ms)) >> 20;
        assert_eq!((after(64, 2000), after(64, 250), after(0, 5)), (48, 96, 64), "slower, faster, nothing");
        let few = next_budget(64 << 20, 2 * PAGE, Duration::from_millis(7));
        assert_eq!(after(8, 4000), 33, "slow, however little");
        assert!(few >> 20 == 63, "a call of 7 ms says nothing of 64 MiB: {few}");
        assert_eq!(next_budget(LEAST_BUDGET, LEAST_BUDGET, Duration::from_secs(60)), LEAST_BUDGET);
    }
}
