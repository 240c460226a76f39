//! How near the learned period comes to the true one, on a job whose steps are known.

use super::{Learner, Step};
use crate::workload::Workload;

/// Steps longer than the median by this are broken by an evaluation.
const BROKEN: f64 = 1.35;

/// What a learner of `job` says after each interval.
pub fn learned(workload: &Workload, job: u32) -> Vec<Option<Step>> {
    let mut learner = Learner::default();
    let step = |(at, touches): (usize, &Vec<crate::workload::Touch>)| {
        let own = touches.iter().filter(|touch| touch.heat > 0.0).map(|touch| &workload.regions[touch.region]);
        let own = own.filter(|region| region.job == job).map(|region| region.start);
        learner.observe((at as u64 + 1) * workload.interval, workload.interval, own);
        learner.step()
    };
    workload.touches.iter().enumerate().map(step).collect()
}

/// The learned period at the beginning of each step of `job`, the second one first, over the mean of the steps up to
/// there, those that an evaluation broke left out; `None` while no period is known.
pub fn ratios(workload: &Workload, job: u32) -> Vec<Option<f64>> {
    let (says, starts) = (learned(workload, job), &workload.steps[job as usize]);
    let length = |pair: &[u64]| (pair[1] - pair[0]) as f64;
    let longest = BROKEN * median(starts.windows(2).map(length)).unwrap_or(0.0);
    let ratio = |step: usize| {
        let plain: Vec<f64> = starts[..=step].windows(2).map(length).filter(|length| *length < longest).collect();
        let mean = plain.iter().sum::<f64>() / plain.len() as f64;
        let at = (starts[step] / workload.interval) as usize;
        says[at.min(says.len() - 1)].map(|says| says.period as f64 / mean)
    };
    (1..starts.len()).map(ratio).collect()
}

/// The middle value, the upper one of two; `None` of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
