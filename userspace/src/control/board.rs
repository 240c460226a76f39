//! What the server answers `status` from. The agent writes it at leisure; who finds it old has it written anew.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::timeout};

use super::server::Event;
use crate::observe::status::Status;

/// A state older than this is old for who asks.
const OLD: Duration = Duration::from_millis(500);
/// Nobody waits longer for a new one: the agent may be at work, and the old one has to do.
const PATIENCE: Duration = Duration::from_millis(25);
/// Unless it is older than this, or there is none.
const AGED: Duration = Duration::from_secs(4);
/// Then nobody waits longer than this.
const LONGEST: Duration = Duration::from_secs(2);

/// The state last shown.
#[derive(Debug, Default)]
pub struct Board {
    shown: Mutex<Shown>,
    /// Whether a state with jobs was written once.
    written: AtomicBool,
    /// The agent has been asked for a new one.
    asked: AtomicBool,
    anew: Notify,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Shown {
    pub(super) status: Arc<Status>,
    pub(super) readers: Option<u32>,
    /// `None` before the first.
    pub(super) at: Option<Instant>,
}

impl Board {
    /// Shows a new state, to root and to the members of `readers`.
    pub fn show(&self, status: Status, readers: Option<u32>) {
        if !status.jobs.is_empty() && !self.written.swap(true, Ordering::Relaxed) {
            // The code for it is read from disk when it first runs: now, and not while somebody waits for an answer.
            drop(serde_json::to_vec(&status));
        }
        let shown = Shown { status: Arc::new(status), readers, at: Some(Instant::now()) };
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
        self.asked.store(false, Ordering::Relaxed);
        self.anew.notify_waiters();
    }

    /// What was shown last, whatever has happened since.
    pub(super) fn last(&self) -> Shown {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The state of now, or of [`AGED`] ago where the agent is at work; older only where it does not answer for [`LONGEST`].
    /// However many ask, the agent hears of it once.
    pub(super) async fn look(&self, events: &mpsc::Sender<Event>) -> Shown {
        let anew = self.anew.notified();
        tokio::pin!(anew);
        // From here on no new state is missed.
        anew.as_mut().enable();
        let last = self.last();
        if last.at.is_some_and(|at| at.elapsed() < OLD) {
            return last;
        }
        // Fails where the agent is ending: the last state holds.
        if self.asked.swap(true, Ordering::Relaxed) || events.send(Event::Look).is_ok() {
            let young = last.at.is_some_and(|at| at.elapsed() < AGED);
            let _ = timeout(if young { PATIENCE } else { LONGEST }, anew).await;
        }
        self.last()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::thread;

    use super::*;

    fn look(board: &Board, events: &mpsc::Sender<Event>) -> Shown {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(board.look(events))
    }

    #[test]
    fn who_finds_an_old_state_gets_the_one_that_the_agent_makes_for_it() {
        let (events, asked) = mpsc::channel();
        let board = Arc::new(Board::default());
        let agent = thread::spawn({
            let board = Arc::clone(&board);
            move || {
                assert!(matches!(asked.recv(), Ok(Event::Look)));
                board.show(Status { pid: 7, ..Status::default() }, None);
                asked
            }
        });
        // As long as the machine lets the agent wait.
        while look(&board, &events).status.pid != 7 {}
        let asked = agent.join().unwrap();
        let _ = asked.try_iter().count();
        board.show(Status { pid: 8, ..Status::default() }, None);
        let since = Instant::now();
        assert_eq!(look(&board, &events).status.pid, 8);
        // Not where the machine let half a second pass between the two.
        assert!(asked.try_recv().is_err() || since.elapsed() >= OLD, "a fresh state is no reason to ask");
    }

    #[test]
    fn an_agent_at_work_or_gone_is_not_waited_for_and_asked_once() {
        let (events, asked) = mpsc::channel();
        let board = Board::default();
        board.show(Status { pid: 7, ..Status::default() }, None);
        thread::sleep(OLD);
        assert_eq!(look(&board, &events).status.pid, 7);
        assert_eq!(look(&board, &events).status.pid, 7);
        assert_eq!(asked.try_iter().count(), 1);
        drop(asked);
        assert_eq!(look(&Board::default(), &events).status.pid, 0);
    }
}
