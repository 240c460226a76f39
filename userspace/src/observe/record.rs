//! From what an agent says of a job to a trace of it.
//!
//! The job's populated memory is cut on a grid so coarse that there are at most [`REGIONS`] pieces when the recording
//! begins; a piece is a region of the trace. It dies where it is resident no more, and is born again where its resident
//! bytes have changed by a quarter. Its heat in an interval is the share of looks that found it accessed; where the
//! monitor did not look at it meanwhile, the last one stands. Lines are left open: the monitor does not count them.

use std::{collections::BTreeMap, io::Write};

use tensortier_replay::{
    trace::{Born, Header, Interval, Process, Sample, TraceError, Writer},
    workload::Pattern,
};

use crate::{
    control::{Looks, ProcessLooks},
    units::BLOCK,
};

/// The most pieces that a recording begins with.
pub const REGIONS: u64 = 4096;

/// Writes one job's trace.
pub struct Recorder<W: Write> {
    writer: Writer<W>,
    /// Bytes of the grid; 0 until the first interval with memory.
    grain: u64,
    processes: BTreeMap<u32, u32>,
    regions: BTreeMap<(u32, u64), Known>,
    count: usize,
    at_ms: u64,
}

/// A region that lives.
#[derive(Clone, Copy, Debug)]
struct Known {
    number: usize,
    bytes: u64,
    looks: f64,
    found: f64,
    heat: u16,
}

/// A piece of the grid as it was last told.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    bytes: u64,
    looks: f64,
    found: f64,
}

impl<W: Write> Recorder<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// As those of [`Writer::new`].
    pub fn new(to: W, header: &Header) -> Result<Self, TraceError> {
        let (processes, regions) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { writer: Writer::new(to, header)?, grain: 0, processes, regions, count: 0, at_ms: 0 })
    }

    /// Adds an interval: all that was seen since the last one.
    ///
    /// # Errors
    /// As those of [`Writer::interval`].
    pub fn take(&mut self, looks: &Looks) -> Result<(), TraceError> {
        // An agent that was asked before anybody else counts from then on.
        self.at_ms = self.at_ms.max(looks.since_ms);
        let mut interval = Interval { at: self.at_ms.saturating_mul(1_000_000), ..Interval::default() };
        if self.grain == 0 {
            let blocks: usize = looks.processes.iter().map(|process| process.blocks.len()).sum();
            self.grain = (blocks as u64).div_ceil(REGIONS).next_power_of_two() * BLOCK * u64::from(blocks > 0);
        }
        let grain = self.grain.max(BLOCK);
        let pieces: BTreeMap<(u32, u64), Piece> =
            looks.processes.iter().flat_map(|process| pieces(process, grain)).collect();
        let gone = |of: &(u32, u64), known: &Known| {
            pieces.get(of).is_none_or(|piece| piece.bytes.abs_diff(known.bytes) > known.bytes / 4)
        };
        let dead: Vec<(u32, u64)> =
            self.regions.iter().filter(|(of, known)| gone(of, known)).map(|(of, _)| *of).collect();
        interval.died.extend(dead.iter().filter_map(|of| self.regions.remove(of)).map(|known| known.number));
        interval.died.sort_unstable();
        for process in &looks.processes {
            let next = self.processes.len() as u32;
            self.processes.entry(process.pid.0).or_insert_with(|| {
                interval.processes.push(Process { pid: process.pid.0, name: process.name.clone() });
                next
            });
        }
        for (of, piece) in &pieces {
            let known = self.regions.entry(*of).or_insert_with(|| {
                let born = Born {
                    process: self.processes[&of.0],
                    start: piece.start,
                    bytes: piece.bytes,
                    pattern: Pattern::Random,
                };
                interval.born.push(born);
                self.count += 1;
                // What was found before it was born belongs to nobody.
                Known { number: self.count - 1, bytes: piece.bytes, looks: piece.looks, found: piece.found, heat: 0 }
            });
            let (looks, found) = (piece.looks - known.looks, piece.found - known.found);
            if looks > 0.0 {
                known.heat = (1000.0 * (found / looks).clamp(0.0, 1.0)).ceil() as u16;
            }
            (known.looks, known.found) = (piece.looks, piece.found);
            if known.heat > 0 {
                interval.samples.push(Sample { region: known.number, heat: known.heat, read: 0, written: 0 });
            }
        }
        interval.samples.sort_unstable_by_key(|sample| sample.region);
        self.writer.interval(&interval)
    }

    /// Regions that were ever seen.
    pub fn regions(&self) -> usize {
        self.count
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// As those of [`Writer::finish`].
    pub fn finish(self) -> Result<W, TraceError> {
        self.writer.finish()
    }
}

/// The pieces of a process's memory. A piece begins where its first block does, and is as long as what is resident.
fn pieces(process: &ProcessLooks, grain: u64) -> BTreeMap<(u32, u64), Piece> {
    let mut pieces: BTreeMap<(u32, u64), Piece> = BTreeMap::new();
    for block in process.blocks.iter().filter(|block| block.bytes > 0) {
        let new = Piece { start: block.start, bytes: 0, looks: 0.0, found: 0.0 };
        let piece = pieces.entry((process.pid.0, block.start / grain)).or_insert(new);
        piece.start = piece.start.min(block.start);
        // No piece reaches past its part of the grid, whatever an agent says.
        piece.bytes = piece.bytes.saturating_add(block.bytes).min(grain);
        piece.looks += block.looks;
        piece.found += block.found;
    }
    pieces
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tensortier_replay::trace::read_workload;

    use super::*;
    use crate::{control::BlockLooks, units::Pid};

    fn looks(since_ms: u64, blocks: &[(u64, u64, f64, f64)]) -> Looks {
        let block =
            |&(at, bytes, looks, found): &(u64, u64, f64, f64)| BlockLooks { start: at * BLOCK, bytes, looks, found };
        let blocks = blocks.iter().map(block).collect();
        let process = ProcessLooks { pid: Pid(7), name: "train".into(), blocks };
        Looks { job: 1, name: "train".into(), since_ms, processes: vec![process] }
    }

    fn recorder() -> Recorder<Vec<u8>> {
        Recorder::new(Vec::new(), &Header { interval_ns: 1_000_000_000, ..Header::default() }).unwrap()
    }

    #[test]
    fn a_trace_has_what_was_found_between_two_answers() {
        let mut recorder = recorder();
        recorder.take(&looks(0, &[(1, BLOCK, 5.0, 5.0), (4, BLOCK / 2, 0.0, 0.0)])).unwrap();
        recorder.take(&looks(1000, &[(1, BLOCK, 9.0, 6.0), (4, BLOCK / 2, 2.0, 0.0)])).unwrap();
        // Nobody looked meanwhile: the last heat stands. The other one has gone.
        recorder.take(&looks(2000, &[(1, BLOCK, 9.0, 6.0)])).unwrap();
        recorder.take(&looks(3000, &[(1, BLOCK, 10.0, 6.0), (4, BLOCK, 4.0, 1.0)])).unwrap();
        recorder.take(&looks(4000, &[(1, BLOCK, 11.0, 6.0), (4, BLOCK, 5.0, 2.0)])).unwrap();
        assert_eq!(recorder.regions(), 3);
        let workload = read_workload(&recorder.finish().unwrap()[..], 100).unwrap();
        let lives: Vec<_> = workload.regions.iter().map(|r| (r.start / BLOCK, r.bytes, r.born, r.dies)).collect();
        assert_eq!(lives, [(1, BLOCK, 0, 4), (4, BLOCK / 2, 0, 1), (4, BLOCK, 2, 4)]);
        let heats: Vec<Vec<(usize, f32)>> =
            workload.touches.iter().map(|of| of.iter().map(|touch| (touch.region, touch.heat)).collect()).collect();
        assert_eq!(heats, [vec![(0, 0.25)], vec![(0, 0.25)], vec![], vec![(2, 1.0)]]);
    }

    #[test]
    fn much_memory_is_cut_coarser() {
        let mut recorder = recorder();
        let blocks: Vec<_> = (0..3 * REGIONS).map(|block| (block, BLOCK, 1.0, 0.0)).collect();
        recorder.take(&looks(0, &blocks)).unwrap();
        assert_eq!(recorder.regions() as u64, 3 * REGIONS / 4);
    }

    #[test]
    fn nonsense_from_an_agent_is_an_error_at_most() {
        let mut recorder = recorder();
        recorder.take(&looks(5, &[(u64::MAX / BLOCK - 1, u64::MAX, f64::NAN, f64::INFINITY)])).unwrap();
        let _ = recorder.take(&looks(1, &[(0, u64::MAX, -1.0, f64::NAN), (u64::MAX / BLOCK, BLOCK, 1.0, 2.0)]));
    }
}
