//! Cycles in a directed graph: strongly connected components, and a short
//! cycle in each.

use std::collections::VecDeque;

/// A graph whose edges carry a label.
pub(super) struct Graph<L> {
    edges: Vec<Vec<(u32, L)>>,
}

impl<L: Copy> Graph<L> {
    pub(super) fn new(nodes: usize) -> Graph<L> {
        Graph {
            edges: vec![Vec::new(); nodes],
        }
    }

    pub(super) fn add(&mut self, from: usize, to: usize, label: L) {
        self.edges[from].push((to as u32, label));
    }

    /// One short cycle from each strongly connected component that has one, as
    /// edges (from, label, to).
    pub(super) fn cycles(&self) -> Vec<Vec<(usize, L, usize)>> {
        let component = self.components();
        let mut members: Vec<Vec<usize>> = Vec::new();
        for (node, &of) in component.iter().enumerate() {
            let of = of as usize;
            if members.len() <= of {
                members.resize(of + 1, Vec::new());
            }
            members[of].push(node);
        }
        let mut found = Vec::new();
        for nodes in members.into_iter().filter(|nodes| nodes.len() > 1) {
            // The shortest of a few: the story is to be read.
            let starts = nodes.iter().step_by(nodes.len().div_ceil(64).max(1));
            let shortest = starts
                .filter_map(|&start| self.cycle_through(start, &component))
                .min_by_key(Vec::len);
            found.extend(shortest);
        }
        found
    }

    /// The shortest cycle through `start` within its component.
    fn cycle_through(&self, start: usize, component: &[u32]) -> Option<Vec<(usize, L, usize)>> {
        let mut came: Vec<Option<(usize, L)>> = vec![None; self.edges.len()];
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            for &(to, label) in &self.edges[node] {
                let to = to as usize;
                if component[to] != component[start] || came[to].is_some() {
                    continue;
                }
                came[to] = Some((node, label));
                if to == start {
                    return Some(walk_back(&came, start));
                }
                queue.push_back(to);
            }
        }
        None
    }

    /// The strongly connected component of each node (Tarjan, without recursion).
    fn components(&self) -> Vec<u32> {
        const UNSEEN: u32 = u32::MAX;
        let nodes = self.edges.len();
        let (mut index, mut low) = (vec![UNSEEN; nodes], vec![0u32; nodes]);
        let mut component = vec![UNSEEN; nodes];
        let (mut stack, mut work) = (Vec::new(), Vec::new());
        let (mut next_index, mut next_component) = (0u32, 0u32);
        for root in 0..nodes {
            if index[root] != UNSEEN {
                continue;
            }
            work.push((root, 0usize));
            while let Some((node, edge)) = work.pop() {
                if edge == 0 {
                    index[node] = next_index;
                    low[node] = next_index;
                    next_index += 1;
                    stack.push(node);
                }
                if let Some(&(to, _)) = self.edges[node].get(edge) {
                    let to = to as usize;
                    work.push((node, edge + 1));
                    if index[to] == UNSEEN {
                        work.push((to, 0));
                    } else if component[to] == UNSEEN {
                        low[node] = low[node].min(index[to]);
                    }
                    continue;
                }
                if low[node] == index[node] {
                    while let Some(member) = stack.pop() {
                        component[member] = next_component;
                        if member == node {
                            break;
                        }
                    }
                    next_component += 1;
                }
                if let Some(&(parent, _)) = work.last() {
                    low[parent] = low[parent].min(low[node]);
                }
            }
        }
        component
    }
}

fn walk_back<L: Copy>(came: &[Option<(usize, L)>], start: usize) -> Vec<(usize, L, usize)> {
    let mut cycle = Vec::new();
    let mut at = start;
    while let Some((from, label)) = came[at] {
        cycle.push((from, label, at));
        at = from;
        if at == start {
            break;
        }
    }
    cycle.reverse();
    cycle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_found_and_paths_are_not() {
        let mut graph = Graph::new(7);
        for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4), (0, 4)] {
            graph.add(from, to, ());
        }
        let cycles = graph.cycles();
        assert_eq!(cycles.len(), 1);
        let mut nodes: Vec<usize> = cycles[0].iter().map(|edge| edge.0).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [1, 2, 3]);
        for pair in cycles[0].windows(2) {
            assert_eq!(pair[0].2, pair[1].0);
        }
        graph.add(5, 6, ());
        graph.add(6, 5, ());
        assert_eq!(graph.cycles().len(), 2);
    }

    #[test]
    fn long_paths_do_not_overflow_the_stack() {
        let mut graph = Graph::new(200_001);
        for node in 0..200_000 {
            graph.add(node, node + 1, ());
        }
        assert!(graph.cycles().is_empty());
        graph.add(200_000, 0, ());
        assert_eq!(graph.cycles()[0].len(), 200_001);
    }
}
