//! The way of answers back to a client.

use std::{
    io::{self, IoSlice},
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::{UnixStream, unix::OwnedWriteHalf},
    sync::{Semaphore, mpsc},
    time::timeout,
};

use super::{Answer, Given};

/// Answers that wait for a client to read them; a plan beyond that is dropped.
const WAITING: usize = 64;

/// What answers are written to.
pub(super) trait Sink {
    /// Writes a line, and gives what comes with it.
    async fn put(&mut self, line: &[u8], given: &[Arc<OwnedFd>]) -> io::Result<()>;
}

impl Sink for OwnedWriteHalf {
    async fn put(&mut self, line: &[u8], given: &[Arc<OwnedFd>]) -> io::Result<()> {
        let mut sent = 0;
        if !given.is_empty() {
            let stream: &UnixStream = self.as_ref();
            // They go with the first byte, wherever the line is cut.
            let give = || {
                let fds: Vec<RawFd> = given.iter().map(|one| one.as_raw_fd()).collect();
                let (parts, flags) = ([IoSlice::new(line)], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
                Ok(sendmsg::<()>(stream.as_raw_fd(), &parts, &[ControlMessage::ScmRights(&fds)], flags, None)?)
            };
            sent = stream.async_io(Interest::WRITABLE, give).await?;
        }
        self.write_all(&line[sent..]).await
    }
}

/// Where a client's answers go. It never waits.
#[derive(Clone, Debug)]
pub struct Reply {
    answers: mpsc::Sender<Answer>,
    /// Answers of all clients that are not written yet.
    pending: Arc<AtomicUsize>,
    turn: Arc<Turn>,
}

/// One request of a connection is under way at a time: the agent's queue is no longer than there are connections, and
/// who does not read is not read from.
#[derive(Debug)]
struct Turn {
    /// A permit for each answer that is written and that the connection has not gone on from.
    answered: Semaphore,
    /// Whether the last answer was that a job has begun.
    began: AtomicBool,
}

/// Answers that are still to be written.
#[derive(Debug)]
pub(super) struct Unwritten {
    answers: mpsc::Receiver<Answer>,
    pending: Arc<AtomicUsize>,
    turn: Arc<Turn>,
}

impl Reply {
    /// A client's, with what is to be written to it. `pending` counts the answers of all clients.
    pub(super) fn new(pending: &Arc<AtomicUsize>) -> (Self, Unwritten) {
        let (sender, answers) = mpsc::channel(WAITING);
        let turn = Arc::new(Turn { answered: Semaphore::new(0), began: AtomicBool::new(false) });
        let unwritten = Unwritten { answers, pending: Arc::clone(pending), turn: Arc::clone(&turn) };
        (Self { answers: sender, pending: Arc::clone(pending), turn }, unwritten)
    }

    /// Sends an answer, where the client is still there and reads.
    pub fn send(&self, answer: Answer) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.answers.try_send(answer) {
            self.pending.fetch_sub(1, Ordering::Relaxed);
            tracing::debug!(%error, "an answer found no reader");
            self.turn.over(&error.into_inner());
        }
    }

    /// Whether the client is still there.
    pub fn is_open(&self) -> bool {
        !self.answers.is_closed()
    }

    /// Waits for the answer to a request; gives whether that was that a job has begun.
    pub(super) async fn answered(&self) -> bool {
        // It is never closed.
        self.turn.answered.acquire().await.is_ok_and(|permit| {
            permit.forget();
            self.turn.began.load(Ordering::Relaxed)
        })
    }
}

impl Turn {
    fn over(&self, answer: &Answer) {
        // A plan comes unasked.
        if !matches!(answer, Answer::Plan { .. }) {
            self.began.store(matches!(answer, Answer::Watching { .. }), Ordering::Relaxed);
            self.answered.add_permits(1);
        }
    }
}

impl Unwritten {
    /// Writes answers until nobody is left to send one. A client that does not read within `patience` loses its
    /// connection.
    pub async fn write(mut self, mut to: impl Sink, patience: Duration) {
        let mut reads = true;
        while let Some(answer) = self.answers.recv().await {
            if let (true, Ok(mut line)) = (reads, serde_json::to_vec(&answer)) {
                line.push(b'\n');
                let given = if let Answer::Linked { given: Given(given) } = &answer { given.as_slice() } else { &[] };
                reads = timeout(patience, to.put(&line, given)).await.is_ok_and(|written| written.is_ok());
            }
            self.pending.fetch_sub(1, Ordering::Relaxed);
            if !reads {
                self.answers.close();
            }
            self.turn.over(&answer);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    impl Sink for Vec<u8> {
        async fn put(&mut self, line: &[u8], _given: &[Arc<OwnedFd>]) -> io::Result<()> {
            self.extend_from_slice(line);
            Ok(())
        }
    }

    #[test]
    fn a_request_is_over_once_its_answer_is_written_and_only_a_job_that_began_is_followed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let pending = Arc::default();
        let (reply, unwritten) = Reply::new(&pending);
        reply.send(Answer::Plan { text: "unasked".into() });
        reply.send(Answer::Watching { job: 1, name: "a".into(), config: None });
        reply.send(Answer::Refused { why: "no".into() });
        assert_eq!((pending.load(Ordering::Relaxed), reply.turn.answered.available_permits()), (3, 0));
        runtime.block_on(async {
            let writer = unwritten.write(Vec::new(), Duration::from_secs(1));
            tokio::select! {
                () = writer => panic!("a sender is left"),
                () = tokio::task::yield_now() => {}
            }
            assert!(!reply.answered().await, "the last answer is a refusal");
            reply.send(Answer::Watching { job: 2, name: "b".into(), config: None });
            assert!(!reply.is_open() && reply.answered().await, "nobody writes, and nobody waits for ever");
        });
        assert_eq!(reply.turn.answered.available_permits(), 1);
    }
}
