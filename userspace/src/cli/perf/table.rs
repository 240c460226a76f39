//! The forms that counts are printed in.

use anyhow::Result;
use serde::Serialize;
use tensortier::observe::counters::{Counter, Missing, Unit, Values};

/// How to print.
pub enum Form {
    /// For people.
    Table,
    /// One line a counter, its fields separated so.
    Separated(String),
    /// One object a line.
    Json,
}

/// What was counted in one stretch of time.
pub struct Interval<'a> {
    /// Seconds since counting began.
    pub seconds: f64,
    /// Whether it is one of several, so that each line tells its time.
    pub timed: bool,
    /// The counts.
    pub counts: &'a Values,
    /// What could not be counted.
    pub missing: &'a [Missing],
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    counter: &'a Counter,
    count: u64,
}

#[derive(Serialize)]
struct Object<'a> {
    seconds: f64,
    counters: Vec<Line<'a>>,
    missing: &'a [Missing],
}

impl Form {
    /// The text of one interval.
    pub fn print(&self, interval: &Interval<'_>) -> Result<String> {
        Ok(match self {
            Self::Table => table(interval),
            Self::Separated(separator) => separated(interval, separator),
            Self::Json => {
                let line = |(counter, count): (_, &u64)| Line { counter, count: *count };
                let counters = interval.counts.iter().map(line).collect();
                let object = Object { seconds: interval.seconds, counters, missing: interval.missing };
                serde_json::to_string(&object)? + "\n"
            }
        })
    }
}

fn unit(counter: &Counter) -> &'static str {
    match counter.unit {
        Unit::Pages => "pages",
        Unit::Events => "events",
    }
}

fn node(counter: &Counter) -> String {
    counter.node.map_or(String::new(), |node| node.to_string())
}

fn separated(interval: &Interval<'_>, separator: &str) -> String {
    let time = if interval.timed { format!("{:.6}{separator}", interval.seconds) } else { String::new() };
    let counted = interval.counts.iter().map(|(counter, count)| {
        let whose = counter.whose.word();
        [&count.to_string(), unit(counter), &counter.event, &node(counter), whose].join(separator)
    });
    let missing = interval.missing.iter().map(|one| ["<not counted>", "", &one.event, "", ""].join(separator));
    counted.chain(missing).map(|line| format!("{time}{line}\n")).collect()
}

fn table(interval: &Interval<'_>) -> String {
    let time = |text: String| if interval.timed { format!("{text:>12} ") } else { String::new() };
    let stamp = time(format!("{:.3}", interval.seconds));
    let mut text = format!("{}{:>16} {:<7} {:<40} {:>4}  whose\n", time("# time".into()), "count", "", "event", "node");
    for (counter, count) in interval.counts {
        if counter.detail && *count == 0 {
            continue;
        }
        let (unit, node, whose) = (unit(counter), node(counter), counter.whose.word());
        text += &format!("{stamp}{:>16} {unit:<7} {:<40} {node:>4}  {whose}\n", grouped(*count), counter.event);
    }
    if !interval.timed {
        for Missing { event, why } in interval.missing {
            text += &format!("{:>16} {:<7} {event:<40}       {why}\n", "<not counted>", "");
        }
        text += &format!("\n{:>16.6} seconds\n", interval.seconds);
    }
    text
}

/// `1,234,567`.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let comma = |at: usize| at > 0 && (digits.len() - at).is_multiple_of(3);
    digits.char_indices().flat_map(|(at, digit)| comma(at).then_some(',').into_iter().chain([digit])).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tensortier::{observe::counters::Whose, units::NodeId};

    use super::*;

    fn counts() -> Values {
        let counter = |whose, event: &str, node, detail| Counter {
            whose,
            event: event.to_owned(),
            node,
            unit: Unit::Pages,
            detail,
        };
        Values::from([
            (counter(Whose::Agent, "migrated:syscall_or_cpuset", None, false), 4_116),
            (counter(Whose::NumaBalancing, "pgpromote_success", Some(NodeId(2)), true), 7),
            (counter(Whose::Demotion, "pgdemote_kswapd", Some(NodeId(0)), true), 0),
            (counter(Whose::Kernel, "migrated:compaction", None, false), 0),
        ])
    }

    fn print(form: &Form, timed: bool) -> String {
        let missing = [Missing { event: "migrated:*".to_owned(), why: "needs root".to_owned() }];
        form.print(&Interval { seconds: 1.5, timed, counts: &counts(), missing: &missing }).unwrap()
    }

    #[test]
    fn the_table_leaves_out_details_that_are_0_and_says_what_is_missing() {
        let text = print(&Form::Table, false);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["4,116", "pages", "migrated:syscall_or_cpuset", "agent"]);
        assert_eq!(lines[2], ["7", "pages", "pgpromote_success", "2", "numa-balancing"]);
        assert_eq!(lines[3], ["0", "pages", "migrated:compaction", "kernel"]);
        assert_eq!(lines[4], ["<not", "counted>", "migrated:*", "needs", "root"]);
        assert_eq!(lines.last().unwrap(), &["1.500000", "seconds"]);
        assert!(print(&Form::Table, true).lines().nth(1).unwrap().trim_start().starts_with("1.500 "));
    }

    #[test]
    fn every_separated_line_has_the_same_fields() {
        let form = Form::Separated(",".to_owned());
        let text = print(&form, false);
        assert!(text.lines().all(|line| line.split(',').count() == 5), "{text}");
        assert!(
            text.contains("\n0,pages,pgdemote_kswapd,0,demotion\n") && text.contains("<not counted>,,migrated:*,,\n")
        );
        assert!(print(&form, true).lines().all(|line| line.starts_with("1.500000,")));
    }

    #[test]
    fn json_is_one_object_a_line() {
        let text = print(&Form::Json, true);
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((text.lines().count(), object["seconds"].as_f64()), (1, Some(1.5)));
        let first = serde_json::json!({
            "whose": "agent", "event": "migrated:syscall_or_cpuset", "node": null, "unit": "pages", "count": 4116
        });
        assert_eq!(object["counters"][0], first);
        assert_eq!(object["missing"][0]["why"], "needs root");
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0, 12, 999, 1_000, 1_234_567].map(grouped), ["0", "12", "999", "1,000", "1,234,567"]);
    }
}
