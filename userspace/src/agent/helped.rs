//! Whether moving helps a job, and the end of moving where it makes the job slower.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use super::{Agent, jobs::Job};
use crate::{
    config::Mode,
    observe::progress::{Moves, Progress, Tracker, Work},
    policy::Reason,
    source::work::{Count, WorkCounters},
    units::Pid,
};

/// Shorter samples are mostly noise.
const SAMPLE: Duration = Duration::from_secs(1);
/// At rest a sample may take so long.
const LONGEST_SAMPLE: Duration = Duration::from_secs(20);
/// Jobs whose work is looked at in one tick, beside a quarter of all: a tick must not take long.
const JOBS_A_TICK: usize = 2;

/// One job's work, and what became of its rate.
#[derive(Default)]
pub(super) struct Helped {
    counters: WorkCounters,
    tracker: Tracker,
    last: Option<Look>,
    /// Figures of the slower spells for which moving was stopped.
    stopped: Option<String>,
}

#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    count: Count,
    /// Pages that moved so far to make the job faster, and those that had to go for others.
    moved: (u64, u64),
}

impl Helped {
    /// Counts a process, and what it makes from now on.
    pub fn watch(&mut self, pid: Pid) {
        self.counters.watch(pid);
    }

    /// Whether the last sample is so old.
    fn is_due(&self, spacing: Duration, now: Instant) -> bool {
        self.last.is_none_or(|last| now.duration_since(last.at) >= spacing)
    }

    /// Takes a sample. `moving`: some pages are on the way.
    fn look(&mut self, processes: &BTreeSet<Pid>, moved: (u64, u64), moving: bool, now: Instant) {
        let count = self.counters.read(processes);
        self.take(Look { at: now, count, moved }, moving);
    }

    fn take(&mut self, look: Look, moving: bool) {
        let Some(last) = self.last.replace(look) else { return };
        let (work, before) = match (look.count, last.count) {
            (Count::Instructions(now), Count::Instructions(before)) => (now, before),
            (Count::Calls(now), Count::Calls(before)) => (now, before),
            // The counters were refused only now: the rates so far are of another kind.
            _ => return self.tracker.restart(),
        };
        let seconds = look.at.duration_since(last.at).as_secs_f64();
        let moves = match (look.moved.1 != last.moved.1, moving || look.moved.0 != last.moved.0) {
            (true, _) => Moves::ForOthers,
            (false, true) => Moves::ForIt,
            (false, false) => Moves::None,
        };
        self.tracker.add(work.saturating_sub(before) as f64 / seconds, moves);
    }

    /// Whether moving should end now; true once.
    fn stops(&mut self) -> bool {
        let stops = self.stopped.is_none() && self.tracker.stops();
        if stops {
            self.stopped = Some(self.tracker.figures());
        }
        stops
    }

    /// Moving was resumed: what was before is no comparison any more.
    pub fn go_on(&mut self) {
        if self.stopped.take().is_some() {
            self.tracker.restart();
        }
    }

    /// What can be said.
    pub fn progress(&self) -> Progress {
        let work = self.last.map(|last| match last.count {
            Count::Instructions(_) => Work::Instructions,
            Count::Calls(_) => Work::Calls,
        });
        Progress { work, stopped: self.stopped.is_some(), ..self.tracker.progress() }
    }

    /// Whether it is this that stopped moving.
    pub fn has_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// What the reader should know of a job that runs slower.
    pub fn note(&self, name: &str) -> Option<String> {
        if let Some(figures) = &self.stopped {
            return Some(format!(
                "nothing moves any more, since the job ran slower after moves twice in a row ({figures}); \
                 `tensortier resume {name}` goes on"
            ));
        }
        self.tracker.slower().then(|| "the job ran slower after the last moves; once more, and moving stops".to_owned())
    }
}

impl Agent {
    /// Time between two looks at what is not urgent: an eighth of the time since something was to move (ours), within
    /// [`SAMPLE`] and [`LONGEST_SAMPLE`].
    pub(super) fn seldom(&self) -> Duration {
        (self.acted.elapsed() / 8).clamp(SAMPLE, LONGEST_SAMPLE)
    }

    /// Looks whether moving helps, and stops it for a job that it makes slower.
    pub(super) fn weigh(&mut self, now: Instant) {
        if !self.host.is_two_tier() {
            return;
        }
        let spacing = self.seldom();
        let a_tick = JOBS_A_TICK + self.jobs.iter().count() / 4;
        let due = |job: &&mut Job| job.asked.mode == Mode::Migrate && !job.leaving && job.helped.is_due(spacing, now);
        let mut due: Vec<&mut Job> = self.jobs.iter_mut().filter(due).collect();
        due.sort_by_key(|job| job.helped.last.map(|last| last.at));
        for job in due.into_iter().take(a_tick) {
            let for_it = |reason| matches!(reason, Reason::Hot | Reason::MakeRoom | Reason::Spread);
            let by_schemes = job.schemes.moved().iter().map(|moved| moved.pages).sum::<u64>();
            let moved = (job.ledger.moved_pages(for_it) + by_schemes, job.ledger.moved_pages(|reason| !for_it(reason)));
            let moving = job.under_way > 0;
            job.helped.look(&job.processes, moved, moving, now);
            if job.moves() && job.helped.stops() {
                let (job_name, figures) = (&job.asked.name, job.helped.stopped.as_deref());
                tracing::warn!(job = job_name, figures, "slower after moves twice in a row: moving stops");
                job.paused = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::observe::progress::Verdict;

    /// Looks of one second each, as the counters would give them.
    fn seconds(helped: &mut Helped, rate: u64, moves: bool, count: u64) {
        for _ in 0..count {
            let last = helped.last.unwrap_or(Look { at: Instant::now(), count: Count::Calls(0), moved: (0, 0) });
            let Count::Calls(calls) = last.count else { panic!("these looks are of calls") };
            let moved = (last.moved.0 + u64::from(moves), 0);
            helped.take(Look { at: last.at + SAMPLE, count: Count::Calls(calls + rate), moved }, false);
        }
    }

    #[test]
    fn a_job_that_moves_make_slower_is_said_then_stopped_and_goes_on_anew() {
        let mut helped = Helped::default();
        seconds(&mut helped, 1000, false, 17);
        assert_eq!((helped.note("train"), helped.progress().before.unwrap().per_second), (None, 1000.0));
        seconds(&mut helped, 500, true, 3);
        seconds(&mut helped, 800, false, 10);
        assert!(helped.note("train").unwrap().contains("once more") && !helped.stops());
        seconds(&mut helped, 500, true, 3);
        seconds(&mut helped, 600, false, 10);
        assert!(helped.stops() && !helped.stops() && helped.progress().stopped);
        let note = helped.note("train").unwrap();
        assert!(note.contains("1.0 k to 800, then 800 to 600") && note.contains("tensortier resume train"), "{note}");
        helped.go_on();
        assert_eq!((helped.note("train"), helped.progress().verdict), (None, None));
    }

    #[test]
    fn pages_that_go_for_others_are_told_apart() {
        let (mut helped, at) = (Helped::default(), Instant::now());
        let mut look = |n: u32, calls: u64, moved| {
            helped.take(Look { at: at + SAMPLE * n, count: Count::Calls(calls), moved }, false);
        };
        (0..17).for_each(|n| look(n, u64::from(n) * 100, (0, 0)));
        look(17, 1700, (1, 512));
        (18..30).for_each(|n| look(n, 1700 + u64::from(n - 17) * 50, (1, 512)));
        assert_eq!((helped.progress().verdict, helped.note("a")), (Some(Verdict::Slower), None));
    }

    #[test]
    fn another_kind_of_count_begins_anew() {
        let mut helped = Helped::default();
        let at = Instant::now();
        (0..17).for_each(|n| {
            helped.take(
                Look { at: at + SAMPLE * n, count: Count::Instructions(u64::from(n) << 30), moved: (0, 0) },
                false,
            );
        });
        assert!(helped.progress().before.is_some());
        helped.take(Look { at: at + SAMPLE * 17, count: Count::Calls(5), moved: (0, 0) }, false);
        let progress = helped.progress();
        assert_eq!((progress.work, progress.before), (Some(Work::Calls), None));
    }
}
