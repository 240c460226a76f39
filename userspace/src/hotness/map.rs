//! The heat map: touches in, views out.
//!
//! Touches of one process that are at most [`SAME`] apart form one aggregation: DAMON reports all regions of a target
//! together. Within it a block's observation is the mean over the regions that touch it, weighted by overlap; so it
//! depends neither on the order of the touches nor on where equal regions are split. The aggregation is taken in when
//! the next one begins or a view is asked for.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    HeatView, Outlook, Region,
    cell::{Cell, Decay},
};
use crate::{
    job::Resident,
    source::{Touch, TouchKind},
    units::{BLOCK, Pid, Range},
};

/// Touches closer than this belong to one aggregation. DAMON's shortest useful aggregation is twice as long.
pub(super) const SAME: Duration = Duration::from_millis(50);
/// Blocks kept side by side: dense memory costs little over a cell a block, a lone block at most this many cells.
const CHUNK: u64 = 16;
/// Blocks nothing was heard of for this long are forgotten: they were unmapped, or left out of monitoring.
pub(super) const FORGET: Duration = Duration::from_secs(600);

/// How heat is learned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Seconds in which old evidence loses half its weight. Reaction and memory: a block that was always used and is
    /// used no more falls under one that began at the same moment after one half-life.
    pub half_life_s: f64,
    /// Seconds that the first aggregation of a block stands for: the monitor's base aggregation interval.
    pub aggregation_s: f64,
    /// Seconds without evidence for which heat is held before it decays; where a process's aggregations come further
    /// apart than half of this, two of them (60 s at most).
    pub silence_s: f64,
    /// Heat that a page fault gives: enough not to be the coldest, too little to be promoted for.
    pub fault_heat: f32,
    /// Blocks kept for one process; a touch that would need more is refused and counted.
    pub max_blocks: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self { half_life_s: 3.0, aggregation_s: 1.0, silence_s: 10.0, fault_heat: 0.04, max_blocks: 4 << 20 }
    }
}

/// How much a heat map holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeatStats {
    /// Processes known.
    pub processes: u64,
    /// Blocks there is room for.
    pub blocks: u64,
    /// Bytes they take, about.
    pub bytes: u64,
    /// Touches not taken in: not a number, or more blocks than [`Params::max_blocks`].
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Process {
    chunks: BTreeMap<u64, Box<[Cell; CHUNK as usize]>>,
    /// The aggregation under way.
    open: Vec<Touch>,
    /// The last one that was taken in.
    last_ms: Option<u64>,
    /// Seconds between the last two.
    spacing_s: f64,
    swept_ms: u64,
}

/// Decayed heat per process and 2 MiB block.
#[derive(Debug)]
pub struct HeatMap {
    params: Params,
    made: Instant,
    processes: BTreeMap<Pid, Process>,
    refused: u64,
}

impl HeatMap {
    /// An empty map.
    pub fn new(params: Params) -> Self {
        Self { params, made: Instant::now(), processes: BTreeMap::new(), refused: 0 }
    }

    /// Learns by other parameters from now on; what is known stays.
    pub fn set_params(&mut self, params: Params) {
        self.params = params;
    }

    /// Takes in evidence. Touches of one aggregation may come in any order and in several calls.
    pub fn observe(&mut self, touches: &[Touch]) {
        for touch in touches.iter().filter(|touch| touch.range.bytes() > 0) {
            let blocks = touch.range.blocks();
            let too_many = blocks.end.saturating_sub(blocks.start) > self.params.max_blocks;
            if !touch.weight.is_finite() || touch.weight < 0.0 || too_many {
                self.refused += 1;
                continue;
            }
            let now_ms = self.ms(touch.at);
            // Taken in before anything later, so that a transfer counts for the aggregation under way when it happened.
            let open = self.processes.get(&touch.pid).and_then(|process| process.open.first());
            if open.is_some_and(|open| match touch.kind {
                TouchKind::Access => apart(open.at, touch.at) > SAME,
                TouchKind::Fault | TouchKind::Transfer => touch.at > open.at + SAME,
            }) {
                self.settle(touch.pid);
            }
            let params = self.params;
            let process = self.processes.entry(touch.pid).or_default();
            let full = process.chunks.len() as u64 * CHUNK >= params.max_blocks;
            if full && blocks.clone().any(|block| process.cell(block).is_none()) {
                self.refused += 1;
                continue;
            }
            let decay = process.decay(&params);
            match touch.kind {
                TouchKind::Access => process.open.push(*touch),
                TouchKind::Fault if touch.weight == 0.0 => {}
                TouchKind::Fault => {
                    for block in blocks {
                        process.cell_mut(block).faulted(params.fault_heat, now_ms, &decay);
                    }
                }
                TouchKind::Transfer if touch.weight == 0.0 => {}
                TouchKind::Transfer => {
                    for block in blocks {
                        let share = overlap(block, &touch.range) as f32 / BLOCK as f32;
                        process.cell_mut(block).transferred(share, now_ms, &decay);
                    }
                }
            }
        }
    }

    /// Drops a process that has ended.
    pub fn forget(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// How much is held.
    pub fn stats(&self) -> HeatStats {
        let blocks = self.processes.values().map(|process| process.chunks.len() as u64 * CHUNK).sum();
        HeatStats {
            processes: self.processes.len() as u64,
            blocks,
            bytes: blocks * size_of::<Cell>() as u64,
            refused: self.refused,
        }
    }

    /// The heat of what is resident. `unmovable` gives the bytes of a range that cannot move now.
    ///
    /// A block of which nothing was heard is in the view with `seen` 0: not known to be cold.
    pub fn view(&mut self, residents: &[Resident], unmovable: &dyn Fn(Pid, Range) -> u64, now: Instant) -> HeatView {
        for pid in self.processes.keys().copied().collect::<Vec<_>>() {
            self.settle(pid);
        }
        let now_ms = self.ms(now);
        let mut regions: Vec<Region> = residents
            .iter()
            .filter(|resident| resident.range.bytes() > 0)
            .map(|resident| {
                let process = self.processes.get(&resident.pid);
                let decay = process.map_or_else(|| Process::default().decay(&self.params), |p| p.decay(&self.params));
                let cell =
                    process.and_then(|process| process.cell(resident.range.start / BLOCK)).copied().unwrap_or_default();
                Region {
                    pid: resident.pid,
                    range: resident.range,
                    heat: cell.heat(now_ms, &decay),
                    seen: cell.seen(),
                    idle_s: cell.idle_s(now_ms),
                    on: resident.on.clone(),
                    unmovable: unmovable(resident.pid, resident.range),
                    outlook: Outlook::default(),
                    expected: false,
                    pages: None,
                }
            })
            .collect();
        regions.sort_by_key(|region| (region.pid, region.range));
        HeatView { at: now, regions }
    }

    /// Takes the aggregation under way of one process in.
    fn settle(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let mut open = std::mem::take(&mut process.open);
        let Some(at) = open.iter().map(|touch| touch.at).max() else { return };
        let now_ms = at.saturating_duration_since(self.made).as_millis() as u64 + 1;
        // The order within an aggregation means nothing; sorted, its sums are the same to the last bit.
        open.sort_by(|a, b| a.range.cmp(&b.range).then(a.weight.total_cmp(&b.weight)));
        let decay = process.decay(&self.params);
        for (block, weight, _) in means(&open) {
            process.cell_mut(block).looked(weight, now_ms, &decay);
        }
        if let Some(last_ms) = process.last_ms {
            process.spacing_s = now_ms.saturating_sub(last_ms) as f64 / 1e3;
        }
        process.last_ms = Some(now_ms);
        process.sweep(now_ms);
    }

    /// Milliseconds since the map was made, from 1, so that 0 is never.
    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.made).as_millis() as u64 + 1
    }
}

impl Process {
    fn cell(&self, block: u64) -> Option<&Cell> {
        self.chunks.get(&(block / CHUNK)).map(|cells| &cells[(block % CHUNK) as usize]).filter(|cell| cell.known())
    }

    fn cell_mut(&mut self, block: u64) -> &mut Cell {
        &mut self.chunks.entry(block / CHUNK).or_default()[(block % CHUNK) as usize]
    }

    fn decay(&self, params: &Params) -> Decay {
        Decay {
            half_life_s: params.half_life_s.max(1e-3),
            nominal_s: params.aggregation_s,
            unwatched_s: params.aggregation_s.max(1.5 * self.spacing_s),
            silence_s: params.silence_s.max((2.0 * self.spacing_s).min(60.0)),
            last: std::cell::Cell::default(),
        }
    }

    fn sweep(&mut self, now_ms: u64) {
        let forget_ms = FORGET.as_millis() as u64;
        if now_ms.saturating_sub(self.swept_ms) > forget_ms / 10 {
            self.swept_ms = now_ms;
            self.chunks.retain(|_, cells| cells.iter().any(|cell| now_ms.saturating_sub(cell.at_ms()) < forget_ms));
        }
    }
}

/// The mean weight of each block that sorted touches cover, weighted by overlap, and how many blocks they cover alike.
pub(super) fn means(touches: &[Touch]) -> Vec<(u64, f32, f32)> {
    let mut parts: Vec<(u64, f64, u64, f64)> = Vec::new();
    for touch in touches {
        let weight = f64::from(touch.weight.min(1.0));
        let alike = (touch.range.bytes() as f64 / BLOCK as f64).max(1.0);
        parts.extend(touch.range.blocks().filter_map(|block| {
            let bytes = overlap(block, &touch.range);
            (bytes > 0).then_some((block, weight * bytes as f64, bytes, alike * bytes as f64))
        }));
    }
    parts.sort_by_key(|part| part.0);
    parts
        .chunk_by(|a, b| a.0 == b.0)
        .map(|parts| {
            let add =
                |sum: (f64, u64, f64), part: &(_, f64, u64, f64)| (sum.0 + part.1, sum.1 + part.2, sum.2 + part.3);
            let (sum, bytes, alike): (f64, u64, f64) = parts.iter().fold((0.0, 0, 0.0), add);
            (parts[0].0, (sum / bytes as f64) as f32, (alike / bytes as f64) as f32)
        })
        .collect()
}

/// Bytes of a range that lie in a block.
pub(super) fn overlap(block: u64, range: &Range) -> u64 {
    range.end.min((block + 1).saturating_mul(BLOCK)).saturating_sub(range.start.max(block * BLOCK))
}

fn apart(a: Instant, b: Instant) -> Duration {
    a.max(b) - a.min(b)
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
