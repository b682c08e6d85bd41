//! The HTML report about a drive's models: one self-contained page with inline SVG, no scripts, nothing to load.
//!
//! It shows measured points over predicted curves (the paper's Figures 1, 2 and 4), cost functions (Figure 3), residuals
//! and lines of equal throughput over concurrency and I/O size, beside the numbers.

use std::fmt::Write;

use isobath_model::curve::CostCurve;
use isobath_model::drive::{ConcurrencyCosts, Mqssd, PerOperation};
use isobath_model::profile::{DeviceProfile, HostCacheVerdict};
use isobath_model::report::{ModelReport, ModelRow};
use isobath_model::{
    DriveModel, HeldOutError, ModelKind, OperatingPoint, Operation, PAGE_BYTES, Sample,
};

use crate::model_report_svg::{LogAxis, Panel, escape, sequential, short};

const LARGE: (f64, f64) = (560.0, 400.0);
const SMALL: (f64, f64) = (370.0, 270.0);
const STYLE: &str = include_str!("model_report.css");

/// Renders the report.
pub fn render(report: &ModelReport, profile: &DeviceProfile) -> String {
    let mut page = String::new();
    let chosen = report.rows.iter().find(|r| r.chosen).map(|r| r.kind);
    let drive = profile
        .hardware
        .drive_model
        .as_deref()
        .unwrap_or(&profile.target.path);
    add(
        &mut page,
        format_args!("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"),
    );
    add(
        &mut page,
        format_args!(
            "<title>Drive model: {}</title><style>{STYLE}</style></head><body>",
            escape(drive)
        ),
    );
    add(
        &mut page,
        format_args!("<h1>Drive model: {}</h1>", escape(drive)),
    );
    page.push_str(&about(profile, report));
    page.push_str(&models(&report.rows));
    if let Some(kind) = chosen
        && let Some(predictor) = report.predictor(kind)
    {
        page.push_str(&predictions(report, kind, predictor.model()));
        page.push_str(&contours(report, kind, predictor.model()));
        page.push_str(&residuals(report, kind));
    }
    page.push_str(&other_models(report, chosen));
    page.push_str(&cost_functions(report));
    page.push_str(&coefficients(&report.rows));
    page.push_str("</body></html>\n");
    page
}

/// Writing to a `String` cannot fail.
fn add(page: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(text);
    page.push('\n');
}

fn about(profile: &DeviceProfile, report: &ModelReport) -> String {
    let mut html = String::from("<table class=\"facts\">");
    for (name, value) in facts(profile, report) {
        add(
            &mut html,
            format_args!("<tr><th>{name}</th><td>{}</td></tr>", escape(&value)),
        );
    }
    html.push_str("</table>\n");
    html
}

fn facts(profile: &DeviceProfile, report: &ModelReport) -> Vec<(&'static str, String)> {
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let system = &profile.system;
    let file_system = system.file_system.as_deref().unwrap_or("no file system");
    let direct = if system.direct_io {
        "O_DIRECT"
    } else {
        "through the page cache"
    };
    let state = serde_word(&format!("{:?}", profile.drive_state.preparation));
    let cache = match profile.host_cache.verdict {
        HostCacheVerdict::Suspected => "suspected",
        HostCacheVerdict::NoneSeen => "none seen",
        HostCacheVerdict::NotTested => "not tested",
    };
    let reruns: u32 = profile.points.iter().map(|p| p.reruns).sum();
    let incomplete = if profile.complete {
        ""
    } else {
        ", interrupted before the plan was done"
    };
    let (fitted, measured) = (report.samples.len(), profile.points.len());
    let noise =
        |share: Option<f64>| share.map_or("unknown".into(), |s| format!("{:.0}%", 100.0 * s));
    let repeats = &profile.repeat_noise;
    vec![
        (
            "Target",
            format!(
                "{}, {:.1} GiB",
                profile.target.path,
                gib(profile.target.size_bytes)
            ),
        ),
        (
            "System",
            format!(
                "Linux {}, {file_system}, {}, {direct}",
                system.kernel, system.io_interface
            ),
        ),
        (
            "Machine",
            format!(
                "{} CPUs, {:.0} GiB",
                profile.hardware.cpu_count,
                gib(profile.hardware.memory_bytes)
            ),
        ),
        (
            "Drive state",
            format!(
                "{state}, {:.1} GiB written beforehand",
                gib(profile.drive_state.prepared_bytes)
            ),
        ),
        ("Cache below the kernel", cache.into()),
        (
            "Points",
            format!("{fitted} fitted of {measured} measured, {reruns} rerun{incomplete}"),
        ),
        (
            "Repeats differ by",
            format!(
                "reads {}, writes {}",
                noise(repeats.read),
                noise(repeats.write)
            ),
        ),
    ]
}

/// `SequentialFill` → `sequential fill`.
fn serde_word(name: &str) -> String {
    let mut words = String::new();
    for (i, c) in name.chars().enumerate() {
        if i > 0 && c.is_uppercase() {
            words.push(' ');
        }
        words.extend(c.to_lowercase());
    }
    words
}

fn percent(share: f64) -> String {
    match share {
        s if s > 9.99 => "&gt; 999%".into(),
        s => format!("{:.1}%", 100.0 * s),
    }
}

fn models(rows: &[ModelRow]) -> String {
    let judged = rows.iter().any(|r| r.unseen.is_some());
    let (unseen_text, unseen_head) = match judged {
        true => (
            " <em>Unseen</em>: the points of another run.",
            "<th>Unseen: median</th><th>90th percentile</th>",
        ),
        false => ("", ""),
    };
    let mut html = format!(
        "<h2>How wrong is each model on points that it has not seen?</h2>\n<p>Relative error of predicted throughput. \
         <em>Cross-validated</em>: every point was predicted by a fit without it.{unseen_text} R² is of ln(throughput) on \
         the fitted points. The marked model is the one to predict with.</p>\n<table class=\"models\"><tr><th>Model</th>\
         <th>R²</th><th>Median error</th><th>90th percentile</th><th class=\"bar\"></th>{unseen_head}</tr>"
    );
    for row in rows {
        let class = if row.chosen { " class=\"chosen\"" } else { "" };
        if let Some(failure) = &row.failure {
            add(
                &mut html,
                format_args!(
                    "<tr{class}><td>{}</td><td colspan=\"{}\" class=\"failure\">{}</td></tr>",
                    row.kind,
                    if judged { 6 } else { 4 },
                    escape(failure)
                ),
            );
            continue;
        }
        let r_squared = row.r_squared.map_or("–".into(), |r| format!("{r:.3}"));
        let both = |error: Option<HeldOutError>| {
            error.map_or(("–".into(), "–".into()), |e| {
                (percent(e.median), percent(e.p90))
            })
        };
        let (median, p90) = both(row.held_out);
        let bar = row.held_out.map_or(String::new(), |e| {
            let width = |share: f64| 120.0 * share.min(1.0);
            format!("<div class=\"p90\" style=\"width:{:.0}px\"><div class=\"median\" style=\"width:{:.0}px\"></div></div>", width(e.p90), width(e.median))
        });
        let unseen = both(row.unseen);
        let unseen = match judged {
            true => format!("<td>{}</td><td>{}</td>", unseen.0, unseen.1),
            false => String::new(),
        };
        add(
            &mut html,
            format_args!(
                "<tr{class}><td>{}</td><td>{r_squared}</td><td>{median}</td><td>{p90}</td><td class=\"bar\">{bar}</td>{unseen}</tr>",
                row.kind
            ),
        );
    }
    html.push_str("</table>\n");
    html
}

/// Everything that curves over I/O size share: axes, the values of k, their colours.
struct Frame {
    operation: Operation,
    x: LogAxis,
    y: LogAxis,
    concurrencies: Vec<f64>,
    samples: Vec<Sample>,
}

/// More curves than this cannot be told apart.
const CURVES_MAX: usize = 8;

impl Frame {
    fn of(report: &ModelReport, operation: Operation) -> Option<Self> {
        let samples: Vec<Sample> = report
            .samples
            .iter()
            .filter(|s| s.point.pure_operation() == Some(operation))
            .copied()
            .collect();
        if samples.is_empty() {
            return None;
        }
        let mut concurrencies: Vec<f64> = samples.iter().map(|s| s.point.concurrency).collect();
        concurrencies.sort_by(f64::total_cmp);
        concurrencies.dedup();
        let every = concurrencies.len().div_ceil(CURVES_MAX);
        let concurrencies = concurrencies.into_iter().step_by(every).collect();
        Some(Self {
            operation,
            x: LogAxis::spanning(samples.iter().map(|s| s.point.io_pages)),
            y: LogAxis::spanning(samples.iter().map(|s| s.throughput_pages_per_s)),
            concurrencies,
            samples,
        })
    }

    fn color(&self, k: f64) -> String {
        let most = self.concurrencies.iter().copied().fold(1.0, f64::max);
        sequential(0.9 * k.ln() / most.max(2.0).ln())
    }

    fn at(&self, k: f64, io_pages: f64) -> OperatingPoint {
        match self.operation {
            Operation::Read => OperatingPoint::random_reads(k, io_pages),
            Operation::Write => OperatingPoint::random_writes(k, io_pages),
        }
    }

    fn panel(&self, size: (f64, f64), title: &str, model: &DriveModel) -> String {
        let mut panel = Panel::new(
            size,
            title,
            (self.x, "pages of 4 KiB per I/O (r = 1 / pages)"),
            (self.y, "pages per second"),
        );
        for &k in &self.concurrencies {
            let curve: Vec<(f64, f64)> = (0..=60)
                .map(|i| self.x.value(f64::from(i) / 60.0))
                .filter_map(|p| Some((p, model.throughput_pages_per_s(&self.at(k, p)).ok()?)))
                .collect();
            panel.curve(&curve, &self.color(k));
        }
        for sample in &self.samples {
            let p = &sample.point;
            let tooltip = format!(
                "k = {}, {} pages per I/O, {:.0}% random: {} pages/s",
                p.concurrency,
                p.io_pages,
                100.0 * p.random_share,
                short(sample.throughput_pages_per_s)
            );
            let hollow = p.random_share < 0.5;
            panel.point(
                (p.io_pages, sample.throughput_pages_per_s),
                &self.color(p.concurrency),
                hollow,
                &tooltip,
            );
        }
        panel.finish()
    }

    fn legend(&self) -> String {
        let mut html = String::from("<p class=\"legend\">");
        for &k in &self.concurrencies {
            add(
                &mut html,
                format_args!(
                    "<span><i style=\"background:{}\"></i>k = {k}</span>",
                    self.color(k)
                ),
            );
        }
        html.push_str("</p>\n");
        html
    }
}

const OPERATIONS: [Operation; 2] = [Operation::Read, Operation::Write];

fn predictions(report: &ModelReport, kind: ModelKind, model: &DriveModel) -> String {
    let mut html = format!(
        "<h2>Measured points over the predictions of the {kind}</h2>\n<p>Curves are for I/Os at random offsets, one \
         colour per number of I/Os in flight; one access per I/O, so the share r of pages that are accessed at \
         random, the paper's axis, is 1 / pages and falls to the right. Hollow points were mostly sequential and are not meant to lie on them.</p>\n\
         <div class=\"panels wide\">"
    );
    for frame in OPERATIONS.iter().filter_map(|&o| Frame::of(report, o)) {
        let panel = frame.panel(LARGE, &format!("{}s", capital(frame.operation)), model);
        add(
            &mut html,
            format_args!("<figure>{panel}{}</figure>", frame.legend()),
        );
    }
    html.push_str("</div>\n");
    html
}

fn capital(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "Read",
        Operation::Write => "Write",
    }
}

fn contours(report: &ModelReport, kind: ModelKind, model: &DriveModel) -> String {
    let mut html = format!(
        "<h2>Lines of equal throughput</h2>\n<p>MB/s at random offsets, predicted by the {kind}. Along a line, more in flight \
         buys smaller I/Os. Points mark what was measured.</p>\n<div class=\"panels wide\">"
    );
    for frame in OPERATIONS.iter().filter_map(|&o| Frame::of(report, o)) {
        let most = frame.concurrencies.iter().copied().fold(2.0, f64::max);
        let k_axis = LogAxis::new(1.0, most);
        let throughput = |k: f64, pages: f64| {
            model
                .throughput_pages_per_s(&frame.at(k, pages))
                .unwrap_or(f64::NAN)
                * PAGE_BYTES as f64
                / 1e6
        };
        let mut panel = Panel::new(
            LARGE,
            &format!("{}s", capital(frame.operation)),
            (k_axis, "I/Os in flight"),
            (frame.x, "pages of 4 KiB per I/O"),
        );
        let (columns, rows) = (36usize, 28usize);
        let node = |i: usize, j: usize| {
            (
                k_axis.value(i as f64 / columns as f64),
                frame.x.value(j as f64 / rows as f64),
            )
        };
        let corners = [node(0, 0), node(columns, rows)].map(|(k, p)| throughput(k, p));
        let range = LogAxis::new(
            corners[0].min(corners[1]),
            corners[0].max(corners[1]) * 1.001,
        );
        for i in 0..columns {
            for j in 0..rows {
                let ((k0, p0), (k1, p1)) = (node(i, j), node(i + 1, j + 1));
                let value = throughput((k0 * k1).sqrt(), (p0 * p1).sqrt());
                panel.cell((k0, p0), (k1, p1), &sequential(range.share(value)));
            }
        }
        for level in (0..=5).flat_map(|d| [1.0, 2.0, 5.0].map(|s| s * 10f64.powi(d))) {
            panel.contour(columns, rows, &throughput, level);
        }
        for sample in &frame.samples {
            let mb = sample.throughput_pages_per_s * PAGE_BYTES as f64 / 1e6;
            let p = &sample.point;
            panel.point(
                (p.concurrency, p.io_pages),
                "#222",
                true,
                &format!("measured: {} MB/s", short(mb)),
            );
        }
        add(
            &mut html,
            format_args!("<figure>{}</figure>", panel.finish()),
        );
    }
    html.push_str("</div>\n");
    html
}

fn residuals(report: &ModelReport, kind: ModelKind) -> String {
    if report.residuals.is_empty() {
        return String::new();
    }
    let x = LogAxis::spanning(
        report
            .residuals
            .iter()
            .map(|r| r.sample.throughput_pages_per_s),
    );
    let widest = report
        .residuals
        .iter()
        .map(|r| r.ratio.max(1.0 / r.ratio))
        .fold(1.5, f64::max)
        * 1.1;
    let mut panel = Panel::new(
        (2.0 * LARGE.0, 320.0),
        "Predicted / measured, each point predicted without itself",
        (x, "measured pages per second"),
        (LogAxis::new(1.0 / widest, widest), "ratio"),
    );
    let ends = (x.value(0.0), x.value(1.0));
    for (ratio, class) in [(1.0, "exact"), (1.2, "band"), (1.0 / 1.2, "band")] {
        panel.rule((ends.0, ratio), (ends.1, ratio), class);
    }
    for residual in &report.residuals {
        let p = &residual.sample.point;
        let color = match p.pure_operation() {
            Some(Operation::Read) => "#1f6fb2",
            Some(Operation::Write) => "#c4512d",
            None => "#6b7d2a",
        };
        let tooltip = format!(
            "k = {}, {} pages per I/O, {:.0}% random, {:.0}% reads: {:.2}",
            p.concurrency,
            p.io_pages,
            100.0 * p.random_share,
            100.0 * p.read_share,
            residual.ratio
        );
        panel.point(
            (residual.sample.throughput_pages_per_s, residual.ratio),
            color,
            p.random_share < 0.5,
            &tooltip,
        );
    }
    format!(
        "<h2>Residuals of the {kind}</h2>\n<figure>{}<p class=\"legend\"><span><i style=\"background:#1f6fb2\"></i>reads\
         </span><span><i style=\"background:#c4512d\"></i>writes</span><span><i style=\"background:#6b7d2a\"></i>mixed\
         </span><span>hollow: mostly sequential; dashed: ±20%</span></p></figure>\n",
        panel.finish()
    )
}

fn other_models(report: &ModelReport, chosen: Option<ModelKind>) -> String {
    let mut html =
        String::from("<h2>The same points under the other models</h2>\n<div class=\"panels\">");
    for row in report.rows.iter().filter(|r| Some(r.kind) != chosen) {
        let Some(predictor) = report.predictor(row.kind) else {
            continue;
        };
        for frame in OPERATIONS.iter().filter_map(|&o| Frame::of(report, o)) {
            let title = format!("{}: {}s", short_name(row.kind), frame.operation);
            add(
                &mut html,
                format_args!(
                    "<figure>{}</figure>",
                    frame.panel(SMALL, &title, predictor.model())
                ),
            );
        }
    }
    html.push_str("</div>\n");
    html
}

/// The longest name does not fit over a small panel.
fn short_name(kind: ModelKind) -> String {
    match kind {
        ModelKind::Surface => "queue form with surface".into(),
        ModelKind::MqssdSmooth => "MQSSD with smooth residual".into(),
        ModelKind::MqssdPrintedAdded => "MQSSD printed, costs added".into(),
        kind => kind.to_string(),
    }
}

fn cost_functions(report: &ModelReport) -> String {
    let Some(DriveModel::Mqssd(PerOperation { read, write })) =
        report.predictor(ModelKind::Mqssd).map(|p| p.model())
    else {
        return String::new();
    };
    let mut html = String::from(
        "<h2>Cost functions of MQSSD as corrected</h2>\n<p>Setup per I/O and transfer per page, as functions of the I/Os in \
         flight. Points are per-k straight lines, where a value of k was measured with two or more I/O sizes.</p>\n\
         <div class=\"panels wide\">",
    );
    let cases: [(&str, &Option<Mqssd>, &[ConcurrencyCosts]); 2] = [
        ("reads: t(k), α(k)", read, &report.read_lines),
        ("writes: s(k), β(k)", write, &report.write_lines),
    ];
    for (title, model, lines) in cases {
        let Some(model) = model else { continue };
        let k_axis = LogAxis::new(1.0, 256.0);
        let ks: Vec<f64> = (0..=64)
            .map(|i| k_axis.value(f64::from(i) / 64.0))
            .collect();
        let curve = |c: &dyn CostCurve| ks.iter().map(|&k| (k, c.at(k))).collect::<Vec<_>>();
        let (setup, transfer) = (curve(&model.setup), curve(&model.transfer));
        let values = setup.iter().chain(&transfer).map(|p| p.1);
        let measured = lines.iter().flat_map(|l| [l.setup_us, l.transfer_us]);
        let y = LogAxis::spanning(values.chain(measured));
        let mut panel = Panel::new(LARGE, title, (k_axis, "I/Os in flight"), (y, "µs"));
        for (points, color) in [(&setup, SETUP_COLOR), (&transfer, TRANSFER_COLOR)] {
            panel.curve(points, color);
        }
        for line in lines {
            for (value, color) in [
                (line.setup_us, SETUP_COLOR),
                (line.transfer_us, TRANSFER_COLOR),
            ] {
                if value > 0.0 {
                    let tooltip = format!(
                        "k = {}: {value:.2} µs, R² {:.3}",
                        line.concurrency, line.r_squared
                    );
                    panel.point((line.concurrency, value), color, false, &tooltip);
                }
            }
        }
        add(
            &mut html,
            format_args!("<figure>{}</figure>", panel.finish()),
        );
    }
    add(
        &mut html,
        format_args!(
            "</div><p class=\"legend\"><span><i style=\"background:{SETUP_COLOR}\"></i>setup, µs per I/O</span><span><i \
             style=\"background:{TRANSFER_COLOR}\"></i>transfer, µs per page</span></p>"
        ),
    );
    html
}

const SETUP_COLOR: &str = "#8a3ffc";
const TRANSFER_COLOR: &str = "#007d79";

fn coefficients(rows: &[ModelRow]) -> String {
    let mut html = String::from("<h2>Coefficients</h2>\n<div class=\"coefficients\">");
    for row in rows.iter().filter(|r| !r.coefficients.is_empty()) {
        add(
            &mut html,
            format_args!("<table><caption>{}</caption>", row.kind),
        );
        for c in &row.coefficients {
            let operation = c.operation.map_or(String::new(), |o| format!("{o} "));
            let unit = if c.unit == "1" { "" } else { &c.unit };
            add(
                &mut html,
                format_args!(
                    "<tr><td>{operation}{}</td><td>{:.4}</td><td>{}</td></tr>",
                    escape(&c.name),
                    c.value,
                    escape(unit)
                ),
            );
        }
        html.push_str("</table>\n");
    }
    html.push_str("</div>\n");
    html
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use isobath_model::profile::{
        DriveState, Hardware, HostCache, MeasuredPoint, PROFILE_FORMAT, PROFILE_VERSION,
        Preparation, Regime, RepeatNoise, System, Target, TargetKind,
    };

    /// Measured points of a virtual drive; `set` is a column of that fixture.
    pub(crate) fn profile(set: &str) -> DeviceProfile {
        let points = include_str!("../../isobath-model/tests/fixtures/virtual_drive.csv")
            .lines()
            .filter(|l| l.starts_with(set))
            .map(|l| {
                let v: Vec<f64> = l.split(',').skip(1).map(|v| v.parse().unwrap()).collect();
                MeasuredPoint {
                    threads: 1,
                    queue_depth: v[0] as u32,
                    random_share: v[1],
                    io_pages: v[2],
                    read_share: v[3],
                    regime: 0,
                    began_s: 0.0,
                    duration_s: 3.0,
                    throughput_pages_per_s: 0.5 * (v[4] + v[5]),
                    throughput_spread: (v[4] / v[5] - 1.0).abs(),
                    repeats: 2,
                    reruns: 0,
                    disturbed: 0,
                    cpu_us_per_io: None,
                    latency_us: None,
                }
            })
            .collect();
        DeviceProfile {
            format: PROFILE_FORMAT.into(),
            version: PROFILE_VERSION,
            tool_version: "0".into(),
            created_unix_s: 0,
            complete: true,
            plan: None,
            target: Target {
                path: "probe <&>.bin".into(),
                kind: TargetKind::File,
                size_bytes: 4 << 30,
            },
            hardware: Hardware {
                cpu_count: 2,
                memory_bytes: 24 << 30,
                ..Hardware::default()
            },
            system: System {
                kernel: "6.18".into(),
                file_system: Some("ext4".into()),
                io_scheduler: None,
                io_interface: "io_uring".into(),
                direct_io: true,
            },
            drive_state: DriveState {
                preparation: Preparation::SequentialFill,
                prepared_bytes: 4 << 30,
                fill_share: None,
            },
            host_cache: HostCache {
                verdict: HostCacheVerdict::Suspected,
                first_pass_reads_per_s: Some(13e3),
                repeat_reads_per_s: Some(82e3),
            },
            steal_share: Some(0.0),
            repeat_noise: RepeatNoise {
                read: Some(0.08),
                write: Some(0.17),
            },
            regimes: vec![Regime {
                name: "steady".into(),
                operation: None,
                usable: true,
                level_pages_per_s: None,
                began_s: 0.0,
                ended_s: 1.0,
            }],
            sentinels: Vec::new(),
            points,
        }
    }

    fn count(page: &str, what: &str) -> usize {
        page.matches(what).count()
    }

    #[test]
    fn the_page_is_self_contained_and_draws_every_point() {
        let profile = profile("train");
        let report = ModelReport::of(&profile, Some(&self::profile("test")));
        let page = render(&report, &profile);
        if let Some(path) = std::env::var_os("ISOBATH_REPORT_OUT") {
            std::fs::write(path, &page).unwrap();
        }
        for foreign in ["http:", "https:", "<script", "src=", "url(", "@import"] {
            assert_eq!(count(&page, foreign), 0, "{foreign}");
        }
        for element in ["svg", "table", "figure", "div", "p", "tr", "body"] {
            let opened =
                count(&page, &format!("<{element}>")) + count(&page, &format!("<{element} "));
            assert_eq!(opened, count(&page, &format!("</{element}>")), "{element}");
        }
        for kind in ModelKind::ALL {
            assert!(page.contains(&kind.to_string()), "{kind}");
        }
        assert!(
            page.contains("needs 4 more values of k"),
            "a model that lacks points says so"
        );
        assert!(page.contains("probe &lt;&amp;&gt;.bin") && !page.contains("<&>"));
        assert!(!page.contains("NaN") && !page.contains("inf"));
        // Pure points are drawn over the curves of all fitted models and on the contours, residuals once each.
        let fitted = report.rows.iter().filter(|r| r.failure.is_none()).count();
        let pure = report
            .samples
            .iter()
            .filter(|s| s.point.pure_operation().is_some())
            .count();
        let lines = 2 * (report.read_lines.len() + report.write_lines.len());
        let at_least = pure * (fitted + 1) + report.residuals.len();
        let circles = count(&page, "<circle");
        assert!(
            (at_least..=at_least + lines).contains(&circles),
            "{circles}, at least {at_least}"
        );
    }

    #[test]
    fn a_profile_without_a_model_still_gives_a_page_that_says_why() {
        let mut profile = profile("train");
        profile.points.clear();
        let page = render(&ModelReport::of(&profile, None), &profile);
        assert!(page.contains("pure reads or pure writes"));
        assert_eq!(count(&page, "<svg"), 0);
    }
}
