//! Single pages: where a block is hardly used but for some hot pages ([`crate::hotness::scattered`]), those move and the
//! block stays. They are few bytes, each with the use of a whole block's page, so they come first, and where no more is
//! free than the headroom they may take half of it: it is restored from what is cold. They wait where the top tier serves
//! all that it should.

use super::{HeldBack, Move, Planner, Reason, signed};
use crate::{
    hotness::{Region, scattered::runs},
    units::{BLOCK, NodeId, Range},
};

/// What each of these pages is taken to be used: every look found it accessed.
const HEAT: f32 = 1.0;

impl Planner<'_> {
    pub(super) fn single_pages(&mut self) {
        if self.rule.gives_back || self.balance.is_some() {
            return;
        }
        for region in &self.view.regions {
            let Some(pages) = &region.pages else { continue };
            let lower = self.tiers.lower.iter().filter_map(|node| Some((*region.on.get(&node.id)?, node.id)));
            let Some((_, from)) = lower.max() else { continue };
            let runs = runs(region.range.start / BLOCK, pages, region.range);
            self.take_up(region, from, runs);
        }
    }

    fn take_up(&mut self, region: &Region, from: NodeId, runs: Vec<Range>) {
        let bytes: u64 = runs.iter().map(Range::bytes).sum();
        if bytes == 0 || region.unmovable > 0 {
            return;
        }
        if bytes > self.budget {
            return self.hold_back(HeldBack::Budget, bytes);
        }
        let room = |to: &NodeId| {
            let headroom = self.tiers.top.iter().find(|node| node.id == *to).map_or(0, |node| node.headroom);
            self.room.get(to).copied().unwrap_or(i64::MIN).saturating_add(signed(headroom / 2))
        };
        let Some(to) = self.tiers.top_for(region.pid, from).into_iter().find(|to| room(to) >= signed(bytes)) else {
            return self.hold_back(HeldBack::NoRoom, bytes);
        };
        *self.room.entry(to).or_default() -= signed(bytes);
        if let Some(lasting) = self.lasting.get_mut(&to) {
            *lasting -= signed(bytes);
        }
        self.budget -= bytes;
        self.moved.insert((region.pid, region.range));
        let step = |range: Range| Move {
            pid: region.pid,
            range,
            from,
            to,
            bytes: range.bytes(),
            reason: Reason::Hot,
            heat: HEAT,
        };
        self.moves.extend(runs.into_iter().map(step));
    }
}
