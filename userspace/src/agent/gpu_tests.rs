#![allow(clippy::unwrap_used)]
use std::time::Instant;

use super::*;
use crate::units::BLOCK;

const PID: Pid = Pid(7);

/// A block on node 0, one that is half populated on both nodes, a hole of one, and one on node 2.
fn residents() -> Vec<Resident> {
    let block = |number: u64, bytes: u64, on: &[(u32, u64)]| Resident {
        pid: PID,
        range: Range::new(number * BLOCK, number * BLOCK + bytes),
        on: on.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect(),
    };
    vec![
        block(1, BLOCK, &[(0, BLOCK)]),
        block(2, BLOCK / 2, &[(0, BLOCK / 8), (2, 3 * BLOCK / 8)]),
        block(4, BLOCK, &[(2, BLOCK)]),
    ]
}

fn copy(host: Range) -> Copy {
    Copy { pid: PID, direction: Direction::ToDevice, host, path: Path::Unregistered }
}

#[test]
fn a_copy_touches_what_is_resident_of_it_and_is_counted_where_that_lies() {
    let (mut gpu, mut touches, at) = (Gpu::default(), Vec::new(), Instant::now());
    let host = Range::new(BLOCK + 4096, 4 * BLOCK + 8192);
    gpu.copied(copy(host), 3, at, &residents(), &mut touches);
    let ranges: Vec<_> = touches.iter().map(|touch| (touch.range, touch.weight, touch.kind)).collect();
    let transfer = |start, end| (Range::new(start, end), 3.0, TouchKind::Transfer);
    let expected = [transfer(BLOCK + 4096, 2 * BLOCK + BLOCK / 2), transfer(4 * BLOCK, 4 * BLOCK + 8192)];
    assert_eq!(ranges, expected, "neighbours are one touch, the hole is none");
    let bytes = |node: Option<u32>| gpu.copied[&(Direction::ToDevice, node.map(NodeId), Path::Unregistered)];
    assert_eq!(bytes(Some(0)), 3 * (BLOCK - 4096 + BLOCK / 8));
    assert_eq!(bytes(Some(2)), 3 * (3 * BLOCK / 8 + 8192));
    assert_eq!(bytes(None), 3 * (BLOCK / 2 + BLOCK));
    assert_eq!(gpu.copied.values().sum::<u64>(), 3 * host.bytes());
}

#[test]
fn addresses_that_are_nobodys_touch_nothing() {
    let (mut gpu, mut touches) = (Gpu::default(), Vec::new());
    for host in [Range::new(0, BLOCK), Range::new(3 * BLOCK, 4 * BLOCK), Range::new(9 * BLOCK, u64::MAX)] {
        gpu.copied(copy(host), 1, Instant::now(), &residents(), &mut touches);
    }
    gpu.copied(copy(Range::new(8 * BLOCK, u64::MAX)), 2, Instant::now(), &[], &mut touches);
    assert_eq!(touches, []);
    assert_eq!(gpu.copied.values().copied().collect::<Vec<_>>(), [u64::MAX], "sums do not wrap");
}

#[test]
fn pins_are_known_until_they_end_and_a_process_forgotten() {
    let mut gpu = Gpu::default();
    let (first, second) = (Range::new(BLOCK, 2 * BLOCK), Range::new(4 * BLOCK, 5 * BLOCK));
    gpu.pin(PID, first);
    gpu.pin(PID, second);
    let all = Range::new(0, 9 * BLOCK);
    assert_eq!(gpu.pinned(PID, all), 2 * BLOCK);
    assert_eq!(gpu.pinned(PID, Range::new(BLOCK + 4096, 4 * BLOCK + 4096)), BLOCK);
    assert_eq!((gpu.path(PID, first), gpu.path(PID, all)), (Path::Registered, Path::Unregistered));
    assert_eq!(gpu.pinned_on(PID, &residents()), [(NodeId(0), BLOCK), (NodeId(2), BLOCK)].into());
    gpu.unpin(PID, first.start);
    gpu.unpin(PID, 12345);
    assert_eq!(gpu.pinned(PID, all), BLOCK);
    gpu.forget(PID);
    assert_eq!(gpu.pinned(PID, all), 0);
}

#[test]
fn more_pins_than_are_kept_are_counted() {
    let mut gpu = Gpu::default();
    for number in 0..MAX_PINS as u64 + 10 {
        gpu.pin(PID, Range::new(number * 4096, number * 4096 + 1));
    }
    gpu.pin(PID, Range::new(0, 4096));
    assert_eq!((gpu.pins[&PID].len(), gpu.dropped(), gpu.pinned(PID, Range::new(0, 4096))), (MAX_PINS, 10, 4096));
}

#[test]
fn pinned_memory_away_from_the_gpus_is_told_with_the_way_to_place_it() {
    let pinned = [(NodeId(0), 4096), (NodeId(1), 3 << 30), (NodeId(2), 0)].into();
    let said = notes(&pinned, &"0".parse().unwrap());
    assert!(said.len() == 1 && said[0].contains("3.0 GiB") && said[0].contains("node 1"), "{said:?}");
    assert!(said[0].contains("run --place prefer=0"));
    assert!(notes(&pinned, &NodeSet::default()).is_empty(), "where they are is not known");
}

#[test]
fn a_job_on_the_other_socket_is_told_where_the_gpus_are() {
    let (near, gpus) = ((0..32).collect(), "0".parse().unwrap());
    let said = far_cpus(&[32, 33], &near, &gpus).unwrap();
    assert!(said.contains("node 0") && said.contains("numactl --cpunodebind=0"), "{said}");
    assert_eq!(far_cpus(&[31, 32], &near, &gpus), None, "some are near");
    assert_eq!(far_cpus(&[], &near, &gpus), None, "not known");
    assert_eq!(far_cpus(&[32], &BTreeSet::new(), &NodeSet::default()), None, "where they are is not known");
}

fn said(kind: Kind, host: Range, at_ns: u64) -> Said {
    Said { pid: PID, hint: Hint { start: host.start, bytes: host.bytes(), kind, times: 3, at_ns } }
}

#[test]
fn what_is_announced_is_expected_until_soon_after_its_time_however_far_ahead_that_is() {
    let (mut gpu, mut touches, now, clock) = (Gpu::default(), Vec::new(), Instant::now(), Clock::read());
    let mut heed = |gpu: &mut Gpu, host, at_ns| {
        gpu.heed(&said(Kind::Expected, host, at_ns), &clock, now, &residents(), &mut touches);
    };
    heed(&mut gpu, Range::new(BLOCK + 4096, 2 * BLOCK + 1), clock.now_ns() + 3_000_000_000);
    heed(&mut gpu, Range::new(4 * BLOCK, 9 * BLOCK), u64::MAX);
    let expects = |gpu: &Gpu, block: u64, seconds: u64| {
        gpu.expects(PID, Range::new(block * BLOCK, (block + 1) * BLOCK), now + Duration::from_secs(seconds))
    };
    assert!(expects(&gpu, 1, 3) && expects(&gpu, 2, 3) && !expects(&gpu, 1, 5), "3 s, and one more");
    assert!(!expects(&gpu, 3, 0) && !expects(&gpu, 5, 0), "nothing is there");
    assert!(expects(&gpu, 4, 10) && !expects(&gpu, 4, 12), "no longer than 10 s and one more");
    heed(&mut gpu, Range::new(BLOCK, 2 * BLOCK), 0);
    assert!(expects(&gpu, 1, 3), "a later word shortens nothing");
    gpu.forget(PID);
    assert!(!expects(&gpu, 1, 3));
    assert_eq!(touches, [], "what is to come is no use yet");
}

#[test]
fn what_the_bridge_says_it_copied_counts_as_often_as_it_says() {
    let (mut gpu, mut touches, now, clock) = (Gpu::default(), Vec::new(), Instant::now(), Clock::read());
    let host = Range::new(BLOCK, 2 * BLOCK);
    for (kind, at_ns) in [(Kind::HostToDevice, clock.now_ns()), (Kind::DeviceToHost, 0), (Kind::Registered, 0)] {
        gpu.heed(&said(kind, host, at_ns), &clock, now, &residents(), &mut touches);
    }
    let told: Vec<_> = touches.iter().map(|touch| (touch.range, touch.weight)).collect();
    assert_eq!(told, [(host, 3.0), (host, 3.0)]);
    let copied = |direction| gpu.copied[&(direction, Some(NodeId(0)), Path::Bridge)];
    assert_eq!([copied(Direction::ToDevice), copied(Direction::ToHost)], [3 * BLOCK, 3 * BLOCK]);
    assert_eq!(gpu.pinned(PID, host), BLOCK);
    gpu.heed(&said(Kind::Unregistered, host, 0), &clock, now, &residents(), &mut touches);
    assert_eq!(gpu.pinned(PID, host), 0);
}
