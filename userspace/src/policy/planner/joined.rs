//! Neighbouring blocks that move alike, as one range: the mover pays for each call.

use crate::{policy::Move, units::BLOCK};

/// Longest range that neighbours join into.
const JOINED: u64 = 16 * BLOCK;

/// Neighbours of one kind as one range; its heat is the mean by bytes.
pub(super) fn joined(mut moves: Vec<Move>) -> Vec<Move> {
    moves.sort_by_key(|step| (step.pid, step.range));
    let mut out: Vec<Move> = Vec::with_capacity(moves.len());
    for step in moves {
        let kind = |step: &Move| (step.pid, step.from, step.to, step.reason);
        match out.last_mut() {
            Some(last)
                if kind(last) == kind(&step)
                    && last.range.end == step.range.start
                    && last.bytes + step.bytes <= JOINED =>
            {
                let bytes = last.bytes + step.bytes;
                last.heat = (last.heat * last.bytes as f32 + step.heat * step.bytes as f32) / bytes as f32;
                last.bytes = bytes;
                last.range.end = step.range.end;
            }
            _ => out.push(step),
        }
    }
    out
}
