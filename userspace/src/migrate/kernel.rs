//! What the executor asks of the kernel, as a trait, so that its rules can be tried against any pattern of errors.

use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

use crate::{
    sys::{self, Extent, Process, SysError},
    units::{NodeId, Pid, Range},
};

/// The kernel, as the executor sees it. [`Kernel`] is the real one.
pub trait Pages {
    /// Makes sure that the process is there to be worked on.
    ///
    /// # Errors
    /// It has ended, or may not be looked at.
    fn open(&mut self, pid: Pid) -> Result<(), SysError>;
    /// Whether the process that [`Pages::open`] found is still there; false where its pid names another by now.
    fn alive(&mut self, pid: Pid) -> bool;
    /// The resident stretches of a range; as [`Process::populated`].
    ///
    /// # Errors
    /// As [`Process::populated`].
    fn populated(&mut self, pid: Pid, range: Range) -> Result<Vec<Extent>, SysError>;
    /// The node of each page; as [`Process::nodes`].
    ///
    /// # Errors
    /// As [`Process::nodes`].
    fn nodes(&mut self, pid: Pid, addresses: &[u64], status: &mut [i32]) -> Result<(), SysError>;
    /// Moves pages; as [`Process::move_to`].
    ///
    /// # Errors
    /// As [`Process::move_to`].
    fn move_to(&mut self, pid: Pid, addresses: &[u64], to: NodeId, status: &mut [i32]) -> Result<u64, SysError>;
    /// The time.
    fn now(&self) -> Instant;
    /// The CPU time that the calling thread has used.
    fn busy(&self) -> Duration;
    /// Waits.
    fn sleep(&mut self, time: Duration);
}

/// The kernel this program runs on. Holds each process by a pidfd from the first move on.
#[derive(Debug, Default)]
pub struct Kernel {
    held: HashMap<Pid, Process>,
}

impl Kernel {
    /// Holds on to a process from now on, so that a plan for it can never reach a later one with the same pid.
    pub fn hold(&mut self, process: Process) {
        self.held.insert(process.pid(), process);
    }

    fn process(&self, pid: Pid) -> Result<&Process, SysError> {
        self.held.get(&pid).ok_or(SysError::Gone { pid })
    }
}

impl Pages for Kernel {
    fn open(&mut self, pid: Pid) -> Result<(), SysError> {
        match self.held.get(&pid) {
            Some(process) if process.alive() => return Ok(()),
            // A plan made for the process that ended is not for its successor: this once the answer is no.
            Some(_) => {
                self.held.remove(&pid);
                return Err(SysError::Gone { pid });
            }
            None => {}
        }
        self.held.retain(|_, process| process.alive());
        self.held.insert(pid, Process::open(pid)?);
        Ok(())
    }

    fn alive(&mut self, pid: Pid) -> bool {
        self.held.get(&pid).is_some_and(Process::alive)
    }

    fn populated(&mut self, pid: Pid, range: Range) -> Result<Vec<Extent>, SysError> {
        crate::job::populated::extents(self.process(pid)?, range)
    }

    fn nodes(&mut self, pid: Pid, addresses: &[u64], status: &mut [i32]) -> Result<(), SysError> {
        self.process(pid)?.nodes(addresses, status)
    }

    fn move_to(&mut self, pid: Pid, addresses: &[u64], to: NodeId, status: &mut [i32]) -> Result<u64, SysError> {
        self.process(pid)?.move_to(addresses, to, status)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn busy(&self) -> Duration {
        sys::thread_cpu_time()
    }

    fn sleep(&mut self, time: Duration) {
        thread::sleep(time);
    }
}
