//! Jobs whose accesses are drawn at random, and a hot set that moves.

use rand::{RngExt, seq::SliceRandom};

use super::{Maker, timeline::Passes};
use crate::workload::Pattern;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 256 * MIB;
const REGIONS: usize = 64;

/// Cumulative chances of `count` things, the i-th most popular in proportion to `i^-exponent`, in random places.
fn zipf(maker: &mut Maker, count: usize, exponent: f64) -> Vec<f64> {
    let mut weights: Vec<f64> = (1..=count).map(|rank| (rank as f64).powf(-exponent)).collect();
    weights.shuffle(&mut maker.random);
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    weights.iter().map(|weight| (sum + weight / total, sum += weight / total).0).collect()
}

fn draw(maker: &mut Maker, cumulative: &[f64]) -> usize {
    let at: f64 = maker.random.random();
    cumulative.partition_point(|sum| *sum <= at).min(cumulative.len() - 1)
}

/// A table of 64 parts, looked up and updated at random: 2,048 bags of lookups a second, zipf with exponent 1 over the
/// parts. Mean step: 10 s.
pub fn embedding(maker: &mut Maker) {
    let table = maker.timeline.regions(0, REGIONS, SIZE, Pattern::Random);
    let chances = zipf(maker, REGIONS, 1.0);
    let mut now = 0.0;
    for _ in 0..maker.spec.steps {
        let length = 10.0 * maker.factor();
        maker.timeline.step(0, now);
        for second in 0..10 {
            let (from, to) = (now + length * f64::from(second) / 10.0, now + length * f64::from(second + 1) / 10.0);
            let mut bags = [0u32; REGIONS];
            (0..2048).for_each(|_| bags[draw(maker, &chances)] += 1);
            for (&region, &bags) in table.iter().zip(&bags) {
                // A bag is 1/512 of the lines of a part, half of them written back.
                let passes = f64::from(bags) / 512.0;
                maker.timeline.touch(region, from, to, Passes { read: passes, written: passes / 2.0 });
            }
        }
        now += length;
    }
    maker.timeline.step(0, now);
}

/// 64 experts of which each second takes 8 draws; all are equally likely.
pub fn experts_uniform(maker: &mut Maker) {
    experts(maker, 0.0);
}

/// The same with chances in proportion to `rank^-1`.
pub fn experts_zipf(maker: &mut Maker) {
    experts(maker, 1.0);
}

/// What is drawn is read once forwards and, in the second half of the step, updated. Mean step: 12 s.
fn experts(maker: &mut Maker, exponent: f64) {
    let experts = maker.timeline.regions(0, REGIONS, SIZE, Pattern::Stream);
    let chances = zipf(maker, REGIONS, exponent);
    let mut now = 0.0;
    for _ in 0..maker.spec.steps {
        let length = 12.0 * maker.factor();
        maker.timeline.step(0, now);
        for second in 0..6 {
            for _ in 0..8 {
                let expert = experts[draw(maker, &chances)];
                let at = |second: i32| now + length * f64::from(second) / 12.0;
                maker.timeline.touch(expert, at(second), at(second + 1), Passes { read: 1.0, written: 0.0 });
                maker.timeline.touch(expert, at(11 - second), at(12 - second), Passes { read: 1.0, written: 1.0 });
            }
        }
        now += length;
    }
    maker.timeline.step(0, now);
}

/// A quarter of the memory is read at random twenty times a second; every fifth step it is another quarter. Mean step:
/// 12 s.
pub fn rotating(maker: &mut Maker) {
    let regions = maker.timeline.regions(0, REGIONS, SIZE, Pattern::Random);
    let mut hot: Vec<usize> = Vec::new();
    let mut now = 0.0;
    for step in 0..maker.spec.steps {
        if step % 5 == 0 {
            let mut others: Vec<usize> = regions.iter().copied().filter(|region| !hot.contains(region)).collect();
            others.shuffle(&mut maker.random);
            others.truncate(REGIONS / 4);
            hot = others;
        }
        let length = 12.0 * maker.factor();
        maker.timeline.step(0, now);
        for &region in &hot {
            maker.timeline.touch(region, now, now + length, Passes { read: 6.0 * 12.0, written: 0.0 });
        }
        now += length;
    }
    maker.timeline.step(0, now);
}
