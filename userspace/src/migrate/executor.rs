//! Carries out a plan, move by move, with exact counts of what came of it.
//!
//! ```text
//! plan → group (moves of one process between one pair of nodes; a call may span them)
//!          → populated? → huge pages: one address for each → verify, take apart what the kernel split ─┐
//!                       → small pages ←──────────────────────────────────────────────────────────────┘
//!          query → keep pages on `from` → each call: tokens → alive? → move_pages → alive? → settle, query what is unsaid
//! ```
//!
//! A page that was tried and did not move is tried again, after the others and after a pause, `max_tries` times in all;
//! then it is reported as stuck. Moving is always MPOL_MF_MOVE: pages that other processes map too stay, and are counted.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{
    Cause, Outcome,
    bucket::Bucket,
    group::{FENCE, Group, Page, Place, Work, add, fenced, take},
    kernel::{Kernel, Pages},
    pace::{Lane, Pace, Took},
    settle::{self, Said},
};
use crate::{
    observe::usdt,
    policy::Plan,
    sys::{SysError, UNWRITTEN},
    units::{BLOCK, PAGE, Range},
};

const BLOCK_PAGES: u64 = BLOCK / PAGE;
/// Moves of one process and direction share calls up to this much, so that outcomes keep coming.
const GROUP: u64 = 256 << 20;
/// Pages asked about in one query: many calls' worth.
const SLICE: usize = 4096;
/// The longest sleep before the stop flag is looked at again.
const NAP: Duration = Duration::from_millis(50);

/// The limits that the executor keeps.
#[derive(Clone, Debug)]
pub struct Params {
    /// Bytes a second that may move, on average; `None`: no limit.
    pub rate_bytes_per_sec: Option<u64>,
    /// Bytes that may move at once after a rest.
    pub burst_bytes: u64,
    /// How long a thread of the job may wait for a page under migration.
    pub stall_cap: Duration,
    /// How often one page is tried before it is called stuck; at least 1.
    pub max_tries: u32,
    /// The pause before the second try; doubled before each further one.
    pub retry_pause: Duration,
    /// The most that one call asks for, in bytes.
    pub largest_call_bytes: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            rate_bytes_per_sec: None,
            burst_bytes: 256 << 20,
            stall_cap: Duration::from_millis(20),
            max_tries: 3,
            retry_pause: Duration::from_millis(2),
            largest_call_bytes: 64 << 20,
        }
    }
}

/// Moves pages as plans say. Synchronous: it belongs on a thread of its own.
#[derive(Debug)]
pub struct Executor<P: Pages = Kernel> {
    pages: P,
    params: Params,
    bucket: Option<Bucket>,
    pace: Pace,
}

impl Executor {
    /// An executor over the kernel that this program runs on.
    pub fn new(params: Params) -> Self {
        Self::over(Kernel::default(), params)
    }
}

impl<P: Pages> Executor<P> {
    /// An executor over any kernel.
    pub fn over(pages: P, params: Params) -> Self {
        let bucket = params.rate_bytes_per_sec.map(|rate| Bucket::new(rate, params.burst_bytes, pages.now()));
        let pace = Pace::new(params.stall_cap, params.largest_call_bytes);
        Self { pages, params, bucket, pace }
    }

    /// The kernel it works on.
    pub fn pages(&mut self) -> &mut P {
        &mut self.pages
    }

    /// Carries out the plan's moves in their order; one outcome a move, in the same order. Once `stop` is set no further
    /// call is made, and what is left is counted as untried.
    pub fn run(&mut self, plan: &Plan, stop: &AtomicBool) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(plan.moves.len());
        self.run_each(plan, stop, |outcome| outcomes.push(outcome));
        outcomes
    }

    /// As [`Self::run`], and hands over each outcome as soon as it is known.
    pub fn run_each(&mut self, plan: &Plan, stop: &AtomicBool, mut each: impl FnMut(Outcome)) {
        let mut moves = plan.moves.as_slice();
        while let Some(first) = moves.first() {
            let mut bytes = 0;
            let alike = moves.iter().take_while(|m| {
                bytes += m.range.bytes();
                (m.pid, m.from, m.to) == (first.pid, first.from, first.to) && bytes <= GROUP
            });
            let (group, rest) = moves.split_at(alike.count().max(1));
            group.iter().for_each(|asked| usdt::migrate_start(asked, plan.id));
            let mut run = Group::new(plan.id, group, stop);
            self.run_group(&mut run);
            run.outcomes.into_iter().for_each(|outcome| {
                usdt::moved(&outcome);
                each(outcome);
            });
            moves = rest;
        }
    }

    fn run_group(&mut self, group: &mut Group<'_>) {
        let mut huge = VecDeque::new();
        if let Err(error) = self.pages.open(group.pid) {
            let cause = settle::for_all(&error).unwrap_or(Cause::Forbidden);
            group.outcomes.iter_mut().for_each(|outcome| outcome.fail(cause, outcome.asked.range.pages()));
            return;
        }
        for of in 0..group.outcomes.len() {
            if let Err(error) = self.find(group, of, &mut huge) {
                let outcome = &mut group.outcomes[of];
                outcome.fail(settle::for_all(&error).unwrap_or(Cause::Forbidden), outcome.asked.range.pages());
            }
        }
        self.pass(group, huge, BLOCK_PAGES);
        // Whatever of the huge pages turned out to be small by then has joined these.
        let small = std::mem::take(&mut group.small);
        self.pass(group, small, 1);
    }

    /// Finds what is populated of one move: whole huge pages, and the rest.
    fn find(&mut self, group: &mut Group<'_>, of: usize, huge: &mut VecDeque<Work>) -> Result<(), SysError> {
        let asked = group.outcomes[of].asked.range;
        let mut found = 0;
        for extent in self.pages.populated(group.pid, asked)? {
            found += extent.range.pages();
            let Range { start, end } = extent.range;
            let whole = Range::new(start.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
            let work = |range| Work { range, of, tries: 0 };
            if extent.huge && whole.bytes() > 0 {
                huge.push_back(work(whole));
                let ends = [Range::new(start, whole.start), Range::new(whole.end, end)];
                group.small.extend(ends.into_iter().filter(|range| range.bytes() > 0).map(work));
            } else {
                group.small.push_back(work(extent.range));
            }
        }
        group.outcomes[of].fail(Cause::Absent, asked.pages().saturating_sub(found));
        Ok(())
    }

    /// Moves everything in `queue`, then what failed of it, until nothing is left to try.
    fn pass(&mut self, group: &mut Group<'_>, mut queue: VecDeque<Work>, unit: u64) {
        let lane = Lane { from: group.asked().from, to: group.asked().to, unit };
        let mut pause = self.params.retry_pause;
        loop {
            while !queue.is_empty() {
                let pages = take(&mut queue, SLICE, unit);
                let mut slice = self.on_from(group, pages, lane);
                while !slice.is_empty() {
                    let count = self.pace.call(lane).min(slice.len());
                    let batch: Vec<Page> = slice.drain(..count).collect();
                    match group.ended() {
                        Some(cause) => self.abandon(group, batch, lane, cause),
                        None => self.batch(group, batch, lane, &mut slice),
                    }
                }
            }
            queue = std::mem::take(&mut group.again);
            let Some(first) = queue.front() else { return };
            self.wait(group, first.of, pause, 0);
            pause *= 2;
        }
    }

    /// Keeps the pages that are on the node they should leave, and counts the others. Asked for many calls' worth at once:
    /// a page that an earlier one's folio takes along was on `from` then, and its status says where it is.
    fn on_from(&mut self, group: &mut Group<'_>, pages: Vec<Page>, lane: Lane) -> VecDeque<Page> {
        if let Some(cause) = group.ended() {
            let (asked, fresh): (Vec<_>, Vec<_>) = pages.into_iter().partition(|page| page.tries > 0);
            group.fail_all(&fresh, lane.unit, cause);
            self.abandon(group, asked, lane, cause);
            return VecDeque::new();
        }
        let places = self.places(group, &pages.iter().map(|page| page.address).collect::<Vec<_>>(), lane);
        let mut kept = VecDeque::with_capacity(pages.len());
        for (page, place) in pages.into_iter().zip(places) {
            match place {
                Place::From => kept.push_back(page),
                // It was on `from` before it was tried.
                Place::Other(Cause::AlreadyThere) if page.tries > 0 => group.outcomes[page.of].moved += lane.unit,
                Place::Other(cause) => group.outcomes[page.of].fail(cause, lane.unit),
            }
        }
        kept
    }

    fn batch(&mut self, group: &mut Group<'_>, batch: Vec<Page>, lane: Lane, slice: &mut VecDeque<Page>) {
        let pages = batch.len() as u64 * lane.unit;
        if !self.draw(group, batch[0].of, pages * PAGE) {
            return self.abandon(group, batch, lane, Cause::Untried);
        }
        if !self.pages.alive(group.pid) {
            return group.end(&batch, lane.unit, Cause::ProcessGone);
        }
        let segment = self.pace.segment(lane);
        let addresses = fenced(&batch, segment);
        let mut status = vec![UNWRITTEN; addresses.len()];
        let (start, busy) = (self.pages.now(), self.pages.busy());
        let returned = self.pages.move_to(group.pid, &addresses, lane.to, &mut status);
        let took = Took { wall: self.pages.now() - start, busy: self.pages.busy() - busy };
        let mut said = settle::read(&returned, &status, lane.to);
        let mut fences = addresses.iter().map(|address| *address == FENCE);
        said.retain(|_| fences.next() == Some(false));
        let tried = said.iter().filter(|said| **said != Said::Untried).count() as u64 * lane.unit;
        group.count_call(&batch, took, Pace::stall(tried, segment as u64 * lane.unit, took));
        if returned.is_ok() {
            self.pace.learn(lane, tried, took);
        }
        // What an ended process had is freed: nothing can be said of it, moved pages included.
        if !self.pages.alive(group.pid) {
            return group.end(&batch, lane.unit, Cause::ProcessGone);
        }
        if let Err(error) = &returned {
            group.over = settle::for_all(error);
        }
        let (first, moved_before) = (batch[0].of, group.moved());
        if lane.unit == 1 {
            self.settle_small(group, batch, said, lane, slice);
        } else {
            self.settle_huge(group, batch, &said, lane, slice);
        }
        if let Some(bucket) = &mut self.bucket {
            bucket.give_back(pages.saturating_sub(group.moved() - moved_before) * PAGE);
        }
        if self.pace.beyond(lane) {
            group.outcomes[first].over_cap += tried;
        }
    }

    /// Gives up pages that were on `from`; those that an earlier page's folio took along have moved all the same.
    fn abandon(&mut self, group: &mut Group<'_>, pages: Vec<Page>, lane: Lane, cause: Cause) {
        if lane.unit > 1 || cause == Cause::ProcessGone {
            return group.fail_all(&pages, lane.unit, cause);
        }
        let places = self.places(group, &pages.iter().map(|page| page.address).collect::<Vec<_>>(), lane);
        for (page, place) in pages.into_iter().zip(places) {
            match place {
                Place::Other(Cause::AlreadyThere) => group.outcomes[page.of].moved += 1,
                _ => group.outcomes[page.of].fail(cause, 1),
            }
        }
    }

    fn settle_small(
        &mut self,
        group: &mut Group<'_>,
        batch: Vec<Page>,
        said: Vec<Said>,
        lane: Lane,
        slice: &mut VecDeque<Page>,
    ) {
        let mut open = Vec::new();
        for (page, said) in batch.into_iter().zip(said) {
            match said {
                Said::There => group.outcomes[page.of].moved += 1,
                Said::Failed(cause @ (Cause::Absent | Cause::Shared)) => group.outcomes[page.of].fail(cause, 1),
                // Some of a call that ran out of memory may have moved.
                Said::Failed(_) | Said::Tried | Said::Untried => open.push((page, said)),
            }
        }
        let places = self.places(group, &open.iter().map(|(page, _)| page.address).collect::<Vec<_>>(), lane);
        for ((page, said), place) in open.into_iter().zip(places) {
            match place {
                Place::Other(Cause::AlreadyThere) => group.outcomes[page.of].moved += 1,
                Place::Other(cause) => group.outcomes[page.of].fail(cause, 1),
                Place::From => self.left(group, page, 1, said, slice),
            }
        }
    }

    fn settle_huge(
        &mut self,
        group: &mut Group<'_>,
        batch: Vec<Page>,
        said: &[Said],
        lane: Lane,
        slice: &mut VecDeque<Page>,
    ) {
        let heads = self.places(group, &batch.iter().map(|page| page.address).collect::<Vec<_>>(), lane);
        for ((page, said), head) in batch.into_iter().zip(said).zip(heads) {
            let block = Range::new(page.address, page.address + BLOCK);
            let found = self.pages.populated(group.pid, block);
            if !matches!(found.as_deref(), Ok([one]) if one.huge && one.range == block) {
                // Split meanwhile: the head speaks for itself alone.
                self.take_apart(group, block, page.of, lane);
                continue;
            }
            match (head, said) {
                (Place::Other(Cause::AlreadyThere), _) => group.outcomes[page.of].moved += BLOCK_PAGES,
                (Place::Other(cause), _) => group.outcomes[page.of].fail(cause, BLOCK_PAGES),
                (Place::From, Said::Failed(cause @ (Cause::Absent | Cause::Shared))) => {
                    group.outcomes[page.of].fail(*cause, BLOCK_PAGES);
                }
                (Place::From, said) => self.left(group, page, BLOCK_PAGES, *said, slice),
            }
        }
    }

    /// Counts the pages of what was one huge page, and puts those still on `from` with the small ones.
    fn take_apart(&mut self, group: &mut Group<'_>, block: Range, of: usize, lane: Lane) {
        let addresses: Vec<u64> = (block.start..block.end).step_by(PAGE as usize).collect();
        for (address, place) in addresses.iter().zip(self.places(group, &addresses, lane)) {
            match place {
                Place::Other(Cause::AlreadyThere) => group.outcomes[of].moved += 1,
                Place::Other(cause) => group.outcomes[of].fail(cause, 1),
                Place::From => add(&mut group.small, Range::new(*address, address + PAGE), of, 0),
            }
        }
    }

    /// A page of `unit` base pages that a call left on `from`.
    fn left(&mut self, group: &mut Group<'_>, page: Page, unit: u64, said: Said, slice: &mut VecDeque<Page>) {
        let range = Range::new(page.address, page.address + unit * PAGE);
        let outcome = &mut group.outcomes[page.of];
        match said {
            Said::Failed(cause) => outcome.fail(cause, unit),
            Said::Untried => slice.push_back(page),
            Said::There | Said::Tried if page.tries + 1 < self.params.max_tries => {
                add(&mut group.again, range, page.of, page.tries + 1);
            }
            Said::There | Said::Tried => {
                outcome.fail(Cause::Busy, unit);
                match outcome.stuck.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => outcome.stuck.push(range),
                }
            }
        }
    }

    fn places(&mut self, group: &mut Group<'_>, addresses: &[u64], lane: Lane) -> Vec<Place> {
        let mut status = vec![UNWRITTEN; addresses.len()];
        if addresses.is_empty() {
            return Vec::new();
        }
        match self.pages.nodes(group.pid, addresses, &mut status) {
            Ok(()) => status.into_iter().map(|status| lane.place(status)).collect(),
            Err(error) => {
                let cause = settle::for_all(&error).unwrap_or(Cause::Forbidden);
                group.over = Some(cause);
                vec![Place::Other(cause); addresses.len()]
            }
        }
    }

    /// Waits until `bytes` may move; false if the executor was stopped first.
    fn draw(&mut self, group: &mut Group<'_>, of: usize, bytes: u64) -> bool {
        loop {
            let now = self.pages.now();
            let Some(Err(wait)) = self.bucket.as_mut().map(|bucket| bucket.draw(bytes, now)) else { return true };
            if group.stop.load(Ordering::Relaxed) {
                return false;
            }
            let short = self.params.rate_bytes_per_sec.unwrap_or(0) as f64 * wait.as_secs_f64();
            self.wait(group, of, wait.clamp(Duration::from_micros(50), NAP), short as u64);
        }
    }

    /// Sleeps in naps, so that a stop is heard; counted as throttled. `short`: bytes that there are no tokens for.
    fn wait(&mut self, group: &mut Group<'_>, of: usize, time: Duration, short: u64) {
        let mut left = time;
        while !left.is_zero() && !group.stop.load(Ordering::Relaxed) {
            let nap = left.min(NAP);
            self.pages.sleep(nap);
            group.outcomes[of].throttled += nap;
            left -= nap;
        }
        usdt::throttled(short, time - left);
    }
}
