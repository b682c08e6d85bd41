//! The HTML report of the cleaning laboratory: both tables of paper 003 beside the computed ones,
//! and its figures 3 to 6 redrawn from simulations.

use std::collections::{BTreeMap, BTreeSet};

use crate::clean::CleanRow;
use crate::clean_analysis::{
    BoundRow, bounds_sheet, emptiness_rows, emptiness_sheet, split_rows, split_sheet,
};
use crate::report::{Axis, Chart, Ink, Markup, cells, html, number, page, sheet, table, words};

/// The report: Tables 1 and 2, then one chart per workload of steady `Wamp` over the fill factor
/// (Fig. 5, 6), one over the skew of hot-cold workloads (Fig. 3), one over the sort buffer (Fig.
/// 4), and the convergence of every run.
pub fn html_report(rows: &[CleanRow]) -> String {
    let measured = rows.iter().filter(|row| row.error.is_none());
    let measured: Vec<&CleanRow> = measured.collect();
    let charts = charts(&measured);
    let content = html! {
        (tables())
        @if !charts.is_empty() {
            h2 { "Wamp: extra writes per user write" }
            p { "Over the fill factor, the skew and the sort buffer: in the second half of each run." }
            div.panels { @for chart in charts { (chart) } }
        }
        @if !rows.is_empty() {
            (rows_table(rows))
        }
    };
    page("Cleaning a log-structured store", &content)
}

/// The limits of the fluid bound, printed wherever it is shown.
pub const BOUND_LIMITS: &str = "The bound holds for updates that are independent of each other; of traces, updates that come in order are found and count as free. It is that of segments of very many pages: smaller ones differ more by chance, and cost less.";

/// Why traces that are played several times have none.
pub const NO_BOUND_OF_REPEATS: &str = "A trace that is played several times has no bound: its updates come again in the same order, so that they are not independent of each other. Play it once to see the bound.";

/// A page of bounds.
pub fn bounds_report(rows: &[BoundRow]) -> String {
    let content = html! {
        p { (BOUND_LIMITS) }
        (sheet(&bounds_sheet(rows)))
    };
    page("What cleaning costs at least", &content)
}

/// Tables 1 and 2.
fn tables() -> Markup {
    html! {
        h2 { "Table 1: emptiness when cleaned, by equation (4)" }
        (sheet(&emptiness_sheet(&emptiness_rows(&[]).unwrap_or_default())))
        h2 { "Table 2: least cost at F = 0.8" }
        (sheet(&split_sheet(&split_rows())))
        p { "The paper's 4.80 (70:30) and 5.46 (50:50) are slips for 4.76 and 5.55." }
    }
}

/// Points by line, and the name of x, of one chart.
type Lines<'r> = (&'static str, BTreeMap<&'r str, Vec<(f64, f64)>>);

const BOUND: &str = "bound";

fn charts(rows: &[&CleanRow]) -> Vec<Markup> {
    let mut charts: BTreeMap<String, Lines<'_>> = BTreeMap::new();
    for row in rows {
        let (workload, fill, y) = (&row.workload, row.fill_ratio, row.wamp_steady_ratio);
        let mut add =
            |title: String, x: &'static str, points: &[(f64, f64)], bound: Option<f64>| {
                let lines = &mut charts.entry(title).or_insert((x, BTreeMap::new())).1;
                lines.entry(&row.policy).or_default().extend(points);
                if let (Some(bound), [(x, _)]) = (bound, points) {
                    lines.entry(BOUND).or_default().push((*x, bound));
                }
            };
        let bound = row.wamp_bound_ratio;
        let title = format!("Over fill factor: {workload} (Fig. 5, 6)");
        add(title, "fill factor", &[(fill, y)], bound);
        let skew = workload
            .strip_prefix("hot-cold:")
            .and_then(|rest| rest.split(':').next()?.parse().ok());
        if let Some(skew) = skew {
            let title = format!("Over skew at F = {fill} (Fig. 3)");
            add(
                title,
                "share of updates to the hot set",
                &[(skew, y)],
                bound,
            );
        }
        let buffer = f64::from(row.sort_buffer_segments);
        let title = format!("Over sort buffer: {workload} at F = {fill} (Fig. 4)");
        add(title, "sort buffer, segments", &[(buffer, y)], None);
        let over_time = row.wamp_series_ratio.iter().enumerate();
        let over_time: Vec<(f64, f64)> = over_time.map(|(i, wamp)| (i as f64, *wamp)).collect();
        let title = format!("Over the run: {workload} at F = {fill}");
        add(title, "run, %", &over_time, None);
    }
    // A policy has one colour in all charts.
    let policies: BTreeSet<&str> = rows.iter().map(|row| row.policy.as_str()).collect();
    let ink = |name: &str| {
        let series = policies.iter().position(|policy| *policy == name);
        series.map_or(Ink::Text, Ink::Series)
    };
    let several_x = |(_, lines): &Lines<'_>| {
        let mut lines = lines.values();
        lines.any(|points| points.iter().any(|point| point.0 != points[0].0))
    };
    let charts = charts.into_iter().filter(|(_, lines)| several_x(lines));
    charts
        .map(|(title, (x, lines))| {
            let points = || lines.values().flatten();
            let x = Axis::over(x, points().map(|point| point.0));
            let mut chart = Chart::new(&title, x, Axis::from_zero("Wamp", points().map(|p| p.1)));
            let mut keys = Vec::new();
            for (name, mut points) in lines {
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                chart.curve(&points, ink(name), name);
                keys.push((ink(name), name.to_owned()));
            }
            chart.figure(&keys)
        })
        .collect()
}

fn rows_table(rows: &[CleanRow]) -> Markup {
    let columns = [
        words("Workload"),
        number("F"),
        words("Policy"),
        number("Wamp steady"),
        number("Wamp whole"),
        number("Bound"),
        number("E"),
        number("Bytes per page"),
    ];
    let rows = rows.iter().map(|row| {
        if let Some(error) = &row.error {
            return cells![row.workload, row.fill_ratio, row.policy, error];
        }
        let bound = row.wamp_bound_ratio;
        cells![
            row.workload,
            row.fill_ratio,
            row.policy,
            format!("{:.3}", row.wamp_steady_ratio),
            format!("{:.3}", row.wamp_whole_ratio),
            bound.map_or(String::new(), |bound| format!("{bound:.3}")),
            format!("{:.3}", row.emptiness_steady_ratio),
            row.history_bytes_per_page,
        ]
    });
    html! {
        h2 { "All runs" }
        p { (BOUND_LIMITS) " Laws that change over time have none, nor have traces that are played several times." }
        (table(&columns, rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::check::Page;
    use isobath_flash::policy::PolicyKind;
    use isobath_flash::sim::{RunLength, SimConfig, simulate};

    #[test]
    fn the_report_has_both_tables_and_a_chart_where_something_varies() {
        let mut rows = Vec::new();
        for fill in [0.5, 0.7] {
            let mut config = SimConfig::paper(200, fill);
            config.segment_bytes = 64 * 4096;
            let workload = "hot-cold:0.8:0.2";
            let kind = workload.parse().unwrap();
            let report =
                simulate(PolicyKind::Mdc, &config, kind, RunLength::DeviceWrites(1.0)).unwrap();
            rows.push(CleanRow::new(&config, workload, Some((0.5, None)), &report));
        }
        let html = html_report(&rows);
        let page = Page::of(&html);
        assert!(html.contains("Table 1") && html.contains("0.3714") && html.contains("4.76"));
        assert_eq!(
            page.texts("figcaption"),
            [
                "Over fill factor: hot-cold:0.8:0.2 (Fig. 5, 6)",
                "Over the run: hot-cold:0.8:0.2 at F = 0.5",
                "Over the run: hot-cold:0.8:0.2 at F = 0.7"
            ],
            "neither the skew nor the sort buffer varied"
        );
        assert_eq!(page.tooltips(), ["bound", "mdc", "mdc", "mdc"]);
        let mut worse = rows.clone();
        worse
            .iter_mut()
            .for_each(|row| row.policy = "mdc-no-sep-user".into());
        let html = html_report(&[rows, worse].concat());
        let page = Page::of(&html);
        let both = ["mdc", "mdc-no-sep-user"];
        assert_eq!(
            page.tooltips(),
            [&["bound"], &both[..], &both, &both].concat()
        );
    }
}
