//! What perf printed, read.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// Counts of `perf stat -x,` (`event` 2) and of `tensortier perf stat -x,` by event and, for ours, whose work.
pub fn counts(csv: &str, event: usize) -> BTreeMap<String, u64> {
    let lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let keyed = lines.filter(|fields| fields.len() > event).filter_map(|fields| {
        let whose = if event == 2 && fields.len() == 5 { format!(" {}", fields[4]) } else { String::new() };
        Some((format!("{}{whose}", fields[event]), fields[0].parse().ok()?))
    });
    keyed.collect()
}

/// The lines of `perf script` about one event, such as `sdt_tensortier:migrate_done`.
pub fn of_event<'a>(script: &'a str, event: &str) -> impl Iterator<Item = &'a str> {
    let word = format!(" {event}:");
    script.lines().filter(move |line| line.contains(&word))
}

/// The process of a line that `perf script -F pid,event,trace` wrote.
pub fn pid(line: &str) -> Option<u32> {
    line.split_whitespace().next()?.parse().ok()
}

/// Sum of a field over lines of `perf script`, and the number of the lines.
///
/// # Errors
/// A line without the field.
pub fn sum<'a>(lines: impl Iterator<Item = &'a str>, field: &str) -> Result<(u64, u64)> {
    let value = |line: &str| -> Option<u64> {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix(field)?.strip_prefix('='))?;
        word.strip_prefix("0x").map_or_else(|| word.parse(), |hex| u64::from_str_radix(hex, 16)).ok()
    };
    lines.into_iter().try_fold((0, 0), |(sum, hits), line| {
        Ok((sum + value(line).with_context(|| format!("no {field} in {line}"))?, hits + 1))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SCRIPT: &str = "\
   77 sdt_tensortier:migrate_done: (55d0) arg1=4242 arg2=512 arg3=0x1
   77 sdt_tensortier:migrate_done: (55d0) arg1=4242 arg2=3 arg3=0
  812 migrate:mm_migrate_pages: nr_succeeded=64 nr_failed=0 mode=MIGRATE_SYNC reason=syscall_or_cpuset
";

    #[test]
    fn fields_are_summed_over_the_lines_of_an_event() {
        let done = || of_event(SCRIPT, "sdt_tensortier:migrate_done");
        assert_eq!(sum(done(), "arg2").unwrap(), (515, 2));
        assert_eq!(sum(done(), "arg3").unwrap(), (1, 2));
        assert!(sum(done(), "arg4").is_err());
        let other = of_event(SCRIPT, "migrate:mm_migrate_pages").next().unwrap();
        assert_eq!((pid(other), sum([other].into_iter(), "nr_succeeded").unwrap().0), (Some(812), 64));
        assert_eq!(of_event(SCRIPT, "sdt_tensortier:migrate").count(), 0);
    }

    #[test]
    fn counts_are_read_by_event_and_by_whose_work_it_is() {
        let perf = counts("9,,sdt_tensortier:promote,12,100.00,,\n<not counted>,,other,0,100.00,,\n", 2);
        assert_eq!(perf, BTreeMap::from([("sdt_tensortier:promote".to_owned(), 9)]));
        let ours = counts("64,pages,migrated:compaction,,kernel\n", 2);
        assert_eq!(ours["migrated:compaction kernel"], 64);
    }
}
