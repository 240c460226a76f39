//! What is said to the agent, where one watches this process, and what is heard of it ([`AgentLink`]).
//!
//! A copy through the ring shows nowhere as what it is: the agent's probes see the ring, and a GPU's reads set no accessed
//! bit. So the source, or the target, of each is told; and of a range that is copied again and again, when the next copy
//! is to be expected, after as long as there was between the last two. Back comes where this process's memory lies.
//!
//! A thread speaks with the agent, from the first copy on. The program's threads leave word with it and never wait; what
//! they leave while it has too much to say is dropped and counted. Without an agent nothing is said, and one that comes
//! later is found at a later copy.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use tensortier_bridge::{
    agent::{AgentLink, SOCKET},
    pipeline::{Direction, prefetch::Places},
};

use crate::sys;

/// Names the agent's socket, for all of tensortier.
const VARIABLE: &str = "TENSORTIER_SOCKET";
/// Copies that wait for the thread.
const WAITING: usize = 1024;
/// What is copied again and again is told once in this time.
const GATHERED: Duration = Duration::from_millis(100);
/// An agent that did not answer is asked again after this time.
const AGAIN: Duration = Duration::from_secs(10);

/// Ranges whose last copy is remembered.
const REMEMBERED: usize = 4096;

/// A copy that was made.
struct Word {
    direction: Direction,
    host: u64,
    bytes: u64,
    at_ns: u64,
}

/// This process's way to the agent.
pub struct Agent {
    socket: PathBuf,
    /// None where no thread could be started.
    words: OnceLock<Option<SyncSender<Word>>>,
    places: Arc<Mutex<Places>>,
}

impl Agent {
    /// The agent that the environment names, or the machine's. Nothing is asked of it yet.
    pub fn new() -> Self {
        let socket = env::var_os(VARIABLE).map_or_else(|| SOCKET.into(), PathBuf::from);
        Self { socket, words: OnceLock::new(), places: Arc::default() }
    }

    /// A copy was made; whether the word was taken.
    pub fn copied(&self, direction: Direction, host: u64, bytes: u64) -> bool {
        let words = self.words.get_or_init(|| {
            let (words, heard) = sync_channel(WAITING);
            let (socket, places) = (self.socket.clone(), Arc::clone(&self.places));
            let thread = thread::Builder::new().name("bridge-agent".into());
            thread.spawn(move || speak(&socket, &heard, &places)).ok().map(|_| words)
        });
        let word = Word { direction, host, bytes, at_ns: sys::now_ns() };
        words.as_ref().is_some_and(|words| !matches!(words.try_send(word), Err(TrySendError::Full(_))))
    }

    /// The node that holds most of a range, as the agent said last; `None` where it did not.
    pub fn node_of(&self, host: u64, bytes: u64) -> Option<u32> {
        self.places.try_lock().ok()?.find(host, bytes).map(|extent| extent.node)
    }
}

/// When ranges were copied last.
#[derive(Default)]
struct Rhythm(BTreeMap<(u64, u64), u64>);

impl Rhythm {
    /// When a range that was copied at `at_ns` is copied again; `None` at the first time.
    fn next(&mut self, host: u64, bytes: u64, at_ns: u64) -> Option<u64> {
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&(host, bytes)) {
            self.0.clear();
        }
        let before = self.0.insert((host, bytes), at_ns)?;
        Some(at_ns.saturating_add(at_ns.saturating_sub(before)))
    }
}

fn speak(socket: &Path, words: &Receiver<Word>, places: &Mutex<Places>) {
    let (mut link, mut asked): (Option<AgentLink>, Option<Instant>) = (None, None);
    let mut rhythm = Rhythm::default();
    while let Ok(first) = words.recv() {
        if link.as_ref().is_none_or(AgentLink::is_gone) && asked.is_none_or(|asked| asked.elapsed() >= AGAIN) {
            link = AgentLink::connect(socket).ok();
            asked = Some(Instant::now());
        }
        let until = Instant::now() + GATHERED;
        let mut next = Some(first);
        while let Some(Word { direction, host, bytes, at_ns }) = next {
            let again = rhythm.next(host, bytes, at_ns);
            if let Some(link) = &mut link {
                link.copied(direction, host, bytes, at_ns);
                again.into_iter().for_each(|at_ns| link.expected(host, bytes, at_ns));
            }
            next = until.checked_duration_since(Instant::now()).and_then(|left| words.recv_timeout(left).ok());
        }
        if let Some(link) = &mut link {
            link.flush();
            *places.lock().unwrap_or_else(PoisonError::into_inner) = link.places().clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_copied_twice_is_expected_after_the_same_time() {
        let mut rhythm = Rhythm::default();
        assert_eq!((rhythm.next(4096, 8, 100), rhythm.next(4096, 9, 110)), (None, None));
        assert_eq!((rhythm.next(4096, 8, 150), rhythm.next(4096, 8, 160)), (Some(200), Some(170)));
        assert_eq!(rhythm.next(4096, 8, 155), Some(155), "words of two threads may cross");
        for host in 0..2 * REMEMBERED as u64 {
            rhythm.next(host, 1, 0);
        }
        assert!(rhythm.0.len() <= REMEMBERED);
    }

    #[test]
    fn without_an_agent_words_are_taken_and_no_place_is_known() {
        let (words, socket) = (OnceLock::new(), "/nonexistent/agent.sock".into());
        let agent = Agent { socket, words, places: Arc::default() };
        assert!((0..10).all(|at| agent.copied(Direction::H2d, 4096 * at, 4096)));
        assert_eq!(agent.node_of(4096, 4096), None);
    }
}
