//! What the monitor saw of a job, gathered for who records it. Only while somebody asks.
//!
//! For each block two sums grow: how much of it was looked at, in blocks, and how much of that was found accessed. Two
//! askers do not disturb each other, since each takes the difference to what it was told before.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use super::{Agent, jobs::Job};
use crate::{
    control::{BlockLooks, Looks, ProcessLooks},
    job::{Resident, memory::Memory},
    source::{Touch, TouchKind},
    units::{BLOCK, Pid},
};

/// Who has not asked for so long does not record any more.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Sums of one job.
#[derive(Debug)]
pub(super) struct Gathered {
    since: Instant,
    asked: Instant,
    blocks: BTreeMap<(Pid, u64), (f64, f64)>,
}

impl Gathered {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, asked: now, blocks: BTreeMap::new() }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.asked) > FORGOTTEN
    }

    pub(super) fn add(&mut self, touch: &Touch) {
        let usable = touch.kind == TouchKind::Access && (0.0..=1.0).contains(&touch.weight);
        if !usable || touch.range.bytes() == 0 {
            return;
        }
        for block in touch.range.blocks() {
            let (start, end) = (block * BLOCK, (block + 1).saturating_mul(BLOCK));
            let bytes = touch.range.end.min(end).saturating_sub(touch.range.start.max(start));
            let part = bytes as f64 / BLOCK as f64;
            let sums = self.blocks.entry((touch.pid, block)).or_default();
            *sums = (sums.0 + part, sums.1 + part * f64::from(touch.weight));
        }
    }

    /// The sums of what is resident; what is not is forgotten.
    fn of(&mut self, pid: Pid, residents: &[Resident]) -> Vec<BlockLooks> {
        let mut kept = BTreeMap::new();
        let mut told: Vec<BlockLooks> = Vec::new();
        for resident in residents {
            let block = resident.range.start / BLOCK;
            let sums = self.blocks.get(&(pid, block)).copied().unwrap_or_default();
            let bytes: u64 = resident.on.values().sum();
            match told.last_mut().filter(|last| last.start / BLOCK == block) {
                Some(last) => last.bytes += bytes,
                None => told.push(BlockLooks { start: resident.range.start, bytes, looks: sums.0, found: sums.1 }),
            }
            kept.insert((pid, block), sums);
        }
        self.blocks.retain(|of, _| of.0 != pid);
        self.blocks.append(&mut kept);
        told
    }
}

impl Job {
    /// Takes in what was seen, where somebody asks for it.
    pub(super) fn gather(&mut self, touch: &Touch) {
        if let Some(gathered) = &mut self.gathered {
            gathered.add(touch);
        }
    }

    fn looks(&mut self, memory: &Memory, now: Instant) -> Looks {
        let gathered = self.gathered.get_or_insert_with(|| Gathered::new(now));
        gathered.asked = now;
        let since = now.saturating_duration_since(gathered.since);
        let process = |pid: &Pid| ProcessLooks {
            pid: *pid,
            name: name_of(*pid),
            blocks: gathered.of(*pid, memory.residents_of(*pid)),
        };
        let processes = self.processes.iter().map(process).collect();
        Looks { job: self.id, name: self.asked.name.clone(), since_ms: since.as_millis() as u64, processes }
    }
}

impl Agent {
    /// What the monitor saw of a job since somebody first asked for it.
    pub fn looks(&mut self, id: u64) -> Option<Looks> {
        Some(self.jobs.get_mut(id)?.looks(&self.memory, Instant::now()))
    }

    /// Whether anybody records a job.
    pub(super) fn is_recorded(&self) -> bool {
        self.jobs.iter().any(|job| job.gathered.is_some())
    }
}

fn name_of(pid: Pid) -> String {
    // One that has just ended has none.
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{NodeId, Range};

    #[test]
    fn sums_grow_by_the_part_of_a_block_that_was_looked_at() {
        let now = Instant::now();
        let mut gathered = Gathered::new(now);
        let touch = |start: u64, end: u64, weight: f32, kind| Touch {
            pid: Pid(1),
            range: Range { start, end },
            kind,
            weight,
            at: now,
        };
        gathered.add(&touch(0, 3 * BLOCK / 2, 0.5, TouchKind::Access));
        gathered.add(&touch(0, BLOCK, 1.0, TouchKind::Access));
        gathered.add(&touch(0, BLOCK, 1.0, TouchKind::Fault));
        gathered.add(&touch(0, BLOCK, f32::NAN, TouchKind::Access));
        let resident = |start: u64| Resident {
            pid: Pid(1),
            range: Range { start, end: start + BLOCK / 4 },
            on: [(NodeId(0), BLOCK / 4)].into(),
        };
        let residents = [resident(0), resident(BLOCK / 2), resident(BLOCK), resident(5 * BLOCK)];
        let told = gathered.of(Pid(1), &residents);
        let block = |start, bytes, looks, found| BlockLooks { start, bytes, looks, found };
        let expected =
            [block(0, BLOCK / 2, 2.0, 1.5), block(BLOCK, BLOCK / 4, 0.5, 0.25), block(5 * BLOCK, BLOCK / 4, 0.0, 0.0)];
        assert_eq!(told, expected);
        assert_eq!(gathered.of(Pid(1), &residents[..1])[0].looks, 2.0);
        assert_eq!(gathered.of(Pid(1), &residents)[1].looks, 0.0, "not resident, forgotten");
        assert!(!gathered.is_over(now) && gathered.is_over(now + 2 * FORGOTTEN));
    }
}
