//! Compares policies under equal terms: the same batch and the same share of idle space, first as
//! an engine cleans, then as the paper does. A goal counts as reached only if both reach it.

use isobath_flash::policy::PolicyKind;
use isobath_flash::sim::{Duplicates, RunLength, SimConfig};
use serde::Serialize;

use crate::clean::{CleanRow, CleanSweep, CleanWorkload};

/// Segments that every policy cleans at a time here.
const BATCH: u32 = 16;

/// How the space is used in a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terms {
    /// No sort buffer; a page written again before it is on the drive is written once.
    Engine,
    /// The paper's sort buffer of 16 segments; every version is written.
    Paper,
}

impl Terms {
    /// Both, in the order in which they are run and shown.
    pub const ALL: [Self; 2] = [Self::Engine, Self::Paper];

    /// The space that `base` becomes under these terms.
    #[must_use]
    pub fn apply(self, base: &SimConfig) -> SimConfig {
        SimConfig {
            clean_batch: Some(BATCH),
            sort_buffer_segments: match self {
                Self::Engine => 0,
                Self::Paper => 16,
            },
            duplicates: match self {
                Self::Engine => Duplicates::Absorbed,
                Self::Paper => Duplicates::Written,
            },
            ..base.clone()
        }
    }

    fn of(row: &CleanRow) -> Self {
        match row.duplicates_absorbed {
            true => Self::Engine,
            false => Self::Paper,
        }
    }
}

/// The sweeps of a comparison: the engine's terms first.
pub fn sweeps(
    base: &SimConfig,
    policies: &[PolicyKind],
    workloads: &[CleanWorkload],
    fills: &[f64],
    length: RunLength,
    threads: Option<usize>,
) -> Vec<CleanSweep> {
    let sweep = |terms: Terms| {
        let base = terms.apply(base);
        CleanSweep {
            policies: policies.to_vec(),
            workloads: workloads.to_vec(),
            fills: fills.to_vec(),
            sort_buffers: vec![base.sort_buffer_segments],
            base,
            paper_spare: true,
            length,
            threads,
        }
    };
    Terms::ALL.map(sweep).into()
}

/// The goal of life-table under a law, and the policy that it is compared with.
fn goal(workload: &str) -> (PolicyKind, Option<f64>) {
    let goals = [
        ("uniform", PolicyKind::Greedy, 0.0),
        ("hot-cold", PolicyKind::Mdc, 0.05),
        ("zipf-moving", PolicyKind::Mdc, 0.35),
        ("zipf", PolicyKind::Mdc, 0.05),
        ("sliding", PolicyKind::Mdc, 0.10),
    ];
    // The file of a trace may have a name that begins like a law's.
    let name = workload.split_once(':').map_or(workload, |(name, _)| name);
    let own = goals.iter().find(|(law, ..)| name == *law);
    own.map_or((PolicyKind::Mdc, None), |(_, rival, least)| {
        (*rival, Some(*least))
    })
}

/// The result of a comparison for one workload and fill factor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Workload, as users write it.
    pub workload: String,
    /// Fill factor F.
    pub fill_ratio: f64,
    /// The policy that life-table is compared with.
    pub rival: String,
    /// By what share life-table's steady `Wamp` is below the rival's as an engine cleans; `None` if
    /// either has none.
    pub gain_as_engine_ratio: Option<f64>,
    /// The same as the paper cleans.
    pub gain_as_paper_ratio: Option<f64>,
    /// The least gain; `None` for workloads without a goal.
    pub goal_ratio: Option<f64>,
    /// Whether it is reached under both.
    pub goal_reached: Option<bool>,
}

/// One verdict per workload and fill factor, in the order of `rows`.
pub fn verdicts(rows: &[CleanRow]) -> Vec<Verdict> {
    let mut cases: Vec<(&str, f64)> = Vec::new();
    for row in rows {
        let case = (row.workload.as_str(), row.fill_ratio);
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    let wamp = |case: (&str, f64), terms: Terms, policy: PolicyKind| {
        let own = rows.iter().find(|row| {
            (row.workload.as_str(), row.fill_ratio) == case
                && Terms::of(row) == terms
                && row.policy == policy.name()
        });
        own.map(|row| row.wamp_steady_ratio)
            .filter(|wamp| wamp.is_finite())
    };
    let verdict = |case: (&str, f64)| {
        let (rival, goal) = goal(case.0);
        let gain = |terms| {
            let own = wamp(case, terms, PolicyKind::LifeTable)?;
            Some(1.0 - own / wamp(case, terms, rival)?)
        };
        let (engine, paper) = (gain(Terms::Engine), gain(Terms::Paper));
        let reached = |least: f64| engine.zip(paper).map(|(e, p)| e >= least && p >= least);
        Verdict {
            workload: case.0.to_owned(),
            fill_ratio: case.1,
            rival: rival.name().to_owned(),
            gain_as_engine_ratio: engine,
            gain_as_paper_ratio: paper,
            goal_ratio: goal,
            goal_reached: goal.and_then(reached),
        }
    };
    cases.into_iter().map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    fn row(terms: Terms, workload: &str, policy: PolicyKind, wamp: f64) -> CleanRow {
        let config = terms.apply(&SimConfig::paper(500, 0.8));
        CleanRow {
            wamp_steady_ratio: wamp,
            ..CleanRow::unmeasured(&config, policy.name(), workload, None)
        }
    }

    #[test]
    fn a_goal_is_reached_only_under_both_terms() {
        use PolicyKind::{Greedy, LifeTable, Mdc};
        let rows = |paper: f64| {
            [
                row(Terms::Engine, "zipf:0.99", Greedy, 2.0),
                row(Terms::Engine, "zipf:0.99", Mdc, 1.0),
                row(Terms::Engine, "zipf:0.99", LifeTable, 0.6),
                row(Terms::Paper, "zipf:0.99", Mdc, 1.0),
                row(Terms::Paper, "zipf:0.99", LifeTable, paper),
            ]
        };
        let one = |paper| verdicts(&rows(paper)).remove(0);
        assert_eq!(one(0.9).goal_reached, Some(true));
        assert_eq!(one(0.97).goal_reached, Some(false));
        assert_eq!(one(f64::NAN).goal_reached, None);
        assert!((one(0.9).gain_as_engine_ratio.unwrap() - 0.4).abs() < 1e-12);
        for other in ["sequential:0.5:0.5", "zipf-moving.csv"] {
            let other = row(Terms::Engine, other, Mdc, 1.0);
            assert_eq!(verdicts(&[other])[0].goal_ratio, None);
        }
    }

    /// The batch is equal for all policies, whichever each prefers; what lies idle is the same
    /// share of the space.
    #[test]
    fn terms_are_equal_for_all_policies() {
        let base = SimConfig {
            segment_bytes: 256 << 10,
            clean_below: 8,
            ..SimConfig::paper(300, 0.8)
        };
        let laws = [CleanWorkload::Synthetic("uniform".parse().unwrap())];
        let policies = [PolicyKind::Greedy, PolicyKind::Mdc, PolicyKind::LifeTable];
        let length = RunLength::DeviceWrites(2.0);
        let sweeps = sweeps(&base, &policies, &laws, &[0.8], length, None);
        assert_eq!(sweeps.len(), 2);
        let mut rows = Vec::new();
        for sweep in &sweeps {
            rows.extend(sweep.run(&Silent).unwrap());
        }
        assert!(rows[..3].iter().all(|row| row.duplicates_absorbed));
        for row in &rows {
            assert_eq!(row.clean_batch_segments, Some(16));
        }
        let verdict = &verdicts(&rows)[0];
        assert!(verdict.gain_as_engine_ratio.is_some() && verdict.gain_as_paper_ratio.is_some());
    }
}
