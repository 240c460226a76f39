//! The exerciser: a program whose hot, warm and cold memory is known exactly.
//!
//! It fills an arena on chosen nodes, gives the memory policy back, and touches its hot bytes in a loop of small units
//! (one 64 KiB stripe each). While it runs it asks the kernel each second where its touched pages lie, and at the end it
//! checks every word against the number of touches it made. What it saw is the [`Report`].
//!
//! [`options`] what is asked for, [`layout`] which addresses, [`memory`] the system calls and the words in the memory,
//! [`work`] the loops, [`sample`] where the pages lie, [`oracle`] where they had best lain.

pub mod layout;
pub mod memory;
pub mod options;
pub mod oracle;
pub mod report;
pub mod sample;
pub mod work;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use tensortier::units::Range;

pub use self::{
    layout::{Kind, Layout, Piece},
    options::Options,
    report::Report,
};
use self::{memory::Memory, sample::Sampler, work::Work};
use crate::arena;

/// Part of the bytes of a kind that must lie on the node they were asked for when the run starts.
const PLACED: f64 = 0.99;

/// Runs the whole exercise.
///
/// # Errors
/// Options that contradict each other, memory that cannot be had or placed, and nodes that cannot be read. Damaged
/// data is no error here: it is in the report.
pub fn run(options: &Options) -> Result<Report> {
    let dram = match &options.dram_nodes {
        Some(nodes) => nodes.clone(),
        None => sample::nodes_with_cpus()?,
    };
    let layout = Layout::new(options)?;
    let memory = Memory::map(&layout, options)?;
    memory.fill(&layout, options)?;
    let start = sample::placement(&layout)?;
    if !options.spill {
        check_start(options, &layout, &start)?;
    }
    let start_huge_bytes = sample::huge_bytes(&layout)?;
    let _pinned = pin(&layout, options.pin)?;

    let work = Arc::new(Work::new(options, &layout));
    memory::stop_on_signals();
    let started_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
    let began = Instant::now();
    let workers: Vec<_> = (0..options.threads)
        .map(|thread| {
            let (work, memory) = (Arc::clone(&work), memory.clone());
            thread::spawn(move || work.run(&memory, thread, began))
        })
        .collect();
    let (samples, best) =
        Sampler::new(&work, dram.clone(), options).run(began, Duration::from_secs_f64(options.seconds))?;
    work.stop();
    let mut timings = work::Timings::new();
    for worker in workers {
        match worker.join() {
            Ok(one) => timings.add(&one)?,
            Err(_) => bail!("a worker panicked"),
        }
    }
    let seconds = began.elapsed().as_secs_f64();

    let end = sample::placement(&layout)?;
    let end_huge_bytes = sample::huge_bytes(&layout)?;
    let (words, damaged_words) = memory.verify(&layout, &work);
    Ok(Report {
        options: options.clone(),
        dram_nodes: dram,
        started_unix_ms,
        seconds,
        pieces: layout.pieces.clone(),
        windows: layout.windows.clone(),
        start,
        start_huge_bytes,
        end,
        end_huge_bytes,
        checksum_ok: damaged_words == 0,
        words,
        damaged_words,
        blocks: work.blocks(),
        phases: work.phases(),
        samples,
        best,
        stalls_ns: timings.units(),
        loops_ns: timings.loops(),
        steps_ns: timings.steps(),
    })
}

/// Pins the first bytes of the hot memory for as long as the result lives.
fn pin(layout: &Layout, bytes: u64) -> Result<Option<arena::Pin>> {
    let Some(hot) = layout.ranges(Kind::Hot).next().filter(|_| bytes > 0) else { return Ok(None) };
    ensure!(bytes <= hot.bytes(), "--pin is more than the first hot range, {} bytes", hot.bytes());
    let pinned = arena::pin(Range::new(hot.start, hot.start + bytes));
    Ok(Some(pinned.with_context(|| format!("cannot pin {bytes} bytes at {:#x}", hot.start))?))
}

fn check_start(options: &Options, layout: &Layout, start: &report::Placement) -> Result<()> {
    for (kind, node) in options.start_nodes() {
        let (Some(node), Some(on)) = (node, start.0.get(&kind)) else { continue };
        let bytes = layout.bytes(kind);
        let placed = on.get(&node.to_string()).copied().unwrap_or(0);
        if (placed as f64) < bytes as f64 * PLACED {
            bail!(
                "only {placed} of {bytes} {kind:?} bytes began on node {node}: free memory there, or pass --spill to \
                 start with what fits"
            );
        }
    }
    Ok(())
}
