//! The arena itself: its system calls, and the words in it.
//!
//! Each cache line starts with a word. The fill writes a value that follows from the line's place; each touch adds one.
//! So the right value of every word follows from the counts of touches, and a page that was lost, mixed up or copied
//! while it was written shows.
#![allow(unsafe_code)]

use std::{
    io, ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result, ensure};
use tensortier::units::{NodeId, PAGE, Range};

use super::{
    layout::{Kind, Layout},
    options::{Options, Thp},
    work::Work,
};

/// Bytes of a cache line.
pub const LINE: u64 = 64;
/// Most pages asked about in one call.
const QUERY: usize = 1 << 14;
/// Nodes that a mask of ours can name.
const MAX_NODES: usize = 1024;

static STOP: AtomicBool = AtomicBool::new(false);

/// The words of the arena's ranges, which stay mapped until the process ends.
#[derive(Clone, Debug)]
pub struct Memory {
    base: u64,
    lines_per_page: u64,
}

/// Reserves address space without memory behind it, aligned to a huge page.
///
/// # Errors
/// No such address space.
pub fn reserve(bytes: u64) -> Result<Range> {
    const HUGE: u64 = 2 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory of ours.
    let at = unsafe { libc::mmap(ptr::null_mut(), (bytes + HUGE) as usize, libc::PROT_NONE, flags, -1, 0) };
    ensure!(at != libc::MAP_FAILED, "cannot reserve {bytes} bytes: {}", io::Error::last_os_error());
    let start = (at as u64).next_multiple_of(HUGE);
    Ok(Range::new(start, start + bytes))
}

impl Memory {
    /// Makes the pieces of the layout writable.
    ///
    /// # Errors
    /// The range and the system's reason.
    pub fn map(layout: &Layout, options: &Options) -> Result<Self> {
        for piece in &layout.pieces {
            let (at, length) = parts(piece.range);
            // SAFETY: the range lies in our own reservation, in which nothing else was placed.
            let done = unsafe { libc::mprotect(at, length, libc::PROT_READ | libc::PROT_WRITE) };
            check(done, "mprotect", piece.range)?;
            let advice = match options.thp {
                Thp::Always => libc::MADV_HUGEPAGE,
                Thp::Never => libc::MADV_NOHUGEPAGE,
            };
            // SAFETY: as above; neither advice changes contents.
            check(unsafe { libc::madvise(at, length, advice) }, "madvise", piece.range)?;
        }
        Ok(Self { base: layout.reserved.start, lines_per_page: options.lines_per_page })
    }

    /// Writes every word but those of what grows, each kind on the node it is meant to begin on, and gives the memory
    /// policy back.
    ///
    /// # Errors
    /// The range, where the policy cannot be set.
    pub fn fill(&self, layout: &Layout, options: &Options) -> Result<()> {
        for (kind, node) in options.start_nodes() {
            for range in layout.ranges(kind) {
                if let Some(node) = node {
                    prefer(range, Some(node))?;
                }
                for line in (range.start..range.end).step_by(LINE as usize) {
                    // SAFETY: the line lies in a writable piece, and no worker runs yet.
                    unsafe { ptr::write_volatile(line as *mut u64, self.first_value(line)) };
                }
                if node.is_some() {
                    prefer(range, None)?;
                }
            }
        }
        Ok(())
    }

    /// Adds one to the chosen lines of each page of a unit of work. The caller owns the unit, which lies in a piece of
    /// the layout.
    pub fn touch(&self, unit: Range) {
        for page in (unit.start..unit.end).step_by(PAGE as usize) {
            for n in 0..self.lines_per_page {
                let word = (page + self.chosen(n)) as *mut u64;
                // SAFETY: `Work` hands out only units of writable pieces, each to one thread.
                unsafe { ptr::write_volatile(word, ptr::read_volatile(word).wrapping_add(1)) };
            }
        }
    }

    /// Compares every word with what the touches made it; gives words and wrong words.
    pub fn verify(&self, layout: &Layout, work: &Work) -> (u64, u64) {
        let chosen: Vec<u64> = (0..self.lines_per_page).map(|n| self.chosen(n)).collect();
        let (mut words, mut damaged) = (0, 0);
        for piece in &layout.pieces {
            // What grows was not filled: the kernel's zeros.
            let filled = piece.kind != Kind::Growing;
            for line in (piece.range.start..piece.range.end).step_by(LINE as usize) {
                let touches = if chosen.contains(&(line % PAGE)) { work.touches(line) } else { 0 };
                // SAFETY: the line lies in a readable piece, and the workers have ended.
                let word = unsafe { ptr::read_volatile(line as *const u64) };
                words += 1;
                let first = if filled { self.first_value(line) } else { 0 };
                damaged += u64::from(word != first.wrapping_add(touches));
            }
        }
        (words, damaged)
    }

    /// Offset in a page of the n-th line that a touch goes to; they are spread over the page.
    fn chosen(&self, n: u64) -> u64 {
        n * (PAGE / LINE) / self.lines_per_page * LINE
    }

    fn first_value(&self, line: u64) -> u64 {
        mix((line - self.base) / LINE)
    }
}

/// Scatters the bits of `x` (finaliser of SplitMix64: Steele, Lea, Flood 2014, fig. 17).
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Node of each page of this process, by `move_pages(2)` without a target; negative: an errno (ENOENT: not present).
///
/// # Errors
/// The call's own failure.
pub fn nodes_of(pages: &[u64]) -> Result<Vec<i32>> {
    let mut nodes = vec![-libc::ENOENT; pages.len()];
    for (pages, nodes) in pages.chunks(QUERY).zip(nodes.chunks_mut(QUERY)) {
        // SAFETY: both arrays are as long as the count says; without target nodes the kernel only writes the status.
        let done = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                pages.len(),
                pages.as_ptr(),
                ptr::null::<i32>(),
                nodes.as_mut_ptr(),
                0,
            )
        };
        ensure!(done >= 0, "move_pages cannot say where pages lie: {}", io::Error::last_os_error());
    }
    Ok(nodes)
}

/// Lets SIGTERM and SIGINT end the run early; the report is written all the same.
pub fn stop_on_signals() {
    extern "C" fn stop(_: libc::c_int) {
        STOP.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, stop as *const () as libc::sighandler_t) };
    }
}

/// Whether a signal asked for the end.
pub fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Prefers a node for pages of the range that are not there yet, or gives the policy back.
fn prefer(range: Range, node: Option<NodeId>) -> Result<()> {
    const MPOL_DEFAULT: libc::c_ulong = 0;
    const MPOL_PREFERRED: libc::c_ulong = 1;
    let mut mask = [0u64; MAX_NODES / 64];
    let mode = match node {
        None => MPOL_DEFAULT,
        Some(NodeId(id)) => {
            let word = mask.get_mut(id as usize / 64).with_context(|| format!("no kernel has a node {id}"))?;
            *word = 1 << (id % 64);
            MPOL_PREFERRED
        }
    };
    let (at, length) = parts(range);
    // The kernel takes one bit fewer than it is told.
    let bits = MAX_NODES + 1;
    // SAFETY: the mask holds as many bits as the kernel reads; the policy changes no contents.
    let done = unsafe { libc::syscall(libc::SYS_mbind, at, length, mode, mask.as_ptr(), bits, 0) };
    check(done as libc::c_int, "mbind", range)
}

fn parts(range: Range) -> (*mut libc::c_void, usize) {
    (range.start as *mut libc::c_void, range.bytes() as usize)
}

fn check(done: libc::c_int, call: &str, range: Range) -> Result<()> {
    ensure!(done == 0, "{call} on {:#x}..{:#x}: {}", range.start, range.end, io::Error::last_os_error());
    Ok(())
}
