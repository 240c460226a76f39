//! Where this kernel keeps what the programs read: the fields of tracepoints by their format files, the arguments of raw
//! ones by the kernel's BTF. Found by name, since both change between kernels.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use aya::{
    Ebpf,
    programs::{RawTracePoint, TracePoint},
};
use tensortier_abi::{ABSENT, FIELDS, MAX_OFFSET, PROGRAMS, Program};

use super::format::Format;

/// Where this kernel's tracepoints keep the fields that the programs read.
pub(super) struct Layout {
    /// In the order of [`FIELDS`].
    pub offsets: Vec<u32>,
    /// Tracepoints that cannot be used, and why.
    pub missing: BTreeMap<&'static str, String>,
    /// Tracepoints whose offsets are those of a raw tracepoint's arguments.
    pub raw: BTreeSet<&'static str>,
}

impl Layout {
    /// Reads it below a tracefs; with `raw`, for raw tracepoints where programs have that form.
    pub fn read(tracefs: &Path, raw: bool) -> Self {
        let mut missing = BTreeMap::new();
        let mut formats = BTreeMap::new();
        for program in &PROGRAMS {
            match Format::read(tracefs, program.event) {
                Ok(format) => drop(formats.insert(program.event, format)),
                Err(error) => drop(missing.insert(program.event, error.to_string())),
            }
        }
        let mut layout = Self::of(&formats, missing);
        for program in PROGRAMS.iter().filter(|program| raw && program.raw.is_some()) {
            let name = program.event.split_once('/').map_or(program.event, |(_, name)| name);
            if let Some(arguments) = tensortier_core::tracepoint_arguments(name) {
                layout.go_raw(program.event, &arguments);
            }
        }
        layout
    }

    /// Takes the fields of `event` from the arguments of its raw tracepoint, where these have all that is required.
    fn go_raw(&mut self, event: &'static str, arguments: &[String]) {
        let offset = |field: &str| {
            let number = arguments.iter().position(|argument| argument == field)?;
            u32::try_from(number * size_of::<u64>()).ok().filter(|offset| *offset < MAX_OFFSET)
        };
        let fields = || FIELDS.iter().enumerate().filter(|(_, field)| field.event == event);
        if fields().all(|(_, field)| !field.required || offset(field.field).is_some()) {
            fields().for_each(|(at, field)| self.offsets[at] = offset(field.field).unwrap_or(ABSENT));
            self.raw.insert(event);
        }
    }

    /// Loads a program in the form that this layout is for, and attaches it.
    pub fn attach(&self, ebpf: &mut Ebpf, program: &Program) -> Result<(), String> {
        let (category, name) = program.event.split_once('/').ok_or("not a tracepoint")?;
        if let Some(raw) = program.raw.filter(|_| self.raw.contains(program.event)) {
            let loaded: &mut RawTracePoint =
                ebpf.program_mut(raw).ok_or("not in the object")?.try_into().map_err(chain)?;
            loaded.load().map_err(chain)?;
            return loaded.attach(name).map(drop).map_err(chain);
        }
        let loaded: &mut TracePoint =
            ebpf.program_mut(program.name).ok_or("not in the object")?.try_into().map_err(chain)?;
        loaded.load().map_err(chain)?;
        loaded.attach(category, name).map(drop).map_err(chain)
    }

    fn of(formats: &BTreeMap<&'static str, Format>, mut missing: BTreeMap<&'static str, String>) -> Self {
        let mut offsets = Vec::new();
        for field in &FIELDS {
            let found = formats.get(field.event).and_then(|format| format.field(field.field));
            // A field of another size or beyond the loads in the programs would be read wrong: better not at all.
            let usable = found.filter(|found| {
                found.size == field.size
                    && found.offset % field.size.max(4) == 0
                    && found.offset >= 8
                    && found.offset + field.size <= MAX_OFFSET
            });
            offsets.push(usable.map_or(ABSENT, |found| found.offset));
            if usable.is_none() && field.required && formats.contains_key(field.event) {
                let reason = match found {
                    Some(found) => format!(
                        "field {} of {} is at {} with {} bytes",
                        field.field, field.event, found.offset, found.size
                    ),
                    None => format!("{} has no field {} on this kernel", field.event, field.field),
                };
                missing.entry(field.event).or_insert(reason);
            }
        }
        Self { offsets, missing, raw: BTreeSet::new() }
    }
}

/// An error with its causes on one line: aya's own text names only the call.
pub(super) fn chain(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::ebpf::MIGRATE_EVENT;

    fn layout(event: &'static str, text: &str) -> (BTreeMap<&'static str, u32>, Option<String>) {
        let formats = BTreeMap::from([(event, Format::parse(text))]);
        let layout = Layout::of(&formats, BTreeMap::new());
        let offsets = FIELDS.iter().zip(layout.offsets).filter(|(field, _)| field.event == event);
        (offsets.map(|(field, offset)| (field.field, offset)).collect(), layout.missing.get(event).cloned())
    }

    #[test]
    fn fields_that_moved_or_came_anew_are_found_by_name() {
        let (offsets, missing) = layout(
            "damon/damon_aggregated",
            "\tfield:unsigned int ctx;\toffset:8;\tsize:4;\tsigned:0;
             field:unsigned long start;\toffset:24;\tsize:8;\tsigned:0;
             field:unsigned long end;\toffset:32;\tsize:8;\tsigned:0;
             field:unsigned long target_id;\toffset:16;\tsize:8;\tsigned:0;
             field:unsigned int nr_accesses;\toffset:12;\tsize:4;\tsigned:0;",
        );
        assert_eq!(missing, None);
        assert_eq!((offsets["target_id"], offsets["start"], offsets["nr_accesses"]), (16, 24, 12));
        assert_eq!(
            (offsets["age"], offsets["nr_regions"]),
            (ABSENT, ABSENT),
            "what this kernel does not tell reads as 0"
        );
    }

    #[test]
    fn a_raw_tracepoint_is_used_where_its_arguments_are_all_named() {
        let raw = |arguments: &[&str]| {
            let mut layout = Layout::of(&BTreeMap::new(), BTreeMap::new());
            let arguments: Vec<String> = arguments.iter().map(|name| (*name).to_owned()).collect();
            layout.go_raw(MIGRATE_EVENT, &arguments);
            let fields = FIELDS.iter().zip(&layout.offsets).filter(|(field, _)| field.event == MIGRATE_EVENT);
            let offsets: Vec<u32> = fields.map(|(_, offset)| *offset).collect();
            layout.raw.contains(MIGRATE_EVENT).then_some(offsets)
        };
        let found = raw(&["succeeded", "failed", "large_folio_split", "mode", "reason"]);
        assert_eq!(found.as_deref(), Some([0, 8, ABSENT, ABSENT, ABSENT, 16, 32].as_slice()));
        assert_eq!(raw(&["succeeded", "failed"]), None, "without the reason it means nothing");
    }

    #[test]
    fn a_field_that_would_be_read_wrong_is_not_read() {
        for (address, says) in [
            ("", "no field address"),
            ("field:unsigned int address;\toffset:8;\tsize:4;\tsigned:0;", "with 4 bytes"),
            ("field:unsigned long address;\toffset:128;\tsize:8;\tsigned:0;", "at 128"),
            ("field:unsigned long address;\toffset:12;\tsize:8;\tsigned:0;", "at 12"),
        ] {
            let (offsets, missing) = layout("exceptions/page_fault_user", address);
            assert_eq!(offsets["address"], ABSENT);
            assert!(missing.is_some_and(|reason| reason.contains(says)), "{address:?}");
        }
    }
}
