//! Writing a trace, interval by interval.

use std::io::Write;

use flate2::{Compression, write::DeflateEncoder};
use tensortier_model::Nanos;

use super::{
    HEAT, Header, Interval, Kind, MAGIC, MOST_PLAIN, MOST_PROCESSES, MOST_REGIONS, TraceError, VERSION, checksum,
    varint::{put, zigzag},
};
use crate::workload::Pattern;

/// A block is closed when it has come to so many bytes.
const FULL: usize = 256 << 10;

/// Writes a trace. Without [`Writer::finish`] the file counts as cut short.
pub struct Writer<W: Write> {
    to: W,
    plain: Vec<u8>,
    at: Nanos,
    processes: u32,
    /// Last heat of each region; none for those that died.
    heat: Vec<Option<u16>>,
    intervals: u64,
    samples: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// [`TraceError::Io`].
    pub fn new(mut to: W, header: &Header) -> Result<Self, TraceError> {
        to.write_all(MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        let mut writer =
            Self { to, plain: Vec::new(), at: 0, processes: 0, heat: Vec::new(), intervals: 0, samples: 0 };
        let json = serde_json::to_vec(header).map_err(std::io::Error::other)?;
        writer.block(Kind::Header, &json)?;
        Ok(writer)
    }

    /// Adds an interval.
    ///
    /// # Errors
    /// [`TraceError::Invalid`] if it does not follow the last one or is out of order, [`TraceError::TooLarge`],
    /// [`TraceError::Io`]. After any of them the trace is of no more use.
    pub fn interval(&mut self, interval: &Interval) -> Result<(), TraceError> {
        let since = interval.at.checked_sub(self.at).ok_or(TraceError::Invalid("an interval before the last one"))?;
        self.at = interval.at;
        let start = self.plain.len();
        put(&mut self.plain, since);
        self.processes(interval)?;
        self.born(interval)?;
        self.died(interval)?;
        self.samples(interval)?;
        let bytes = self.plain.len() - start;
        if bytes > MOST_PLAIN {
            return Err(too_large("bytes in an interval", bytes, MOST_PLAIN));
        }
        self.intervals += 1;
        self.samples += interval.samples.len() as u64;
        if self.plain.len() >= FULL {
            self.flush(start)?;
        }
        Ok(())
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// [`TraceError::Io`].
    pub fn finish(mut self) -> Result<W, TraceError> {
        self.flush(self.plain.len())?;
        let mut end = Vec::new();
        put(&mut end, self.intervals);
        put(&mut end, self.samples);
        self.block(Kind::End, &end)?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn processes(&mut self, interval: &Interval) -> Result<(), TraceError> {
        put(&mut self.plain, interval.processes.len() as u64);
        for process in &interval.processes {
            put(&mut self.plain, u64::from(process.pid));
            put(&mut self.plain, process.name.len() as u64);
            self.plain.extend_from_slice(process.name.as_bytes());
            self.processes += 1;
        }
        let processes = self.processes as usize;
        if processes > MOST_PROCESSES {
            return Err(too_large("processes", processes, MOST_PROCESSES));
        }
        Ok(())
    }

    fn born(&mut self, interval: &Interval) -> Result<(), TraceError> {
        put(&mut self.plain, interval.born.len() as u64);
        let mut end = 0u64;
        for born in &interval.born {
            if born.process >= self.processes {
                return Err(TraceError::Invalid("a region of a process that was not named"));
            }
            put(&mut self.plain, u64::from(born.process));
            put(&mut self.plain, u64::from(born.pattern == Pattern::Stream));
            put(&mut self.plain, zigzag(born.start.wrapping_sub(end) as i64));
            put(&mut self.plain, born.bytes);
            end = born.start.checked_add(born.bytes).ok_or(TraceError::Invalid("a region past the last address"))?;
            self.heat.push(Some(0));
        }
        if self.heat.len() > MOST_REGIONS {
            return Err(too_large("regions", self.heat.len(), MOST_REGIONS));
        }
        Ok(())
    }

    fn died(&mut self, interval: &Interval) -> Result<(), TraceError> {
        put(&mut self.plain, interval.died.len() as u64);
        let mut next = 0;
        for &region in &interval.died {
            put(&mut self.plain, gap(region, &mut next)?);
            self.heat.get_mut(region).and_then(Option::take).ok_or(NOBODY)?;
        }
        Ok(())
    }

    fn samples(&mut self, interval: &Interval) -> Result<(), TraceError> {
        let samples = &interval.samples;
        put(&mut self.plain, samples.len() as u64);
        let mut next = 0;
        for sample in samples {
            put(&mut self.plain, gap(sample.region, &mut next)?);
        }
        for sample in samples {
            let last = self.heat.get_mut(sample.region).and_then(Option::as_mut).ok_or(NOBODY)?;
            if sample.heat > HEAT {
                return Err(TraceError::Invalid("a heat over 1"));
            }
            put(&mut self.plain, zigzag(i64::from(sample.heat) - i64::from(*last)));
            *last = sample.heat;
        }
        samples.iter().for_each(|sample| put(&mut self.plain, sample.read));
        samples.iter().for_each(|sample| put(&mut self.plain, sample.written));
        Ok(())
    }

    /// Writes what is gathered as blocks, cut at `start` if it is too much for one.
    fn flush(&mut self, start: usize) -> Result<(), TraceError> {
        let plain = std::mem::take(&mut self.plain);
        let parts = if plain.len() > MOST_PLAIN { vec![&plain[..start], &plain[start..]] } else { vec![&plain[..]] };
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            self.block(Kind::Intervals, part)?;
        }
        Ok(())
    }

    fn block(&mut self, kind: Kind, plain: &[u8]) -> Result<(), TraceError> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain)?;
        let payload = encoder.finish()?;
        let length = |bytes: usize| u32::try_from(bytes).map_err(|_| too_large("bytes in a block", bytes, MOST_PLAIN));
        let mut head = vec![kind as u8];
        head.extend(length(payload.len())?.to_le_bytes());
        head.extend(length(plain.len())?.to_le_bytes());
        let crc = checksum(&head, &payload);
        head.extend(crc.to_le_bytes());
        self.to.write_all(&head)?;
        self.to.write_all(&payload)?;
        Ok(())
    }
}

const NOBODY: TraceError = TraceError::Invalid("a region that does not live");

/// The gap to the id before, which `next` follows.
fn gap(region: usize, next: &mut usize) -> Result<u64, TraceError> {
    let gap = region.checked_sub(*next).ok_or(TraceError::Invalid("regions out of order"))?;
    *next = region + 1;
    Ok(gap as u64)
}

fn too_large(what: &'static str, found: usize, most: usize) -> TraceError {
    TraceError::TooLarge { what, found: found as u64, most: most as u64 }
}
