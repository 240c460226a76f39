//! Which single pages are hot, in blocks that are hardly used as a whole: scattered hot pages.
//!
//! DAMON looks at one page of a block at a time, so of one hot page among 512 it sees a hit now and then, and no share of
//! samples says that it is worth a move. Where such hits come, the page tables are asked, which have a bit for each page:
//! the accessed bits of the blocks in question are taken away, and read a while later.
//!
//! **Rule** (ours). A *suspect* is a block on the lower tier, with more than [`SPARSE`] pages there and less heat than
//! [`DENSE`], which one hit in the five samples of the shortest aggregation does not reach. Once [`SPOKEN`] suspects, and a
//! hundredth of them, were found accessed within the last aggregations, they are looked at: first a few of those that were
//! found accessed ([`TRIAL`] blocks), for one [`ROUND`]. Where at least half of those with accessed pages have at most
//! [`SPARSE`] of them, all are looked at, at once and for two rounds, up to [`LOOK_BYTES`] and the others the next time. A
//! page is hot that was accessed in both; of a block in which more than [`SPARSE`] pages were accessed nothing is said: that
//! is a sweep, or use that its samples show. A block with hot pages is marked for [`KEEP`]: it does not move as a whole, and
//! is no reason for another look.
//!
//! A job that fills its memory touches each page once: while it grows by a part in [`GROWTH`] each [`SETTLED`], it is not
//! looked at, and after each such part it counts as young again.
//!
//! A look that found nothing new doubles the pause before the next one, up to [`LONGEST`]: from [`FIRST`], since a young job
//! does not do yet what it will, and from [`PAUSE`] after one that found something. It is at least [`SHARE`] times what the
//! look cost.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tensortier_core::PageBits;

use super::{HeatView, Region};
use crate::units::{BLOCK, NodeId, PAGE, Pid, Range, join};

/// Suspects that must have been found accessed.
const SPOKEN: usize = 4;
/// Heat of a block that is used as a whole.
const DENSE: f32 = 0.25;
/// Aggregations that must have looked at a block for its hits to count.
const SEEN: u32 = 3;
/// By this part more memory than before is growth, and not what a step takes and gives back.
const GROWTH: usize = 16;
/// A job that has grown is not looked at for so long.
const SETTLED: Duration = Duration::from_secs(2);
/// Blocks of a first look: most jobs have nothing to find, and a look costs a walk over the page tables.
const TRIAL: usize = 24;
/// Bytes of blocks that one look takes.
const LOOK_BYTES: u64 = 1 << 30;
/// Time from taking accessed bits away to reading them.
const ROUND: Duration = Duration::from_secs(1);
/// The most pages of a block that are told apart: an eighth.
const SPARSE: u32 = 64;
/// A mark lasts so long.
const KEEP: Duration = Duration::from_secs(600);
/// Half of the pause after a first look in vain.
const FIRST: Duration = Duration::from_secs(1);
/// The pause after a look that found something, and the longest one.
const PAUSE: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(300);
/// The pause after a look is at least so many times as long as it took.
const SHARE: u32 = 20;

/// The scattered pages of one job.
#[derive(Debug)]
pub struct Scattered {
    look: Option<Look>,
    next: Option<Instant>,
    pause: Duration,
    reach: Reach,
    /// The last block of the last look.
    turn: (Pid, u64),
    known: BTreeMap<(Pid, u64), Found>,
    /// How many blocks the job had when it had last grown.
    blocks: usize,
}

impl Default for Scattered {
    fn default() -> Self {
        let (turn, known) = ((Pid(0), 0), BTreeMap::new());
        Self { look: None, next: None, pause: FIRST, reach: Reach::Few, turn, known, blocks: 0 }
    }
}

/// Which suspects the next look takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// A few, where enough were found accessed.
    Few,
    /// All, since there were hot pages among a few.
    Rest,
    /// All, where enough were found accessed.
    All,
}

/// A look under way.
#[derive(Debug)]
struct Look {
    ranges: Vec<(Pid, Range)>,
    since: Instant,
    first: Option<BTreeMap<(Pid, u64), PageBits>>,
    spent: Duration,
}

/// A marked block.
#[derive(Clone, Copy, Debug)]
struct Found {
    pages: PageBits,
    /// Those that were handed to the executor.
    asked: PageBits,
    at: Instant,
}

impl Scattered {
    /// The ranges whose accessed bits are to be taken away now, for a look to begin; mostly none. `is_lower` says of a
    /// node whether it is on a lower tier; a hit of `recent_s` seconds ago counts. `readable` is asked last, whether accessed
    /// bits can be read now.
    pub fn begin(
        &mut self,
        view: &HeatView,
        is_lower: impl Fn(NodeId) -> bool,
        recent_s: f32,
        readable: impl FnOnce() -> bool,
        now: Instant,
    ) -> &[(Pid, Range)] {
        self.watch_growth(view.regions.len(), now);
        if self.look.is_some() || self.next.is_some_and(|next| now < next) {
            return &[];
        }
        self.known.retain(|_, found| now.saturating_duration_since(found.at) < KEEP);
        let below = |region: &Region| {
            let on = region.on.iter().filter(|(node, _)| is_lower(**node)).map(|(_, bytes)| bytes).sum::<u64>();
            2 * on > region.resident() && on > u64::from(SPARSE) * PAGE
        };
        let suspect = |region: &&Region| region.unmovable == 0 && region.heat < DENSE && below(region);
        let mut suspects: Vec<&Region> = view.regions.iter().filter(suspect).collect();
        let speaks = |region: &&&Region| {
            let hit = region.seen >= SEEN && region.heat > 0.0 && region.idle_s <= recent_s;
            hit && !self.known.contains_key(&key(region))
        };
        let spoken: Vec<&Region> = suspects.iter().filter(speaks).copied().collect();
        let mut enough = spoken.len() >= SPOKEN.max(suspects.len() / 100);
        if self.reach == Reach::Rest {
            suspects.retain(|region| !self.known.contains_key(&key(region)));
            (self.reach, enough) = (Reach::All, true);
        }
        if suspects.is_empty() || !enough || !readable() {
            return &[];
        }
        // Of all that spoke evenly, since what lies together is used alike.
        let few = || spoken.iter().step_by(spoken.len().div_ceil(TRIAL)).copied().collect();
        let suspects = if self.reach == Reach::Few { few() } else { suspects };
        let at = suspects.partition_point(|region| key(region) <= self.turn);
        let (before, after) = suspects.split_at(at);
        let (mut bytes, mut taken) = (0, Vec::new());
        for region in after.iter().chain(before) {
            bytes += region.range.bytes();
            if bytes > LOOK_BYTES {
                break;
            }
            if self.reach != Reach::Few {
                self.turn = key(region);
            }
            taken.push((region.pid, region.range));
        }
        taken.sort_unstable();
        let of = |of: &[(Pid, Range)]| {
            let pid = of[0].0;
            join(of.iter().map(|(_, range)| *range), 0).into_iter().map(move |range| (pid, range)).collect::<Vec<_>>()
        };
        let ranges = taken.chunk_by(|a, b| a.0 == b.0).flat_map(of).collect();
        let look = Look { ranges, since: now, first: None, spent: Duration::ZERO };
        &self.look.insert(look).ranges
    }

    fn watch_growth(&mut self, blocks: usize, now: Instant) {
        let grows = blocks > self.blocks + self.blocks / GROWTH;
        if grows || blocks < self.blocks / 2 {
            self.blocks = blocks;
        }
        if grows && self.reach == Reach::Few && self.look.is_none() {
            (self.pause, self.next) = (FIRST, Some(now + SETTLED));
        }
    }

    /// The ranges whose accessed bits are to be read now.
    pub fn due(&self, now: Instant) -> Option<&[(Pid, Range)]> {
        let look = self.look.as_ref().filter(|look| now.saturating_duration_since(look.since) >= ROUND)?;
        Some(&look.ranges)
    }

    /// Whether a look is under way, or has its greater part before it.
    pub fn looks(&self) -> bool {
        self.look.is_some() || self.reach == Reach::Rest
    }

    /// Takes in which pages were accessed, and what asking took. Gives the ranges whose accessed bits are to be taken away
    /// for the second round; none where the look has ended.
    pub fn seen(&mut self, accessed: BTreeMap<(Pid, u64), PageBits>, spent: Duration, now: Instant) -> &[(Pid, Range)] {
        let Some(mut look) = self.look.take() else { return &[] };
        look.spent += spent;
        match look.first.take() {
            None if self.reach == Reach::Few => self.end(&look, is_promising(&accessed), now),
            None => {
                (look.first, look.since) = (Some(accessed), now);
                return &self.look.insert(look).ranges;
            }
            Some(first) => {
                let found = self.take_in(&look.ranges, &first, &accessed, now);
                self.end(&look, found, now);
            }
        }
        &[]
    }

    fn end(&mut self, look: &Look, found: bool, now: Instant) {
        self.pause = if found { PAUSE } else { (self.pause * 2).min(LONGEST) };
        self.reach = match self.reach {
            Reach::Few if found => Reach::Rest,
            _ if found => Reach::All,
            _ => Reach::Few,
        };
        self.next = (self.reach != Reach::Rest).then(|| now + self.pause.max(look.spent * SHARE));
    }

    /// Gives a look up, because the pages cannot be asked.
    pub fn give_up(&mut self, now: Instant) {
        self.look = None;
        self.pause = (self.pause * 2).min(LONGEST);
        self.next = Some(now + self.pause);
    }

    /// Whether there were hot pages that nobody had asked for yet.
    fn take_in(
        &mut self,
        ranges: &[(Pid, Range)],
        first: &BTreeMap<(Pid, u64), PageBits>,
        second: &BTreeMap<(Pid, u64), PageBits>,
        now: Instant,
    ) -> bool {
        let mut fresh = false;
        for block in ranges.iter().flat_map(|(pid, range)| range.blocks().map(|block| (*pid, block))) {
            let rounds = first.get(&block).zip(second.get(&block));
            let Some(pages) = rounds.and_then(|(first, second)| confirmed(first, second)) else {
                self.known.remove(&block);
                continue;
            };
            let found = self.known.entry(block).or_insert(Found { pages, asked: [0; 8], at: now });
            (found.pages, found.at) = (pages, now);
            fresh |= without(&pages, &found.asked) != [0; 8];
        }
        fresh
    }

    /// The hot pages of a marked block that are still to be moved; `None` where it is not marked.
    pub fn pages(&self, pid: Pid, block: u64) -> Option<PageBits> {
        let found = self.known.get(&(pid, block))?;
        Some(without(&found.pages, &found.asked))
    }

    /// Pages of a range are moved up, or down.
    pub fn moves(&mut self, pid: Pid, range: Range, up: bool) {
        for block in range.blocks() {
            if let Some(found) = self.known.get_mut(&(pid, block)) {
                for page in pages_of(block, range) {
                    let (word, bit) = (page / 64, 1 << (page % 64));
                    if up { found.asked[word] |= bit } else { found.asked[word] &= !bit }
                }
            }
        }
    }

    /// Hot pages that are known, moved or not.
    pub fn count(&self) -> u64 {
        self.known.values().map(|found| u64::from(ones(&found.pages))).sum()
    }

    /// Drops a process that has ended.
    pub fn forget(&mut self, pid: Pid) {
        self.known.retain(|(of, _), _| *of != pid);
        if let Some(look) = &mut self.look {
            look.ranges.retain(|(of, _)| *of != pid);
        }
    }
}

/// The runs of set pages of a block, within `range`.
pub fn runs(block: u64, pages: &PageBits, range: Range) -> Vec<Range> {
    let set = |page: usize| pages[page / 64] >> (page % 64) & 1 == 1;
    let start = |page: usize| block * BLOCK + page as u64 * PAGE;
    join(pages_of(block, range).filter(|page| set(*page)).map(|page| Range::new(start(page), start(page) + PAGE)), 0)
}

/// Numbers of a block's pages that lie in `range`.
fn pages_of(block: u64, range: Range) -> std::ops::Range<usize> {
    let first = block * BLOCK;
    let number = |address: u64| (address.clamp(first, first + BLOCK) - first).div_ceil(PAGE) as usize;
    number(range.start)..number(range.end)
}

/// Whether what was accessed of most blocks was a few pages: a sweep that passes leaves whole blocks.
fn is_promising(accessed: &BTreeMap<(Pid, u64), PageBits>) -> bool {
    let used = accessed.values().map(ones).filter(|pages| *pages > 0);
    let sparse = used.clone().filter(|pages| *pages <= SPARSE).count();
    sparse > 0 && 2 * sparse >= used.count()
}

/// Pages accessed in both rounds, where they were few.
fn confirmed(first: &PageBits, second: &PageBits) -> Option<PageBits> {
    let both = std::array::from_fn(|word| first[word] & second[word]);
    let either = std::array::from_fn(|word| first[word] | second[word]);
    (ones(&either) <= SPARSE && both != [0; 8]).then_some(both)
}

fn without(pages: &PageBits, others: &PageBits) -> PageBits {
    std::array::from_fn(|word| pages[word] & !others[word])
}

fn ones(pages: &PageBits) -> u32 {
    pages.iter().map(|word| word.count_ones()).sum()
}

fn key(region: &Region) -> (Pid, u64) {
    (region.pid, region.range.start / BLOCK)
}

#[cfg(test)]
#[path = "scattered_tests.rs"]
mod tests;
