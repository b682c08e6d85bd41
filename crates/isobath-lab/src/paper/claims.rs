//! Statements of a paper, and what an experiment's points say of them.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{Experiment, Point};

/// What the points say of a statement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The statement.
    pub statement: String,
    /// Comparisons that were made; without any it is not judged.
    pub comparisons_count: usize,
    /// Where it does not hold.
    pub fails_at: Vec<String>,
}

/// Every series.
const ALL: &str = "*";

/// How points are compared.
enum Check<'c> {
    /// At each x the first series is at most so many times the second, or every other one.
    AtMost(&'c str, f64, &'c str),
    /// From its least x to its greatest a series changes by a factor between these two.
    Change(&'c str, f64, f64),
    /// What the paper prints is ours within this share.
    Near(f64),
}

impl Check<'_> {
    /// `a <= 1.1 b`, `a x 0.5 to 2` or `near 0.05`.
    fn of(text: &str) -> Option<Check<'_>> {
        if let Some((first, rest)) = text.split_once(" <= ") {
            let (factor, second) = rest.split_once(' ')?;
            return Some(Check::AtMost(first, factor.parse().ok()?, second));
        }
        if let Some((series, rest)) = text.split_once(" x ") {
            let (low, high) = rest.split_once(" to ")?;
            return Some(Check::Change(series, low.parse().ok()?, high.parse().ok()?));
        }
        Some(Check::Near(text.strip_prefix("near ")?.parse().ok()?))
    }
}

/// Judges `charts | check | statement`; nothing if the line is another one.
pub(super) fn judge(line: &str, experiment: &Experiment, points: &[Point]) -> Option<Verdict> {
    let (charts, rest) = line.split_once(" | ")?;
    let (check, statement) = rest.split_once(" | ")?;
    let check = Check::of(check)?;
    let mut verdict = Verdict {
        statement: statement.to_owned(),
        comparisons_count: 0,
        fails_at: Vec::new(),
    };
    for chart in charts.split(' ') {
        let chart: usize = chart.parse().ok()?;
        let [title, x_name, ..] = experiment.chart(chart)?;
        let here: Vec<&Point> = points.iter().filter(|point| point.chart == chart).collect();
        let mut compare = |holds: bool, series: &str, what: String| {
            verdict.comparisons_count += 1;
            if !holds {
                verdict
                    .fails_at
                    .push(format!("{title}, {series}, {x_name} {what}"));
            }
        };
        match check {
            Check::AtMost(first, factor, second) => {
                for a in here.iter().filter(|a| a.series == first) {
                    let is_other = |b: &Point| match second {
                        ALL => b.series != first,
                        name => b.series == name,
                    };
                    for b in here.iter().filter(|b| b.x == a.x && is_other(b)) {
                        let what =
                            format!("{}: {:.3} against {:.3} of {}", a.x, a.y, b.y, b.series);
                        compare(a.y <= factor * b.y, &a.series, what);
                    }
                }
            }
            Check::Change(name, low, high) => {
                let names: BTreeSet<&str> = here.iter().map(|p| p.series.as_str()).collect();
                for series in names.into_iter().filter(|s| name == ALL || name == *s) {
                    let of_series = || here.iter().filter(|p| p.series == series);
                    let least = of_series().min_by(|a, b| a.x.total_cmp(&b.x));
                    let most = of_series().max_by(|a, b| a.x.total_cmp(&b.x));
                    if let (Some(least), Some(most)) = (least, most)
                        && least.x < most.x
                    {
                        let change = most.y / least.y;
                        let what = format!("{} to {}: × {change:.3}", least.x, most.x);
                        compare((low..=high).contains(&change), series, what);
                    }
                }
            }
            Check::Near(share) => {
                for (series, x, y) in experiment.printed_in(chart) {
                    if let Some(ours) = here.iter().find(|p| p.series == series && p.x == x) {
                        let what = format!("{x}: {:.3} against {y}", ours.y);
                        compare((ours.y / y - 1.0).abs() <= share, series, what);
                    }
                }
            }
        }
    }
    Some(verdict)
}

/// One sentence: how many statements hold, and which do not.
pub(super) fn sentence(verdicts: &[Verdict], measured: usize, lacking: usize) -> String {
    let judged = || {
        verdicts
            .iter()
            .filter(|verdict| verdict.comparisons_count > 0)
    };
    let failed = judged().filter(|verdict| !verdict.fails_at.is_empty());
    let failed: Vec<String> = failed.map(|v| format!("“{}”", v.statement)).collect();
    let holds = match (measured, judged().count(), failed.len()) {
        (0, ..) => "Nothing is measured".to_owned(),
        (_, 0, _) => "These rows judge no statement".to_owned(),
        (_, all, 0) => format!("{all} of {all} statements hold"),
        (_, all, some) => format!(
            "{} of {all} statements hold; not {}",
            all - some,
            failed.join(", ")
        ),
    };
    let more = |count: usize, what: &str| match count {
        0 => String::new(),
        count => format!("; {what}: {count}"),
    };
    let unjudged = more(verdicts.len() - judged().count(), "statements not judged");
    format!("{holds}{unjudged}{}.", more(lacking, "rows lacking"))
}
