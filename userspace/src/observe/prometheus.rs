//! The state as Prometheus reads it: made from [`Status`] at each scrape, so it says what `status` says.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::Registry,
};
use serde::Serialize;

use super::status::{Copied, JobStatus, Status};

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics as text.
///
/// # Errors
/// None that writing to memory could have.
pub fn text(status: &Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(status.clone())));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Scrape(Status);

type Labels = Vec<(&'static str, String)>;

/// One metric: counters without the `_total` that the format adds.
struct Metric(&'static str, &'static str, MetricType, Vec<(Labels, f64)>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Self(status) = self;
        for Metric(name, help, kind, rows) in of_jobs(&status.jobs).into_iter().chain(of_agent(status)) {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, value) in rows {
                let row = metric.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => write_counter(row, value)?,
                    _ => write_gauge(row, value)?,
                }
            }
        }
        let name = "tensortier_migrate_call_seconds";
        let mut metric = encoder.encode_descriptor(name, "Lengths of move_pages calls", None, MetricType::Histogram)?;
        for job in &status.jobs {
            let labels = vec![("workload", job.name.clone())];
            // JSON, which the state is made for, has no infinity.
            let bound = |up_to: f64| if up_to == f64::MAX { f64::INFINITY } else { up_to };
            let buckets: Vec<(f64, u64)> =
                job.calls.buckets.iter().map(|bucket| (bound(bucket.up_to), bucket.count)).collect();
            let (sum, count) = (job.calls.sum_seconds, job.calls.count);
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

fn write_counter(mut row: MetricEncoder<'_>, value: f64) -> fmt::Result {
    row.encode_counter::<NoLabelSet, _, f64>(&value, None)
}

fn write_gauge(mut row: MetricEncoder<'_>, value: f64) -> fmt::Result {
    row.encode_gauge(&value)
}

fn of_jobs(jobs: &[JobStatus]) -> Vec<Metric> {
    let each = |rows: fn(&JobStatus) -> Vec<(Labels, f64)>| -> Vec<(Labels, f64)> {
        let labelled = |job: &JobStatus, (mut labels, value): (Labels, f64)| {
            labels.insert(0, ("workload", job.name.clone()));
            (labels, value)
        };
        jobs.iter().flat_map(|job| rows(job).into_iter().map(|row| labelled(job, row))).collect()
    };
    use MetricType::{Counter, Gauge};
    vec![
        Metric(
            "tensortier_migrated_pages",
            "Pages moved",
            Counter,
            each(|job| {
                let rows = job.watched.moved.iter();
                let rows = rows.map(|row| (row.from, row.to, word(&row.reason), row.pages));
                let schemes = job.watched.schemes.iter();
                let schemes = schemes.map(|row| (row.from, row.to, format!("damos_{}", row.action), row.pages));
                let labelled = |(from, to, reason, pages)| {
                    (vec![node("from", from), node("to", to), ("reason", reason)], float(pages))
                };
                rows.chain(schemes).map(labelled).collect()
            }),
        ),
        Metric(
            "tensortier_migrate_failed_pages",
            "Pages that were asked to move and did not",
            Counter,
            each(|job| {
                let rows = job.watched.failed_pages.iter();
                rows.map(|(cause, pages)| (vec![("cause", word(cause))], float(*pages))).collect()
            }),
        ),
        Metric(
            "tensortier_pingpong_pages",
            "Pages that moved back soon after they came",
            Counter,
            each(|job| vec![(Labels::new(), float(job.watched.pingpong_pages))]),
        ),
        Metric(
            "tensortier_throttled_seconds",
            "Time that moves waited",
            Counter,
            each(|job| {
                let rows = job.watched.throttled_seconds.iter();
                rows.map(|(cause, seconds)| (vec![("cause", cause.clone())], *seconds)).collect()
            }),
        ),
        Metric(
            "tensortier_unmovable_bytes",
            "Bytes that cannot move",
            Gauge,
            each(|job| on(job, |on| on.unmovable_bytes)),
        ),
        Metric(
            "tensortier_step_seconds",
            "Length of a training step, where it is known",
            Gauge,
            each(|job| job.watched.step.iter().map(|step| (Labels::new(), step.seconds)).collect()),
        ),
        Metric("tensortier_resident_bytes", "Resident bytes", Gauge, each(|job| on(job, |on| on.resident_bytes))),
        Metric("tensortier_hot_bytes", "Resident bytes that are hot", Gauge, each(|job| on(job, |on| on.hot_bytes))),
        Metric(
            "tensortier_faults",
            "Page faults by the node of the memory",
            Counter,
            each(|job| {
                let nodes = job.watched.nodes.iter();
                let rows = nodes.flat_map(|(id, on)| on.faults.iter().map(move |(kind, count)| (id, kind, count)));
                rows.map(|(id, kind, count)| (vec![node("node", id), ("kind", kind.clone())], float(*count))).collect()
            }),
        ),
    ]
}

fn of_agent(status: &Status) -> Vec<Metric> {
    use MetricType::{Counter, Gauge};
    let none = Labels::new;
    let free = status.nodes.iter().map(|(id, on)| {
        let tier = on.tier.map_or_else(|| "none".to_owned(), |tier| tier.to_string());
        (vec![node("node", id), ("tier", tier)], float(on.free_bytes))
    });
    let lost = status.events_lost.iter().map(|(source, count)| (vec![("source", source.clone())], float(*count)));
    let kernel = status.kernel.migrated.iter();
    let kernel = kernel.map(|(reason, pages)| (vec![("reason", reason.clone())], float(pages.succeeded)));
    let ratio = status.damon.as_ref().and_then(|damon| damon.sampling_ratio);
    let bpf = status.bpf_seconds.iter().map(|(program, seconds)| (vec![("program", program.clone())], *seconds));
    let agent = vec![(none(), status.cost.agent_cpu_seconds)];
    let copied = |to_device| {
        let rows = status.copied.iter().filter(|row| row.to_device == to_device);
        let on = |row: &Copied| row.node.map_or_else(|| "unknown".to_owned(), |node| node.to_string());
        rows.map(|row| (vec![("node", on(row)), ("path", row.path.clone())], float(row.bytes))).collect()
    };
    vec![
        Metric("tensortier_node_free_bytes", "Free bytes of a node", Gauge, free.collect()),
        Metric(
            "tensortier_missing_nodes",
            "Nodes that the config names and that have no memory",
            Gauge,
            vec![(none(), float(status.missing_nodes.0.len() as u64))],
        ),
        Metric(
            "tensortier_paused",
            "1 while nothing moves until resume",
            Gauge,
            vec![(none(), f64::from(status.paused))],
        ),
        Metric("tensortier_h2d_bytes", "Bytes copied from host memory to GPUs", Counter, copied(true)),
        Metric("tensortier_d2h_bytes", "Bytes copied from GPUs to host memory", Counter, copied(false)),
        Metric("tensortier_events_lost", "Events that a source lost", Counter, lost.collect()),
        Metric(
            "tensortier_kernel_migrated_pages",
            "Pages that the kernel migrated, for whomever",
            Counter,
            kernel.collect(),
        ),
        Metric(
            "tensortier_damon_sampling_ratio",
            "Achieved share of the sampling asked for",
            Gauge,
            ratio.map(|ratio| (none(), ratio)).into_iter().collect(),
        ),
        Metric("tensortier_agent_cpu_seconds", "CPU time of the agent", Counter, agent),
        Metric(
            "tensortier_bpf_run_seconds",
            "Time in an eBPF program, while the kernel's statistics are on",
            Counter,
            bpf.collect(),
        ),
    ]
}

fn on(job: &JobStatus, bytes: fn(&super::summary::OnNode) -> u64) -> Vec<(Labels, f64)> {
    job.watched.nodes.iter().map(|(id, on)| (vec![node("node", id)], float(bytes(on)))).collect()
}

fn node(name: &'static str, id: impl fmt::Display) -> (&'static str, String) {
    (name, id.to_string())
}

/// The name that the JSON has.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Exact up to 2^53, beyond any count of pages or bytes here.
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        migrate::Cause,
        observe::{
            status::{Bucket, Calls, Damon, Node},
            summary::{LearnedStep, Moved, OnNode, SchemeMoved, Summary},
        },
        policy::Reason,
        units::{NodeId, NodeSet},
    };

    #[test]
    fn names_labels_and_values_are_those_of_the_design() {
        let (dram, cxl) = (NodeId(0), NodeId(2));
        let faults = [("user".to_owned(), 7)].into();
        let on = OnNode { resident_bytes: 10, hot_bytes: 5, unmovable_bytes: 1, faults, ..OnNode::default() };
        let watched = Summary {
            nodes: [(cxl, on)].into(),
            moved: vec![Moved { from: cxl, to: dram, reason: Reason::Hot, pages: 512, bytes: 512 * 4096 }],
            schemes: vec![SchemeMoved {
                action: "migrate_hot".into(),
                from: cxl,
                to: dram,
                tried_bytes: 8192,
                pages: 1,
                bytes: 4096,
            }],
            failed_pages: [(Cause::Busy, 3)].into(),
            step: Some(LearnedStep { seconds: 12.5, confidence: 0.75, number: 3, uses: 1.0, phases: Vec::new() }),
            ..Summary::default()
        };
        let buckets = vec![Bucket { up_to: 0.001, count: 2 }, Bucket { up_to: f64::MAX, count: 1 }];
        let calls = Calls { count: 3, sum_seconds: 0.5, p99_seconds: 0.4, buckets };
        let job = JobStatus { name: "a \"quoted\"\\ name".into(), watched, calls, ..JobStatus::default() };
        let node = Node { tier: Some(1), free_bytes: 77, ..Node::default() };
        let lost = [("damon".to_owned(), 4)].into();
        let damon = Some(Damon { sampling_ratio: Some(0.5), ..Damon::default() });
        let nodes = [(cxl, node)].into();
        let missing_nodes = NodeSet([NodeId(7)].into());
        let copy = |to_device, node, bytes| Copied { to_device, node, path: "registered".into(), bytes };
        let copied = vec![copy(true, Some(cxl), 5), copy(false, None, 6)];
        let status = Status {
            jobs: vec![job],
            nodes,
            damon,
            events_lost: lost,
            missing_nodes,
            copied,
            paused: true,
            ..Status::default()
        };
        let said = status.to_string();
        for part in ["node 7: named in the config", "paused:", "steps: one every 12.5 s (confidence 0.75), 3 since"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let text = text(&status).unwrap();
        let name = "workload=\"a \\\"quoted\\\"\\\\ name\"";
        for line in [
            format!("tensortier_migrated_pages_total{{{name},from=\"2\",to=\"0\",reason=\"hot\"}} 512"),
            format!("tensortier_migrated_pages_total{{{name},from=\"2\",to=\"0\",reason=\"damos_migrate_hot\"}} 1"),
            format!("tensortier_migrate_failed_pages_total{{{name},cause=\"busy\"}} 3"),
            format!("tensortier_resident_bytes{{{name},node=\"2\"}} 10"),
            format!("tensortier_step_seconds{{{name}}} 12.5"),
            format!("tensortier_faults_total{{{name},node=\"2\",kind=\"user\"}} 7"),
            format!("tensortier_migrate_call_seconds_count{{{name}}} 3"),
            format!("tensortier_migrate_call_seconds_bucket{{le=\"0.001\",{name}}} 2"),
            format!("tensortier_migrate_call_seconds_bucket{{le=\"+Inf\",{name}}} 3"),
            "tensortier_node_free_bytes{node=\"2\",tier=\"1\"} 77".to_owned(),
            "tensortier_events_lost_total{source=\"damon\"} 4".to_owned(),
            "tensortier_damon_sampling_ratio 0.5".to_owned(),
            "tensortier_h2d_bytes_total{node=\"2\",path=\"registered\"} 5".to_owned(),
            "tensortier_d2h_bytes_total{node=\"unknown\",path=\"registered\"} 6".to_owned(),
            "tensortier_missing_nodes 1".to_owned(),
            "tensortier_paused 1".to_owned(),
        ] {
            let found = text.lines().any(|found| found.starts_with(&line));
            assert!(found, "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
