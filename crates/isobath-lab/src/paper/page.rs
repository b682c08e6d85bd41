//! The page of a paper's experiments.

use std::collections::BTreeSet;

use super::{Experiment, PREDICTED, Paper, PaperSize, Point, Records, lacks};
use crate::report::{Axis, Chart, Ink, Markup, cells, html as markup, number, page, table, words};

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
    let statements = outcome.verdicts.iter().map(|verdict| {
        let says = match (verdict.comparisons_count, &verdict.fails_at[..]) {
            (0, _) => "not judged by these rows".to_owned(),
            (_, []) => "holds".to_owned(),
            (_, fails) => format!("does not hold: {}", fails.join("; ")),
        };
        cells![verdict.statement, verdict.comparisons_count, says]
    });
    let columns = [words("Statement"), number("Comparisons"), words("Verdict")];
    let points = experiment.measured(size, records);
    markup! {
        h2 id=(experiment.name) { (experiment.name) ": " (experiment.title) }
        p { (outcome.sentence) }
        div.panels { @for at in 0..experiment.charts.len() { (chart(experiment, at, &points)) } }
        (printed(experiment, &points))
        (table(&columns, statements))
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
    let of_chart = |at: usize| {
        let title = experiment.chart(at).map_or("", |[title, ..]| title);
        experiment
            .printed_in(at)
            .into_iter()
            .map(move |(series, x, y)| {
                let ours = points
                    .iter()
                    .find(|p| p.chart == at && p.series == series && p.x == x);
                let ours = ours.map_or_else(|| "-".to_owned(), |p| format!("{:.4}", p.y));
                cells![title, series, x, ours, y]
            })
    };
    let columns = [
        words("Chart"),
        words("Series"),
        number("x"),
        number("Ours"),
        number("Paper"),
    ];
    table(&columns, (0..experiment.charts.len()).flat_map(of_chart))
}

fn rows(experiment: &Experiment, size: PaperSize, records: &Records) -> Markup {
    let lines = experiment.rows(size).into_iter().map(|row| {
        let commands: Vec<String> = row
            .commands
            .iter()
            .map(|command| match command.strip_prefix(PREDICTED) {
                Some(costs) => format!("equations, from {costs}"),
                None => format!("isobath {command}"),
            })
            .collect();
        let seconds = records
            .get(&row.commands)
            .map(|record| format!("{:.1}", record.seconds));
        let note = lacks(&row, records).map_or(row.note, |why| format!("lacking: {why}"));
        cells![
            row.series,
            row.x,
            commands.join(" && "),
            seconds.unwrap_or_default(),
            note
        ]
    });
    let columns = [
        words("Series"),
        number("x"),
        words("Command"),
        number("Seconds"),
        words("Note"),
    ];
    table(&columns, lines)
}
