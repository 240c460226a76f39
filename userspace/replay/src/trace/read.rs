//! Reading a trace, interval by interval. Nothing is allocated on a file's word alone.

use std::io::Read;

use flate2::read::DeflateDecoder;
use tensortier_model::Nanos;

use super::{
    BLOCK_HEAD, Born, HEAT, Header, Interval, Kind, MAGIC, MOST_PLAIN, MOST_PROCESSES, MOST_REGIONS, Process, Sample,
    TraceError, VERSION, checksum,
    varint::{Bad, Cursor},
};
use crate::workload::Pattern;

/// Reads a trace from anything that has bytes.
pub struct Reader<R: Read> {
    from: R,
    header: Header,
    /// Bytes read so far, and where the block in hand began.
    read: u64,
    block: u64,
    plain: Vec<u8>,
    /// How much of it has been taken.
    taken: usize,
    state: State,
    ended: bool,
}

/// What the next interval builds on.
#[derive(Default)]
struct State {
    at: Nanos,
    processes: u32,
    /// Last heat of each region; none for those that died.
    heat: Vec<Option<u16>>,
    intervals: u64,
    samples: u64,
}

impl<R: Read> Reader<R> {
    /// Opens a trace and reads its header.
    ///
    /// # Errors
    /// Anything of [`TraceError`].
    pub fn new(from: R) -> Result<Self, TraceError> {
        let mut reader = Self {
            from,
            header: Header::default(),
            read: 0,
            block: 0,
            plain: Vec::new(),
            taken: 0,
            state: State::default(),
            ended: false,
        };
        let start: [u8; 8] = reader.bytes().map_err(|error| match error {
            TraceError::Truncated { .. } => TraceError::NotATrace,
            other => other,
        })?;
        if &start != MAGIC {
            return Err(TraceError::NotATrace);
        }
        match u16::from_le_bytes(reader.bytes()?) {
            VERSION => {}
            found => return Err(TraceError::Version { found }),
        }
        if reader.next_block()? != Kind::Header {
            return Err(reader.corrupt("the first block is no header"));
        }
        reader.header = serde_json::from_slice(&reader.plain).map_err(|_| reader.corrupt("the header's JSON"))?;
        if reader.header.interval_ns == 0 {
            return Err(reader.corrupt("an interval of no length"));
        }
        reader.taken = reader.plain.len();
        Ok(reader)
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next interval into `interval`, whose memory is used again; whether there was one.
    ///
    /// # Errors
    /// Anything of [`TraceError`].
    pub fn next(&mut self, interval: &mut Interval) -> Result<bool, TraceError> {
        while !self.ended && self.taken == self.plain.len() {
            match self.next_block()? {
                Kind::Header => return Err(self.corrupt("a second header")),
                Kind::Intervals => {}
                Kind::End => self.end()?,
            }
        }
        if self.ended {
            return Ok(false);
        }
        let mut cursor = Cursor(&self.plain[self.taken..]);
        let result = self.state.interval(&mut cursor, interval);
        let left = cursor.0.len();
        self.taken = self.plain.len() - left;
        result.map_err(|what| self.corrupt(what))?;
        Ok(true)
    }

    fn end(&mut self) -> Result<(), TraceError> {
        let mut cursor = Cursor(&self.plain);
        let counts = cursor.number().and_then(|intervals| Ok((intervals, cursor.number()?)));
        if counts != Ok((self.state.intervals, self.state.samples)) {
            return Err(self.corrupt("the end counts other intervals or samples"));
        }
        let mut one = [0];
        if self.from.read(&mut one)? > 0 {
            return Err(self.corrupt("something follows the end"));
        }
        self.ended = true;
        Ok(())
    }

    fn next_block(&mut self) -> Result<Kind, TraceError> {
        self.block = self.read;
        let head: [u8; BLOCK_HEAD] = self.bytes()?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (stored, plain, crc) = (number(1) as usize, number(5) as usize, number(9));
        // Deflate adds five bytes to each 64 KiB that do not shrink.
        let most = MOST_PLAIN + MOST_PLAIN / 1024;
        if plain > MOST_PLAIN || stored > most {
            return Err(self.corrupt("a block over the size that is written"));
        }
        let mut payload = Vec::new();
        self.read += (&mut self.from).take(stored as u64).read_to_end(&mut payload)? as u64;
        if payload.len() < stored {
            return Err(TraceError::Truncated { at: self.read });
        }
        let found = checksum(&head[..9], &payload);
        if found != crc {
            return Err(TraceError::Checksum { at: self.block, found, stored: crc });
        }
        self.plain.clear();
        self.taken = 0;
        let inflated = DeflateDecoder::new(&payload[..]).take(plain as u64 + 1).read_to_end(&mut self.plain);
        if inflated.is_err() || self.plain.len() != plain {
            return Err(self.corrupt("it does not inflate to the size it says"));
        }
        match head[0] {
            1 => Ok(Kind::Header),
            2 => Ok(Kind::Intervals),
            3 => Ok(Kind::End),
            _ => Err(self.corrupt("a kind of block that version 1 does not have")),
        }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], TraceError> {
        let mut bytes = [0; N];
        let mut have = 0;
        while have < N {
            match self.from.read(&mut bytes[have..]) {
                Ok(0) => return Err(TraceError::Truncated { at: self.read + have as u64 }),
                Ok(read) => have += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.read += N as u64;
        Ok(bytes)
    }

    fn corrupt(&self, what: &'static str) -> TraceError {
        TraceError::Corrupt { at: self.block, what }
    }
}

impl State {
    fn interval(&mut self, from: &mut Cursor, to: &mut Interval) -> Result<(), Bad> {
        self.at = self.at.checked_add(from.number()?).ok_or("a time past the end of the clock")?;
        to.at = self.at;
        self.processes(from, &mut to.processes)?;
        self.born(from, &mut to.born)?;
        self.died(from, &mut to.died)?;
        self.samples(from, &mut to.samples)?;
        self.intervals += 1;
        self.samples += to.samples.len() as u64;
        Ok(())
    }

    fn processes(&mut self, from: &mut Cursor, to: &mut Vec<Process>) -> Result<(), Bad> {
        to.clear();
        let count = from.count(2)?;
        if self.processes as usize + count > MOST_PROCESSES {
            return Err("more than a million processes");
        }
        for _ in 0..count {
            let (pid, length) = (from.small()?, from.count(1)?);
            let name = std::str::from_utf8(from.bytes(length)?).map_err(|_| "a name that is not UTF-8")?;
            to.push(Process { pid, name: name.into() });
            self.processes += 1;
        }
        Ok(())
    }

    fn born(&mut self, from: &mut Cursor, to: &mut Vec<Born>) -> Result<(), Bad> {
        to.clear();
        let mut end = 0u64;
        let count = from.count(4)?;
        if self.heat.len() + count > MOST_REGIONS {
            return Err("more than four million regions");
        }
        for _ in 0..count {
            let process = from.small()?;
            if process >= self.processes {
                return Err("a region of a process that was not named");
            }
            let pattern = match from.number()? {
                0 => Pattern::Random,
                1 => Pattern::Stream,
                _ => return Err("a pattern that version 1 does not have"),
            };
            let start = end.wrapping_add(from.signed()? as u64);
            let bytes = from.number()?;
            end = start.checked_add(bytes).ok_or("a region past the last address")?;
            to.push(Born { process, start, bytes, pattern });
            self.heat.push(Some(0));
        }
        Ok(())
    }

    fn died(&mut self, from: &mut Cursor, to: &mut Vec<usize>) -> Result<(), Bad> {
        to.clear();
        let mut next = 0;
        for _ in 0..from.count(1)? {
            let region = self.id(from, &mut next)?;
            self.heat[region] = None;
            to.push(region);
        }
        Ok(())
    }

    fn samples(&mut self, from: &mut Cursor, to: &mut Vec<Sample>) -> Result<(), Bad> {
        to.clear();
        let mut next = 0;
        for _ in 0..from.count(4)? {
            let region = self.id(from, &mut next)?;
            to.push(Sample { region, heat: 0, read: 0, written: 0 });
        }
        for sample in to.iter_mut() {
            let last = i64::from(self.heat[sample.region].unwrap_or(0));
            let heat = last.checked_add(from.signed()?).and_then(|heat| u16::try_from(heat).ok());
            sample.heat = heat.filter(|heat| *heat <= HEAT).ok_or("a heat outside 0 to 1")?;
            self.heat[sample.region] = Some(sample.heat);
        }
        for sample in to.iter_mut() {
            sample.read = from.number()?;
        }
        for sample in to.iter_mut() {
            sample.written = from.number()?;
        }
        Ok(())
    }

    /// The id of a region that lives.
    fn id(&self, from: &mut Cursor, next: &mut usize) -> Result<usize, Bad> {
        let gap = usize::try_from(from.number()?).unwrap_or(usize::MAX);
        let region = next.saturating_add(gap);
        if self.heat.get(region).is_none_or(Option::is_none) {
            return Err("a region that does not live");
        }
        *next = region + 1;
        Ok(region)
    }
}
