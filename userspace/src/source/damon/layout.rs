//! Which of DAMON's targets holds which regions, so that little is written when a job's memory changes.
//!
//! The kernel makes all region files of a target anew when their number changes, and writing them is most of what a change
//! costs. A process may be several targets, though, and with `fvaddr` a target may have no regions. So (ours) what a job
//! has more than before becomes a target of its own, in one of [`SPARES`] empty ones; a target of which regions are gone
//! gives the others back. When no empty one is left, each process is one target again.

use std::collections::BTreeMap;

use super::grid::Target;

/// Empty targets to start with, beside one for each process.
pub const SPARES: usize = 8;

/// The regions that are `wanted`, arranged so that most of `before` stays as it is, with `spares` empty targets to start
/// with. Regions are the same if they start at the same address.
pub fn lay(before: &[Target], wanted: &[Target], spares: usize) -> Vec<Target> {
    match wanted {
        [first, ..] if spares > 0 => fill(before, wanted).unwrap_or_else(|| {
            let empty = Target { pid: first.pid, ranges: Vec::new() };
            wanted.iter().cloned().chain(std::iter::repeat_n(empty, spares)).collect()
        }),
        _ => wanted.to_vec(),
    }
}

fn fill(before: &[Target], wanted: &[Target]) -> Option<Vec<Target>> {
    let of =
        |target: &Target| target.ranges.iter().map(|range| ((target.pid, range.start), *range)).collect::<Vec<_>>();
    let mut left: BTreeMap<_, _> = wanted.iter().flat_map(of).collect();
    let mut laid: Vec<Target> = Vec::new();
    for target in before {
        let found = target.ranges.iter().map(|range| left.get(&(target.pid, range.start)).copied());
        let ranges = found.collect::<Option<Vec<_>>>().unwrap_or_default();
        for range in &ranges {
            left.remove(&(target.pid, range.start));
        }
        // The kernel refuses a target without a process.
        let pid = if wanted.iter().any(|wanted| wanted.pid == target.pid) { target.pid } else { wanted[0].pid };
        laid.push(Target { pid, ranges });
    }
    for Target { pid, .. } in wanted {
        let mut ranges: Vec<_> = left.range((*pid, 0)..=(*pid, u64::MAX)).map(|(_, range)| *range).collect();
        if !ranges.is_empty() {
            let empty = laid.iter_mut().filter(|target| target.ranges.is_empty());
            let empty = empty.min_by_key(|target| target.pid != *pid)?;
            empty.pid = *pid;
            empty.ranges.append(&mut ranges);
        }
    }
    Some(laid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::units::{Pid, Range};

    fn target(pid: u32, ranges: &[(u64, u64)]) -> Target {
        Target { pid: Some(Pid(pid)), ranges: ranges.iter().map(|&(start, end)| Range::new(start, end)).collect() }
    }

    /// All that the targets of one process hold.
    fn held(laid: &[Target], pid: u32) -> Vec<Range> {
        let mut held: Vec<Range> = laid
            .iter()
            .filter(|target| target.pid == Some(Pid(pid)))
            .flat_map(|target| target.ranges.clone())
            .collect();
        held.sort();
        held
    }

    #[test]
    fn what_is_more_goes_into_an_empty_target_and_what_is_longer_stays_where_it_is() {
        let wanted = [target(1, &[(0, 4), (4, 6)]), target(2, &[(0, 4)])];
        let first = lay(&[], &wanted, 2);
        assert_eq!(first, [wanted[0].clone(), wanted[1].clone(), target(1, &[]), target(1, &[])]);
        let more = [target(1, &[(0, 4), (4, 8), (8, 9)]), target(2, &[(0, 4), (12, 16)])];
        let laid = lay(&first, &more, 2);
        let wanted = [target(1, &[(0, 4), (4, 8)]), more[1].clone(), target(1, &[(8, 9)]), target(1, &[])];
        assert_eq!(laid[0], wanted[0]);
        assert_eq!(laid[1], target(2, &[(0, 4)]));
        assert_eq!((held(&laid, 1), held(&laid, 2)), (more[0].ranges.clone(), more[1].ranges.clone()));
    }

    #[test]
    fn what_is_gone_takes_its_target_along_and_the_rest_finds_a_place() {
        let before = lay(&[], &[target(1, &[(0, 4), (4, 8)]), target(2, &[(0, 4)])], 1);
        let wanted = [target(1, &[(4, 8)])];
        let laid = lay(&before, &wanted, 1);
        assert_eq!(laid, [target(1, &[(4, 8)]), target(1, &[]), target(1, &[])]);
    }

    #[test]
    fn without_an_empty_one_it_begins_anew_and_without_spares_always() {
        let mut laid = lay(&[], &[target(1, &[(0, 1)])], 2);
        for end in 2..6 {
            let wanted: Vec<(u64, u64)> = (0..end).map(|block| (block, block + 1)).collect();
            laid = lay(&laid, &[target(1, &wanted)], 2);
            assert_eq!((held(&laid, 1).len() as u64, laid.len()), (end, 3));
        }
        assert_eq!(laid.iter().filter(|target| target.ranges.is_empty()).count(), 1, "anew at 4, one more at 5");
        assert_eq!(lay(&laid, &[target(1, &[(3, 4)])], 0), [target(1, &[(3, 4)])]);
        assert_eq!(lay(&laid, &[], 2), []);
    }
}
