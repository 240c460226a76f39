//! The control socket: how `run`, `status` and the other commands speak to the agent.
//!
//! A unix stream socket, one JSON object a line, each way. A line of a client is a [`Request`], one of the agent an
//! [`Answer`]:
//!
//! ```text
//! {"status":{}}
//! {"watch":{"pid":4711,"terms":{"name":"train","mode":"migrate","limits":{"priority":5}}}}
//! {"attach":{"target":{"cgroup":"/sys/fs/cgroup/train.slice"}}}
//! {"pause":{"job":"train"}}
//! ```
//!
//! Unknown requests and fields are refused. Who may ask what is decided by the user at the other end, whom the kernel
//! names ([`access`]). A line longer than [`MAX_LINE`], or a client that does not go on, ends the connection.

pub mod access;
pub mod board;
pub mod client;
mod metrics;
pub mod namespace;
mod reply;
mod seats;
pub mod server;

use std::{os::fd::OwnedFd, path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};

pub use crate::{
    config::{Actuator, Limits, Mode, PolicyKind},
    observe::summary::Left,
};
use crate::{
    observe::status::Status,
    units::{NodeId, Pid},
};

/// Where the agent listens unless it is told otherwise.
pub const SOCKET: &str = "/run/tensortier/agent.sock";
/// The longest line that a client may send, in bytes.
pub const MAX_LINE: usize = 64 << 10;

/// What a client may ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The state of everything. For root and the group of the config.
    Status {},
    /// To watch a process from before its first instruction until `end`; plans of a dry run come on this connection. For
    /// root and the process's owner. One within a job leaves that for a job of its own, where its owner may change that.
    Watch {
        /// The process, numbered as the client sees it.
        pid: Pid,
        /// The user that the job will belong to, where that is not the process's own yet. For root.
        #[serde(default)]
        user: Option<u32>,
        /// What the program is called that the process is about to become.
        #[serde(default)]
        program: Option<String>,
        /// Whether it runs already, with processes below it, and the agent that watched it has ended.
        #[serde(default)]
        again: bool,
        /// How.
        #[serde(default)]
        terms: Terms,
    },
    /// The job's account, and to watch it no more. For root and its owner.
    End {
        /// Its number, from `watching`.
        job: u64,
    },
    /// To watch processes that run already. For root and, for one process, its owner.
    Attach {
        /// Which.
        target: Target,
        /// How.
        #[serde(default)]
        terms: Terms,
    },
    /// As `end`, for a job named by its name, its number or the pid of one of its processes.
    Detach {
        /// The job.
        job: String,
    },
    /// To move nothing more, of one job or, for root, of all.
    Pause {
        /// The job; all where it is missing.
        #[serde(default)]
        job: Option<String>,
    },
    /// To take back `pause`.
    Resume {
        /// The job; all where it is missing.
        #[serde(default)]
        job: Option<String>,
    },
    /// What the monitor saw of a job: for `record`, which asks again and again. For root and its owner.
    Looks {
        /// The job.
        job: String,
    },
    /// A link for the process that asks: where its memory is, and a way to say what it copies to and from a GPU
    /// ([`crate::publish`]). For processes of jobs.
    Link {},
    /// To read the config again, as SIGHUP does. For root.
    Reload {},
    /// To move nothing to or from a node, until the config is read again. For root.
    Avoid {
        /// The node.
        node: NodeId,
    },
}

/// Descriptors that come with an answer (`SCM_RIGHTS`).
#[derive(Clone, Debug, Default)]
pub struct Given(pub Vec<Arc<OwnedFd>>);

/// How a job is watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Terms {
    /// What people call it; the name of its program where it is missing.
    pub name: Option<String>,
    /// What is done with plans.
    pub mode: Mode,
    /// What moves its pages; that of the agent's config where it is missing.
    pub actuator: Option<Actuator>,
    /// What decides on where they belong; that of the agent's config where it is missing.
    pub policy: Option<PolicyKind>,
    /// What it may have.
    pub limits: Limits,
}

/// What the monitor saw of a job. Sums grow from the first time that anybody asked for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Looks {
    /// Its number.
    pub job: u64,
    /// Its name.
    pub name: String,
    /// Time since then.
    pub since_ms: u64,
    /// Its processes.
    pub processes: Vec<ProcessLooks>,
}

/// What the monitor saw of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessLooks {
    /// Its number, as the agent sees it.
    pub pid: Pid,
    /// Its program.
    pub name: String,
    /// Its populated blocks, ascending.
    pub blocks: Vec<BlockLooks>,
}

/// What the monitor saw of a block of memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockLooks {
    /// Its first populated address.
    pub start: u64,
    /// Bytes of it that are resident.
    pub bytes: u64,
    /// How often all of it was looked at; halves count too.
    pub looks: f64,
    /// How much of that found it accessed.
    pub found: f64,
}

/// Processes that run already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A process and all below it, numbered as the client sees it.
    Pid(Pid),
    /// All processes of a control group and of those below it.
    Cgroup(PathBuf),
}

/// What the agent says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// To `status`.
    Status(Arc<Status>),
    /// To `watch` and `attach`.
    Watching {
        /// The job's number.
        job: u64,
        /// Its name.
        name: String,
        /// The config that the agent runs with; `None` is the default one.
        config: Option<PathBuf>,
    },
    /// Unasked, to the client that watches: a plan of a dry run.
    Plan {
        /// As people read it.
        text: String,
    },
    /// To `end` and `detach`; unasked, to the client that watches, from an agent that ends.
    Left(Box<Left>),
    /// To `looks`.
    Looks(Box<Looks>),
    /// To `link`.
    Linked {
        /// The placement, and the socket for hints.
        #[serde(skip)]
        given: Given,
    },
    /// To everything else: it is done.
    Done {
        /// What, for people.
        said: String,
    },
    /// It was not done.
    Refused {
        /// Why, with the way out.
        why: String,
    },
}
