//! What the agent can say of itself and its job at any moment.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use nix::sys::resource::{UsageWho, getrusage};

use super::{Agent, account, gpu, jobs::Job, policies};
use crate::{
    host::NodeKind,
    observe::{
        status::{self, Bucket, Calls, JobStatus, Status},
        summary::{Cost, Kernel, LearnedStep, Left, Migrated, Moved, OnNode, Source, Summary},
        usdt,
    },
    source::damon::Ops,
    units::{NodeId, NodeSet, show_bytes},
};

/// Bounds of call lengths, in seconds: around the stall cap, which is 20 ms by default.
const CALL_SECONDS: [f64; 9] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0];

/// The counters that are not of one job alone, at one moment: a job's account has what they grew by since it began.
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    cost: Cost,
    kernel: Kernel,
    lost: BTreeMap<String, u64>,
}

impl Agent {
    /// The counters as they are now.
    pub(super) fn counters(&self) -> Before {
        Before { cost: self.cost(), kernel: self.kernel_counters(), lost: self.lost() }
    }

    /// The account of a job so far, with notes for the reader; `None` where there is no such job. Resident bytes are
    /// those of the last look; a job that has ended has its last ones.
    pub fn summary(&self, id: u64) -> Option<(Summary, Vec<String>)> {
        let job = self.jobs.get(id)?;
        Some((self.summary_of(job, &self.counters(), self.sources()), self.notes(job)))
    }

    /// The account of a job as people and commands get it; `None` where there is no such job.
    pub fn left(&self, id: u64) -> Option<Left> {
        let (watched, notes) = self.summary(id)?;
        let job = self.jobs.get(id)?;
        Some(Left { name: job.asked.name.clone(), seconds: job.since.elapsed().as_secs_f64(), watched, notes })
    }

    /// The state of everything. Nothing here waits for the kernel or for a thread.
    pub fn status(&self) -> Status {
        let now = self.counters();
        let sources = self.sources();
        let jobs: Vec<_> = self.jobs.iter().map(|job| self.job_status(job, &now, sources.clone())).collect();
        let Before { cost, kernel, lost } = now;
        let damon =
            self.damon.as_ref().ok().filter(|_| !jobs.is_empty()).and_then(|_| self.snapshots.generation()).map(
                |generation| status::Damon {
                    kdamond: generation.kdamond,
                    sampling_seconds: generation.intervals.sampling.as_secs_f64(),
                    aggregation_seconds: generation.intervals.aggregation.as_secs_f64(),
                    aggregations: self.snapshots.aggregations(),
                    sampling_ratio: self.snapshots.sampling_ratio(),
                },
            );
        let run_times = self.programs.run_times().into_iter().filter(|time| time.runs > 0);
        Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seconds: self.started.elapsed().as_secs_f64(),
            config: None,
            until_idle: false,
            paused: false,
            missing_nodes: self.host.missing(&self.config),
            nodes: self.host.tier_nodes().map(|id| (id, self.node(id))).collect(),
            sources,
            damon,
            events_lost: lost,
            copied: self.copied(),
            cost: cost.since(&self.before.cost),
            bpf_seconds: run_times.map(|time| (time.program.to_owned(), time.spent.as_secs_f64())).collect(),
            probes: usdt::reached(),
            kernel: kernel.since(&self.before.kernel),
            jobs,
        }
    }

    fn node(&self, id: NodeId) -> status::Node {
        let node = self.host.nodes.get(&id);
        status::Node {
            tier: self.host.tier_of(id).map(|tier| tier.rank as u32),
            kind: node.map(|node| kind(node.kind).to_owned()).unwrap_or_default(),
            total_bytes: node.map_or(0, |node| node.total_bytes),
            free_bytes: node.map_or(0, |node| node.free_bytes),
        }
    }

    fn job_status(&self, job: &Job, now: &Before, sources: Vec<Source>) -> JobStatus {
        let calls = job.ledger.summary().migrate_call_seconds;
        JobStatus {
            id: job.id,
            name: job.asked.name.clone(),
            origin: job.asked.origin.to_string(),
            user: job.asked.user,
            state: job.state(),
            actuator: job.schemes.actuator(),
            policy: job.asked.policy.unwrap_or(self.config.policy.policy),
            limits: job.asked.limits.clone(),
            group_limits: job.group.limits().to_vec(),
            pids: job.processes.iter().copied().collect(),
            seconds: job.since.elapsed().as_secs_f64(),
            watched: self.summary_of(job, now, sources),
            calls: Calls {
                count: calls.calls,
                sum_seconds: calls.sum,
                p99_seconds: calls.p99,
                buckets: buckets(&job.ledger.calls_within(&CALL_SECONDS), calls.calls),
            },
            notes: self.notes(job),
        }
    }

    fn summary_of(&self, job: &Job, now: &Before, sources: Vec<Source>) -> Summary {
        let ledger = job.ledger.summary();
        let mut moved: BTreeMap<_, u64> = BTreeMap::new();
        for row in &ledger.migrated_pages {
            *moved.entry((row.from, row.to, row.reason)).or_default() += row.pages;
        }
        let mut failed_pages = BTreeMap::new();
        for row in &ledger.migrate_failed_pages {
            *failed_pages.entry(row.cause).or_default() += row.pages;
        }
        let unmovable: Vec<_> = ledger.unmovable_bytes.iter().map(|row| (row.node, row.bytes)).collect();
        let Before { cost, kernel, lost } = now;
        Summary {
            nodes: self.nodes(job, &unmovable),
            moved: moved
                .into_iter()
                .map(|((from, to, reason), pages)| Moved { from, to, reason, pages, bytes: pages * crate::units::PAGE })
                .collect(),
            schemes: job.schemes.moved(),
            failed_pages,
            held_back_bytes: job.held_back.clone(),
            pingpong_pages: ledger.pingpong_pages,
            longest_stall_seconds: ledger.migrate_call_seconds.longest,
            throttled_seconds: [("tokens".to_owned(), ledger.throttled_seconds)].into(),
            events_lost: grown(lost, &job.before.lost),
            progress: job.helped.progress(),
            step: job.usage.step().map(|(number, step)| {
                let pattern = job.usage.pattern();
                LearnedStep {
                    number,
                    seconds: step.period as f64 / 1e9,
                    confidence: step.confidence,
                    uses: pattern.map_or(0.0, |pattern| pattern.uses),
                    phases: pattern.map_or(Vec::new(), |pattern| pattern.phases.to_vec()),
                }
            }),
            sources,
            cost: cost.since(&job.before.cost),
            kernel: kernel.since(&job.before.kernel),
        }
    }

    fn nodes(&self, job: &Job, unmovable: &[(NodeId, u64)]) -> BTreeMap<NodeId, OnNode> {
        let mut nodes: BTreeMap<NodeId, OnNode> = self.host.tier_nodes().map(|id| (id, OnNode::default())).collect();
        for region in &job.view.regions {
            for (node, bytes) in &region.on {
                let on = nodes.entry(*node).or_default();
                on.resident_bytes += bytes;
                if region.heat >= self.rule.promote_heat {
                    on.hot_bytes += bytes;
                }
            }
        }
        for (node, bytes) in &job.bound {
            nodes.entry(*node).or_default().resident_bytes += bytes;
        }
        for (node, bytes) in unmovable {
            nodes.entry(*node).or_default().unmovable_bytes += bytes;
        }
        // What is pinned was tried before that was known, or never: either way it is the same memory.
        for (node, bytes) in self.pinned_on(&job.processes) {
            let on = nodes.entry(node).or_default();
            on.unmovable_bytes = on.unmovable_bytes.max(bytes);
        }
        for (node, count) in job.faults.counts().0 {
            let on = nodes.entry(*node).or_default();
            on.faults = [("user".to_owned(), count.user), ("kernel".to_owned(), count.kernel)].into();
        }
        for (id, on) in &mut nodes {
            on.tier = self.host.tiers.iter().find(|tier| tier.nodes.contains(*id)).map(|tier| tier.rank as u32);
            on.kind = self.host.nodes.get(id).map(|node| kind(node.kind).to_owned()).unwrap_or_default();
        }
        nodes
    }

    pub(super) fn lost(&self) -> BTreeMap<String, u64> {
        let hints = self.links.refused();
        let lost = [
            ("faults", self.programs.faults.lost()),
            ("damon", self.programs.damon.lost()),
            ("damon late", self.snapshots.stale),
            ("job events", self.programs.jobs.lost()),
            ("migrations", self.programs.migrations.lost()),
            ("heat", self.heat.stats().refused),
            ("missed", self.programs.missed()),
            ("gpu", self.programs.gpu.lost() + self.gpu.dropped()),
            ("hints", hints.malformed.saturating_add(hints.dropped).saturating_add(self.gpu.unheard())),
        ];
        lost.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
    }

    /// Fires the probe for what was lost since the last time.
    pub(super) fn tell_losses(&mut self, now: Instant) {
        self.losses.tell(self.lost());
        self.told = now;
    }

    fn sources(&self) -> Vec<Source> {
        let damon = match &self.damon {
            Ok(damon) if damon.ops == Ops::Paddr => {
                let seen = self.snapshots.physical();
                let seen = format!("{} of {}", show_bytes(seen.accessed), show_bytes(seen.looked_at));
                let why = format!("says how hot a node is ({seen} of the lower tiers in use), not whose memory it is");
                Source { name: "damon paddr".into(), unusable: Some(why) }
            }
            Ok(damon) => Source { name: format!("damon {}", damon.ops), unusable: None },
            Err(error) => Source { name: "damon".into(), unusable: Some(error.to_string()) },
        };
        let missing = self
            .programs
            .attachments()
            .iter()
            .filter_map(|one| Some(Source { name: one.program.to_owned(), unusable: Some(one.missing.clone()?) }));
        let schemes = self.damon.as_ref().ok().and_then(|damon| damon.movers.as_ref().err());
        let schemes = schemes.map(|error| Source { name: "damon schemes".into(), unusable: Some(error.to_string()) });
        let faults = Source { name: "page faults".into(), unusable: None };
        let gpus = Source { name: "gpu copies".into(), unusable: self.programs.gpu.refused().map(str::to_owned) };
        [damon, faults, gpus].into_iter().chain(schemes).chain(missing).collect()
    }

    fn cost(&self) -> Cost {
        let usage = getrusage(UsageWho::RUSAGE_SELF);
        let cpu = usage.as_ref().map_or(Duration::ZERO, |usage| {
            let seconds = |time: nix::sys::time::TimeVal| {
                Duration::from_secs(time.tv_sec().unsigned_abs()) + Duration::from_micros(time.tv_usec().unsigned_abs())
            };
            seconds(usage.user_time()) + seconds(usage.system_time())
        });
        Cost {
            agent_cpu_seconds: cpu.as_secs_f64(),
            moving_cpu_seconds: self.mover.as_ref().map_or(0.0, |mover| mover.cpu().as_secs_f64()),
            // ru_maxrss is in KiB.
            agent_rss_bytes: usage.map_or(0, |usage| usage.max_rss().unsigned_abs() * 1024),
            kdamond_cpu_seconds: (self.kdamond.total() + self.schemes.cpu()).as_secs_f64(),
            bpf_map_bytes: self.bpf_map_bytes,
        }
    }

    fn kernel_counters(&self) -> Kernel {
        let mut migrated: BTreeMap<String, Migrated> = BTreeMap::new();
        for sums in self.programs.migrations.totals().unwrap_or_default() {
            let row = migrated.entry(sums.reason).or_default();
            row.succeeded += sums.succeeded;
            row.failed += sums.failed;
            row.ours += if sums.by_agent { sums.succeeded } else { 0 };
        }
        Kernel { migrated, pgmigrate_success: account::vmstat("pgmigrate_success") }
    }

    /// What is unusual about a job.
    fn notes(&self, job: &Job) -> Vec<String> {
        let mut notes = Vec::new();
        let missing = self.host.missing(&self.config);
        if !missing.0.is_empty() {
            notes.push(format!("node {missing} of the config has no memory here: tiering goes on without it"));
        }
        if job.paused && !job.helped.has_stopped() {
            let name = &job.asked.name;
            notes.push(format!(
                "nothing moves, since somebody said `tensortier pause`; `tensortier resume {name}` goes on"
            ));
        }
        if !self.host.is_two_tier() {
            notes.push("this host has one tier of memory: watched and reported, nothing to move between".to_owned());
        }
        if job.bound_bytes() > 0 {
            let bound = show_bytes(job.bound_bytes());
            notes.push(format!("{bound} are bound to nodes by the job's own policy and were left alone"));
        }
        if self.host.is_two_tier() {
            notes.extend(policies::notes(&job.policies, &self.host.top(), &self.host.lower()));
        }
        let gpus: NodeSet = self.host.gpus.iter().filter_map(|gpu| gpu.node).collect();
        notes.extend(gpu::notes(&self.pinned_on(&job.processes), &gpus));
        if job.processes.iter().any(|pid| self.programs.gpu.is_used_by(*pid)) {
            let near = gpus.0.iter().filter_map(|node| self.host.nodes.get(node)).flat_map(|node| &node.cpus);
            notes.extend(gpu::far_cpus(&job.cpus, &near.copied().collect(), &gpus));
            notes.extend(policies::interleaved(&job.policies));
        }
        notes.extend(job.group.notes(|bytes| self.config.policy.headroom(bytes)));
        notes.extend(job.helped.note(&job.asked.name));
        if job.left_out > 0 {
            let (left_out, user) = (job.left_out, job.asked.user);
            notes.push(format!("processes below it that run as another user than {user} were left out: {left_out}"));
        }
        notes.extend(job.schemes.notes());
        let (_, elsewhere) = job.faults.counts();
        if elsewhere.total() > 0 {
            notes.push(format!("{} faults were on code, files, or memory that is gone again", elsewhere.total()));
        }
        notes
    }
}

/// From how many calls were within each bound to how many are between two.
fn buckets(within: &[u64], all: u64) -> Vec<Bucket> {
    let bounds = CALL_SECONDS.iter().copied().chain([f64::MAX]);
    let mut before = 0;
    let counts = within.iter().copied().chain([all]).map(|count| {
        let between = count.saturating_sub(before);
        before = count;
        between
    });
    bounds.zip(counts.collect::<Vec<_>>()).map(|(up_to, count)| Bucket { up_to, count }).collect()
}

/// What each counter grew by.
fn grown(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let since = |(name, count): (&String, &u64)| {
        let grown = count.saturating_sub(before.get(name).copied().unwrap_or(0));
        (name.clone(), grown)
    };
    now.iter().map(since).collect()
}

fn kind(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Dram => "DRAM",
        NodeKind::Cxl => "CXL",
        NodeKind::Gpu => "GPU",
        NodeKind::Empty => "empty",
        NodeKind::NoCpu => "no CPU",
    }
}
