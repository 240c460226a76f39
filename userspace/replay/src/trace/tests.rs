use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::generate::{self, Spec};

const MOST: u64 = 10_000_000;

fn small() -> Vec<u8> {
    let workload = generate::find("activations").expect("listed").make(&Spec { steps: 2, ..Spec::default() });
    write_workload(&workload, Vec::new()).expect("valid")
}

fn read(bytes: &[u8]) -> Result<crate::workload::Workload, TraceError> {
    read_workload(bytes, MOST)
}

#[test]
fn every_generator_comes_back_as_it_was() {
    for generator in &generate::ALL {
        let mut workload = generator.make(&Spec { steps: 6, ..Spec::default() });
        let bytes = write_workload(&workload, Vec::new()).expect("valid");
        let back = read(&bytes).expect("what was written");
        workload.steps.clear();
        assert_eq!(back, workload, "{}", generator.name);
    }
}

#[test]
fn two_hours_of_a_thousand_regions_take_less_than_50_mb() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let header = Header { interval_ns: 1_000_000_000, ..Header::default() };
    let mut writer = Writer::new(Vec::new(), &header).expect("writes to memory");
    let born = (0..1000).map(|i| Born { process: 0, start: i << 30, bytes: 1 << 30, pattern: Pattern::Random });
    let mut interval = Interval {
        processes: vec![Process { pid: 1, name: "job".into() }],
        born: born.collect(),
        ..Interval::default()
    };
    for at in 1..=7200 {
        interval.at = at * 1_000_000_000 + random.random_range(0..5_000_000);
        // Noise in every sample, lines as a PMU would count them: the worst that a recorder has to say.
        interval.samples = (0..1000)
            .map(|region| {
                let heat = random.random_range(0..=20u16) * 50;
                Sample { region, heat, read: u64::from(heat) * random.random_range(50..100), written: 0 }
            })
            .collect();
        writer.interval(&interval).expect("in order");
        (interval.processes, interval.born) = (Vec::new(), Vec::new());
    }
    let bytes = writer.finish().expect("writes to memory").len();
    assert!(bytes <= 50_000_000, "{bytes}");
    assert!(bytes >= 7_200_000, "{bytes}: noise does not shrink to nothing");
}

#[test]
fn what_is_no_trace_is_named() {
    assert!(matches!(read(b""), Err(TraceError::NotATrace)));
    assert!(matches!(read(b"perf"), Err(TraceError::NotATrace)));
    assert!(matches!(read(b"ttrace\n\n\x01\0"), Err(TraceError::NotATrace)));
    let mut newer = small();
    newer[8] = 2;
    assert!(matches!(read(&newer), Err(TraceError::Version { found: 2 })));
    let error = read(&newer).expect_err("newer").to_string();
    assert!(error.contains("version 2") && error.contains("version 1"), "{error}");
    let error = read_file(std::path::Path::new("/nowhere/x.trace"), MOST).expect_err("missing").to_string();
    assert!(error.contains("/nowhere/x.trace"), "{error}");
}

#[test]
fn a_file_cut_anywhere_is_cut_short() {
    let whole = small();
    for length in 8..whole.len() {
        let error = read(&whole[..length]).expect_err("cut");
        assert!(matches!(error, TraceError::Truncated { at } if at == length as u64), "{length}: {error}");
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let whole = small();
    for at in 10..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(read(&bytes).is_err(), "byte {at}");
    }
    let mut longer = whole.clone();
    longer.push(0);
    assert!(matches!(read(&longer), Err(TraceError::Corrupt { what: "something follows the end", .. })));
    let mut flipped = whole;
    let last = flipped.len() - 1;
    flipped[last] ^= 0x10;
    assert!(matches!(read(&flipped), Err(TraceError::Checksum { .. })));
}

/// A file whose blocks have good checksums, whatever is in them.
fn forged(blocks: &[(u8, &[u8])]) -> Vec<u8> {
    use std::io::Write as _;
    let mut file = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    let header = br#"{"name":"","started_unix_ns":0,"interval_ns":1,"nodes":[]}"#;
    for (kind, plain) in std::iter::once(&(1u8, &header[..])).chain(blocks) {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(plain).expect("memory");
        let payload = encoder.finish().expect("memory");
        let mut head = vec![*kind];
        head.extend((payload.len() as u32).to_le_bytes());
        head.extend((plain.len() as u32).to_le_bytes());
        let crc = checksum(&head, &payload);
        head.extend(crc.to_le_bytes());
        file.extend(head);
        file.extend(payload);
    }
    file
}

#[test]
fn forged_blocks_are_refused_by_what_is_wrong_with_them() {
    let what = |blocks: &[(u8, &[u8])]| match read(&forged(blocks)) {
        Err(TraceError::Corrupt { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let process = [1, 1, 7, 1, b'x'];
    let with = |rest: &[u8]| [&process[..], rest].concat();
    assert_eq!(what(&[(2, &[1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f])]), "it announces more entries than it has bytes for");
    assert_eq!(what(&[(2, &[1, 0, 1, 0, 0, 0, 9])]), "a region of a process that was not named");
    assert_eq!(what(&[(2, &with(&[1, 0, 2, 0, 9]))]), "a pattern that version 1 does not have");
    assert_eq!(what(&[(2, &[1, 0, 0, 1, 5])]), "a region that does not live");
    assert_eq!(what(&[(2, &with(&[1, 0, 0, 0, 9, 1, 0, 1, 0, 0, 0, 0]))]), "a region that does not live");
    assert_eq!(what(&[(2, &with(&[1, 0, 0, 0, 9, 0, 1, 0, 1, 0, 0]))]), "a heat outside 0 to 1");
    assert_eq!(what(&[(2, &[1, 1, 7, 1, 0xff, 0, 0, 0])]), "a name that is not UTF-8");
    assert_eq!(what(&[(3, &[4, 4])]), "the end counts other intervals or samples");
    assert_eq!(what(&[(1, b"{}")]), "a second header");
    assert_eq!(what(&[(9, b"")]), "a kind of block that version 1 does not have");
    let many = [&[1, 0][..], &[0xff, 0xff, 0xff, 0x02], &vec![0; 24 << 20]].concat();
    assert_eq!(what(&[(2, &many)]), "more than four million regions");
    let mut huge = forged(&[]);
    huge.extend([2, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    assert!(matches!(read(&huge), Err(TraceError::Corrupt { what: "a block over the size that is written", .. })));
    // One interval at the end of time: no list of as many intervals is made.
    let late = [&[0xff; 9][..], &[1, 0, 0, 0, 0]].concat();
    assert!(matches!(read(&forged(&[(2, &late)])), Err(TraceError::TooLarge { what: "intervals", .. })));
}

#[test]
fn a_limit_holds_and_is_named() {
    let error = read_workload(&small()[..], 10).expect_err("more");
    assert!(matches!(error, TraceError::TooLarge { what: "samples", most: 10, .. }), "{error}");
}

#[test]
fn what_makes_no_sense_is_not_written() {
    let header = Header { interval_ns: 1, ..Header::default() };
    let born = Born { process: 0, start: 0, bytes: 1, pattern: Pattern::Random };
    let process = Process { pid: 1, name: "p".into() };
    let sample = |region, heat| Sample { region, heat, read: 0, written: 0 };
    let start = Interval { processes: vec![process], born: vec![born, born], at: 5, ..Interval::default() };
    let bad = [
        Interval { at: 4, ..Interval::default() },
        Interval { at: 6, born: vec![Born { process: 1, ..born }], ..Interval::default() },
        Interval { at: 6, born: vec![Born { start: u64::MAX, ..born }], ..Interval::default() },
        Interval { at: 6, died: vec![2], ..Interval::default() },
        Interval { at: 6, samples: vec![sample(1, 0), sample(0, 0)], ..Interval::default() },
        Interval { at: 6, samples: vec![sample(0, 1001)], ..Interval::default() },
        Interval { at: 6, died: vec![0], samples: vec![sample(0, 0)], ..Interval::default() },
    ];
    for interval in bad {
        let mut writer = Writer::new(Vec::new(), &header).expect("memory");
        writer.interval(&start).expect("valid");
        assert!(matches!(writer.interval(&interval), Err(TraceError::Invalid(_))), "{interval:?}");
    }
}

#[test]
fn heat_alone_gives_the_lines_that_it_speaks_of() {
    let header = Header { interval_ns: 1_000_000_000, ..Header::default() };
    let mut writer = Writer::new(Vec::new(), &header).expect("memory");
    let expected = crate::workload::expected_heat(Pattern::Stream, 1 << 30, (1 << 30) / 64);
    let interval = Interval {
        at: 1_000_000_000,
        processes: vec![Process { pid: 1, name: "p".into() }],
        born: vec![Born { process: 0, start: 0, bytes: 1 << 30, pattern: Pattern::Stream }],
        samples: vec![Sample { region: 0, heat: (expected * 1000.0).round() as u16, read: 0, written: 0 }],
        ..Interval::default()
    };
    writer.interval(&interval).expect("valid");
    let workload = read(&writer.finish().expect("memory")).expect("valid");
    let passes = workload.touches[0][0].read as f64 / ((1 << 30) / 64) as f64;
    assert!((passes - 1.0).abs() < 0.02, "{passes}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn damaged_files_give_an_error_or_the_same(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let whole = small();
        let mut bytes = whole.clone();
        edits.iter().for_each(|(at, byte)| bytes[at.index(whole.len())] = *byte);
        prop_assert!(read(&bytes).is_err() || bytes == whole);
    }

    #[test]
    fn any_payload_behind_a_good_checksum_is_read_or_refused(
        payload in prop::collection::vec(prop_oneof![3 => 0u8..4, 1 => any::<u8>()], 0..200),
    ) {
        // No panic, and no more memory than the bytes can speak of.
        let _ = read(&forged(&[(2, &payload), (3, &[0, 0])]));
    }
}
