//! What a client may send, and the agent must stand.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::{Agent, Place, ran};

#[test]
fn nonsense_is_refused_and_the_agent_goes_on() {
    let place = Place::new();
    let _agent = place.agent();
    let deep = format!("{{\"status\":{}{}}}\n", "[".repeat(20_000), "]".repeat(20_000));
    let lines: [&[u8]; 14] = [
        b"\n",
        b"hello\n",
        b"\xff\xfe\x00\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b"{\"status\":{\"more\":1}}\n",
        b"{\"status\":{},\"end\":{\"job\":1}}\n",
        b"{\"watch\":{\"pid\":-1}}\n",
        b"{\"watch\":{\"pid\":99999999999999999999}}\n",
        b"{\"watch\":{\"pid\":1,\"terms\":{\"limits\":{\"more\":1}}}}\n",
        b"{\"attach\":{\"target\":{\"shell\":\"rm\"}}}\n",
        b"{\"end\":{\"job\":\"x\"}}\n",
        deep.as_bytes(),
    ];
    for line in lines {
        let answer = place.say(line);
        assert!(answer.starts_with("{\"refused\":"), "{:?}: {answer}", String::from_utf8_lossy(line));
    }
    for line in ["{\"end\":{\"job\":77}}\n", "{\"detach\":{\"job\":\"\"}}\n", "{\"pause\":{\"job\":\"\\u0000\"}}\n"] {
        assert!(place.say(line.as_bytes()).contains("no job"), "{line}");
    }
    let name = "x".repeat(65);
    for name in ["", "a\\nb", "17", &name] {
        let line = format!("{{\"attach\":{{\"target\":{{\"pid\":1}},\"terms\":{{\"name\":\"{name}\"}}}}}}\n");
        assert!(place.say(line.as_bytes()).contains("name"), "{line}");
    }
    assert!(place.jobs().is_empty());
}

#[test]
fn a_line_without_end_is_cut_and_half_a_line_is_none() {
    let place = Place::new();
    let _agent = place.agent();
    let answer = place.say(&vec![b'a'; 4 << 20]);
    assert!(answer.is_empty() || answer.contains("at most 65536 bytes"), "{answer}");
    assert_eq!(place.say(b"{\"status\":{}}"), "", "no newline, no request");
    assert!(place.say(b"{\"status\":{}}\n").starts_with("{\"status\":"));
}

/// One less than the agent serves at a time.
const ALL_BUT_ONE: usize = 255;

#[test]
fn clients_that_say_nothing_or_read_nothing_hold_nobody_up() {
    let place = Place::new();
    let _agent = place.agent();
    let mut silent: Vec<UnixStream> =
        (0..ALL_BUT_ONE).map(|_| UnixStream::connect(place.path("agent.sock")).unwrap()).collect();
    for (number, stream) in silent.iter_mut().enumerate().filter(|(number, _)| number % 2 == 0) {
        stream.set_nonblocking(true).unwrap();
        // Each asks for much and reads none of it; where the agent stops reading, the write ends.
        let many = "{\"status\":{}}\n".repeat(50 + number);
        let _ = stream.write_all(many.as_bytes());
    }
    let start = Instant::now();
    place.status();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn more_clients_than_are_served_are_turned_away_with_the_reason_and_later_ones_served() {
    let place = Place::new();
    let _agent = place.agent();
    let mut many: Vec<UnixStream> =
        (0..=ALL_BUT_ONE).map(|_| UnixStream::connect(place.path("agent.sock")).unwrap()).collect();
    // Each has been taken in once it is answered.
    for stream in &mut many {
        stream.write_all(b"{\"watch\":{\"pid\":1,\"terms\":{\"name\":\"\"}}}\n").unwrap();
        let mut answer = String::new();
        BufReader::new(&*stream).read_line(&mut answer).unwrap();
        assert!(answer.contains("refused"), "{answer}");
    }
    for words in [&["status"][..], &["pause"], &["drain", "0"], &["attach", "1"]] {
        let (code, out, err) = place.ran(words);
        let told = err.contains("256 clients are connected") || err.contains("has gone");
        assert!(code == 1 && told && out.is_empty(), "{words:?}: {code} {out} {err}");
    }
    drop(many);
    crate::wait_for("service", || place.ran(&["status"]).0 == 0);
}

#[test]
fn every_order_is_answered_however_many_are_sent_at_once() {
    const ORDERS: usize = 3000;
    let place = Place::new();
    let _agent = place.agent();
    let mut stream = UnixStream::connect(place.path("agent.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut write = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let order = "{\"detach\":{\"job\":\"nobody\"}}\n";
        write.write_all(order.repeat(ORDERS).as_bytes()).unwrap();
        write.shutdown(std::net::Shutdown::Write).unwrap();
    });
    // Nothing is read for a while, and others are served.
    std::thread::sleep(Duration::from_millis(500));
    place.status();
    let answers = BufReader::new(&mut stream).lines().map(Result::unwrap);
    assert_eq!(answers.filter(|answer| answer.contains("no job")).count(), ORDERS);
    writer.join().unwrap();
}

#[test]
fn a_socket_takes_no_files_place_and_others_can_take_none_of_the_agents() {
    let place = Place::new();
    let file = place.path("data");
    fs::write(&file, "kept").unwrap();
    let (code, _, err) = place.ran(&["agent", "--socket", file.to_str().unwrap()]);
    assert!(code == 1 && err.contains("no socket"), "{err}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");

    let open = place.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
    let socket = open.join("agent.sock");
    for words in [&["agent", "--socket"][..], &["run", "--require", "--socket"]] {
        let (code, _, err) = place.ran(&[words, &[socket.to_str().unwrap(), "true"][..words.len() - 1]].concat());
        assert!(code != 0 && err.contains("can be written by others"), "{words:?}: {err}");
    }

    // Whatever the umask is.
    for (umask, name) in [("000", "wide"), ("077", "narrow")] {
        let socket = place.path(name).join("agent.sock");
        let line = format!("umask {umask}; exec {} agent", place.path("tensortier").display());
        let mut agent = std::process::Command::new("sh");
        agent.args(["-c", &line]).env("TENSORTIER_SOCKET", &socket).env("TENSORTIER_CONFIG", place.path("config.toml"));
        let _agent = Agent { child: agent.stderr(Stdio::null()).spawn().unwrap() };
        let served =
            || ran(place.of_user(4242, &["pause"]).env("TENSORTIER_SOCKET", &socket)).2.contains("is for root");
        crate::wait_for("service to every user", served);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let lock = place.path(name).join("agent.sock.lock");
        assert_eq!([mode(&place.path(name)), mode(&socket), mode(&lock)], [0o755, 0o666, 0o600], "umask {umask}");
    }
}
