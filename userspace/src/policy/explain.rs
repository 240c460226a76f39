//! A plan in words, for `--dry-run`.

use std::fmt::{self, Write};

use super::{HeldBack, Move, Plan, Reason};
use crate::units::show_bytes;

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hot => "hot on a lower tier",
            Self::MakeRoom => "cold, and something hotter needs its place",
            Self::Headroom => "cold, and free memory is under the headroom",
            Self::Drain => "its node is being drained",
            Self::Budget => "over what its job may have in DRAM",
            Self::Spread => "used so much that both tiers together are faster",
        })
    }
}

impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRoom => "no room, and nothing there is cold enough to leave",
            Self::PingPong => "moved the other way a short while ago",
            Self::Unmovable => "pinned, or refused too often",
            Self::Unproven => "looked at too few times to judge",
            Self::Budget => "over this decision's budget; looked at again next time",
            Self::Spread => "the top tier serves as much as it should",
        })
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pid {} {}: {} from node {} to node {}, heat {:.2}: {}",
            self.pid,
            self.range,
            show_bytes(self.bytes),
            self.from,
            self.to,
            self.heat,
            self.reason
        )
    }
}

/// The plan for people: a line for each move with its reason, then what was held back and why.
pub fn explain(plan: &Plan) -> String {
    let bytes = plan.moves.iter().map(|step| step.bytes).sum();
    let mut text = format!("plan {}: {} moves, {}\n", plan.id, plan.moves.len(), show_bytes(bytes));
    for (number, step) in plan.moves.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}. {step}", number + 1);
    }
    for (cause, bytes) in &plan.held_back {
        let _ = writeln!(text, "  held back {}: {cause}", show_bytes(*bytes));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::units::{BLOCK, NodeId, Pid, Range};

    #[test]
    fn each_move_and_each_cause_has_a_line() {
        let step = Move {
            pid: Pid(7),
            range: Range::new(BLOCK, 2 * BLOCK),
            from: NodeId(2),
            to: NodeId(0),
            bytes: BLOCK,
            reason: Reason::Hot,
            heat: 0.75,
        };
        let plan = Plan { id: 3, moves: vec![step], held_back: BTreeMap::from([(HeldBack::PingPong, BLOCK)]) };
        assert_eq!(
            explain(&plan),
            "plan 3: 1 moves, 2.0 MiB\n  \
             1. pid 7 0x200000-0x400000: 2.0 MiB from node 2 to node 0, heat 0.75: hot on a lower tier\n  \
             held back 2.0 MiB: moved the other way a short while ago\n"
        );
    }
}
