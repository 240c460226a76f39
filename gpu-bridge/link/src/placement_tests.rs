use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use proptest::prelude::*;

use super::*;

fn memory(capacity: usize) -> Vec<AtomicU64> {
    (0..words(capacity)).map(|_| AtomicU64::new(0)).collect()
}

fn extent(start: u64, pages: u64, kind: Kind) -> Extent {
    let node = kind as u32;
    Extent { start, end: start + pages * 4096, node, kind, read_mib_per_sec: 20_000, latency_ns: 250 }
}

/// `n` extents that all carry `mark`, so that a mixture of two publications shows.
fn marked(mark: u64, n: usize) -> Vec<Extent> {
    (1..=n as u64).map(|i| Extent { latency_ns: mark as u32, ..extent(i << 20 | mark << 40, 1, Kind::Cxl) }).collect()
}

fn read(memory: &[AtomicU64]) -> Result<(Stamp, Vec<Extent>), PlacementError> {
    let mut extents = vec![extent(1, 1, Kind::Dram)];
    let stamp = Reader::new(memory)?.read(&mut extents);
    if stamp.is_err() {
        assert!(extents.is_empty(), "an error leaves nothing half read");
    }
    Ok((stamp?, extents))
}

#[test]
fn what_is_published_is_read() {
    let memory = memory(4);
    let mut writer = Writer::new(&memory).expect("room");
    assert_eq!(writer.capacity(), 4);
    assert_eq!(read(&memory), Err(PlacementError::Empty));
    for generation in 1..=5 {
        let extents = marked(generation, generation as usize % 4);
        writer.publish(&extents, generation * 10).expect("room");
        assert_eq!(read(&memory), Ok((Stamp { generation, published_ns: generation * 10 }, extents)));
    }
}

#[test]
fn too_many_extents_leave_the_published_ones() {
    let memory = memory(2);
    let mut writer = Writer::new(&memory).expect("room");
    writer.publish(&marked(1, 2), 0).expect("room");
    assert_eq!(writer.publish(&marked(2, 3), 0), Err(PlacementError::Full { extents: 3, capacity: 2 }));
    assert_eq!(read(&memory).expect("whole").1, marked(1, 2));
}

/// A writer that stops after any store of its second publication: the first is read, at the first try.
#[test]
fn a_writer_killed_anywhere_leaves_the_older_buffer() {
    let memory = memory(2);
    let mut writer = Writer::new(&memory).expect("room");
    writer.publish(&marked(1, 2), 1).expect("room");
    let second = buffer(&memory, 2, 2);
    second[B_SEQUENCE].store(1, Ordering::Relaxed);
    for word in &second[1..] {
        word.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(Reader::new(&memory).expect("header").copy(1, &mut Vec::new()).map(|s| s.generation), Ok(1));
        assert_eq!(read(&memory).expect("whole").1, marked(1, 2));
    }
    second[B_SEQUENCE].store(2, Ordering::Relaxed);
    assert_eq!(read(&memory).expect("not yet named the latest").1, marked(1, 2));
}

#[test]
fn a_reader_gives_up_on_a_buffer_that_is_never_whole() {
    let memory = memory(1);
    let mut writer = Writer::new(&memory).expect("room");
    writer.publish(&marked(1, 1), 1).expect("room");
    buffer(&memory, 1, 1)[B_SEQUENCE].store(7, Ordering::Relaxed);
    assert_eq!(read(&memory), Err(PlacementError::Busy));
}

#[test]
fn wrong_headers_are_refused_by_name() {
    let whole = || {
        let memory = memory(2);
        Writer::new(&memory).expect("room").publish(&marked(1, 2), 1).expect("room");
        memory
    };
    let with = |word: usize, value: u64| {
        let memory = whole();
        memory[word].store(value, Ordering::Relaxed);
        read(&memory).expect_err("refused")
    };
    assert_eq!(with(W_MAGIC, 5), PlacementError::Magic { found: 5 });
    assert_eq!(with(W_VERSION, 9), PlacementError::Version { found: 9 });
    assert_eq!(with(W_CAPACITY, 3), PlacementError::Size { need: words(3) as u64, have: words(2) as u64 });
    for huge in [MAX_RECORDS, MAX_RECORDS + 1, u64::MAX / 64, u64::MAX] {
        assert!(matches!(with(W_CAPACITY, huge), PlacementError::Size { .. }));
    }
    assert!(matches!(read(&whole()[..HEADER]), Err(PlacementError::Size { .. })));
    assert!(matches!(read(&whole()[..HEADER - 1]), Err(PlacementError::Size { .. })));
    assert!(matches!(Writer::new(&memory(0)), Err(PlacementError::Size { .. })));
}

#[test]
fn impossible_contents_are_refused_by_name() {
    let with = |word: usize, value: u64| {
        let memory = memory(2);
        Writer::new(&memory).expect("room").publish(&marked(1, 2), 1).expect("room");
        buffer(&memory, 2, 1)[word].store(value, Ordering::Relaxed);
        read(&memory).expect_err("refused")
    };
    assert_eq!(with(B_COUNT, 3), PlacementError::Corrupt { field: "count", value: 3 });
    assert_eq!(with(B_COUNT, u64::MAX), PlacementError::Corrupt { field: "count", value: u64::MAX });
    assert_eq!(with(BUFFER_HEADER + 1, 0), PlacementError::Corrupt { field: "end of an extent", value: 0 });
    assert_eq!(with(BUFFER_HEADER + 2, 3 << 32), PlacementError::Corrupt { field: "kind of memory", value: 3 });
}

/// Two threads: every snapshot is one publication, whole, and generations never run back.
#[test]
fn a_racing_reader_sees_whole_publications_only() {
    let memory = memory(32);
    let mut writer = Writer::new(&memory).expect("room");
    writer.publish(&marked(1, 1), 1).expect("room");
    let reader = Reader::new(&memory).expect("header");
    let done = AtomicBool::new(false);
    let (seen, newest) = thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut extents, mut newest, mut seen) = (Vec::new(), 0, 0_u64);
            while !done.load(Ordering::Acquire) || seen == 0 {
                match reader.read(&mut extents) {
                    Ok(stamp) => {
                        assert!(stamp.generation >= newest);
                        assert_eq!(stamp.generation, stamp.published_ns);
                        assert_eq!(extents, marked(stamp.generation, stamp.generation as usize % 33));
                        (newest, seen) = (stamp.generation, seen + 1);
                    }
                    Err(error) => assert_eq!(error, PlacementError::Busy),
                }
            }
            (seen, newest)
        });
        for generation in 2..=20_000_u64 {
            writer.publish(&marked(generation, generation as usize % 33), generation).expect("room");
        }
        done.store(true, Ordering::Release);
        reading.join().expect("every snapshot was whole")
    });
    assert!(seen > 0 && newest > 0);
    assert_eq!(read(&memory).expect("at rest").0.generation, 20_000);
}

proptest! {
    /// Any memory at all: an error or extents that hold together, never a panic, never more than a buffer holds.
    #[test]
    fn any_words_are_safe_to_read(
        mut noise in prop::collection::vec(prop_oneof![0_u64..6, any::<u64>()], 0..80),
        honest_header in any::<bool>(),
    ) {
        if honest_header && noise.len() >= HEADER {
            (noise[W_MAGIC], noise[W_VERSION]) = (MAGIC, u64::from(VERSION));
        }
        let memory: Vec<_> = noise.into_iter().map(AtomicU64::new).collect();
        if let Ok((_, extents)) = read(&memory) {
            prop_assert!(words(extents.len()) <= memory.len());
            prop_assert!(extents.iter().all(|e| e.start < e.end));
        }
    }
}
