//! Where the pages lie, by the kernel's word.

use std::{
    collections::BTreeMap,
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tensortier::units::{NodeSet, PAGE};

use super::{
    layout::Layout,
    memory,
    options::Options,
    oracle::{Best, Oracle},
    report::{Placement, Sample},
    work::Work,
};

/// Places in each unit whose pages stand for it.
const PER_UNIT: u64 = 2;
const PERIOD: Duration = Duration::from_secs(1);
/// How late the end of the run may be noticed.
const NAP: Duration = Duration::from_millis(20);

/// Takes a [`Sample`] a second.
#[derive(Debug)]
pub struct Sampler<'a> {
    work: &'a Work,
    dram: NodeSet,
    oracle: Option<Oracle>,
    accesses: Vec<u64>,
    /// When the last sample was taken.
    last: f64,
}

impl<'a> Sampler<'a> {
    /// Nothing sampled yet.
    pub fn new(work: &'a Work, dram: NodeSet, options: &Options) -> Self {
        let oracle = options.oracle_dram.map(|dram| Oracle::new(dram, work.unit_bytes(), options.oracle_seconds));
        Self { accesses: vec![0; work.units().len()], work, dram, oracle, last: 0.0 }
    }

    /// Samples until the run's end or a signal; the last sample is of the end. Also what the oracle says.
    ///
    /// # Errors
    /// Where the kernel does not say where pages lie.
    pub fn run(mut self, began: Instant, length: Duration) -> Result<(Vec<Sample>, Vec<Best>)> {
        let mut samples = Vec::new();
        let mut next = PERIOD;
        loop {
            let now = began.elapsed();
            let ended = now >= length || memory::stopped();
            if ended || now >= next {
                samples.push(self.sample(now)?);
                // A look that took longer than a period skips the periods it missed.
                while next <= began.elapsed() {
                    next += PERIOD;
                }
            }
            if ended {
                return Ok((samples, self.oracle.map(Oracle::finish).unwrap_or_default()));
            }
            thread::sleep(NAP.min(length.saturating_sub(now)));
        }
    }

    fn sample(&mut self, at: Duration) -> Result<Sample> {
        let (phase, window) = self.work.now();
        let accesses = self.work.accesses();
        let since: Vec<u64> = accesses.iter().zip(&self.accesses).map(|(now, then)| now - then).collect();
        self.accesses = accesses;
        if let Some(oracle) = &mut self.oracle {
            let began = self.work.phases().get(phase as usize).copied().unwrap_or(self.last);
            oracle.take(self.last, at.as_secs_f64(), phase, began, &since);
        }
        self.last = at.as_secs_f64();
        let apart = self.work.unit_bytes() / PER_UNIT;
        let asked: Vec<usize> = (0..since.len()).filter(|n| since[*n] > 0 || window.contains(n)).collect();
        let pages: Vec<u64> = asked
            .iter()
            .flat_map(|n| (0..PER_UNIT).map(move |place| (*n, place)))
            .map(|(n, place)| (self.work.units()[n] + place * apart) / PAGE * PAGE)
            .collect();
        let nodes = memory::nodes_of(&pages)?;

        let mut hot: BTreeMap<String, f64> = BTreeMap::new();
        let (mut hot_dram, mut access_dram, mut total) = (0.0, 0.0, 0);
        for (unit, nodes) in asked.iter().zip(nodes.chunks(PER_UNIT as usize)) {
            let on_dram = nodes.iter().filter(|node| self.on_dram(**node)).count() as f64 / PER_UNIT as f64;
            total += since[*unit];
            access_dram += since[*unit] as f64 * on_dram;
            if window.contains(unit) {
                hot_dram += on_dram / window.len() as f64;
                for node in nodes {
                    *hot.entry(name(*node)).or_default() += 1.0 / (window.len() as u64 * PER_UNIT) as f64;
                }
            }
        }
        Ok(Sample {
            at: at.as_secs_f64(),
            phase,
            hot,
            hot_dram,
            access_dram: if total > 0 { access_dram / total as f64 } else { hot_dram },
            accesses: total,
            longest_stall_ns: self.work.take_longest_stall(),
        })
    }

    fn on_dram(&self, node: i32) -> bool {
        u32::try_from(node).is_ok_and(|node| self.dram.0.iter().any(|dram| dram.0 == node))
    }
}

/// Bytes of each kind by node, from every page.
///
/// # Errors
/// Where the kernel does not say where pages lie.
pub fn placement(layout: &Layout) -> Result<Placement> {
    let mut placement = Placement::default();
    for piece in &layout.pieces {
        let pages: Vec<u64> = (piece.range.start..piece.range.end).step_by(PAGE as usize).collect();
        let on = placement.0.entry(piece.kind).or_default();
        for node in memory::nodes_of(&pages)? {
            *on.entry(name(node)).or_default() += PAGE;
        }
    }
    Ok(placement)
}

/// Bytes of the arena in huge pages.
///
/// # Errors
/// /proc/self/smaps cannot be read.
pub fn huge_bytes(layout: &Layout) -> Result<u64> {
    let smaps = fs::read_to_string("/proc/self/smaps").context("cannot read /proc/self/smaps")?;
    let (mut ours, mut bytes) = (false, 0);
    for line in smaps.lines() {
        let first = line.split_ascii_whitespace().next().unwrap_or("");
        if let Some((start, end)) = first.split_once('-') {
            let addresses = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16));
            if let (Ok(start), Ok(end)) = addresses {
                ours = start < layout.reserved.end && end > layout.reserved.start;
            }
        } else if ours && first == "AnonHugePages:" {
            let kibibytes = line.split_ascii_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
            bytes += kibibytes.with_context(|| format!("smaps has an unknown line {line:?}"))? << 10;
        }
    }
    Ok(bytes)
}

/// Nodes that have CPUs.
///
/// # Errors
/// The file, where it cannot be read.
pub fn nodes_with_cpus() -> Result<NodeSet> {
    const PATH: &str = "/sys/devices/system/node/has_cpu";
    let text = fs::read_to_string(PATH).with_context(|| format!("cannot read {PATH}: pass --dram-nodes"))?;
    text.parse().with_context(|| format!("{PATH} holds {text:?}"))
}

fn name(node: i32) -> String {
    u32::try_from(node).map_or_else(|_| "none".to_owned(), |node| node.to_string())
}
