//! How many drives a dataset and a rate need (paper 002, Figures 7c and 9).
//!
//! A run is a point: on one drive, so many bytes of data are served at such a rate. A deployment
//! splits the data evenly over n drives; with n × data ≥ dataset and n × rate ≥ target it is
//! enough. The cheapest of an engine's points counts.

use serde::Serialize;

use super::evidence::{lines, rows, verdicts};
use super::record::RunRecord;
use super::verdict::Pitfall;

/// The performance of one drive.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Engine, or engine and over-provisioning.
    pub side: String,
    /// Bytes of data on the drive.
    pub data_bytes: f64,
    /// Operations per second.
    pub operations_per_s: f64,
}

/// The needs of one side of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Need {
    /// The row.
    pub row: String,
    /// Engine, or engine and over-provisioning.
    pub side: String,
    /// Pitfalls that the row commits: no number of drives follows from it then.
    pub violated: Vec<Pitfall>,
    /// Drives; nothing if no number is enough, and where a pitfall was committed.
    pub drives: Option<u64>,
}

/// Drives that each side of each row needs: rows are different workloads or conditions, so none
/// stands for another.
#[must_use]
pub fn needs(records: &[RunRecord], data_bytes: f64, rate_per_s: f64) -> Vec<Need> {
    let mut needs: Vec<Need> = Vec::new();
    for row in rows(records) {
        let committed = verdicts(&row.records).into_iter();
        let committed = committed.filter(|(_, verdict)| verdict.is_violated());
        let violated: Vec<Pitfall> = committed.map(|(pitfall, _)| pitfall).collect();
        for by_over_provisioning in [false, true] {
            let points = points(&row.records, by_over_provisioning);
            let mut sides: Vec<&str> = points.iter().map(|point| point.side.as_str()).collect();
            sides.sort_unstable();
            sides.dedup();
            // Without a share, a side is the same by it.
            let is_known = |side: &str| needs.iter().any(|n| n.row == row.name && n.side == side);
            sides.retain(|side| !is_known(side));
            let own = sides.into_iter().map(|side| Need {
                row: row.name.clone(),
                side: side.to_owned(),
                violated: violated.clone(),
                drives: match violated.is_empty() {
                    true => drives(&points, side, data_bytes, rate_per_s),
                    false => None,
                },
            });
            let own: Vec<Need> = own.collect();
            needs.extend(own);
        }
    }
    needs
}

/// More drives than that are no answer.
const DRIVES_MAX: f64 = 1e9;

/// Drives that a side needs for a dataset and a rate; `None` if it has no point, or a billion is
/// too few.
#[must_use]
pub(super) fn drives(
    points: &[Point],
    side: &str,
    dataset_bytes: f64,
    rate_per_s: f64,
) -> Option<u64> {
    let of_side = points.iter().filter(|point| point.side == side);
    of_side
        .filter(|point| point.data_bytes > 0.0 && point.operations_per_s > 0.0)
        .map(|point| {
            let for_data = (dataset_bytes / point.data_bytes).ceil();
            let for_rate = (rate_per_s / point.operations_per_s).ceil();
            for_data.max(for_rate).max(1.0)
        })
        .reduce(f64::min)
        .filter(|drives| *drives <= DRIVES_MAX)
        .map(|drives| drives as u64)
}

/// One map: which side needs fewer drives. Modelled from the points, not measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CostMap {
    /// The two sides.
    pub sides: [String; 2],
    /// Bytes of data, one per column.
    pub dataset_bytes: Vec<f64>,
    /// Operations per second, one per row.
    pub rate_per_s: Vec<f64>,
    /// Drives of both sides, row by row.
    pub drives: Vec<Vec<[Option<u64>; 2]>>,
}

/// Columns and rows of a map.
const STEPS: u32 = 8;

/// The map of two sides, up to `scale` times what the largest point of either does.
#[must_use]
pub fn cost_map(points: &[Point], first: &str, second: &str, scale: f64) -> CostMap {
    let largest = |of: fn(&Point) -> f64| points.iter().map(of).fold(0.0, f64::max) * scale;
    let axis = |end: f64| {
        (1..=STEPS)
            .map(|i| end * f64::from(i) / f64::from(STEPS))
            .collect()
    };
    let dataset_bytes: Vec<f64> = axis(largest(|point| point.data_bytes));
    let rate_per_s: Vec<f64> = axis(largest(|point| point.operations_per_s));
    let cell = |data: f64, rate: f64| [first, second].map(|side| drives(points, side, data, rate));
    let drives = rate_per_s
        .iter()
        .map(|rate| {
            dataset_bytes
                .iter()
                .map(|data| cell(*data, *rate))
                .collect()
        })
        .collect();
    CostMap {
        sides: [first.to_owned(), second.to_owned()],
        dataset_bytes,
        rate_per_s,
        drives,
    }
}

/// Points of runs of one row: of each engine, or of each engine with each amount of
/// over-provisioning. Runs without an engine, and those that were offered a rate, do not say what
/// an engine can serve.
#[must_use]
pub(super) fn points(row: &[RunRecord], by_over_provisioning: bool) -> Vec<Point> {
    let side = |line: &str, record: &RunRecord| match record.setting.medium.over_provisioning() {
        Some(share) if by_over_provisioning => {
            format!("{line}, {:.0}% over-provisioned", share * 100.0)
        }
        _ => line.to_owned(),
    };
    let point = |line: &str, record: &RunRecord| Point {
        side: side(line, record),
        data_bytes: record.data_bytes as f64,
        // Rates in memory or through FUSE say nothing of a drive.
        operations_per_s: record
            .modelled_operations_per_s
            .unwrap_or(record.operations_per_s),
    };
    let says = |record: &&RunRecord| !record.is_baseline() && record.setting.rate_per_s.is_none();
    let says: Vec<RunRecord> = row.iter().filter(says).cloned().collect();
    let lines = lines(&says);
    let of_line = lines.iter().flat_map(|line| {
        let records = line.records.iter();
        records.map(|record| point(&line.name, record))
    });
    of_line.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineKind;

    fn point(side: &str, data_bytes: f64, operations_per_s: f64) -> Point {
        Point {
            side: side.to_owned(),
            data_bytes,
            operations_per_s,
        }
    }

    #[test]
    fn only_engines_at_full_load_are_points() {
        let (_, records) = super::super::half_rate::tests::ran(&[1.0], 1);
        let of_engine = super::super::half_rate::tests::of_engine;
        let full = of_engine(&records[0], EngineKind::Isobath, "isobath 1");
        let mut offered = full.clone();
        offered.setting.rate_per_s = Some(10.0);
        let found = points(&[records[0].clone(), offered, full], false);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].side, "isobath 1");
    }

    #[test]
    fn more_drives_for_more_data_or_a_higher_rate() {
        // The shape of the paper's Figure 7c: one side is fast with little data, the other takes
        // little space.
        let points = [
            point("lsm", 100.0, 4000.0),
            point("lsm", 200.0, 3000.0),
            point("btree", 100.0, 1500.0),
            point("btree", 350.0, 1000.0),
        ];
        assert_eq!(drives(&points, "lsm", 1000.0, 1000.0), Some(5));
        assert_eq!(drives(&points, "btree", 1000.0, 1000.0), Some(3));
        assert_eq!(
            drives(&points, "lsm", 200.0, 12_000.0),
            Some(3),
            "less data on each"
        );
        assert_eq!(drives(&points, "btree", 200.0, 12_000.0), Some(8));
        assert_eq!(drives(&points, "none", 1.0, 1.0), None);
        assert_eq!(drives(&points, "lsm", 1.0, 1e30), None);
        let map = cost_map(&points, "lsm", "btree", 10.0);
        assert_eq!((map.drives.len(), map.drives[0].len()), (8, 8));
        let [lsm, btree] = map.drives[0][7];
        assert!(lsm > btree, "much data at a low rate: {lsm:?} {btree:?}");
        let [lsm, btree] = map.drives[7][0];
        assert!(lsm < btree, "little data at a high rate: {lsm:?} {btree:?}");
    }
}
