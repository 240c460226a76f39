#![allow(clippy::unwrap_used)]
use std::{fs::File, io::Write, path::Path};

use nix::sys::socket::{ControlMessage, send, sendmsg};
use tensortier_link::{
    hints::{Kind as HintKind, encode},
    placement::{Reader, Stamp},
};

use super::*;
use crate::units::{BLOCK, Range};

const PID: Pid = Pid(7);

fn block(number: u64, on: &[(u32, u64)]) -> Resident {
    let range = Range::new(number * BLOCK, (number + 1) * BLOCK);
    Resident { pid: PID, range, on: on.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect() }
}

fn host() -> Host {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/host/numa-6.12");
    Host::read(&recorded).unwrap()
}

fn hint(start: u64) -> Hint {
    Hint { start, bytes: 4096, kind: HintKind::HostToDevice, times: 1, at_ns: 5 }
}

fn heard(links: &mut Links) -> Vec<Said> {
    let mut all = Vec::new();
    let _ = links.hear(|said| all.push(said));
    all
}

/// What a process reads through its descriptor.
fn read(descriptor: &OwnedFd) -> Result<(Stamp, Vec<Extent>), tensortier_link::placement::PlacementError> {
    use std::os::unix::fs::FileExt;
    let file = File::from(descriptor.try_clone().unwrap());
    let mut bytes = vec![0; words(CAPACITY) * 8];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let words: Vec<std::sync::atomic::AtomicU64> =
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word).into()).collect();
    let mut extents = Vec::new();
    let stamp = Reader::new(&words)?.read(&mut extents)?;
    Ok((stamp, extents))
}

#[test]
fn neighbours_on_one_node_are_one_extent_and_other_memory_none() {
    let tier = |node: NodeId| (node.0 < 3).then_some((if node.0 == 0 { Kind::Dram } else { Kind::Cxl }, node.0, 9));
    let residents = [
        block(1, &[(0, BLOCK)]),
        block(2, &[(0, BLOCK / 2 + 1), (2, BLOCK / 2 - 1)]),
        block(3, &[(2, BLOCK)]),
        block(5, &[(2, BLOCK)]),
        block(6, &[(7, BLOCK)]),
        block(7, &[]),
    ];
    let extent = |first: u64, end: u64, node, kind| Extent {
        start: first * BLOCK,
        end: end * BLOCK,
        node,
        kind,
        read_mib_per_sec: node,
        latency_ns: 9,
    };
    let (long, one, other) = (extent(1, 3, 0, Kind::Dram), extent(3, 4, 2, Kind::Cxl), extent(5, 6, 2, Kind::Cxl));
    assert_eq!(extents(&residents, 9, &tier), [long, one, other]);
    assert_eq!(extents(&residents, 2, &tier), [long, one], "the largest, in their order");
}

#[test]
fn a_process_reads_where_its_memory_is_and_can_change_nothing() {
    let (mut links, host) = (Links::default(), host());
    let [placement, _hints] = links.open(PID, 7).unwrap();
    assert!(read(&placement).is_err(), "nothing was published");
    let mut residents = vec![block(1, &[(0, BLOCK)]), block(2, &[(1, BLOCK)])];
    links.publish(PID, &residents, &host, 11);
    let (stamp, extents) = read(&placement).unwrap();
    assert_eq!((stamp.generation, stamp.published_ns), (1, 11));
    let told: Vec<_> = extents.iter().map(|one| (one.start / BLOCK, one.node, one.kind)).collect();
    assert_eq!(told, [(1, 0, Kind::Dram), (2, 1, Kind::Cxl)]);
    assert!(extents[1].read_mib_per_sec > 0 && extents[1].latency_ns > extents[0].latency_ns, "{extents:?}");
    links.publish(PID, &residents, &host, 12);
    assert_eq!(read(&placement).unwrap().0.generation, 1, "nothing has changed");
    residents.truncate(1);
    links.publish(PID, &residents, &host, 13);
    assert_eq!(read(&placement).unwrap().1.len(), 1);

    let mut file = File::from(placement.try_clone().unwrap());
    assert!(file.write_all(b"x").is_err());
    let again = format!("/proc/self/fd/{}", placement.as_raw_fd());
    if let Ok(mut writable) = File::options().write(true).open(again) {
        assert!(writable.write_all(b"x").is_err() && writable.set_len(0).is_err(), "the seals hold");
    }
    drop(links);
    assert_eq!(read(&placement).unwrap().1.len(), 1, "what an agent leaves behind stays whole");
}

#[test]
fn a_hint_is_its_senders_and_what_is_none_is_counted() {
    let mut links = Links::default();
    let [_placement, hints] = links.open(PID, 7).unwrap();
    let tell = |bytes: &[u8]| send(hints.as_raw_fd(), bytes, MsgFlags::empty()).unwrap();
    tell(&encode(&[hint(4096), hint(8192)], 3));
    tell(b"no message");
    tell(b"");
    let mut one_bad = encode(&[hint(4096), hint(0)], 0);
    one_bad[16 + 32 + 8..16 + 32 + 16].fill(0);
    tell(&one_bad);
    tell(&vec![0; hints::MAX_BYTES + 100]);
    // A descriptor that comes along is not taken, nor is what it comes with.
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let fd = [hints.as_raw_fd()];
    let message = encode(&[hint(12288)], 0);
    let parts = [std::io::IoSlice::new(&message)];
    sendmsg::<()>(hints.as_raw_fd(), &parts, &[ControlMessage::ScmRights(&fd)], MsgFlags::empty(), None).unwrap();
    let me = Pid(std::process::id());
    let said: Vec<_> = heard(&mut links).into_iter().map(|said| (said.pid, said.hint.start)).collect();
    assert_eq!(said, [(me, 4096), (me, 8192), (me, 4096)], "whoever has the link, the sender is me");
    assert_eq!(links.refused(), Refused { malformed: 5, dropped: 3 });
    assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() <= before + 1);
    drop(hints);
    assert_eq!(heard(&mut links), []);
}

#[test]
fn a_flood_waits_and_is_read_a_part_a_tick() {
    let mut links = Links::default();
    let [_placement, hints] = links.open(PID, 7).unwrap();
    let message = encode(&[hint(4096)], 0);
    let mut sent = 0;
    while send(hints.as_raw_fd(), &message, MsgFlags::MSG_DONTWAIT).is_ok() {
        sent += 1;
    }
    assert!(sent > MESSAGES, "{sent}");
    assert!(links.hear(|_| {}), "more waits");
    let mut rest = 0;
    loop {
        match heard(&mut links).len() {
            0 => break,
            some => rest += some,
        }
    }
    assert_eq!(rest + MESSAGES, sent);
}

#[test]
fn no_user_has_all_links_and_a_process_one() {
    let mut links = Links::default();
    for pid in 0..OF_A_USER as u32 {
        links.open(Pid(pid + 1), 7).unwrap();
    }
    assert!(links.open(Pid(9999), 7).unwrap_err().to_string().contains("user 7"));
    links.open(Pid(1), 7).unwrap();
    links.open(Pid(9999), 8).unwrap();
    links.close(Pid(1));
    links.open(Pid(9998), 7).unwrap();
    assert_eq!(links.pids().count(), OF_A_USER + 1);
}
