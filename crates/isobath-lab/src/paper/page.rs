//! The page of a paper's experiments.

use std::collections::BTreeSet;

use super::{Experiment, PREDICTED, Paper, PaperSize, Point, Records, lacks};
use crate::report::{Axis, Chart, Ink, Markup, html as markup, page, tabulate};

/// The page, from the rows alone.
pub(super) fn html(paper: &Paper, size: PaperSize, records: &Records) -> String {
    let about = size.of(
        "Size small shows that everything runs: its rates mean nothing.",
        "Size machine is smaller than the paper's: compare orders and factors, not rates.",
        "Size full is the paper's own.",
    );
    let content = markup! {
        p { (paper.title) }
        p { (about) " Lines are ours, hollow points the numbers that the paper prints." }
        @for experiment in &paper.experiments {
            (section(experiment, &paper.id, size, records))
        }
    };
    page(&format!("Paper {}", paper.id), &content)
}

fn section(experiment: &Experiment, paper: &str, size: PaperSize, records: &Records) -> Markup {
    let outcome = experiment.outcome(paper, size, records);
    let statements = tabulate!(&outcome.verdicts, verdict => {
        words "Statement": verdict.statement,
        number "Comparisons": verdict.comparisons_count,
        words "Verdict": match (verdict.comparisons_count, &verdict.fails_at[..]) {
            (0, _) => "not judged by these rows".to_owned(),
            (_, []) => "holds".to_owned(),
            (_, fails) => format!("does not hold: {}", fails.join("; ")),
        },
    });
    let points = experiment.measured(size, records);
    markup! {
        h2 id=(experiment.name) { (experiment.name) ": " (experiment.title) }
        p { (outcome.sentence) }
        div.panels { @for at in 0..experiment.charts.len() { (chart(experiment, at, &points)) } }
        (printed(experiment, &points))
        (statements)
        (rows(experiment, size, records))
    }
}

fn chart(experiment: &Experiment, at: usize, points: &[Point]) -> Markup {
    let printed = experiment.printed_in(at);
    let ours = || points.iter().filter(|point| point.chart == at);
    let xs = || ours().map(|p| p.x).chain(printed.iter().map(|p| p.1));
    let ys = || ours().map(|p| p.y).chain(printed.iter().map(|p| p.2));
    let (Some([title, x, y, scale]), Some(_)) = (experiment.chart(at), xs().next()) else {
        return Markup::default();
    };
    let (x, y) = match scale {
        "log" => (Axis::log_over(x, xs()), Axis::log_over(y, ys())),
        _ => (Axis::over(x, xs()), Axis::from_zero(y, ys())),
    };
    let mut chart = Chart::new(title, x, y);
    let names = ours()
        .map(|point| point.series.as_str())
        .chain(printed.iter().map(|p| p.0));
    let names: BTreeSet<&str> = names.collect();
    let mut keys = Vec::new();
    for (series, name) in names.into_iter().enumerate() {
        let ink = Ink::Series(series);
        let own = ours().filter(|point| point.series == name);
        let mut own: Vec<(f64, f64)> = own.map(|point| (point.x, point.y)).collect();
        own.sort_by(|a, b| a.0.total_cmp(&b.0));
        match own[..] {
            [only] => chart.point(only, ink, false, name),
            _ => chart.curve(&own, ink, name),
        }
        for &(_, x, y) in printed.iter().filter(|printed| printed.0 == name) {
            chart.point((x, y), ink, true, &format!("{name}, the paper's: {y}"));
        }
        keys.push((ink, name.to_owned()));
    }
    chart.figure(&keys)
}

/// The paper's numbers beside ours.
fn printed(experiment: &Experiment, points: &[Point]) -> Markup {
    let all = (0..experiment.charts.len()).flat_map(|at| {
        let printed = experiment.printed_in(at).into_iter();
        printed.map(move |(series, x, y)| (at, series, x, y))
    });
    tabulate!(all, (at, series, x, paper) =>
        let mut all = points.iter();
        let ours = all.find(|p| p.chart == at && p.series == series && p.x == x); {
        words "Chart": experiment.chart(at).map_or("", |[title, ..]| title),
        words "Series": series,
        number "x": x,
        number "Ours": ours.map_or_else(|| "-".to_owned(), |p| format!("{:.4}", p.y)),
        number "Paper": paper,
    })
}

fn rows(experiment: &Experiment, size: PaperSize, records: &Records) -> Markup {
    let shown = |command: &String| match command.strip_prefix(PREDICTED) {
        Some(costs) => format!("equations, from {costs}"),
        None => format!("isobath {command}"),
    };
    tabulate!(experiment.rows(size), row =>
        let commands = row.commands.iter().map(shown).collect::<Vec<_>>();
        let record = records.get(&row.commands); {
        words "Series": row.series,
        number "x": row.x,
        words "Command": commands.join(" && "),
        number "Seconds": record.map_or(String::new(), |one| format!("{:.1}", one.seconds)),
        words "Note": lacks(&row, records).map_or(row.note, |why| format!("lacking: {why}")),
    })
}
