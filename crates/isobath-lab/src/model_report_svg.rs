//! The few SVG shapes that the model report is drawn with: log-log panels, curves, points, contour lines.

use std::fmt::Write;

/// An axis over a positive range, drawn on a logarithmic scale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogAxis {
    low: f64,
    high: f64,
}

impl LogAxis {
    /// Spans the finite positive values with a little room; one decade around 1 if there are none.
    pub(crate) fn spanning(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .filter(|v| v.is_finite() && *v > 0.0)
            .fold((f64::INFINITY, 0.0f64), |(low, high), v| {
                (low.min(v), high.max(v))
            });
        if low > high {
            Self {
                low: 0.3,
                high: 3.0,
            }
        } else {
            Self {
                low: low / 1.15,
                high: high * 1.15,
            }
        }
    }

    pub(crate) fn new(low: f64, high: f64) -> Self {
        Self { low, high }
    }

    /// 0 at the low end, 1 at the high end.
    pub(crate) fn share(&self, value: f64) -> f64 {
        (value / self.low).ln() / (self.high / self.low).ln()
    }

    pub(crate) fn value(&self, share: f64) -> f64 {
        self.low * (self.high / self.low).powf(share)
    }

    /// 1, 2, 5 per decade, or the decades alone where there are many.
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = if decades > 3.0 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        (first..=last)
            .flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)))
            .filter(|t| *t >= self.low && *t <= self.high)
            .collect()
    }
}

/// 1234567 → "1.2M".
pub(crate) fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        v if v >= 100.0 || (v - v.round()).abs() < 1e-9 => 0,
        v if v >= 1.0 => 1,
        v if v >= 0.1 => 2,
        _ => 3,
    };
    format!("{scaled:.digits$}{suffix}")
}

/// Text that is safe inside HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// A colour for `share` in 0..=1: dark blue over green to yellow, readable on white up to 0.9.
pub(crate) fn sequential(share: f64) -> String {
    const STOPS: [(f64, f64, f64); 5] = [
        (68.0, 40.0, 130.0),
        (38.0, 88.0, 140.0),
        (32.0, 144.0, 140.0),
        (94.0, 190.0, 98.0),
        (233.0, 205.0, 60.0),
    ];
    let place = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let i = (place.floor() as usize).min(STOPS.len() - 2);
    let (a, b, t) = (STOPS[i], STOPS[i + 1], place - i as f64);
    let mix = |x: f64, y: f64| (x + (y - x) * t).round() as u8;
    format!(
        "#{:02x}{:02x}{:02x}",
        mix(a.0, b.0),
        mix(a.1, b.1),
        mix(a.2, b.2)
    )
}

/// One log-log panel under construction.
pub(crate) struct Panel {
    pub(crate) x: LogAxis,
    pub(crate) y: LogAxis,
    width: f64,
    height: f64,
    body: String,
}

const LEFT: f64 = 56.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 42.0;

impl Panel {
    /// A panel with title, axis labels and grid.
    pub(crate) fn new(
        size: (f64, f64),
        title: &str,
        x: (LogAxis, &str),
        y: (LogAxis, &str),
    ) -> Self {
        let mut panel = Self {
            x: x.0,
            y: y.0,
            width: size.0,
            height: size.1,
            body: String::new(),
        };
        let (right, bottom) = (size.0 - RIGHT, size.1 - BOTTOM);
        for tick in panel.x.ticks() {
            let at = panel.px(tick);
            panel.line((at, TOP), (at, bottom), "grid");
            panel.text((at, bottom + 14.0), "tick", "middle", &short(tick));
        }
        for tick in panel.y.ticks() {
            let at = panel.py(tick);
            panel.line((LEFT, at), (right, at), "grid");
            panel.text((LEFT - 5.0, at + 4.0), "tick", "end", &short(tick));
        }
        panel.text((LEFT, 16.0), "title", "start", title);
        panel.text(((LEFT + right) / 2.0, size.1 - 8.0), "label", "middle", x.1);
        // Appended by hand: the only rotated text of a panel.
        let middle = (TOP + bottom) / 2.0;
        panel.push(format_args!(
            "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(13 {middle:.1}) rotate(-90)\">{}</text>",
            escape(y.1)
        ));
        panel
    }

    /// Writing to a `String` cannot fail; `write!` returns a `Result` only because its trait does.
    fn push(&mut self, shape: std::fmt::Arguments<'_>) {
        let _ = self.body.write_fmt(shape);
        self.body.push('\n');
    }

    pub(crate) fn px(&self, x: f64) -> f64 {
        LEFT + self.x.share(x) * (self.width - LEFT - RIGHT)
    }

    pub(crate) fn py(&self, y: f64) -> f64 {
        self.height - BOTTOM - self.y.share(y) * (self.height - TOP - BOTTOM)
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// A horizontal or other straight line between data coordinates.
    pub(crate) fn rule(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let (from, to) = (
            (self.px(from.0), self.py(from.1)),
            (self.px(to.0), self.py(to.1)),
        );
        self.line(from, to, class);
    }

    /// Text at pixel coordinates.
    pub(crate) fn text(&mut self, at: (f64, f64), class: &str, anchor: &str, text: &str) {
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            at.0,
            at.1,
            escape(text)
        ));
    }

    /// A curve through data points; points that are not positive and finite, or far outside, break it.
    pub(crate) fn curve(&mut self, points: &[(f64, f64)], color: &str) {
        let mut path = String::new();
        let mut pen_down = false;
        for &(x, y) in points {
            let inside = y.is_finite() && y > 0.0 && (-0.02..=1.02).contains(&self.y.share(y));
            if inside {
                let _ = write!(
                    path,
                    "{}{:.1} {:.1}",
                    if pen_down { 'L' } else { 'M' },
                    self.px(x),
                    self.py(y)
                );
            }
            pen_down = inside;
        }
        self.push(format_args!(
            "<path class=\"curve\" d=\"{path}\" stroke=\"{color}\"/>"
        ));
    }

    /// A measured point, with a tooltip. Hollow points are measurements of another kind, as the caption says.
    pub(crate) fn point(&mut self, at: (f64, f64), color: &str, hollow: bool, tooltip: &str) {
        let (class, fill) = match hollow {
            true => ("mark hollow", "none"),
            false => ("mark", color),
        };
        self.push(format_args!(
            "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.6\" fill=\"{fill}\" stroke=\"{color}\" stroke-width=\"1.5\"><title>{}</title></circle>",
            self.px(at.0),
            self.py(at.1),
            escape(tooltip)
        ));
    }

    /// A filled rectangle between data coordinates.
    pub(crate) fn cell(&mut self, low: (f64, f64), high: (f64, f64), color: &str) {
        let (x0, x1, y0, y1) = (
            self.px(low.0),
            self.px(high.0),
            self.py(high.1),
            self.py(low.1),
        );
        // Half a pixel of overlap, or hairlines of background would show between neighbours.
        self.push(format_args!(
            "<rect x=\"{x0:.1}\" y=\"{y0:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{color}\"/>",
            x1 - x0 + 0.5,
            y1 - y0 + 0.5
        ));
    }

    /// The line on which `f` equals `level`, by marching squares over `columns` × `rows` cells, and its label.
    pub(crate) fn contour(
        &mut self,
        columns: usize,
        rows: usize,
        f: &dyn Fn(f64, f64) -> f64,
        level: f64,
    ) {
        let node = |i: usize, j: usize| {
            let (x, y) = (
                self.x.value(i as f64 / columns as f64),
                self.y.value(j as f64 / rows as f64),
            );
            (self.px(x), self.py(y), (f(x, y) / level).ln())
        };
        let mut path = String::new();
        let mut crossings: Vec<(f64, f64)> = Vec::new();
        for i in 0..columns {
            for j in 0..rows {
                let corners = [
                    node(i, j),
                    node(i + 1, j),
                    node(i + 1, j + 1),
                    node(i, j + 1),
                ];
                let mut cut: Vec<(f64, f64)> = Vec::new();
                for e in 0..4 {
                    let (a, b) = (corners[e], corners[(e + 1) % 4]);
                    if (a.2 > 0.0) != (b.2 > 0.0) {
                        let t = a.2 / (a.2 - b.2);
                        cut.push((a.0 + (b.0 - a.0) * t, a.1 + (b.1 - a.1) * t));
                    }
                }
                for pair in cut.chunks_exact(2) {
                    let _ = write!(
                        path,
                        "M{:.1} {:.1}L{:.1} {:.1}",
                        pair[0].0, pair[0].1, pair[1].0, pair[1].1
                    );
                    crossings.push(pair[0]);
                }
            }
        }
        if crossings.is_empty() {
            return;
        }
        self.push(format_args!("<path class=\"contour\" d=\"{path}\"/>"));
        crossings.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (x, y) = crossings[crossings.len() / 2];
        self.text((x, y - 3.0), "contour-label", "middle", &short(level));
    }

    /// The finished element.
    pub(crate) fn finish(self) -> String {
        format!(
            "<svg viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\">\n{}</svg>\n",
            self.body,
            w = self.width,
            h = self.height
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_text_is_escaped() {
        assert_eq!(short(1_234_567.0), "1.2M");
        assert_eq!(short(50_000.0), "50k");
        assert_eq!(short(0.25), "0.25");
        assert_eq!(escape("<a & 'b'>"), "&lt;a &amp; &#39;b&#39;&gt;");
    }

    #[test]
    fn axes_are_logarithmic_and_invertible() {
        let axis = LogAxis::new(1.0, 100.0);
        assert!((axis.share(10.0) - 0.5).abs() < 1e-12);
        assert!((axis.value(0.25) - 100f64.powf(0.25)).abs() < 1e-9);
        assert_eq!(axis.ticks(), vec![1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn a_contour_lies_where_the_function_has_its_level() {
        let mut panel = Panel::new(
            (200.0, 200.0),
            "t",
            (LogAxis::new(1.0, 100.0), "x"),
            (LogAxis::new(1.0, 100.0), "y"),
        );
        let before = panel.body.len();
        panel.contour(20, 20, &|x, y| x * y, 1e9);
        assert_eq!(panel.body.len(), before, "no such level in range");
        // x·y = 100 is the falling diagonal: px + py is the same for all of its points.
        panel.contour(20, 20, &|x, y| x * y, 100.0);
        let added = &panel.body[before..];
        let path = added
            .split("d=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        let points: Vec<f64> = path
            .split(['M', 'L'])
            .filter(|p| !p.is_empty())
            .map(|p| {
                let (x, y) = p.split_once(' ').unwrap();
                let share_x = (x.parse::<f64>().unwrap() - LEFT) / (200.0 - LEFT - RIGHT);
                let share_y = (200.0 - BOTTOM - y.parse::<f64>().unwrap()) / (200.0 - TOP - BOTTOM);
                share_x + share_y
            })
            .collect();
        assert!(points.len() > 20);
        assert!(points.iter().all(|s| (s - 1.0).abs() < 0.02), "{points:?}");
    }
}
