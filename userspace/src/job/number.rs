//! Signals by their number: nix names the classic ones alone, and a job may be sent or ended by a real-time one.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use nix::{
    errno::Errno,
    libc::{self, c_int},
    sys::signal::{SigSet, Signal},
    unistd::Pid,
};

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It ended by itself, with this code.
    Exited(i32),
    /// A signal ended it.
    Signaled(c_int),
    /// A signal stopped it.
    Stopped(c_int),
    /// It runs.
    Alive,
}

/// What became of `child`, without waiting for it.
pub(super) fn wait(child: Pid) -> Result<Wait, Errno> {
    let mut status = 0;
    // SAFETY: the kernel writes one integer.
    let pid =
        Errno::result(unsafe { libc::waitpid(child.as_raw(), &raw mut status, libc::WNOHANG | libc::WUNTRACED) })?;
    Ok(match status {
        _ if pid == 0 => Wait::Alive,
        status if libc::WIFEXITED(status) => Wait::Exited(libc::WEXITSTATUS(status)),
        status if libc::WIFSIGNALED(status) => Wait::Signaled(libc::WTERMSIG(status)),
        status => Wait::Stopped(libc::WSTOPSIG(status)),
    })
}

/// Sends `signal` to `process`.
pub(super) fn send(process: Pid, signal: c_int) -> Result<(), Errno> {
    // SAFETY: a plain system call.
    Errno::result(unsafe { libc::kill(process.as_raw(), signal) }).map(drop)
}

/// The real-time signals that libc leaves to programs, and `named`.
pub(super) fn with_real_time(named: &[Signal]) -> SigSet {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset makes the set valid, and the numbers are signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
        for signal in named.iter().map(|signal| *signal as c_int).chain(real_time) {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        SigSet::from_sigset_t_unchecked(set.assume_init())
    }
}

/// What `kill -l` calls a signal, with `SIG` before it.
pub(super) fn name(signal: c_int) -> String {
    match Signal::try_from(signal) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) if signal == libc::SIGRTMIN() => "SIGRTMIN".to_owned(),
        Err(_) => format!("SIGRTMIN+{}", signal - libc::SIGRTMIN()),
    }
}
