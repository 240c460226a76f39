//! Tracepoints counted through perf: our own probes once `perf setup` has armed them, and DAMON's events.

use std::{fs, io, path::Path, thread};

use perf_event::{Builder, Counter as Event, ReadFormat, events::Tracepoint};

use super::{Counter, Missing, Unit, Values, Whose};
use crate::{
    observe::usdt::{PROBES, PROVIDER},
    source::format,
    units::parse_list,
};

/// Those of the kernel, and whose they are.
pub(super) const KERNEL: [(&str, Whose, &str); 4] = [
    ("migrate:mm_migrate_pages", Whose::Kernel, "batches of pages that the kernel tried to migrate; not pages"),
    ("damon:damon_aggregated", Whose::Damon, "regions that DAMON reported, once in each aggregation interval"),
    ("damon:damos_before_apply", Whose::Damon, "regions that a DAMON scheme is about to act on"),
    ("migrate:set_migration_pmd", Whose::Kernel, "huge pages unmapped to migrate them"),
];

/// Why our probes are not events.
pub(super) const NOT_ARMED: &str = "not armed: sudo tensortier perf setup";
/// Why perf events cannot be opened.
const FORBIDDEN: &str = "counting kernel events needs root or CAP_PERFMON";

/// Open counters, one for each CPU.
#[derive(Default)]
pub(super) struct Tracepoints(Vec<(Counter, Vec<Event>)>);

impl Tracepoints {
    pub fn open(missing: &mut Vec<Missing>) -> Self {
        let mut opened = Vec::new();
        let tracefs = match format::tracefs() {
            Ok(tracefs) => tracefs,
            Err(error) => {
                missing.push(Missing { event: "tracepoints".to_owned(), why: error.to_string() });
                return Self::default();
            }
        };
        let mut wanted = wanted();
        let probe = |counter: &Counter| counter.event.starts_with("sdt_");
        if !wanted.iter().filter(|counter| probe(counter)).any(|counter| id(tracefs, &counter.event).is_ok()) {
            wanted.retain(|counter| !probe(counter));
            missing.push(Missing { event: format!("sdt_{PROVIDER}:*"), why: NOT_ARMED.to_owned() });
        }
        for counter in wanted {
            match open(tracefs, &counter.event) {
                Ok(events) => opened.push((counter, events)),
                Err(why) => missing.push(Missing { event: counter.event, why }),
            }
        }
        Self(opened)
    }

    pub fn read(&mut self) -> Values {
        let sum = |events: &mut Vec<Event>| events.iter_mut().filter_map(|event| event.read().ok()).sum();
        self.0.iter_mut().map(|(counter, events)| (counter.clone(), sum(events))).collect()
    }
}

fn wanted() -> Vec<Counter> {
    let counter = |event: String, whose| Counter { whose, event, node: None, unit: Unit::Events, detail: true };
    let ours = PROBES.iter().map(|probe| counter(format!("sdt_{PROVIDER}:{}", probe.name), Whose::Agent));
    ours.chain(KERNEL.iter().map(|(event, whose, _)| counter((*event).to_owned(), *whose))).collect()
}

fn open(tracefs: &Path, event: &str) -> Result<Vec<Event>, String> {
    let id = id(tracefs, event)?;
    on_each_cpu(&cpus().map_err(|error| error.to_string())?, |cpu| {
        let mut builder = Builder::new(Tracepoint::with_id(id));
        builder.any_pid().one_cpu(cpu).include_kernel().include_hv().read_format(ReadFormat::empty());
        builder.build()
    })
}

/// The number that perf opens a tracepoint by.
fn id(tracefs: &Path, event: &str) -> Result<u64, String> {
    let path = tracefs.join("events").join(event.replace(':', "/")).join("id");
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| format!("{}: not a number", path.display())),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(FORBIDDEN.to_owned()),
        Err(_) if event.starts_with("sdt_") => Err(NOT_ARMED.to_owned()),
        Err(_) => Err("this kernel has no such tracepoint".to_owned()),
    }
}

/// Opens and enables a counter on each CPU.
pub(super) fn on_each_cpu(
    cpus: &[usize],
    mut open: impl FnMut(usize) -> io::Result<Event>,
) -> Result<Vec<Event>, String> {
    let mut opened = Vec::new();
    for cpu in cpus {
        let enabled = open(*cpu).and_then(|mut event| event.enable().map(|()| event));
        opened.push(enabled.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => FORBIDDEN.to_owned(),
            _ => format!("perf cannot count it on CPU {cpu}: {error}"),
        })?);
    }
    Ok(opened)
}

fn cpus() -> io::Result<Vec<usize>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online");
    let listed = text.ok().and_then(|text| parse_list(&text).ok()).filter(|cpus| !cpus.is_empty());
    match listed {
        Some(cpus) => Ok(cpus.into_iter().map(|cpu| cpu as usize).collect()),
        None => Ok((0..thread::available_parallelism()?.get()).collect()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_event_has_an_id_or_a_reason() {
        let tracefs = tempfile::tempdir().unwrap();
        let folder = tracefs.path().join("events/damon/damon_aggregated");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("id"), "417\n").unwrap();
        assert_eq!(id(tracefs.path(), "damon:damon_aggregated"), Ok(417));
        assert!(id(tracefs.path(), "sdt_tensortier:promote").unwrap_err().contains("perf setup"));
        assert!(id(tracefs.path(), "damon:damos_before_apply").unwrap_err().contains("no such tracepoint"));
        fs::write(folder.join("id"), "").unwrap();
        assert!(id(tracefs.path(), "damon:damon_aggregated").unwrap_err().contains("not a number"));
    }

    #[test]
    fn a_refusal_names_the_right_that_is_missing() {
        let refuse = |kind| on_each_cpu(&[3], move |_| Err(io::Error::from(kind))).map(drop).unwrap_err();
        assert_eq!(refuse(io::ErrorKind::PermissionDenied), FORBIDDEN);
        assert!(refuse(io::ErrorKind::NotFound).contains("CPU 3"));
    }
}
