//! What is remembered of one block, and how evidence changes it.
//!
//! Heat is an exponentially weighted mean over time of the share of samples that found the block accessed:
//!
//! ```text
//! keep = 2^(-dt / half_life)            dt: seconds this aggregation stands for
//! mass' = mass · keep + (1 - keep)      evidence so far, 0 to 1
//! heat' = heat + (w - heat) · (1 - keep) / mass'
//! ```
//!
//! Weighing by time and not by count makes unequal aggregation intervals right. Dividing by the mass makes the first
//! aggregations a plain mean instead of a slow climb from 0, so a new hot block is as hot as an old one (the bias
//! correction of Kingma and Ba, "Adam", section 3, carried to unequal steps).
//!
//! **Silence.** No evidence is not idleness at first: DAMON looks away while its targets change, and its intervals
//! back off. The last heat is held for [`Decay::silence_s`]; from then on it halves each half-life, as if every sample
//! had found nothing, so what was written once and never looked at again ends cold.

/// The time constants, in seconds.
#[derive(Clone, Debug)]
pub(super) struct Decay {
    pub half_life_s: f64,
    /// What the first aggregation of a block stands for.
    pub nominal_s: f64,
    /// Time without an aggregation after which no monitor is taken to look.
    pub unwatched_s: f64,
    /// How long heat is held without evidence.
    pub silence_s: f64,
    /// A time and what is kept over it: blocks that are looked at together have the same.
    pub last: std::cell::Cell<(f64, f32)>,
}

impl Decay {
    fn keep(&self, seconds: f64) -> f32 {
        if seconds <= 0.0 {
            return 1.0;
        }
        if self.last.get().0.to_bits() != seconds.to_bits() {
            self.last.set((seconds, (-seconds / self.half_life_s).exp2() as f32));
        }
        self.last.get().1
    }
}

/// One block. The default is a block of which nothing was ever heard. Times are milliseconds since the map was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cell {
    heat: f32,
    mass: f32,
    /// The last aggregation; the first touch before there was one.
    at_ms: u64,
    /// The last sign of use; when it was first known before there was one.
    used_ms: u64,
    seen: u32,
    /// Share of the block that devices transferred since the last aggregation.
    transferred: f32,
}

const _: () = assert!(size_of::<Cell>() == 32);

impl Cell {
    pub fn known(&self) -> bool {
        *self != Self::default()
    }

    /// When evidence last spoke of the block.
    pub fn at_ms(&self) -> u64 {
        self.at_ms
    }

    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// Heat at `now_ms`, decayed for silence.
    pub fn heat(&self, now_ms: u64, decay: &Decay) -> f32 {
        self.heat * decay.keep(seconds(self.at_ms, now_ms) - decay.silence_s)
    }

    pub fn idle_s(&self, now_ms: u64) -> f32 {
        if self.known() { seconds(self.used_ms, now_ms) as f32 } else { 0.0 }
    }

    /// One aggregation found `weight` (0 to 1).
    pub fn looked(&mut self, weight: f32, now_ms: u64, decay: &Decay) {
        let weight = weight.max(self.transferred);
        let since = if self.mass == 0.0 { decay.nominal_s } else { seconds(self.at_ms, now_ms) };
        let keep = decay.keep(since.min(decay.silence_s));
        let mass = self.mass * keep + (1.0 - keep);
        let heat = self.heat * decay.keep(since - decay.silence_s);
        if mass > 0.0 {
            self.heat = (heat + (weight - heat) * (1.0 - keep) / mass).clamp(0.0, 1.0);
        }
        if weight > 0.0 || !self.known() {
            self.used_ms = self.used_ms.max(now_ms);
        }
        self.mass = mass.min(1.0);
        self.at_ms = self.at_ms.max(now_ms);
        self.seen = self.seen.saturating_add(1);
        self.transferred = 0.0;
    }

    /// A page fault: used once, at least `floor` hot. It does not count as an aggregation.
    pub fn faulted(&mut self, floor: f32, now_ms: u64, decay: &Decay) {
        let heat = self.heat(now_ms, decay);
        if heat < floor {
            self.heat = floor;
            if self.mass == 0.0 || seconds(self.at_ms, now_ms) > decay.silence_s {
                self.at_ms = self.at_ms.max(now_ms);
            }
        }
        self.used_ms = self.used_ms.max(now_ms);
    }

    /// A device transferred `share` of it. Devices leave no accessed bits, so the aggregation under way would report
    /// the block unused; the transfer is kept for it. Where no monitor looks, the transfer is the evidence.
    pub fn transferred(&mut self, share: f32, now_ms: u64, decay: &Decay) {
        self.transferred = self.transferred.max(share);
        self.used_ms = self.used_ms.max(now_ms);
        if self.mass == 0.0 || seconds(self.at_ms, now_ms) > decay.unwatched_s {
            self.looked(0.0, now_ms, decay);
        }
    }
}

fn seconds(from_ms: u64, to_ms: u64) -> f64 {
    to_ms.saturating_sub(from_ms) as f64 / 1e3
}
