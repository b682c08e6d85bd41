//! The least cost of cleaning, as rows: Tables 1 and 2 of paper 003, and the fluid bound of
//! workloads and traces.

use std::path::Path;

use isobath_flash::analysis::{self, FluidBound, Group, groups_of};
use isobath_flash::trace::{TraceContents, TraceFormat};
use isobath_flash::workload::{Op, WorkloadKind};
use serde::Serialize;

use crate::clean::read_trace_file;
use crate::{LabError, Sheet};

/// Equation (4) at one fill factor: Table 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EmptinessRow {
    /// Always `equation-4`: which table a row of JSON belongs to.
    pub table: &'static str,
    /// Fill factor F.
    pub fill_ratio: f64,
    /// E: the obsolete share of a segment when it is cleaned, updates being uniform and segments
    /// cleaned by age.
    pub emptiness_ratio: f64,
    /// 2/E: segments read and written per segment of new data.
    pub cost_ratio: f64,
    /// R = E/(1−F).
    pub emptiness_over_slack_ratio: f64,
    /// `Wamp` = (1−E)/E.
    pub wamp_ratio: f64,
    /// E as the paper prints it.
    pub paper_emptiness_ratio: Option<f64>,
    /// E of the paper's simulation of MDC-opt.
    pub paper_simulated_emptiness_ratio: Option<f64>,
    /// `Wamp` as the paper prints it.
    pub paper_wamp_ratio: Option<f64>,
}

/// Hot and cold data apart at F = 0.8: a row of Table 2.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitRow {
    /// Always `hot-cold`.
    pub table: &'static str,
    /// Share of the updates that the hot data gets; it is one minus this share of the pages.
    pub hot_updates_ratio: f64,
    /// Least cost.
    pub min_cost_ratio: f64,
    /// Cost when hot data gets 60% of the slack.
    pub hot60_cost_ratio: f64,
    /// Cost when hot data gets 40% of the slack.
    pub hot40_cost_ratio: f64,
    /// The paper's three numbers, and its simulation of MDC-opt.
    pub paper_cost_ratio: [f64; 4],
}

/// The bound of a workload at one fill factor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BoundRow {
    /// Always `bound`.
    pub table: &'static str,
    /// The workload, or the trace's file.
    pub workload: String,
    /// Fill factor F.
    pub fill_ratio: f64,
    /// Least `Wamp`.
    pub wamp_bound_ratio: f64,
    /// Least cost, the mean of 2/E over updates.
    pub cost_bound_ratio: f64,
    /// `Wamp` if all pages were updated equally often: what ignoring the differences costs.
    pub wamp_uniform_ratio: f64,
    /// Share of the updates of a trace that come in the order of earlier ones, and cost nothing.
    pub in_order_updates_ratio: f64,
    /// Share of the other updates that the busiest fifth of the pages gets.
    pub busiest_fifth_updates_ratio: f64,
}

/// Equation (4) at the given fill factors, or at those of Table 1.
///
/// # Errors
/// [`LabError::Request`] for a fill factor outside (0, 1).
pub fn emptiness_rows(fills: &[f64]) -> Result<Vec<EmptinessRow>, LabError> {
    let printed = analysis::table1();
    let fills: Vec<f64> = match fills {
        [] => printed.iter().map(|row| row.fill).collect(),
        some => some.to_vec(),
    };
    fills
        .into_iter()
        .map(|fill| {
            check_fill(fill)?;
            let emptiness = analysis::emptiness(fill);
            let paper = printed.iter().find(|row| (row.fill - fill).abs() < 1e-9);
            Ok(EmptinessRow {
                table: "equation-4",
                fill_ratio: fill,
                emptiness_ratio: emptiness,
                cost_ratio: analysis::cost(emptiness),
                emptiness_over_slack_ratio: emptiness / (1.0 - fill),
                wamp_ratio: analysis::wamp(emptiness),
                paper_emptiness_ratio: paper.map(|row| row.emptiness),
                paper_simulated_emptiness_ratio: paper.map(|row| row.simulated),
                paper_wamp_ratio: paper.map(|row| row.wamp),
            })
        })
        .collect()
}

/// Table 2.
pub fn split_rows() -> Vec<SplitRow> {
    analysis::table2()
        .into_iter()
        .map(|row| SplitRow {
            table: "hot-cold",
            hot_updates_ratio: row.hot_updates,
            min_cost_ratio: row.min_cost,
            hot60_cost_ratio: row.hot60_cost,
            hot40_cost_ratio: row.hot40_cost,
            paper_cost_ratio: row.paper,
        })
        .collect()
}

/// The bounds of a law over `pages` pages.
///
/// # Errors
/// [`LabError::Request`] for a law that changes over time, which has no such bound, or a fill
/// factor outside (0, 1).
pub fn law_bounds(
    kind: WorkloadKind,
    pages: u32,
    fills: &[f64],
) -> Result<Vec<BoundRow>, LabError> {
    if pages == 0 || pages >= Op::MAX_PAGES {
        return Err(LabError::Request(format!(
            "--pages must be 1 to {}, not {pages}",
            Op::MAX_PAGES - 1
        )));
    }
    let groups = groups_of(kind, pages).ok_or_else(|| {
        LabError::Request(format!(
            "workload {kind} changes over time; only one that does not has a bound"
        ))
    })?;
    let in_order = 0.0;
    bounds(
        &kind.to_string(),
        fills,
        &TraceContents { groups, in_order },
    )
}

/// The bounds of a trace, from the frequencies that its counts make most likely; updates that come
/// in order cost nothing.
///
/// # Errors
/// [`LabError::Input`] with the line, or a fill factor outside (0, 1).
pub fn trace_bounds(
    path: &Path,
    format: TraceFormat,
    page_bytes: u32,
    fills: &[f64],
) -> Result<Vec<BoundRow>, LabError> {
    let input = read_trace_file(path, format, page_bytes, None, 1)?;
    bounds(&input.name, fills, &input.trace.contents(0))
}

fn bounds(name: &str, fills: &[f64], contents: &TraceContents) -> Result<Vec<BoundRow>, LabError> {
    let fifth = busiest_fifth(&contents.groups);
    fills
        .iter()
        .map(|&fill| {
            check_fill(fill)?;
            let FluidBound { wamp, cost, .. } = contents.bound(fill);
            Ok(BoundRow {
                table: "bound",
                workload: name.to_owned(),
                fill_ratio: fill,
                wamp_bound_ratio: wamp,
                cost_bound_ratio: cost,
                wamp_uniform_ratio: analysis::wamp(analysis::emptiness(fill)),
                in_order_updates_ratio: contents.in_order,
                busiest_fifth_updates_ratio: fifth,
            })
        })
        .collect()
}

fn busiest_fifth(groups: &[Group]) -> f64 {
    let mut sorted: Vec<&Group> = groups.iter().filter(|g| g.pages > 0.0).collect();
    sorted.sort_by(|a, b| (b.updates / b.pages).total_cmp(&(a.updates / a.pages)));
    let (mut pages, mut updates) = (0.2, 0.0);
    for group in sorted {
        let share = (pages / group.pages).min(1.0);
        updates += share * group.updates;
        pages -= share * group.pages;
        if pages <= 1e-12 {
            break;
        }
    }
    updates
}

fn check_fill(fill: f64) -> Result<(), LabError> {
    if fill > 0.0 && fill < 1.0 {
        return Ok(());
    }
    Err(LabError::Request(format!(
        "fill factor {fill} must be above 0 and below 1"
    )))
}

/// Table 1, in numbers for people.
#[must_use]
pub fn emptiness_sheet(rows: &[EmptinessRow]) -> Sheet {
    fn paper(number: Option<f64>) -> String {
        number.map_or_else(|| "-".to_owned(), |n| n.to_string())
    }
    Sheet::of(
        rows,
        &[
            ("F", |row| row.fill_ratio.to_string()),
            ("E", |row| format!("{:.4}", row.emptiness_ratio)),
            ("paper's E", |row| paper(row.paper_emptiness_ratio)),
            ("paper's MDC-opt", |row| {
                paper(row.paper_simulated_emptiness_ratio)
            }),
            ("cost 2/E", |row| format!("{:.2}", row.cost_ratio)),
            ("R", |row| format!("{:.2}", row.emptiness_over_slack_ratio)),
            ("Wamp", |row| format!("{:.3}", row.wamp_ratio)),
            ("paper's Wamp", |row| paper(row.paper_wamp_ratio)),
        ],
    )
}

/// Table 2, in numbers for people.
#[must_use]
pub fn split_sheet(rows: &[SplitRow]) -> Sheet {
    Sheet::of(
        rows,
        &[
            ("updates:pages", |row| {
                let hot = (row.hot_updates_ratio * 100.0).round();
                format!("{hot}:{}", 100.0 - hot)
            }),
            ("least", |row| format!("{:.3}", row.min_cost_ratio)),
            ("paper", |row| row.paper_cost_ratio[0].to_string()),
            ("hot 60%", |row| format!("{:.3}", row.hot60_cost_ratio)),
            ("paper", |row| row.paper_cost_ratio[1].to_string()),
            ("hot 40%", |row| format!("{:.3}", row.hot40_cost_ratio)),
            ("paper", |row| row.paper_cost_ratio[2].to_string()),
            ("paper's MDC-opt", |row| row.paper_cost_ratio[3].to_string()),
        ],
    )
}

/// Bounds, in numbers for people.
#[must_use]
pub fn bounds_sheet(rows: &[BoundRow]) -> Sheet {
    fn percent(share: f64) -> String {
        format!("{:.0}%", 100.0 * share)
    }
    Sheet::of(
        rows,
        &[
            ("workload", |row| crate::escape(row.workload.as_bytes())),
            ("F", |row| row.fill_ratio.to_string()),
            ("least Wamp", |row| format!("{:.4}", row.wamp_bound_ratio)),
            ("least cost", |row| format!("{:.3}", row.cost_bound_ratio)),
            ("Wamp if uniform", |row| {
                format!("{:.4}", row.wamp_uniform_ratio)
            }),
            ("in order", |row| percent(row.in_order_updates_ratio)),
            ("updates to the busiest fifth", |row| {
                percent(row.busiest_fifth_updates_ratio)
            }),
        ],
    )
}

/// Rows of one kind as CSV.
///
/// # Errors
/// Those of `out`.
pub fn write_csv(rows: &[impl Serialize], out: impl std::io::Write) -> std::io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    for row in rows {
        writer.serialize(row).map_err(std::io::Error::other)?;
    }
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_carry_the_papers_numbers_where_it_has_some() {
        let rows = emptiness_rows(&[]).unwrap();
        assert_eq!(rows.len(), 17);
        assert!(rows.iter().all(|row| row.paper_emptiness_ratio.is_some()));
        let other = emptiness_rows(&[0.8, 0.77]).unwrap();
        assert_eq!(other[0].paper_wamp_ratio, Some(1.66));
        assert_eq!(other[1].paper_wamp_ratio, None);
        assert!(emptiness_rows(&[1.0]).is_err());
        assert_eq!(split_rows().len(), 5);
        let mut csv = Vec::new();
        write_csv(&rows, &mut csv).unwrap();
        assert_eq!(String::from_utf8(csv).unwrap().lines().count(), 18);
    }

    #[test]
    fn bounds_lie_below_uniform_and_say_how_skewed_a_law_is() {
        let rows = law_bounds("hot-cold:0.8".parse().unwrap(), 1000, &[0.7, 0.8]).unwrap();
        assert!(rows[1].wamp_bound_ratio < rows[1].wamp_uniform_ratio);
        assert!((rows[0].busiest_fifth_updates_ratio - 0.8).abs() < 1e-9);
        let error = law_bounds("sliding:0.8:0.2:5".parse().unwrap(), 1000, &[0.8]).unwrap_err();
        assert!(error.to_string().contains("changes over time"));
    }

    #[test]
    fn a_malformed_trace_is_refused_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.csv");
        std::fs::write(&path, "W,1\nX,2\n").unwrap();
        let error = trace_bounds(&path, TraceFormat::Csv, 4096, &[0.8]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("t.csv") && text.contains("line 2"), "{text}");
    }
}
