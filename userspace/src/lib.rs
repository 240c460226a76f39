//! tensortier: memory tiering for hosts that train models.
//!
//! eBPF programs and DAMON watch what a training job touches; a root agent moves its hot pages to DRAM and its cold
//! pages to CXL memory. The job is not changed.
//!
//! ```text
//! kernel: fault, damon, migrate, job programs    VMA iterator     DAMON sysfs
//!              │ maps, ring buffers                   │                │
//!              ▼                                      ▼                ▼
//! source/*                             → Touch { pid, range, kind, weight, at }
//! job/      which processes, their memory and where it is now
//! hotness/  observe, decay             → HeatView: regions with heat, idleness, bytes by node
//! policy/   decide(view, tiers, budget) → Plan: moves with a reason each       pure; `--dry-run` prints it
//! migrate/  run(plan)                  → Outcome per move                      token bucket, stall cap, retry rules
//! ledger    → observe/ (summary)
//!           → policy, as data in the next decision: the only backward edge
//! ```
//!
//! The stages, in flow order; each knows only those above it:
//!
//! * [`units`]: nodes, processes, ranges, blocks. [`sys`]: the system calls on other processes' memory.
//! * [`config`]: one TOML file, checked as a whole. [`host`]: what this machine is.
//! * [`job`]: launching a job as its user, its processes, its memory and the nodes it lies on.
//! * [`source`]: where accesses come from. DAMON is the main source; page faults stand beside it.
//! * [`hotness`]: decayed heat per 2 MiB block; the training step, and use over whole steps.
//! * [`policy`]: pure functions from view, tiers and budget to a plan; the policies differ in what a block is worth.
//! * [`migrate`]: the executor over `move_pages(2)`, or DAMON's schemes in its place.
//! * [`ledger`]: every move and what came of it.
//! * [`observe`]: what people and programs are told.
//! * [`publish`]: the link to the GPU bridge: placement out, hints in.
//! * [`control`]: the socket through which people and jobs speak to the agent.
//! * [`doctor`]: what stands in the way, before a job is started.
//! * [`agent`]: wires the stages: cadence, the executor's thread, shutdown. Nothing else.

pub mod agent;
pub mod config;
pub mod control;
pub mod doctor;
pub mod host;
pub mod hotness;
pub mod job;
pub mod ledger;
pub mod migrate;
pub mod observe;
pub mod policy;
pub mod publish;
pub mod source;
pub mod sys;
pub mod units;
