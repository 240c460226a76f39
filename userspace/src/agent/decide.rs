//! What should move now: each job within its share of the tiers, by one policy.

use std::{cmp::Reverse, time::Instant};

use super::{Agent, mover::Mover, params::rule_by, scattered::note};
use crate::{
    config::{Mode, PolicyKind},
    control::{Answer, server::Reply},
    job::Resident,
    observe::usdt,
    policy::{
        self, Budget, Plan, Reason, Rule, Speeds, explain,
        share::{self, Claim},
    },
    units::NodeSet,
};

impl Agent {
    pub(super) fn decide(&mut self, now: Instant) {
        for job in self.jobs.iter_mut() {
            let of = job.processes.iter().flat_map(|pid| self.memory.residents_of(*pid));
            let residents: Vec<Resident> = of.cloned().collect();
            // A job that has ended leaves its last view to the account.
            if !residents.is_empty() {
                let (ledger, gpu) = (&job.ledger, &self.gpu);
                let unmovable = |pid, range| ledger.unmovable_bytes(pid, range, now).max(gpu.pinned(pid, range));
                job.view = self.heat.view(&residents, &unmovable, now);
                if job.asked.policy.unwrap_or(self.config.policy.policy) != PolicyKind::Hotness {
                    job.view.foresee(&job.usage);
                }
                for region in &mut job.view.regions {
                    region.expected = gpu.expects(region.pid, region.range, now);
                }
                job.view.scatter(&job.scattered);
            }
        }
        let planned = self.jobs.iter().any(|job| job.plans()) && self.host.is_two_tier();
        // What is under way still moves.
        if self.mover.as_ref().is_some_and(Mover::busy) {
            return;
        }
        self.moving = false;
        if !planned {
            return;
        }
        let mut tiers = self.tier_room(now);
        let mut plan = Plan { id: self.plan + 1, ..Plan::default() };
        let top = self.host.top();
        let mut bytes = self.mover.as_ref().map_or(u64::MAX, Mover::budget);
        self.plan = plan.id;
        let began = Instant::now();
        for (id, share) in self.shares(&tiers) {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            let real = job.asked.mode == Mode::Migrate;
            let budget = Budget { plan: plan.id, bytes: if real { bytes } else { u64::MAX } };
            let claim = job.claim();
            let rule = rule_by(job.asked.policy.unwrap_or(self.config.policy.policy), self.rule);
            let mut wanted = match share {
                None => rule.decide(&job.view, &tiers, &budget, job.ledger.recent()),
                Some(share) => {
                    let gives_back = share::is_over(&claim, share, &tiers);
                    let own = share::tiers_of(&claim, share, &tiers);
                    let mut wanted = Rule { gives_back, ..rule }.decide(&job.view, &own, &budget, job.ledger.recent());
                    if share::excess(&claim, share, &tiers) > 0 {
                        let given_back = wanted.moves.iter_mut().filter(|step| step.reason == Reason::Headroom);
                        given_back.for_each(|step| step.reason = Reason::Budget);
                    }
                    wanted
                }
            };
            job.held_back = std::mem::take(&mut wanted.held_back);
            self.moving |= !wanted.moves.is_empty();
            if !real {
                wanted.held_back = job.held_back.clone();
                tell_plan(&wanted, job.client.as_ref());
                continue;
            }
            bytes = bytes.saturating_sub(wanted.moves.iter().map(|step| step.bytes).sum());
            wanted.moves.iter().for_each(|step| tiers.take(step));
            note(job, &wanted.moves, &top);
            job.under_way = wanted.moves.len();
            plan.moves.extend(wanted.moves);
        }
        tracing::debug!(plan = plan.id, moves = plan.moves.len(), left = bytes, "plan");
        if let Some(mover) = self.mover.as_mut().filter(|_| !plan.moves.is_empty()) {
            usdt::plan_ready(&plan, began.elapsed());
            mover.carry_out(plan);
        }
    }

    /// The jobs to plan for, in order, with the bytes of the top tier that each may have: none where one job without
    /// limits has it all. Those over their share come first, since others wait for the room.
    fn shares(&self, tiers: &policy::Tiers) -> Vec<(u64, Option<u64>)> {
        let jobs: Vec<_> = self.jobs.iter().filter(|job| job.plans()).collect();
        if let [job] = jobs.as_slice()
            && job.is_free(&self.tiers)
        {
            return vec![(job.id, None)];
        }
        let claims: Vec<Claim> = jobs.iter().map(|job| job.claim()).collect();
        let shares = share::split(&claims, tiers, self.rule.promote_heat, self.rule.margin);
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        let turn = self.plan as usize;
        order.sort_by_key(|at| {
            let over = share::is_over(&claims[*at], shares[*at], tiers);
            // Among equals each is first in its turn: a plan's bytes may run out.
            (!over, Reverse(jobs[*at].asked.limits.priority), (at + turn) % jobs.len())
        });
        order.into_iter().map(|at| (jobs[at].id, Some(shares[at]))).collect()
    }

    /// The nodes as the policy sees them.
    fn tier_room(&mut self, now: Instant) -> policy::Tiers {
        let preferred = self.homes.of(self.memory.pids(), &self.host, now).clone();
        let room = |set: NodeSet| -> Vec<policy::Node> {
            let open = set.0.into_iter().filter(|id| !self.avoided.contains(*id));
            let nodes = open.filter_map(|id| self.host.nodes.get(&id));
            nodes
                .map(|node| policy::Node {
                    id: node.id,
                    total: node.total_bytes,
                    free: node.available_bytes,
                    headroom: self.config.policy.headroom(node.total_bytes),
                })
                .collect()
        };
        let (top, lower) = (room(self.host.top()), room(self.host.lower()));
        let lasting = self.lasting(&top, now);
        let looks_per_s = self.cadence.now().sampling.as_secs_f64().max(1e-6).recip();
        let pairs = self.tiers.0.iter().flat_map(|from| self.tiers.0.iter().map(move |to| (*from, *to)));
        policy::Tiers {
            lasting,
            speeds: self.speeds.map(|[top, lower]| Speeds { top, lower, looks_per_s }),
            top,
            lower,
            distance: pairs.map(|(from, to)| ((from, to), self.host.distance(from, to))).collect(),
            preferred,
        }
    }
}

fn tell_plan(plan: &Plan, client: Option<&Reply>) {
    if let Some(client) = client.filter(|_| !plan.moves.is_empty()) {
        client.send(Answer::Plan { text: explain(plan) });
    }
}
