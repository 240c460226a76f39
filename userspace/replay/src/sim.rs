//! A policy against a workload, interval by interval, on a virtual clock.
//!
//! In each interval dead regions leave, the moves that the policy decided on after the last one are made, new regions
//! are placed, and the accesses are priced by where their bytes are. A move that finds too little room is cut short,
//! and the rest counted.
//!
//! The recorded length of an interval is its length with all memory on the top tier: what that memory would take is
//! replaced by what it takes ([`Costs::memory_ns`]), the rest is the job's own work. Moves add their whole time.

use tensortier_model::{Bytes, Clock, Nanos, VirtualClock};

use crate::{
    cost::{Costs, Level, Traffic},
    policy::{Load, Move, Policy, Seen, View},
    workload::{Touch, Workload},
};

/// One interval's account.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Modelled length, moves included.
    pub time_ns: f64,
    /// Accesses by the additive prices.
    pub access_ns: f64,
    /// Moves by the additive prices.
    pub move_ns: f64,
    /// Bytes promoted.
    pub promoted: Bytes,
    /// Bytes demoted.
    pub demoted: Bytes,
    /// Bytes asked for that found no room.
    pub refused: Bytes,
    /// Lines accessed.
    pub lines: f64,
    /// Of them on the top tier.
    pub top_lines: f64,
}

/// What a policy came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Each interval's account.
    pub intervals: Vec<Interval>,
    /// Length of an interval as recorded.
    recorded: Nanos,
}

/// Sums over some intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Accesses and moves by the additive prices: what an offline optimum minimises.
    pub cost_ns: f64,
    /// Modelled length.
    pub time_ns: f64,
    /// Bytes promoted and demoted.
    pub moved: Bytes,
    /// Share of the lines that the top tier served; 1 where there were none.
    pub top_share: f64,
}

impl Run {
    /// Sums from the interval `from` on.
    pub fn totals(&self, from: usize) -> Totals {
        let part = self.intervals.get(from..).unwrap_or_default();
        let sum = |of: fn(&Interval) -> f64| part.iter().map(of).sum::<f64>();
        let lines = sum(|interval| interval.lines);
        Totals {
            cost_ns: sum(|interval| interval.access_ns + interval.move_ns),
            time_ns: sum(|interval| interval.time_ns),
            moved: part.iter().map(|interval| interval.promoted + interval.demoted).sum(),
            top_share: if lines > 0.0 { sum(|interval| interval.top_lines) / lines } else { 1.0 },
        }
    }

    /// Modelled length of the steps that begin at `starts` (recorded times, the last one the end).
    pub fn step_ns(&self, starts: &[Nanos]) -> Vec<f64> {
        let mut ends = vec![0.0];
        for interval in &self.intervals {
            ends.push(ends[ends.len() - 1] + interval.time_ns);
        }
        let modelled = |at: Nanos| {
            let interval = ((at / self.recorded) as usize).min(self.intervals.len());
            let within = at.saturating_sub(interval as Nanos * self.recorded) as f64 / self.recorded as f64;
            ends[interval] + self.intervals.get(interval).map_or(0.0, |interval| interval.time_ns * within)
        };
        starts.windows(2).map(|pair| modelled(pair[1]) - modelled(pair[0])).collect()
    }
}

/// Runs `policy` with `capacity` bytes of the top tier.
pub fn run(workload: &Workload, costs: &Costs, capacity: Bytes, policy: &mut dyn Policy) -> Run {
    let mut machine = Machine::new(workload, costs, capacity);
    let intervals = (0..workload.intervals()).map(|at| machine.interval(at, policy)).collect();
    Run { intervals, recorded: workload.interval.max(1) }
}

struct Machine<'a> {
    workload: &'a Workload,
    costs: &'a Costs,
    capacity: Bytes,
    free: Bytes,
    /// Regions born and regions that die in each interval.
    born: Vec<Vec<usize>>,
    dies: Vec<Vec<usize>>,
    seen: Vec<Seen>,
    clock: VirtualClock,
    /// What was decided on after the last interval.
    decided: Vec<Move>,
}

impl<'a> Machine<'a> {
    fn new(workload: &'a Workload, costs: &'a Costs, capacity: Bytes) -> Self {
        let (mut born, mut dies) = (vec![Vec::new(); workload.intervals()], vec![Vec::new(); workload.intervals()]);
        for (index, region) in workload.regions.iter().enumerate().filter(|(_, region)| region.born < region.dies) {
            if let Some(at) = born.get_mut(region.born) {
                at.push(index);
            }
            if let Some(at) = dies.get_mut(region.dies) {
                at.push(index);
            }
        }
        let seen = vec![Seen::default(); workload.regions.len()];
        let (clock, decided) = (VirtualClock::default(), Vec::new());
        Self { workload, costs, capacity, free: capacity, born, dies, seen, clock, decided }
    }

    fn interval(&mut self, at: usize, policy: &mut dyn Policy) -> Interval {
        for &region in &self.dies[at] {
            self.free += self.seen[region].top;
            self.seen[region] = Seen::default();
        }
        let mut account = Interval::default();
        for step in std::mem::take(&mut self.decided) {
            self.relocate(step, &mut account);
        }
        for &region in &self.born[at] {
            let of = &self.workload.regions[region];
            let mut new = Seen { alive: true, job: of.job, start: of.start, bytes: of.bytes, ..Seen::default() };
            new.top = policy.place(region, &new, self.free).min(of.bytes).min(self.free);
            self.free -= new.top;
            self.seen[region] = new;
        }
        let touches = &self.workload.touches[at];
        let traffic = self.access(touches, &mut account);
        let interval_ns = self.workload.interval as f64;
        let (memory, ideal) =
            (self.costs.memory_ns(&traffic, interval_ns), self.costs.memory_ns(&self.all_on_top(touches), interval_ns));
        account.time_ns = (interval_ns - ideal).max(0.0) + memory + account.move_ns;
        let tiers = [Level::Top, Level::Lower].map(|level| Load {
            lines: traffic.lines(level),
            latency_ns: self.costs.loaded_latency_ns(level, &traffic, interval_ns),
        });
        self.clock.advance(account.time_ns as Nanos);
        self.decided = policy.decide(&View {
            now: self.clock.now(),
            interval: account.time_ns as Nanos,
            capacity: self.capacity,
            regions: &self.seen,
            tiers,
        });
        for touch in touches {
            if let Some(seen) = self.seen.get_mut(touch.region) {
                (seen.heat, seen.lines) = (0.0, 0);
            }
        }
        account
    }

    fn access(&mut self, touches: &[Touch], account: &mut Interval) -> Traffic {
        let mut traffic = Traffic::default();
        for touch in touches {
            // What a trace says of a region that does not live is nobody's memory.
            let Some(seen) = self.seen.get_mut(touch.region).filter(|seen| seen.alive) else { continue };
            let pattern = self.workload.regions[touch.region].pattern;
            (seen.heat, seen.lines) = (touch.heat, touch.lines());
            let share = if seen.bytes == 0 { 1.0 } else { seen.top as f64 / seen.bytes as f64 };
            traffic.add(pattern, touch.read, touch.written, share);
            let price = |level, share: f64| {
                self.costs.access_ns(level, pattern, touch.read as f64 * share, touch.written as f64 * share)
            };
            account.access_ns += price(Level::Top, share) + price(Level::Lower, 1.0 - share);
            account.lines += touch.lines() as f64;
            account.top_lines += touch.lines() as f64 * share;
        }
        traffic
    }

    fn all_on_top(&self, touches: &[Touch]) -> Traffic {
        let mut traffic = Traffic::default();
        for touch in touches.iter().filter(|touch| self.seen.get(touch.region).is_some_and(|seen| seen.alive)) {
            traffic.add(self.workload.regions[touch.region].pattern, touch.read, touch.written, 1.0);
        }
        traffic
    }

    fn relocate(&mut self, step: Move, account: &mut Interval) {
        let Some(seen) = self.seen.get_mut(step.region).filter(|seen| seen.alive) else { return };
        let wanted = step.top.min(seen.bytes);
        if wanted < seen.top {
            let bytes = seen.top - wanted;
            self.free += bytes;
            account.demoted += bytes;
            account.move_ns += self.costs.move_ns(bytes, Level::Lower);
            seen.top = wanted;
        } else {
            let bytes = (wanted - seen.top).min(self.free);
            account.refused += wanted - seen.top - bytes;
            self.free -= bytes;
            account.promoted += bytes;
            account.move_ns += self.costs.move_ns(bytes, Level::Top);
            seen.top += bytes;
        }
    }
}

#[cfg(test)]
#[path = "sim_tests.rs"]
mod tests;
