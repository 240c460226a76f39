//! The work that shares calls: the moves of one process between one pair of nodes, and what came of each so far.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{
    Cause, Outcome,
    pace::{Lane, Took},
};
use crate::{
    policy::Move,
    units::{PAGE, Pid, Range},
};

/// Pages still to be moved.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub range: Range,
    pub of: usize,
    pub tries: u32,
}

pub fn add(queue: &mut VecDeque<Work>, range: Range, of: usize, tries: u32) {
    match queue.back_mut() {
        Some(last) if last.range.end == range.start && (last.of, last.tries) == (of, tries) => {
            last.range.end = range.end
        }
        _ => queue.push_back(Work { range, of, tries }),
    }
}

/// One page, small or huge: of which move it is, and how often it was tried.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub address: u64,
    pub of: usize,
    pub tries: u32,
}

/// Takes up to `count` pages from the front.
pub fn take(queue: &mut VecDeque<Work>, count: usize, unit: u64) -> Vec<Page> {
    let mut pages = Vec::new();
    while pages.len() < count
        && let Some(work) = queue.front_mut()
    {
        pages.push(Page { address: work.range.start, of: work.of, tries: work.tries });
        work.range.start += unit * PAGE;
        if work.range.start >= work.range.end {
            queue.pop_front();
        }
    }
    pages
}

/// An address of no process: the kernel migrates what it has queued when it meets it.
pub const FENCE: u64 = !(PAGE - 1);

/// The pages' addresses with a fence after every `segment` of them.
pub fn fenced(pages: &[Page], segment: usize) -> Vec<u64> {
    let mut addresses = Vec::with_capacity(pages.len() + pages.len() / segment.max(1));
    for chunk in pages.chunks(segment.max(1)) {
        if !addresses.is_empty() {
            addresses.push(FENCE);
        }
        addresses.extend(chunk.iter().map(|page| page.address));
    }
    addresses
}

/// Where a page is.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    From,
    Other(Cause),
}

impl Lane {
    pub fn place(&self, status: i32) -> Place {
        match u32::try_from(status) {
            Ok(node) if node == self.from.0 => Place::From,
            Ok(node) if node == self.to.0 => Place::Other(Cause::AlreadyThere),
            Ok(_) => Place::Other(Cause::Elsewhere),
            Err(_) => Place::Other(Cause::Absent),
        }
    }
}

/// Moves that share calls, and what came of each so far.
pub struct Group<'a> {
    pub pid: Pid,
    pub outcomes: Vec<Outcome>,
    pub small: VecDeque<Work>,
    pub again: VecDeque<Work>,
    /// Why nothing more of it is asked.
    pub over: Option<Cause>,
    pub stop: &'a AtomicBool,
}

impl<'a> Group<'a> {
    pub fn new(plan: u64, moves: &[Move], stop: &'a AtomicBool) -> Self {
        let outcomes: Vec<_> = moves.iter().map(|asked| Outcome::new(plan, asked.clone())).collect();
        let pid = moves[0].pid;
        Self { pid, outcomes, small: VecDeque::new(), again: VecDeque::new(), over: None, stop }
    }

    pub fn asked(&self) -> &Move {
        &self.outcomes[0].asked
    }

    pub fn moved(&self) -> u64 {
        self.outcomes.iter().map(|outcome| outcome.moved).sum()
    }

    /// Why no more calls are made for it, if so.
    pub fn ended(&self) -> Option<Cause> {
        self.over.or_else(|| self.stop.load(Ordering::Relaxed).then_some(Cause::Untried))
    }

    pub fn fail_all(&mut self, pages: &[Page], unit: u64, cause: Cause) {
        pages.iter().for_each(|page| self.outcomes[page.of].fail(cause, unit));
    }

    pub fn end(&mut self, pages: &[Page], unit: u64, cause: Cause) {
        self.over = Some(cause);
        self.fail_all(pages, unit, cause);
    }

    pub fn count_call(&mut self, batch: &[Page], took: Took, stall: Duration) {
        self.outcomes[batch[0].of].calls += 1;
        let share = took.wall / batch.len() as u32;
        for page in batch {
            let outcome = &mut self.outcomes[page.of];
            outcome.in_calls += share;
            outcome.longest_call = outcome.longest_call.max(took.wall);
            outcome.longest_stall = outcome.longest_stall.max(stall);
        }
    }
}
