//! Minimum-cost flow through a network whose arcs lead from lower to higher nodes.
//!
//! **Method.** Successive shortest paths with potentials (Jewell 1958; Edmonds and Karp 1972): the flow is pushed along
//! a cheapest path of the residual network until the wanted amount flows. Costs may be negative. Since arcs lead
//! upwards, there is no cycle, and one pass in the order of the nodes gives the first potentials; from then on reduced
//! costs are not negative and Dijkstra's method finds each path. With whole capacities the flow is whole, and it is a
//! minimum among all flows of its amount, fractions included.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Names an arc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArcId(usize);

#[derive(Clone, Copy)]
struct Arc {
    to: usize,
    capacity: i64,
    cost: i64,
}

/// A network. Each arc is followed by its reverse in the list.
#[derive(Default)]
pub struct Network {
    arcs: Vec<Arc>,
    from: Vec<Vec<usize>>,
}

impl Network {
    /// A network of so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self { arcs: Vec::new(), from: vec![Vec::new(); nodes] }
    }

    /// An arc from a lower to a higher node.
    pub fn add(&mut self, from: usize, to: usize, capacity: i64, cost: i64) -> ArcId {
        debug_assert!(from < to, "arcs lead upwards");
        let id = self.arcs.len();
        self.arcs.push(Arc { to, capacity, cost });
        self.arcs.push(Arc { to: from, capacity: 0, cost: -cost });
        self.from[from].push(id);
        self.from[to].push(id + 1);
        ArcId(id)
    }

    /// What flows through an arc.
    pub fn flow(&self, arc: ArcId) -> i64 {
        self.arcs[arc.0 ^ 1].capacity
    }

    /// Sends up to `amount` from the first to the last node, at the least cost. Returns what flows.
    pub fn send(&mut self, amount: i64) -> i64 {
        let Some(sink) = self.from.len().checked_sub(1).filter(|sink| *sink > 0) else { return 0 };
        let mut potential = self.first_potentials();
        let mut sent = 0;
        while sent < amount {
            let (distance, through) = self.cheapest(sink, &potential);
            if distance[sink] == i64::MAX {
                break;
            }
            // The search ended at the sink: every other node is at least as far.
            let far = distance[sink];
            potential.iter_mut().zip(distance).for_each(|(potential, near)| *potential += near.min(far));
            sent += self.push(sink, &through, amount - sent);
        }
        sent
    }

    /// Cost of the cheapest path to each node; 0 for those that no path reaches, which none ever will.
    fn first_potentials(&self) -> Vec<i64> {
        let mut cost = vec![i64::MAX; self.from.len()];
        cost[0] = 0;
        for node in 0..self.from.len() {
            if cost[node] == i64::MAX {
                continue;
            }
            for arc in self.from[node].iter().map(|&id| self.arcs[id]).filter(|arc| arc.capacity > 0) {
                cost[arc.to] = cost[arc.to].min(cost[node] + arc.cost);
            }
        }
        cost.into_iter().map(|cost| if cost == i64::MAX { 0 } else { cost }).collect()
    }

    /// Reduced distances from node 0, up to that of `sink`, and the arc through which each node is reached.
    fn cheapest(&self, sink: usize, potential: &[i64]) -> (Vec<i64>, Vec<usize>) {
        let mut distance = vec![i64::MAX; self.from.len()];
        let mut through = vec![usize::MAX; self.from.len()];
        let mut queue = BinaryHeap::from([Reverse((0, 0))]);
        distance[0] = 0;
        while let Some(Reverse((far, node))) = queue.pop() {
            if node == sink {
                break;
            }
            if far > distance[node] {
                continue;
            }
            for &id in &self.from[node] {
                let arc = self.arcs[id];
                if arc.capacity == 0 {
                    continue;
                }
                let reached = far + arc.cost + potential[node] - potential[arc.to];
                if reached < distance[arc.to] {
                    distance[arc.to] = reached;
                    through[arc.to] = id;
                    queue.push(Reverse((reached, arc.to)));
                }
            }
        }
        (distance, through)
    }

    /// Sends as much as the path to `sink` holds, at most `most`.
    fn push(&mut self, sink: usize, through: &[usize], most: i64) -> i64 {
        let path = || {
            let before = |id: &usize| {
                let node = self.arcs[id ^ 1].to;
                (node != 0).then(|| through[node])
            };
            std::iter::successors(Some(through[sink]), before)
        };
        let amount = path().map(|id| self.arcs[id].capacity).fold(most, i64::min);
        for id in path().collect::<Vec<_>>() {
            self.arcs[id].capacity -= amount;
            self.arcs[id ^ 1].capacity += amount;
        }
        amount
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheaper_way_fills_first_and_a_later_path_may_take_flow_back() {
        // The first path takes 0-1-2-3 (cost -4); the second unit has to undo 1-2.
        let mut network = Network::new(4);
        let arcs = [(0, 1, 1), (0, 2, 2), (1, 2, -6), (1, 3, 2), (2, 3, 1)];
        let ids: Vec<ArcId> = arcs.iter().map(|&(from, to, cost)| network.add(from, to, 1, cost)).collect();
        assert_eq!(network.send(5), 2, "no more than the cut holds");
        let flows: Vec<i64> = ids.iter().map(|&id| network.flow(id)).collect();
        assert_eq!(flows, [1, 1, 0, 1, 1]);
    }

    #[test]
    fn one_unit_takes_the_cheapest_path() {
        let mut network = Network::new(3);
        let direct = network.add(0, 2, 10, 5);
        let (first, second) = (network.add(0, 1, 3, 1), network.add(1, 2, 3, 1));
        assert_eq!(network.send(4), 4);
        assert_eq!((network.flow(first), network.flow(second), network.flow(direct)), (3, 3, 1));
    }

    #[test]
    fn an_empty_network_sends_nothing() {
        assert_eq!(Network::new(0).send(1), 0);
        assert_eq!(Network::new(2).send(1), 0);
    }
}
