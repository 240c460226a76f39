//! Whether a region is streamed or accessed at random, from accessed bits and counts together.
//!
//! **Rule** (ours). A look finds a page accessed with the chance `h = 1 - exp(-v)`, with `v` visits of the page between
//! two looks ([`expected_heat`](crate::workload::expected_heat)). A stream visits a page once for all of its 64 lines, a
//! random access once for each line, so the lines a visit tell the two apart:
//!
//! ```text
//! v = -ln(1 - h) · looks · pages        stream where lines / v ≥ 8: the middle of 1 and 64 in ratio
//! ```
//!
//! A heat near 1 only says that there were many visits. If a stream of so many lines would not have shown so high a
//! heat, they were at random; if it would, the interval says nothing. Lines and visits are means over the intervals with
//! accesses, in which the newest weighs an eighth.

use crate::workload::{LINE, PAGE, Pattern, SAMPLES};

const NEWEST: f32 = 0.125;
/// Lines a visit from which accesses are a stream.
const STREAM: f32 = 8.0;
/// Heat from which visits cannot be told.
const MANY: f32 = 0.9;

/// What was seen of the pattern.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence {
    lines: f32,
    visits: f32,
}

impl Evidence {
    /// Takes in an interval that found the share `heat` accessed, and lines a page.
    #[inline]
    pub fn observe(&mut self, heat: f32, lines_a_page: f32) {
        if heat <= 0.0 || lines_a_page <= 0.0 {
            return;
        }
        let visits = if heat < MANY {
            -(1.0 - heat).ln() * SAMPLES as f32
        } else if lines_a_page < (PAGE / LINE * u64::from(SAMPLES)) as f32 {
            lines_a_page
        } else {
            return;
        };
        let weight = if self.lines == 0.0 { 1.0 } else { NEWEST };
        self.lines += weight * (lines_a_page - self.lines);
        self.visits += weight * (visits - self.visits);
    }

    /// What it looks like; a stream as long as nothing was seen.
    #[inline]
    pub fn pattern(&self) -> Pattern {
        if self.lines >= STREAM * self.visits { Pattern::Stream } else { Pattern::Random }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{self, Spec};

    #[test]
    fn it_is_told_apart_on_every_generator_from_sampled_looks() {
        for generator in &generate::ALL {
            let workload = generator.make(&Spec { steps: 10, ..Spec::default() });
            let mut seen = vec![Evidence::default(); workload.regions.len()];
            for touch in workload.touches.iter().flatten() {
                let pages = (workload.regions[touch.region].bytes / PAGE) as f32;
                seen[touch.region].observe(touch.heat, touch.lines() as f32 / pages);
            }
            let used = workload.regions.iter().zip(&seen).filter(|(_, seen)| seen.lines > 0.0);
            let (right, wrong): (Vec<_>, Vec<_>) = used.partition(|(region, seen)| region.pattern == seen.pattern());
            let share = right.len() as f64 / (right.len() + wrong.len()) as f64;
            assert!(share >= 0.9, "{}: {share}", generator.name);
        }
    }

    #[test]
    fn heat_near_one_tells_random_from_nothing() {
        let mut seen = Evidence::default();
        seen.observe(1.0, 1e6);
        assert_eq!(seen.pattern(), Pattern::Stream, "as good as nothing seen");
        seen.observe(1.0, 300.0);
        assert_eq!(seen.pattern(), Pattern::Random);
    }
}
