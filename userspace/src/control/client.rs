//! The other side of the socket: what the commands use.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Answer, Request};

/// An answer can hold the state of many jobs.
const MAX_ANSWER: u64 = 64 << 20;
/// An agent answers in milliseconds; only `drain` and the end of a job take longer, and bound themselves.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why the agent could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// An agent may listen, and this user may not connect.
    #[error("the agent's socket {} is closed to this user: {source}", path.display())]
    Barred {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing listens.
    #[error("no agent answers at {}: {source}; start one with `tensortier agent`, as root", path.display())]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The agent runs and says nothing.
    #[error("the agent at {} does not answer; is it stopped?", path.display())]
    Silent {
        /// The socket.
        path: PathBuf,
    },
    /// The agent ended meanwhile.
    #[error("the agent at {} has gone: {source}", path.display())]
    Gone {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What came is no answer.
    #[error("the agent at {} speaks another protocol: {source}; are agent and command of one version?", path.display())]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// What was wrong with it.
        source: serde_json::Error,
    },
    /// The agent refused.
    #[error("{0}")]
    Refused(String),
}

/// A connection to the agent.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    read: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the agent at `path`.
    ///
    /// # Errors
    /// [`ClientError::NoAgent`], or [`ClientError::Barred`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::Barred { path: path.to_owned(), source },
            _ => ClientError::NoAgent { path: path.to_owned(), source },
        };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        Ok(Self { path: path.to_owned(), read: BufReader::new(stream) })
    }

    /// Waits no longer than `patience` for what the agent says next; a minute where none is given.
    ///
    /// # Errors
    /// The socket refuses.
    pub fn patience(&mut self, patience: Option<Duration>) -> Result<(), ClientError> {
        self.read.get_ref().set_read_timeout(Some(patience.unwrap_or(PATIENCE))).map_err(|source| self.gone(source))
    }

    /// Asks, and waits for the answer. A plan that comes meanwhile is given to `told`.
    ///
    /// # Errors
    /// The agent refused, went away or cannot be understood.
    pub fn ask_and_hear(&mut self, request: &Request, mut told: impl FnMut(String)) -> Result<Answer, ClientError> {
        let mut line = serde_json::json!(request).to_string();
        line.push('\n');
        let mut unwritten = self.read.get_mut().write_all(line.as_bytes()).err();
        loop {
            let next = self.next();
            // The last word of an agent that ends, or turns away, was said before it was asked.
            if let (Err(_), Some(source)) = (&next, unwritten.take()) {
                return Err(self.gone(source));
            }
            match next? {
                Answer::Plan { text } => told(text),
                Answer::Refused { why } => return Err(ClientError::Refused(why)),
                answer => return Ok(answer),
            }
        }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// As [`Client::ask_and_hear`].
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ClientError> {
        self.ask_and_hear(request, drop)
    }

    /// Gives what has come unasked to `told`: plans, and the account from an agent that ends. Does not wait for more.
    ///
    /// # Errors
    /// The agent went away or cannot be understood.
    pub fn hear(&mut self, mut told: impl FnMut(Answer)) -> Result<(), ClientError> {
        loop {
            if !self.read.buffer().contains(&b'\n') {
                self.read.get_ref().set_nonblocking(true).map_err(|source| self.gone(source))?;
                let more = self.read.fill_buf().map(|bytes| !bytes.is_empty());
                self.read.get_ref().set_nonblocking(false).map_err(|source| self.gone(source))?;
                match more {
                    Ok(true) => {}
                    Ok(false) => return Err(self.gone(io::ErrorKind::UnexpectedEof.into())),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(source) => return Err(self.gone(source)),
                }
            }
            told(self.next()?);
        }
    }

    fn next(&mut self) -> Result<Answer, ClientError> {
        let mut line = Vec::new();
        let read = (&mut self.read).take(MAX_ANSWER).read_until(b'\n', &mut line);
        read.map_err(|source| self.gone(source))?;
        if line.last() != Some(&b'\n') {
            return Err(self.gone(io::ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_slice(&line).map_err(|source| ClientError::Protocol { path: self.path.clone(), source })
    }

    fn gone(&self, source: io::Error) -> ClientError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Silent { path },
            _ => ClientError::Gone { path, source },
        }
    }
}
