//! A kernel that behaves as do_pages_move (mm/migrate.c, 6.12) does, over pages that a test describes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use super::{group::FENCE, kernel::Pages};
use crate::{
    sys::{Extent, SysError, UNWRITTEN},
    units::{BLOCK, NodeId, PAGE, Pid, Range},
};

/// What is the matter with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    No,
    /// Isolated, and never migrates: a long-term pin.
    Pinned,
    /// Fails to migrate so many times.
    Slow(u32),
    /// Cannot be isolated so many times: EBUSY in its status.
    OffList(u32),
    /// Mapped by several processes.
    Shared,
}

/// One resident page.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub node: NodeId,
    pub trouble: Trouble,
}

/// The kernel.
#[derive(Debug)]
pub struct Fake {
    pub pages: BTreeMap<u64, Page>,
    /// Heads of huge pages.
    pub huge: BTreeSet<u64>,
    /// How often each folio was tried, by its first address.
    pub tried: HashMap<u64, u32>,
    pub calls: u32,
    pub largest: usize,
    /// Base pages that still fit on the target.
    pub room: u64,
    /// Errors of whole calls, by call number.
    pub errors: HashMap<u32, i32>,
    /// The process ends in this call.
    pub dies_in: Option<u32>,
    /// Huge pages split when this call begins.
    pub splits_in: Option<u32>,
    /// This flag is set in this call.
    pub stops_in: Option<(u32, &'static AtomicBool)>,
    pub dead: bool,
    pub fixed: Duration,
    pub each: Duration,
    pub slept: Duration,
    /// The longest that pages were unmapped.
    pub longest: Duration,
    pub busy: Duration,
    pub start: Instant,
    pub elapsed: Duration,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            pages: BTreeMap::new(),
            huge: BTreeSet::new(),
            tried: HashMap::new(),
            calls: 0,
            largest: 0,
            room: u64::MAX,
            errors: HashMap::new(),
            dies_in: None,
            splits_in: None,
            stops_in: None,
            dead: false,
            fixed: Duration::from_micros(300),
            each: Duration::from_micros(20),
            slept: Duration::ZERO,
            longest: Duration::ZERO,
            busy: Duration::ZERO,
            start: Instant::now(),
            elapsed: Duration::ZERO,
        }
    }
}

impl Fake {
    /// Populates a range on a node.
    pub fn fill(&mut self, range: Range, node: u32) {
        let page = Page { node: NodeId(node), trouble: Trouble::No };
        self.pages.extend((range.start..range.end).step_by(PAGE as usize).map(|address| (address, page)));
    }

    /// Populates whole blocks with huge pages.
    pub fn fill_huge(&mut self, range: Range, node: u32) {
        self.fill(range, node);
        self.huge.extend((range.start..range.end).step_by(BLOCK as usize));
    }

    pub fn trouble(&mut self, address: u64, trouble: Trouble) {
        if let Some(page) = self.pages.get_mut(&address) {
            page.trouble = trouble;
        }
    }

    pub fn on(&self, range: Range, node: u32) -> u64 {
        self.pages.range(range.start..range.end).filter(|(_, page)| page.node.0 == node).count() as u64
    }

    fn head(&self, address: u64) -> u64 {
        let block = address / BLOCK * BLOCK;
        if self.huge.contains(&block) { block } else { address }
    }

    fn folio(&self, head: u64) -> Range {
        Range::new(head, head + if self.huge.contains(&head) { BLOCK } else { PAGE })
    }

    fn gone(&self, pid: Pid) -> Result<(), SysError> {
        if self.dead { Err(SysError::Gone { pid }) } else { Ok(()) }
    }

    /// add_folio_for_migration: a status at once, or the folio's head, queued.
    fn queue(&mut self, address: u64, to: NodeId, queue: &[u64]) -> Result<u64, i32> {
        if address == FENCE {
            return Err(-libc::EFAULT);
        }
        let head = self.head(address);
        let Some(page) = self.pages.get(&head).copied() else { return Err(-libc::ENOENT) };
        if page.node == to {
            return Err(to.0 as i32);
        }
        if queue.contains(&head) {
            return Err(-libc::EBUSY);
        }
        match page.trouble {
            Trouble::Shared => Err(-libc::EACCES),
            Trouble::OffList(times) => {
                *self.tried.entry(head).or_default() += 1;
                self.trouble(head, if times > 1 { Trouble::OffList(times - 1) } else { Trouble::No });
                Err(-libc::EBUSY)
            }
            _ => Ok(head),
        }
    }

    /// migrate_pages: how many folios did not move, or ENOMEM.
    fn flush(&mut self, queue: &mut Vec<u64>, to: NodeId) -> Result<u64, i32> {
        let mut failed = 0;
        let mut segment = Duration::ZERO;
        for head in queue.drain(..) {
            let folio = self.folio(head);
            segment += self.each * folio.pages() as u32;
            if self.room < folio.pages() {
                return Err(libc::ENOMEM);
            }
            *self.tried.entry(head).or_default() += 1;
            match self.pages[&head].trouble {
                Trouble::Pinned => failed += 1,
                Trouble::Slow(times) => {
                    failed += 1;
                    self.trouble(head, if times > 1 { Trouble::Slow(times - 1) } else { Trouble::No });
                }
                _ => {
                    self.room -= folio.pages();
                    self.pages.range_mut(folio.start..folio.end).for_each(|(_, page)| page.node = to);
                }
            }
        }
        self.longest = self.longest.max(segment);
        self.busy += segment;
        self.elapsed += segment;
        Ok(failed)
    }
}

impl Pages for Fake {
    fn open(&mut self, pid: Pid) -> Result<(), SysError> {
        self.gone(pid)
    }

    fn alive(&mut self, _: Pid) -> bool {
        !self.dead
    }

    fn populated(&mut self, pid: Pid, range: Range) -> Result<Vec<Extent>, SysError> {
        self.gone(pid)?;
        let mut found: Vec<Extent> = Vec::new();
        for address in self.pages.range(range.start..range.end).map(|(address, _)| *address) {
            let huge = self.head(address) != address || self.huge.contains(&address);
            match found.last_mut() {
                Some(last) if last.range.end == address && last.huge == huge => last.range.end += PAGE,
                _ => found.push(Extent { range: Range::new(address, address + PAGE), huge }),
            }
        }
        Ok(found)
    }

    fn nodes(&mut self, pid: Pid, addresses: &[u64], status: &mut [i32]) -> Result<(), SysError> {
        self.gone(pid)?;
        for (address, status) in addresses.iter().zip(status) {
            *status = self.pages.get(address).map_or(-libc::ENOENT, |page| page.node.0 as i32);
        }
        Ok(())
    }

    fn move_to(&mut self, pid: Pid, addresses: &[u64], to: NodeId, status: &mut [i32]) -> Result<u64, SysError> {
        status.fill(UNWRITTEN);
        self.calls += 1;
        self.largest = self.largest.max(addresses.len());
        self.elapsed += self.fixed;
        if let Some((_, stop)) = self.stops_in.filter(|(call, _)| *call == self.calls) {
            stop.store(true, Ordering::Relaxed);
        }
        if self.splits_in == Some(self.calls) {
            self.huge.clear();
        }
        self.dead |= self.dies_in == Some(self.calls);
        self.gone(pid)?;
        let error = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            SysError::Call { call: "move_pages", pid, range: Range::new(0, 0), source }
        };
        if let Some(errno) = self.errors.get(&self.calls) {
            return Err(error(*errno));
        }
        let (mut queue, mut start) = (Vec::new(), 0);
        for (i, address) in addresses.iter().enumerate() {
            match self.queue(*address, to, &queue) {
                Ok(head) => queue.push(head),
                Err(said) => {
                    status[i] = said;
                    let failed = self.flush(&mut queue, to).map_err(error)?;
                    if failed > 0 {
                        return Ok(failed + (addresses.len() - i) as u64);
                    }
                    status[start..i].fill(to.0 as i32);
                    start = i + 1;
                }
            }
        }
        let failed = self.flush(&mut queue, to).map_err(error)?;
        if failed == 0 {
            status[start..].fill(to.0 as i32);
        }
        Ok(failed)
    }

    fn now(&self) -> Instant {
        self.start + self.elapsed
    }

    fn busy(&self) -> Duration {
        self.busy
    }

    fn sleep(&mut self, time: Duration) {
        self.elapsed += time;
        self.slept += time;
    }
}
