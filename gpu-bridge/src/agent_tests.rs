use std::{io::Read, os::unix::net::UnixListener, path::PathBuf, thread};

use nix::{
    sys::{
        memfd::{MFdFlags, memfd_create},
        socket::{AddressFamily, ControlMessage, SockFlag, SockType, recv, sendmsg, socketpair},
    },
    unistd::ftruncate,
};
use tensortier_link::{
    hints::decode,
    placement::{Extent, Kind as Memory, Writer, words},
};

use super::*;

const CAPACITY: usize = 16;

fn extent(start: u64, end: u64, node: u32) -> Extent {
    Extent { start, end, node, kind: Memory::Cxl, read_mib_per_sec: 7, latency_ns: 9 }
}

/// A placement's memory as an agent makes it, left mapped: what is written there, and the descriptor.
fn placement(sealed: bool) -> (&'static [AtomicU64], OwnedFd) {
    let file = memfd_create(c"placement", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).expect("a memfd");
    let bytes = words(CAPACITY) * 8;
    ftruncate(&file, bytes as i64).expect("room");
    let length = NonZeroUsize::new(bytes).expect("some");
    let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a fresh mapping that is never unmapped; page aligned, and all access is atomic.
    let words = unsafe {
        let start = mmap(None, length, rights, MapFlags::MAP_SHARED, &file, 0).expect("maps");
        slice::from_raw_parts(start.cast().as_ptr(), words(CAPACITY))
    };
    if sealed {
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_FUTURE_WRITE;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("seals");
    }
    (words, file)
}

/// Answers one client with a line, cut in two, and descriptors; gives the client's link and the agent's end of the hints.
fn answered(name: &str, line: &str, placement: Option<OwnedFd>) -> (Result<AgentLink, LinkError>, OwnedFd) {
    let path: PathBuf = std::env::temp_dir().join(format!("tensortier-link-{name}-{}", std::process::id()));
    let listener = UnixListener::bind(&path).expect("a socket");
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("a pair");
    let line = line.to_owned();
    let agent = thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let mut request = [0; 12];
        client.read_exact(&mut request).expect("a request");
        assert_eq!(&request, b"{\"link\":{}}\n");
        let (first, rest) = line.as_bytes().split_at(3);
        let fds: Vec<RawFd> = placement.iter().chain([&theirs]).map(|one| one.as_raw_fd()).collect();
        let give = [ControlMessage::ScmRights(&fds)];
        let given = if placement.is_some() { &give[..] } else { &[] };
        let parts = [io::IoSlice::new(first)];
        sendmsg::<()>(client.as_raw_fd(), &parts, given, MsgFlags::empty(), None).expect("sent");
        client.write_all(rest).expect("sent");
    });
    let link = AgentLink::connect(&path);
    agent.join().expect("the agent");
    std::fs::remove_file(&path).expect("remove");
    (link, ours)
}

fn heard(hints: &OwnedFd) -> tensortier_link::hints::Decoded {
    let mut message = vec![0; tensortier_link::hints::MAX_BYTES];
    let length = recv(hints.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT).expect("a message");
    decode(&message[..length]).expect("hints")
}

#[test]
fn places_follow_what_the_agent_publishes_and_stay_when_it_has_gone() {
    let (words, file) = placement(true);
    let mut writer = Writer::new(words).expect("room");
    let (link, _hints) = answered("places", "{\"linked\":{}}\n", Some(file));
    let mut link = link.expect("a link");
    let mut node = |start| link.places().find(start, 10).map(|extent| extent.node);
    assert_eq!(node(100), None, "nothing was published");
    writer.publish(&[extent(100, 200, 1), extent(200, 300, 0)], 1).expect("fits");
    assert_eq!((node(100), node(250), node(300)), (Some(1), Some(0), None));
    writer.publish(&[extent(100, 300, 0)], 2).expect("fits");
    assert_eq!(node(100), Some(0));
    // What an agent leaves that dies in the middle, or is broken: the header alone is whole.
    words[0].store(0, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(node(100), Some(0), "what was known stays");
}

#[test]
fn hints_gather_and_what_does_not_fit_is_counted_and_said() {
    let (words, file) = placement(true);
    Writer::new(words).expect("room");
    let (link, hints) = answered("hints", "{\"linked\":{}}\n", Some(file));
    let mut link = link.expect("a link");
    for at in 1..=5 {
        link.copied(Direction::H2d, 4096, 100, at);
    }
    link.copied(Direction::D2h, 4096, 100, 6);
    link.hint(Kind::Expected, 8192, 1, 77);
    link.copied(Direction::H2d, 4096, 0, 8);
    link.flush();
    let told = heard(&hints);
    let brief: Vec<_> = told.hints.iter().map(|hint| (hint.start, hint.kind, hint.times, hint.at_ns)).collect();
    let expected = [(4096, Kind::HostToDevice, 5, 5), (4096, Kind::DeviceToHost, 1, 6), (8192, Kind::Expected, 1, 77)];
    assert_eq!((brief.as_slice(), told.dropped, told.malformed), (&expected[..], 0, 0));
    link.flush();
    assert!(recv(hints.as_raw_fd(), &mut [0; 8], MsgFlags::MSG_DONTWAIT).is_err(), "nothing to say");

    // Nobody reads: the socket fills, and the rest is dropped.
    let mut sent = 0;
    while link.dropped() == 0 {
        link.copied(Direction::H2d, 4096 * (sent + 1), 1, sent);
        if sent % MAX_HINTS as u64 == 7 {
            link.flush();
        }
        sent += 1;
    }
    let (mut kept, dropped) = (0, u64::from(link.dropped()));
    while let Ok(length) = recv(hints.as_raw_fd(), &mut vec![0; 1 << 16], MsgFlags::MSG_DONTWAIT) {
        kept += (length as u64 - 16) / 32;
    }
    assert_eq!(kept + dropped, sent);
    link.copied(Direction::H2d, 4096, 1, 1);
    link.flush();
    assert_eq!((u64::from(heard(&hints).dropped), link.dropped()), (dropped, 0));
    assert!(!link.is_gone(), "a full socket is a socket");
    drop(hints);
    link.copied(Direction::H2d, 4096, 1, 1);
    link.flush();
    assert_eq!((link.dropped(), link.is_gone()), (1, true), "the agent has gone, and nothing happens");
}

#[test]
fn a_descriptor_that_the_program_took_is_neither_written_to_nor_closed() {
    let (words, file) = placement(true);
    Writer::new(words).expect("room");
    let (link, _hints) = answered("taken", "{\"linked\":{}}\n", Some(file));
    let mut link = link.expect("a link");
    let number = link.hints.as_ref().expect("a socket").as_raw_fd();
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    // SAFETY: the number becomes the program's; `link` finds out.
    assert_eq!(unsafe { nix::libc::dup2(theirs.as_raw_fd(), number) }, number);
    link.copied(Direction::H2d, 4096, 1, 1);
    link.flush();
    assert!(link.is_gone());
    drop(link);
    // SAFETY: the duplicate is nobody else's.
    let duplicate = unsafe { OwnedFd::from_raw_fd(number) };
    assert_eq!(identity(&duplicate), identity(&OwnedFd::from(theirs)), "still open");
    drop(duplicate);
    let mut said = Vec::new();
    ours.read_to_end(&mut said).expect("reads to the end");
    assert!(said.is_empty(), "{said:?}");
}

#[test]
fn what_is_no_link_is_refused_by_name() {
    let refused = answered("refused", "{\"refused\":{\"why\":\"not watched\"}}\n", None).0.err().expect("refused");
    assert!(refused.to_string().contains("not watched"), "{refused}");
    let (words, file) = placement(false);
    Writer::new(words).expect("room");
    let open = answered("open", "{\"linked\":{}}\n", Some(file)).0.err().expect("refused");
    assert!(open.to_string().contains("not sealed"), "{open}");
    let other = answered("other", "{\"linked\":{}}\n", Some(placement(true).1)).0.err().expect("refused");
    assert!(matches!(other, LinkError::Placement(PlacementError::Magic { found: 0 })), "{other}");
    let none = AgentLink::connect(Path::new("/nonexistent/agent.sock")).err().expect("nobody");
    assert!(none.to_string().contains("tensortier agent"), "{none}");
}
