//! Findings about running processes: those that policies of their own keep on the slow tier, or away from it.

use super::processes::{Policy, Process};
use crate::{
    host::{Finding, Host, Severity},
    units::{NodeSet, show_bytes},
};

pub(super) fn all(host: &Host, processes: &[Process], found: &mut Vec<Finding>) {
    for process in processes {
        cuda(host, process, found);
        if host.is_two_tier() {
            cpuset(host, process, found);
            policy(host, process, found);
        }
    }
}

/// CUDA allocates host memory on a node with CPUs or not at all.
fn cuda(host: &Host, process: &Process, found: &mut Vec<Finding>) {
    let without_cpus = |nodes: &NodeSet| {
        !nodes.0.is_empty() && nodes.0.iter().all(|id| host.nodes.get(id).is_some_and(|node| node.cpus.is_empty()))
    };
    let bound = process.main_policy().filter(|policy| policy.binds).map(|policy| &policy.nodes);
    let nodes = [Some(&process.allowed), bound].into_iter().flatten().find(|nodes| without_cpus(nodes));
    if let Some(nodes) = nodes.filter(|_| process.cuda) {
        found.push(Finding {
            id: "cuda-membind",
            severity: Severity::Error,
            subject: subject(process),
            what: format!("{} uses CUDA and is bound to node {nodes}, which has no CPUs", subject(process)),
            consequence: "CUDA does not allocate host memory on such a node: cudaHostAlloc and cuMemCreate fail"
                .to_owned(),
            fix_command: Some(
                "start it without numactl --membind, or with the node of its CPUs added; NCCL_CUMEM_HOST_ENABLE=0"
                    .to_owned(),
            ),
        });
    }
}

fn cpuset(host: &Host, process: &Process, found: &mut Vec<Finding>) {
    let (top, lower) = (host.top(), host.lower());
    let (id, consequence) = match (disjoint(&process.allowed, &top), disjoint(&process.allowed, &lower)) {
        (true, false) => ("job-bound-to-slow", "its hot pages cannot come to the top tier"),
        (false, true) => ("job-barred-from-slow", "its cold pages cannot make room on the top tier"),
        _ => return,
    };
    found.push(Finding {
        id,
        severity: Severity::Warning,
        subject: subject(process),
        what: format!("the cpuset of {} allows node {} alone", subject(process), process.allowed),
        consequence: consequence.to_owned(),
        fix_command: Some(format!(
            "cat /proc/{}/cpuset, and write {} to cpuset.mems of that cgroup",
            process.pid,
            union(&top, &lower)
        )),
    });
}

fn policy(host: &Host, process: &Process, found: &mut Vec<Finding>) {
    let Some(Policy { binds, nodes, bytes }) = process.main_policy() else { return };
    let (top, lower) = (host.top(), host.lower());
    let (id, consequence, option) = match (binds, disjoint(nodes, &top), disjoint(nodes, &lower)) {
        (true, true, false) => (
            "job-bound-to-slow",
            "what a job bound is left where it is: its hot pages stay on the slow tier",
            "--membind (-m)",
        ),
        (true, false, true) => (
            "job-barred-from-slow",
            "what a job bound is left where it is: its cold pages stay on the top tier",
            "--membind (-m)",
        ),
        (false, true, false) => (
            "job-prefers-slow",
            "its new memory begins on the slow tier, and comes to the top tier only once it was seen to be hot",
            "--preferred (-p)",
        ),
        _ => return,
    };
    let what = match binds {
        true => format!("{} binds {} to node {nodes}", subject(process), show_bytes(*bytes)),
        false => format!("{} prefers node {nodes} for {}", subject(process), show_bytes(*bytes)),
    };
    found.push(Finding {
        id,
        severity: Severity::Warning,
        subject: subject(process),
        what,
        consequence: consequence.to_owned(),
        fix_command: Some(format!("start it without numactl {option}; DeepSpeed sets it under --bind_cores_to_rank")),
    });
}

fn subject(process: &Process) -> String {
    format!("process {} ({})", process.pid, process.name)
}

fn disjoint(a: &NodeSet, b: &NodeSet) -> bool {
    a.0.is_disjoint(&b.0)
}

fn union(a: &NodeSet, b: &NodeSet) -> NodeSet {
    a.0.union(&b.0).copied().collect()
}
