//! Small line and bar charts in SVG, for reports without a script.

use std::fmt::Write;

use crate::model_report_svg::{escape, short};

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 52.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 24.0;
const RIGHT: f64 = 10.0;
/// Points of a line that are drawn at most.
const POINTS_MAX: usize = 400;

const COLOURS: [&str; 8] = [
    "#1f6fb4", "#d1662a", "#2d8a4e", "#8a4fa3", "#b03a48", "#7a6a1e", "#2b8c8c", "#555555",
];

/// The colour of line or bar number `at`.
pub(super) fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

/// A line, with a mark on one of its points.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) mark: Option<usize>,
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| {
        (l.min(v), h.max(v))
    });
    match () {
        () if low > high => (0.0, 1.0),
        () if low == high => (low.min(0.0), high.max(low.min(0.0) + 1.0)),
        () => (low, high),
    }
}

/// Where a tick is on the page, and its text.
type Ticks<'t> = &'t [(f64, String)];

fn frame(svg: &mut String, title: &str, x_name: &str, x_ticks: Ticks<'_>, y_ticks: Ticks<'_>) {
    let _ = write!(
        svg,
        r##"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{0}"><text x="{LEFT}" y="14" class="t">{0}</text>"##,
        escape(title)
    );
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for (y, text) in y_ticks {
        let _ = write!(
            svg,
            r#"<line x1="{LEFT}" x2="{right}" y1="{y:.1}" y2="{y:.1}" class="g"/><text x="{0}" y="{1:.1}" class="y">{text}</text>"#,
            LEFT - 5.0,
            y + 3.0
        );
    }
    for (x, text) in x_ticks {
        let _ = write!(
            svg,
            r#"<text x="{x:.1}" y="{}" class="x">{}</text>"#,
            bottom + 14.0,
            escape(text)
        );
    }
    let _ = write!(
        svg,
        r#"<text x="{}" y="{}" class="x">{}</text>"#,
        (LEFT + right) / 2.0,
        HEIGHT - 4.0,
        escape(x_name)
    );
}

/// Lines over a linear or logarithmic x axis; the y axis begins at 0.
pub(super) fn lines(title: &str, x_name: &str, log_x: bool, all: &[Line]) -> String {
    let scale = |x: f64| if log_x { x.max(1e-9).log10() } else { x };
    let points = || all.iter().flat_map(|line| &line.points);
    let (x_low, x_high) = range(points().map(|p| scale(p.0)));
    let (_, y_high) = range(points().map(|p| p.1).chain([0.0]));
    let x_at = |x: f64| LEFT + (scale(x) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT);
    let y_at = |y: f64| HEIGHT - BOTTOM - y / y_high * (HEIGHT - BOTTOM - TOP);
    let x_ticks: Vec<(f64, String)> = (0..=4)
        .map(|i| x_low + (x_high - x_low) * f64::from(i) / 4.0)
        .map(|x| if log_x { 10f64.powf(x) } else { x })
        .map(|x| (x_at(x), short(round(x))))
        .collect();
    let y_ticks: Vec<(f64, String)> = (0..=4)
        .map(|i| y_high * f64::from(i) / 4.0)
        .map(|y| (y_at(y), short(round(y))))
        .collect();
    let mut svg = String::new();
    frame(&mut svg, title, x_name, &x_ticks, &y_ticks);
    for (at, line) in all.iter().enumerate() {
        let every = line.points.len().div_ceil(POINTS_MAX).max(1);
        let path: Vec<String> = line
            .points
            .iter()
            .step_by(every)
            .map(|(x, y)| format!("{:.1},{:.1}", x_at(*x), y_at(*y)))
            .collect();
        let _ = write!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{1}" stroke-width="1.5"><title>{2}</title></polyline>"#,
            path.join(" "),
            colour(at),
            escape(&line.name)
        );
        if let Some((x, y)) = line.mark.and_then(|mark| line.points.get(mark)) {
            let _ = write!(
                svg,
                r#"<circle cx="{:.1}" cy="{:.1}" r="4" fill="{}" stroke="white"><title>steady from here: {}</title></circle>"#,
                x_at(*x),
                y_at(*y),
                colour(at),
                escape(&line.name)
            );
        }
    }
    svg + "</svg>"
}

/// Three significant digits.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let unit = 10f64.powf(value.abs().log10().floor() - 2.0);
    (value / unit).round() * unit
}

/// Bars with a limit that each is to be seen against.
pub(super) fn bars(title: &str, all: &[(String, f64, Option<f64>)]) -> String {
    let values = all
        .iter()
        .flat_map(|(_, value, limit)| [Some(*value), *limit]);
    let (_, high) = range(values.flatten().chain([0.0]));
    let y_at = |y: f64| HEIGHT - BOTTOM - y / high * (HEIGHT - BOTTOM - TOP);
    let step = (WIDTH - LEFT - RIGHT) / all.len().max(1) as f64;
    let x_ticks: Vec<(f64, String)> = (0..all.len())
        .map(|at| (LEFT + step * (at as f64 + 0.5), (at + 1).to_string()))
        .collect();
    let y_ticks: Vec<(f64, String)> = (0..=4)
        .map(|i| high * f64::from(i) / 4.0)
        .map(|y| (y_at(y), short(round(y))))
        .collect();
    let mut svg = String::new();
    frame(&mut svg, title, "run", &x_ticks, &y_ticks);
    for (at, (name, value, limit)) in all.iter().enumerate() {
        let x = LEFT + step * (at as f64 + 0.15);
        let _ = write!(
            svg,
            r#"<rect x="{x:.1}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{}"><title>{}: {}</title></rect>"#,
            y_at(*value),
            step * 0.7,
            (HEIGHT - BOTTOM - y_at(*value)).max(0.0),
            colour(at),
            escape(name),
            short(round(*value))
        );
        if let Some(limit) = limit {
            let _ = write!(
                svg,
                r#"<line x1="{x:.1}" x2="{:.1}" y1="{1:.1}" y2="{1:.1}" class="l"><title>the drive's limit: {2}</title></line>"#,
                x + step * 0.7,
                y_at(*limit),
                short(round(*limit))
            );
        }
    }
    svg + "</svg>"
}
