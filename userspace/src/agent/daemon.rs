//! The agent's loop: what clients ask, ticks between, and the end.

mod begin;
mod link;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use nix::unistd::Group;

use super::{
    Agent, Origin,
    rules::{Found, Matcher, find, tell_absent},
};
use crate::{
    config::{Config, DEFAULT_PATH, Rule},
    control::{
        Answer, Request, Terms,
        access::Peer,
        board::Board,
        server::{Event, Reply},
    },
    job::running,
    units::Pid,
};

const PROC: &str = "/proc";
/// While a job leaves, its last moves are looked for this often.
const LEAVING: Duration = Duration::from_millis(10);
/// A job that leaves waits this long for its last moves.
const FAREWELL: Duration = Duration::from_secs(5);
/// An agent that ends with its last job waits this long for the first.
const FIRST_JOB: Duration = Duration::from_secs(10);
/// Processes that a rule fits are looked for this often.
const LOOK: Duration = Duration::from_secs(3);
/// The state is shown again after so many times the time that showing it took: orders, however many, cost a fifth of
/// the agent's time at the most (ours).
const SHARE: u32 = 4;
/// What time changes is shown this often where nobody looks; what an order or a job's coming or going changes is shown at
/// once.
const LEISURE: Duration = Duration::from_secs(20);

/// How an agent serves.
#[derive(Clone, Debug, Default)]
pub struct Serving {
    /// The config that it runs with; `None` is the default one.
    pub config: Option<PathBuf>,
    /// Its rules.
    pub rules: Vec<Rule>,
    /// Ends with its last job.
    pub until_idle: bool,
}

/// An answer that waits until the agent has given everything back.
pub type Last = (Reply, Answer);

/// The agent and its clients.
struct Daemon {
    agent: Agent,
    board: Arc<Board>,
    serving: Serving,
    readers: Option<u32>,
    leaving: Vec<Leaving>,
    had_job: bool,
    paused: bool,
    /// When processes were last looked for that a rule fits.
    looked: Option<Instant>,
    /// Processes that somebody detached: no rule takes them again.
    let_go: BTreeSet<Pid>,
    /// Something has changed since the state was last shown.
    stale: bool,
    /// When it may be shown next, and with which jobs it was shown last.
    show_from: Instant,
    shown_jobs: Vec<u64>,
    /// Somebody waits for it.
    looked_at: bool,
    /// Answers that go out once what came of them is shown.
    answers: Vec<Last>,
}

struct Leaving {
    job: u64,
    reply: Reply,
    until: Instant,
}

/// Serves until it is told to end, or until the last job has ended where that is its end. The agent is gone on return,
/// and everything it began is ended; only then the answers that are returned should be sent.
pub fn serve(agent: Agent, board: Arc<Board>, events: &Receiver<Event>, serving: Serving) -> Vec<Last> {
    // Checked before the agent was made; a group that has gone since lets nobody read.
    let readers = readers(&agent.config).unwrap_or_default();
    tell_absent(&serving.rules);
    let mut daemon = Daemon {
        agent,
        board,
        serving,
        readers,
        leaving: Vec::new(),
        had_job: false,
        paused: false,
        looked: None,
        let_go: BTreeSet::new(),
        stale: true,
        show_from: Instant::now(),
        shown_jobs: Vec::new(),
        // The first state is shown at once.
        looked_at: true,
        answers: Vec::new(),
    };
    let mut last = Vec::new();
    let mut due = Instant::now();
    loop {
        let mut wait = due.saturating_duration_since(Instant::now());
        if !daemon.leaving.is_empty() {
            wait = wait.min(LEAVING);
        }
        if daemon.looks() {
            wait = wait.min(LOOK);
        }
        if let Some(at) = daemon.shows_at() {
            wait = wait.min(at.saturating_duration_since(Instant::now()));
        }
        match events.recv_timeout(wait) {
            Ok(Event::Order { peer, request, reply }) => {
                daemon.order(&peer, request, &reply);
                due = due.min(Instant::now() + daemon.agent.interval());
            }
            Ok(Event::Look) => (daemon.stale, daemon.looked_at) = (true, true),
            Ok(Event::Reload) => {
                (daemon.stale, daemon.looked_at) = (true, true);
                match daemon.reload() {
                    Ok(said) => tracing::warn!("SIGHUP: {said}"),
                    Err(error) => tracing::warn!(error, "SIGHUP: the config is as it was"),
                }
            }
            Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        daemon.look_around();
        if Instant::now() >= due {
            daemon.agent.tick();
            daemon.stale = true;
            due = Instant::now() + daemon.agent.interval();
        }
        let idle = daemon.say_farewell(&mut last);
        daemon.show();
        if idle {
            break;
        }
    }
    last.append(&mut daemon.answers);
    daemon.agent.halt();
    daemon.agent.end_schemes();
    daemon.agent.tell_losses(Instant::now());
    // Who waits for an account gets what there is: the agent ends, not the jobs.
    for Leaving { job, reply, .. } in std::mem::take(&mut daemon.leaving) {
        let answer = daemon.account(job);
        last.push((reply, answer));
    }
    for job in daemon.agent.jobs.iter().filter(|job| !job.leaving) {
        last.extend(job.client.clone().map(|client| (client, daemon.account(job.id))));
    }
    last
}

impl Daemon {
    /// When the state is to be shown next; `None` where the last one still holds.
    fn shows_at(&self) -> Option<Instant> {
        let unasked =
            self.answers.is_empty() && self.agent.jobs.iter().map(|job| job.id).eq(self.shown_jobs.iter().copied());
        let at_leisure = unasked && !self.looked_at;
        self.stale.then(|| self.show_from + if at_leisure { LEISURE } else { Duration::ZERO })
    }

    /// Shows what has changed, where it is time, and gives the answers that waited for it.
    fn show(&mut self) {
        let start = Instant::now();
        if self.shows_at().is_none_or(|at| start < at) {
            return;
        }
        let mut status = self.agent.status();
        (status.config, status.until_idle) = (self.serving.config.clone(), self.serving.until_idle);
        status.paused = self.paused;
        self.board.show(status, self.readers);
        (self.stale, self.looked_at) = (false, false);
        self.shown_jobs = self.agent.jobs.iter().map(|job| job.id).collect();
        self.show_from = Instant::now() + start.elapsed() * SHARE;
        self.answers.drain(..).for_each(|(reply, answer)| reply.send(answer));
    }

    /// Answers an order once what came of it is shown.
    fn answer(&mut self, reply: Reply, answer: Answer) {
        self.stale = true;
        self.answers.push((reply, answer));
    }

    /// Answers for the jobs that have left. True where the agent should end; the answers of that moment wait for it.
    fn say_farewell(&mut self, last: &mut Vec<Last>) -> bool {
        let mut answers = Vec::new();
        for leaving in std::mem::take(&mut self.leaving) {
            if !self.agent.has_left(leaving.job) && Instant::now() < leaving.until {
                self.leaving.push(leaving);
                continue;
            }
            let answer = self.account(leaving.job);
            self.agent.remove_job(leaving.job);
            answers.push((leaving.reply, answer));
        }
        let waited = self.agent.started.elapsed() > FIRST_JOB;
        let idle = self.serving.until_idle && self.agent.jobs.iter().next().is_none() && (self.had_job || waited);
        if idle {
            last.extend(answers);
        } else {
            answers.into_iter().for_each(|(reply, answer)| self.answer(reply, answer));
        }
        idle
    }

    fn account(&self, id: u64) -> Answer {
        self.agent.left(id).map_or_else(|| no_job(&id.to_string()), |left| Answer::Left(Box::new(left)))
    }

    fn order(&mut self, peer: &Peer, request: Request, reply: &Reply) {
        let answer = match request {
            // Answered from the board.
            Request::Status {} => return,
            Request::Watch { pid, user, program, again, terms } => {
                self.watch(peer, pid, user, program, again, terms, reply)
            }
            Request::Attach { target, terms } => self.attach(peer, target, terms),
            Request::End { job } => self.leave(peer, &job.to_string(), reply),
            Request::Detach { job } => self.leave(peer, &job, reply),
            Request::Pause { job } => self.pause(peer, job.as_deref(), true),
            Request::Resume { job } => self.pause(peer, job.as_deref(), false),
            Request::Looks { job } => self.seen_of(peer, &job),
            Request::Link {} => self.link(peer),
            Request::Avoid { node } => peer.may_administer().map_err(text).map(|()| {
                if !self.agent.host.nodes.contains_key(&node) {
                    return Some(Answer::Refused { why: format!("this host has no node {node}") });
                }
                self.agent.avoid(node);
                Some(Answer::Done { said: format!("nothing moves to or from node {node}") })
            }),
            Request::Reload {} => {
                let allowed = peer.may_administer().map_err(text);
                allowed.and_then(|()| self.reload()).map(|said| Some(Answer::Done { said }))
            }
        };
        match answer {
            // Nothing has changed.
            Ok(Some(answer @ (Answer::Refused { .. } | Answer::Looks(_) | Answer::Linked { .. }))) => {
                reply.send(answer)
            }
            Ok(Some(answer)) => self.answer(reply.clone(), answer),
            Ok(None) => self.stale = true,
            Err(why) => reply.send(Answer::Refused { why }),
        }
    }

    fn leave(&mut self, peer: &Peer, word: &str, reply: &Reply) -> Result<Option<Answer>, String> {
        let Some(job) = self.agent.jobs.find(word) else { return Ok(Some(no_job(word))) };
        peer.may_change(job.asked.user).map_err(text)?;
        if !matches!(job.asked.origin, Origin::Run) {
            self.let_go.extend(job.processes.iter().copied());
        }
        let job = job.id;
        // What was seen up to now belongs to the account.
        self.agent.tick();
        self.agent.leave(job);
        self.leaving.push(Leaving { job, reply: reply.clone(), until: Instant::now() + FAREWELL });
        Ok(None)
    }

    fn seen_of(&mut self, peer: &Peer, word: &str) -> Result<Option<Answer>, String> {
        let Some(job) = self.agent.jobs.find(word) else { return Ok(Some(no_job(word))) };
        peer.may_change(job.asked.user).map_err(text)?;
        let id = job.id;
        Ok(Some(self.agent.looks(id).map_or_else(|| no_job(word), |looks| Answer::Looks(Box::new(looks)))))
    }

    fn pause(&mut self, peer: &Peer, word: Option<&str>, paused: bool) -> Result<Option<Answer>, String> {
        let done = if paused { "paused" } else { "resumed" };
        let Some(word) = word else {
            peer.may_administer().map_err(text)?;
            self.paused = paused;
            self.agent.jobs.iter_mut().for_each(|job| job.pause(paused));
            return Ok(Some(Answer::Done { said: format!("all jobs {done}") }));
        };
        let Some(job) = self.agent.jobs.find(word) else { return Ok(Some(no_job(word))) };
        peer.may_change(job.asked.user).map_err(text)?;
        let (id, name) = (job.id, job.asked.name.clone());
        if let Some(job) = self.agent.jobs.get_mut(id) {
            job.pause(paused);
        }
        Ok(Some(Answer::Done { said: format!("job {id} ({name}) {done}") }))
    }
}

impl Daemon {
    fn reload(&mut self) -> Result<String, String> {
        let config = Config::load(self.serving.config.as_deref()).map_err(text)?;
        let readers = readers(&config).map_err(|error| format!("{error:#}"))?;
        let rules = config.rules.clone();
        let later = self.agent.reconfigure(config).map_err(text)?;
        tell_absent(&rules);
        (self.readers, self.serving.rules, self.looked) = (readers, rules, None);
        let path = self.serving.config.as_deref().unwrap_or(DEFAULT_PATH.as_ref()).display();
        Ok(match later.as_slice() {
            [] => format!("{path} is in force"),
            keys => format!("{path} is in force, but for {}: at the next start", keys.join(", ")),
        })
    }

    /// Whether rules are followed: an agent for one `run` would never end otherwise.
    fn looks(&self) -> bool {
        !self.serving.rules.is_empty() && !self.serving.until_idle
    }

    /// Makes jobs of the processes that a rule fits.
    fn look_around(&mut self) {
        if !self.looks() || self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        let processes = running::all(PROC.as_ref());
        self.let_go.retain(|pid| processes.contains_key(pid));
        let rules = self.serving.rules.clone();
        let matchers: Vec<Matcher> = rules.iter().map(Matcher::new).collect();
        let own = Pid(std::process::id());
        let (jobs, let_go) = (&self.agent.jobs, &self.let_go);
        let found = find(&matchers, &processes, |pid| pid == own || jobs.of(pid).is_some() || let_go.contains(&pid));
        self.stale |= !found.is_empty();
        for Found { rule, pids, user } in found {
            let rule = &rules[rule];
            let origin = Origin::Rule(rule.name.clone());
            let same = self.agent.jobs.iter().find(|job| rule.cgroup.is_some() && job.asked.origin == origin);
            if let Some(job) = same.map(|job| job.id) {
                self.agent.join(pids.iter().copied(), job);
                self.take_in(job, pids);
                continue;
            }
            let user = if rule.cgroup.is_some() { 0 } else { user };
            let (mode, actuator, policy, limits) = (rule.mode, rule.actuator, rule.policy, rule.limits.clone());
            let terms = Terms { name: None, mode, actuator, policy, limits };
            let root = Peer { user: 0, group: 0, pid: None };
            if let Err(why) = self.begin(&root, pids, rule.name.clone(), user, origin, terms, None) {
                tracing::warn!(rule = rule.name, why, "a job that a rule fits is not watched");
            }
        }
    }
}

fn no_job(word: &str) -> Answer {
    Answer::Refused { why: format!("there is no job {word:?}; `tensortier status` lists them") }
}

/// The group that may read the state.
///
/// # Errors
/// The config names one that this host does not have.
pub fn readers(config: &Config) -> anyhow::Result<Option<u32>> {
    let Some(name) = &config.agent.group else { return Ok(None) };
    let group = Group::from_name(name).with_context(|| format!("cannot look up group {name:?}"))?;
    Ok(Some(group.with_context(|| format!("agent.group: this host has no group {name:?}"))?.gid.as_raw()))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
