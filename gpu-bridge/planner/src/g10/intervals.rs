//! When tensors live, and when they lie idle.

use super::load::Workload;

/// Kernels during which a tensor must exist: `[birth, death)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// First kernel that reads or writes it.
    pub birth: usize,
    /// The kernel after the last that reads it; after its birth if nothing does.
    pub death: usize,
}

/// Kernels between two uses of a tensor: `[start, end)`, where `end` uses it again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The tensor.
    pub tensor: u32,
    /// First idle kernel.
    pub start: usize,
    /// Kernel of the next use. Below `start` if the interval runs into the next iteration.
    pub end: usize,
    /// Time it lasts, µs.
    pub idle_us: f64,
}

impl Interval {
    /// True if the next use is in the next iteration.
    pub fn wraps(&self) -> bool {
        self.end < self.start
    }

    /// Kernel of the next use, counted on through the next iteration.
    pub fn unwrapped_end(&self, kernels: usize) -> usize {
        if self.wraps() { self.end + kernels } else { self.end }
    }
}

/// Lifetime of every tensor; `None` for globals, which live for ever, and for tensors no kernel uses.
pub fn lifetimes(w: &Workload) -> Vec<Option<Lifetime>> {
    let mut lives: Vec<Option<Lifetime>> = vec![None; w.tensors.len()];
    for (k, kernel) in w.kernels.iter().enumerate() {
        for t in kernel.uses() {
            lives[t as usize].get_or_insert(Lifetime { birth: k, death: k + 1 });
        }
        for &t in &kernel.inputs {
            if let Some(life) = &mut lives[t as usize] {
                life.death = k + 1;
            }
        }
    }
    for t in w.tensors.iter().filter(|t| t.global) {
        lives[t.id as usize] = None;
    }
    lives
}

/// All idle intervals, by tensor and start. Globals are idle across the end of the iteration too; a local that is
/// only written after its last read is not kept for that.
pub fn idle_intervals(w: &Workload, starts_us: &[f64]) -> Vec<Interval> {
    let kernels = w.kernels.len();
    let lives = lifetimes(w);
    let mut uses = vec![Vec::new(); w.tensors.len()];
    for (k, kernel) in w.kernels.iter().enumerate() {
        kernel.uses().for_each(|t| uses[t as usize].push(k));
    }
    let time = |k: usize| starts_us[k % kernels] + starts_us[kernels] * (k / kernels) as f64;
    let mut intervals = Vec::new();
    for t in &w.tensors {
        let uses = &uses[t.id as usize];
        let mut add = |start: usize, end: usize| {
            if start < end {
                let idle_us = time(end) - time(start);
                intervals.push(Interval { tensor: t.id, start: start % kernels, end: end % kernels, idle_us });
            }
        };
        for pair in uses.windows(2) {
            if lives[t.id as usize].is_none_or(|l| pair[1] < l.death) {
                add(pair[0] + 1, pair[1]);
            }
        }
        if let (true, Some(first), Some(last)) = (t.global, uses.first(), uses.last()) {
            add(last + 1, first + kernels);
        }
    }
    intervals
}

/// Start time of every kernel, and the end of the last, µs.
pub fn kernel_starts(w: &Workload) -> Vec<f64> {
    let mut now = 0.0;
    let mut starts = vec![now];
    for k in &w.kernels {
        now += k.time_us;
        starts.push(now);
    }
    starts
}
