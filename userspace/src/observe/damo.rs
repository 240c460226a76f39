//! What damo recorded, as a workload: `tensortier replay` reads it as it reads our own traces.
//!
//! `damo record` keeps JSON, deflated by zlib or plain (`--output_type json_compressed` or `json`), an array of
//!
//! ```text
//! { "target_id": 0, "intervals": null | { "sample_us": …, "aggr_us": … },
//!   "snapshots": [ { "start_time": …, "end_time": …,
//!                    "regions": [ { "start": …, "end": …, "nr_accesses": { "samples": …, "percent": … } } ] } ] }
//! ```
//!
//! whose numbers are numbers or text (`"140,731,667,070,976"`, `"1 m 2.5 s"`). A target is a process, or all physical
//! memory. Regions split and merge from one snapshot to the next, so a snapshot is laid over the grid of blocks, and
//! [`record`](super::record) makes regions of that, as of what an agent saw. The most samples of an aggregation are those
//! of the intervals; where they were not kept, the most that any region has.

use std::io::Read;

use flate2::read::ZlibDecoder;
use serde::Deserialize;
use serde_json::Value;
use tensortier_replay::{
    trace::{Header, TraceError, read_workload},
    workload::Workload,
};

use super::record::Recorder;
use crate::{
    control::{BlockLooks, Looks, ProcessLooks},
    units::{BLOCK, Pid, Range},
};

/// The most bytes of JSON, inflated.
const MOST_BYTES: u64 = 1 << 30;
/// The most blocks of all snapshots together.
const MOST_BLOCKS: u64 = 1 << 26;
/// No address of a process or of physical memory is beyond.
const MOST_ADDRESS: u64 = 1 << 57;

/// Why it cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DamoError {
    /// Reading or inflating failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// No JSON, or another one.
    #[error("not what damo records as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A value that cannot be.
    #[error("target {target}, snapshot {snapshot}: {what}")]
    Value {
        /// The target's place in the file.
        target: usize,
        /// The snapshot's place in the target.
        snapshot: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// Nothing to replay.
    #[error("no snapshot with a region in it")]
    Empty,
    /// More than is taken.
    #[error("{0}, more than is taken; record with a longer aggregation interval, or for a shorter time")]
    TooLarge(&'static str),
    /// It makes no trace.
    #[error("{0}")]
    Trace(#[from] TraceError),
}

#[derive(Deserialize)]
struct Record {
    #[serde(default)]
    intervals: Option<Intervals>,
    snapshots: Vec<Snapshot>,
}

#[derive(Deserialize)]
struct Intervals {
    sample_us: Value,
    aggr_us: Value,
}

#[derive(Deserialize)]
struct Snapshot {
    start_time: Value,
    end_time: Value,
    regions: Vec<Region>,
}

#[derive(Deserialize)]
struct Region {
    start: Value,
    end: Value,
    nr_accesses: Accesses,
}

#[derive(Deserialize)]
struct Accesses {
    samples: Value,
}

/// One snapshot of one target, checked: when it ended, and its ranges with their samples.
struct Checked {
    target: usize,
    end_ns: u64,
    length_ns: u64,
    regions: Vec<(Range, u64)>,
}

/// Whether a file that begins so can be damo's.
pub fn is_damo(start: &[u8]) -> bool {
    // zlib's header is a multiple of 31, with method 8.
    let zlib = matches!(start, [first, second, ..] if first & 15 == 8 && (u16::from(*first) * 256 + u16::from(*second)) % 31 == 0);
    zlib || start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}

/// Reads it. `most_samples` bounds the workload.
///
/// # Errors
/// [`DamoError`].
pub fn read(mut from: impl Read, name: &str, most_samples: u64) -> Result<Workload, DamoError> {
    let mut bytes = Vec::new();
    from.by_ref().take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.first().is_some_and(|first| first & 15 == 8) {
        let mut plain = Vec::new();
        ZlibDecoder::new(&bytes[..]).take(MOST_BYTES + 1).read_to_end(&mut plain)?;
        bytes = plain;
    }
    if bytes.len() as u64 > MOST_BYTES {
        return Err(DamoError::TooLarge("over 1 GiB of JSON"));
    }
    let records: Vec<Record> = serde_json::from_slice(&bytes)?;
    drop(bytes);
    workload(records, name, most_samples)
}

fn workload(records: Vec<Record>, name: &str, most_samples: u64) -> Result<Workload, DamoError> {
    let asked = records.iter().find_map(|record| {
        let intervals = record.intervals.as_ref()?;
        let (sample, aggregation) = (time_ns(&intervals.sample_us, 1000)?, time_ns(&intervals.aggr_us, 1000)?);
        (sample > 0).then_some(aggregation / sample)
    });
    let mut snapshots = Vec::new();
    for (target, record) in records.into_iter().enumerate() {
        for (number, snapshot) in record.snapshots.into_iter().enumerate() {
            let wrong = |what| DamoError::Value { target, snapshot: number, what };
            snapshots.push(check(target, &snapshot).map_err(wrong)?);
        }
    }
    snapshots.retain(|snapshot| !snapshot.regions.is_empty());
    snapshots.sort_by_key(|snapshot| (snapshot.end_ns, snapshot.target));
    let first = snapshots.first().ok_or(DamoError::Empty)?;
    let (begun, interval_ns) = (first.end_ns.saturating_sub(first.length_ns), first.length_ns.max(1_000_000));
    let blocks = |range: &Range| range.blocks().end - range.blocks().start;
    let all: u64 = snapshots.iter().flat_map(|snapshot| &snapshot.regions).map(|(range, _)| blocks(range)).sum();
    if all > MOST_BLOCKS {
        return Err(DamoError::TooLarge("over 128 TiB in all snapshots together"));
    }
    let most = snapshots.iter().flat_map(|snapshot| &snapshot.regions).map(|(_, samples)| *samples).max();
    let most = asked.or(most).unwrap_or(1).max(1);
    let header = Header { name: name.to_owned(), interval_ns, ..Header::default() };
    let mut recorder = Recorder::new(Vec::new(), &header)?;
    let mut targets: Vec<ProcessLooks> = Vec::new();
    let mut at = 0;
    // Targets of one context are told one after another: what ends within half an interval is one look.
    for together in snapshots.chunk_by(|a, b| b.end_ns - a.end_ns <= interval_ns / 2) {
        for Checked { target, regions, end_ns, .. } in together {
            at = end_ns.saturating_sub(begun);
            while targets.len() <= *target {
                let pid = Pid(targets.len() as u32 + 1);
                targets.push(ProcessLooks { pid, name: format!("target {}", targets.len()), blocks: Vec::new() });
            }
            targets[*target].blocks = laid(regions, most, &targets[*target].blocks);
        }
        let looks = Looks { job: 1, name: name.to_owned(), since_ms: at / 1_000_000, processes: targets.clone() };
        recorder.take(&looks)?;
    }
    Ok(read_workload(&recorder.finish()?[..], most_samples)?)
}

/// Lays regions over blocks, with sums that go on from those before.
fn laid(regions: &[(Range, u64)], most: u64, before: &[BlockLooks]) -> Vec<BlockLooks> {
    let mut blocks: Vec<BlockLooks> = Vec::new();
    for (range, samples) in regions {
        for block in range.blocks() {
            let whole = Range::new(block * BLOCK, (block + 1) * BLOCK);
            let Some(part) = range.intersect(&whole) else { continue };
            let share = part.bytes() as f64 / BLOCK as f64;
            let found = share * (*samples as f64 / most as f64).min(1.0);
            match blocks.last_mut().filter(|last| last.start / BLOCK == block) {
                Some(last) => {
                    last.bytes = (last.bytes + part.bytes()).min(BLOCK);
                    last.looks += share;
                    last.found += found;
                }
                None => blocks.push(BlockLooks { start: part.start, bytes: part.bytes(), looks: share, found }),
            }
        }
    }
    for block in &mut blocks {
        let known = before.binary_search_by_key(&(block.start / BLOCK), |known| known.start / BLOCK);
        if let Ok(known) = known.map(|at| before[at]) {
            block.looks += known.looks;
            block.found += known.found;
        }
    }
    blocks
}

fn check(target: usize, snapshot: &Snapshot) -> Result<Checked, &'static str> {
    let start = time_ns(&snapshot.start_time, 1).ok_or("its start_time is no time")?;
    let end_ns = time_ns(&snapshot.end_time, 1).ok_or("its end_time is no time")?;
    let mut regions: Vec<(Range, u64)> = Vec::new();
    for region in &snapshot.regions {
        let (start, end) = (number(&region.start), number(&region.end));
        let (Some(start), Some(end)) = (start, end) else { return Err("a region without addresses") };
        if start > end || end > MOST_ADDRESS {
            return Err("a region that ends before it begins, or beyond any address");
        }
        // damo closes a file that has one snapshot with one that is not meant: 0 bytes, -1 samples.
        if start < end {
            regions.push((Range::new(start, end), number(&region.nr_accesses.samples).ok_or("no count of samples")?));
        }
    }
    regions.sort_by_key(|(range, _)| *range);
    if regions.windows(2).any(|pair| pair[0].0.end > pair[1].0.start) {
        return Err("regions that overlap");
    }
    Ok(Checked { target, end_ns, length_ns: end_ns.checked_sub(start).ok_or("it ends before it starts")?, regions })
}

/// A count: `17`, or text such as `"140,731,667"`.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.replace(',', "").trim().parse().ok(),
        value => value.as_u64(),
    }
}

/// Nanoseconds: a number of `unit` nanoseconds, or text such as `"1 m 2.5 s"`.
fn time_ns(value: &Value, unit: u64) -> Option<u64> {
    let Value::String(text) = value else { return whole(value.as_f64()? * unit as f64) };
    let words: Vec<&str> = text.split_whitespace().collect();
    if let [alone] = words[..] {
        return whole(alone.replace(',', "").parse::<f64>().ok()? * unit as f64);
    }
    let part = |pair: &[&str]| {
        let [count, unit] = pair else { return None };
        let nanoseconds = match *unit {
            "ns" => 1.0,
            "us" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            "d" => 86_400e9,
            _ => return None,
        };
        Some(count.replace(',', "").parse::<f64>().ok()? * nanoseconds)
    };
    let parts: Option<Vec<f64>> = words.chunks(2).map(part).collect();
    whole(parts.filter(|parts| !parts.is_empty())?.into_iter().sum())
}

fn whole(value: f64) -> Option<u64> {
    (0.0..1.8e19).contains(&value).then_some(value.round() as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write as _;

    use flate2::{Compression, write::ZlibEncoder};
    use serde_json::json;

    use super::*;

    fn region(start: Value, end: Value, samples: Value) -> Value {
        json!({"start": start, "end": end, "nr_accesses": {"samples": samples, "percent": null}, "age": {"usec": null}})
    }

    fn snapshot(second: u64, regions: Vec<Value>) -> Value {
        json!({"start_time": second * 1_000_000_000, "end_time": (second + 1) * 1_000_000_000, "regions": regions})
    }

    fn recorded(snapshots: Vec<Value>) -> Value {
        let intervals = json!({"sample_us": "50 ms", "aggr_us": "1 s", "ops_update_us": "1 s"});
        json!([{"kdamond_idx": 0, "target_id": "0", "intervals": intervals, "snapshots": snapshots}])
    }

    fn read_json(value: &Value) -> Result<Workload, DamoError> {
        let text = value.to_string();
        assert!(is_damo(text.as_bytes()));
        read(text.as_bytes(), "damon.data", 1 << 20)
    }

    #[test]
    fn regions_that_split_and_merge_become_blocks_with_their_heat() {
        let (a, b, c) = (json!(4 * BLOCK), json!("10,485,760"), json!(6 * BLOCK));
        let value = recorded(vec![
            snapshot(10, vec![region(a.clone(), b.clone(), json!("10")), region(b, c.clone(), json!(0))]),
            snapshot(11, vec![region(a, c, json!(20))]),
        ]);
        let workload = read_json(&value).unwrap();
        assert_eq!(workload.interval, 1_000_000_000);
        let regions: Vec<_> = workload.regions.iter().map(|region| (region.start / BLOCK, region.bytes)).collect();
        assert_eq!(regions, [(4, BLOCK), (5, BLOCK)]);
        let last: Vec<f32> = workload.touches.last().unwrap().iter().map(|touch| touch.heat).collect();
        assert_eq!(last, [1.0, 1.0]);
        // The first look has nothing before it to differ from.
        assert!(workload.touches[..workload.touches.len() - 1].iter().all(Vec::is_empty));
    }

    #[test]
    fn compressed_and_plain_are_the_same_and_other_files_are_told() {
        let hot = |second| snapshot(second, vec![region(json!(0), json!(BLOCK), json!(5))]);
        let value = recorded((0..9).map(hot).collect());
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(value.to_string().as_bytes()).unwrap();
        let zlib = zlib.finish().unwrap();
        assert!(is_damo(&zlib) && !is_damo(b"ttrace\r\n") && !is_damo(b"") && !is_damo(b"{"));
        assert_eq!(read(&zlib[..], "damon.data", 99).unwrap(), read_json(&value).unwrap());
        assert!(matches!(read(&zlib[..zlib.len() - 9], "d", 99), Err(DamoError::Io(_))), "cut short");
        assert!(matches!(read(&zlib[..], "d", 1), Err(DamoError::Trace(_))), "more samples than are taken");
    }

    #[test]
    fn times_and_counts_are_read_as_damo_writes_them() {
        assert_eq!(time_ns(&json!("8 m 59.809 s"), 1), Some(539_809_000_000));
        assert_eq!(time_ns(&json!("1,000"), 1000), Some(1_000_000));
        assert_eq!((time_ns(&json!(7.6), 1), time_ns(&json!("5 parsecs"), 1)), (Some(8), None));
        assert_eq!((number(&json!("1,234")), number(&json!(-1)), number(&json!(null))), (Some(1234), None, None));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        let one = |region| recorded(vec![snapshot(0, vec![region])]);
        for (value, said) in [
            (json!({"a": 1}), "JSON"),
            (json!([]), "no snapshot"),
            (recorded(vec![snapshot(0, vec![])]), "no snapshot"),
            (one(region(json!(5), json!(1), json!(1))), "target 0, snapshot 0: a region that ends"),
            (one(region(json!(0), json!(u64::MAX), json!(1))), "beyond any address"),
            (one(region(json!(0), json!(1_u64 << 57), json!(1))), "128 TiB"),
            (one(region(json!(0), json!(BLOCK), json!(-1))), "no count"),
            (one(region(json!("x"), json!(BLOCK), json!(1))), "without addresses"),
        ] {
            let text = value.to_string();
            let error = read(text.as_bytes(), "d", 99).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
        let over = region(json!(0), json!(9), json!(1));
        let error = read_json(&recorded(vec![snapshot(0, vec![over.clone(), over])])).unwrap_err().to_string();
        assert!(error.contains("overlap"), "{error}");
    }
}
