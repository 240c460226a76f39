//! Between traces and workloads.
//!
//! A recorder that only knows heat leaves the lines open. They are taken from the heat by the inverse of
//! [`expected_heat`](crate::workload::expected_heat): a page that a share `h` of the looks found accessed was visited
//! `-ln(1 - h)` times between two looks. A heat of 1 says no more than "very often" and counts as 0.99.

use std::{
    fs::File,
    io::{BufReader, Read, Write},
    path::Path,
};

use super::{Born, HEAT, Header, Interval, Process, Reader, Sample, TraceError, Writer};
use crate::workload::{LINE, PAGE, Pattern, Region, SAMPLES, Touch, Workload};

/// The most intervals of a workload: half a year at one a second would be four times as many.
const MOST_INTERVALS: u64 = 1 << 22;

/// Writes a workload as a trace. Its steps are not part of one.
///
/// # Errors
/// As those of [`Writer`].
pub fn write_workload<W: Write>(workload: &Workload, to: W) -> Result<W, TraceError> {
    let header = Header { name: workload.name.clone(), interval_ns: workload.interval, ..Header::default() };
    let mut writer = Writer::new(to, &header)?;
    let jobs = workload.regions.iter().map(|region| region.job + 1).max().unwrap_or(0);
    let processes = (0..jobs).map(|job| Process { pid: job + 1, name: format!("job {job}") }).collect();
    let mut interval = Interval { processes, ..Interval::default() };
    // A trace numbers regions by birth.
    let mut order: Vec<usize> = (0..workload.regions.len()).collect();
    order.sort_by_key(|&region| workload.regions[region].born);
    let mut number = vec![0; order.len()];
    order.iter().enumerate().for_each(|(new, &old)| number[old] = new);
    let mut unborn = order.iter().peekable();
    for (at, touches) in workload.touches.iter().enumerate() {
        interval.at = (at as u64 + 1).saturating_mul(workload.interval);
        while let Some(&region) = unborn.next_if(|&&region| workload.regions[region].born == at) {
            let Region { start, bytes, job, pattern, .. } = workload.regions[region];
            interval.born.push(Born { process: job, start, bytes, pattern });
        }
        let dead = (0..order.len()).filter(|&region| workload.regions[region].dies == at);
        interval.died = dead.map(|region| number[region]).collect();
        interval.died.sort_unstable();
        interval.samples = touches
            .iter()
            .map(|touch| Sample {
                region: number[touch.region],
                heat: (touch.heat * f32::from(HEAT)).round() as u16,
                read: touch.read,
                written: touch.written,
            })
            .collect();
        interval.samples.sort_unstable_by_key(|sample| sample.region);
        writer.interval(&interval)?;
        (interval.processes, interval.born) = (Vec::new(), Vec::new());
    }
    writer.finish()
}

/// Reads a trace as a workload with a job a process. It holds all of it in memory, so no more than `most_samples`.
///
/// # Errors
/// As those of [`Reader`], and [`TraceError::TooLarge`].
pub fn read_workload(from: impl Read, most_samples: u64) -> Result<Workload, TraceError> {
    let mut reader = Reader::new(from)?;
    let Header { name, interval_ns, .. } = reader.header().clone();
    let (mut regions, mut touches) = (Vec::<Region>::new(), Vec::<Vec<Touch>>::new());
    let (mut interval, mut samples) = (Interval::default(), 0u64);
    while reader.next(&mut interval)? {
        samples += interval.samples.len() as u64;
        at_most("samples", samples, most_samples)?;
        let at = interval.at.div_ceil(interval_ns).saturating_sub(1);
        at_most("intervals", at, MOST_INTERVALS)?;
        // Time that nobody recorded is time without accesses.
        let at = at as usize;
        touches.resize_with(touches.len().max(at + 1), Vec::new);
        regions.extend(interval.born.iter().map(|born| Region {
            start: born.start,
            bytes: born.bytes,
            job: born.process,
            pattern: born.pattern,
            born: at,
            dies: usize::MAX,
        }));
        interval.died.iter().for_each(|&region| regions[region].dies = at);
        touches[at].extend(interval.samples.iter().map(|sample| touch(sample, &regions[sample.region])));
    }
    regions.iter_mut().for_each(|region| region.dies = region.dies.min(touches.len()));
    touches.iter_mut().for_each(join);
    Ok(Workload { name, interval: interval_ns, regions, touches, steps: Vec::new() })
}

/// Reads a file as a workload.
///
/// # Errors
/// [`TraceError::File`] around any other.
pub fn read_file(path: &Path, most_samples: u64) -> Result<Workload, TraceError> {
    let read = || read_workload(BufReader::new(File::open(path)?), most_samples);
    read().map_err(|source| TraceError::File { path: path.into(), source: Box::new(source) })
}

fn touch(sample: &Sample, region: &Region) -> Touch {
    let Sample { region: index, heat, read, written } = *sample;
    let heat = f32::from(heat) / f32::from(HEAT);
    let read = if read == 0 && written == 0 { lines(heat, region) } else { read };
    Touch { region: index, read, written, heat }
}

/// The lines that such a heat speaks of.
fn lines(heat: f32, region: &Region) -> u64 {
    let visits = -(1.0 - f64::from(heat).min(0.99)).ln() * f64::from(SAMPLES) * (region.bytes / PAGE).max(1) as f64;
    let each = if region.pattern == Pattern::Stream { PAGE / LINE } else { 1 };
    (visits * each as f64).round() as u64
}

/// Two records of one interval make one.
fn join(touches: &mut Vec<Touch>) {
    touches.sort_by_key(|touch| touch.region);
    touches.dedup_by(|next, first| {
        let same = next.region == first.region;
        if same {
            first.read = first.read.saturating_add(next.read);
            first.written = first.written.saturating_add(next.written);
            first.heat = first.heat.max(next.heat);
        }
        same
    });
}

fn at_most(what: &'static str, found: u64, most: u64) -> Result<(), TraceError> {
    if found > most { Err(TraceError::TooLarge { what, found, most }) } else { Ok(()) }
}
