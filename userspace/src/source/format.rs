//! Tracepoints as tracefs describes them. Offsets and reason numbers differ between kernels, so both are read here and
//! never assumed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
};

/// Why a tracepoint could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// No tracefs, and none could be mounted.
    #[error(
        "tracefs is not mounted, and mounting it at {path} failed: {source}; as root: mount -t tracefs tracefs {path}"
    )]
    NoTracefs {
        /// Where it belongs.
        path: PathBuf,
        /// Why the mount failed.
        source: io::Error,
    },
    /// Root alone may look at it.
    #[error("{path} is kept to root", path = path.display())]
    Denied {
        /// Where it is, or would be.
        path: &'static Path,
    },
    /// The kernel has no such tracepoint, or it cannot be read.
    #[error("no tracepoint {event} on this kernel ({path}: {source})")]
    NoEvent {
        /// `category/name`.
        event: String,
        /// The format file.
        path: PathBuf,
        /// Why it could not be read.
        source: io::Error,
    },
}

/// Where tracefs may be mounted: at its own place or inside debugfs.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Finds tracefs and mounts nothing; `None` where it is not mounted.
///
/// # Errors
/// [`FormatError::Denied`].
pub fn find_tracefs() -> Result<Option<&'static Path>, FormatError> {
    for path in PLACES.map(Path::new) {
        match path.join("events").metadata() {
            Ok(_) => return Ok(Some(path)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(FormatError::Denied { path }),
            Err(_) => {}
        }
    }
    Ok(None)
}

/// Finds tracefs. Where it is not mounted, mounts it at its own place, as perf does, and says so: a mount of a kernel
/// interface that changes no setting.
///
/// # Errors
/// [`FormatError::NoTracefs`]: a kernel without tracing. [`FormatError::Denied`]: not root.
pub fn tracefs() -> Result<&'static Path, FormatError> {
    if let Some(place) = find_tracefs()? {
        return Ok(place);
    }
    let path = Path::new(PLACES[0]);
    match mount(Some("tracefs"), path, Some("tracefs"), MsFlags::empty(), None::<&str>) {
        // Another process has mounted it since we looked.
        Err(Errno::EBUSY) if matches!(find_tracefs(), Ok(Some(_))) => return Ok(path),
        mounted => mounted.map_err(|errno| FormatError::NoTracefs { path: path.to_owned(), source: errno.into() })?,
    }
    tracing::info!(path = %path.display(), "mounted tracefs, which was not mounted");
    Ok(path)
}

/// A field of a tracepoint's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Bytes from the record's start.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
}

/// A tracepoint's format file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// The fields, in the file's order.
    pub fields: Vec<Field>,
    print: String,
}

impl Format {
    /// Reads the format of `event` (`category/name`) below a tracefs.
    ///
    /// # Errors
    /// [`FormatError::NoEvent`].
    pub fn read(tracefs: &Path, event: &str) -> Result<Self, FormatError> {
        let path = tracefs.join("events").join(event).join("format");
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(source) => Err(FormatError::NoEvent { event: event.to_owned(), path, source }),
        }
    }

    /// Parses a format file; lines that are not understood are not fields.
    pub fn parse(text: &str) -> Self {
        let print = text.lines().find_map(|line| line.strip_prefix("print fmt:")).unwrap_or_default().trim().to_owned();
        Self { fields: text.lines().filter_map(parse_field).collect(), print }
    }

    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The names that the print format gives to a field's values (`__print_symbolic`): `reason` of `mm_migrate_pages`.
    pub fn symbols(&self, field: &str) -> Vec<(u32, String)> {
        let Some((_, rest)) = self.print.split_once(&format!("__print_symbolic(REC->{field},")) else {
            return Vec::new();
        };
        let mut symbols = Vec::new();
        // `{0, "compaction"}, {1, "memory_failure"})`: the list ends at the first `)` outside of a pair.
        for pair in rest.split('{').skip(1) {
            let Some((inside, after)) = pair.split_once('}') else { break };
            if let Some((number, name)) = inside.split_once(',')
                && let Ok(number) = number.trim().parse()
            {
                symbols.push((number, name.trim().trim_matches('"').to_owned()));
            }
            if after.trim_start().starts_with(')') {
                break;
            }
        }
        symbols
    }
}

/// `field:unsigned long address; offset:8; size:8; signed:0;`, with tabs between the parts.
fn parse_field(line: &str) -> Option<Field> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    // `char comm[16]` is named `comm`.
    let name = declaration.split_whitespace().last()?.split('[').next()?.trim_start_matches('*');
    let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse().ok();
    Some(Field { name: name.to_owned(), offset: number("offset:")?, size: number("size:")? })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MIGRATE: &str = "name: mm_migrate_pages
ID: 713
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:unsigned long succeeded;	offset:8;	size:8;	signed:0;
	field:char comm[16];	offset:16;	size:16;	signed:0;
	field:enum migrate_mode mode;	offset:56;	size:4;	signed:0;
	field:int reason;	offset:60;	size:4;	signed:1;

print fmt: \"mode=%s reason=%s\", __print_symbolic(REC->mode, {0, \"MIGRATE_ASYNC\"}, {2, \"MIGRATE_SYNC\"}), \
         __print_symbolic(REC->reason, {0, \"compaction\"}, {3, \"syscall_or_cpuset\"}, {8, \"demotion\"})
";

    #[test]
    fn fields_are_found_by_name() {
        let format = Format::parse(MIGRATE);
        let at = |name| format.field(name).map(|field| (field.offset, field.size));
        assert_eq!(at("succeeded"), Some((8, 8)));
        assert_eq!(at("comm"), Some((16, 16)));
        assert_eq!(at("reason"), Some((60, 4)));
        assert_eq!(at("large_folio_split"), None);
    }

    #[test]
    fn symbols_are_those_of_the_field_asked_for() {
        let format = Format::parse(MIGRATE);
        let names =
            |field| format.symbols(field).into_iter().map(|(n, name)| format!("{n}:{name}")).collect::<Vec<_>>();
        assert_eq!(names("mode"), ["0:MIGRATE_ASYNC", "2:MIGRATE_SYNC"]);
        assert_eq!(names("reason"), ["0:compaction", "3:syscall_or_cpuset", "8:demotion"]);
        assert!(names("succeeded").is_empty());
    }

    #[test]
    fn garbage_is_no_field() {
        let format = Format::parse("field:;offset:x\nfield:int a;\tsize:4;\nprint fmt: __print_symbolic(REC->a, {1");
        assert_eq!(format.fields, []);
        assert!(format.symbols("a").is_empty());
    }
}
