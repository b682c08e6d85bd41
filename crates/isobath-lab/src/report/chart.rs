//! The one drawer of charts: SVG inside a page. A chart is about as wide as a telephone's screen,
//! so that its text is of the same size there and on a desk, where charts stand side by side.
//! Colours are the style sheet's, so that they follow the reader's theme.

use std::fmt::Write;

use super::{Axis, Markup, html, short};

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
/// Points of a curve that are drawn at most.
const POINTS_MAX: usize = 400;
/// Colours of series in the style sheet; further series are dashed.
const COLOURS: usize = 8;
/// Of a file of its own: the title's height, and that of a line for each colour.
const TITLE_LINE: f64 = 22.0;
const KEY_LINE: f64 = 17.0;
/// Part of a bar's place that it fills.
const BAR: f64 = 0.7;

/// The ink of a shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Ink {
    /// The colour of text.
    Text,
    /// The colour of one of several series.
    Series(usize),
    /// A place between 0 and 1 of a range of colours, for series with an order.
    Ramp(f64),
}

impl Ink {
    fn class(self) -> String {
        match self {
            Ink::Text => "text".to_owned(),
            Ink::Series(at) if (at / COLOURS).is_multiple_of(2) => format!("s{}", at % COLOURS),
            Ink::Series(at) => format!("s{} dashed", at % COLOURS),
            Ink::Ramp(_) => "ramp".to_owned(),
        }
    }

    fn style(self) -> Option<String> {
        match self {
            Ink::Ramp(share) => Some(format!("--share:{:.0}%", 100.0 * share.clamp(0.0, 1.0))),
            Ink::Text | Ink::Series(_) => None,
        }
    }

    /// A spot of the colour, to stand before what it means.
    pub(crate) fn key(self) -> Markup {
        html! { i class=(self.class()) style=[self.style()] {} }
    }
}

/// The legend of one chart or several.
pub(crate) fn legend(keys: &[(Ink, String)]) -> Markup {
    html! {
        p.legend { @for (ink, name) in keys { span { (ink.key()) (name) } } }
    }
}

/// A chart under construction.
#[derive(Debug)]
pub(crate) struct Chart {
    title: String,
    x: Axis,
    y: Axis,
    shapes: String,
}

impl Chart {
    /// An empty one.
    pub(crate) fn new(title: &str, x: Axis, y: Axis) -> Self {
        let (title, shapes) = (title.to_owned(), String::new());
        Self {
            title,
            x,
            y,
            shapes,
        }
    }

    fn add(&mut self, shape: &Markup) {
        self.shapes.push_str(&shape.0);
    }

    /// Tenths of a pixel are enough.
    fn px(&self, x: f64) -> f64 {
        tenths(LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT))
    }

    fn py(&self, y: f64) -> f64 {
        tenths(HEIGHT - BOTTOM - self.y.share(y) * (HEIGHT - TOP - BOTTOM))
    }

    /// Whether a point lies within the frame, or so little beside it that it may be drawn.
    fn has(&self, (x, y): (f64, f64)) -> bool {
        let near = -0.02..=1.02;
        near.contains(&self.x.share(x)) && near.contains(&self.y.share(y))
    }

    /// A curve through points; those that are not finite, or lie outside, break it. Of many points,
    /// the lowest and the highest of each stretch are drawn.
    pub(crate) fn curve(&mut self, points: &[(f64, f64)], ink: Ink, tooltip: &str) {
        let mut path = String::new();
        let mut is_drawing = false;
        for &point in &thinned(points) {
            if self.has(point) {
                let pen = if is_drawing { 'L' } else { 'M' };
                // Writing to a `String` cannot fail.
                let _ = write!(path, "{pen}{} {}", self.px(point.0), self.py(point.1));
            }
            is_drawing = self.has(point);
        }
        self.add(&html! {
            path class={ "curve " (ink.class()) } style=[ink.style()] d=(path) { title { (tooltip) } }
        });
    }

    /// A point; hollow points are of another kind, as the text beside the chart says.
    pub(crate) fn point(&mut self, at: (f64, f64), ink: Ink, is_hollow: bool, tooltip: &str) {
        let (x, y, hollow) = (self.px(at.0), self.py(at.1), is_hollow.then_some(" hollow"));
        self.add(&html! {
            circle class={ "mark " (ink.class()) @if let Some(hollow) = hollow { (hollow) } } style=[ink.style()] cx=(x) cy=(y) r="3.6" {
                title { (tooltip) }
            }
        });
    }

    /// A bar from 0 to `at`, whose place is one wide.
    pub(crate) fn bar(&mut self, at: (f64, f64), ink: Ink, tooltip: &str) {
        let (low, high) = bar_ends(at.0);
        let (x, top) = (self.px(low), self.py(at.1));
        self.add(&html! {
            rect class={ "bar " (ink.class()) } x=(x) y=(top) width=(tenths(self.px(high) - x))
                height=(tenths((self.py(0.0) - top).max(0.0))) { title { (tooltip) } }
        });
    }

    /// A limit across the bar at `at`.
    pub(crate) fn limit(&mut self, at: (f64, f64), tooltip: &str) {
        let (low, high) = bar_ends(at.0);
        self.rule((low, at.1), (high, at.1), "limit", tooltip);
    }

    /// A straight line.
    pub(crate) fn rule(&mut self, from: (f64, f64), to: (f64, f64), class: &str, tooltip: &str) {
        let [from, to] = [from, to].map(|(x, y)| (self.px(x), self.py(y)));
        self.add(&html! {
            line class=(class) x1=(from.0) y1=(from.1) x2=(to.0) y2=(to.1) { title { (tooltip) } }
        });
    }

    /// A map of `f` between the axes, `columns` × `rows` cells, darker if it is larger, with
    /// lines where it equals one of the levels.
    pub(crate) fn map(
        &mut self,
        cells: (usize, usize),
        levels: &[f64],
        f: impl Fn(f64, f64) -> f64,
    ) {
        let (columns, rows) = cells;
        // The values at the cells' corners, for the lines, and in their middles, for the colours:
        // half a step apart.
        let at = |i: f64, j: f64| {
            let (x, y) = (
                self.x.value(i / columns as f64),
                self.y.value(j / rows as f64),
            );
            (self.px(x), self.py(y), f(x, y))
        };
        let corner = |i: usize, j: usize| at(i as f64, j as f64);
        let places = || (0..columns).flat_map(|i| (0..rows).map(move |j| (i, j)));
        let middles: Vec<f64> = places()
            .map(|(i, j)| at(i as f64 + 0.5, j as f64 + 0.5).2)
            .collect();
        let range = Axis::log_over("", middles.iter().copied());
        let mut shapes = html! {
            @for ((i, j), value) in places().zip(&middles) {
                @let (low, high) = (corner(i, j), corner(i + 1, j + 1));
                rect.heat x=(low.0) y=(high.1) width=(tenths(high.0 - low.0)) height=(tenths(low.1 - high.1))
                    fill-opacity=(format!("{:.2}", 0.08 + 0.72 * range.share(*value))) {}
            }
        }
        .0;
        for &level in levels {
            let (mut path, mut crossings) = (String::new(), Vec::new());
            for (i, j) in places() {
                let square = [(i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1)]
                    .map(|(i, j)| corner(i, j))
                    .map(|(x, y, value)| (x, y, (value / level).ln()));
                let cuts: Vec<(f64, f64)> = (0..4)
                    .map(|edge| (square[edge], square[(edge + 1) % 4]))
                    .filter(|(a, b)| (a.2 > 0.0) != (b.2 > 0.0))
                    .map(|(a, b)| (a.2 / (a.2 - b.2), a, b))
                    .map(|(t, a, b)| (tenths(a.0 + (b.0 - a.0) * t), tenths(a.1 + (b.1 - a.1) * t)))
                    .collect();
                for [from, to] in cuts.as_chunks::<2>().0 {
                    // Writing to a string does not fail.
                    let _ = write!(path, "M{} {}L{} {}", from.0, from.1, to.0, to.1);
                    crossings.push(*from);
                }
            }
            crossings.sort_by(|a, b| a.1.total_cmp(&b.1));
            if let Some((x, y)) = crossings.get(crossings.len() / 2) {
                let line = html! {
                    path.contour d=(path) { title { (short(level)) } }
                    text.level x=(x.clamp(LEFT + 14.0, WIDTH - RIGHT - 14.0)) y=(tenths(y + 4.0).min(HEIGHT - BOTTOM - 4.0)) { (short(level)) }
                };
                shapes.push_str(&line.0);
            }
        }
        self.shapes.push_str(&shapes);
    }

    /// A word at the left edge, at the height of `y`.
    pub(crate) fn name(&mut self, y: f64, name: &str) {
        let y = tenths(self.py(y) + 4.0);
        self.add(&html! { text.label x="2" y=(y) { (name) } });
    }

    /// Ticks, names of the axes and the drawing.
    fn inside(&self) -> Markup {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        html! {
            @for tick in self.x.ticks() {
                @let x = self.px(tick);
                line.grid x1=(x) x2=(x) y1=(TOP) y2=(bottom) {}
                text.tick x=(x) y=(bottom + 15.0) text-anchor="middle" { (short(tick)) }
            }
            @for tick in self.y.ticks() {
                @let y = self.py(tick);
                line.grid x1=(LEFT) x2=(right) y1=(y) y2=(y) {}
                text.tick x=(LEFT - 5.0) y=(tenths(y + 4.0)) text-anchor="end" { (short(tick)) }
            }
            text.label x="2" y="13" { (self.y.name) }
            text.label x=(right) y=(HEIGHT - 7.0) text-anchor="end" { (self.x.name) }
            (maud::PreEscaped(&self.shapes))
        }
    }

    /// The finished chart under its title, over what its colours stand for.
    pub(crate) fn figure(&self, keys: &[(Ink, String)]) -> Markup {
        html! {
            figure {
                figcaption { (self.title) }
                svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.title) { (self.inside()) }
                @if !keys.is_empty() { (legend(keys)) }
            }
        }
    }

    /// The same as a file of its own.
    pub(crate) fn svg(&self, keys: &[(Ink, String)]) -> String {
        let line = |at: usize| HEIGHT + 14.0 + at as f64 * KEY_LINE;
        let below = keys.len() as f64 * KEY_LINE + if keys.is_empty() { 0.0 } else { 6.0 };
        let (width, height) = (WIDTH, HEIGHT + TITLE_LINE + below);
        let svg = html! {
            svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 " (-TITLE_LINE) " " (width) " " (height) } width=(width) height=(height)
                role="img" aria-label=(self.title) {
                style { (maud::PreEscaped(super::STYLE)) }
                rect x="0" y=(-TITLE_LINE) width=(width) height=(height) style="fill: var(--paper)" {}
                text.label x="2" y="-5" style="font: 600 13px system-ui, 'DejaVu Sans', sans-serif" { (self.title) }
                g style="font-family: system-ui, 'DejaVu Sans', sans-serif" {
                    (self.inside())
                    @for (at, (ink, name)) in keys.iter().enumerate() {
                        rect class={ "bar " (ink.class()) } style=[ink.style()] x="2" y=(line(at) - 9.0) width="10" height="10" {}
                        text.label x="17" y=(line(at)) { (name) }
                    }
                }
            }
        };
        svg.into_string() + "\n"
    }
}

fn tenths(pixels: f64) -> f64 {
    (10.0 * pixels).round() / 10.0
}

fn bar_ends(x: f64) -> (f64, f64) {
    (x - BAR / 2.0, x + BAR / 2.0)
}

/// At most `POINTS_MAX` of the points: of each stretch the lowest and the highest, in their order.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points.to_vec();
    }
    let stretches = points.chunks((2 * points.len()).div_ceil(POINTS_MAX));
    let ends = stretches.filter_map(|stretch| {
        let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let mut ends = [stretch.iter().min_by(by_y)?, stretch.iter().max_by(by_y)?];
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(ends.map(|end| *end))
    });
    ends.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        Chart::new("t", Axis::log("x", 1.0, 100.0), Axis::log("y", 1.0, 100.0))
    }

    /// The first path of that class.
    fn path<'a>(shapes: &'a str, class: &str) -> Option<&'a str> {
        let of_class = shapes.split_once(&format!("<path class=\"{class}"))?.1;
        of_class.split_once("d=\"")?.1.split('"').next()
    }

    #[test]
    fn a_contour_lies_where_the_function_has_its_level() {
        let mut nowhere = chart();
        nowhere.map((20, 20), &[1e9], |x, y| x * y);
        assert_eq!(path(&nowhere.shapes, "contour"), None);
        assert_eq!(nowhere.shapes.matches("<rect").count(), 400);
        // x·y = 100 is the falling diagonal: both shares together are the same for all of its
        // points.
        let mut diagonal = chart();
        diagonal.map((20, 20), &[100.0], |x, y| x * y);
        let points: Vec<f64> = path(&diagonal.shapes, "contour")
            .unwrap()
            .split(['M', 'L'])
            .filter(|p| !p.is_empty())
            .map(|p| {
                let (x, y) = p.split_once(' ').unwrap();
                let share_x = (x.parse::<f64>().unwrap() - LEFT) / (WIDTH - LEFT - RIGHT);
                let up = HEIGHT - BOTTOM - y.parse::<f64>().unwrap();
                share_x + up / (HEIGHT - TOP - BOTTOM)
            })
            .collect();
        assert!(points.len() > 20);
        assert!(points.iter().all(|s| (s - 1.0).abs() < 0.02), "{points:?}");
    }

    #[test]
    fn a_curve_breaks_where_it_has_no_point() {
        let mut chart = chart();
        let points = [1.0, 10.0, f64::NAN, 0.0, 1e9, 10.0, 100.0].map(|y| (10.0, y));
        chart.curve(&points, Ink::Text, "");
        let path = path(&chart.shapes, "curve").unwrap();
        assert_eq!(
            (path.matches('M').count(), path.matches('L').count()),
            (2, 2)
        );
    }

    #[test]
    fn a_long_curve_keeps_its_lowest_and_highest_points() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|x| (f64::from(x), 5.0)).collect();
        (points[1_234].1, points[7_777].1) = (0.0, 9.0);
        let drawn = thinned(&points);
        assert!(drawn.len() <= POINTS_MAX);
        assert!(drawn.contains(&points[1_234]) && drawn.contains(&points[7_777]));
        assert!(drawn.is_sorted_by_key(|point| point.0));
    }

    #[test]
    fn every_series_has_a_look_of_its_own() {
        let looks: std::collections::BTreeSet<String> =
            (0..16).map(|at| Ink::Series(at).class()).collect();
        assert_eq!(looks.len(), 16);
    }
}
