//! The same runs once more in an open loop, at one rate for all engines: half of what the slowest
//! of them reached.
//!
//! Latencies at full load compare queues. At one absolute rate that every engine can serve they
//! compare engines, and the longest one is the longest stall that a client met: it counts from when
//! the operation was due.

use super::campaign::Case;
use super::record::RunRecord;
use crate::engine::{Callers, EngineKind};

/// Share of the slowest engine's throughput that is offered.
const SHARE: f64 = 0.5;

/// The cases of each row that have most data, at half of the throughput that the slowest engine had
/// over them in `records`. Beside the engines of a row stand, at the same rate, the benchmark
/// without an engine and, where the row's data are on a drive, the drive alone: waits that they
/// have too are not an engine's. Rows of which nothing is known, fills, and simulated drives, whose
/// latencies are no measurements, are left out.
#[must_use]
pub fn at_half_rate(cases: &[Case], records: &[RunRecord]) -> Vec<Case> {
    let may_run = |case: &&Case| {
        let plan = &case.plan;
        !plan.workload.fill && plan.engine.simulated.is_none() && plan.rate_per_s.is_none()
    };
    let at_rate = |case: &Case| {
        let heading = heading(case);
        let of_row = cases.iter().filter(|other| self::heading(other) == heading);
        let most = of_row.map(|other| other.plan.records).max()?;
        if case.plan.records < most {
            return None;
        }
        let rate = slowest(records, heading, most)? * SHARE;
        let mut case = case.clone();
        case.row = Some(format!("{heading}, half rate"));
        case.plan.rate_per_s = Some(rate);
        // The drive alone is measured with the row at full load.
        (case.plan.drive_depth, case.plan.until_steady) = (None, false);
        Some(case)
    };
    let all: Vec<Case> = cases.iter().filter(may_run).filter_map(at_rate).collect();
    let group = |case: &Case| (case.row.clone(), case.round);
    let mut with_baselines: Vec<Case> = Vec::new();
    for case in &all {
        let is_first = !with_baselines.iter().any(|c| group(c) == group(case));
        with_baselines.push(case.clone());
        if is_first {
            let of_group: Vec<&Case> = all.iter().filter(|c| group(c) == group(case)).collect();
            with_baselines.extend(baselines(&of_group));
        }
    }
    with_baselines
}

/// Sides from here on are baselines that were not asked for.
const BASELINE_SIDE: usize = 1000;

/// The runs of one row and round once more without an engine, and with the drive alone, unless they
/// are among them.
fn baselines(group: &[&Case]) -> Vec<Case> {
    let has_path = |case: &&&Case| case.plan.engine.path.is_some();
    let Some(case) = group.iter().find(has_path).or(group.first()) else {
        return Vec::new();
    };
    let plan = &case.plan;
    let uses_drive = plan.engine.path.is_some() && (!plan.in_pool || plan.workload.mix.writes());
    let of = |kind: EngineKind, place: usize| {
        let mut case = (**case).clone();
        let engine = &mut case.plan.engine;
        case.side = BASELINE_SIDE + place;
        case.search = None;
        engine.kind = kind;
        engine.callers = Callers::Threads;
        engine.path = match kind {
            EngineKind::Drive => engine
                .path
                .take()
                .map(|path| path.with_file_name(kind.file_name())),
            _ => None,
        };
        case
    };
    let wanted = [(EngineKind::Null, true), (EngineKind::Drive, uses_drive)];
    let is_new = |kind: EngineKind| !group.iter().any(|case| case.plan.engine.kind == kind);
    wanted
        .into_iter()
        .filter(|(kind, may)| *may && plan.workload.tpcc.is_none() && is_new(*kind))
        .enumerate()
        .map(|(at, (kind, _))| of(kind, at))
        .collect()
}

fn heading(case: &Case) -> &str {
    case.row.as_deref().unwrap_or(&case.plan.workload.name)
}

/// The smallest throughput of an engine, the geometric mean of its repeats; of a baseline where no
/// engine was run.
fn slowest(records: &[RunRecord], heading: &str, records_count: u64) -> Option<f64> {
    let of = |r: &&RunRecord| {
        r.heading() == heading && r.records_count == records_count && r.operations_per_s > 0.0
    };
    let of: Vec<&RunRecord> = records.iter().filter(of).collect();
    let mean = |side: String| {
        let logs = of.iter().filter(|r| r.side() == side);
        let logs: Vec<f64> = logs.map(|r| r.operations_per_s.ln()).collect();
        (logs.iter().sum::<f64>() / logs.len() as f64).exp()
    };
    let slowest_of = |baselines: bool| {
        let of = of.iter().filter(|r| r.is_baseline() == baselines);
        of.map(|r| mean(r.side())).reduce(f64::min)
    };
    slowest_of(false).or_else(|| slowest_of(true))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Silent;
    use crate::bench::{Campaign, Outcome, Suite, SuiteChoice};

    /// The cases of short runs of one row with these shares of its data, with no engine, and their
    /// records.
    pub(crate) fn ran(sizes: &[f64], repeats: usize) -> (Vec<Case>, Vec<RunRecord>) {
        let choice = SuiteChoice {
            engines: Some(vec![EngineKind::Null]),
            rows: vec!["lookup-in".to_owned()],
            duration: Some(Duration::from_millis(30)),
            warm_up: Some(Duration::ZERO),
            data_bytes: Some(1 << 20),
            sizes: sizes.to_vec(),
            repeats,
            directory: "nowhere".into(),
            seed: 1,
            ..SuiteChoice::default()
        };
        let cases = Suite::first().unwrap().cases(&choice).unwrap();
        let records = run(&cases);
        (cases, records)
    }

    /// The record as one of this engine.
    pub(crate) fn of_engine(record: &RunRecord, kind: EngineKind, engine: &str) -> RunRecord {
        let mut record = record.clone();
        (record.setting.kind, record.setting.engine) = (kind, engine.to_owned());
        record
    }

    fn run(cases: &[Case]) -> Vec<RunRecord> {
        let mut campaign = Campaign::in_memory();
        let ran = cases.iter().map(|case| {
            let Outcome::Ran(record) = campaign.run(case, &Silent).unwrap() else {
                panic!("it was never run");
            };
            *record
        });
        ran.collect()
    }

    #[test]
    fn all_sides_get_half_of_what_the_slowest_reached() {
        let (mut cases, mut records) = ran(&[0.5, 1.0], 2);
        let whole = cases.iter().map(|case| case.plan.records).max().unwrap();
        for (rate, record) in [3000.0, 4000.0, 5000.0, 7000.0].iter().zip(&mut records) {
            record.operations_per_s = *rate;
            *record = of_engine(record, EngineKind::Redb, "slow 1");
        }
        let slow = records.iter().filter(|r| r.records_count == whole);
        let slow: Vec<f64> = slow.map(|r| r.operations_per_s).collect();
        // A second engine, which is faster.
        let fast: Vec<RunRecord> = records
            .iter()
            .map(|r| RunRecord {
                operations_per_s: 1e6,
                ..of_engine(r, EngineKind::Isobath, "fast 1")
            })
            .collect();
        // Without an engine it is slower still, which sets no rate.
        let none: Vec<RunRecord> = fast
            .iter()
            .map(|r| RunRecord {
                operations_per_s: 1.0,
                ..of_engine(r, EngineKind::Null, "null")
            })
            .collect();
        records.extend(fast);
        records.extend(none);
        let wanted = (slow[0] * slow[1]).sqrt() / 2.0;
        let at_rate = at_half_rate(&cases, &records);
        assert_eq!(at_rate.len(), 2);
        for case in &at_rate {
            assert_eq!(case.plan.records, whole);
            assert_eq!(case.row.as_deref(), Some("lookup-in, half rate"));
            assert!((case.plan.rate_per_s.unwrap() / wanted - 1.0).abs() < 1e-9);
        }
        for record in run(&at_rate) {
            assert_eq!(record.setting.rate_per_s, at_rate[0].plan.rate_per_s);
            assert!(record.latency_us_p999 > 0.0 && record.latency_us_max > 0.0);
        }
        // Engines that only null was asked of have no other baseline: it keeps nothing and has no
        // file.
        let fast = EngineKind::Isobath;
        let mut with_file = cases.clone();
        for case in &mut with_file {
            case.plan.engine.kind = fast;
            case.plan.engine.path = Some("nowhere/file".into());
            case.plan.in_pool = false;
        }
        let kinds: Vec<EngineKind> = at_half_rate(&with_file, &records)
            .iter()
            .filter(|case| case.round == 0)
            .map(|case| {
                assert_eq!(case.plan.rate_per_s, at_rate[0].plan.rate_per_s);
                case.plan.engine.kind
            })
            .collect();
        assert_eq!(kinds, [fast, EngineKind::Null, EngineKind::Drive]);
        // Runs that were offered a rate already, or are not known, are left out.
        assert!(at_half_rate(&at_rate, &records).is_empty());
        cases.iter_mut().for_each(|case| case.row = None);
        assert!(at_half_rate(&cases, &records).is_empty());
    }
}
