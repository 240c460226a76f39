//! Jobs whose steps repeat: the same regions, in the same order, each step.

use super::{Maker, timeline::Passes};
use crate::workload::Pattern;

const MIB: u64 = 1 << 20;
/// Regions are of one size, so that the offline optimum moves whole ones.
const SIZE: u64 = 256 * MIB;

const READ: Passes = Passes { read: 1.0, written: 0.0 };
const WRITE: Passes = Passes { read: 0.0, written: 1.0 };
const UPDATE: Passes = Passes { read: 1.0, written: 1.0 };

/// Touches regions one after the other, evenly over `from` to `to`.
fn sweep(maker: &mut Maker, regions: impl ExactSizeIterator<Item = usize>, from: f64, to: f64, passes: Passes) {
    let each = (to - from) / regions.len().max(1) as f64;
    for (i, region) in regions.enumerate() {
        let start = from + each * i as f64;
        maker.timeline.touch(region, start, start + each, passes);
    }
}

/// Half-precision weights read forwards and backwards, gradients written backwards, then fp32 weights and both moments
/// of Adam read and written once in order. Mean step: 20 s.
pub fn optimizer(maker: &mut Maker) {
    let weights = maker.timeline.regions(0, 8, SIZE, Pattern::Stream);
    let gradients = maker.timeline.regions(0, 8, SIZE, Pattern::Stream);
    let states = maker.timeline.regions(0, 48, SIZE, Pattern::Stream);
    let mut now = 0.0;
    for _ in 0..maker.spec.steps {
        let scale = maker.factor();
        let at = |seconds: f64| now + seconds * scale;
        maker.timeline.step(0, now);
        sweep(maker, weights.iter().copied(), at(0.0), at(3.0), READ);
        sweep(maker, weights.iter().rev().copied(), at(3.0), at(8.0), READ);
        sweep(maker, gradients.iter().rev().copied(), at(3.0), at(8.0), WRITE);
        sweep(maker, gradients.iter().copied(), at(8.0), at(20.0), READ);
        sweep(maker, states.iter().copied(), at(8.0), at(20.0), UPDATE);
        now = at(20.0);
    }
    maker.timeline.step(0, now);
}

/// Sharded weights gathered layer by layer forwards and backwards, gradients reduced into the host, an update at the
/// end. Mean step: 16 s.
pub fn fsdp(maker: &mut Maker) {
    let weights = maker.timeline.regions(0, 16, SIZE, Pattern::Stream);
    let gradients = maker.timeline.regions(0, 16, SIZE, Pattern::Stream);
    let moments = maker.timeline.regions(0, 32, SIZE, Pattern::Stream);
    let mut now = 0.0;
    for _ in 0..maker.spec.steps {
        let scale = maker.factor();
        let at = |seconds: f64| now + seconds * scale;
        maker.timeline.step(0, now);
        sweep(maker, weights.iter().copied(), at(0.0), at(4.0), READ);
        sweep(maker, weights.iter().rev().copied(), at(4.0), at(12.0), READ);
        sweep(maker, gradients.iter().rev().copied(), at(4.0), at(12.0), WRITE);
        sweep(maker, gradients.iter().copied(), at(12.0), at(16.0), READ);
        sweep(maker, weights.iter().copied(), at(12.0), at(16.0), UPDATE);
        sweep(maker, moments.iter().copied(), at(12.0), at(16.0), UPDATE);
        now = at(16.0);
    }
    maker.timeline.step(0, now);
}

/// Each layer's activations are allocated and written forwards, read backwards in the other order, and freed; weights
/// are read both times and updated at the end. Mean step: 20 s.
pub fn activations(maker: &mut Maker) {
    const LAYERS: usize = 16;
    let weights = maker.timeline.regions(0, LAYERS, SIZE, Pattern::Stream);
    let mut now = 0.0;
    for _ in 0..maker.spec.steps {
        let scale = maker.factor();
        let at = |seconds: f64| now + seconds * scale;
        maker.timeline.step(0, now);
        let forward = |layer: usize| at(8.0 * layer as f64 / LAYERS as f64);
        let backward = |layer: usize| at(18.0 - 10.0 * layer as f64 / LAYERS as f64);
        for (layer, &weights) in weights.iter().enumerate() {
            // The caching allocator gives a layer the same addresses in each step.
            let slot = LAYERS + layer;
            let (born, dies) = (forward(layer), backward(layer));
            let activation = maker.timeline.region(0, slot, SIZE, Pattern::Stream, born);
            maker.timeline.touch(weights, born, forward(layer + 1), READ);
            maker.timeline.touch(activation, born, forward(layer + 1), WRITE);
            maker.timeline.touch(weights, backward(layer + 1), dies, READ);
            maker.timeline.touch(activation, backward(layer + 1), dies, READ);
            maker.timeline.free(activation, dies);
        }
        sweep(maker, weights.iter().copied(), at(18.0), at(20.0), UPDATE);
        now = at(20.0);
    }
    maker.timeline.step(0, now);
}

/// Weights read twice and states updated once a step of 15 s; after every fifth step 12 s of validation, which reads
/// the weights and data of its own again and again.
pub fn evaluation(maker: &mut Maker) {
    let weights = maker.timeline.regions(0, 8, SIZE, Pattern::Stream);
    let states = maker.timeline.regions(0, 32, SIZE, Pattern::Stream);
    let held_out = maker.timeline.regions(0, 8, SIZE, Pattern::Stream);
    let mut now = 0.0;
    for step in 0..maker.spec.steps {
        let scale = maker.factor();
        let at = |seconds: f64| now + seconds * scale;
        maker.timeline.step(0, now);
        sweep(maker, weights.iter().copied(), at(0.0), at(2.0), READ);
        sweep(maker, weights.iter().rev().copied(), at(2.0), at(6.0), READ);
        sweep(maker, states.iter().copied(), at(6.0), at(15.0), UPDATE);
        if step % 5 == 4 {
            for pass in 0..4 {
                let (from, to) = (at(15.0 + 3.0 * f64::from(pass)), at(18.0 + 3.0 * f64::from(pass)));
                sweep(maker, weights.iter().copied(), from, to, READ);
                sweep(maker, held_out.iter().copied(), from, to, READ);
            }
            now = at(27.0);
        } else {
            now = at(15.0);
        }
    }
    maker.timeline.step(0, now);
}

/// One job sweeps its optimizer every 20 s; another, of 12 s a step, looks things up at random in a hot quarter of its
/// memory for half of the step and reads all of it in the other half.
pub fn jobs(maker: &mut Maker) {
    let states = maker.timeline.regions(0, 32, SIZE, Pattern::Stream);
    let (hot, rest) =
        (maker.timeline.regions(1, 8, SIZE, Pattern::Random), maker.timeline.regions(1, 24, SIZE, Pattern::Stream));
    let mut now = 0.0;
    for _ in 0..maker.spec.steps {
        let scale = maker.factor();
        maker.timeline.step(0, now);
        sweep(maker, states.iter().copied(), now + 6.0 * scale, now + 20.0 * scale, UPDATE);
        now += 20.0 * scale;
    }
    maker.timeline.step(0, now);
    let (end, mut now) = (now, 0.0);
    while now < end {
        let scale = maker.factor();
        let at = |seconds: f64| (now + seconds * scale).min(end);
        maker.timeline.step(1, now);
        for &region in &hot {
            maker.timeline.touch(region, at(0.0), at(6.0), Passes { read: 4.0, written: 1.0 });
        }
        sweep(maker, rest.iter().copied(), at(6.0), at(12.0), READ);
        now = at(12.0);
    }
    maker.timeline.step(1, now);
}
