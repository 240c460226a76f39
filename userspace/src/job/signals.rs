//! Signals between a terminal or a supervisor and the job, and how the job ended.
//!
//! The job is in this process's group and keeps the terminal, so what the terminal sends reaches it without help. What
//! another process sends to this one alone is passed on. A signal that another process sends to the whole group arrives
//! twice: the kernel does not say to whom a signal was sent.

use std::{
    ops::ControlFlow,
    os::fd::AsFd,
    panic::resume_unwind,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask},
        signalfd::{SfdFlags, SignalFd, siginfo},
    },
    unistd::{Pid, getpid},
};

use super::{
    number::{self, Wait},
    spawn,
};

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Code(i32),
    /// By the signal of this number.
    Signal(i32),
}

impl Ended {
    /// The job's own code, or 128 and the signal's number as shells have it.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Code(code) => code as u8,
            Self::Signal(signal) => 128 + signal as u8,
        }
    }

    /// The name of the signal that ended it.
    pub fn signal(self) -> Option<String> {
        match self {
            Self::Code(_) => None,
            Self::Signal(signal) => Some(number::name(signal)),
        }
    }
}

/// The signals that this process takes in place of being ended or stopped by them.
pub struct Signals {
    fd: SignalFd,
    original: SigSet,
    child_was_ignored: bool,
}

/// With the real-time ones. SIGPIPE, SIGTTIN and SIGTTOU keep their ways: the first is ignored, the others stop the whole
/// group at once.
const TAKEN: [Signal; 14] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGCHLD,
];

/// How soon a signal is heard while something else is waited for.
const LOOK: Duration = Duration::from_millis(50);

impl Signals {
    /// Takes the signals. Threads inherit the mask: call it before any is started.
    ///
    /// # Errors
    /// The kernel refuses the mask or the descriptor.
    pub fn take() -> Result<Self, Errno> {
        let taken = number::with_real_time(&TAKEN);
        let mut original = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&taken), Some(&mut original))?;
        let fd = SignalFd::with_flags(&taken, SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { fd, original, child_was_ignored: spawn::take_child_signal() })
    }

    pub(super) fn original(&self) -> SigSet {
        self.original
    }

    pub(super) fn child_was_ignored(&self) -> bool {
        self.child_was_ignored
    }

    /// The signal that asked this process to end before the job began, if one did. Everything that came is used up.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn ends_before_start(&self) -> Result<Option<Signal>, Errno> {
        let mut ends = None;
        while poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO)? > 0 {
            let signal = self.fd.read_signal()?.and_then(|info| Signal::try_from(info.ssi_signo as i32).ok());
            let asks = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];
            ends = ends.or(signal.filter(|signal| asks.contains(signal)));
        }
        Ok(ends)
    }

    /// What `work` gives, which a thread of its own does; or the signal that asked this process to end meanwhile.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn meanwhile<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<ControlFlow<Signal, T>, Errno> {
        let (tell, told) = mpsc::channel();
        let worker = thread::spawn(move || {
            // Nobody listens where a signal was first.
            let _ = tell.send(work());
        });
        loop {
            if let Some(signal) = self.ends_before_start()? {
                return Ok(ControlFlow::Break(signal));
            }
            match told.recv_timeout(LOOK) {
                Ok(done) => return Ok(ControlFlow::Continue(done)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => match worker.join() {
                    Err(panic) => resume_unwind(panic),
                    // It cannot end well without a word, and waiting for one would never end.
                    Ok(()) => return Err(Errno::ECHILD),
                },
            }
        }
    }

    /// Passes signals on to `job` and stops with it, until it has ended. Processes that it leaves behind are not
    /// waited for, as `time(1)` has it. Between signals `tick` is called; it says after which time it wants to be
    /// called again.
    ///
    /// # Errors
    /// `job` is no child of this process, or was waited for elsewhere.
    pub fn follow(&self, job: Pid, mut tick: impl FnMut() -> Duration) -> Result<Ended, Errno> {
        // Never where the time asked for is beyond what the clock can say.
        let mut due = Some(Instant::now());
        loop {
            // First, since the job may have ended before its SIGCHLD was taken.
            if let Some(ended) = reap(job)? {
                return Ok(ended);
            }
            let rest = due.map(|due| due.saturating_duration_since(Instant::now()));
            // Rounded up: a wait of 0 ms before the time is due would spin.
            let wait =
                rest.and_then(|rest| PollTimeout::try_from(rest.as_millis() + 1).ok()).unwrap_or(PollTimeout::NONE);
            match poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], wait) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => {
                    if let Some(info) = self.fd.read_signal()? {
                        pass_on(&info, job);
                    }
                }
                Err(errno) => return Err(errno),
            }
            if due.is_some_and(|due| Instant::now() >= due) {
                due = Instant::now().checked_add(tick());
            }
        }
    }
}

fn reap(job: Pid) -> Result<Option<Ended>, Errno> {
    loop {
        match number::wait(job) {
            Ok(Wait::Exited(code)) => return Ok(Some(Ended::Code(code))),
            Ok(Wait::Signaled(signal)) => return Ok(Some(Ended::Signal(signal))),
            Ok(Wait::Stopped(libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)) => stop_too()?,
            Ok(Wait::Alive) => return Ok(None),
            // Stopped by SIGSTOP or a debugger: not the terminal's doing, so not this process's matter.
            Ok(Wait::Stopped(_)) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Stops this process as the job was stopped, so that the shell that waits for it gives its prompt.
fn stop_too() -> Result<(), Errno> {
    let stop: SigSet = [Signal::SIGTSTP].into_iter().collect();
    // Sent while it is blocked, it falls together with the terminal's own where that still waits: one stop, not two.
    kill(getpid(), Signal::SIGTSTP)?;
    stop.thread_unblock()?;
    stop.thread_block()
}

fn pass_on(info: &siginfo, job: Pid) {
    let signal = info.ssi_signo as i32;
    let from_terminal = info.ssi_code == libc::SI_KERNEL;
    let from_job = info.ssi_pid == job.as_raw() as u32;
    if signal == libc::SIGCHLD || from_terminal || from_job {
        return;
    }
    if let Err(errno) = number::send(job, signal) {
        let signal = number::name(signal);
        tracing::debug!(%job, signal, %errno, "the job has ended before a signal could be passed on");
    }
}
