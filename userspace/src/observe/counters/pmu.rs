//! Performance monitoring units of CXL devices (Linux 6.5, CONFIG_CXL_PMU), found where the kernel registers them. A
//! device says itself which events it counts.

use std::{fs, io, path::Path};

use perf_event::{Builder, Counter as Event, ReadFormat, events::Dynamic};
use serde::Serialize;

use super::{Counter, Missing, Unit, Values, Whose, tracepoints::on_each_cpu};
use crate::units::parse_list;

const DEVICES: &str = "sys/bus/event_source/devices";

/// Beginnings of the events that say how much the host reads and writes: requests to memory, and the data that answers.
const TRAFFIC: [&str; 4] = ["m2s_req_memrd", "m2s_rwd_memwr", "s2m_drs_memdata", "clock_ticks"];

/// One unit of one CXL memory device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pmu {
    /// Its name for perf, `cxl_pmu_mem0.0`: device and unit.
    pub name: String,
    /// The CPU that its counters are opened on.
    pub cpus: Vec<u32>,
    /// The events that the device counts.
    pub events: Vec<String>,
}

/// The units under `root`, by name.
pub fn discover(root: &Path) -> Vec<Pmu> {
    let devices = names(&root.join(DEVICES));
    let pmu = |name: String| {
        let folder = root.join(DEVICES).join(&name);
        let mask = fs::read_to_string(folder.join("cpumask")).unwrap_or_default();
        // `EVENT.unit` and `EVENT.scale` describe an event and are none.
        let events = names(&folder.join("events")).into_iter().filter(|event| !event.contains('.')).collect();
        Pmu { name, cpus: parse_list(&mask).unwrap_or_default(), events }
    };
    devices.into_iter().filter(|name| name.starts_with("cxl_pmu_mem")).map(pmu).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The events of `pmu` that count traffic.
fn traffic(pmu: &Pmu) -> impl Iterator<Item = &String> {
    pmu.events.iter().filter(|event| TRAFFIC.iter().any(|begins| event.starts_with(begins)))
}

/// Open counters.
#[derive(Default)]
pub(super) struct PmuCounters(Vec<(Counter, Vec<Event>)>);

impl PmuCounters {
    pub fn open(pmus: &[Pmu], missing: &mut Vec<Missing>) -> Self {
        let mut opened = Vec::new();
        for (pmu, event) in pmus.iter().flat_map(|pmu| traffic(pmu).map(move |event| (pmu, event))) {
            let name = format!("{}/{event}/", pmu.name);
            match open(pmu, event) {
                Ok(events) => {
                    let counter =
                        Counter { whose: Whose::Cxl, event: name, node: None, unit: Unit::Events, detail: false };
                    opened.push((counter, events));
                }
                Err(why) => missing.push(Missing { event: name, why }),
            }
        }
        Self(opened)
    }

    /// Counts scaled up where the device had to share its counters among events.
    pub fn read(&mut self) -> Values {
        let scaled = |event: &mut Event| {
            let read = event.read_count_and_time().ok()?;
            let share = read.time_running as f64 / read.time_enabled.max(1) as f64;
            Some(if share > 0.0 { (read.count as f64 / share) as u64 } else { 0 })
        };
        let sum = |events: &mut Vec<Event>| events.iter_mut().filter_map(scaled).sum();
        self.0.iter_mut().map(|(counter, events)| (counter.clone(), sum(events))).collect()
    }
}

/// The event of a unit, by the unit's name or folder. Fields that the event's description leaves out are 0.
fn describe(unit: &Path, event: &str) -> io::Result<Dynamic> {
    let mut builder = Dynamic::builder(unit)?;
    builder.event(event)?;
    let open: Vec<String> = builder.params().map(str::to_owned).collect();
    for field in &open {
        builder.field(field, 0).map_err(io::Error::other)?;
    }
    builder.build().map_err(io::Error::other)
}

fn open(pmu: &Pmu, event: &str) -> Result<Vec<Event>, String> {
    let event = describe(Path::new(&pmu.name), event).map_err(|error| error.to_string())?;
    let cpus: Vec<usize> = pmu.cpus.iter().map(|cpu| *cpu as usize).collect();
    on_each_cpu(&cpus, |cpu| {
        let mut builder = Builder::new(event);
        let times = ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING;
        builder.any_pid().one_cpu(cpu).include_kernel().include_hv().read_format(times);
        builder.build()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The tree of a device as Linux's drivers/perf/cxl_pmu.c registers it.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(DEVICES).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (file, text) in [
            ("type", "31\n"),
            ("cpumask", "2\n"),
            ("format/mask", "config:0-31\n"),
            ("format/gid", "config:32-47\n"),
            ("format/vid", "config:48-63\n"),
            ("format/threshold", "config1:0-15\n"),
            ("events/clock_ticks", "vid=0x1e98,gid=0x0,mask=0x1\n"),
            ("events/m2s_req_memrd", "vid=0x1e98,gid=0x4,mask=0x2\n"),
            ("events/m2s_rwd_memwr", "vid=0x1e98,gid=0x5,mask=0x2\n"),
            ("events/m2s_rwd_memwr.scale", "64\n"),
            ("events/d2h_req_rdcurr", "vid=0x1e98,gid=0x2,mask=0x2\n"),
        ] {
            put(&format!("cxl_pmu_mem0.0/{file}"), text);
        }
        put("cxl_pmu_mem1.0/type", "32\n");
        put("uncore_imc_0/type", "12\n");
        put("cpu/type", "4\n");
        root
    }

    #[test]
    fn units_of_cxl_devices_are_found_with_their_events() {
        let root = tree();
        let pmus = discover(root.path());
        assert_eq!(pmus.iter().map(|pmu| pmu.name.as_str()).collect::<Vec<_>>(), ["cxl_pmu_mem0.0", "cxl_pmu_mem1.0"]);
        assert_eq!(pmus[0].cpus, [2]);
        assert_eq!(pmus[0].events, ["clock_ticks", "d2h_req_rdcurr", "m2s_req_memrd", "m2s_rwd_memwr"]);
        assert_eq!(traffic(&pmus[0]).collect::<Vec<_>>(), ["clock_ticks", "m2s_req_memrd", "m2s_rwd_memwr"]);
        assert_eq!((pmus[1].cpus.len(), pmus[1].events.len()), (0, 0));
        assert!(discover(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn an_events_numbers_are_read_from_its_description() {
        use perf_event::events::Event as _;

        let root = tree();
        let folder = root.path().join(DEVICES).join("cxl_pmu_mem0.0");
        let event = describe(&folder, "m2s_req_memrd").unwrap();
        let mut builder = Builder::new(event);
        let attributes = builder.attrs_mut();
        event.update_attrs(attributes);
        assert_eq!((attributes.type_, attributes.config), (31, 0x1e98 << 48 | 0x4 << 32 | 0x2));
    }

    #[test]
    fn a_unit_that_cannot_be_opened_is_missing_with_its_reason() {
        let pmus = discover(tree().path());
        let mut missing = Vec::new();
        // No such device exists on this machine, whatever the tree says.
        let mut counters = PmuCounters::open(&pmus, &mut missing);
        assert!(counters.read().is_empty());
        assert_eq!(missing.len(), 3);
        assert_eq!(missing[1].event, "cxl_pmu_mem0.0/m2s_req_memrd/");
    }
}
