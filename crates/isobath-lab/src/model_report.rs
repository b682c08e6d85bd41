//! The HTML report about a drive's models.
//!
//! It shows measured points over predicted curves (the paper's Figures 1, 2 and 4), cost functions
//! (Figure 3), residuals and lines of equal throughput over concurrency and I/O size, beside the
//! numbers.

use isobath_model::curve::CostCurve;
use isobath_model::drive::{Coefficient, ConcurrencyCosts, Mqssd, PerOperation};
use isobath_model::profile::{DeviceProfile, HostCacheVerdict};
use isobath_model::report::{ModelReport, ModelRow};
use isobath_model::{
    DriveModel, HeldOutError, ModelKind, OperatingPoint, Operation, PAGE_BYTES, Sample,
};

use crate::report::{
    Axis, Chart, Ink, Markup, cells, facts, html, legend, number, page, short, table, words,
};

/// Renders the report.
pub fn render(report: &ModelReport, profile: &DeviceProfile) -> String {
    let chosen = report.rows.iter().find(|r| r.chosen).map(|r| r.kind);
    let drive = profile.hardware.drive_model.as_ref();
    let drive = drive.unwrap_or(&profile.target.path);
    let content = html! {
        (facts(&about(profile, report)))
        (models(&report.rows))
        @if let Some((kind, predictor)) = chosen.and_then(|kind| Some((kind, report.predictor(kind)?))) {
            (predictions(report, kind, predictor.model()))
            (contours(report, kind, predictor.model()))
            (residuals(report, kind))
        }
        (other_models(report, chosen))
        (cost_functions(report))
        (coefficients(&report.rows))
    };
    page(&format!("Drive model: {drive}"), &content)
}

fn about(profile: &DeviceProfile, report: &ModelReport) -> Vec<(&'static str, String)> {
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
        s if s > 9.99 => "> 999%".into(),
        s => format!("{:.1}%", 100.0 * s),
    }
}

fn models(rows: &[ModelRow]) -> Markup {
    let judged = rows.iter().any(|r| r.unseen.is_some());
    let mut columns = vec![
        words("Model"),
        number("R²"),
        number("Median error"),
        number("90th percentile"),
        words(""),
    ];
    if judged {
        columns.extend([number("Unseen: median"), number("90th percentile")]);
    }
    let row = |row: &ModelRow| {
        let kind = html! { span class=[row.chosen.then_some("chosen")] { (row.kind.to_string()) } };
        if let Some(failure) = &row.failure {
            return vec![kind, html! { span.unknown { (failure) } }];
        }
        let both = |error: Option<HeldOutError>| {
            error.map_or(["–".to_owned(), "–".to_owned()], |e| {
                [percent(e.median), percent(e.p90)]
            })
        };
        let [median, p90] = both(row.held_out);
        let width = |share: f64| format!("width:{:.0}px", 120.0 * share.min(1.0));
        let bar = html! { @if let Some(e) = row.held_out {
            div.p90 style=(width(e.p90)) { div.median style=(width(e.median)) {} }
        } };
        let r_squared = row.r_squared.map_or("–".into(), |r| format!("{r:.3}"));
        let mut cells = cells![kind, r_squared, median, p90, bar];
        if judged {
            let [median, p90] = both(row.unseen);
            cells.extend(cells![median, p90]);
        }
        cells
    };
    html! {
        h2 { "How wrong is each model on points that it has not seen?" }
        p {
            "Relative error of predicted throughput. " em { "Cross-validated" } ": every point was predicted by a fit without it."
            @if judged { " " em { "Unseen" } ": the points of another run." }
            " R² is of ln(throughput) on the fitted points. The marked model is the one to predict with."
        }
        (table(&columns, rows.iter().map(row)))
    }
}

/// Everything that curves over I/O size share: axes, the values of k, their colours.
struct Frame {
    operation: Operation,
    x: Axis,
    y: Axis,
    concurrencies: Vec<f64>,
    samples: Vec<Sample>,
}

/// More curves than this cannot be distinguished.
const CURVES_MAX: usize = 8;
const PAGES: &str = "pages of 4 KiB per I/O";

impl Frame {
    fn of(report: &ModelReport, operation: Operation) -> Option<Self> {
        let samples = report.samples.iter().copied();
        let samples: Vec<Sample> = samples
            .filter(|s| s.point.pure_operation() == Some(operation))
            .collect();
        if samples.is_empty() {
            return None;
        }
        let mut concurrencies: Vec<f64> = samples.iter().map(|s| s.point.concurrency).collect();
        concurrencies.sort_by(f64::total_cmp);
        concurrencies.dedup();
        let every = concurrencies.len().div_ceil(CURVES_MAX);
        let rates = samples.iter().map(|s| s.throughput_pages_per_s);
        Some(Self {
            operation,
            x: Axis::log_over(PAGES, samples.iter().map(|s| s.point.io_pages)),
            y: Axis::log_over("pages per second", rates),
            concurrencies: concurrencies.into_iter().step_by(every).collect(),
            samples,
        })
    }

    /// Reads, and writes, if they were measured.
    fn all(report: &ModelReport) -> impl Iterator<Item = Self> {
        let operations = [Operation::Read, Operation::Write].into_iter();
        operations.filter_map(|operation| Self::of(report, operation))
    }

    fn title(&self) -> &'static str {
        match self.operation {
            Operation::Read => "Reads",
            Operation::Write => "Writes",
        }
    }

    fn most(&self) -> f64 {
        self.concurrencies.iter().copied().fold(2.0, f64::max)
    }

    fn ink(&self, k: f64) -> Ink {
        Ink::Ramp(k.ln() / self.most().ln())
    }

    fn at(&self, k: f64, io_pages: f64) -> OperatingPoint {
        match self.operation {
            Operation::Read => OperatingPoint::random_reads(k, io_pages),
            Operation::Write => OperatingPoint::random_writes(k, io_pages),
        }
    }

    fn chart(&self, title: &str, model: &DriveModel) -> Chart {
        let mut chart = Chart::new(title, self.x.clone(), self.y.clone());
        for &k in &self.concurrencies {
            let curve: Vec<(f64, f64)> = (0..=60)
                .map(|i| self.x.value(f64::from(i) / 60.0))
                .filter_map(|p| Some((p, model.throughput_pages_per_s(&self.at(k, p)).ok()?)))
                .collect();
            chart.curve(&curve, self.ink(k), &format!("predicted: k = {k}"));
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
            chart.point(
                (p.io_pages, sample.throughput_pages_per_s),
                self.ink(p.concurrency),
                p.random_share < 0.5,
                &tooltip,
            );
        }
        chart
    }

    fn keys(&self) -> Vec<(Ink, String)> {
        let keys = self.concurrencies.iter();
        keys.map(|&k| (self.ink(k), format!("k = {k}"))).collect()
    }
}

fn predictions(report: &ModelReport, kind: ModelKind, model: &DriveModel) -> Markup {
    html! {
        h2 { "Measured points over the predictions of the " (kind.to_string()) }
        p {
            "Curves are for I/Os at random offsets, one colour per number of I/Os in flight; one access per I/O, so the share r \
             of pages that are accessed at random, the paper's axis, is 1 / pages and falls to the right. Hollow points were \
             mostly sequential and are not meant to lie on them."
        }
        div.panels.wide { @for frame in Frame::all(report) {
            (frame.chart(frame.title(), model).figure(&frame.keys()))
        } }
    }
}

fn contours(report: &ModelReport, kind: ModelKind, model: &DriveModel) -> Markup {
    let megabytes = PAGE_BYTES as f64 / 1e6;
    let levels: Vec<f64> = (0..=5)
        .flat_map(|d| [1.0, 2.0, 5.0].map(|s| s * 10f64.powi(d)))
        .collect();
    let chart = |frame: &Frame| {
        let x = Axis::log("I/Os in flight", 1.0, frame.most());
        let mut chart = Chart::new(frame.title(), x, frame.x.clone());
        chart.map((36, 28), &levels, |k, pages| {
            let rate = model.throughput_pages_per_s(&frame.at(k, pages));
            rate.map_or(f64::NAN, |rate| rate * megabytes)
        });
        for sample in &frame.samples {
            let at = (sample.point.concurrency, sample.point.io_pages);
            let rate = short(sample.throughput_pages_per_s * megabytes);
            chart.point(at, Ink::Text, true, &format!("measured: {rate} MB/s"));
        }
        chart.figure(&[])
    };
    html! {
        h2 { "Lines of equal throughput" }
        p {
            "MB/s at random offsets, predicted by the " (kind.to_string()) ". Along a line, more in flight buys smaller I/Os. \
             Points mark what was measured."
        }
        div.panels.wide { @for frame in Frame::all(report) { (chart(&frame)) } }
    }
}

fn residuals(report: &ModelReport, kind: ModelKind) -> Markup {
    let rates = || {
        let all = report.residuals.iter();
        all.map(|r| r.sample.throughput_pages_per_s)
    };
    let widest = report.residuals.iter().map(|r| r.ratio.max(1.0 / r.ratio));
    let widest = 1.1 * widest.fold(1.5, f64::max);
    let x = Axis::log_over("measured pages per second", rates());
    let ends = (x.value(0.0), x.value(1.0));
    let title = "Predicted / measured, each point predicted without itself";
    let mut chart = Chart::new(title, x, Axis::log("ratio", 1.0 / widest, widest));
    for (ratio, class) in [(1.0, "exact"), (1.2, "band"), (1.0 / 1.2, "band")] {
        chart.rule((ends.0, ratio), (ends.1, ratio), class, &short(ratio));
    }
    for residual in &report.residuals {
        let p = &residual.sample.point;
        let series = match p.pure_operation() {
            Some(Operation::Read) => 0,
            Some(Operation::Write) => 1,
            None => 2,
        };
        let tooltip = format!(
            "k = {}, {} pages per I/O, {:.0}% random, {:.0}% reads: {:.2}",
            p.concurrency,
            p.io_pages,
            100.0 * p.random_share,
            100.0 * p.read_share,
            residual.ratio
        );
        let at = (residual.sample.throughput_pages_per_s, residual.ratio);
        chart.point(at, Ink::Series(series), p.random_share < 0.5, &tooltip);
    }
    let keys = ["reads", "writes", "mixed"].iter().enumerate();
    let keys: Vec<_> = keys
        .map(|(at, name)| (Ink::Series(at), (*name).to_owned()))
        .collect();
    html! { @if !report.residuals.is_empty() {
        h2 { "Residuals of the " (kind.to_string()) }
        p { "Hollow points were mostly sequential; the dashed lines are 20% off." }
        div.panels.wide { (chart.figure(&keys)) }
    } }
}

fn other_models(report: &ModelReport, chosen: Option<ModelKind>) -> Markup {
    let others = report.rows.iter().filter(|r| Some(r.kind) != chosen);
    let fitted = others.filter_map(|row| Some((row.kind, report.predictor(row.kind)?)));
    html! {
        h2 { "The same points under the other models" }
        div.panels { @for (kind, predictor) in fitted { @for frame in Frame::all(report) {
            (frame.chart(&format!("{kind}: {}s", frame.operation), predictor.model()).figure(&[]))
        } } }
    }
}

fn cost_functions(report: &ModelReport) -> Markup {
    let predictor = report.predictor(ModelKind::Mqssd);
    let Some(DriveModel::Mqssd(PerOperation { read, write })) = predictor.map(|p| p.model()) else {
        return Markup::default();
    };
    let chart = |title: &str, model: &Mqssd, lines: &[ConcurrencyCosts]| {
        let x = Axis::log("I/Os in flight", 1.0, 256.0);
        let ks = (0..=64).map(|i| x.value(f64::from(i) / 64.0));
        let curve = |c: &dyn CostCurve| ks.clone().map(|k| (k, c.at(k))).collect::<Vec<_>>();
        let (setup, transfer) = (curve(&model.setup), curve(&model.transfer));
        let predicted = setup.iter().chain(&transfer).map(|p| p.1);
        let measured = lines.iter().flat_map(|l| [l.setup_us, l.transfer_us]);
        let mut chart = Chart::new(
            title,
            x.clone(),
            Axis::log_over("µs", predicted.chain(measured)),
        );
        chart.curve(&setup, SETUP.0, SETUP.1);
        chart.curve(&transfer, TRANSFER.0, TRANSFER.1);
        for line in lines {
            for (value, ink) in [(line.setup_us, SETUP.0), (line.transfer_us, TRANSFER.0)] {
                if value > 0.0 {
                    let (k, fit) = (line.concurrency, line.r_squared);
                    let tooltip = format!("k = {k}: {value:.2} µs, R² {fit:.3}");
                    chart.point((k, value), ink, false, &tooltip);
                }
            }
        }
        chart.figure(&[])
    };
    html! {
        h2 { "Cost functions of MQSSD as corrected" }
        p {
            "Setup per I/O and transfer per page, as functions of the I/Os in flight. Points are per-k straight lines, where a \
             value of k was measured with two or more I/O sizes."
        }
        div.panels.wide {
            @if let Some(model) = read { (chart("reads: t(k), α(k)", model, &report.read_lines)) }
            @if let Some(model) = write { (chart("writes: s(k), β(k)", model, &report.write_lines)) }
        }
        (legend(&[SETUP, TRANSFER].map(|(ink, name)| (ink, name.to_owned()))))
    }
}

const SETUP: (Ink, &str) = (Ink::Series(3), "setup, µs per I/O");
const TRANSFER: (Ink, &str) = (Ink::Series(6), "transfer, µs per page");

fn coefficients(rows: &[ModelRow]) -> Markup {
    let columns = [words("coefficient"), number("value"), words("unit")];
    let cells = |c: &Coefficient| {
        let operation = c.operation.map_or(String::new(), |o| format!("{o} "));
        let unit = if c.unit == "1" { "" } else { &c.unit };
        cells![
            format!("{operation}{}", c.name),
            format!("{:.4}", c.value),
            unit
        ]
    };
    html! {
        h2 { "Coefficients" }
        div.panels { @for row in rows.iter().filter(|r| !r.coefficients.is_empty()) {
            div { h3 { (row.kind.to_string()) } (table(&columns, row.coefficients.iter().map(cells))) }
        } }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::report::check::Page;
    use isobath_model::profile::MeasuredPoint;

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
        let example = include_str!("../../../docs/examples/profile.json");
        let mut profile = DeviceProfile::from_json(example).unwrap();
        profile.target.path = "probe <&>.bin".into();
        profile.regimes.truncate(1);
        profile.sentinels.clear();
        profile.points = points;
        profile
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
        let read_back = Page::of(&page);
        for kind in ModelKind::ALL {
            assert!(page.contains(&kind.to_string()), "{kind}");
        }
        assert!(
            page.contains("needs 4 more values of k"),
            "a model that lacks points says so"
        );
        assert!(page.contains("probe &lt;&amp;&gt;.bin") && !page.contains("<&>"));
        // Pure points are drawn over the curves of all fitted models and on the contours, residuals
        // once each.
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
        // A curve for every k, of reads and of writes, under every fitted model.
        let frames: Vec<Frame> = Frame::all(&report).collect();
        for k in frames.iter().flat_map(|frame| &frame.concurrencies) {
            let name = format!("predicted: k = {k}");
            let with_k = frames.iter().filter(|f| f.concurrencies.contains(k));
            let drawn = read_back.tooltips().iter().filter(|t| **t == name).count();
            assert_eq!(drawn, with_k.count() * fitted, "{name}");
        }
        let cells = read_back.rows().concat();
        for row in &report.rows {
            let rows = cells.iter().filter(|cell| **cell == row.kind.to_string());
            assert_eq!(rows.count(), 1, "{}", row.kind);
        }
    }

    #[test]
    fn a_profile_without_a_model_still_gives_a_page_that_says_why() {
        let mut profile = profile("train");
        profile.points.clear();
        let page = render(&ModelReport::of(&profile, None), &profile);
        assert!(page.contains("pure reads or pure writes"));
        assert_eq!(Page::of(&page).count("svg"), 0);
    }
}
