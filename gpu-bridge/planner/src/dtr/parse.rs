//! Reading the log's lines.
//!
//! One JSON object a line, all values strings but for lists. `INSTRUCTION` is one of
//!
//! | instruction | fields | meaning |
//! |---|---|---|
//! | `ANNOTATE` | `ANNOTATION` | `START` begins the step (what stands before it is ignored), `BACKWARD` is a mark |
//! | `CONSTANT` | `NAME` | a tensor that exists before the step; a `MEMORY` line follows |
//! | `CALL` | `NAME`, `ARGS`, `RESULT`, `TIME` | an operator of TIME ns; a `MEMORY` and an `ALIAS` line follow for each result |
//! | `MUTATE` | `NAME`, `ARGS`, `MUTATE`, `TIME` | an operator that overwrites the arguments at these positions |
//! | `MEMORY` | `NAME`, `MEMORY` | bytes of a result |
//! | `ALIAS` | `NAME`, `ALIAS` | the argument whose storage the result shares, or -1 |
//! | `COPY` | `DST`, `SRC` | a second name for a tensor |
//! | `COPY_FROM` | `DST`, `SRC` | a name now means another tensor |
//! | `RELEASE` | `NAME` | the program drops a name; one that was never defined is ignored |
//!
//! A mutation is read as an operator that writes new storages of the same sizes, so that tensors never change.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Deserializer};

use super::log::{CONSTANT, LogError, Op, OpLog, Step, StorageInfo, TensorId, TensorInfo};

#[derive(Deserialize)]
#[serde(tag = "INSTRUCTION", rename_all = "SCREAMING_SNAKE_CASE", rename_all_fields = "SCREAMING_SNAKE_CASE")]
enum Line {
    Annotate {
        annotation: String,
    },
    Constant {
        name: String,
    },
    Memory {
        name: String,
        #[serde(deserialize_with = "number")]
        memory: u64,
    },
    Alias {
        name: String,
        #[serde(deserialize_with = "number")]
        alias: i64,
    },
    Copy {
        dst: String,
        src: String,
    },
    CopyFrom {
        dst: String,
        src: String,
    },
    Release {
        name: String,
    },
    Call {
        name: String,
        args: Vec<String>,
        result: Vec<String>,
        #[serde(deserialize_with = "number")]
        time: u64,
    },
    Mutate {
        name: String,
        args: Vec<String>,
        mutate: Vec<serde_json::Value>,
        #[serde(deserialize_with = "number")]
        time: u64,
    },
}

/// A number, written as one or as a string.
fn number<'de, D: Deserializer<'de>, T: std::str::FromStr>(from: D) -> Result<T, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    parse_number(&value).ok_or_else(|| serde::de::Error::custom(format!("{value} is not a whole number in range")))
}

fn parse_number<T: std::str::FromStr>(value: &serde_json::Value) -> Option<T> {
    match value {
        serde_json::Value::String(s) => s.parse().ok(),
        serde_json::Value::Number(n) => n.to_string().parse().ok(),
        _ => None,
    }
}

/// What the program still holds, while reading.
#[derive(Default)]
struct Reader {
    log: OpLog,
    /// Name to tensor. Names are never forgotten: a later line may release one again.
    names: HashMap<String, TensorId>,
    /// Names in the order of their first definition, for the final outputs.
    order: Vec<String>,
    /// References the program holds to a tensor.
    tensor_refs: Vec<u64>,
    /// References the program holds to a storage.
    storage_refs: Vec<u64>,
    /// Sum of all bytes ever allocated; kept below `i64::MAX` so that no later sum can overflow.
    allocated: u64,
}

impl OpLog {
    /// Reads a log from text; `path` names it in errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, LogError> {
        let mut lines = Lines { path, rest: text.lines().enumerate(), line: 0 };
        let mut reader = Reader::default();
        let started = text.lines().any(|l| l.contains("\"ANNOTATE\"") && l.contains("\"START\""));
        if !started {
            return Err(lines.error("no ANNOTATE line with START: nothing says where the step begins"));
        }
        let mut running = false;
        while let Some(line) = lines.next_line()? {
            match line {
                Line::Annotate { annotation } if annotation == "START" => running = true,
                _ if !running => {}
                line => reader.line(line, &mut lines)?,
            }
        }
        reader.finish();
        Ok(reader.log)
    }
}

/// The lines not yet read.
struct Lines<'a> {
    path: &'a Path,
    rest: std::iter::Enumerate<std::str::Lines<'a>>,
    line: usize,
}

impl Lines<'_> {
    fn next_line(&mut self) -> Result<Option<Line>, LogError> {
        for (i, text) in self.rest.by_ref() {
            self.line = i + 1;
            if !text.trim().is_empty() {
                return serde_json::from_str(text).map(Some).map_err(|e| self.error(&e.to_string()));
            }
        }
        Ok(None)
    }

    fn memory_of(&mut self, wanted: &str) -> Result<u64, LogError> {
        match self.next_line()? {
            Some(Line::Memory { name, memory }) if name == wanted => Ok(memory),
            _ => Err(self.error(&format!("expected the MEMORY line of {wanted}"))),
        }
    }

    fn alias_of(&mut self, wanted: &str) -> Result<i64, LogError> {
        match self.next_line()? {
            Some(Line::Alias { name, alias }) if name == wanted => Ok(alias),
            _ => Err(self.error(&format!("expected the ALIAS line of {wanted}"))),
        }
    }

    fn error(&self, what: &str) -> LogError {
        LogError::Line { path: self.path.to_owned(), line: self.line, what: what.to_owned() }
    }
}

/// Bytes and, for an alias, the input it shares memory with.
struct Part {
    bytes: u64,
    alias: Option<TensorId>,
}

impl Reader {
    fn line(&mut self, line: Line, lines: &mut Lines) -> Result<(), LogError> {
        match line {
            Line::Annotate { .. } => {}
            Line::Constant { name } => {
                let bytes = lines.memory_of(&name)?;
                let out = self.op(CONSTANT, 0, vec![], vec![Part { bytes, alias: None }], lines)?;
                self.define(name, out[0], lines)?;
                self.log.steps.push(Step::Pin(out[0]));
            }
            Line::Call { name, args, result, time } => {
                let inputs = self.tensors(&args, lines)?;
                let mut results = Vec::with_capacity(result.len());
                for r in &result {
                    let bytes = lines.memory_of(r)?;
                    results.push(match lines.alias_of(r)? {
                        -1 => Part { bytes, alias: None },
                        i => {
                            let input = usize::try_from(i).ok().and_then(|i| inputs.get(i).copied());
                            let input = input.ok_or_else(|| {
                                lines.error(&format!("{r} aliases argument {i}, but {name} has {}", inputs.len()))
                            })?;
                            Part { bytes: 0, alias: Some(input) }
                        }
                    });
                }
                let outputs = self.op(&name, time, inputs, results, lines)?;
                for (r, t) in result.into_iter().zip(outputs) {
                    self.define(r, t, lines)?;
                }
            }
            Line::Mutate { name, args, mutate, time } => self.mutate(&name, &args, &mutate, time, lines)?,
            Line::Copy { dst, src } => {
                let t = self.tensor(&src, lines)?;
                self.define(dst, t, lines)?;
                self.acquire(t);
            }
            Line::CopyFrom { dst, src } => {
                let (old, new) = (self.tensor(&dst, lines)?, self.tensor(&src, lines)?);
                self.names.insert(dst.clone(), new);
                self.release(old, &dst, lines)?;
                self.acquire(new);
            }
            Line::Release { name } => {
                if let Some(&t) = self.names.get(&name) {
                    self.release(t, &name, lines)?;
                }
            }
            Line::Memory { name, .. } | Line::Alias { name, .. } => {
                return Err(lines.error(&format!("a line about {name}, which no CONSTANT or CALL line just named")));
            }
        }
        Ok(())
    }

    fn mutate(
        &mut self,
        name: &str,
        args: &[String],
        positions: &[serde_json::Value],
        time: u64,
        lines: &Lines,
    ) -> Result<(), LogError> {
        let inputs = self.tensors(args, lines)?;
        let mut targets = Vec::with_capacity(positions.len());
        let mut results = Vec::with_capacity(positions.len());
        for p in positions {
            let at = parse_number::<usize>(p).filter(|&i| i < args.len() && !targets.contains(&i));
            let at = at.ok_or_else(|| {
                lines.error(&format!("{name} cannot mutate argument {p}: no such one, or named twice"))
            })?;
            targets.push(at);
            let bytes = self.log.storages[self.log.storage_of(inputs[at]) as usize].bytes;
            results.push(Part { bytes, alias: None });
        }
        let outputs = self.op(name, time, inputs, results, lines)?;
        for (at, new) in targets.into_iter().zip(outputs) {
            // Read again for each target: two arguments may be the same name.
            let old = self.tensor(&args[at], lines)?;
            self.names.insert(args[at].clone(), new);
            self.release(old, &args[at], lines)?;
        }
        Ok(())
    }

    /// Adds a call and its results; the program holds one reference to each.
    fn op(
        &mut self,
        name: &str,
        time_ns: u64,
        inputs: Vec<TensorId>,
        results: Vec<Part>,
        lines: &Lines,
    ) -> Result<Vec<TensorId>, LogError> {
        if results.is_empty() {
            return Err(lines.error(&format!("{name} has no result: an operator without one cannot be replayed")));
        }
        let too_large = || lines.error("the sum of all sizes or times exceeds 2^63");
        let log = &mut self.log;
        let id = u32::try_from(log.ops.len()).map_err(|_| lines.error("more than 2^32 operators"))?;
        let mut outputs = Vec::with_capacity(results.len());
        let mut bytes = 0u64;
        for r in results {
            let tensor = u32::try_from(log.tensors.len()).map_err(|_| lines.error("more than 2^32 tensors"))?;
            let storage = match r.alias {
                Some(input) => log.storage_of(input),
                None => {
                    log.storages.push(StorageInfo { bytes: r.bytes, root: tensor });
                    self.storage_refs.push(0);
                    (log.storages.len() - 1) as u32
                }
            };
            self.allocated =
                self.allocated.checked_add(r.bytes).filter(|&b| b <= i64::MAX as u64).ok_or_else(too_large)?;
            bytes += r.bytes;
            log.tensors.push(TensorInfo { op: id, storage, bytes: r.bytes });
            self.tensor_refs.push(1);
            self.storage_refs[storage as usize] += 1;
            outputs.push(tensor);
        }
        log.base_ns = log.base_ns.checked_add(time_ns).filter(|&t| t <= i64::MAX as u64).ok_or_else(too_large)?;
        log.ops.push(Op { name: name.to_owned(), time_ns, inputs, outputs: outputs.clone(), bytes });
        log.steps.push(Step::Run(id));
        Ok(outputs)
    }

    fn define(&mut self, name: String, tensor: TensorId, lines: &Lines) -> Result<(), LogError> {
        if self.names.insert(name.clone(), tensor).is_some() {
            return Err(lines.error(&format!("{name} is defined a second time")));
        }
        self.order.push(name);
        Ok(())
    }

    /// The tensor a name stands for; it must still be held, by this name or by one for the same storage.
    fn tensor(&self, name: &str, lines: &Lines) -> Result<TensorId, LogError> {
        let t = self.names.get(name).copied();
        let t = t.ok_or_else(|| lines.error(&format!("{name} is used but was never defined")))?;
        if self.storage_refs[self.log.storage_of(t) as usize] == 0 {
            return Err(lines.error(&format!("{name} is used after its last reference was released")));
        }
        Ok(t)
    }

    fn tensors(&self, names: &[String], lines: &Lines) -> Result<Vec<TensorId>, LogError> {
        names.iter().map(|n| self.tensor(n, lines)).collect()
    }

    fn acquire(&mut self, t: TensorId) {
        self.tensor_refs[t as usize] += 1;
        self.storage_refs[self.log.storage_of(t) as usize] += 1;
        self.log.steps.push(Step::Acquire(t));
    }

    fn release(&mut self, t: TensorId, name: &str, lines: &Lines) -> Result<(), LogError> {
        if self.tensor_refs[t as usize] == 0 {
            return Err(lines.error(&format!("{name} is released more often than it was taken")));
        }
        self.tensor_refs[t as usize] -= 1;
        self.storage_refs[self.log.storage_of(t) as usize] -= 1;
        self.log.steps.push(Step::Release(t));
        Ok(())
    }

    /// What the program still holds at the end must be in memory then.
    fn finish(&mut self) {
        for name in &self.order {
            let t = self.names[name];
            if self.tensor_refs[t as usize] > 0 {
                self.log.steps.push(Step::Pin(t));
            }
        }
    }
}
