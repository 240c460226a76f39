//! The kdamonds that migrate: one a node, with schemes for each job, started, changed and counted.
//!
//! Other schemes mean another start; other amounts are committed, which keeps what DAMON knows of the regions. A round
//! has a kdamond do one thing, since before 6.14 each command waits for the end of an aggregation, and ends early where
//! the agent does.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{
    cadence::Intervals,
    grid::{Grid, Target},
    kdamond::Kdamond,
    owner::Owner,
    schemes::{self, Action, Scheme, Stats},
    sysfs::DamonError,
};
use crate::units::{NodeId, Range};

/// What should run on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The node whose pages migrate.
    pub node: NodeId,
    /// Its physical addresses.
    pub ranges: Vec<Range>,
    /// How often they are looked at.
    pub intervals: Intervals,
    /// The most regions.
    pub max_regions: u32,
    /// The schemes; with none nothing runs.
    pub schemes: Vec<Scheme>,
}

/// What a scheme did since it was last told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gain {
    /// The job that it was for.
    pub job: u64,
    /// The node whose pages it tried.
    pub from: NodeId,
    /// Where they went.
    pub to: NodeId,
    /// What it does.
    pub action: Action,
    /// What was done since.
    pub stats: Stats,
}

/// What a round found.
#[derive(Debug, Default)]
pub struct Round {
    /// What schemes did.
    pub gains: Vec<Gain>,
    /// The kernel threads that run now, by node.
    pub kdamonds: BTreeMap<NodeId, u32>,
    /// Why a node's work could not be done.
    pub failed: Vec<(NodeId, DamonError)>,
}

/// What runs on a node.
#[derive(Debug)]
struct Running {
    pid: u32,
    work: Work,
    told: Vec<Stats>,
}

/// What runs on all nodes.
#[derive(Debug, Default)]
pub(super) struct Movers(BTreeMap<NodeId, Running>);

impl Movers {
    /// Carries the work on by one step of each node. What is not in `works` ends.
    pub fn step(
        &mut self,
        kdamonds: &mut BTreeMap<NodeId, Kdamond>,
        owner: &mut Owner,
        works: Vec<Work>,
        stop: &AtomicBool,
    ) -> Round {
        let mut round = Round::default();
        let mut works: BTreeMap<NodeId, Work> = works.into_iter().map(|work| (work.node, work)).collect();
        for (node, kdamond) in kdamonds {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let work = works.remove(node).filter(|work| !work.schemes.is_empty());
            if let Err(error) = self.node(*node, kdamond, owner, work, &mut round.gains) {
                round.failed.push((*node, error));
            }
        }
        round.kdamonds = self.0.iter().map(|(node, running)| (*node, running.pid)).collect();
        round
    }

    fn node(
        &mut self,
        node: NodeId,
        kdamond: &mut Kdamond,
        owner: &mut Owner,
        work: Option<Work>,
        gains: &mut Vec<Gain>,
    ) -> Result<(), DamonError> {
        if let (Some(running), Some(work)) = (self.0.get_mut(&node), &work)
            && running.is_like(work)
            && kdamond.is_on()?
        {
            if running.work.schemes == work.schemes {
                return running.count(kdamond, gains);
            }
            for (number, scheme) in work.schemes.iter().enumerate() {
                scheme.write_amount(&schemes::folder(kdamond, number))?;
            }
            kdamond.command("commit")?;
            running.work.schemes.clone_from(&work.schemes);
            return Ok(());
        }
        if let Some(mut running) = self.0.remove(&node) {
            // One that has ended by itself tells nothing more.
            let counted = running.count(kdamond, gains);
            kdamond.stop()?;
            counted?;
        }
        let Some(work) = work else { return Ok(()) };
        let target = Target { pid: None, ranges: work.ranges.clone() };
        kdamond.configure(&Grid::plan(&[target], work.max_regions), &work.intervals)?;
        write_schemes(kdamond, &work.schemes)?;
        let pid = owner.start(kdamond)?;
        let told = vec![Stats::default(); work.schemes.len()];
        self.0.insert(node, Running { pid, work, told });
        Ok(())
    }
}

fn write_schemes(kdamond: &Kdamond, all: &[Scheme]) -> Result<(), DamonError> {
    super::kdamond::write(&kdamond.context("schemes/nr_schemes"), all.len())?;
    all.iter().enumerate().try_for_each(|(number, scheme)| scheme.write(&schemes::folder(kdamond, number)))
}

impl Running {
    /// Whether `work` differs from what runs in amounts alone.
    fn is_like(&self, work: &Work) -> bool {
        let before = &self.work;
        let same = (&before.ranges, before.intervals, before.max_regions)
            == (&work.ranges, work.intervals, work.max_regions)
            && before.schemes.len() == work.schemes.len();
        same && before.schemes.iter().zip(&work.schemes).all(|(before, scheme)| before.is_like(scheme))
    }

    fn count(&mut self, kdamond: &Kdamond, gains: &mut Vec<Gain>) -> Result<(), DamonError> {
        kdamond.command("update_schemes_stats")?;
        for (number, (scheme, told)) in self.work.schemes.iter().zip(&mut self.told).enumerate() {
            let now = schemes::stats(&schemes::folder(kdamond, number))?;
            let stats = now.since(told);
            *told = now;
            let Scheme { job, target, action, .. } = *scheme;
            if stats != Stats::default() {
                gains.push(Gain { job, from: self.work.node, to: target, action, stats });
            }
        }
        Ok(())
    }
}

/// The longest aggregation of a kdamond that migrates: commands wait for one, and so does the agent's end.
pub const LONGEST_AGGREGATION: Duration = Duration::from_secs(1);
