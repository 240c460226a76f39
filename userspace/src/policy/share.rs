//! Whose the top tier is, where several jobs want it: limits in, bytes of DRAM for each job out. Pure, as all of policy.
//!
//! **Rule** (ours). Jobs of higher priority are served first, and within a priority hotter blocks first, each job up to
//! its budget and to what its control groups let it have at all: for one priority without budgets that is the capacity
//! threshold of [`super::hotness`]. What a job already has there counts as `1 + margin` times as hot as it is, so that
//! noise alone takes nothing away. What no hot block wants stays with whom it is, and what is left then is anybody's,
//! in the same order.

use std::collections::BTreeMap;

use super::{Node, Tiers};
pub use crate::config::Limits;
use crate::{
    hotness::HeatView,
    units::{BLOCK, NodeId},
};

/// One job's claim.
pub struct Claim<'a> {
    /// Its memory.
    pub view: &'a HeatView,
    /// What it may have.
    pub limits: &'a Limits,
    /// The nodes that its cpuset allows; `None` is all.
    pub allowed: Option<&'a crate::units::NodeSet>,
    /// The most that its control groups let it have of all nodes together; `None` is any.
    pub ceiling: Option<u64>,
}

/// Bytes of the top tier for each job, in the order of the claims. `margin` is the hysteresis; blocks from `hot` on are
/// those worth promoting.
pub fn split(claims: &[Claim], tiers: &Tiers, hot: f32, margin: f32) -> Vec<u64> {
    let on_top: Vec<u64> = claims.iter().map(|claim| bytes_on(claim.view, &tiers.top)).collect();
    // What is short of the headroom is taken from whoever is served last.
    let (free, kept): (u64, u64) = tiers.top.iter().map(|node| (node.free, node.headroom)).fold((0, 0), add);
    let mut left = (on_top.iter().sum::<u64>() + free).saturating_sub(kept);
    let cap = |claim: &Claim| claim.limits.dram_bytes.unwrap_or(u64::MAX).min(claim.ceiling.unwrap_or(u64::MAX));
    let caps: Vec<u64> = claims.iter().map(cap).collect();
    let mut shares = vec![0u64; claims.len()];
    let mut grant = |job: usize, bytes: u64, shares: &mut Vec<u64>| {
        let bytes = bytes.min(caps[job].saturating_sub(shares[job])).min(left);
        shares[job] += bytes;
        left -= bytes;
    };
    let mut order: Vec<(i32, f32, usize, u64)> = Vec::new();
    for (job, claim) in claims.iter().enumerate() {
        for region in claim.view.regions.iter().filter(|region| region.heat >= hot) {
            let here: u64 = tiers.top.iter().filter_map(|node| region.on.get(&node.id)).sum();
            let below: u64 = tiers.lower.iter().filter_map(|node| region.on.get(&node.id)).sum();
            order.push((claim.limits.priority, region.heat * (1.0 + margin), job, here));
            order.push((claim.limits.priority, region.heat, job, below));
        }
    }
    order.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)));
    order.into_iter().for_each(|(_, _, job, bytes)| grant(job, bytes, &mut shares));
    let mut by_priority: Vec<usize> = (0..claims.len()).collect();
    by_priority.sort_by_key(|job| std::cmp::Reverse(claims[*job].limits.priority));
    for job in &by_priority {
        grant(*job, on_top[*job].saturating_sub(shares[*job]), &mut shares);
    }
    for job in by_priority {
        grant(job, u64::MAX, &mut shares);
    }
    shares
}

/// The tiers as one job may use them: room up to its share of the top tier and to its limit below, on the nodes that it
/// is allowed. Over its share there is less than the headroom free for it, so that it gives back.
pub fn tiers_of(claim: &Claim, share: u64, tiers: &Tiers) -> Tiers {
    let mut own = tiers.clone();
    if let Some(allowed) = claim.allowed {
        own.top.retain(|node| allowed.contains(node.id));
        own.lower.retain(|node| allowed.contains(node.id));
    }
    let on_top = bytes_on(claim.view, &own.top);
    match share.checked_sub(on_top) {
        Some(room) => bound(&mut own.top, room),
        None => take_back(&mut own.top, on_top - share, claim.view),
    }
    if let Some(limit) = claim.limits.cxl_bytes {
        let room = limit.saturating_sub(bytes_on(claim.view, &own.lower));
        bound(&mut own.lower, room);
    }
    own
}

/// Bytes of the top tier that the job holds beyond its share.
pub fn excess(claim: &Claim, share: u64, tiers: &Tiers) -> u64 {
    bytes_on(claim.view, &tiers.top).saturating_sub(share)
}

/// Whether that is a block or more.
pub fn is_over(claim: &Claim, share: u64, tiers: &Tiers) -> bool {
    excess(claim, share, tiers) >= BLOCK
}

/// At most `room` bytes over the headroom on all of `nodes`.
fn bound(nodes: &mut [Node], mut room: u64) {
    for node in nodes {
        let open = node.free.saturating_sub(node.headroom).min(room);
        room -= open;
        // A node that is short already keeps being short: that is everybody's matter.
        node.free = node.free.min(node.headroom + open);
    }
}

/// Lacks `bytes` in all, each node at most what the job has there.
fn take_back(nodes: &mut [Node], mut bytes: u64, view: &HeatView) {
    let mut on: BTreeMap<NodeId, u64> = BTreeMap::new();
    for (node, bytes) in view.regions.iter().flat_map(|region| &region.on) {
        *on.entry(*node).or_default() += bytes;
    }
    for node in nodes {
        let part = bytes.min(on.get(&node.id).copied().unwrap_or(0));
        bytes -= part;
        // The policy frees what is short and an eighth of the headroom: together, this part.
        (node.free, node.headroom) = (0, part / 9 * 8);
    }
}

fn add(sum: (u64, u64), one: (u64, u64)) -> (u64, u64) {
    (sum.0 + one.0, sum.1 + one.1)
}

fn bytes_on(view: &HeatView, nodes: &[Node]) -> u64 {
    let on = |on: &BTreeMap<NodeId, u64>| nodes.iter().filter_map(|node| on.get(&node.id)).sum::<u64>();
    view.regions.iter().map(|region| on(&region.on)).sum()
}

#[cfg(test)]
#[path = "share_tests.rs"]
mod tests;
