//! Random logs for property tests.

use std::fmt::Write;
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::OpLog;

/// A name the program holds, and which storage it is for.
#[derive(Clone)]
struct Held {
    name: String,
    storage: usize,
}

/// A valid log of about `ops` operators: chains and joins, aliases, mutations, copies and releases.
pub(crate) fn log(seed: u64, ops: usize) -> OpLog {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut text = String::from("{\"INSTRUCTION\":\"ANNOTATE\",\"ANNOTATION\":\"START\"}\n");
    let mut held: Vec<Held> = Vec::new();
    let mut names = 0;
    let mut storages = 0;
    let mut fresh = |held: &mut Vec<Held>, storage: Option<usize>| {
        let storage = storage.unwrap_or_else(|| {
            storages += 1;
            storages
        });
        names += 1;
        held.push(Held { name: format!("x{names}"), storage });
        format!("x{names}")
    };
    for _ in 0..rng.random_range(1..4) {
        let name = fresh(&mut held, None);
        let bytes: u32 = rng.random_range(0..50);
        let _ = writeln!(text, "{{\"INSTRUCTION\":\"CONSTANT\",\"NAME\":\"{name}\"}}");
        let _ = writeln!(text, "{{\"INSTRUCTION\":\"MEMORY\",\"NAME\":\"{name}\",\"MEMORY\":\"{bytes}\"}}");
    }
    for _ in 0..ops {
        let pick = |rng: &mut Xoshiro256PlusPlus, held: &[Held]| held[rng.random_range(0..held.len())].clone();
        match rng.random_range(0..10) {
            0 if held.len() > 2 => {
                let gone = held.swap_remove(rng.random_range(0..held.len()));
                let _ = writeln!(text, "{{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"{}\"}}", gone.name);
            }
            1 => {
                let src = pick(&mut rng, &held);
                let dst = fresh(&mut held, Some(src.storage));
                let _ = writeln!(text, "{{\"INSTRUCTION\":\"COPY\",\"DST\":\"{dst}\",\"SRC\":\"{}\"}}", src.name);
            }
            2 => {
                let (a, b) = (pick(&mut rng, &held), pick(&mut rng, &held));
                let time: u32 = rng.random_range(0..100);
                let _ = writeln!(
                    text,
                    "{{\"INSTRUCTION\":\"MUTATE\",\"NAME\":\"add_\",\"ARGS\":[\"{}\",\"{}\"],\"MUTATE\":[0],\"TIME\":\"{time}\"}}",
                    a.name, b.name
                );
            }
            _ => {
                let args: Vec<Held> = (0..rng.random_range(1..4)).map(|_| pick(&mut rng, &held)).collect();
                let mut lines = String::new();
                let results: Vec<String> = (0..rng.random_range(1..3))
                    .map(|_| {
                        let alias = rng.random_bool(0.15).then(|| rng.random_range(0..args.len()));
                        let name = fresh(&mut held, alias.map(|a| args[a].storage));
                        let bytes: u32 = rng.random_range(0..1000);
                        let alias = alias.map_or(-1, |a| a as i64);
                        let _ = writeln!(
                            lines,
                            "{{\"INSTRUCTION\":\"MEMORY\",\"NAME\":\"{name}\",\"MEMORY\":\"{bytes}\"}}"
                        );
                        let _ =
                            writeln!(lines, "{{\"INSTRUCTION\":\"ALIAS\",\"NAME\":\"{name}\",\"ALIAS\":\"{alias}\"}}");
                        format!("\"{name}\"")
                    })
                    .collect();
                let args: Vec<String> = args.iter().map(|a| format!("\"{}\"", a.name)).collect();
                let time: u32 = rng.random_range(0..100);
                let _ = writeln!(
                    text,
                    "{{\"INSTRUCTION\":\"CALL\",\"NAME\":\"op\",\"ARGS\":[{}],\"RESULT\":[{}],\"TIME\":\"{time}\"}}",
                    args.join(","),
                    results.join(",")
                );
                text.push_str(&lines);
            }
        }
        while held.len() > 12 {
            let gone = held.swap_remove(rng.random_range(0..held.len()));
            let _ = writeln!(text, "{{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"{}\"}}", gone.name);
        }
    }
    OpLog::parse(&text, Path::new("random")).expect("the generator writes valid logs")
}
