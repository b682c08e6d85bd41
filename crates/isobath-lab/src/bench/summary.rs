//! The summary of a campaign: each engine's throughput, and its ratio to the first engine's.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::evidence::{Group, lines, rows, verdicts};
use super::ratio::{Ratio, compare};
use super::record::RunRecord;
use super::verdict::{Pitfall, Verdict};
use crate::LabError;
use crate::engine::EngineKind;

/// The file of summaries in a campaign's directory.
const SUMMARY: &str = "summary.json";
/// The engine that others are compared with, where it was run.
const COMPARED: EngineKind = EngineKind::Isobath;

/// One row of a campaign.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowSummary {
    /// Its name.
    pub row: String,
    /// Its workload.
    pub workload: String,
    /// Operations that were offered per second; none if there were as many as possible.
    pub rate_per_s: Option<f64>,
    /// Sizes of data that each engine was run with in each configuration, the fewest.
    pub sizes_count: usize,
    /// Pitfalls that all its runs together commit; with one of them there is no headline number.
    pub violated: Vec<Pitfall>,
    /// Pitfalls of which nothing is known here; with one of them the row is quoted only as ratios
    /// within its run.
    pub unknown: Vec<Pitfall>,
    /// Its engines; the one that the others are compared with comes first.
    pub engines: Vec<EngineSummary>,
}

impl RowSummary {
    /// The violated pitfalls by name; nothing if there is none.
    #[must_use]
    pub fn violated_names(&self) -> String {
        Pitfall::names(&self.violated)
    }

    /// The unknown pitfalls by name; nothing if there is none.
    #[must_use]
    pub fn unknown_names(&self) -> String {
        Pitfall::names(&self.unknown)
    }
}

/// One engine in a row. Means over repeats and sizes are geometric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EngineSummary {
    /// Name and version, and what tells it from others of that name.
    pub engine: String,
    /// Repeats.
    pub repeats_count: usize,
    /// Operations per second.
    pub operations_per_s: f64,
    /// 99th percentile of the latency of calls, microseconds; the largest of the repeats.
    pub latency_us_p99: f64,
    /// 99.9th percentile, the largest of the repeats.
    pub latency_us_p999: f64,
    /// Longest latency of all repeats: at a given rate, the longest stall.
    pub latency_us_max: f64,
    /// CPU time per operation, microseconds.
    pub cpu_us_per_operation: f64,
    /// The benchmark's own share of that, the largest of the repeats.
    pub harness_share: Option<f64>,
    /// WA-A, the largest of the repeats.
    pub wa_a: Option<f64>,
    /// WA-D, the largest of the repeats.
    pub wa_d: Option<f64>,
    /// Space amplification, the largest of the repeats.
    pub space_amplification_max: Option<f64>,
    /// Operations per second that the flash of a simulated or virtual SSD would allow, the smallest
    /// of the repeats: modelled.
    pub modelled_operations_per_s: Option<f64>,
    /// The first engine's throughput over this one's, repeats of each size and drive in pairs.
    pub first_over_this: Option<Ratio>,
}

/// One summary per row, in the order of the records.
#[must_use]
pub fn summarize(records: &[RunRecord]) -> Vec<RowSummary> {
    rows(records).into_iter().map(of).collect()
}

fn of(row: Group) -> RowSummary {
    let mut lines = lines(&row.records);
    let is_compared = |line: &Group| {
        let first = line.records.first();
        first.is_some_and(|record| record.setting.kind == COMPARED)
    };
    lines.sort_by_key(|line| (!is_compared(line), line.name.clone()));
    let sizes = |line: &Group| -> usize {
        let sizes: BTreeSet<u64> = line.records.iter().map(|r| r.data_bytes).collect();
        sizes.len()
    };
    let is_engine = |line: &&Group| line.records.iter().any(|r| !r.is_baseline());
    let engines = lines.iter().filter(is_engine).map(sizes).min();
    let verdicts = verdicts(&row.records);
    let those = |is: fn(&Verdict) -> bool| -> Vec<Pitfall> {
        let those = verdicts.iter().filter(|(_, verdict)| is(verdict));
        those.map(|(pitfall, _)| *pitfall).collect()
    };
    let setting = row.records.first().map(|record| &record.setting);
    RowSummary {
        rate_per_s: setting.and_then(|setting| setting.rate_per_s),
        sizes_count: engines.or(lines.iter().map(sizes).min()).unwrap_or(0),
        violated: those(Verdict::is_violated),
        unknown: those(Verdict::is_unknown),
        workload: setting.map_or_else(String::new, |setting| setting.workload.clone()),
        engines: lines
            .iter()
            .enumerate()
            .map(|(at, line)| of_engine(line, (at > 0).then(|| &lines[0].records[..])))
            .collect(),
        row: row.name,
    }
}

fn of_engine(line: &Group, first: Option<&[RunRecord]>) -> EngineSummary {
    let runs = &line.records;
    let largest = |of: fn(&RunRecord) -> Option<f64>| runs.iter().filter_map(of).reduce(f64::max);
    let pairs = first.into_iter().flatten().filter_map(|first| {
        let is_pair = |run: &&RunRecord| {
            let same = (run.round, run.data_bytes) == (first.round, first.data_bytes);
            same && (run.is_baseline() || run.setting.medium == first.setting.medium)
        };
        let same = runs.iter().find(is_pair)?;
        Some((first.operations_per_s, same.operations_per_s))
    });
    EngineSummary {
        engine: line.name.clone(),
        repeats_count: runs.len(),
        operations_per_s: mean(runs, |r| r.operations_per_s),
        latency_us_p99: largest(|r| Some(r.latency_us_p99)).unwrap_or(0.0),
        latency_us_p999: largest(|r| Some(r.latency_us_p999)).unwrap_or(0.0),
        latency_us_max: largest(|r| Some(r.latency_us_max)).unwrap_or(0.0),
        cpu_us_per_operation: mean(runs, |r| r.cpu_us_per_operation),
        harness_share: largest(RunRecord::harness_share),
        wa_a: largest(|r| r.wa_a),
        wa_d: largest(|r| r.wa_d),
        space_amplification_max: largest(|r| r.space_amplification_max),
        modelled_operations_per_s: runs
            .iter()
            .filter_map(|r| r.modelled_operations_per_s)
            .reduce(f64::min),
        first_over_this: compare(&pairs.collect::<Vec<_>>()),
    }
}

fn mean(runs: &[RunRecord], of: impl Fn(&RunRecord) -> f64) -> f64 {
    let logs: f64 = runs
        .iter()
        .map(|run| of(run).max(f64::MIN_POSITIVE).ln())
        .sum();
    (logs / runs.len().max(1) as f64).exp()
}

/// Writes `summary.json` beside the records.
///
/// # Errors
/// I/O errors.
pub fn write_summary(directory: &Path, records: &[RunRecord]) -> Result<(), LabError> {
    let path = directory.join(SUMMARY);
    let text = serde_json::to_string_pretty(&summarize(records))
        .map_err(|error| LabError::input(&path, error.to_string()))?;
    fs::write(&path, text + "\n").map_err(LabError::io("write", &path))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::half_rate::tests::{of_engine, ran};
    use super::*;
    use crate::bench::Medium;

    /// Records of two engines: the second has half the throughput with the same data in the same
    /// round.
    pub(in crate::bench) fn both(sizes: &[f64]) -> Vec<RunRecord> {
        let (_, records) = ran(sizes, 5);
        let of_two = |(at, record): (usize, &RunRecord)| {
            let rate = (at + 1) as f64 * 1000.0;
            let engines = [
                (EngineKind::Isobath, "isobath 1", rate),
                (EngineKind::Redb, "other 1", rate / 2.0),
            ];
            engines.map(|(kind, engine, operations_per_s)| RunRecord {
                operations_per_s,
                ..of_engine(record, kind, engine)
            })
        };
        records.iter().enumerate().flat_map(of_two).collect()
    }

    pub(in crate::bench) fn file(file_system: &str) -> Medium {
        Medium::Drive {
            file_system: file_system.to_owned(),
            device: "/dev/x".to_owned(),
            disk: Some("x".to_owned()),
            region_bytes: None,
        }
    }

    #[test]
    fn engines_are_compared_with_the_same_data() {
        let rows = summarize(&both(&[0.25, 0.5, 1.0]));
        assert_eq!((rows.len(), rows[0].sizes_count), (1, 3));
        let other = &rows[0].engines[1];
        assert_eq!(
            (other.engine.as_str(), other.repeats_count),
            ("other 1", 15)
        );
        let ratio = other.first_over_this.unwrap();
        assert!((ratio.ratio - 2.0).abs() < 1e-9 && (ratio.low - 2.0).abs() < 1e-9);
    }

    #[test]
    fn runs_without_an_engine_are_no_evidence_about_engines() {
        let mut records = both(&[1.0]);
        for record in &mut records {
            record.setting.medium = file("ext4");
        }
        let violated = |records: &[RunRecord]| summarize(records)[0].violated.clone();
        let alone = violated(&records);
        // Null has another medium and so many sizes as one likes.
        for (at, record) in records.clone().into_iter().enumerate() {
            let mut none = of_engine(&record, EngineKind::Null, "null");
            none.setting.medium = Medium::Memory;
            none.data_bytes *= at as u64 + 1;
            records.push(none);
        }
        assert_eq!(violated(&records), alone);
    }

    #[test]
    fn what_is_unknown_of_a_row_stands_in_its_summary() {
        let mut records = both(&[0.25, 0.5, 1.0]);
        assert_eq!(summarize(&records)[0].unknown_names(), "space");
        for record in &mut records {
            record.setting.medium = file("ext4");
            record.space_amplification_max = Some(1.5);
        }
        let row = &summarize(&records)[0];
        assert_eq!(
            row.unknown_names(),
            "drive state, over-provisioning, drive type"
        );
        let text = serde_json::to_string(row).unwrap();
        assert!(text.contains("\"unknown\":[\"drive-state\""), "{text}");
    }

    #[test]
    fn sizes_are_said_to_be_shares_of_what_they_are_shares_of() {
        let mut records = both(&[0.25, 0.5, 1.0]);
        let said = |records: &[RunRecord]| verdicts(records)[3].1.to_string();
        records.retain(|record| record.setting.kind == EngineKind::Isobath);
        let whole = records.iter().map(|r| r.data_bytes).max().unwrap();
        for record in &mut records {
            record.setting.pool_bytes = whole * 2;
        }
        assert_eq!(
            said(&records),
            "controlled: 3 sizes, 0.12 to 0.50 of the cache"
        );
        for record in &mut records {
            record.setting.medium = Medium::Drive {
                file_system: "ext4".to_owned(),
                device: "/dev/x".to_owned(),
                disk: None,
                region_bytes: Some(whole * 4),
            };
        }
        let of_capacity = said(&records);
        assert!(
            of_capacity.ends_with("to 0.25 of the capacity"),
            "{of_capacity}"
        );
    }

    #[test]
    fn one_size_is_a_pitfall_and_three_are_none() {
        let violated = |sizes: &[f64]| summarize(&both(sizes))[0].violated.clone();
        assert!(violated(&[1.0]).contains(&Pitfall::DatasetSize));
        assert!(violated(&[0.5, 1.0]).contains(&Pitfall::DatasetSize));
        assert!(!violated(&[0.25, 0.5, 1.0]).contains(&Pitfall::DatasetSize));
    }

    #[test]
    fn a_summary_has_geometric_means_and_the_worst_of_the_repeats() {
        let (_, records) = ran(&[1.0], 2);
        let of = |record: &RunRecord, engine: &str, number: f64| RunRecord {
            operations_per_s: 1000.0 * number * number,
            cpu_us_per_operation: number,
            latency_us_p99: 10.0 * number,
            latency_us_p999: 20.0 * number,
            latency_us_max: 30.0 * number,
            wa_a: Some(number),
            wa_d: Some(number + 1.0),
            space_amplification_max: Some(number + 2.0),
            modelled_operations_per_s: Some(100.0 * number),
            ..match engine {
                "isobath 1" => of_engine(record, EngineKind::Isobath, engine),
                _ => of_engine(record, EngineKind::Redb, engine),
            }
        };
        let both = |engine| [of(&records[0], engine, 1.0), of(&records[1], engine, 2.0)];
        // The engine that others are compared with comes first, whatever its name.
        let all: Vec<RunRecord> = [both("another 1"), both("isobath 1"), both("other 1")].concat();
        let engines = &summarize(&all)[0].engines;
        let names: Vec<&str> = engines.iter().map(|e| e.engine.as_str()).collect();
        assert_eq!(names, ["isobath 1", "another 1", "other 1"]);
        assert!(engines[0].first_over_this.is_none());
        for one in engines {
            assert!((one.operations_per_s / 2000.0 - 1.0).abs() < 1e-9);
            assert!((one.cpu_us_per_operation / 2f64.sqrt() - 1.0).abs() < 1e-9);
            let latencies = [one.latency_us_p99, one.latency_us_p999, one.latency_us_max];
            assert_eq!(latencies, [20.0, 40.0, 60.0]);
            let written = [one.wa_a, one.wa_d, one.space_amplification_max];
            assert_eq!(written, [Some(2.0), Some(3.0), Some(4.0)]);
            assert_eq!(one.modelled_operations_per_s, Some(100.0));
        }
    }
}
