//! Looks at single pages of jobs under `auto` ([`crate::hotness::scattered`]): the accessed bits of a job's page tables,
//! taken away by `process_madvise` and read by an iterator of ours. Nothing of it happens to jobs that are watched alone.

use std::{
    collections::BTreeMap,
    mem,
    thread::{self, JoinHandle},
    time::Instant,
};

use tensortier_core::{AccessedPages, PageBits};

use super::{Agent, jobs::Job};
use crate::{
    config::{Mode, PolicyKind},
    job::memory::Memory,
    policy::Move,
    units::{NodeSet, Pid, Range},
};

/// A hit of so many aggregations ago counts.
const RECENT: u32 = 3;

/// The program that reads accessed bits. Loading it costs as much as the agent's ordinary work of a minute, and few jobs
/// need it: it is loaded when one does, on the side.
#[derive(Default)]
pub(super) enum Pages {
    #[default]
    Unasked,
    Loading(JoinHandle<Option<AccessedPages>>),
    Loaded(Box<AccessedPages>),
    Missing,
}

impl Pages {
    /// The program, once it is loaded.
    fn get(&mut self) -> Option<&mut AccessedPages> {
        match self {
            Self::Unasked => {
                let load = || {
                    let refused = |error| tracing::info!(%error, "scattered hot pages are not told apart");
                    AccessedPages::new().map_err(refused).ok()
                };
                let loading = thread::Builder::new().name("tt-pages".into()).spawn(load);
                *self = loading.map_or(Self::Missing, Self::Loading);
            }
            Self::Loading(loading) if loading.is_finished() => {
                if let Self::Loading(loading) = mem::replace(self, Self::Missing)
                    && let Ok(Some(loaded)) = loading.join()
                {
                    *self = Self::Loaded(Box::new(loaded));
                }
            }
            _ => {}
        }
        match self {
            Self::Loaded(pages) => Some(pages),
            _ => None,
        }
    }
}

impl Agent {
    /// Reads what the looks under way have seen; whether one has found hot pages.
    pub(super) fn see_closer(&mut self, now: Instant) -> bool {
        let mut found = false;
        for job in self.jobs.iter_mut() {
            let Some(due) = job.scattered.due(now) else { continue };
            let began = Instant::now();
            let read = self.pages.get().map_or(Err("the program is gone".to_owned()), |pages| read(pages, due));
            match read {
                Ok(accessed) => {
                    let before = job.scattered.count();
                    let again = job.scattered.seen(accessed, began.elapsed(), now);
                    let cooled = cool(&self.memory, again);
                    let (took, hot) = (began.elapsed(), job.scattered.count());
                    found |= hot > before;
                    tracing::debug!(job = job.id, ?took, cooled, hot, "single pages were looked at");
                }
                Err(error) => {
                    tracing::debug!(job = job.id, error, "single pages cannot be looked at");
                    job.scattered.give_up(now);
                }
            }
        }
        found
    }

    /// Begins looks at jobs in which single pages may be hot.
    pub(super) fn look_closer(&mut self, now: Instant) {
        let lower = self.host.lower();
        let recent_s = (self.cadence.now().aggregation * RECENT).as_secs_f32();
        let default = self.config.policy.policy;
        let looks = |job: &&mut Job| {
            let by_policy = job.asked.policy.unwrap_or(default) == PolicyKind::Auto;
            by_policy && job.asked.mode == Mode::Migrate && job.plans()
        };
        for job in self.jobs.iter_mut().filter(looks) {
            let readable = || self.pages.get().is_some();
            let begun = job.scattered.begin(&job.view, |node| lower.contains(node), recent_s, readable, now);
            if !begun.is_empty() {
                let cooled = cool(&self.memory, begun);
                tracing::debug!(job = job.id, cooled, "a look at single pages begins");
            }
        }
    }

    /// Whether looks are under way or about to begin, which wait for a tick.
    pub(super) fn looks_closer(&self) -> bool {
        matches!(&self.pages, Pages::Loading(loading) if !loading.is_finished())
            || self.jobs.iter().any(|job| job.plans() && job.scattered.looks())
    }
}

/// Notes which of a job's single pages a plan moves.
pub(super) fn note(job: &mut Job, moves: &[Move], top: &NodeSet) {
    moves.iter().for_each(|step| job.scattered.moves(step.pid, step.range, top.contains(step.to)));
}

fn read(pages: &mut AccessedPages, ranges: &[(Pid, Range)]) -> Result<BTreeMap<(Pid, u64), PageBits>, String> {
    let mut accessed = BTreeMap::new();
    for (pid, range) in ranges {
        let mut found = BTreeMap::new();
        pages.read(pid.0, range.blocks(), &mut found).map_err(|error| error.to_string())?;
        accessed.extend(found.into_iter().map(|(block, bits)| ((*pid, block), bits)));
    }
    Ok(accessed)
}

/// Takes accessed bits away; the bytes of which they were.
fn cool(memory: &Memory, ranges: &[(Pid, Range)]) -> u64 {
    let cooled = |(pid, range): &&(Pid, Range)| match memory.cool(*pid, *range) {
        Ok(()) => true,
        Err(error) => {
            // It reads as used throughout then, which says nothing.
            tracing::debug!(%error, "accessed bits stay");
            false
        }
    };
    ranges.iter().filter(cooled).map(|(_, range)| range.bytes()).sum()
}
