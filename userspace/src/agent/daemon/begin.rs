//! How a job begins: by `run`, or by what runs already.

use std::collections::BTreeSet;

use super::{Daemon, PROC, text};
use crate::{
    agent::{Ask, Origin},
    control::{Answer, Limits, Target, Terms, access::Peer, namespace::translate, server::Reply},
    job::running::{self, Facts},
    units::{Pid, shows},
};

/// How often new children are looked for while a tree of processes is taken in.
const ROUNDS: u32 = 20;

impl Daemon {
    #[expect(clippy::too_many_arguments, reason = "the fields of a request")]
    pub(super) fn watch(
        &mut self,
        peer: &Peer,
        pid: Pid,
        user: Option<u32>,
        program: Option<String>,
        again: bool,
        terms: Terms,
        reply: &Reply,
    ) -> Result<Option<Answer>, String> {
        // What was made up to now is in its job.
        self.agent.follow_processes();
        let (pid, facts) = self.process(peer, pid)?;
        let owner = facts.user.unwrap_or(0);
        peer.may_change(owner).map_err(text)?;
        // A job within another one leaves that with a budget of its own; so that is for who may change the outer one.
        if let Some(outer) = self.agent.jobs.of(pid)
            && peer.may_change(outer.asked.user).is_err()
        {
            let (id, whose) = (outer.id, outer.asked.user);
            return Err(format!(
                "process {pid} is watched already, within job {id} of user {whose}: it stays there, under that job's limits"
            ));
        }
        let user = user.unwrap_or(owner);
        if user != owner {
            peer.may_administer().map_err(text)?;
        }
        let name = program.unwrap_or(facts.name);
        let begun = self.begin(peer, [pid].into(), name, user, Origin::Run, terms, Some(reply.clone()))?;
        if let (true, Answer::Watching { job, .. }) = (again, &begun) {
            self.take_in(*job, [pid].into());
        }
        Ok(Some(begun))
    }

    pub(super) fn attach(&mut self, peer: &Peer, target: Target, terms: Terms) -> Result<Option<Answer>, String> {
        self.agent.follow_processes();
        let (pids, name, user, origin) = match target {
            Target::Pid(pid) => {
                let (pid, facts) = self.process(peer, pid)?;
                let owner = facts.user.unwrap_or(0);
                peer.may_change(owner).map_err(text)?;
                if facts.empty {
                    return Err(format!("process {pid} ({}) has no memory of its own to watch", facts.name));
                }
                (BTreeSet::from([pid]), facts.name, owner, Origin::Pid(pid))
            }
            Target::Cgroup(path) => {
                peer.may_administer().map_err(text)?;
                let folder = running::cgroup_folder("/".as_ref(), &path).ok_or_else(|| {
                    format!("{}: no control group here; name its folder, or its path below the mount", path.display())
                })?;
                let mut pids = running::of_cgroup(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
                pids.remove(&Pid(std::process::id()));
                if pids.is_empty() {
                    return Err(format!("{} has no processes", folder.display()));
                }
                let name = folder.file_name().map_or("cgroup".into(), |name| name.to_string_lossy().into_owned());
                (pids, name, 0, Origin::Cgroup(folder))
            }
        };
        if let Some(job) = pids.iter().find_map(|pid| self.agent.jobs.of(*pid)) {
            return Err(format!("it is watched already, as job {} ({})", job.id, job.asked.name));
        }
        self.begin(peer, pids, name, user, origin, terms, None).map(Some)
    }

    /// The process that a client means, in the agent's own pid namespace.
    fn process(&self, peer: &Peer, pid: Pid) -> Result<(Pid, Facts), String> {
        let gone = || format!("there is no process {pid} in the client's pid namespace");
        let pid = translate(PROC.as_ref(), peer.pid, pid).ok_or_else(gone)?;
        if pid.0 == std::process::id() {
            return Err("that is the agent itself".into());
        }
        Ok((pid, Facts::read(PROC.as_ref(), pid).ok_or_else(gone)?))
    }

    #[expect(clippy::too_many_arguments, reason = "what a job is, asked for in two ways")]
    pub(super) fn begin(
        &mut self,
        peer: &Peer,
        pids: BTreeSet<Pid>,
        name: String,
        user: u32,
        origin: Origin,
        terms: Terms,
        client: Option<Reply>,
    ) -> Result<Answer, String> {
        let name = terms.name.unwrap_or_else(|| plain(&name));
        terms.limits.check(&name)?;
        peer.may_have(&terms.limits).map_err(text)?;
        if peer.may_administer().is_err() {
            self.agent.jobs.room_for(peer.user)?;
        }
        let attached = origin != Origin::Run;
        let Terms { mode, policy, limits, .. } = terms;
        let actuator = terms.actuator.unwrap_or(self.agent.config.migrate.actuator);
        let pids_asked = pids.iter().copied().collect();
        let asked = Ask { pids: pids_asked, name, user, origin, mode, actuator, policy, limits };
        let job = self.agent.add_job(asked, client).map_err(text)?;
        // Held by a pidfd now: that it was the owner's when it was asked for says nothing if its number was used again.
        if peer.may_administer().is_err() && pids.iter().any(|pid| !self.is_of(*pid, peer.user)) {
            self.agent.remove_job(job);
            return Err(format!("the process is not user {}'s any more", peer.user));
        }
        if attached {
            self.take_in(job, pids);
        }
        self.had_job = true;
        let name = self.agent.jobs.get_mut(job).map(|job| {
            job.paused = self.paused;
            job.asked.name.clone()
        });
        Ok(Answer::Watching { job, name: name.unwrap_or_default(), config: self.serving.config.clone() })
    }

    fn is_of(&self, pid: Pid, user: u32) -> bool {
        Facts::read(PROC.as_ref(), pid).is_some_and(|facts| facts.user == Some(user))
    }

    /// Takes in the children that the job's processes have already. Those that are made meanwhile are tracked by the
    /// kernel where their parent is; so it is done once no child is new.
    pub(super) fn take_in(&mut self, job: u64, mut known: BTreeSet<Pid>) {
        for _ in 0..ROUNDS {
            let Some(of) = self.agent.jobs.get_mut(job) else { return };
            let processes = running::all(PROC.as_ref());
            let more = running::below(&known, &processes, |facts| of.may_have(facts));
            if more.is_empty() {
                let children = processes.values().filter(|facts| known.contains(&facts.parent) && !facts.empty);
                of.left_out += children.filter(|facts| !of.may_have(facts)).count();
                return;
            }
            self.agent
                .join(more.iter().copied().filter(|pid| self.agent.jobs.of(*pid).is_none()).collect::<Vec<_>>(), job);
            known.extend(more);
        }
    }
}

/// A program's name as a job's: a process may call itself anything.
fn plain(name: &str) -> String {
    let shown = name.chars().map(|letter| if shows(letter) { letter } else { '?' });
    let name = shown.scan(0, |bytes, letter| {
        *bytes += letter.len_utf8();
        (*bytes <= Limits::NAME).then_some(letter)
    });
    let name: String = name.collect();
    if Limits::default().check(&name).is_ok() {
        return name;
    }
    let number = format!("program {}", name.trim());
    if Limits::default().check(&number).is_ok() && number.ends_with(|last: char| last.is_ascii_digit()) {
        return number;
    }
    "program".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_program_has_a_name_that_a_job_may_have() {
        for (program, name) in
            [("train", "train"), ("123", "program 123"), (" ", "program"), ("", "program"), ("a\u{202e}\n", "a??")]
        {
            assert_eq!(plain(program), name);
        }
        for long in ["é".repeat(200), "7".repeat(64), "a".repeat(65)] {
            assert_eq!(Limits::default().check(&plain(&long)), Ok(()), "{long}");
        }
    }
}
