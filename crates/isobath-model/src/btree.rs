//! B-trees under the cost models (section 2.2): node size for point and range queries, write
//! amplification.

use crate::point::PAGE_BYTES;

/// A B-tree of `record_count` records whose nodes hold `page_entries` entries per 4 KiB page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BTree {
    /// `N`: records.
    pub record_count: f64,
    /// Entries per page: records in leaves and separators in inner nodes alike, as in the paper's
    /// `B`.
    pub page_entries: f64,
}

/// Node sizes that [`BTree::optimal_node_pages`] tries, in pages.
pub const NODE_PAGES_MAX: u32 = 4096;

impl BTree {
    /// Nodes on the path from the root to a leaf, with nodes of `node_pages` pages: log_{YB}(N/YB) + 1.
    ///
    /// The logarithm is not rounded: the paper's costs are averages over trees of every size, and a
    /// rounded one would make the optimum depend on how full the root happens to be.
    pub fn path_nodes(&self, node_pages: f64) -> f64 {
        let node_entries = node_pages * self.page_entries;
        (self.record_count / node_entries).max(1.0).ln() / node_entries.max(2.0).ln() + 1.0
    }

    /// Wall time of a point query in µs: one access of `node_us(Y)` µs per node on the path.
    pub fn point_query_us(&self, node_pages: f64, node_us: impl Fn(f64) -> f64) -> f64 {
        self.path_nodes(node_pages) * node_us(node_pages)
    }

    /// Wall time of a query over `records` consecutive records in µs: the path, then one access per
    /// further leaf.
    pub fn range_query_us(
        &self,
        node_pages: f64,
        records: f64,
        node_us: impl Fn(f64) -> f64,
    ) -> f64 {
        let leaves = records / (node_pages * self.page_entries);
        (self.path_nodes(node_pages) + leaves) * node_us(node_pages)
    }

    /// The whole number of pages per node, up to [`NODE_PAGES_MAX`], with the cheapest point query.
    ///
    /// `node_us(Y)` is the cost of one random access of Y pages: s + Y·α in the affine model, or
    /// `page_cost_us(k, Y) · Y` of a fitted drive. The closed form Θ((s/α)·ln(s/α)) that the paper
    /// prints multiplies by the logarithm where it should divide.
    pub fn optimal_node_pages(&self, node_us: impl Fn(f64) -> f64) -> u32 {
        cheapest(|pages| self.point_query_us(pages, &node_us))
    }

    /// The same for queries over `records` consecutive records.
    pub fn optimal_node_pages_for_range(&self, records: f64, node_us: impl Fn(f64) -> f64) -> u32 {
        cheapest(|pages| self.range_query_us(pages, records, &node_us))
    }

    /// Bytes written per byte changed when a node is rewritten after `updates_per_write` updates of
    /// `update_bytes` each. One update per write is the paper's worst case, linear in the node
    /// size.
    pub fn write_amplification(
        &self,
        node_pages: f64,
        update_bytes: f64,
        updates_per_write: f64,
    ) -> f64 {
        node_pages * PAGE_BYTES as f64 / (update_bytes * updates_per_write.max(1.0))
    }
}

fn cheapest(cost: impl Fn(f64) -> f64) -> u32 {
    (1..=NODE_PAGES_MAX)
        .min_by(|a, b| cost(f64::from(*a)).total_cmp(&cost(f64::from(*b))))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: BTree = BTree {
        record_count: 1e9,
        page_entries: 100.0,
    };

    fn affine(setup_us: f64, transfer_us: f64) -> impl Fn(f64) -> f64 {
        move |pages| setup_us + pages * transfer_us
    }

    #[test]
    fn the_numeric_optimum_is_far_below_the_printed_formula() {
        // s/α = 100: the printed Θ((s/α)·ln(s/α)) is 460 pages; dividing by the logarithm gives 22.
        let optimum = TREE.optimal_node_pages(affine(100.0, 1.0));
        assert_eq!(optimum, 16);
        let cost = |pages| TREE.point_query_us(pages, affine(100.0, 1.0));
        assert!(
            // 3.32 times as much.
            cost(460.0) > 3.3 * cost(16.0),
            "{} against {}",
            cost(460.0),
            cost(16.0)
        );
    }

    #[test]
    fn the_optimum_grows_with_setup_and_is_one_page_without() {
        assert_eq!(TREE.optimal_node_pages(affine(0.0, 1.0)), 1);
        let optima: Vec<u32> = [1.0, 10.0, 100.0, 1000.0]
            .iter()
            .map(|&s| TREE.optimal_node_pages(affine(s, 1.0)))
            .collect();
        assert!(optima.is_sorted_by(|a, b| a < b), "{optima:?}");
    }

    #[test]
    fn range_queries_want_larger_nodes_and_s_over_alpha_is_within_a_factor_of_two() {
        let node = affine(100.0, 1.0);
        let point = TREE.optimal_node_pages(&node);
        let range = TREE.optimal_node_pages_for_range(1e5, &node);
        assert!(range > point, "{range} against {point}");
        let best = TREE.range_query_us(f64::from(range), 1e6, &node);
        // 1.37 times the best.
        assert!(TREE.range_query_us(100.0, 1e6, &node) < 1.4 * best);
    }

    #[test]
    fn write_amplification_is_linear_in_the_node() {
        assert!((TREE.write_amplification(4.0, 128.0, 1.0) - 128.0).abs() < 1e-9);
        assert!((TREE.write_amplification(4.0, 128.0, 8.0) - 16.0).abs() < 1e-9);
    }
}
