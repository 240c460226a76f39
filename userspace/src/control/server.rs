//! The server side of the socket, on a thread and an event loop of its own: no client can hold the agent up, and
//! `status` is answered from the board, for which the agent is waited for a moment at the most.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixListener as StdListener,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    net::{TcpListener, UnixListener, UnixStream, unix::OwnedReadHalf},
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
    time::timeout,
};

pub use super::reply::Reply;
use super::{
    Answer, MAX_LINE, Request,
    access::Peer,
    board::{Board, Shown},
    metrics,
    seats::{Seats, turn_away},
};

/// A client that has begun no job must say something within this time, and read within it.
const PATIENCE: Duration = Duration::from_secs(30);
/// At the end, answers still under way are waited for this long.
const FAREWELL: Duration = Duration::from_secs(1);
/// That clients are turned away is said this often.
const FULL: Duration = Duration::from_secs(10);

/// What reaches the agent.
#[derive(Debug)]
pub enum Event {
    /// A client asks.
    Order {
        /// Who.
        peer: Peer,
        /// What.
        request: Request,
        /// Where the answer goes.
        reply: Reply,
    },
    /// Somebody looks, and finds an old state.
    Look,
    /// SIGHUP: read the config again.
    Reload,
    /// SIGTERM or SIGINT: end.
    End,
}

/// Why the socket is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The socket could not be made.
    #[error("cannot listen at {}: {source}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The metrics' address cannot be had.
    #[error("prometheus.listen: cannot listen at {address}: {source}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// No thread or event loop.
    #[error("cannot start the control thread: {0}")]
    Thread(#[from] io::Error),
}

/// The server. Dropping it removes the socket and ends the thread, after the answers under way.
pub struct Server {
    path: PathBuf,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`, in place of whatever socket a dead agent left there, and takes over SIGHUP, SIGTERM and SIGINT.
    /// Everybody may connect: who may ask what is decided by request. At `scrape`, if any, the metrics are served.
    ///
    /// # Errors
    /// The socket or the address cannot be had, or no thread is.
    pub fn start(
        path: &Path,
        scrape: Option<SocketAddr>,
        board: Arc<Board>,
        events: mpsc::Sender<Event>,
    ) -> Result<Self, ServerError> {
        let listen = |address| metrics::listen(address).map_err(|source| ServerError::Metrics { address, source });
        let scrape = scrape.map(listen).transpose()?;
        let failed = |source| ServerError::Listen { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                let why = "there is a file that is no socket; name another path, or remove it";
                return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, why)));
            }
            Ok(_) => fs::remove_file(path).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let listener = StdListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (listener, scrape) = {
            let _inside = runtime.enter();
            (UnixListener::from_std(listener).map_err(failed)?, scrape.map(TcpListener::from_std).transpose()?)
        };
        // Taken here and not on the thread: a signal from now on finds them.
        let signals = {
            let _inside = runtime.enter();
            [(SignalKind::hangup(), false), (SignalKind::terminate(), true), (SignalKind::interrupt(), true)]
                .map(|(kind, ends)| Ok((signal(kind)?, ends)))
                .into_iter()
                .collect::<io::Result<Vec<_>>>()?
        };
        let thread = thread::Builder::new().name("tt-control".into()).spawn(move || {
            for (mut signal, ends) in signals {
                let events = events.clone();
                runtime.spawn(async move {
                    while signal.recv().await.is_some() {
                        // Without an agent there is nothing to end.
                        let _ = events.send(if ends { Event::End } else { Event::Reload });
                    }
                });
            }
            if let Some(scrape) = scrape {
                runtime.spawn(metrics::serve(scrape, Arc::clone(&board), events.clone()));
            }
            run(&runtime, listener, board, events, stopped);
        })?;
        Ok(Self { path: path.to_owned(), stop: Some(stop), thread: Some(thread) })
    }
}

impl Server {
    /// Takes the socket away: who has connected is answered, and nobody else finds this server.
    pub fn withdraw(&self) {
        // Fails where it has been removed already.
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.withdraw();
        // Fails only where the thread has ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the control thread panicked");
        }
    }
}

fn run(
    runtime: &Runtime,
    listener: UnixListener,
    board: Arc<Board>,
    events: mpsc::Sender<Event>,
    stopped: tokio::sync::oneshot::Receiver<()>,
) {
    let pending = Arc::new(AtomicUsize::new(0));
    let seats = Seats::default();
    runtime.block_on(async {
        let accept = async {
            let mut said: Option<Instant> = None;
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => match seats.admit(&stream) {
                        Ok((peer, seat)) => {
                            let (board, events, pending) = (Arc::clone(&board), events.clone(), Arc::clone(&pending));
                            tokio::spawn(async move {
                                if let Err(error) = converse(stream, peer, &board, &events, &pending).await {
                                    tracing::debug!(%error, "a client's connection ended");
                                }
                                drop(seat);
                            });
                        }
                        Err(why) => {
                            if said.is_none_or(|said| said.elapsed() > FULL) {
                                tracing::warn!(why, "a client was turned away");
                                said = Some(Instant::now());
                            }
                            turn_away(stream, why);
                        }
                    },
                    Err(error) => {
                        // Out of descriptors, as a rule: some will close.
                        tracing::warn!(%error, "a client cannot be accepted");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accept => {}
            _ = stopped => {}
        }
        let farewell = async {
            while pending.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let _ = timeout(FAREWELL, farewell).await;
    });
}

async fn converse(
    stream: UnixStream,
    peer: Peer,
    board: &Board,
    events: &mpsc::Sender<Event>,
    pending: &Arc<AtomicUsize>,
) -> io::Result<()> {
    let (read, write) = stream.into_split();
    let (reply, unwritten) = Reply::new(pending);
    let writer = tokio::spawn(unwritten.write(write, PATIENCE));
    let mut lines = Lines { read: BufReader::new(read), line: Vec::new() };
    let mut watches = false;
    loop {
        // Who has begun a job is waited for until that ends.
        let next = if watches { lines.next().await } else { timeout(PATIENCE, lines.next()).await? };
        let Some(line) = next? else {
            // Who follows a job and says no more has gone; others may still read what they asked for.
            if watches {
                writer.abort();
            }
            return Ok(());
        };
        let request = match line {
            Ok(line) => serde_json::from_slice(line).map_err(|error| format!("not a request: {error}")),
            Err(TooLong) => {
                reply.send(Answer::Refused { why: format!("a request is at most {MAX_LINE} bytes long") });
                return Ok(());
            }
        };
        let watch = matches!(request, Ok(Request::Watch { .. }));
        match request {
            Err(why) => reply.send(Answer::Refused { why }),
            Ok(Request::Status {}) => {
                let may_read = |shown: &Shown| peer.may_read(shown.readers);
                // Who may not read it has no work done for it.
                let last = board.last();
                let shown = if last.at.is_some() && may_read(&last).is_err() { last } else { board.look(events).await };
                reply.send(match may_read(&shown) {
                    Ok(()) => Answer::Status(shown.status),
                    Err(refused) => Answer::Refused { why: refused.to_string() },
                });
            }
            Ok(request) => {
                // Fails where the agent is ending: the connection's end says so.
                if events.send(Event::Order { peer, request, reply: reply.clone() }).is_err() {
                    return Ok(());
                }
            }
        }
        // Who was refused follows no job, and is waited for as anybody.
        watches |= reply.answered().await && watch;
    }
}

struct TooLong;

struct Lines {
    read: BufReader<OwnedReadHalf>,
    line: Vec<u8>,
}

impl Lines {
    /// The next line without its end; `None` after the last. Half a line at the end is none.
    async fn next(&mut self) -> io::Result<Option<Result<&[u8], TooLong>>> {
        self.line.clear();
        (&mut self.read).take(MAX_LINE as u64 + 1).read_until(b'\n', &mut self.line).await?;
        match self.line.pop() {
            Some(b'\n') => Ok(Some(Ok(&self.line))),
            Some(_) if self.line.len() >= MAX_LINE => Ok(Some(Err(TooLong))),
            _ => Ok(None),
        }
    }
}
