//! A process of a job that links itself with the agent.

use super::{Daemon, PROC, text};
use crate::{
    control::{Answer, Given, access::Peer},
    job::running::Facts,
};

impl Daemon {
    /// Links the process at the other end of the socket. It learns where that process's memory is, by address: so it is
    /// one of the user who asks, for whoever has the connection may not be who opened it.
    pub(super) fn link(&mut self, peer: &Peer) -> Result<Option<Answer>, String> {
        self.agent.follow_processes();
        let pid = peer.pid.ok_or("this process is in no pid namespace that the agent sees")?;
        if self.agent.jobs.of(pid).is_none() {
            return Err(format!(
                "process {pid} is not watched: start it with `tensortier run`, or `tensortier attach {pid}` first"
            ));
        }
        let owner = Facts::read(PROC.as_ref(), pid).and_then(|facts| facts.user);
        peer.may_change(owner.ok_or_else(|| format!("process {pid} has ended"))?).map_err(text)?;
        let given = self.agent.link(pid, peer.user).map_err(text)?;
        Ok(Some(Answer::Linked { given: Given(given.into()) }))
    }
}
